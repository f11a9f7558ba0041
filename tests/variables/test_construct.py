from __future__ import annotations

import pytest
import torch

from tdcompile import TensorDict
from variables.checks import check, td


def named(value):
    return value.__name__.replace("_", "-") if callable(value) else str(value)


def from_dict(x):
    return TensorDict({"s": x + 1, "t": x}, batch_size=[3])


def from_keywords(x):
    return TensorDict(s=x + 1, t=x, batch_size=[3])


def from_nested_dict(x):
    return TensorDict({"n": {"s": x + 1, "m": {"t": x}}, "u": x}, batch_size=[3])


def from_nested_keys(x):
    return TensorDict({("n", "s"): x + 1, ("n", "t"): x, "u": x * 2}, batch_size=[3])


def from_tensordict(x):
    return TensorDict(TensorDict({"s": x + 1}, batch_size=[3]), batch_size=[3])


def empty_then_filled(x):
    made = TensorDict({}, batch_size=[3])
    made["s"] = x + 1
    made["n", "t"] = x
    return made


def no_source(x):
    made = TensorDict(batch_size=[3])
    made.set("s", x + 1)
    return made


def size_of_int(x):
    return TensorDict({"s": x + 1}, batch_size=3)


def size_of_tensor(x):
    return TensorDict({"s": x + 1}, batch_size=x.shape)


def size_of_prefix(x):
    return TensorDict({"s": x + 1}, batch_size=x.shape[:1])


def size_none(x):
    return TensorDict({"s": x + 1})


def with_device(x):
    return TensorDict({"s": x + 1}, batch_size=[3], device="cpu")


def with_device_object(x):
    return TensorDict({"s": x + 1}, batch_size=[3], device=x.device)


def with_names(x):
    return TensorDict({"s": x + 1, "n": {"t": x}}, batch_size=[3], names=["time"])


def with_lock(x):
    return TensorDict({"s": x + 1, "n": {"t": x}}, batch_size=[3], lock=True)


def with_numbers(x):
    return TensorDict({"s": x + 1, "t": 1.0, "u": True})


def with_text(x):
    return TensorDict({"s": x + 1, "t": "text"}, batch_size=[3])


def with_object(x):
    return TensorDict({"s": x + 1, "t": {"k": x}}, batch_size=[3])


def from_dict_method(x):
    return TensorDict.from_dict({"s": x + 1, "n": {"t": x}}, batch_size=[3])


def then_operators(x):
    made = TensorDict({"s": x, "t": x + 1}, batch_size=[3])
    return (made * 2 + made)["t"].sum(), made.exp()


def then_shape_operations(x):
    made = TensorDict({"s": x, "t": x + 1}, batch_size=[3])
    return made.unsqueeze(0), made.reshape(3, 1), made[0], made[:2], torch.stack([made, made])


def inside_loop(x):
    total = TensorDict({"s": torch.zeros_like(x)}, batch_size=[3])
    for step in range(3):
        total["s"] = total["s"] + x * step
        total = TensorDict({"s": total["s"], "last": x}, batch_size=total.batch_size)
    return total


def in_helper(x):
    def make(value, *, batch_size):
        return TensorDict({"s": value}, batch_size=batch_size)

    return make(x + 1, batch_size=[3])


def not_returned(x):
    made = TensorDict({"s": x + 1}, batch_size=[3])
    return made["s"] * 2


PROGRAMS = [
    from_dict,
    from_keywords,
    from_nested_dict,
    from_nested_keys,
    from_tensordict,
    empty_then_filled,
    no_source,
    size_of_int,
    size_of_tensor,
    size_of_prefix,
    size_none,
    with_device,
    with_device_object,
    with_names,
    with_lock,
    with_numbers,
    with_text,
    with_object,
    from_dict_method,
    then_operators,
    then_shape_operations,
    inside_loop,
    in_helper,
    not_returned,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=named)
def test_construction_traces_whole(program):
    check(program, [torch.ones(3, 2), torch.zeros(3, 2)])


@pytest.mark.parametrize("program", [not_returned, from_dict, then_operators], ids=named)
def test_construction_adds_no_node(program):
    nodes = {not_returned: 2, from_dict: 1, then_operators: 8}
    assert check(program, [torch.ones(3, 2)]).num_nodes == nodes[program]


def does_not_fit(x):
    return TensorDict({"s": x + 1}, batch_size=[4])


def both_sources(x):
    return TensorDict({"s": x + 1}, batch_size=[3], t=x)


def two_names_too_many(x):
    return TensorDict({"s": x + 1}, batch_size=[3], names=["a", "b", "c"])


@pytest.mark.parametrize("program", [does_not_fit, both_sources, two_names_too_many], ids=named)
def test_construction_that_fails_raises_as_in_eager(program):
    def caught(x):
        try:
            return program(x)
        except (ValueError, RuntimeError) as error:
            return x + 1, type(error).__name__

    check(caught, [torch.ones(3, 2)])


def of_same_class(td):
    return type(td)({"s": td["a"] + 1}, batch_size=td.batch_size)


def of_class_attribute(td):
    return td.__class__({"s": td["a"] + 1}, batch_size=td.batch_size)


def is_instance(td):
    return td["a"] + (1 if isinstance(td, TensorDict) else 2)


def type_is(td):
    return td["a"] + (1 if type(td) is TensorDict else 2)


@pytest.mark.parametrize(
    "program", [of_same_class, of_class_attribute, is_instance, type_is], ids=named
)
def test_class_of_tensordict_is_known(program):
    check(program, [td(), td()])


def test_class_passed_as_argument_traces_whole():
    def program(cls, x):
        return cls({"s": x + 1}, batch_size=[3])

    check(program, [(TensorDict, torch.ones(3)), (TensorDict, torch.zeros(3))])


def test_argument_that_is_tensordict_or_dict_is_guarded():
    def program(data):
        return data["a"] + 1

    check(program, [td(), {"a": torch.ones(3, 2)}, td(), {"a": torch.zeros(3, 2)}], graphs=2)

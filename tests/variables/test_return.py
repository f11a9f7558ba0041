from __future__ import annotations

import pytest
import torch

import tdcompile
from tdcompile import TensorDict
from variables.checks import Holder, check, duplicate, outcome_of, same, td, with_extras


def named(value):
    return value.__name__.replace("_", "-") if callable(value) else str(value)


def new(td):
    return TensorDict({"s": td["a"] + 1}, batch_size=td.batch_size)


def new_twice(td):
    other = TensorDict({"s": td["a"] + 1}, batch_size=td.batch_size)
    return other, other


def new_in_list(td):
    other = TensorDict({"s": td["a"] + 1}, batch_size=[3])
    return [other, [other]]


def new_in_dict(td):
    other = TensorDict({"s": td["a"] + 1}, batch_size=[3])
    return {"first": other, "second": {"third": other}}


def new_in_new(td):
    inner = TensorDict({"s": td["a"] + 1}, batch_size=[3])
    outer = TensorDict({"inner": inner, "again": inner}, batch_size=[3])
    return outer, inner


def new_with_input_leaf(td):
    return TensorDict({"s": td["a"], "t": td["b"] + 1}, batch_size=[3])


def new_with_input_nested(td):
    return TensorDict({"s": td["n"], "t": td["b"] + 1}, batch_size=[3])


def input_itself(td):
    td["z"] = td["a"] + 1
    return td


def input_twice_and_nested(td):
    td["z"] = td["a"] + 1
    return td, [td], td["n"], {"n": td["n"]}


def input_nested_mutated(td):
    nested = td["n"]
    nested["z"] = nested["x"] + 1
    return nested


def leaf_itself(td):
    return td["a"], td["a"] + 1


def stored_under_new_key(td):
    td["m"] = td["n"]
    return td["a"] + 1


def stored_and_written(td):
    td["m"] = td["n"]
    td["m", "x"] = td["a"] + 1
    td["n", "y"] = td["b"] + 1


def stored_in_sibling(td):
    td["n", "copy"] = td.select("a")
    td["n", "x"] = td["a"] + 1


def new_stored_in_input(td):
    other = TensorDict({"s": td["a"] + 1}, batch_size=[3])
    td["m"] = other
    return other


def new_stored_twice_then_written(td):
    other = TensorDict({"s": td["a"] + 1}, batch_size=[3])
    td["m"] = other
    td["n", "m"] = other
    other["t"] = td["b"] + 1
    return other


def new_locked(td):
    return TensorDict({"s": td["a"] + 1}, batch_size=[3]).lock_()


def leafwise_then_write(td):
    other = td * 2
    other["z"] = other["a"] + td["a"]
    return other


def leafwise_keeps_input(td):
    return td, td + 1


ROWS = [
    new,
    new_twice,
    new_in_list,
    new_in_dict,
    new_in_new,
    new_with_input_leaf,
    new_with_input_nested,
    input_itself,
    input_twice_and_nested,
    input_nested_mutated,
    leaf_itself,
    stored_under_new_key,
    stored_and_written,
    stored_in_sibling,
    new_stored_in_input,
    new_stored_twice_then_written,
    new_locked,
]


@pytest.mark.parametrize("program", ROWS, ids=named)
def test_result_other_keys_vary_compiles_once_and_keeps_identity(program):
    check(program, with_extras())


@pytest.mark.parametrize("program", [leafwise_then_write, leafwise_keeps_input], ids=named)
def test_leafwise_result_traces_whole(program):
    check(program, [td(), td(), td().select("n", "b", "a")])


# ---- where a tensordict comes from ---------------------------------------------------------------


def by_keyword(*, td, x):
    td["z"] = td["a"] + x
    return td


def in_list(tds):
    for value in tds:
        value["z"] = value["a"] + 1
    return tds[0]


def in_dict(tds):
    tds["first"]["z"] = tds["second"]["a"] + 1
    return tds["first"]


def in_tuple(pair):
    first, second = pair
    return TensorDict({"s": first["a"] + second["a"]}, batch_size=[3])


def of_object(holder):
    holder.td["z"] = holder.td["a"] + 1
    return holder.td


def into_object(holder):
    holder.td = TensorDict({"s": holder.td["a"] + 1}, batch_size=[3])


def into_list(values):
    values.append(TensorDict({"s": values[0]["a"] + 1}, batch_size=[3]))


def into_dict(values):
    values["new"] = values["old"].copy()
    values["new"]["z"] = values["old"]["a"] + 1


def td_inputs():
    return [value for (value,) in with_extras()[:4]]


@pytest.mark.parametrize(
    ("program", "wrap"),
    [
        (in_list, lambda value: [value, td()]),
        (in_dict, lambda value: {"first": value, "second": td()}),
        (in_tuple, lambda value: ((value, td()),)),
        (of_object, lambda value: Holder(td=value)),
        (into_object, lambda value: Holder(td=value)),
        (into_list, lambda value: [value]),
        (into_dict, lambda value: {"old": value}),
    ],
    ids=named,
)
def test_tensordict_inside_another_object_compiles_once(program, wrap):
    wrapped = [wrap(value) for value in td_inputs()]
    check(program, [value if isinstance(value, tuple) else (value,) for value in wrapped])


def test_keyword_argument_compiles_once():
    def program(td, x):
        return by_keyword(td=td, x=x)

    check(program, [(value, torch.ones(3, 2)) for value in td_inputs()])
    torch._dynamo.reset()
    with tdcompile.install(strict=True):
        compiled = torch.compile(by_keyword, backend="eager", fullgraph=True)
        for value in td_inputs():
            expected = value["a"] + 2
            assert compiled(x=torch.full((3, 2), 2.0), td=value) is value
            assert torch.equal(value["z"], expected)


GLOBAL = None


def use_global(x):
    GLOBAL["z"] = GLOBAL["a"] + x
    return GLOBAL["n", "x"] * 2


def test_global_tensordict_is_written_and_follows_rebinding():
    global GLOBAL
    try:
        torch._dynamo.reset()
        with tdcompile.install(strict=True):
            compiled = torch.compile(use_global, backend="eager", fullgraph=True)
            for value in td_inputs():
                GLOBAL = value
                result = compiled(torch.ones(3, 2))
                assert torch.equal(value["z"], value["a"] + 1)
                assert torch.equal(result, value["n", "x"] * 2)
                assert list(value.keys())[-1] == "z"
    finally:
        GLOBAL = None


def test_closure_tensordict_is_written():
    value = td()

    def program(x):
        value["z"] = value["a"] + x
        return value["z"] * 2

    torch._dynamo.reset()
    with tdcompile.install(strict=True):
        compiled = torch.compile(program, backend="eager", fullgraph=True)
        for shift in (1.0, 2.0):
            result = compiled(torch.full((3, 2), shift))
            assert torch.equal(value["z"], value["a"] + shift)
            assert torch.equal(result, value["z"] * 2)
        value["p"] = torch.zeros(3)
        compiled(torch.zeros(3, 2))
        assert list(value.keys()) == ["a", "b", "n", "z", "p"]
        assert torch.equal(value["z"], value["a"])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 4)
        self.buffers_of_mine = td()

    def forward(self, td):
        td["out"] = self.linear(td["a"])
        td["n", "out"] = td["out"].relu() + self.buffers_of_mine["b"].unsqueeze(-1)
        return td


def test_module_forward_over_tensordict_compiles_once():
    net = Net()
    inputs = td_inputs()
    expected = [outcome_of(net, (value,)) for value in duplicate(inputs)]
    torch._dynamo.reset()
    with tdcompile.install(strict=True):
        counter = torch._dynamo.testing.CompileCounter()
        compiled = torch.compile(net, backend=counter, fullgraph=True)
        found = [outcome_of(compiled, (value,)) for value in inputs]
    for eager, outcome in zip(expected, found, strict=True):
        assert not list(same(eager, outcome))
    assert counter.frame_count == 1


def helper_with_default(td, key="a", *, scale=2):
    return td[key] * scale


def calls_helpers(td):
    td.update({k: helper_with_default(td, key=k, scale=3) for k in ("a", "b")})
    values = [helper_with_default(td, k) for k in ("a", "b")]
    return sum(value.sum() for value in values)


def test_helper_functions_and_comprehensions_compile_once():
    check(calls_helpers, with_extras())


def test_nested_compile_over_tensordict_is_right():
    inner = torch.compile(lambda td: td["a"] * 2, backend="eager", fullgraph=True)

    def program(td):
        td["z"] = inner(td) + 1
        return td["n", "x"] + 1

    check(program, with_extras())


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_gradients_through_tensordict_program_match_eager(backend):
    def program(td, weight):
        td["h"] = td["a"] @ weight
        td["n", "h"] = td["h"].relu() + td["n", "x"]
        other = (td.select("h") * 2).add(1)
        other["sum"] = td["n", "h"].sum(-1)
        return other

    def loss_of(function, value, weight):
        result = function(value, weight)
        loss = (result["h"] ** 2).sum() + result["sum"].sum() + value["n", "h"].sum()
        loss.backward()
        return loss.detach(), weight.grad, value["a"].grad

    def make(shift):
        value = td(shift=shift)
        value["a"].requires_grad_()
        return value, torch.full((2, 2), 0.5 + shift, requires_grad=True)

    torch._dynamo.reset()
    with tdcompile.install(strict=True):
        counter = torch._dynamo.testing.CompileCounterWithBackend(backend)
        compiled = torch.compile(program, backend=counter, fullgraph=True)
        for shift in (0.0, 1.0):
            torch.testing.assert_close(
                loss_of(compiled, *make(shift)), loss_of(program, *make(shift))
            )
        assert counter.frame_count == 1


def test_requires_grad_of_results_follows_eager():
    def program(td):
        td["z"] = td["a"].detach() * 2
        return td + 1

    value = td()
    value["a"].requires_grad_()
    check(program, [value], backend="aot_eager")

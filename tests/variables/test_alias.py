from __future__ import annotations

import pytest
import torch

import tdcompile
from tdcompile import TensorDict
from variables.checks import check, td, with_extras


def named(value):
    return value.__name__.replace("_", "-") if callable(value) else str(value)


def write_one_read_other(first, second):
    first["z"] = first["a"] + 1
    return second["a"] * 2, "z" in second.keys()  # noqa: SIM118


def overwrite_one_read_other(first, second):
    first["a"] = first["a"] + 1
    return second["a"] * 2


def read_then_write(first, second):
    x = second["a"]
    first["a"] = x + 1
    return second["a"], x


def write_both(first, second):
    first["a"] = first["a"] + 1
    second["a"] = second["a"] * 2
    return first["a"] - second["a"]


def write_both_new_keys(first, second):
    first["y"] = first["a"] + 1
    second["z"] = second["b"] + 1


def delete_from_one(first, second):
    x = first["a"] + 1
    del first["b"]
    return x, second.get("b", None)


def write_one_return_other(first, second):
    first["z"] = first["a"] + 1
    return second


def copy_one_write_other(first, second):
    copied = first.copy()
    second["a"] = second["a"] + 1
    return copied


def write_one_never_read_other(first, second):
    first["z"] = first["a"] + 1
    return [first, second]


def asks_identity(first, second):
    first["z"] = first["a"] + 1
    return first is second


PROGRAMS = [
    write_one_read_other,
    overwrite_one_read_other,
    read_then_write,
    write_both,
    write_both_new_keys,
    delete_from_one,
    write_one_return_other,
    copy_one_write_other,
    write_one_never_read_other,
    asks_identity,
]


def distinct():
    return td(), td(shift=5.0)


def aliased():
    value = td()
    return value, value


@pytest.mark.parametrize("program", PROGRAMS, ids=named)
@pytest.mark.parametrize("order", ["distinct-first", "aliased-first"])
def test_same_tensordict_twice_and_two_are_told_apart(program, order):
    makers = [distinct, aliased] if order == "distinct-first" else [aliased, distinct]
    check(program, [make() for make in [*makers, *makers]], graphs=2)


@pytest.mark.parametrize(
    "program", [write_one_read_other, write_both, copy_one_write_other], ids=named
)
def test_same_tensordict_twice_other_keys_vary_compiles_once(program):
    check(program, [(value, value) for (value,) in with_extras()])


@pytest.mark.parametrize(
    "program", [write_one_read_other, write_both, copy_one_write_other], ids=named
)
def test_two_tensordicts_other_keys_vary_compiles_once(program):
    seconds = [value for (value,) in with_extras()][::-1]
    check(program, list(zip([value for (value,) in with_extras()], seconds, strict=True)))


# ---- one nested tensordict under two keys --------------------------------------------------------


def shared(k="n", m="m"):
    value = td()
    value[m] = value[k]
    return value


def not_shared():
    value = td()
    value["m"] = TensorDict({"x": torch.zeros(3, 2), "y": torch.ones(3)}, batch_size=[3])
    return value


def write_through_one(td):
    td["n", "x"] = td["a"] + 1
    return td["m", "x"] * 2


def write_through_both(td):
    td["n", "x"] = td["a"] + 1
    td["m", "x"] = td["m", "x"] * 2


def new_key_through_one(td):
    td["n", "z"] = td["a"] + 1
    return ("m", "z") in td.keys(True)


def write_one_only(td):
    td["n", "z"] = td["a"] + 1


def replace_one(td):
    td["n"] = {"x": td["a"] + 1}
    return td["m", "x"] * 2


def add_to_all(td):
    td += 1
    return td


def doubled(td):
    return td * 2


@pytest.mark.parametrize(
    "program",
    [write_through_one, write_through_both, new_key_through_one],
    ids=named,
)
@pytest.mark.parametrize("order", ["shared-first", "distinct-first"])
def test_nested_under_two_keys_is_one_tensordict(program, order):
    makers = [shared, not_shared] if order == "shared-first" else [not_shared, shared]
    check(program, [make() for make in [*makers, *makers]], graphs=2)


@pytest.mark.parametrize("program", [write_one_only, replace_one], ids=named)
def test_nested_under_two_keys_only_one_path_read_compiles_once(program):
    # The other path is never looked at, so one compilation is right for both inputs.
    check(program, [shared(), not_shared(), shared(), not_shared()])


@pytest.mark.parametrize("order", ["shared-first", "distinct-first"])
@pytest.mark.parametrize("program", [add_to_all, doubled], ids=named)
def test_leafwise_over_nested_under_two_keys_is_right(program, order):
    makers = [shared, not_shared] if order == "shared-first" else [not_shared, shared]
    values = [make() for make in [*makers, *makers]]
    check(program, values, graphs=2)


# ---- one leaf in two places ----------------------------------------------------------------------


def same_leaf():
    value = td()
    value["c"] = value["a"]
    return value


def two_leaves():
    return td(c=torch.full((3, 2), 9.0))


def leaf_in_place(td):
    td["a"].add_(1)
    return td["c"] * 2


def leaf_swap(td):
    td["a"], td["c"] = td["c"], td["a"]
    return td["b"] + 1


def leaf_sum(td):
    return td["a"] + td["c"]


@pytest.mark.parametrize("program", [leaf_in_place, leaf_swap, leaf_sum], ids=named)
@pytest.mark.parametrize("order", ["same-first", "two-first"])
def test_leaf_under_two_keys_is_right(program, order):
    makers = [same_leaf, two_leaves] if order == "same-first" else [two_leaves, same_leaf]
    check(program, [make() for make in [*makers, *makers]], graphs=2)


def outside(td, x):
    td["z"] = x
    x.add_(1)
    return td["z"] * 2


def outside_equal(td, x):
    td["a"] = td["a"] + 1
    return td["a"] - x


def test_leaf_that_is_also_an_argument_is_right():
    value = td()
    check(outside, [(td(), torch.ones(3, 2)), (value, value["a"])])
    value = td()
    check(outside_equal, [(td(), torch.ones(3, 2)), (value, value["a"])], graphs=2)


def nested_and_root(td, nested):
    nested["z"] = td["a"] + 1
    return td["n", "x"] * 2, ("n", "z") in td.keys(True)


@pytest.mark.parametrize("order", ["inside-first", "outside-first"])
def test_nested_tensordict_that_is_also_an_argument_is_right(order):
    def inside():
        value = td()
        return value, value["n"]

    def outside():
        value = td()
        return value, td()["n"]

    makers = [inside, outside] if order == "inside-first" else [outside, inside]
    check(nested_and_root, [make() for make in [*makers, *makers]], graphs=2)


def test_two_holders_of_one_nested_tensordict_are_right():
    def program(first, second):
        first["n", "z"] = first["a"] + 1
        return second["n"], second["n", "x"] * 2

    def one_nested():
        first, second = td(), td(shift=2.0)
        second["n"] = first["n"]
        return first, second

    check(program, [one_nested(), distinct(), one_nested(), distinct()], graphs=2)


def in_two_lists(first, second):
    first[0]["z"] = first[0]["a"] + 1
    return second[0].get("z", None), second[0]["b"] + 1


def test_same_tensordict_in_two_lists_is_right():
    value = td()
    check(in_two_lists, [([td()], [td()]), ([value], [value])], graphs=2)


def three(first, second, third):
    first["a"] = second["a"] + 1
    second["a"] = third["a"] + 1
    return third["a"] + 1


@pytest.mark.parametrize(
    "pattern", ["012", "001", "010", "011", "000"], ids=lambda pattern: f"objects-{pattern}"
)
def test_three_arguments_any_two_the_same_is_right_after_all_distinct(pattern):
    def make(which):
        values = [td(shift=float(i)) for i in range(3)]
        return tuple(values[int(i)] for i in which)

    check(three, [make("012"), make(pattern)], graphs=1 if pattern == "012" else 2)


def write_then_store(td):
    td["a"].add_(1)
    td["z"] = td["a"]
    td["y"] = td["a"].view(-1, 2) * 1
    return td


def stored_view(td):
    td["v"] = td["a"][:, :1]
    td["a"].add_(1)
    return td["v"] + 0


def nested_in_place_through_other_key(td):
    td["m"] = td["n"]
    td["n"] += 1
    return td["m"] * 2


def same_leaf_in_place_twice(td):
    td["c"] = td["a"]
    td["a"].add_(1)
    td["c"].mul_(2)
    return td["a"] + td["c"]


def copies_of_flipped(td):
    td.set_("a", td["a"].flip(0))
    td.update_({"b": td["b"].flip(0)})
    return td["a"] + 0


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize(
    "program",
    [
        write_then_store,
        stored_view,
        nested_in_place_through_other_key,
        same_leaf_in_place_twice,
        copies_of_flipped,
    ],
    ids=named,
)
def test_in_place_write_seen_through_another_name_is_right(program, backend):
    check(program, [td(), td()], backend=backend)


def write_first_read_second(td):
    td["n", "z"] = td["a"] + 1
    other = td.get("m", None)
    return td["b"] + 1 if other is None else other["x"] * 2


@pytest.mark.parametrize("order", ["present-first", "absent-first"])
def test_nested_that_must_differ_is_absent_later_recompiles(order):
    makers = [not_shared, td] if order == "present-first" else [td, not_shared]
    check(write_first_read_second, [make() for make in [*makers, *makers]], graphs=2)


def test_nested_that_must_differ_becomes_a_leaf_recompiles():
    def program(td):
        td["n", "z"] = td["a"] + 1
        other = td["m"]
        return other * 2 if isinstance(other, torch.Tensor) else other["x"] * 2

    leaf = td(m=torch.ones(3))
    check(program, [not_shared(), leaf, shared(), not_shared()], graphs=3)


GLOBAL = td()


class Holder:
    held = None


HOLDER = Holder()


def write_local_read_global(td):
    td["a"] = td["b"] + 1
    return GLOBAL["a"] * 1


def write_local_read_attribute(td):
    td["n"]["x"] = td["a"] + 5
    return HOLDER.held["n", "x"] * 1


def is_global(td):
    return td is GLOBAL, td["a"] + 1


@pytest.mark.parametrize(
    "program", [write_local_read_global, write_local_read_attribute, is_global], ids=named
)
@pytest.mark.parametrize("order", [(0, 1, 0), (1, 0, 1)], ids=["distinct-first", "same-first"])
def test_argument_that_is_or_is_not_a_global_is_right(program, order, monkeypatch):
    # Dynamo alone makes no guard that a local and a global path lead to one object.
    def call(function, is_same):
        torch.manual_seed(0)
        value = td()
        monkeypatch.setitem(globals(), "GLOBAL", value)
        monkeypatch.setattr(HOLDER, "held", value)
        other = td()
        other["a"] = other["a"] + 7
        return function(value if is_same else other)

    with tdcompile.install(strict=True):
        torch._dynamo.reset()
        compiled = torch.compile(program, backend="eager", fullgraph=True)
        for is_same in order:
            expected, found = call(program, is_same), call(compiled, is_same)
            if not isinstance(expected, tuple):
                expected, found = (expected,), (found,)
            for left, right in zip(expected, found, strict=True):
                assert torch.equal(torch.as_tensor(left), torch.as_tensor(right))

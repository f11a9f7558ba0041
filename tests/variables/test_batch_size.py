from __future__ import annotations

import pytest
import torch

import tdcompile
from tdcompile import TensorDict
from variables.checks import check, duplicate, outcome_of, same, td

SIZES = (3, 4, 5, 6, 7)


def named(value):
    return value.__name__.replace("_", "-") if callable(value) else str(value)


def add_one(td):
    return td + 1


def new_before_leaf(td):
    size = td.batch_size
    return TensorDict({"s": td["a"] + 1}, batch_size=size)


def new_after_leaf(td):
    x = td["a"] + 1
    return TensorDict({"s": x}, batch_size=td.batch_size)


def new_without_leaf(td):
    return TensorDict({"s": torch.zeros(td.batch_size)}, batch_size=td.batch_size)


def new_by_shape(td):
    return TensorDict({"s": td["b"] * 2}, batch_size=td.shape)


def new_by_size(td):
    return TensorDict({"s": td["b"] * 2}, batch_size=[td.size(0)])


def new_by_len(td):
    return TensorDict({"s": td["b"] * 2}, batch_size=[len(td)])


def new_by_leaf_shape(td):
    return TensorDict({"s": td["b"] * 2}, batch_size=td["b"].shape)


def write_new(td):
    td["z"] = td["a"] + 1


def write_zeros(td):
    td["z"] = torch.zeros(td.batch_size[0], 2) + 1


def write_nested(td):
    td["m", "k"] = td["a"] + 1


def write_blind(td, x):
    td["z"] = x + 1


def add_batch_shaped(td):
    return td * td["b"]


def empty_and_write(td):
    other = td.empty()
    other["z"] = td["a"] + 1
    return other


def use_as_number(td):
    return td["a"] * td.batch_size[0]


def use_numel(td):
    return td["a"] / td.numel()


PROGRAMS = [
    add_one,
    new_before_leaf,
    new_after_leaf,
    new_without_leaf,
    new_by_shape,
    new_by_size,
    new_by_len,
    new_by_leaf_shape,
    write_new,
    write_zeros,
    write_nested,
    add_batch_shaped,
    empty_and_write,
    use_as_number,
    use_numel,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=named)
def test_batch_size_varies_automatic_compiles_twice(program):
    # R7
    check(program, [td(size) for size in SIZES], graphs=2)


@pytest.mark.parametrize("program", PROGRAMS, ids=named)
def test_batch_size_varies_dynamic_compiles_once(program):
    check(program, [td(size) for size in SIZES], dynamic=True)


LEAVES = {"first": ("a",), "second": ("b",), "nested": ("n", "x"), "nested-last": ("n", "y")}


@pytest.mark.parametrize("leaf", LEAVES)
@pytest.mark.parametrize("program", PROGRAMS, ids=named)
def test_batch_size_varies_one_leaf_marked_compiles_once(program, leaf):
    inputs = [td(size) for size in SIZES]
    for value in inputs:
        torch._dynamo.mark_dynamic(value[LEAVES[leaf]], 0)
    check(program, inputs)


@pytest.mark.parametrize("mark", ["none", "value", "leaf"])
def test_blind_write_batch_size_varies(mark):
    inputs = [(td(size), torch.ones(size, 2)) for size in SIZES]
    if mark == "none":
        check(write_blind, inputs, dynamic=True)
        return
    for value, x in inputs:
        torch._dynamo.mark_dynamic(x if mark == "value" else value["a"], 0)
        torch._dynamo.mark_dynamic(value["a"] if mark == "value" else x, 0)
    check(write_blind, inputs)


def two_dims(first, second):
    return TensorDict(
        {
            "a": torch.zeros(first, second, 2),
            "n": TensorDict({"x": torch.ones(first, second)}, [first, second]),
        },
        batch_size=[first, second],
    )


def new_two(td):
    return TensorDict({"s": td["a"] + 1}, batch_size=td.batch_size)


def swap_sizes(td):
    first, second = td.batch_size
    return TensorDict({"s": td["a"].transpose(0, 1) + 1}, batch_size=[second, first])


@pytest.mark.parametrize("program", [add_one, new_two, swap_sizes], ids=named)
def test_two_batch_dims_both_vary_dynamic_compiles_once(program):
    check(program, [two_dims(3, 4), two_dims(5, 4), two_dims(5, 7), two_dims(6, 2)], dynamic=True)


def marked(value, key, *dims):
    for dim in dims:
        torch._dynamo.mark_dynamic(value[key], dim)
    return value


@pytest.mark.parametrize("program", [add_one, new_two, swap_sizes], ids=named)
def test_two_batch_dims_marked_on_different_leaves_compiles_once(program):
    inputs = [
        marked(marked(two_dims(first, second), "a", 0), ("n", "x"), 1)
        for first, second in ((3, 4), (5, 4), (5, 7), (6, 2))
    ]
    check(program, inputs)


def by_dims(td):
    return td["a"] + 1 if td.batch_dims == 1 else td["a"] + 2


def by_size(td):
    return td["a"] + 1 if td.batch_size[0] > 4 else td["a"] + 2


def test_number_of_batch_dims_is_guarded():
    flat, square = td(3, nested=False), two_dims(3, 4)
    check(by_dims, [flat, square, td(3, nested=False), two_dims(3, 4)], graphs=2)


@pytest.mark.parametrize("order", [(3, 6, 4, 7), (6, 3, 7, 4)], ids=["small-first", "large-first"])
def test_branch_on_batch_size_is_guarded(order):
    check(by_size, [td(size) for size in order], dynamic=True, graphs=2)


def set_batch_size(td):
    td.batch_size = []
    td["z"] = td["a"].sum()


def set_batch_size_to_leaf(td):
    td.batch_size = td["a"].shape[:1]
    td["z"] = td["a"] + 1


def test_write_of_batch_size_is_replayed():
    # The new batch size is checked against all leaves, so it depends on the key set.
    check(set_batch_size, [td(nested=False), td(nested=False)])


def test_batch_size_set_from_leaf_varies_dynamic_compiles_once():
    def make(size):
        return TensorDict({"a": torch.zeros(size, 2)}, batch_size=[])

    check(set_batch_size_to_leaf, [make(size) for size in SIZES], dynamic=True)


def wrong_size(td):
    td["z"] = td["a"][:1] + 1


@pytest.mark.parametrize("dynamic", [None, True], ids=["automatic", "dynamic"])
def test_leaf_that_does_not_fit_raises_as_in_eager(dynamic):
    values = [td(size) for size in (3, 4, 5)]
    expected = [outcome_of(wrong_size, (value,)) for value in duplicate(values)]
    torch._dynamo.reset()
    with tdcompile.install(strict=True):
        compiled = torch.compile(wrong_size, backend="eager", dynamic=dynamic)
        found = [outcome_of(compiled, (value,)) for value in values]
    for eager, outcome in zip(expected, found, strict=True):
        assert not list(same(eager, outcome))


@pytest.mark.parametrize("sizes", [(1, 2, 3), (0, 2, 3), (3, 1, 0)], ids=str)
@pytest.mark.parametrize(
    "program", [add_one, new_after_leaf, write_new, add_batch_shaped], ids=named
)
def test_batch_size_zero_or_one_is_right(program, sizes):
    small = sum(size < 2 for size in sizes)
    check(program, [td(size) for size in sizes], dynamic=True, graphs=1 + small)


@pytest.mark.parametrize(
    "program", [add_one, new_after_leaf, write_new, add_batch_shaped], ids=named
)
def test_batch_size_varies_on_inductor_compiles_once(program):
    check(program, [td(size) for size in SIZES[:3]], dynamic=True, backend="inductor")

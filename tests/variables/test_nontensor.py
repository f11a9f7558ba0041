"""Entries that are no batched tensors, in traces: carried unread, read, written."""

from __future__ import annotations

import pytest
import torch

import tdcompile
from tdcompile import MetaData, NonTensorData, NonTensorStack, TensorDict, UnbatchedTensor
from variables.checks import check, td

TEXTS = ("abc", "def", "ghi", "jkl")
KINDS = {
    "data": lambda text: NonTensorData(text),
    "metadata": lambda text: MetaData(text),
    "stack": lambda text: NonTensorStack(*text),
}
UNBATCHED = {"unbatched": lambda text: UnbatchedTensor(torch.full((4,), float(ord(text[0]))))}


def inputs(kind):
    make = {**KINDS, **UNBATCHED}[kind]
    return [td(k=make(text)) for text in TEXTS]


# Results hold the values; nobody looked at them.
CARRYING = {
    "add": lambda td: td + 1,
    "pair": lambda td: td * td,
    "exp": lambda td: td.exp(),
    "copy": lambda td: (td.copy(), td["a"] + 1),
    "apply": lambda td: td.apply(lambda leaf: leaf + 1),
    "cast": lambda td: td.double(),
    "zeros_like": lambda td: torch.zeros_like(td),
    "chain": lambda td: ((td + 1) * 2).exp(),
}
SHAPING = {
    "view": lambda td: td.view(3, 1) + 1,
    "index": lambda td: td[0] + 1,
    "slice": lambda td: td[:2] + 1,
    "split": lambda td: [part + 1 for part in td.split(2)],
}
SPREADING = {
    "unsqueeze": lambda td: td.unsqueeze(0) + 1,
    "expand": lambda td: td.expand(2, 3) + 1,
    "stack": lambda td: torch.stack([td, td]),
    "cat": lambda td: torch.cat([td, td + 1]),
    "eq": lambda td: td == td,
    "row": lambda td: torch.stack([td, td + 1])[0],
}


def no_leaf(td):
    td["z"] = td["a"] + 1
    return td


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("program", CARRYING.values(), ids=CARRYING)
def test_carried_value_costs_no_recompile(program, kind):
    check(program, inputs(kind))


@pytest.mark.parametrize("kind", [*KINDS, *UNBATCHED])
@pytest.mark.parametrize(
    "program",
    [no_leaf, lambda td: td.update({"a": td["a"] + 1}), lambda td: (td.get("k"), td["a"] + 1)],
    ids=["write", "update", "get"],
)
def test_untouched_entry_is_the_same_object(program, kind):
    check(program, inputs(kind))


@pytest.mark.parametrize("kind", ["data", "metadata"])
@pytest.mark.parametrize("program", SHAPING.values(), ids=SHAPING)
def test_one_value_for_the_batch_is_reshaped_unread(program, kind):
    check(program, inputs(kind))


@pytest.mark.parametrize("program", SHAPING.values(), ids=SHAPING)
def test_stack_is_reshaped_in_one_graph(program):
    check(program, inputs("stack"), graphs=len(TEXTS))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("program", SPREADING.values(), ids=SPREADING)
def test_values_are_spread_in_one_graph(program, kind):
    check(program, inputs(kind)[:1])


def read(td):
    return td["a"] + len(td["k"]), td["k"]


@pytest.mark.parametrize("kind", KINDS)
def test_value_that_is_read_is_guarded(kind):
    values = inputs(kind)
    check(read, [*values, *inputs(kind)], graphs=len(TEXTS))


def set_in_place(td):
    td.set_("k", "new")
    return td + 1


def write_row(td):
    td.update_at_(TensorDict(k="new"), 0)
    return td + 1


def write_after_copy(td):
    result = td + 1
    td.set_("k", "new")
    return result


def two_copies_around_a_write(td):
    before, twice = td + 1, (td + 1) * 2
    td.set_("k", "new")
    return before, twice, td + 1


def copy_read_after_write(td):
    result = td + 1
    td.set_("k", "new")
    return result["a"] + 1, result["k"], td["k"]


def copy_after_write(td):
    td.set_("k", "new")
    return td.copy()["a"] + 1, td.copy()


def assign(td):
    td["k"] = "other"
    return td + 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "program",
    [
        set_in_place,
        write_row,
        write_after_copy,
        copy_after_write,
        assign,
        two_copies_around_a_write,
        copy_read_after_write,
    ],
)
def test_write_is_replayed(program, kind):
    check(program, inputs(kind)[:1])


def write_item(td):
    td["k"][1] = "new"
    return td + 1


def write_item_of_view(td):
    td[1:]["k"][0] = "new"
    return td + 1


@pytest.mark.parametrize("program", [write_item, write_item_of_view])
def test_write_to_an_item_of_a_stack_is_replayed(program):
    check(program, inputs("stack")[:1])


def made_inside(td):
    other = TensorDict(s=NonTensorStack("x", "y", "z"), m=MetaData(3), batch_size=[3])
    other["k"] = ["p", "q", "r"]
    other["a"] = td["a"] + 1
    return other, other[1:]["s"]


def test_entry_made_in_the_trace_comes_out():
    check(made_inside, inputs("data")[:1])


def pick(td):
    return td[torch.tensor([True, False, True])]


def test_stack_picked_by_a_mask_breaks_the_graph():
    check(pick, inputs("stack")[:1], breaks=None)


@pytest.mark.parametrize(
    "program", [lambda td: td + 1, lambda td: td.view(3, 1), lambda td: td.clone()],
    ids=["add", "view", "clone"],
)  # fmt: skip
def test_unbatched_tensor_is_computed_outside_of_graphs(program):
    value = inputs("unbatched")[0]
    torch._dynamo.reset()
    with tdcompile.install():
        found = torch.compile(program, backend="eager")(value)
    expected = program(value)
    assert type(found["k"]) is UnbatchedTensor
    assert found["k"].tolist() == expected["k"].tolist()
    assert found["k"].batch_size == found.batch_size == expected.batch_size

"""A dense kind that the container announces is tracked as a row, wherever it is nested."""

from __future__ import annotations

import pytest
import torch

import tdcompile
from tdcompile import TensorDict
from tdcompile.tensordict import kinds
from tdcompile.tensordict.base import DENSE_SLOTS, TensorDictMethods
from tdcompile.tensordict.dense import TensorDict as Dense


class Record(TensorDictMethods):
    """The dense state with attributes for entries, as a tensorclass has."""

    __slots__ = DENSE_SLOTS
    kind = "record"

    def __init__(self, batch_size, **entries):
        object.__setattr__(self, "_entries", dict(entries))
        object.__setattr__(self, "_batch_size", torch.Size(batch_size))
        object.__setattr__(self, "_device", None)
        object.__setattr__(self, "_names", None)
        object.__setattr__(self, "_is_locked", False)

    _from_entries = Dense.__dict__["_from_entries"]

    def __getattr__(self, name):
        entries = self._entries
        if name in entries:
            return entries[name]
        raise AttributeError(name)

    def __setattr__(self, name, value):
        if name in DENSE_SLOTS:
            object.__setattr__(self, name, value)
        else:
            self.set(name, value)


kinds.announce(Record)


def record(**further):
    return Record([3], x=torch.ones(3, 2), **further)


def run(program, inputs, graphs=1):
    seen = []

    def backend(graph, example_inputs):
        seen.append(graph)
        return graph

    with tdcompile.install():
        torch.compiler.reset()
        compiled = torch.compile(program, backend=backend, fullgraph=True)
        for make in inputs:
            expected_input, given = make(), make()
            expected, got = program(expected_input), compiled(given)
            assert type(got) is type(expected)
            for ours, theirs in ((got, expected), (given, expected_input)):
                if isinstance(theirs, TensorDictMethods):
                    assert list(ours.keys(True)) == list(theirs.keys(True))
                    assert (ours == theirs).all()
                    assert ours.is_locked == theirs.is_locked
    assert len(seen) == graphs


INPUTS = [
    lambda: record(),
    lambda: record(p=torch.zeros(3)),
    lambda: record(q=torch.zeros(3), p=torch.ones(3)),
]


def write_attribute(r):
    r.y = r.x * 2
    return r


def make_one(r):
    return Record(r.batch_size, x=r.x + 1)


def replace_one(r):
    return r.replace(x=r.x + 1)


@pytest.mark.parametrize("program", [write_attribute, make_one, replace_one])
def test_kind_other_keys_vary_compiles_once(program):
    run(program, INPUTS)


@pytest.mark.parametrize(
    "program", [lambda r: r + 1, lambda r: r.exp(), lambda r: r[0], lambda r: r.lock_().exp()]
)
def test_kind_operation_is_whole_and_keeps_class(program):
    run(program, INPUTS[:1])


def holder(nested, **further):
    return TensorDict({"n": nested, **further}, batch_size=[3])


def write_nested(td):
    td["n"].y = td["n"].x + 1
    return td["n", "y"]


def copy_and_write(td):
    copied = td.copy()
    copied["n"].y = td["n"].x + 1
    return copied


def lock_all(td):
    td.lock_()
    return td["n"].x + 1


@pytest.mark.parametrize("program", [write_nested, copy_and_write, lock_all, lambda td: td * 2])
def test_kind_nested_in_a_tensordict_gives_eager_result(program):
    run(program, [lambda: holder(record()), lambda: holder(record())])


def test_kind_defined_after_the_first_call_compiles_nothing_again():
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph

    with tdcompile.install():
        torch.compiler.reset()
        compiled = torch.compile(write_attribute, backend=backend, fullgraph=True)
        compiled(record())

        class Later(Record):
            __slots__ = ()

        kinds.announce(Later)
        compiled(record())
        assert len(graphs) == 1
        assert type(compiled(Later([3], x=torch.ones(3)))) is Later
        assert len(graphs) == 2


def test_uninstall_forgets_kinds():
    from tdcompile.variables.layout import SERVED

    with tdcompile.install():
        assert Record in SERVED
    assert list(SERVED) == [TensorDict]


def test_record_nested_mapping_made_in_the_trace_is_a_tensordict():
    def program(r):
        return record(n=r.x + 1).update({"m": {"deep": r.x * 2}})

    def plain(r):
        return TensorDict({"b": {"c": r.x + 1}}, batch_size=[3])

    run(program, [record])
    run(plain, [record])


def edit_nested_then_copy(td):
    td["n"].y = td["n"].x + 1
    return td.copy()


def test_kind_nested_and_edited_before_a_copy_is_copied_as_it_is_then():
    run(edit_nested_then_copy, [lambda: holder(record()), lambda: holder(record())])


def test_consolidated_input_is_told_apart_from_a_plain_one():
    def program(td):
        return td.clone()["x"] + 1, td.is_consolidated()

    made = TensorDict({"x": torch.ones(3)}, batch_size=[3])
    with tdcompile.install():
        torch.compiler.reset()
        compiled = torch.compile(program, backend="eager")
        for td in (made, made.consolidate(), made, made.consolidate()):
            assert compiled(td)[1] == td.is_consolidated()

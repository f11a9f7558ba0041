"""A nested tensordict of a subclass has no tracker: locks and shallow copies break the graph."""

from __future__ import annotations

import pytest
import torch

import tdcompile
from tdcompile import TensorDict


class Subclass(TensorDict):
    pass


def make(cls):
    return TensorDict({"a": torch.ones(2), "n": cls({"b": torch.ones(2)}, [2])}, [2])


def lock_and_read(td):
    nested = td["n"]
    td.lock_()
    return nested.is_locked, td["a"] * 2


def lock_and_write(td):
    td.lock_()
    try:
        td["n"]["z"] = td["a"] + 1
    except RuntimeError:
        return "locked"
    return "written"


def write_copy(td):
    copied = td.copy()
    copied["n"]["z"] = td["a"] + 1
    return sorted(td["n"].keys()), sorted(copied["n"].keys())


def write_around_copy(td):
    td["n"]["y"] = td["a"] + 1
    copied = td.copy()
    td["n"]["z"] = td["a"]
    return sorted(td["n"].keys()), sorted(copied["n"].keys())


@pytest.mark.parametrize("program", [lock_and_read, lock_and_write, write_copy, write_around_copy])
@pytest.mark.parametrize("order", [(TensorDict, Subclass), (Subclass, TensorDict)])
def test_nested_entry_changes_to_subclass_and_back_gives_eager_result(program, order):
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="eager")
    with tdcompile.install():
        for cls in (*order, *order):
            assert repr(compiled(make(cls))) == repr(program(make(cls)))

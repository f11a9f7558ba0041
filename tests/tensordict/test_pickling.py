"""Pickling and the copy module."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from oracle import example, ours, run_both


def _pickled(value):
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, _pickled])
@pytest.mark.parametrize("locked", [False, True], ids=["unlocked", "locked"])
def test_duplicate_matches_oracle(duplicate, locked):
    run_both(lambda p: duplicate(example(p, names=["t"], device="cpu", lock=locked)))


def test_pickle_keeps_the_lock_of_nested():
    td = _pickled(example(ours, lock=True))
    assert td["n"].is_locked
    td.unlock_()
    assert not td["n"].is_locked


def test_deepcopy_copies_leaves_and_keeps_sharing():
    nested = ours.TensorDict({"x": torch.zeros(3)}, [3])
    td = ours.TensorDict({"a": nested, "b": nested, "leaf": nested["x"]}, [3])
    for result in (copy.deepcopy(td), _pickled(td)):
        assert result["a"] is result["b"]
        assert result["a"] is not nested
        assert result["leaf"] is result["a", "x"]
        assert result["leaf"] is not nested["x"]


def test_deepcopy_of_a_leaf_in_the_graph_stays_in_the_graph():
    leaf = torch.ones(3, requires_grad=True)
    copied = copy.deepcopy(ours.TensorDict({"a": leaf * 2}, [3]))
    copied["a"].sum().backward()
    assert leaf.grad.tolist() == [2.0, 2.0, 2.0]


def test_pickle_of_a_tensordict_that_holds_itself_comes_back():
    td = ours.TensorDict({"n": {}}, [])
    td["n"]._entries["up"] = td
    result = _pickled(td)
    assert result["n", "up"] is result


def test_state_of_a_pickle_is_taken_over_by_setstate():
    td, other = example(ours, lock=True), ours.TensorDict({})
    other.__setstate__(td.__reduce__()[2])
    assert other.is_locked
    assert other["a"] is td["a"]

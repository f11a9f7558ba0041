"""Non-tensor entries."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from oracle import example, ours, run_both

from tdcompile.errors import TensorDictShapeError
from tdcompile.tensordict import NonTensorData, is_non_tensor

PROGRAMS = {
    "data": lambda p: [p.NonTensorData("x").data, p.NonTensorData("x", batch_size=[3]).data],
    "unwraps": lambda p: p.NonTensorData(p.NonTensorData("x")).data,
    "tolist": lambda p: p.NonTensorData("x").tolist(),
    "tolist_batch": lambda p: p.NonTensorData("x", batch_size=[2, 2]).tolist(),
    "batch_size": lambda p: p.NonTensorData("x", batch_size=[2]).batch_size,
    "stored_and_read": lambda p: p.TensorDict({"s": "x"}, [3])["s"],
    "stored_and_got": lambda p: p.TensorDict({"s": "x"}, [3]).get("s"),
    "tensor_as_data": lambda p: p.TensorDict({}, [3]).set_non_tensor("q", torch.zeros(2))["q"],
    "hash": lambda p: hash(p.NonTensorData("x")),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_non_tensor_matches_oracle(program):
    run_both(program)


def test_equality_compares_element_by_element():
    assert (NonTensorData("x", [3]) == NonTensorData("x", [3])).tolist() == [True] * 3
    assert (NonTensorData("x", [3]) != NonTensorData("y", [3])).all()
    assert NonTensorData("x") != "x"
    with pytest.raises(TensorDictShapeError, match=r"\(3,\) and \(4,\)"):
        assert NonTensorData("x", [3]) == NonTensorData("x", [4])


def test_repr_is_code():
    assert repr(NonTensorData("x", [3])) == "NonTensorData(data='x', batch_size=[3])"
    assert repr(NonTensorData(1, 2, "cpu")) == "NonTensorData(data=1, batch_size=[2], device=cpu)"


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))]
)
def test_copies_are_equal(duplicate):
    value = NonTensorData({"k": [1]}, [3])
    assert repr(duplicate(value)) == repr(value)


def test_with_batch_size_returns_itself_if_it_fits():
    value = NonTensorData("x", [3])
    assert value._with_batch_size(torch.Size([3])) is value
    assert value._with_batch_size(torch.Size([])).batch_size == torch.Size([])


def test_is_non_tensor_takes_instances_and_classes():
    td = example(ours)
    assert is_non_tensor(td.get("s"))
    assert is_non_tensor(NonTensorData)
    assert not is_non_tensor(td["a"])
    assert not is_non_tensor("x")

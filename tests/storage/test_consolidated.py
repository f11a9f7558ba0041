"""Consolidated tensordicts: one block of memory, one file."""

from __future__ import annotations

import copy
import os
import pickle
import sys

import pytest
import tensordict as reference
import torch

import tdcompile as ours
from tdcompile.errors import LockedError, StorageError, UnsafeFileError
from tdcompile.tensordict.storage.flat import flat_layout_of

sys.path.insert(0, os.path.dirname(__file__))
from samples import plain, quietly, same

TensorDict = ours.TensorDict


def tensors(td):
    return list(td.values(True, True))


@pytest.mark.parametrize("num_threads", [0, 3])
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("file", [False, True])
def test_leaves_are_views_of_one_storage(tmp_path, num_threads, inplace, file):
    td = plain()
    path = tmp_path / "x.td" if file else None
    result = td.consolidate(path, num_threads=num_threads, inplace=inplace)
    assert (result is td) == inplace
    same(result, plain())
    assert result.is_consolidated()
    assert result.is_locked
    assert result.device == (torch.device("cpu") if file else None)
    storage = result._consolidated["storage"]
    assert {v.untyped_storage().data_ptr() for v in tensors(result)} <= {
        storage.untyped_storage().data_ptr()
    }
    storage.zero_()
    assert (result["obs"] == 0).all()


def test_leaves_are_aligned_and_those_of_one_dtype_lie_together():
    td = TensorDict(
        {
            "a": torch.ones(3),
            "b": torch.ones(3, dtype=torch.bool),
            "c": torch.arange(5.0),
            "d": torch.ones(2, dtype=torch.complex128),
            "e": torch.ones(1, dtype=torch.bool),
            "f": torch.ones(0),
        }
    ).consolidate()
    for leaf in tensors(td):
        assert leaf.data_ptr() % max(8, leaf.element_size()) == 0 or leaf.numel() == 0
    layout = flat_layout_of(td)
    assert layout.dtypes() == [torch.float32, torch.bool, torch.complex128]
    assert layout.block(torch.float32).tolist() == [1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0]
    assert layout.block(torch.bool).data_ptr() % 64 == layout.storage.data_ptr() % 64
    layout.block(torch.float32).mul_(2)
    assert td["a"].tolist() == [2.0, 2.0, 2.0]


def test_write_to_the_block_is_seen_by_autograd():
    td = TensorDict({"a": torch.ones(3)}).consolidate()
    weight = torch.ones(3, requires_grad=True)
    loss = (td["a"] * weight).sum()
    flat_layout_of(td).block(torch.float32).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_unlocking_ends_it_and_writes_in_place_do_not():
    td = plain().consolidate()
    td.set_("obs", torch.zeros(3, 2))
    assert td.is_consolidated()
    with pytest.raises(LockedError):
        td["new"] = torch.ones(3)
    with td.unlock_():
        assert not td.is_consolidated()
        td["new"] = torch.ones(3)
    assert td.is_locked
    assert not td.is_consolidated()
    assert not hasattr(td, "_consolidated")


def test_again_gives_itself_unless_more_is_asked_for(tmp_path):
    td = plain().consolidate()
    assert td.consolidate() is td
    assert td.consolidate(device="cpu") is td
    assert td.consolidate(num_threads=2, return_early=True).result() is td
    shared = td.consolidate(share_memory=True)
    assert shared["obs"].is_shared()
    assert shared.consolidate(share_memory=True) is shared
    written = td.consolidate(tmp_path / "x.td")
    assert written is not td
    assert written.consolidate(tmp_path / "x.td") is written


def test_move_and_clone_are_one_copy_and_stay_consolidated():
    td = plain().consolidate()
    moved = td.to("meta")
    assert moved.is_consolidated()
    assert moved.is_locked
    assert moved.device == torch.device("meta")
    assert moved["n", "x"].device.type == "meta"
    copied = td.clone()
    same(copied, td)
    assert copied.is_consolidated()
    assert not copied.is_locked
    assert copied["obs"].data_ptr() != td["obs"].data_ptr()
    copied["obs"] = torch.zeros(3, 2)
    assert not copied.is_consolidated()
    assert not td.clone(False).is_consolidated()
    assert not td.exclude("c").consolidate().to(torch.float64).is_consolidated()
    cpu = td.to("cpu")
    assert cpu.is_consolidated()
    assert cpu.to("cpu") is cpu
    same(copy.deepcopy(td), td)


def test_pickle_has_the_block_once():
    td = TensorDict({str(i): torch.ones(1000) for i in range(20)}).consolidate()
    data = pickle.dumps(td)
    assert len(data) < 90_000
    loaded = pickle.loads(data)
    same(loaded, td)
    assert loaded.is_consolidated()
    assert loaded.is_locked
    assert len({v.untyped_storage().data_ptr() for v in tensors(loaded)}) == 1


def test_torch_save_keeps_it(tmp_path):
    td = plain().consolidate()
    torch.save(td, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", weights_only=False)
    same(loaded, td)
    assert loaded.is_consolidated()


def test_files_of_both_packages_load_in_both(tmp_path):
    plain().consolidate(tmp_path / "ours.td")
    quietly(plain(reference).consolidate, tmp_path / "reference.td")
    same(plain(), quietly(reference.TensorDict.from_consolidated, tmp_path / "ours.td"), False)
    same(ours.from_consolidated(tmp_path / "reference.td"), plain(reference), False)


@pytest.mark.parametrize("use_buffer", [False, True])
def test_writes_reach_the_file_unless_there_is_a_buffer(tmp_path, use_buffer):
    td = plain().consolidate(tmp_path / "x.td", use_buffer=use_buffer)
    td["obs"].fill_(9)
    loaded = ours.from_consolidated(tmp_path / "x.td")
    assert (loaded["obs"] == 9).all() == (not use_buffer)
    loaded["obs"].fill_(55)
    assert (ours.from_consolidated(tmp_path / "x.td")["obs"] != 55).all()
    assert loaded.is_consolidated()
    assert not loaded.is_locked


def test_file_that_is_there_is_replaced_and_its_readers_keep_it(tmp_path):
    old = plain().consolidate(tmp_path / "x.td")
    TensorDict({"a": torch.ones(1)}).consolidate(tmp_path / "x.td")
    same(old, plain())
    assert list(ours.from_consolidated(tmp_path / "x.td").keys()) == ["a"]
    assert os.listdir(tmp_path) == ["x.td"]


def test_what_no_file_holds_is_refused_before_it_is_written(tmp_path):
    td = TensorDict({"a": torch.ones(2)}, [2])
    td.set_non_tensor(("n", "v"), (1, 2))
    with pytest.raises(UnsafeFileError, match=r'td\["n", "v"\]'):
        td.consolidate(tmp_path / "x.td")
    with pytest.raises(StorageError, match="'leaves'"):
        TensorDict({"leaves": {"x": torch.ones(1)}}).consolidate(tmp_path / "x.td")
    with pytest.raises(StorageError, match="mutually exclusive"):
        TensorDict({"x": torch.ones(1)}).consolidate(tmp_path / "x.td", device="meta")
    assert os.listdir(tmp_path) == []
    # In memory and in a pickle there is no such limit.
    loaded = pickle.loads(pickle.dumps(td.consolidate()))
    assert loaded["n", "v"] == (1, 2)


def test_future_refuses_what_it_cannot_do(tmp_path):
    td = plain()
    early = {"num_threads": 2, "return_early": True}
    result = td.consolidate(tmp_path / "x.td", **early).result()
    same(result, td)
    with pytest.raises(NotImplementedError, match="use_buffer"):
        td.consolidate(tmp_path / "y.td", use_buffer=True, **early)
    with pytest.raises(NotImplementedError, match="non_blocking"):
        td.consolidate(non_blocking=True, **early)


def test_gradients_and_strides_are_left_behind():
    base = torch.arange(24.0, requires_grad=True)
    td = TensorDict({"t": base.reshape(2, 3, 4).transpose(0, 1), "e": torch.ones(1).expand(4)})
    result = td.consolidate()
    assert torch.equal(result["t"], td["t"])
    assert not result["t"].requires_grad
    assert result["t"].is_contiguous()


def test_tensorclasses_and_lazy_stacks_stay_what_they_are(tmp_path):
    @ours.tensorclass
    class Pair:
        x: torch.Tensor
        y: str

    td = TensorDict({"p": Pair(x=torch.ones(3), y="a", batch_size=[3])}, [3])
    stack = ours.lazy_stack([td.clone(), td.clone().update({"q": torch.zeros(3, 2)})])
    for value in (td, stack, td["p"]):
        result = value.consolidate()
        assert type(result) is type(value)
        assert result.is_consolidated()
        assert (result == value).all()
        assert result.clone().is_consolidated()
        if value is not td["p"]:
            value.consolidate(tmp_path / "x.td")
            loaded = ours.from_consolidated(tmp_path / "x.td")
            assert type(loaded) is type(value)
            assert (loaded == value).all()
            assert loaded.is_consolidated()


def test_lazy_stack_pickles_as_one_block():
    stack = ours.lazy_stack([TensorDict({"a": torch.ones(2) * i}) for i in range(3)], 0)
    loaded = pickle.loads(pickle.dumps(stack.consolidate()))
    assert loaded.is_consolidated()
    assert (loaded == stack).all()


def test_empty_tensordict_is_consolidated():
    assert TensorDict().consolidate().is_consolidated()
    assert pickle.loads(pickle.dumps(TensorDict({"n": {}}).consolidate())).is_consolidated()


def test_copies_of_leaves_that_need_gradients_are_followed_by_autograd():
    td = TensorDict({"a": torch.ones(3), "n": {"b": torch.ones(2)}}).consolidate()
    td["a"].requires_grad_()
    copied = td.clone()
    copied["a"].sum().backward()
    assert td["a"].grad.tolist() == [1.0, 1.0, 1.0]
    assert td.to("meta")["a"].requires_grad
    assert pickle.loads(pickle.dumps(td))["a"].requires_grad
    stack = ours.lazy_stack([td.detach(), td.detach()]).consolidate()
    stack.tensordicts[0]["a"].requires_grad_()
    assert stack.clone().tensordicts[0]["a"].requires_grad

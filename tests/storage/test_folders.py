"""Saving to and loading from folders, alone and with the ``tensordict`` package."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys

import pytest
import tensordict as reference
import torch

import tdcompile as ours
from tdcompile.errors import LockedError, StorageError, UnsafeFileError
from tdcompile.tensordict.storage.paths import encode_key

sys.path.insert(0, os.path.dirname(__file__))
from samples import plain, quietly, same, sample, tree

TensorDict = ours.TensorDict


@pytest.mark.parametrize("num_threads", [0, 3])
@pytest.mark.parametrize("method", ["memmap", "memmap_", "save", "dumps"])
def test_save_and_load_give_the_same_tensordict(tmp_path, method, num_threads):
    td = sample()
    saved = getattr(td.clone(), method)(tmp_path / "x", num_threads=num_threads)
    same(saved, td)
    assert saved.is_memmap()
    assert saved.is_locked
    assert saved["n"].saved_path == tmp_path / "x" / "n"
    assert saved.device == torch.device("cpu")
    loaded = TensorDict.load(tmp_path / "x")
    same(loaded, td)
    assert not loaded.is_locked
    assert not loaded.is_memmap()
    assert isinstance(loaded["obs"], ours.MemoryMappedTensor)


def test_names_of_files_stay_in_the_folder(tmp_path):
    (tmp_path / "inside").mkdir()
    sample().memmap(tmp_path / "inside" / "x")
    assert os.listdir(tmp_path) == ["inside"]
    assert os.listdir(tmp_path / "inside") == ["x"]
    assert (tmp_path / "inside" / "x" / "a%2Fb.memmap").is_file()


def test_saved_folder_loads_in_the_reference(tmp_path):
    td = sample()
    td.memmap(tmp_path / "x")
    # The reference loads tensors first, whatever their place was.
    same(td, quietly(reference.TensorDict.load, tmp_path / "x"), ordered=False)


def test_folder_of_the_reference_loads(tmp_path):
    td = sample(reference)
    quietly(td.memmap, tmp_path / "x")
    same(TensorDict.load(tmp_path / "x"), td)


def test_both_packages_write_the_same_files(tmp_path):
    sample().memmap(tmp_path / "ours")
    quietly(sample(reference).memmap, tmp_path / "reference")
    assert tree(tmp_path / "ours") == tree(tmp_path / "reference")


def test_folder_of_an_old_release_loads(tmp_path):
    # Without versions and class names, and with an editor's newline behind the data.
    fields = {"shape": [2], "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>"}
    leaf = {"device": "cpu", "shape": [2], "dtype": "torch.int16", "is_nested": False}
    nested = {"a": leaf, "s": {"type": "NonTensorData"}, **fields}
    value = {
        "_type": "<class 'tensordict.tensorclass.NonTensorData'>",
        "data": ["text"],
        "_metadata": None,
    }
    (tmp_path / "n" / "s").mkdir(parents=True)
    (tmp_path / "meta.json").write_text(json.dumps({"n": {"type": "TensorDict"}, **fields}))
    (tmp_path / "n" / "meta.json").write_text(json.dumps(nested))
    (tmp_path / "n" / "s" / "meta.json").write_text(json.dumps(value))
    (tmp_path / "n" / "a.memmap").write_bytes(bytes([1, 0, 2, 0, 10]))
    td = TensorDict.load(tmp_path)
    assert td["n", "a"].tolist() == [1, 2]
    assert td["n", "s"] == ["text"]


@pytest.mark.parametrize("key", ["shape", "device", "_type", "_class", "_names", "_reserved"])
def test_key_with_the_name_of_a_metadata_field_comes_back(tmp_path, key):
    # The reference loses these entries.
    td = TensorDict({"a": torch.ones(2), key: torch.zeros(2), "z": {key: torch.ones(2)}}, [2])
    td.memmap(tmp_path / "x")
    same(TensorDict.load(tmp_path / "x"), td.auto_device_())


@pytest.mark.parametrize(
    "keys",
    [("k" * 300,), ("x", "x.memmap"), ("\udc80",), ("\U0001f600" * 60,), ("é" * 120,)],
    ids=["long", "clash", "surrogate", "emoji", "accents"],
)
def test_key_that_is_no_name_of_a_file_comes_back(tmp_path, keys):
    td = TensorDict({keys[0]: torch.ones(2)}, [2])
    for key in keys[1:]:
        td[key] = TensorDict({"a": torch.zeros(2)}, [2])
    td.memmap(tmp_path / "x")
    same(TensorDict.load(tmp_path / "x"), td)


def test_encoded_keys_are_those_of_the_reference():
    from tensordict.utils import _encode_key_for_filesystem as expected

    for key in [*map(chr, range(256)), "..", ".", "...", "", "a/b", "%2F", "é%", "x y"]:
        assert encode_key(key) == expected(key)


def test_tuples_come_back_as_tuples(tmp_path):
    value = {"a": (1, [2, (3,)]), "b": [(), [()]]}
    td = TensorDict({}, [2])
    td.set_non_tensor("t", value)
    td.set_non_tensor("top", (1, 2))
    td.memmap(tmp_path / "x")
    loaded = TensorDict.load(tmp_path / "x")
    assert loaded["t"] == value
    assert loaded["top"] == (1, 2)
    assert type(loaded["t"]["b"][0]) is tuple


class Plain:
    """A class that JSON does not keep."""

    def __init__(self, number):
        self.number = number

    def __eq__(self, other):
        return isinstance(other, Plain) and other.number == self.number

    __hash__ = None


@pytest.mark.parametrize(
    "value",
    [Plain(3), 1j, b"x", {1: 2}, {1}, torch.float32],
    ids=lambda value: type(value).__name__,
)
def test_value_that_json_does_not_keep_needs_two_permissions(tmp_path, value):
    td = TensorDict({"a": torch.ones(2)}, [2])
    td.set_non_tensor(("n", "v"), value)
    with pytest.raises(UnsafeFileError, match=r'td\["n", "v"\].*allow_pickle=True'):
        td.memmap(tmp_path / "x")
    assert os.listdir(tmp_path) == []
    td.memmap(tmp_path / "x", allow_pickle=True)
    with pytest.raises(UnsafeFileError, match=r"other\.pickle.*allow_pickle=True"):
        TensorDict.load(tmp_path / "x")
    assert TensorDict.load(tmp_path / "x", allow_pickle=True)["n", "v"] == value
    # Without files there is nothing to pickle.
    assert td.memmap()["n", "v"] is value


def test_pickle_of_the_reference_needs_permission(tmp_path):
    td = reference.TensorDict({"a": torch.ones(2)}, [2])
    td.set_non_tensor("v", 1j)
    quietly(td.memmap, tmp_path / "x")
    with pytest.raises(UnsafeFileError, match="allow_pickle=True"):
        TensorDict.load(tmp_path / "x")
    assert TensorDict.load(tmp_path / "x", allow_pickle=True)["v"] == 1j
    with pytest.raises(TypeError, match="allow_pickle must be a bool"):
        TensorDict.load(tmp_path / "x", allow_pickle="yes")


def test_save_over_a_pickle_removes_it(tmp_path):
    td = TensorDict({}, [2])
    td.set_non_tensor("v", 1j)
    td.memmap(tmp_path / "x", allow_pickle=True)
    td.set_non_tensor("v", "text")
    td.memmap(tmp_path / "x")
    assert not list(tmp_path.rglob("*.pickle"))
    assert TensorDict.load(tmp_path / "x")["v"] == "text"


@pytest.mark.parametrize("mode", [None, "r", "r+"])
def test_mode_decides_whether_writes_reach_the_files(tmp_path, mode):
    plain().memmap(tmp_path / "x")
    TensorDict.load(tmp_path / "x", mode=mode)["obs"].add_(1)
    expected = plain()["obs"] + (0 if mode == "r" else 1)
    assert torch.equal(TensorDict.load(tmp_path / "x")["obs"], expected)
    with pytest.raises(StorageError, match="mode must be"):
        TensorDict.load(tmp_path / "x", mode="w")


def test_device_meta_reads_no_tensor(tmp_path):
    plain().memmap(tmp_path / "x")
    (tmp_path / "x" / "obs.memmap").unlink()
    loaded = TensorDict.load(tmp_path / "x", device="meta")
    assert loaded["obs"].device.type == "meta"
    assert loaded["obs"].shape == (3, 2)
    assert loaded.device == torch.device("meta")


@pytest.mark.parametrize("subpath", ["n/deep", ("n", "deep"), ("n", ("deep",))])
def test_subpath_loads_one_nested_tensordict(tmp_path, subpath):
    plain().memmap(tmp_path / "x")
    same(TensorDict.load(tmp_path / "x", subpath=subpath), plain()["n", "deep"])
    with pytest.raises(StorageError, match="No tensordict found under subpath"):
        TensorDict.load(tmp_path / "x", subpath="n/absent")


def test_out_takes_the_leaves_and_keeps_nested_tensordicts(tmp_path):
    plain().memmap(tmp_path / "x")
    out = TensorDict({"old": torch.ones(1), "n": {"q": torch.ones(1)}})
    nested = out["n"]
    assert TensorDict.load_memmap(tmp_path / "x", out=out) is out
    same(out, plain())
    assert out["n"] is nested
    with pytest.raises(LockedError):
        TensorDict.load_memmap(tmp_path / "x", out=out.lock_())


def test_existing_file_without_existsok_is_refused(tmp_path):
    td = plain()
    td.memmap(tmp_path / "x")
    before = tree(tmp_path)
    with pytest.raises(StorageError, match="already exists"):
        td.clone().zero_().memmap(tmp_path / "x", existsok=False)
    assert tree(tmp_path) == before


def test_leaf_of_another_folder_is_copied_only_on_request(tmp_path):
    td = plain().memmap(tmp_path / "x")
    with pytest.raises(StorageError, match="A filename was provided but the tensor already has"):
        td.memmap(tmp_path / "y")
    assert not (tmp_path / "y").exists()
    same(td.memmap(tmp_path / "y", copy_existing=True), td)
    with pytest.raises(StorageError, match="copy_existing"):
        td.memmap_(tmp_path / "z")
    assert td.saved_path == tmp_path / "x"


@pytest.mark.parametrize("prefix", [None, "x"])
def test_memmap_again_without_prefix_keeps_the_leaves(tmp_path, prefix):
    td = plain().memmap_(None if prefix is None else tmp_path / prefix)
    leaves = list(td.values(True, True))
    assert td.memmap_() is td
    assert all(one is other for one, other in zip(td.values(True, True), leaves, strict=True))
    assert td.saved_path == (None if prefix is None else tmp_path / prefix)


def test_loaded_tensordict_becomes_memory_mapped_in_place(tmp_path):
    plain().memmap(tmp_path / "x")
    td = TensorDict.load(tmp_path / "x").memmap_()
    assert td.is_memmap()
    # Anonymous: a prefix was not given, and a loaded tensordict is not memory-mapped yet.
    td = TensorDict.load(tmp_path / "x").memmap_(tmp_path / "x")
    assert td.saved_path == tmp_path / "x"


@pytest.mark.parametrize("atomic", [False, True])
def test_failed_save_leaves_folder_and_tensordict(tmp_path, atomic, monkeypatch):
    plain().memmap(tmp_path / "x")
    before = tree(tmp_path)
    td = sample()
    leaves = dict(td.items())
    from tdcompile.tensordict.storage import save

    real, calls = save.write_tensor, []

    def failing(path, *args):
        calls.append(path)
        if len(calls) == 4:
            raise OSError("disk full")
        real(path, *args)

    monkeypatch.setattr(save, "write_tensor", failing)
    with pytest.raises(OSError, match="disk full"):
        td.memmap_(tmp_path / "x", atomic=atomic)
    assert tree(tmp_path) == before
    assert all(td.get(key) is value for key, value in leaves.items())
    assert not td.is_locked
    calls.clear()
    with pytest.raises(OSError, match="disk full"):
        td.memmap(tmp_path / "new", atomic=atomic)
    assert os.listdir(tmp_path) == ["x"]


def test_atomic_save_replaces_the_whole_folder(tmp_path):
    sample().memmap(tmp_path / "x")
    plain().memmap(tmp_path / "x", atomic=True)
    assert os.listdir(tmp_path) == ["x"]
    assert not (tmp_path / "x" / "a%2Fb.memmap").exists()
    same(TensorDict.load(tmp_path / "x"), plain())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").write_text("x")
    with pytest.raises(StorageError, match="expected an empty folder or a saved tensordict"):
        plain().memmap(tmp_path / "other", atomic=True)
    assert (tmp_path / "other" / "precious").exists()


def test_reader_of_old_files_keeps_them_while_they_are_replaced(tmp_path):
    old = plain().memmap(tmp_path / "x")
    plain().zero_().memmap(tmp_path / "x")
    assert torch.equal(old["obs"], plain()["obs"])
    assert (TensorDict.load(tmp_path / "x")["obs"] == 0).all()
    old.memmap_refresh_()
    assert (old["obs"] == 0).all()


@pytest.mark.parametrize("atomic", [False, True])
def test_mapped_tensordict_saves_over_its_own_folder(tmp_path, atomic):
    td = plain().memmap(tmp_path / "x")
    td["obs"].fill_(4)
    td.memmap(tmp_path / "x", atomic=atomic)
    same(TensorDict.load(tmp_path / "x"), td)
    # Another tensordict took the place: the old one is written, not taken for what is there.
    plain().zero_().memmap(tmp_path / "x")
    same(td.memmap(tmp_path / "x", atomic=atomic), td)
    same(TensorDict.load(tmp_path / "x"), td)
    shutil.rmtree(tmp_path / "x")
    same(td.memmap_(tmp_path / "x", atomic=atomic), TensorDict.load(tmp_path / "x"))


def test_part_of_a_mapped_tensordict_saves_over_its_own_files(tmp_path):
    plain().memmap(tmp_path / "x")
    part = TensorDict.load(tmp_path / "x")[1:]
    part.memmap(tmp_path / "x")
    same(TensorDict.load(tmp_path / "x"), plain()[1:])


def test_copy_on_write_leaves_are_written_back_on_request(tmp_path):
    plain().memmap(tmp_path / "x")
    td = TensorDict.load(tmp_path / "x", mode="r")
    td["obs"].fill_(7)
    td.memmap_(tmp_path / "x")
    assert (TensorDict.load(tmp_path / "x")["obs"] == 7).all()


def test_memmap_like_makes_zeros_and_keeps_files_that_are_there(tmp_path):
    td = plain().memmap_like(tmp_path / "x")
    assert (td["obs"] == 0).all()
    assert td["s"] == "word"
    td["obs"].fill_(3)
    again = plain().memmap_like(tmp_path / "x")
    assert (again["obs"] == 3).all()
    with pytest.raises(StorageError, match="already exists"):
        plain().memmap_like(tmp_path / "x", existsok=False)
    with pytest.raises(StorageError, match="expected at least"):
        plain().expand(4, 3).contiguous().memmap_like(tmp_path / "x")
    big = TensorDict({"img": torch.zeros(8)}).expand(1000).memmap_like(tmp_path / "y")
    assert big["img"].shape == (1000, 8)


def test_future_gives_the_tensordict_and_changes_it_only_then(tmp_path):
    td = plain()
    future = td.memmap_(tmp_path / "x", num_threads=2, return_early=True)
    assert isinstance(future, ours.TensorDictFuture)
    assert not td.is_locked
    assert future.result() is td
    assert future.result() is td
    assert td.is_memmap()
    like = plain().memmap_like(num_threads=2, return_early=True).result()
    assert (like["obs"] == 0).all()


def test_robust_key_false_takes_names_only(tmp_path):
    TensorDict({"x y": torch.ones(2)}).memmap(tmp_path / "x", robust_key=False)
    assert (tmp_path / "x" / "x y.memmap").is_file()
    for robust_key in (True, False, None):
        assert "x y" in TensorDict.load(tmp_path / "x", robust_key=robust_key)
    with pytest.raises(UnsafeFileError, match=r"'\.\./up'"):
        TensorDict({"../up": torch.ones(2)}).memmap(tmp_path / "y", robust_key=False)
    assert sorted(os.listdir(tmp_path)) == ["x"]


def test_symlinks_are_neither_read_nor_written_through(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "n").symlink_to(outside, target_is_directory=True)
    with pytest.raises(UnsafeFileError, match="TensorDict through symlink"):
        plain().memmap(tmp_path / "x")
    assert os.listdir(outside) == []
    plain().memmap(tmp_path / "y")
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(100))
    (tmp_path / "y" / "obs.memmap").unlink()
    (tmp_path / "y" / "obs.memmap").symlink_to(secret)
    with pytest.raises(UnsafeFileError, match="leads through a symlink"):
        TensorDict.load(tmp_path / "y")
    with pytest.raises(StorageError, match="through symlink"):
        plain().memmap(tmp_path / "y")
    assert secret.read_bytes() == bytes(100)
    # A link to the saved folder itself is the caller's.
    plain().memmap(tmp_path / "z")
    (tmp_path / "link").symlink_to(tmp_path / "z")
    same(TensorDict.load(tmp_path / "link"), plain())


def test_pickle_of_a_memory_mapped_tensordict_is_its_path(tmp_path):
    td = plain().memmap(tmp_path / "x")
    data = pickle.dumps(td)
    loaded = pickle.loads(data)
    same(loaded, td)
    assert loaded.is_memmap()
    assert loaded.saved_path == tmp_path / "x"
    loaded["obs"].fill_(5)
    assert (td["obs"] == 5).all()
    (tmp_path / "x" / "obs.memmap").write_bytes(b"1")
    with pytest.raises(ours.errors.DamagedFileError, match=r"obs\.memmap"):
        pickle.loads(data)


def test_pickle_of_an_anonymous_one_has_its_values():
    td = plain().memmap()
    loaded = pickle.loads(pickle.dumps(td))
    same(loaded, td)
    assert loaded.is_memmap()
    assert loaded["obs"].data_ptr() != td["obs"].data_ptr()


def test_unlocked_tensordict_is_not_memory_mapped(tmp_path):
    td = plain().memmap_(tmp_path / "x")
    with td.unlock_():
        assert not td.is_memmap()
        td["new"] = torch.ones(3)
    assert td.is_locked
    assert not td.is_memmap()
    with pytest.raises(AttributeError, match="saved_path"):
        _ = td.saved_path
    with pytest.raises(StorageError, match="Cannot refresh"):
        td.memmap_refresh_()


def test_leaves_that_need_gradients_are_saved_without(tmp_path):
    td = TensorDict({"a": torch.ones(3, requires_grad=True)})
    assert not td.memmap(tmp_path / "x")["a"].requires_grad
    assert td["a"].requires_grad


@pytest.mark.parametrize("kind", ["sparse", "meta"])
def test_leaf_that_no_file_holds_is_refused(tmp_path, kind):
    leaf = {
        "sparse": lambda: torch.eye(3).to_sparse(),
        "meta": lambda: torch.ones(3, device="meta"),
    }[kind]()
    td = TensorDict({"n": {"a": leaf}})
    with pytest.raises(StorageError, match=r'td\["n", "a"\]'):
        td.memmap(tmp_path / "x")
    assert os.listdir(tmp_path) == []


def test_transposed_and_conjugated_leaves_are_saved_by_value(tmp_path):
    td = TensorDict(
        {
            "t": torch.arange(6.0).reshape(2, 3).t(),
            "c": torch.tensor([1 + 2j]).conj(),
            "neg": torch.tensor([1.0, 2.0])._neg_view(),
            "e": torch.ones(1).expand(4),
        }
    )
    for target in ("x", "x.tdz"):
        td.memmap(tmp_path / target)
        loaded = TensorDict.load(tmp_path / target)
        for key in list(td.keys()):
            assert torch.equal(loaded[key], td[key].resolve_conj().resolve_neg())


def test_tensorclass_comes_back_as_its_class(tmp_path):
    @ours.tensorclass
    class Point:
        x: torch.Tensor
        label: str

    td = TensorDict({"p": Point(x=torch.ones(3), label="a", batch_size=[3])}, [3])
    saved = td.memmap(tmp_path / "x")
    assert type(saved["p"]) is Point
    assert saved["p"].is_memmap()
    loaded = TensorDict.load(tmp_path / "x")
    assert type(loaded["p"]) is Point
    assert loaded["p"].label == "a"
    assert isinstance(loaded["p"].x, ours.MemoryMappedTensor)
    inner = td["p"].memmap(tmp_path / "y")
    assert type(inner) is Point
    assert type(ours.load(tmp_path / "y")) is Point
    meta = tmp_path / "x" / "p" / "meta.json"
    meta.write_text(meta.read_text().replace("Point", "Absent"))
    with pytest.raises(ours.errors.DamagedFileError, match=r"Absent.*import the module"):
        TensorDict.load(tmp_path / "x")


def test_stacks_of_values_and_metadata_come_back(tmp_path):
    td = TensorDict({"m": ours.MetaData("x", batch_size=[2])}, [2])
    td["s"] = ours.NonTensorStack("a", "b")
    td["lists"] = ours.NonTensorStack([1, (2,)], [3])
    td["deep"] = ours.NonTensorStack.from_list([["a", "b"], ["c", "d"]])
    saved = td.memmap(tmp_path / "x")
    loaded = TensorDict.load(tmp_path / "x")
    for found in (saved, loaded):
        assert type(found.get("m")) is ours.MetaData
        for key in ("s", "lists", "deep"):
            assert found.get(key).tolist() == td.get(key).tolist()
            assert found.get(key).batch_size == td.get(key).batch_size
    saved["s"][0] = "changed"
    assert td["s"][0] == "a"
    assert quietly(reference.TensorDict.load, tmp_path / "x").get("s").tolist() == ["a", "b"]
    td["p"] = ours.NonTensorStack(1j, 2j)
    with pytest.raises(UnsafeFileError, match=r'td\["p"\]'):
        td.memmap(tmp_path / "x")
    td.memmap(tmp_path / "x", allow_pickle=True)
    with pytest.raises(UnsafeFileError, match=r"pickle\.pkl"):
        TensorDict.load(tmp_path / "x")
    assert TensorDict.load(tmp_path / "x", allow_pickle=True).get("p").tolist() == [1j, 2j]
    td.exclude("p", "lists").consolidate(tmp_path / "x.td")
    assert ours.from_consolidated(tmp_path / "x.td").get("deep").tolist() == [
        ["a", "b"],
        ["c", "d"],
    ]

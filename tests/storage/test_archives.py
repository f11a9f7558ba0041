"""Archives: one zip file that is mapped without unpacking."""

from __future__ import annotations

import os
import pickle
import struct
import sys
import zipfile

import pytest
import tensordict as reference
import torch

import tdcompile as ours
from tdcompile.errors import DamagedFileError, StorageError

sys.path.insert(0, os.path.dirname(__file__))
from samples import plain, quietly, same, sample, tree

TensorDict = ours.TensorDict


def starts(path):
    """Where the bytes of each entry start, read from the headers of the entries."""
    found = {}
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        for info in archive.infolist():
            file.seek(info.header_offset + 26)
            name, extra = struct.unpack("<2H", file.read(4))
            found[info.filename] = info.header_offset + 30 + name + extra
    return found


def test_archive_has_the_files_of_the_folder_and_loads(tmp_path):
    td = sample()
    saved = td.save(tmp_path / "x.tdz")
    same(saved, td)
    assert not saved.is_memmap()
    same(ours.load(tmp_path / "x.tdz"), td)
    assert ours.is_memmap_archive(tmp_path / "x.tdz")
    ours.unpack_memmap(tmp_path / "x.tdz", tmp_path / "x")
    td.memmap(tmp_path / "y")
    assert tree(tmp_path / "x") == tree(tmp_path / "y")
    assert sorted(os.listdir(tmp_path)) == ["x", "x.tdz", "y"]


def test_archives_of_both_packages_load_in_both(tmp_path):
    sample().save(tmp_path / "ours.tdz")
    quietly(sample(reference).save, tmp_path / "reference.tdz")
    same(sample(), quietly(reference.TensorDict.load, tmp_path / "ours.tdz"), ordered=False)
    same(ours.load(tmp_path / "reference.tdz"), sample(reference))


def test_tensors_are_aligned_views_of_one_mapping(tmp_path):
    plain().save(tmp_path / "x.tdz")
    places = {k: v for k, v in starts(tmp_path / "x.tdz").items() if k.endswith(".memmap")}
    assert len(places) == 6
    assert all(place % 64 == 0 for place in places.values())
    loaded = ours.load(tmp_path / "x.tdz")
    assert (
        len({v.untyped_storage().data_ptr() for v in loaded.values(True, True) if v.numel()}) == 1
    )
    before = (tmp_path / "x.tdz").read_bytes()
    loaded["obs"].add_(1)
    assert (tmp_path / "x.tdz").read_bytes() == before
    same(pickle.loads(pickle.dumps(ours.load(tmp_path / "x.tdz"))), plain())


@pytest.mark.parametrize(
    "compression", ["stored", "deflate", "bzip2", "lzma", zipfile.ZIP_DEFLATED]
)
@pytest.mark.parametrize("num_threads", [0, 3])
def test_compressed_archive_loads(tmp_path, compression, num_threads):
    td = plain()
    td["big"] = torch.zeros(3, 1000)
    td.save(tmp_path / "x.tdz", compression=compression)
    same(ours.load(tmp_path / "x.tdz", num_threads=num_threads), td)
    same(ours.load(tmp_path / "x.tdz", num_threads=num_threads, subpath="n"), td["n"])
    same(td, quietly(reference.TensorDict.load, tmp_path / "x.tdz"), ordered=False)
    if compression != "stored":
        assert os.path.getsize(tmp_path / "x.tdz") < 12000
        with pytest.raises(StorageError, match="is compressed"):
            ours.load(tmp_path / "x.tdz", mode="r+")


def test_compression_is_for_archives_and_has_a_known_name(tmp_path):
    with pytest.raises(StorageError, match="compression is only supported"):
        plain().save(tmp_path / "x", compression="deflate")
    with pytest.raises(StorageError, match="'zstd'"):
        plain().save(tmp_path / "x.tdz", compression="zstd")
    with pytest.raises(NotImplementedError, match="return_early"):
        plain().memmap(tmp_path / "x.tdz", num_threads=2, return_early=True)
    with pytest.raises(StorageError, match="A path is required"):
        plain().memmap(archive=True)
    assert os.listdir(tmp_path) == []


def test_zip_of_another_tool_loads_by_copy(tmp_path):
    plain().memmap(tmp_path / "x")
    with zipfile.ZipFile(tmp_path / "y.zip", "w") as archive:
        for name in tree(tmp_path / "x"):
            archive.write(tmp_path / "x" / name, name)
    same(ours.load(tmp_path / "y.zip"), plain())
    with pytest.raises(StorageError, match="is not aligned"):
        ours.load(tmp_path / "y.zip", mode="r+")


def test_writes_reach_an_archive_and_checksums_are_renewed(tmp_path):
    path = tmp_path / "x.tdz"
    plain().save(path)
    ours.load(path, mode="r+")["obs"].add_(1)
    expected = plain()["obs"] + 1
    assert torch.equal(ours.load(path)["obs"], expected)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is not None
    with pytest.raises(DamagedFileError, match=r"obs\.memmap"):
        ours.unpack_memmap(path, tmp_path / "out")
    assert ours.refresh_archive_checksums(path) == path
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    same(ours.load(path), ours.load(ours.unpack_memmap(path, tmp_path / "out")))


def test_archive_that_the_reference_changed_loads_without_verification(tmp_path):
    path = tmp_path / "x.tdz"
    quietly(plain(reference).save, path)
    quietly(reference.TensorDict.load, path, mode="r+")["obs"].add_(1)
    with pytest.raises(DamagedFileError, match="refresh_archive_checksums"):
        ours.load(path)
    assert torch.equal(ours.load(path, verify=False)["obs"], plain()["obs"] + 1)
    ours.refresh_archive_checksums(path)
    assert torch.equal(ours.load(path)["obs"], plain()["obs"] + 1)


def test_memmap_like_makes_an_archive_to_fill(tmp_path):
    path = tmp_path / "x.tdz"
    buffer = TensorDict({"a": torch.ones(3), "n": {"b": torch.ones(3)}}).expand(5).memmap_like(path)
    assert (buffer["a"] == 0).all()
    buffer["n", "b"][2] = 7
    assert torch.equal(ours.load(path)["n", "b"][2], torch.full((3,), 7.0))
    with pytest.raises(StorageError, match="already exists"):
        plain().memmap_like(path, existsok=False)


def test_archive_that_is_there_is_replaced_as_a_whole_or_not(tmp_path, monkeypatch):
    path = tmp_path / "x.tdz"
    plain().save(path)
    old = ours.load(path)
    before = path.read_bytes()
    with pytest.raises(StorageError, match="already exists"):
        sample().memmap(path, existsok=False)
    from tdcompile.tensordict.storage import save

    monkeypatch.setattr(save, "iterate_chunks", lambda tensor: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sample().save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["x.tdz"]
    monkeypatch.undo()
    sample().save(path)
    same(old, plain())


def test_pack_refuses_what_is_no_folder_or_is_inside(tmp_path):
    with pytest.raises(StorageError, match="does not look like"):
        ours.pack_memmap(tmp_path, tmp_path / "x.tdz")
    plain().memmap(tmp_path / "x")
    with pytest.raises(StorageError, match="must be outside"):
        ours.pack_memmap(tmp_path / "x", tmp_path / "x" / "n" / "y.tdz")
    assert ours.pack_memmap(tmp_path / "x", tmp_path / "y.tdz") == tmp_path / "y.tdz"
    with pytest.raises(StorageError, match="is not a memory-mapped tensordict archive"):
        ours.unpack_memmap(tmp_path / "x" / "meta.json", tmp_path / "z")


def test_archive_flag_and_device_meta(tmp_path):
    plain().save(tmp_path / "weights.bin", archive=True)
    assert ours.is_memmap_archive(tmp_path / "weights.bin")
    assert ours.load(tmp_path / "weights.bin", device="meta")["obs"].is_meta
    td = plain().zero_()
    td.load_memmap_(tmp_path / "weights.bin")
    same(td, plain())

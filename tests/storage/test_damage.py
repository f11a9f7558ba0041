"""Files that were cut short, altered or made to do harm: an error names the file."""

from __future__ import annotations

import json
import os
import struct
import sys
import zipfile

import pytest
import torch

import tdcompile as ours
from tdcompile.errors import DamagedFileError, StorageError, UnsafeFileError

sys.path.insert(0, os.path.dirname(__file__))
from samples import plain, same, tree

TensorDict = ours.TensorDict


def loads_as(path):
    return ours.from_consolidated(path) if str(path).endswith(".td") else ours.load(path)


def load_or_none(path):
    """Load a file, or see that the error names it."""
    try:
        return loads_as(path)
    except StorageError as error:
        message = str(error)
    assert str(path) in message
    return None


@pytest.mark.parametrize("name", ["meta.json", "obs.memmap", "n/meta.json", "n/x.memmap"])
@pytest.mark.parametrize("kept", [0, 1, 0.5, -1])
def test_file_of_a_folder_cut_short_is_named(tmp_path, name, kept):
    plain().memmap(tmp_path / "x")
    file = tmp_path / "x" / name
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * kept) if kept == 0.5 else kept])
    before = tree(tmp_path)
    with pytest.raises(DamagedFileError) as caught:
        ours.load(tmp_path / "x")
    assert str(file) in str(caught.value)
    # Mapping a file that is too short would have made it longer.
    assert tree(tmp_path) == before


@pytest.mark.parametrize("name", ["meta.json", "obs.memmap", "n/meta.json", "s/meta.json"])
def test_file_of_a_folder_that_is_missing_is_named(tmp_path, name):
    plain().memmap(tmp_path / "x")
    (tmp_path / "x" / name).unlink()
    with pytest.raises(DamagedFileError) as caught:
        ours.load(tmp_path / "x")
    assert str(tmp_path / "x" / name) in str(caught.value)


def test_nothing_at_all_is_named(tmp_path):
    with pytest.raises(DamagedFileError, match="absent"):
        ours.load(tmp_path / "absent")
    (tmp_path / "text.txt").write_text("x")
    with pytest.raises(StorageError, match="not a memory-mapped tensordict archive"):
        ours.load(tmp_path / "text.txt")


ALTERED = {
    "no object": lambda meta: [],
    "no class": lambda meta: {k: v for k, v in meta.items() if k[:1] != "_"},
    "other class": lambda meta: {**meta, "_class": "os:system", "_type": "<class 'os.system'>"},
    "no shape": lambda meta: {k: v for k, v in meta.items() if k != "shape"},
    "other batch": lambda meta: {**meta, "shape": [5]},
    "negative batch": lambda meta: {**meta, "shape": [-3]},
    "batch of floats": lambda meta: {**meta, "shape": [3.0]},
    "batch of bools": lambda meta: {**meta, "shape": [True]},
    "batch too long": lambda meta: {**meta, "shape": [3, 3]},
    "names": lambda meta: {**meta, "_names": ["a", "b"]},
    "names of numbers": lambda meta: {**meta, "_names": [1]},
    "device": lambda meta: {**meta, "device": "nowhere"},
    "dtype": lambda meta: change(meta, dtype="torch.float31"),
    "dtype of a function": lambda meta: change(meta, dtype="torch.load"),
    "wider dtype": lambda meta: change(meta, dtype="torch.float64"),
    "shape of a leaf": lambda meta: change(meta, shape=[3, 3]),
    "negative shape": lambda meta: change(meta, shape=[3, -2]),
    "huge shape": lambda meta: change(meta, shape=[3, 1 << 61]),
    "huge shape in parts": lambda meta: change(meta, shape=[3, 1 << 40, 1 << 40]),
    "shape of text": lambda meta: change(meta, shape="3"),
    "leaf without anything": lambda meta: {**meta, "obs": {}},
    "file outside": lambda meta: change(meta, _file="../secret"),
    "file absolute": lambda meta: change(meta, _file="/etc/passwd"),
    "file of a number": lambda meta: change(meta, _file=3),
    "file that is absent": lambda meta: change(meta, _file="other"),
    "reserved": lambda meta: {**meta, "_reserved": [[0, "shape"]]},
    "reserved place": lambda meta: {**meta, "_reserved": [[99, "shape", {}]]},
    "nested as a leaf": lambda meta: {**meta, "n": meta["obs"]},
    "leaf as nested": lambda meta: {**meta, "obs": {"type": "TensorDict"}},
    "key outside": lambda meta: {**meta, "../secret": meta["obs"]},
}


def change(meta, **fields):
    return {**meta, "obs": {**meta["obs"], **fields}}


@pytest.mark.parametrize("how", ALTERED)
def test_altered_metadata_is_named(tmp_path, how):
    (tmp_path / "secret.memmap").write_bytes(bytes(1000))
    plain().memmap(tmp_path / "x")
    file = tmp_path / "x" / "meta.json"
    file.write_text(json.dumps(ALTERED[how](json.loads(file.read_text()))))
    out = TensorDict({"kept": torch.ones(1)})
    with pytest.raises(StorageError) as caught:
        TensorDict.load_memmap(tmp_path / "x", out=out)
    assert str(tmp_path / "x") in str(caught.value)
    assert list(out.keys()) == ["kept"]


@pytest.mark.parametrize("cut", range(0, 1400, 97))
@pytest.mark.parametrize("suffix", ["tdz", "td"])
def test_one_file_cut_short_anywhere_is_named(tmp_path, suffix, cut):
    path = tmp_path / f"x.{suffix}"
    if suffix == "tdz":
        plain().save(path)
    else:
        plain().consolidate(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * cut // 1400])
    with pytest.raises(StorageError) as caught:
        loads_as(path)
    assert str(path) in str(caught.value)


def test_flipped_byte_of_an_archive_is_found_wherever_it_is(tmp_path):
    path = tmp_path / "x.tdz"
    td = TensorDict({"a": torch.arange(3.0), "s": "word"}, [3])
    td.save(path)
    data = bytearray(path.read_bytes())
    quiet = 0
    for position in range(0, len(data), 3):
        data[position] ^= 0x55
        path.write_bytes(data)
        loaded = load_or_none(path)
        if loaded is not None:
            # Padding, dates and rights of the zip entries: the tensordict is the same.
            same(loaded, td.auto_device_())
            quiet += 1
        data[position] ^= 0x55
    assert quiet < len(data) / 6


def test_flipped_byte_of_consolidated_metadata_is_found_or_a_key(tmp_path):
    path = tmp_path / "x.td"
    td = TensorDict({"a": torch.arange(3.0), "n": {"b": torch.ones(3, dtype=torch.int16)}}, [3])
    td.consolidate(path)
    data = bytearray(path.read_bytes())
    start = td.consolidate()._consolidated["storage"].numel()
    for position in range(start, len(data)):
        for bit in (1, 0x10)[position % 2 :][:1]:
            data[position] ^= bit
            path.write_bytes(data)
            loaded = load_or_none(path)
            if loaded is not None:
                # Another key, name or class of the same size, never another shape.
                shapes = [value.shape for value in loaded.values(True, True)]
                assert shapes == [torch.Size([3])] * 2
            data[position] ^= bit


@pytest.mark.parametrize("length", [0, 1, 1 << 20, (1 << 64) - 1])
def test_wrong_length_of_consolidated_metadata_is_named(tmp_path, length):
    path = tmp_path / "x.td"
    plain().consolidate(path)
    data = path.read_bytes()
    path.write_bytes(data[:-8] + struct.pack("<Q", length))
    with pytest.raises(DamagedFileError, match=r"x\.td"):
        ours.from_consolidated(path)


SLOTS = {
    "beyond the end": ["torch.float32", [3], 0, 1 << 40, (1 << 40) - 12],
    "negative": ["torch.float32", [3], -16, 0, 4],
    "too many elements": ["torch.float32", [4], 0, 16, 4],
    "another dtype": ["torch.float64", [3], 0, 16, 4],
    "unknown dtype": ["torch.float", [3], 0, 16, 4],
    "misaligned": ["torch.float32", [3], 2, 16, 2],
    "later": ["torch.float32", [3], 4, 16, 0],
    "floats": ["torch.float32", [3], 0.0, 16.0, 4.0],
    "too few fields": ["torch.float32", [3], 0, 16],
}


@pytest.mark.parametrize("how", SLOTS)
def test_leaf_outside_of_a_consolidated_file_is_named(tmp_path, how):
    path = tmp_path / "x.td"
    meta = {
        "cls": "TensorDict",
        "non_tensors": {},
        "leaves": {"a": SLOTS[how]},
        "cls_metadata": {"device": None, "names": [None], "batch_size": [3], "is_locked": False},
    }
    text = json.dumps(meta).encode()
    path.write_bytes(bytes(16) + text + struct.pack("<Q", len(text)))
    with pytest.raises(DamagedFileError, match=r"x\.td"):
        ours.from_consolidated(path)


EVIL_NAMES = ["../evil.memmap", "/tmp/evil.memmap", "a/../../evil", "a\\..\\evil", "a//b", "./a"]


@pytest.mark.parametrize("name", EVIL_NAMES)
@pytest.mark.parametrize("function", [lambda path, _: ours.load(path), ours.unpack_memmap])
def test_archive_with_a_name_that_leads_out_is_refused(tmp_path, name, function):
    path = tmp_path / "deep" / "x.tdz"
    plain().save(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, b"evil")
    before = tree(tmp_path)
    with pytest.raises(UnsafeFileError) as caught:
        function(path, tmp_path / "deep" / "out")
    assert str(path) in str(caught.value)
    assert tree(tmp_path) == before


def test_archive_with_a_link_or_a_name_twice_is_refused(tmp_path):
    path = tmp_path / "x.tdz"
    plain().save(path)
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo("link")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, b"/etc/passwd")
    with pytest.raises(UnsafeFileError, match="link"):
        ours.unpack_memmap(path, tmp_path / "out")
    plain().save(path)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("obs.memmap", bytes(24))
    with pytest.raises(DamagedFileError, match="twice"):
        ours.load(path)


def test_unpacking_through_a_link_is_refused(tmp_path):
    path = tmp_path / "x.tdz"
    plain().save(path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "n").symlink_to(outside, target_is_directory=True)
    with pytest.raises(UnsafeFileError, match="symlink"):
        ours.unpack_memmap(path, tmp_path / "out")
    assert os.listdir(outside) == []
    assert os.listdir(tmp_path / "out") == ["n"]


def test_unpacking_a_damaged_archive_writes_nothing(tmp_path):
    path = tmp_path / "x.tdz"
    plain().save(path)
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo("obs.memmap").header_offset
    data = bytearray(path.read_bytes())
    data[data.index(plain()["obs"].numpy().tobytes(), start) + 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedFileError, match=r"obs\.memmap"):
        ours.unpack_memmap(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_archive_entry_shorter_than_its_metadata_says_is_named(tmp_path):
    plain().memmap(tmp_path / "x")
    meta = tmp_path / "x" / "meta.json"
    meta.write_text(meta.read_text().replace("[3, 2]", "[3, 4]"))
    for compression in (None, "deflate"):
        ours.pack_memmap(tmp_path / "x", tmp_path / "x.tdz", compression=compression)
        with pytest.raises(DamagedFileError, match=r"obs\.memmap"):
            ours.load(tmp_path / "x.tdz")


def test_folder_that_is_a_pipe_or_a_folder_in_place_of_a_file_is_named(tmp_path):
    plain().memmap(tmp_path / "x")
    file = tmp_path / "x" / "obs.memmap"
    file.unlink()
    file.mkdir()
    with pytest.raises(DamagedFileError, match=r"obs\.memmap"):
        ours.load(tmp_path / "x")
    file.rmdir()
    os.mkfifo(file)
    with pytest.raises(DamagedFileError, match="regular file"):
        ours.load(tmp_path / "x")

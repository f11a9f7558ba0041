"""Memory-mapped tensors, shared memory, more entries, more rows, packing, safetensors."""

from __future__ import annotations

import copy
import json
import os
import pickle
import struct
import sys

import pytest
import tensordict as reference
import torch
from torch import multiprocessing as mp

import tdcompile as ours
from tdcompile.errors import DamagedFileError, LockedError, StorageError

sys.path.insert(0, os.path.dirname(__file__))
from samples import plain, quietly, same, tree

TensorDict, MemoryMappedTensor = ours.TensorDict, ours.MemoryMappedTensor

DTYPES = [torch.float32, torch.bool, torch.int16, torch.bfloat16, torch.complex64, torch.uint8]


# -- tensors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 3)])
def test_file_has_the_bytes_of_the_tensor(tmp_path, dtype, shape):
    value = torch.arange(6)[: max(1, torch.Size(shape).numel())].to(dtype)
    value = value[: torch.Size(shape).numel()].reshape(shape)
    mapped = MemoryMappedTensor.from_tensor(value, filename=tmp_path / "x")
    assert torch.equal(mapped, value)
    assert os.path.getsize(tmp_path / "x") == value.numel() * dtype.itemsize
    again = MemoryMappedTensor.from_filename(tmp_path / "x", dtype, shape)
    assert torch.equal(again, value)
    assert again.filename == str(tmp_path / "x")
    theirs = quietly(reference.MemoryMappedTensor.from_filename, tmp_path / "x", dtype, shape)
    assert torch.equal(theirs.as_subclass(torch.Tensor), value)


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (lambda **k: MemoryMappedTensor.zeros(2, 3, **k), 0),
        (lambda **k: MemoryMappedTensor.ones((2, 3), **k), 1),
        (lambda **k: MemoryMappedTensor.full(shape=(2, 3), fill_value=4.0, **k), 4),
        (lambda **k: MemoryMappedTensor.full((2, 3), 4.0, **k), 4),
        (lambda **k: MemoryMappedTensor.zeros_like(torch.ones(2, 3), **k), 0),
        (lambda **k: MemoryMappedTensor.ones_like(torch.ones(2, 3), **k), 1),
        (lambda **k: MemoryMappedTensor.full_like(torch.ones(2, 3), 4, **k), 4),
        (lambda **k: MemoryMappedTensor.empty(torch.Size([2, 3]), **k).fill_(5), 5),
        (lambda **k: MemoryMappedTensor.empty_like(torch.ones(2, 3), **k).fill_(5), 5),
    ],
)
def test_factories_make_files_and_shared_memory(tmp_path, make, value):
    expected = torch.full((2, 3), float(value))
    for made in (make(), make(filename=tmp_path / "x")):
        assert isinstance(made, MemoryMappedTensor)
        assert torch.equal(made, expected)
    assert torch.equal(
        MemoryMappedTensor.from_filename(tmp_path / "x", torch.float32, (2, 3)), made
    )


def test_factories_refuse_what_they_cannot_do(tmp_path):
    with pytest.raises(TypeError, match="a shape"):
        MemoryMappedTensor.zeros()
    with pytest.raises(RuntimeError, match="Only CPU tensors"):
        MemoryMappedTensor.zeros(3, device="meta")
    with pytest.raises(TypeError, match="fill_value"):
        MemoryMappedTensor.full(3, 4)
    with pytest.raises(TypeError, match="expected a tensor"):
        MemoryMappedTensor.from_tensor([1, 2])
    with pytest.raises(StorageError, match="requires_grad"):
        MemoryMappedTensor.from_tensor(torch.ones(2, requires_grad=True))
    MemoryMappedTensor.zeros(3, filename=tmp_path / "x")
    with pytest.raises(StorageError, match="already exists"):
        MemoryMappedTensor.zeros(3, filename=tmp_path / "x")
    with pytest.raises(StorageError, match="anonymous shared memory"):
        _ = MemoryMappedTensor.zeros(3).filename


@pytest.mark.parametrize("size", [0, 1, 23, 24])
def test_file_that_is_too_short_is_neither_mapped_nor_made_longer(tmp_path, size):
    (tmp_path / "x").write_bytes(bytes(size))
    if size == 24:
        assert (MemoryMappedTensor.from_filename(tmp_path / "x", torch.int64, (3,)) == 0).all()
        return
    for mode in (None, "r", "r+"):
        with pytest.raises(DamagedFileError, match=f"24 bytes .* found {size}"):
            MemoryMappedTensor.from_filename(tmp_path / "x", torch.int64, (3,), mode=mode)
    assert (tmp_path / "x").read_bytes() == bytes(size)
    with pytest.raises(DamagedFileError, match="absent"):
        MemoryMappedTensor.from_filename(tmp_path / "absent", torch.int64, (3,))


def test_views_by_index_map_the_file_and_operations_do_not(tmp_path):
    mapped = MemoryMappedTensor.from_tensor(
        torch.arange(12.0).reshape(3, 4), filename=tmp_path / "x"
    )
    for part in (
        mapped[1],
        mapped[:2, 1:],
        mapped.unbind(0)[2],
        mapped.split(2)[0],
        mapped.chunk(3)[1],
    ):
        assert isinstance(part, MemoryMappedTensor)
        assert part.filename == mapped.filename
    for plain_tensor in (mapped + 1, mapped[torch.tensor([0, 1])], mapped.clone(), mapped.double()):
        assert type(plain_tensor) is torch.Tensor
    assert [type(row) for row in mapped] == [MemoryMappedTensor] * 3
    assert type(copy.deepcopy(mapped)) is torch.Tensor


@pytest.mark.parametrize(
    "part", [lambda t: t, lambda t: t[1:, ::2], lambda t: t[0, 3], lambda t: t[:0]]
)
def test_pickle_of_a_part_maps_the_same_elements(tmp_path, part):
    mapped = MemoryMappedTensor.from_tensor(torch.arange(12).reshape(3, 4), filename=tmp_path / "x")
    loaded = pickle.loads(pickle.dumps(part(mapped)))
    assert torch.equal(loaded, part(mapped))
    loaded.fill_(-1)
    assert torch.equal(loaded, part(mapped))
    anonymous = MemoryMappedTensor.from_tensor(torch.arange(12).reshape(3, 4))
    assert torch.equal(pickle.loads(pickle.dumps(part(anonymous))), part(anonymous))


def _double(tensors, done):
    for tensor in tensors:
        tensor.mul_(2)
    done.put(all(isinstance(tensor, MemoryMappedTensor) for tensor in tensors))
    done.get(timeout=60)


def test_other_process_writes_to_the_same_memory(tmp_path):
    tensors = [
        MemoryMappedTensor.from_tensor(torch.ones(4), filename=tmp_path / "x"),
        MemoryMappedTensor.from_tensor(torch.ones(4)),
        MemoryMappedTensor.from_tensor(torch.ones(4))[1:3],
    ]
    context = mp.get_context("fork")
    done = context.Queue()
    tensor_queue = context.Queue()
    tensor_queue.put(tensors)
    process = context.Process(target=_double, args=(tensor_queue.get(timeout=60), done))
    process.start()
    assert done.get(timeout=60)
    done.put("go")
    process.join(60)
    assert all((tensor == 2).all() for tensor in tensors)


def test_pickle_of_a_mapping_that_was_written_to_has_its_values(tmp_path):
    MemoryMappedTensor.ones(6, filename=tmp_path / "x")
    mapped = MemoryMappedTensor.from_filename(tmp_path / "x", torch.float32, (6,), mode="r")
    assert pickle.loads(pickle.dumps(mapped[2:])).filename == str(tmp_path / "x")
    mapped[1:3] = 5
    for part in (mapped, mapped[1:], mapped.view(2, 3)):
        assert torch.equal(pickle.loads(pickle.dumps(part)), part)
    assert (MemoryMappedTensor.from_filename(tmp_path / "x", torch.float32, (6,)) == 1).all()


SENT = {
    "folder": lambda path: plain().memmap(path / "x"),
    "loaded": lambda path: ours.load(plain().memmap(path / "x").saved_path),
    "read only": lambda path: ours.load(plain().memmap(path / "x").saved_path, mode="r"),
    "part": lambda path: plain().memmap(path / "x")[1:].reshape(-1),
    "anonymous": lambda path: plain().memmap(),
    "archive": lambda path: plain().save(path / "x.tdz"),
    "shared": lambda path: plain().share_memory_(),
    "one block": lambda path: plain().consolidate(),
    "one file": lambda path: plain().consolidate(path / "x.td"),
}


def _send_back(inbox, outbox):
    for _ in SENT:
        td = inbox.get(timeout=60)
        outbox.put((td["obs"].sum().item(), td.is_memmap(), td.is_shared(), td.is_consolidated()))


def test_tensordict_of_every_memory_goes_to_another_process(tmp_path):
    context = mp.get_context("fork")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=_send_back, args=(inbox, outbox))
    process.start()
    for index, (name, make) in enumerate(SENT.items()):
        (tmp_path / str(index)).mkdir()
        td = make(tmp_path / str(index))
        inbox.put(td)
        state = (td["obs"].sum().item(), td.is_memmap(), td.is_shared(), td.is_consolidated())
        assert outbox.get(timeout=60) == state, name
    process.join(60)


@pytest.mark.parametrize("kind", ["folder", "archive", "one file"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_data_loader_reads_a_mapped_tensordict(tmp_path, kind, num_workers):
    td = SENT[kind](tmp_path)
    loader = torch.utils.data.DataLoader(
        td, batch_size=2, collate_fn=lambda rows: rows, num_workers=num_workers
    )
    found = [batch["obs"] for batch in loader]
    assert torch.equal(torch.cat(found), plain()["obs"])


# -- shared memory -----------------------------------------------------------------------------


def test_share_memory_moves_leaves_and_locks():
    td = plain()
    assert td.share_memory_() is td
    assert td.is_shared()
    assert td["n"].is_shared()
    assert all(leaf.is_shared() for leaf in td.values(True, True) if leaf.numel())
    with pytest.raises(LockedError):
        td["new"] = torch.ones(3)
    same(td, plain())
    with pytest.raises(StorageError, match="mutually exclusive"):
        td.memmap_()
    assert td.memmap().is_memmap()
    td.unlock_()
    assert not td.is_shared()
    with pytest.raises(StorageError, match="mutually exclusive"):
        plain().memmap_().share_memory_()


def test_addresses_tell_what_shares_memory():
    td = TensorDict({"a": torch.zeros(4), "n": {"b": torch.zeros(4, 2)}, "s": "x"}, [4])
    found = td[1:].data_ptr()
    assert found["a"] == td["a"].data_ptr() + 4
    assert found.batch_size == ()
    assert (td[1:].data_ptr(storage=True) == td.data_ptr(storage=True)).all()
    stack = ours.lazy_stack([td, td])
    keys = list(stack.data_ptr().keys(True, True))
    assert keys == [("0", "a"), ("0", "n", "b"), ("1", "a"), ("1", "n", "b")]


# -- more entries, more rows -------------------------------------------------------------------


@pytest.mark.parametrize("prefix", [None, "x"])
def test_entry_is_added_to_files_and_tensordict(tmp_path, prefix):
    path = None if prefix is None else tmp_path / prefix
    td = TensorDict({"a": torch.ones(3)}, [3], names=["t"]).memmap_(path)
    made = td.make_memmap("b", (3, 2), dtype=torch.int32)
    assert td["b"] is made
    nested = td.make_memmap_from_tensor(("n", "m", "x/y"), torch.full((3,), 7.0))
    assert td["n", "m", "x/y"] is nested
    td.make_memmap_from_tensor(("n", "m", "z"), torch.ones(3), copy_data=False)
    assert (td["n", "m", "z"] == 0).all()
    assert td.is_memmap()
    assert td["n", "m"].is_memmap()
    assert td["n"].is_locked
    with pytest.raises(LockedError):
        td["n"].unlock_()
    made.fill_(5)
    if path is not None:
        assert td["n", "m"].saved_path == path / "n" / "m"
        same(TensorDict.load(path), td)
        other = TensorDict.load(path).memmap_(path)
        td.make_memmap("late", (3,))
        same(other.memmap_refresh_(), td)
    with pytest.raises(StorageError, match="already exists within the target tensordict"):
        td.make_memmap(("n", "m", "z"), (3,))
    with pytest.raises(StorageError, match="batch size"):
        td.make_memmap("wrong", (2,))
    with pytest.raises(StorageError, match="within a memory-mapped tensordict"):
        plain().make_memmap("b", (3,))


def test_entry_from_a_storage_maps_the_file_of_the_entry(tmp_path):
    source = TensorDict({"a": torch.ones(3), "n": {"b": torch.ones(2)}}).memmap_(tmp_path / "x")
    td = TensorDict({}).memmap_(tmp_path / "x")
    td.make_memmap_from_storage("a", source["a"].untyped_storage(), (3,))
    td.make_memmap_from_storage(("n", "b"), source["n", "b"].untyped_storage(), (2,))
    same(TensorDict.load(tmp_path / "x"), td)
    other = MemoryMappedTensor.ones(3, filename=tmp_path / "other")
    before = tree(tmp_path / "x")
    for storage in (other.untyped_storage(), torch.ones(3).untyped_storage()):
        with pytest.raises(StorageError, match="Providing a storage with an associated filename"):
            td.make_memmap_from_storage("c", storage, (3,))
    assert tree(tmp_path / "x") == before
    assert "c" not in td


def rows(package, count):
    make = package.TensorDict
    return make(
        {"a": torch.full((count, 2), float(count)), "n": {"b": torch.arange(count)}, "s": "word"},
        batch_size=[count],
    )


def test_rows_are_appended_as_the_reference_does(tmp_path):
    for package, name in ((ours, "ours"), (reference, "reference")):
        quietly(rows(package, 2).memmap, tmp_path / name)
        quietly(package.append_memmap, tmp_path / name, rows(package, 3))
        quietly(package.append_memmap, tmp_path / name, rows(package, 1))
    assert tree(tmp_path / "ours") == tree(tmp_path / "reference")
    loaded = TensorDict.load(tmp_path / "ours")
    assert loaded.batch_size == (6,)
    assert loaded["a"][:, 0].tolist() == [2, 2, 3, 3, 3, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda td: td.exclude("a"), "with the keys"),
        (lambda td: td.double(), "dtype"),
        (lambda td: td.update({"a": torch.ones(3, 4)}), "shape"),
        (lambda td: td.update({"s": "other"}), "value 'other'"),
        (lambda td: td.update({"n": torch.ones(3)}), "another kind"),
        (lambda td: TensorDict({"a": torch.ones(3)}), "must both have"),
        (lambda td: td.unsqueeze(1), "batch size"),
    ],
)
def test_rows_that_do_not_fit_leave_the_folder(tmp_path, change, message):
    rows(ours, 2).memmap(tmp_path / "x")
    before = tree(tmp_path)
    with pytest.raises(StorageError, match=message):
        ours.append_memmap(tmp_path / "x", change(rows(ours, 3)))
    assert tree(tmp_path) == before
    with pytest.raises(StorageError, match="is not one"):
        ours.append_memmap(tmp_path / "absent", rows(ours, 3))


def test_append_that_fails_leaves_the_folder(tmp_path, monkeypatch):
    from tdcompile.tensordict.storage import extend

    rows(ours, 2).memmap(tmp_path / "x")
    before = tree(tmp_path)
    for name in ("_grow", "write_files"):
        real, calls = getattr(extend, name), []

        def failing(*args, real=real, calls=calls, name=name, **kwargs):
            calls.append(1)
            if len(calls) == (2 if name == "_grow" else 1):
                raise OSError("disk full")
            return real(*args, **kwargs)

        monkeypatch.setattr(extend, name, failing)
        with pytest.raises(OSError, match="disk full"):
            ours.append_memmap(tmp_path / "x", rows(ours, 3))
        assert tree(tmp_path) == before
        monkeypatch.undo()


# -- one tensor --------------------------------------------------------------------------------


def features(package=ours):
    make = package.TensorDict
    nested = make({"q": torch.arange(60.0).reshape(5, 2, 6)}, batch_size=[5, 2])
    source = {
        "v": torch.arange(15.0).reshape(5, 3),
        "p": -torch.arange(5.0),
        "n": {"s": torch.ones(5, 2, 2)},
        "wide": nested,
    }
    return make(source, batch_size=[5])


@pytest.mark.parametrize("dim", [-1, 0, 1, -2])
def test_pack_gives_the_tensor_and_layout_of_the_reference(dim):
    flat, layout = features().pack(dim)
    expected, other = features(reference).pack(dim)
    assert torch.equal(flat, expected)
    assert flat.is_contiguous()
    for name in ("keys", "shapes", "dim", "nested", "device", "cls", "offsets", "numel"):
        assert getattr(layout, name) == getattr(other, name), name
    back = layout.unpack(flat)
    same(back, features(), ordered=False)
    assert back["wide"].batch_size == (5, 2)
    assert (features().pack(dim, layout=layout)[0] == flat).all()
    assert hash(layout) == hash(features().pack(dim)[1])


def test_pack_says_what_does_not_fit():
    td = features()
    flat, layout = td.pack()
    same(layout.unpack(flat[:2]), td[:2], ordered=False)
    cases = [
        (IndexError, lambda: td.pack(5)),
        (TypeError, lambda: td.update({"i": torch.ones(5, dtype=torch.int64)}).pack()),
        (TypeError, lambda: features().update({"s": "x"}).pack()),
        (KeyError, lambda: features().exclude("p").pack(layout=layout)),
        (ValueError, lambda: features().pack(0, layout=layout)),
        (ValueError, lambda: features().update({"p": torch.ones(5, 2)}).pack(layout=layout)),
        (ValueError, lambda: layout.unpack(flat[:, 1:])),
        (ValueError, lambda: layout.unpack(torch.ones(()))),
    ]
    for error, call in cases:
        with pytest.raises(error):
            call()


def test_pack_runs_in_a_full_graph():
    flat, layout = features().pack()

    def program(td, x):
        packed, _ = td.pack()
        return packed, layout.unpack(x + 1)

    with ours.install():
        packed, back = torch.compile(program, backend="eager", fullgraph=True)(features(), flat)
    assert torch.equal(packed, flat)
    same(back, features() + 1, ordered=False)


# -- lazy stacks, params -----------------------------------------------------------------------


@pytest.mark.parametrize("package", [ours, reference], ids=["ours", "reference"])
def test_lazy_stack_comes_back_as_one(tmp_path, package):
    make = package.TensorDict
    elements = [make({"a": torch.ones(2) * i, "n": {"b": torch.ones(1)}}) for i in range(3)]
    elements[2]["c"] = torch.ones(4)
    stack = package.lazy_stack(elements)
    quietly(stack.memmap, tmp_path / "x")
    loaded = ours.load(tmp_path / "x")
    assert type(loaded) is ours.LazyStackedTensorDict
    assert len(loaded.tensordicts) == 3
    same(loaded.tensordicts[2], elements[2], ordered=False)
    same(ours.load(tmp_path / "x", subpath="1/n"), elements[1]["n"])
    if package is ours:
        mapped = quietly(reference.load, tmp_path / "x")
        assert type(mapped).__name__ == "LazyStackedTensorDict"
        assert stack.memmap_().is_memmap()
        os.rename(tmp_path / "x" / "2", tmp_path / "lost")
        with pytest.raises(DamagedFileError, match="2"):
            ours.load(tmp_path / "x")


def test_empty_lazy_stack_comes_back(tmp_path):
    stack = ours.LazyStackedTensorDict(batch_size=[4], stack_dim=1)
    stack.memmap(tmp_path / "x")
    loaded = ours.load(tmp_path / "x")
    assert loaded.batch_size == stack.batch_size
    assert loaded.stack_dim == 1


def test_params_are_copied_to_files_and_not_turned_into_them(tmp_path):
    params = ours.TensorDictParams(TensorDict({"w": torch.ones(3), "n": {"b": torch.ones(2)}}))
    mapped = params.memmap(tmp_path / "x")
    assert type(mapped) is TensorDict
    same(mapped, params.data)
    with pytest.raises(RuntimeError, match="Cannot build a memmap TensorDict in-place"):
        params.memmap_(tmp_path / "y")
    assert isinstance(params["w"], torch.nn.Parameter)


# -- safetensors -------------------------------------------------------------------------------


def test_safetensors_file_keeps_the_structure(tmp_path):
    @ours.tensorclass
    class Named:
        x: torch.Tensor
        label: str

    td = plain()
    td["u"] = ours.UnbatchedTensor(torch.arange(5, dtype=torch.uint8))
    td["p"] = Named(x=torch.ones(3), label="a", batch_size=[3])
    ours.to_safetensors(td, tmp_path / "x")
    loaded = ours.from_safetensors(tmp_path / "x")
    same(loaded.exclude("u", "p"), plain())
    assert torch.equal(loaded["u"], td["u"])
    assert isinstance(loaded.get("u"), ours.UnbatchedTensor)
    assert type(loaded["p"]) is Named
    assert loaded["p"].label == "a"
    before = (tmp_path / "x").read_bytes()
    loaded["obs"].add_(1)
    assert (tmp_path / "x").read_bytes() == before
    assert ours.from_safetensors(tmp_path / "x", device="meta")["obs"].is_meta


def safetensors_bytes(header, data):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_safetensors_file_of_a_model_loads_by_its_names(tmp_path):
    header = {
        "0.weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "0.bias": {"dtype": "U8", "shape": [], "data_offsets": [8, 9]},
        "odd": {"dtype": "I16", "shape": [1], "data_offsets": [9, 11]},
    }
    data = torch.tensor([1.0, 2.0]).numpy().tobytes() + bytes([3, 4, 0])
    (tmp_path / "x").write_bytes(safetensors_bytes(header, data))
    td = ours.from_safetensors(tmp_path / "x")
    assert td["0", "weight"].tolist() == [1.0, 2.0]
    assert td["0", "bias"].item() == 3
    assert td["odd"].tolist() == [4]
    assert td.batch_size == ()


HEADERS = {
    "beyond the end": {"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}},
    "other size": {"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}},
    "gap": {"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}},
    "negative": {"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}},
    "unknown dtype": {"a": {"dtype": "F31", "shape": [2], "data_offsets": [0, 8]}},
    "no object": {"a": 3},
    "rest": {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
    "structure": {"__metadata__": {"tensordict": json.dumps({"root": {"batch_size": []}})}},
}


@pytest.mark.parametrize("how", HEADERS)
def test_safetensors_file_that_makes_no_sense_is_named(tmp_path, how):
    data = bytes(0 if how == "structure" else 8)
    (tmp_path / "x").write_bytes(safetensors_bytes(HEADERS[how], data))
    with pytest.raises(DamagedFileError, match=r"/x\b"):
        ours.from_safetensors(tmp_path / "x")


def test_safetensors_file_cut_short_is_named(tmp_path):
    ours.to_safetensors(plain(), tmp_path / "x")
    data = (tmp_path / "x").read_bytes()
    for cut in range(0, len(data), 41):
        (tmp_path / "x").write_bytes(data[:cut])
        with pytest.raises(DamagedFileError, match=r"/x\b"):
            ours.from_safetensors(tmp_path / "x")


def test_what_safetensors_cannot_hold_is_refused(tmp_path):
    cases = [
        (TypeError, {"v": ours.NonTensorData(1j)}),
        (TypeError, {"v": ours.NonTensorData((1, 2))}),
        (TypeError, {"c": torch.ones(1, dtype=torch.complex128)}),
        (TypeError, {"s": torch.eye(2).to_sparse()}),
        (ValueError, {"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}),
    ]
    for error, entries in cases:
        with pytest.raises(error):
            ours.to_safetensors(TensorDict(entries), tmp_path / "x")
    with pytest.raises(TypeError, match="lazy stack"):
        ours.to_safetensors(ours.lazy_stack([plain(), plain()]), tmp_path / "x")
    assert os.listdir(tmp_path) == []

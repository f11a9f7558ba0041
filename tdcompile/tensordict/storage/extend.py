"""More entries in a memory-mapped tensordict, more rows in a saved one.

Key names: :func:`make_memmap`, :func:`make_memmap_from_storage`, :func:`make_memmap_from_tensor`,
:func:`append_memmap`.

Invariant: the file of an entry is there before the metadata names it; an append that fails leaves
the metadata, and so what is loaded, as it was.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdcompile.errors import StorageError
from tdcompile.tensordict.dense import TensorDict
from tdcompile.tensordict.keys import format_entry, unravel_key_to_tuple
from tdcompile.tensordict.storage.archive import iterate_chunks
from tdcompile.tensordict.storage.kinds import (
    DENSE,
    METADATA,
    VALUE,
    Leaf,
    Node,
    SaveOptions,
    lay_out,
)
from tdcompile.tensordict.storage.load import Loader, load_memmap
from tdcompile.tensordict.storage.memmap_tensor import MemoryMappedTensor, absolute
from tdcompile.tensordict.storage.memory import Memory, memory_of
from tdcompile.tensordict.storage.paths import DATA, META, Folder, nbytes_of
from tdcompile.tensordict.storage.save import write_files
from tdcompile.tensordict.storage.values import dump_json

if TYPE_CHECKING:
    from collections.abc import Callable


def make_memmap(
    td: Any, key: Any, shape: Any, dtype: torch.dtype | None, robust_key: bool | None
) -> MemoryMappedTensor:
    """Add a tensor of zeros, see ``TensorDict.make_memmap``."""
    size = torch.Size((shape,) if isinstance(shape, int) else _as_list(shape))
    example = torch.empty(0, dtype=dtype).expand(0) if 0 in size else torch.zeros(1, dtype=dtype)
    value = example.reshape(size) if 0 in size else example.expand(size)
    return make_memmap_from_tensor(td, key, value, False, True, robust_key)


def _as_list(shape: Any) -> Any:
    if isinstance(shape, Tensor):
        if shape.ndim > 1:
            raise NotImplementedError(
                "expected one shape, found a tensor of shapes: nested tensors cannot be mapped"
            )
        return shape.tolist()
    return shape


def make_memmap_from_tensor(
    td: Any, key: Any, tensor: Tensor, copy_data: bool, existsok: bool, robust_key: bool | None
) -> MemoryMappedTensor:
    """Add a copy of a tensor, see ``TensorDict.make_memmap_from_tensor``."""

    def make(path: str | None) -> MemoryMappedTensor:
        plain = tensor.detach().as_subclass(Tensor)
        if path is not None and plain.numel() == 0:
            path = None
        return MemoryMappedTensor.from_tensor(
            plain, filename=path, existsok=existsok, copy_data=copy_data
        )

    return _add_entry(td, key, tensor, make, robust_key)


def make_memmap_from_storage(
    td: Any,
    key: Any,
    storage: Any,
    shape: Any,
    dtype: torch.dtype | None,
    robust_key: bool | None,
) -> MemoryMappedTensor:
    """Add a view of a storage, see ``TensorDict.make_memmap_from_storage``."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    view = MemoryMappedTensor.from_storage(storage, shape=shape, dtype=dtype)

    def make(path: str | None) -> MemoryMappedTensor:
        if path is not None and (view._filename is None or not _same(view._filename, path)):
            found = "none" if view._filename is None else view._filename
            raise StorageError(
                "Providing a storage with an associated filename that differs from that of the "
                f"entry is not permitted: expected {path}, found {found}; use "
                "make_memmap_from_tensor, which copies into the folder"
            )
        return view

    return _add_entry(td, key, view, make, robust_key)


def _same(first: str, second: str) -> bool:
    return os.path.abspath(first) == second


def _add_entry(
    td: Any,
    key: Any,
    example: Tensor,
    make: Callable[[str | None], MemoryMappedTensor],
    robust_key: bool | None,
) -> MemoryMappedTensor:
    record = memory_of(td, "memmap")
    if record is None:
        raise StorageError(
            "Can only make a memmap tensor within a memory-mapped tensordict: expected one that "
            "td.memmap_() gave (and that was not unlocked)"
        )
    path = unravel_key_to_tuple(key)
    node, depth = td, 0
    while depth < len(path) - 1 and isinstance(node._entries.get(path[depth]), TensorDict):
        node, depth = node._entries[path[depth]], depth + 1
    if path[depth] in node._entries:
        raise StorageError(
            f"The key {path[0] if len(path) == 1 else path} already exists within the target "
            f"tensordict: {format_entry(path[: depth + 1])} is there; delete that entry first"
        )
    # The example stands in for the tensor while the layout is checked; nothing is written yet.
    sizes = td.batch_size if depth == 0 else node.batch_size
    if example.shape[: len(sizes)] != sizes:
        raise StorageError(
            f"expected a shape that starts with the batch size {list(sizes)}, found "
            f"{list(example.shape)} for {format_entry(path)}"
        )
    device = td._device
    value: Any = example
    chain: list[Any] = []
    for name in reversed(path[depth + 1 :]):
        value = TensorDict._from_entries({name: value}, node.batch_size, device, node._names)
        chain.append(value)
    trial = dict(node._entries)
    trial[path[depth]] = value
    base = memory_of(node, "memmap")
    base_path = record.path if base is None else base.path
    root = None if base_path is None else Path(base_path)
    options = SaveOptions(robust_key is not False, allow_pickle=True, with_files=root is not None)
    layout = lay_out(
        TensorDict._from_entries(trial, node.batch_size, node._device, node._names), options
    )
    layout.kind = DENSE
    leaf = _leaf_at(layout, path[depth:])
    holder = chain[0] if chain else None
    if root is None:
        made = make(None)
    else:
        made = _write_entry(layout, root, leaf, path[depth:], make)
    if holder is None:
        node._entries[path[depth]] = made
    else:
        holder._entries[path[-1]] = made
        _mark(value, layout.children[path[depth]], root)
        value.lock_()
        node._entries[path[depth]] = value
        value._lock(node)
    return made


def _leaf_at(layout: Node, path: tuple[str, ...]) -> Leaf:
    child: Any = layout
    for name in path:
        child = child.children[name]
    return child  # type: ignore[no-any-return]


def _write_entry(
    layout: Node,
    root: Path,
    leaf: Leaf,
    path: tuple[str, ...],
    make: Callable[[str | None], MemoryMappedTensor],
) -> MemoryMappedTensor:
    folder = Folder(root)
    target = folder.path(leaf.parts)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    made = make(target)
    nodes = [layout]
    for name in path[:-1]:
        nodes.append(nodes[-1].children[name])  # type: ignore[arg-type]
    files = [((*each.parts, META), _writer(each.files[META])) for each in nodes]
    write_files(root, files, folders=())
    return made


def _writer(data: bytes) -> Callable[[str], None]:
    def write(path: str) -> None:
        with open(path, "xb") as file:
            file.write(data)

    return write


def _mark(value: Any, node: Any, root: Path | None) -> None:
    value._memory = Memory("memmap", None if root is None else root.joinpath(*node.parts))
    for name, child in value._entries.items():
        if isinstance(child, TensorDict):
            _mark(child, node.children[name], root)


# -- more rows ---------------------------------------------------------------------------------


def append_memmap(prefix: Any, rows: Any, *, allow_pickle: bool | None = None) -> None:
    """Append rows to a saved folder, along the first batch dimension.

    The files of the leaves grow, then the metadata is replaced. Everything is checked before. A
    reader that mapped the folder before keeps the old rows.

    Args:
        prefix: the folder.
        rows: a tensordict with the keys, classes, dtypes and trailing shapes of the saved one; its
            non-tensor values are equal to the saved ones, which stay.
        allow_pickle: unpickle saved values to compare them.

    Raises:
        StorageError: if `prefix` is no folder, or `rows` do not fit.
    """
    root = absolute(prefix)
    if not root.is_dir():
        raise StorageError(
            f"append_memmap appends to a directory written by save or memmap, and {root} is not "
            "one: an archive cannot grow; unpack it with unpack_memmap first"
        )
    saved = load_memmap(root, mode="r", allow_pickle=allow_pickle)
    if not saved.batch_size or not rows.batch_size:
        raise StorageError(
            "append_memmap appends along the first batch dimension, which the saved tensordict "
            f"(batch size {list(saved.batch_size)}) and the rows (batch size "
            f"{list(rows.batch_size)}) must both have"
        )
    options = SaveOptions(with_files=False)
    loader = Loader(Folder(root, "r"))
    growth: list[tuple[str, int, Tensor]] = []
    metas: dict[tuple[str, ...], dict[str, Any]] = {}
    _plan_rows(loader, lay_out(saved, options), lay_out(rows, options), growth, metas)
    sizes = {path: os.path.getsize(path) for path, _, _ in growth if os.path.exists(path)}
    try:
        for path, offset, tensor in growth:
            _grow(path, offset, tensor)
        files = [((*parts, META), _writer(dump_json(meta))) for parts, meta in metas.items()]
        write_files(root, files, folders=())
    except BaseException:
        for path, _, _ in growth:
            if path not in sizes and os.path.exists(path):
                os.unlink(path)
            elif path in sizes:
                os.truncate(path, sizes[path])
        raise


def _grow(path: str, offset: int, tensor: Tensor) -> None:
    with open(path, "r+b" if os.path.exists(path) else "xb") as file:
        file.seek(offset)
        file.truncate()  # what an append that was killed left
        for chunk in iterate_chunks(tensor):
            file.write(chunk)


def _plan_rows(
    loader: Loader,
    saved: Node,
    rows: Node,
    growth: list[tuple[str, int, Tensor]],
    metas: dict[tuple[str, ...], dict[str, Any]],
    parts: tuple[str, ...] = (),
) -> None:
    """Check one level of `rows` against what is saved; collect what files grow by."""
    where = format_entry(saved.path) if saved.path else "the tensordict"
    if type(saved.value) is not type(rows.value):
        raise StorageError(
            f"Cannot append rows: expected {type(saved.value).__name__} at {where}, found "
            f"{type(rows.value).__name__}"
        )
    if saved.kind in (VALUE, METADATA):
        if saved.value.data != rows.value.data:
            raise StorageError(
                f"Cannot append rows whose value {rows.value.data!r} at {where} differs from the "
                f"saved one, {saved.value.data!r}"
            )
        return
    if set(saved.children) != set(rows.children):
        raise StorageError(
            f"Cannot append rows with the keys {sorted(rows.children)} to the saved tensordict, "
            f"which has the keys {sorted(saved.children)}"
        )
    if saved.kind is not DENSE:
        inner = getattr(saved.children.get("_tensordict"), "kind", None)
        if inner is not DENSE:
            raise StorageError(f"Cannot append rows to a {type(saved.value).__name__} at {where}")
        child, other = saved.children["_tensordict"], rows.children["_tensordict"]
        assert isinstance(child, Node)
        assert isinstance(other, Node)
        _plan_rows(loader, child, other, growth, metas, (*parts, "_tensordict"))
        return
    old, new = saved.value.batch_size, rows.value.batch_size
    if len(old) != len(new) or old[1:] != new[1:]:
        raise StorageError(
            f"Cannot append rows of batch size {list(new)} to the batch size {list(old)} at {where}"
        )
    meta = loader.meta(parts)
    meta["shape"] = [old[0] + new[0], *old[1:]]
    reserved = {item[1]: item[2] for item in meta.get("_reserved", [])}
    metas[parts] = meta
    for key, child in saved.children.items():
        other = rows.children[key]
        entry = reserved.get(key) or meta[key]
        if isinstance(child, Leaf) and isinstance(other, Leaf):
            _plan_leaf(
                loader, child, other, entry, (*parts, _stem(loader, parts, key, entry)), growth
            )
        elif isinstance(child, Node) and isinstance(other, Node):
            stem = _stem(loader, parts, key, entry, folder=True)
            _plan_rows(loader, child, other, growth, metas, (*parts, stem))
        else:
            raise StorageError(f"Cannot append rows with another kind of entry at {where}, {key!r}")


def _stem(
    loader: Loader, parts: tuple[str, ...], key: str, entry: Any, folder: bool = False
) -> str:
    from tdcompile.tensordict.storage.kinds import find_stem

    stem: str = entry.get("_file") or find_stem(loader, parts, key, "" if folder else DATA)
    return stem


def _plan_leaf(
    loader: Loader,
    saved: Leaf,
    rows: Leaf,
    entry: dict[str, Any],
    parts: tuple[str, ...],
    growth: list[tuple[str, int, Tensor]],
) -> None:
    old, new = saved.tensor, rows.tensor
    if old.dtype != new.dtype or old.shape[1:] != new.shape[1:]:
        raise StorageError(
            f"Cannot append rows of dtype {new.dtype} and shape {tuple(new.shape)} to the entry "
            f"{format_entry(saved.path)}, of dtype {old.dtype} and shape {tuple(old.shape)}"
        )
    entry["shape"] = [old.shape[0] + new.shape[0], *old.shape[1:]]
    if new.numel():
        path = loader.source.describe((*parts[:-1], parts[-1] + DATA))
        growth.append((path, nbytes_of(old.shape, old.dtype), new))

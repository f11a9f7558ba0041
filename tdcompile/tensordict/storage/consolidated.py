"""Consolidated tensordicts: all leaves in one block of memory or in one file.

Key names: :func:`consolidate`, :func:`from_consolidated`, :func:`moved` (to another device),
:func:`copied`, :func:`reduce` (pickling).

A file is the block, then a JSON object that says where each leaf is, then the length of that
object as 8 bytes, as in the ``tensordict`` package.

Invariant: a leaf is mapped only if its bytes are inside the block; the shares of the leaves cover
the block without a gap or an overlap.
"""

from __future__ import annotations

import json
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from tdcompile.errors import DamagedFileError, StorageError, UnsafeFileError
from tdcompile.tensordict.dense import TensorDict
from tdcompile.tensordict.keys import format_entry
from tdcompile.tensordict.lazy.stack import LazyStackedTensorDict
from tdcompile.tensordict.nontensor.data import NonTensorData, NonTensorEntry
from tdcompile.tensordict.nontensor.stack import NonTensorStack
from tdcompile.tensordict.storage import values
from tdcompile.tensordict.storage.flat import (
    FlatLayout,
    Slot,
    flat_layout_of,
    nbytes_of_slots,
    plan,
)
from tdcompile.tensordict.storage.kinds import (
    DENSE,
    LAZY,
    METADATA,
    TENSORCLASS,
    VALUE,
    VALUES,
    Leaf,
    Node,
    SaveOptions,
    class_of_dense,
    lay_out,
)
from tdcompile.tensordict.storage.memmap_tensor import absolute, check_target, draft_name
from tdcompile.tensordict.storage.memory import Memory
from tdcompile.tensordict.storage.paths import (
    bad_field,
    missing_file,
    parse_device,
    parse_dtype,
    parse_names,
    parse_shape,
    read_json,
    short_file,
)
from tdcompile.tensordict.storage.save import TensorDictFuture

_LENGTH = struct.Struct("<Q")
_NODE_FIELDS = ("cls", "non_tensors", "leaves", "cls_metadata")


def consolidate(
    td: Any,
    filename: Any = None,
    *,
    num_threads: int = 0,
    device: Any = None,
    non_blocking: bool = False,
    inplace: bool = False,
    return_early: bool = False,
    use_buffer: bool = False,
    share_memory: bool = False,
    pin_memory: bool = False,
) -> Any:
    """Copy all leaves into one block, see ``TensorDict.consolidate``."""
    from tdcompile.tensordict.metadata import as_device

    place = None if device is None else as_device(device)
    if filename is not None and place is not None and place.type != "cpu":
        raise StorageError(
            f"device and filename are mutually exclusive arguments: expected device='cpu' or none "
            f"with a file, found {device!r}"
        )
    early = return_early and num_threads > 1
    if early and (use_buffer or non_blocking):
        name = "use_buffer" if use_buffer else "non_blocking"
        raise NotImplementedError(f"return_early is not supported with {name}=True: leave it out")
    path = None if filename is None else str(absolute(filename))
    layout = flat_layout_of(td)
    if layout is not None and _fits(layout, path, place, share_memory, pin_memory):
        return TensorDictFuture(lambda: None, lambda _: td) if early else td
    node = lay_out(td, SaveOptions(with_files=False))
    sources = [leaf.tensor.detach().as_subclass(torch.Tensor) for leaf in node.leaves()]
    slots = plan(sources)
    metadata = None if path is None else _metadata_bytes(node, slots)
    if path is not None:
        check_target(os.path.realpath(path), True)
        place = torch.device("cpu")
    where = place if place is not None else td.device

    def job() -> FlatLayout:
        nbytes = nbytes_of_slots(slots)
        if path is None or use_buffer:
            kept = _allocate(nbytes, where, share_memory or use_buffer, pin_memory)
            made = FlatLayout(kept, slots)
            _copy_all(made, sources, num_threads, non_blocking)
        if path is None:
            return made
        target = os.path.realpath(path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        draft = draft_name(target)
        try:
            assert metadata is not None
            with open(draft, "xb") as file:
                file.truncate(nbytes)
                file.seek(nbytes)
                file.write(metadata + _LENGTH.pack(len(metadata)))
            mapped = FlatLayout(_map(draft, nbytes, shared=True), slots, is_file=True)
            if use_buffer:
                mapped.storage.copy_(made.storage)
            else:
                _copy_all(mapped, sources, num_threads, non_blocking)
            os.replace(draft, target)
        finally:
            if os.path.lexists(draft):
                os.unlink(draft)
        return (
            made
            if use_buffer
            else FlatLayout(_map(target, nbytes, shared=True), slots, is_file=True)
        )

    def finish(layout: FlatLayout) -> Any:
        if not inplace:
            return _marked(_with_tensors(node, layout, where), layout).lock_()
        _put_in_place(node, layout)
        if where != td.device:
            td._change_device(where)
        return _marked(td, layout).lock_()

    return TensorDictFuture(job, finish) if early else finish(job())


def _fits(
    layout: FlatLayout, path: str | None, device: Any, share_memory: bool, pin_memory: bool
) -> bool:
    """Tell whether a consolidated tensordict is what the arguments ask for already."""
    storage: Any = layout.storage
    own = storage.untyped_storage().filename
    return (
        (path is None or (own is not None and os.path.abspath(own) == path))
        and (device is None or device == storage.device)
        and (not share_memory or storage.is_shared())
        and (not pin_memory or storage.is_pinned())
    )


def _allocate(nbytes: int, device: Any, share_memory: bool, pin_memory: bool) -> torch.Tensor:
    place = torch.device("cpu") if device is None else device
    storage: Any = torch.zeros(nbytes, dtype=torch.uint8, device=place, pin_memory=pin_memory)
    if share_memory and place.type == "cpu":
        storage.share_memory_()
    return storage  # type: ignore[no-any-return]


def _map(path: str, nbytes: int, shared: bool) -> torch.Tensor:
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    storage = torch.UntypedStorage.from_file(path, shared, nbytes)
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (nbytes,))  # type: ignore[call-overload,no-any-return]


def _copy_all(
    layout: FlatLayout, sources: list[torch.Tensor], num_threads: int, non_blocking: bool
) -> None:
    pairs = list(zip(layout.tensors, sources, strict=True))

    def copy(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
        with torch.no_grad():
            pair[0].copy_(pair[1], non_blocking=non_blocking)

    if num_threads > 1 and len(pairs) > 1:
        with ThreadPoolExecutor(num_threads) as pool:
            list(pool.map(copy, pairs))
    else:
        for pair in pairs:
            copy(pair)


def _marked(td: Any, layout: FlatLayout) -> Any:
    td._memory = Memory("consolidated", layout=layout)
    return td


def _with_tensors(node: Node, layout: FlatLayout, device: torch.device | None) -> Any:
    """Return the tensordict of a layout of entries with the views as leaves."""
    remaining = iter(layout.tensors)

    def build(each: Node) -> Any:
        children: dict[str, Any] = {}
        for key, child in each.children.items():
            children[key] = next(remaining) if isinstance(child, Leaf) else build(child)
        return each.kind.with_children(each.value, children, device)

    return build(node)


def _put_in_place(node: Node, layout: FlatLayout) -> None:
    remaining = iter(layout.tensors)

    def put(each: Node) -> None:
        for key, child in each.children.items():
            if isinstance(child, Leaf):
                each.kind.set_child(each.value, key, next(remaining))
            else:
                put(child)

    put(node)


def _on_new_storage(td: Any, layout: FlatLayout, storage: torch.Tensor, device: Any) -> Any:
    node = lay_out(td, SaveOptions(with_files=False))
    new = FlatLayout(storage, layout.slots)
    return _marked(_with_tensors(node, new, device), new)


def moved(td: Any, layout: FlatLayout, device: torch.device, non_blocking: bool = False) -> Any:
    """Return a consolidated tensordict on another device: the block moves in one copy."""
    storage = layout.storage.to(device, non_blocking=non_blocking)
    return _on_new_storage(td, layout, storage, device).lock_()


def copied(td: Any, layout: FlatLayout) -> Any:
    """Return a consolidated tensordict with a block of its own, in one copy; it is not locked."""
    return _on_new_storage(td, layout, layout.storage.clone(), td.device)


# -- pickling ----------------------------------------------------------------------------------


def reduce(td: Any, layout: FlatLayout) -> tuple[Any, ...]:
    """Pickle the block once, and the tensordict with numbers in place of its leaves."""
    node = lay_out(td, SaveOptions(with_files=False))
    count = iter(range(len(layout.tensors)))

    def skeleton(each: Node) -> Any:
        children: dict[str, Any] = {}
        for key, child in each.children.items():
            children[key] = next(count) if isinstance(child, Leaf) else skeleton(child)
        return each.kind.with_children(each.value, children, each.value.device)

    # torch cannot send the memory of a mapped file to another process.
    storage = layout.storage.clone() if layout.is_file else layout.storage
    return _rebuild, (skeleton(node), storage, layout.slots, td.is_locked)


def _rebuild(
    skeleton: Any,
    storage: torch.Tensor,
    slots: list[Slot],
    is_locked: bool,
    is_file: bool = False,
) -> Any:
    layout = FlatLayout(storage, slots, is_file)

    def fill(value: Any) -> None:
        elements = getattr(value, "tensordicts", None)
        if elements is not None:
            for element in elements:
                fill(element)
            return
        entries = getattr(value, "_entries", {})
        for key, entry in entries.items():
            if type(entry) is int:
                entries[key] = layout.tensors[entry]
            else:
                fill(entry)

    fill(skeleton)
    _marked(skeleton, layout)
    return skeleton.lock_() if is_locked else skeleton


# -- files -------------------------------------------------------------------------------------


def raw_form(td: Any, layout: FlatLayout) -> dict[str, Any]:
    """Return the block and the metadata, as a file would hold them."""
    node = lay_out(td, SaveOptions(with_files=False))
    return {"storage": layout.storage, "metadata": _describe(node, iter(layout.slots), False)}


def _metadata_bytes(node: Node, slots: list[Slot]) -> bytes:
    return json.dumps(_describe(node, iter(slots), True)).encode()


def _describe(node: Node, slots: Any, for_file: bool) -> dict[str, Any]:
    """Return the metadata of one tensordict: class, leaves, values, nested tensordicts."""
    if node.kind is TENSORCLASS:
        (inner,) = node.children.values()
        assert isinstance(inner, Node)
        meta = _describe(inner, slots, for_file)
        return {**meta, "cls": str(type(node.value)) if for_file else type(node.value)}
    leaves: dict[str, Any] = {}
    non_tensors: dict[str, Any] = {}
    nested: dict[str, Any] = {}
    for key, child in node.children.items():
        if isinstance(child, Leaf):
            slot = next(slots)
            pad = slot.stop - slot.start - slot.nbytes
            leaves[key] = (str(slot.dtype), list(slot.shape), slot.start, slot.stop, pad)
        elif child.kind in (VALUE, METADATA):
            if for_file and values.tuple_paths(child.value.data) != []:
                raise _not_json(child.value.data, child.path)
            non_tensors[key] = _value_fields(child.value, child.value.data)
        else:
            if key in _NODE_FIELDS:
                raise StorageError(
                    f"expected no nested tensordict named {key!r} in a consolidated file, found "
                    f"{format_entry(child.path)}: the format uses the name; rename the entry"
                )
            if child.kind is VALUES:
                nested[key] = _describe_values(child, for_file)
            else:
                nested[key] = _describe(child, slots, for_file)
    name, extra = describe_class(node.value)
    return {
        "cls": name,
        "non_tensors": non_tensors,
        "leaves": leaves,
        "cls_metadata": {**extra, "is_locked": False},
        **nested,
    }


def _value_fields(entry: Any, data: Any) -> tuple[Any, ...]:
    device = entry.device
    return data, list(entry.batch_size), None if device is None else str(device)


def _describe_values(node: Node, for_file: bool) -> dict[str, Any]:
    """Return the metadata of a stack of values: one entry an element of its first dimension."""
    stack = node.value
    rest = torch.Size(stack.batch_size[1:])
    rows = [NonTensorData(row, rest, stack.device) for row in stack.tolist()]
    if for_file and values.tuple_paths(stack.tolist()) != []:
        raise _not_json(stack.tolist(), node.path)
    if len(rest) > 0:
        nodes: dict[str, Node] = {}
        for index, row in enumerate(rows):
            inner = NonTensorStack._of(_flattened(row.data, len(rest)), rest, stack.device)
            nodes[str(index)] = Node(inner, VALUES, (), node.path)
        return _stack_level({}, {k: _describe_values(each, for_file) for k, each in nodes.items()})
    return _stack_level({str(i): _value_fields(row, row.data) for i, row in enumerate(rows)}, {})


def _flattened(data: list[Any], depth: int) -> list[Any]:
    for _ in range(depth - 1):
        data = [part for item in data for part in item]
    return data


def _stack_level(non_tensors: dict[str, Any], nested: dict[str, Any]) -> dict[str, Any]:
    extra = {"stack_dim": 0, "stack_dim_name": None, "is_locked": False}
    return {
        "cls": VALUES.name,
        "non_tensors": non_tensors,
        "leaves": {},
        "cls_metadata": extra,
        **nested,
    }


def _not_json(data: Any, path: tuple[str, ...]) -> UnsafeFileError:
    return UnsafeFileError(
        "expected values that JSON keeps as they are in a consolidated file, found "
        f"{type(data).__name__} at {format_entry(path)}: exclude the entry, or save with "
        "td.memmap(prefix, allow_pickle=True)"
    )


def describe_class(value: Any) -> tuple[str, dict[str, Any]]:
    """Return the name of a kind in a consolidated file and what it is besides its entries."""
    if isinstance(value, LazyStackedTensorDict):
        return LAZY.name, {"stack_dim": value.stack_dim, "stack_dim_name": value._dim_name}
    names = value._names or (None,) * len(value.batch_size)
    return "TensorDict", {
        "device": None if value.device is None else str(value.device),
        "names": list(names),
        "batch_size": list(value.batch_size),
    }


def from_consolidated(filename: Any) -> Any:
    """Return the tensordict of a consolidated file; its leaves are views of one mapping of it.

    The mapping is copy-on-write: writes do not reach the file. The result is not locked.

    Args:
        filename: a file that ``td.consolidate(filename=...)`` wrote.

    Raises:
        DamagedFileError: if the file is missing, cut short, or its metadata makes no sense.
    """
    path = str(absolute(filename))
    if not os.path.isfile(path):
        raise missing_file(path)
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        file.seek(max(0, size - _LENGTH.size))
        tail = file.read()
        if len(tail) < _LENGTH.size:
            raise short_file(path, _LENGTH.size, size)
        (length,) = _LENGTH.unpack(tail)
        nbytes = size - _LENGTH.size - length
        if nbytes < 0:
            raise DamagedFileError(
                f"expected a consolidated tensordict in {path}, found that its metadata would take "
                f"{length} of {size} bytes: the file was cut short or is another one"
            )
        file.seek(nbytes)
        meta = read_json(file.read(length), path)
    slots: list[Slot] = []
    skeleton = _parse(meta, path, slots)
    _check_shares(slots, nbytes, path)
    return _rebuild(skeleton, _map(path, nbytes, shared=False), slots, False, is_file=True)


def _parse(meta: Any, name: str, slots: list[Slot]) -> Any:
    """Return a tensordict with numbers in place of its leaves, and collect their slots."""
    if not isinstance(meta, dict) or not all(field in meta for field in _NODE_FIELDS):
        raise bad_field(name, f"the fields {list(_NODE_FIELDS)} of a tensordict", meta)
    tag, extra = meta["cls"], meta["cls_metadata"]
    for field in ("non_tensors", "leaves", "cls_metadata"):
        if not isinstance(meta[field], dict):
            raise bad_field(name, f"an object as {field!r}", meta[field])
    entries: dict[str, Any] = {}
    for key, fields in meta["leaves"].items():
        slots.append(_parse_slot(fields, f"{name}, entry {key!r}"))
        entries[key] = len(slots) - 1
    for key, fields in meta["non_tensors"].items():
        where = f"{name}, entry {key!r}"
        if not isinstance(fields, list) or len(fields) != 3:
            raise bad_field(where, "a value, its batch size and its device", fields)
        size = parse_shape(fields[1], where)
        entries[key] = NonTensorData(fields[0], size, parse_device(fields[2], where))
    for key, nested in meta.items():
        if key not in _NODE_FIELDS:
            entries[key] = _parse(nested, f"{name}, entry {key!r}", slots)
    builder = BUILDERS.get(tag)
    if builder is not None:
        return builder(entries, extra, name)
    cls = values.find_class(tag) if isinstance(tag, str) else None
    if cls is None:
        raise DamagedFileError(
            f"expected the class of a saved tensordict in {name}, found {tag!r}, which the program "
            "does not have: import the module that defines it, or restore the file"
        )
    return class_of_dense(cls, _build_dense(entries, extra, name))


def _build_dense(entries: dict[str, Any], extra: dict[str, Any], name: str) -> Any:
    size = parse_shape(extra.get("batch_size"), name)
    names = parse_names(extra.get("names") or None, len(size), name)
    return TensorDict._from_entries(entries, size, parse_device(extra.get("device"), name), names)


def _build_stack(entries: dict[str, Any], extra: dict[str, Any], name: str) -> Any:
    dim, label = extra.get("stack_dim"), extra.get("stack_dim_name")
    numbers = [str(index) for index in range(len(entries))]
    if type(dim) is not int or sorted(entries, key=len) != numbers:
        raise bad_field(name, "the dimension and the elements of a stack", [dim, list(entries)])
    try:
        return LazyStackedTensorDict(*entries.values(), stack_dim=dim, stack_dim_name=label)
    except (TypeError, ValueError, RuntimeError) as error:
        raise bad_field(name, f"elements of one stack ({error})", dim) from error


def _build_values(entries: dict[str, Any], extra: dict[str, Any], name: str) -> Any:
    dim = extra.get("stack_dim")
    if type(dim) is not int or not all(isinstance(e, NonTensorEntry) for e in entries.values()):
        raise bad_field(name, "the dimension and the values of a stack", [dim, list(entries)])
    try:
        return NonTensorStack(*entries.values(), stack_dim=dim)
    except (TypeError, ValueError, RuntimeError) as error:
        raise bad_field(name, f"values of one stack ({error})", dim) from error


BUILDERS: dict[Any, Any] = {
    DENSE.name: _build_dense,
    LAZY.name: _build_stack,
    VALUES.name: _build_values,
}
"""Name of a kind in a consolidated file -> what makes it of entries and metadata."""


def _parse_slot(fields: Any, name: str) -> Slot:
    if not isinstance(fields, list) or len(fields) != 5:
        raise bad_field(name, "dtype, shape, start, stop and padding of a leaf", fields)
    dtype, shape = parse_dtype(fields[0], name), parse_shape(fields[1], name)
    start, stop, pad = fields[2:]
    if not all(type(number) is int and number >= 0 for number in (start, stop, pad)):
        raise bad_field(name, "start, stop and padding in bytes", fields[2:])
    slot = Slot(dtype, shape, start, stop)
    if slot.nbytes + pad != stop - start or start % dtype.itemsize:
        raise bad_field(name, f"{slot.nbytes} bytes and padding from start to stop", fields[2:])
    return slot


def _check_shares(slots: list[Slot], nbytes: int, name: str) -> None:
    position = 0
    filled = [slot for slot in slots if slot.stop != slot.start]
    for slot in sorted(filled, key=lambda slot: slot.start):
        if slot.start != position:
            raise bad_field(name, f"a leaf that starts at byte {position}", slot.start)
        position = slot.stop
    if position != nbytes:
        raise DamagedFileError(
            f"expected {position} bytes of leaves in {name}, found {nbytes}: the file was cut "
            "short or altered; restore it, nothing was loaded"
        )

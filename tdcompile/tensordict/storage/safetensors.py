"""Tensordicts in safetensors files.

Key names: :func:`to_safetensors`, :func:`from_safetensors`.

The format is a length of 8 bytes, a JSON header that says where each tensor is, and the tensors;
no library is needed. Each tensor has its nested key joined with ``"."`` as its name; the structure
is JSON in the metadata of the file, as the ``tensordict`` package writes it.

Invariant: a file holds no code; a class is found among those that the program has; a tensor is made
only of bytes that are inside the file.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any

import torch
from torch import Tensor

from tdcompile.errors import DamagedFileError
from tdcompile.tensordict.base import TensorDictBase
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.dense import TensorDict
from tdcompile.tensordict.keys import format_entry
from tdcompile.tensordict.nontensor.data import NonTensorData
from tdcompile.tensordict.nontensor.unbatched import UnbatchedTensor
from tdcompile.tensordict.storage import values
from tdcompile.tensordict.storage.archive import iterate_chunks
from tdcompile.tensordict.storage.kinds import class_of_dense
from tdcompile.tensordict.storage.memmap_tensor import absolute, draft_name
from tdcompile.tensordict.storage.paths import (
    bad_field,
    missing_file,
    nbytes_of,
    parse_names,
    parse_shape,
    read_json,
    short_file,
)

_FIELD = "tensordict"
_METADATA = "__metadata__"
_LENGTH = struct.Struct("<Q")
_MAX_HEADER_BYTES = 100_000_000  # as in the format's own library
_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def to_safetensors(data: Any, path: Any) -> None:
    """Save a tensordict to a safetensors file; replaced if it is there.

    Args:
        data: a tensordict or tensorclass.
        path: the file.

    Raises:
        TypeError: for a value that JSON does not keep, or a tensor that the format has no dtype or
            layout for.
        ValueError: if two keys have one name once they are joined.
    """
    tensors: dict[str, Tensor] = {}
    if not isinstance(data, TensorCollection):
        raise TypeError(f"expected a tensordict, found {type(data).__name__}")
    root = _encode(data, (), tensors)
    # Wide dtypes first, so that each tensor starts at a multiple of its item size.
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {_METADATA: {_FIELD: json.dumps({"version": 1, "root": root})}}
    position = 0
    for name in order:
        tensor = tensors[name]
        stop = position + nbytes_of(tensor.shape, tensor.dtype)
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [position, stop],
        }
        position = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    target = os.path.realpath(path)
    draft = draft_name(target)
    try:
        with open(draft, "xb") as file:
            file.write(_LENGTH.pack(len(text)) + text)
            for name in order:
                for chunk in iterate_chunks(tensors[name]):
                    file.write(chunk)
        os.replace(draft, target)
    finally:
        if os.path.lexists(draft):
            os.unlink(draft)


def _encode(td: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> dict[str, Any]:
    if hasattr(td, "tensordicts"):
        where = f" at {format_entry(path)}" if path else ""
        raise TypeError(
            f"expected dense tensordicts, found a lazy stack{where}: make it dense first, with "
            "td.densify() or torch.stack(td.unbind(dim), dim)"
        )
    keys: dict[str, Any] = {}
    for key, value in td._entries.items():
        here = (*path, key)
        if isinstance(value, Tensor):
            keys[key] = _encode_tensor(value, here, tensors)
        elif isinstance(value, TensorCollection):
            keys[key] = {"td": _encode(value, here, tensors)}
        elif isinstance(value, NonTensorData) and values.tuple_paths(value.data) == []:
            keys[key] = {"non_tensor": value.data}
        else:
            raise TypeError(
                f"expected a value that JSON keeps as it is, found {type(value).__name__} at "
                f"{format_entry(here)}: exclude the entry"
            )
    level: dict[str, Any] = {"batch_size": list(td.batch_size)}
    if td._names is not None:
        level["names"] = list(td._names)
    if not isinstance(td, TensorDictBase):
        level["class"] = str(type(td))
    return {**level, "keys": keys}


def _encode_tensor(
    value: Tensor, path: tuple[str, ...], tensors: dict[str, Tensor]
) -> dict[str, Any]:
    name = ".".join(path)
    if name in tensors or name == _METADATA:
        raise ValueError(
            f"expected keys with names of their own, found two that are {name!r} once joined with "
            "a point (or a name that the format uses): rename one"
        )
    if value.is_nested or value.layout != torch.strided:
        raise TypeError(f"expected a strided tensor, found another at {format_entry(path)}")
    if value.dtype not in _NAMES:
        raise TypeError(
            f"expected one of the dtypes {sorted(_NAMES.values())}, found {value.dtype} at "
            f"{format_entry(path)}: cast the entry"
        )
    tensors[name] = value
    is_unbatched = isinstance(value, UnbatchedTensor)
    return {"tensor": name, "unbatched": True} if is_unbatched else {"tensor": name}


def from_safetensors(path: Any, *, device: Any = None) -> Any:
    """Load a tensordict from a safetensors file; its tensors are views of a copy-on-write mapping.

    A file without our metadata (a model checkpoint) becomes nested tensordicts without batch size:
    each name is split at its points.

    Args:
        path: the file.
        device: where the tensors go, and the device of the result.

    Raises:
        DamagedFileError: if the file is missing, cut short, or its header makes no sense.
    """
    from tdcompile.tensordict.metadata import as_device

    name = str(absolute(path))
    place = None if device is None else as_device(device)
    header, start = _read_header(name)
    extra = header.pop(_METADATA, {})
    tensors = _map_tensors(name, header, start)
    if place is not None:
        tensors = {key: tensor.to(place) for key, tensor in tensors.items()}
    if isinstance(extra, dict) and isinstance(extra.get(_FIELD), str):
        meta = read_json(extra[_FIELD].encode(), name)
        return _decode(meta.get("root"), tensors, place, name)
    root = TensorDict._from_entries({}, torch.Size(()), place)
    for key in sorted(tensors):
        root._set_path(tuple(key.split(".")), tensors[key])
    return root


def _read_header(name: str) -> tuple[dict[str, Any], int]:
    """Return the header of a file and where the tensors start."""
    if not os.path.isfile(name):
        raise missing_file(name)
    size = os.path.getsize(name)
    if size < _LENGTH.size:
        raise short_file(name, _LENGTH.size, size)
    with open(name, "rb") as file:
        (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
        if length > min(_MAX_HEADER_BYTES, size - _LENGTH.size):
            raise DamagedFileError(
                f"expected a safetensors file at {name}, found that its header would take {length} "
                f"of {size} bytes: the file was cut short or is another one"
            )
        return read_json(file.read(length), name), _LENGTH.size + length


def _map_tensors(name: str, header: dict[str, Any], start: int) -> dict[str, Tensor]:
    size = os.path.getsize(name)
    found: dict[str, tuple[torch.dtype, torch.Size, int]] = {}
    shares: list[tuple[int, int]] = []
    for key, item in header.items():
        where = f"{name}, entry {key!r}"
        fields = item if isinstance(item, dict) else {}
        dtype, shape = _DTYPES.get(fields.get("dtype", "")), parse_shape(fields.get("shape"), where)
        offsets = fields.get("data_offsets")
        if dtype is None:
            raise bad_field(where, f"one of the dtypes {sorted(_DTYPES)}", fields.get("dtype"))
        if (
            not isinstance(offsets, list)
            or len(offsets) != 2
            or not all(type(offset) is int and offset >= 0 for offset in offsets)
            or offsets[1] - offsets[0] != nbytes_of(shape, dtype)
        ):
            raise bad_field(where, f"{nbytes_of(shape, dtype)} bytes from start to stop", offsets)
        found[key] = (dtype, shape, start + offsets[0])
        shares.append((offsets[0], offsets[1]))
    position = 0
    for first, last in sorted(shares):
        if first != position:
            raise bad_field(name, f"a tensor that starts at byte {position}", first)
        position = last
    if start + position != size:
        raise short_file(name, start + position, size)
    if not position:
        return {key: torch.empty(shape, dtype=dtype) for key, (dtype, shape, _) in found.items()}
    storage = torch.UntypedStorage.from_file(name, False, size)
    whole = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (size,))  # type: ignore[call-overload]
    return {key: _view(whole, *place) for key, place in found.items()}


def _view(whole: Tensor, dtype: torch.dtype, shape: torch.Size, start: int) -> Tensor:
    part = whole[start : start + nbytes_of(shape, dtype)]
    if start % dtype.itemsize:
        part = part.clone()
    return part.view(dtype).view(shape)


def _decode(level: Any, tensors: dict[str, Tensor], device: Any, name: str) -> Any:
    if not isinstance(level, dict) or not isinstance(level.get("keys"), dict):
        raise bad_field(name, "batch size and keys of a tensordict", level)
    size = parse_shape(level.get("batch_size"), name)
    names = parse_names(level.get("names"), len(size), name)
    entries: dict[str, Any] = {}
    for key, item in level["keys"].items():
        where = f"{name}, entry {key!r}"
        if not isinstance(item, dict):
            raise bad_field(where, "a tensor, a tensordict or a value", item)
        if "tensor" in item:
            tensor = tensors.get(item["tensor"]) if isinstance(item["tensor"], str) else None
            if tensor is None:
                raise bad_field(where, "the name of a tensor in the file", item["tensor"])
            if item.get("unbatched"):
                entries[key] = UnbatchedTensor(tensor, batch_size=size)
                continue
            if tensor.shape[: len(size)] != size:
                raise bad_field(where, f"a shape that starts with {list(size)}", list(tensor.shape))
            entries[key] = tensor
        elif "td" in item:
            entries[key] = _decode(item["td"], tensors, device, where)
        elif "non_tensor" in item:
            entries[key] = NonTensorData(item["non_tensor"], size)
        else:
            raise bad_field(where, "a tensor, a tensordict or a value", item)
    dense = TensorDict._from_entries(entries, size, device, names)
    if "class" not in level:
        return dense
    cls = values.find_class(level["class"])
    if cls is None:
        raise bad_field(name, "a class that the program has (import its module)", level["class"])
    return class_of_dense(cls, dense)

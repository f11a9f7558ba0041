"""Tensordicts in safetensors files.

Key names: :func:`to_safetensors`, :func:`from_safetensors`.

Each tensor has its nested key joined with ``"."`` as its name; the structure is JSON in the
metadata of the file, as the ``tensordict`` package writes it.

Invariant: a file holds no code; a class is found among those that the program has.
"""

from __future__ import annotations

import json
import os
from typing import Any

import torch
from torch import Tensor

from tdcompile.errors import DamagedFileError
from tdcompile.tensordict.base import TensorDictBase
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.dense import TensorDict
from tdcompile.tensordict.keys import format_entry
from tdcompile.tensordict.nontensor import NonTensorData
from tdcompile.tensordict.storage import values
from tdcompile.tensordict.storage.kinds import class_of_dense
from tdcompile.tensordict.storage.memmap_tensor import draft_name
from tdcompile.tensordict.storage.paths import (
    bad_field,
    missing_file,
    parse_names,
    parse_shape,
    read_json,
)

_FIELD = "tensordict"


def _library() -> Any:
    try:
        import safetensors.torch as library  # type: ignore[import-not-found]
    except ImportError as error:
        raise ImportError(
            "expected the safetensors package, found none: install it with pip install safetensors"
        ) from error
    return library


def to_safetensors(data: Any, path: Any) -> None:
    """Save a tensordict to a safetensors file; replaced if it is there.

    Args:
        data: a tensordict or tensorclass.
        path: the file.

    Raises:
        ImportError: without the ``safetensors`` package.
        TypeError: for a value that JSON does not keep, or a tensor that is not strided.
        ValueError: if two keys have one name once they are joined.
    """
    library = _library()
    tensors: dict[str, Tensor] = {}
    if not isinstance(data, TensorCollection):
        raise TypeError(f"expected a tensordict, found {type(data).__name__}")
    root = _encode(data, (), tensors)
    target = os.path.realpath(path)
    draft = draft_name(target)
    try:
        metadata = {_FIELD: json.dumps({"version": 1, "root": root})}
        library.save_file(tensors, draft, metadata=metadata)
        os.replace(draft, target)
    finally:
        if os.path.lexists(draft):
            os.unlink(draft)


def _encode(td: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> dict[str, Any]:
    if hasattr(td, "tensordicts"):
        raise TypeError(
            f"expected dense tensordicts, found a lazy stack at {format_entry(path)}: "
            "make it dense first, with td.densify() or torch.stack(td.unbind(d), d)"
        )
    keys: dict[str, Any] = {}
    for key, value in td._entries.items():
        here = (*path, key)
        if isinstance(value, Tensor):
            name = ".".join(here)
            if name in tensors:
                raise ValueError(
                    f"expected keys with names of their own, found two that are {name!r} once "
                    "joined with a point: rename one"
                )
            if value.layout != torch.strided or value.is_nested:
                raise TypeError(f"expected a strided tensor, found another at {format_entry(here)}")
            plain = value.detach().as_subclass(Tensor).to("cpu")
            # A copy each: the format refuses tensors that share memory.
            tensors[name] = plain.contiguous().clone()
            keys[key] = {"tensor": name}
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


def from_safetensors(path: Any, *, device: Any = None) -> Any:
    """Load a tensordict from a safetensors file.

    A file without our metadata (a model checkpoint) becomes nested tensordicts without batch size:
    each name is split at its points.

    Args:
        path: the file.
        device: where the tensors go, and the device of the result.

    Raises:
        ImportError: without the ``safetensors`` package.
        DamagedFileError: if the file is missing, cut short, or its metadata makes no sense.
    """
    _library()
    from safetensors import SafetensorError, safe_open

    from tdcompile.tensordict.metadata import as_device

    name = str(path)
    if not os.path.isfile(path):
        raise missing_file(name)
    place = None if device is None else as_device(device)
    try:
        with safe_open(name, framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, OSError) as error:
        raise DamagedFileError(
            f"expected a safetensors file at {name}, found what does not load: {error}"
        ) from error
    if place is not None:
        tensors = {key: tensor.to(place) for key, tensor in tensors.items()}
    if _FIELD in metadata:
        meta = read_json(metadata[_FIELD].encode(), name)
        return _decode(meta.get("root"), tensors, place, name)
    root = TensorDict._from_entries({}, torch.Size(()), place)
    for key in sorted(tensors):
        root._set_path(tuple(key.split(".")), tensors[key])
    return root


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

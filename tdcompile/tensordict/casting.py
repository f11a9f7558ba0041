"""Dtype and device of all leaves: casts, ``to``, and what they are.

Key names: :class:`CastingMixin`, :data:`CASTS` (method name to dtype).

Invariants: a leaf that has the dtype and the device already is shared, not copied; results of
casts are locked where we are (but for ``type``); nothing is moved or cast unless it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.lazy.elements import each_element, element_rows, tensor_leaves
from tdcompile.tensordict.storage.flat import movable_layout_of

CASTS: dict[str, torch.dtype] = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "uint32": torch.uint32,
    "uint64": torch.uint64,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int": torch.int32,
    "int64": torch.int64,
    "long": torch.int64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
    "float32": torch.float32,
    "float": torch.float32,
    "float64": torch.float64,
    "double": torch.float64,
    "complex32": torch.complex32,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
    "qint8": torch.qint8,
    "qint32": torch.qint32,
    "quint8": torch.quint8,
    "quint4x2": torch.quint4x2,
}
"""Method name to the dtype that it gives all leaves."""

_Filter = Callable[[tuple[str, ...], Tensor], bool]


class CastingMixin:
    """Casts (``float``, ``half``, ``int64`` ...), moves, and the dtype and device of all leaves."""

    __slots__ = ()

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Return a tensordict whose leaves have another device or dtype.

        Args:
            args: a device, a dtype, both in this order; or a tensor or a tensordict whose device
                and dtype are taken (of a tensordict: the dtype that all its leaves share).
            kwargs: the same by name (``device``, ``dtype``, ``other``), and ``batch_size`` (of the
                result), ``non_blocking``, ``inplace`` (put the new leaves into this tensordict),
                ``non_blocking_pin`` and ``num_threads`` (pin host memory first), and
                ``cast_filter`` (gets the key path and a leaf, and tells whether to cast it).

        Returns:
            Self if nothing is to do; otherwise a new tensordict, locked if we are, that shares the
            leaves that need no change.

        Raises:
            TypeError: if an argument is none of these.
            TensorDictShapeError: if a leaf does not fit `batch_size`.

        Example:
            >>> TensorDict({"a": torch.ones(3)}, [3]).to(torch.float64)["a"].dtype
            torch.float64
        """
        device, dtype, batch_size = _parse_to(args, kwargs)
        cast_filter = kwargs.get("cast_filter", self._cast_filter)
        if dtype is not None and cast_filter is not None:
            how = {name: kwargs[name] for name in _HOW_TO_MOVE if name in kwargs}
            moved = self.to(device=device, batch_size=batch_size, **how)
            result = _cast(moved, lambda leaf: leaf.to(dtype), cast_filter)
            return _take_over(self, result) if kwargs.get("inplace") else result
        non_blocking = bool(kwargs.get("non_blocking", False))
        moves = device is not None and device != self._device
        if not moves and dtype is None and batch_size is None:
            return self
        if kwargs.get("non_blocking_pin"):
            return self.pin_memory().to(device, dtype, batch_size=batch_size, non_blocking=True)
        layout = movable_layout_of(self) if moves and dtype is None and batch_size is None else None
        if layout is not None and not kwargs.get("inplace"):
            from tdcompile.tensordict.storage.consolidated import moved

            return moved(self, layout, device, non_blocking)
        if moves or dtype is not None:
            place = device if moves else None
            result = _convert(self, place, dtype, non_blocking, device if moves else self._device)
        else:
            result = self.copy()
        if batch_size is not None:
            if self._is_stack:
                raise TypeError(
                    f"Cannot pass batch-size to a {type(self).__name__}, found {batch_size}: make "
                    "it dense first (to_tensordict())"
                )
            result.batch_size = torch.Size(batch_size)
        if kwargs.get("inplace"):
            return _take_over(self, result)
        if self._is_locked:
            result.lock_()
        return result

    def type(self: Any, dst_type: Any, *, cast_filter: _Filter | None = None) -> Any:
        """Return a tensordict with leaves of `dst_type`; never locked.

        Args:
            dst_type: a dtype, or the name of a tensor type (``"torch.IntTensor"``).
            cast_filter: gets the key path and the leaf, and tells whether to cast it.
        """
        return _cast_level(self, lambda leaf: leaf.type(dst_type), cast_filter, ())

    def cpu(self: Any, **kwargs: Any) -> Any:
        """Return a tensordict on the CPU; see :meth:`to`."""
        return self.to("cpu", **kwargs)

    def cuda(self: Any, device: Any = None, **kwargs: Any) -> Any:
        """Return a tensordict on a CUDA device, the current one by default; see :meth:`to`."""
        if device is None:
            device = "cuda"
        elif isinstance(device, int):
            device = torch.device("cuda", device)
        return self.to(device, **kwargs)

    def pin_memory(self: Any, num_threads: int | None = None, inplace: bool = False) -> Any:
        """Return a tensordict of leaves in pinned host memory."""
        result = _cast(self, Tensor.pin_memory, None)
        return _take_over(self, result) if inplace else result

    def pin_memory_(self: Any, num_threads: int = 0) -> Any:
        """Move all leaves to pinned host memory, in this tensordict."""
        return self.pin_memory(num_threads, inplace=True)

    @property
    def dtype(self: Any) -> torch.dtype | None:
        """The dtype of all leaves, or None if they differ or there are none."""
        found: torch.dtype | None = None
        for leaf in tensor_leaves(self):
            if found is None:
                found = leaf.dtype
            elif leaf.dtype != found:
                return None
        return found

    def is_floating_point(self: Any) -> bool:
        """Tell whether every leaf has a floating-point dtype."""
        return all(leaf.is_floating_point() for leaf in tensor_leaves(self))

    @property
    def is_cpu(self: Any) -> bool:
        """Tell whether the device is the CPU; False without a device."""
        return self._device is not None and self._device.type == "cpu"

    @property
    def is_cuda(self: Any) -> bool:
        """Tell whether the device is a CUDA device; False without a device."""
        return self._device is not None and self._device.type == "cuda"

    @property
    def is_meta(self: Any) -> bool:
        """Tell whether the device is the meta device; False without a device."""
        return self._device is not None and self._device.type == "meta"

    def auto_device_(self: Any) -> Any:
        """Note the device that all leaves share, in place; None if they differ."""
        found = None
        for leaf in tensor_leaves(self):
            if found is not None and leaf.device != found:
                return self.clear_device_()
            found = leaf.device
        _note_device(self, found)
        return self

    def clear_device_(self: Any) -> Any:
        """Forget the device, in place; no leaf is moved."""
        _note_device(self, None)
        return self

    def param_count(self: Any, *, count_duplicates: bool = True) -> int:
        """Return the number of elements of all leaves.

        Args:
            count_duplicates: count a tensor under each key that it stands under.
        """
        leaves = tensor_leaves(self)
        if not count_duplicates:
            leaves = list({id(leaf): leaf for leaf in leaves}.values())
        return sum(leaf.numel() for leaf in leaves)

    def bytes(self: Any, *, count_duplicates: bool = True) -> int:
        """Return the size of all leaves in bytes.

        Args:
            count_duplicates: count a tensor under each key that it stands under.
        """
        leaves = tensor_leaves(self)
        if not count_duplicates:
            leaves = list({id(leaf): leaf for leaf in leaves}.values())
        return sum(leaf.nbytes for leaf in leaves)


_HOW_TO_MOVE = ("non_blocking", "non_blocking_pin", "num_threads")


def _parse_to(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Device, dtype and batch size out of the arguments of ``to``; None where not given."""
    known = (
        "device",
        "dtype",
        "other",
        "batch_size",
        "non_blocking",
        "non_blocking_pin",
        "inplace",
        "num_threads",
        "compact",
        "cast_filter",
    )
    for keyword in kwargs:
        if keyword not in known:
            raise TypeError(f"to() takes the keywords {known}, got an unexpected {keyword!r}.")
    device = kwargs.get("device")
    dtype = kwargs.get("dtype")
    batch_size = kwargs.get("batch_size")
    values = [*args]
    if kwargs.get("other") is not None:
        values.append(kwargs["other"])
    for value in values:
        if isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, (str, int, torch.device)) and not isinstance(value, bool):
            device = value
        elif isinstance(value, Tensor):
            device, dtype = value.device, value.dtype
        elif isinstance(value, TensorCollection):
            like: Any = value
            device = like.device if device is None else device
            dtype = like.dtype if dtype is None else dtype
        elif isinstance(value, torch.Size):
            batch_size = value
        elif value is not None:
            raise TypeError(
                "to() takes a device, a dtype, a tensor or a tensordict, got"
                f" {type(value).__name__}."
            )
    if device is not None and not isinstance(device, torch.device):
        device = torch.device(device)
    if device is not None and device.type == "cuda" and device.index is None:
        # The device of a tensor always has an index; without one they would never be equal.
        device = torch.device("cuda", torch.cuda.current_device())
    return device, dtype, batch_size


def _convert(td: Any, place: Any, dtype: Any, non_blocking: bool, device: Any) -> Any:
    if td._is_stack:
        return each_element(_convert, td, place, dtype, non_blocking, device)
    entries: dict[str, Any] = {}
    for key, value in td._entries.items():
        if isinstance(value, Tensor):
            entries[key] = value.to(device=place, dtype=dtype, non_blocking=non_blocking)
        elif isinstance(value, TensorCollection):
            nested: Any = value
            own = device if place is not None else nested._device
            entries[key] = _convert(nested, place, dtype, non_blocking, own)
        else:
            entries[key] = value._carried()
    return td._from_entries(entries, td._batch_size, device, td._names)


def _cast(td: Any, function: Callable[[Tensor], Tensor], cast_filter: _Filter | None) -> Any:
    result = _cast_level(td, function, cast_filter, ())
    if td._is_locked:
        result.lock_()
    return result


def _cast_level(
    td: Any,
    function: Callable[[Tensor], Tensor],
    cast_filter: _Filter | None,
    path: tuple[str, ...],
) -> Any:
    if td._is_stack:
        return each_element(_cast_level, td, function, cast_filter, path)
    entries: dict[str, Any] = {}
    for key, value in td._entries.items():
        if isinstance(value, Tensor):
            wanted = cast_filter is None or cast_filter(_key(path, key), value)
            entries[key] = function(value) if wanted else value
        elif isinstance(value, TensorCollection):
            entries[key] = _cast_level(value, function, cast_filter, (*path, key))
        else:
            entries[key] = value._carried()
    return td._from_entries(entries, td._batch_size, td._device, td._names)


def _key(path: tuple[str, ...], key: str) -> tuple[str, ...]:
    return (*path, key)


def _take_over(td: Any, result: Any) -> Any:
    """Put entries and metadata of `result` into `td`, nested tensordicts included."""
    if td._is_stack:
        for own, new in element_rows(td, (td, result)):
            _take_over(own, new)
        return td
    for key, value in result._entries.items():
        own = td._entries.get(key)
        if isinstance(own, TensorCollection) and isinstance(value, TensorCollection):
            _take_over(own, value)
        else:
            td._entries[key] = value
    td._batch_size = result._batch_size
    td._device = result._device
    td._names = result._names
    return td


def _note_device(td: Any, device: Any) -> None:
    if td._is_stack:
        for element in td.tensordicts:
            _note_device(element, device)
        return
    td._device = device
    for value in td._entries.values():
        if isinstance(value, TensorCollection):
            _note_device(value, device)


def _cast_method(dtype: torch.dtype) -> Callable[..., Any]:
    def method(self: Any, *, cast_filter: _Filter | None = None) -> Any:
        if cast_filter is None:
            result = _convert(self, None, dtype, False, self._device)
            if self._is_locked:
                result.lock_()
            return result
        return _cast(self, lambda leaf: leaf.to(dtype), cast_filter)

    return method


def _install(name: str, dtype: torch.dtype) -> None:
    method = _cast_method(dtype)
    method.__name__ = name
    method.__qualname__ = f"CastingMixin.{name}"
    method.__doc__ = (
        f"Return a tensordict whose leaves have the dtype ``{dtype}``; locked if we are.\n\n"
        "        ``cast_filter(key_path, leaf)`` may leave leaves as they are."
    )
    setattr(CastingMixin, name, method)


for _name, _dtype in CASTS.items():
    _install(_name, _dtype)

"""How a tensordict prints: one line a leaf with dtype and trailing dimensions.

Key names: :class:`PrintingMixin`.

Invariant: printing reads metadata only, never values, so it works under tracing and on any device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdcompile.tensordict.nontensor import NonTensorData

_MAX_WIDTH = 80

# dtype -> short name, by kind and width in bits, such as f32 or i64.
_KINDS = {"float": "f", "bfloat": "bf", "complex": "c", "int": "i", "uint": "u"}


class PrintingMixin:
    """``repr`` of a tensordict."""

    __slots__ = ()

    if TYPE_CHECKING:
        _entries: dict[str, Any]
        _batch_size: torch.Size
        _device: torch.device | None
        _names: tuple[str | None, ...] | None

    def __repr__(self) -> str:
        """Show batch size, device and each entry (sorted by key) with dtype and trailing shape.

        Example:
            >>> TensorDict({"a": torch.zeros(3, 2)}, batch_size=[3])
            TensorDict(batch_size=[3], fields={a: f32[2]})
        """
        head = f"batch_size={_shape(self._batch_size)}"
        if self._device is not None:
            head += f", device={self._device}"
        fields = [
            f"{name}: {_describe(value, self)}" for name, value in sorted(self._entries.items())
        ]
        name = type(self).__name__
        line = f"{name}({head}, fields={{{', '.join(fields)}}})"
        if len(line) <= _MAX_WIDTH and len(fields) <= 2:
            return line
        body = ",\n    ".join(fields)
        return f"{name}({head}, fields={{\n    {body}}})"


def _shape(size: Any) -> str:
    return "[" + ",".join(str(dim) for dim in size) + "]"


def _dtype(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    kind = name.rstrip("0123456789")
    if kind in _KINDS and kind != name:
        return _KINDS[kind] + name[len(kind) :]
    return name


def _describe(value: Any, parent: Any) -> str:
    ndim = len(parent._batch_size)
    if isinstance(value, Tensor):
        return f"{_dtype(value.dtype)}{_shape(value.shape[ndim:])}"
    if isinstance(value, NonTensorData):
        return type(value.data).__name__
    extra = value._batch_size[ndim:]
    inner = ", ".join(f"{name}: {_describe(v, value)}" for name, v in sorted(value._entries.items()))
    return f"{_shape(extra) if extra else ''}{{{inner}}}"

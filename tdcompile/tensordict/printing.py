"""How a tensordict prints: one line a leaf with dtype and trailing dimensions.

Key names: :class:`PrintingMixin`.

Invariant: printing reads metadata only, never values, so it works under tracing and on any device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.nontensor.data import NonTensorData, NonTensorEntry
from tdcompile.tensordict.nontensor.unbatched import UnbatchedTensor
from tdcompile.tensordict.printoptions import OPTIONS, detailed, sorted_keys
from tdcompile.tensordict.state import TensorDictState

_MAX_WIDTH = 80
_INDENT = 4

# Kind of a dtype -> its short form; the width in bits follows, as in f32 or i64.
_SHORT_KINDS = {"bfloat": "bf", "complex": "c", "float": "f", "int": "i", "uint": "u"}


class PrintingMixin(TensorDictState):
    """``repr`` of a tensordict."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Show batch size, device and each entry (sorted by key) with dtype and trailing shape.

        Example:
            >>> TensorDict({"a": torch.zeros(3, 2)}, batch_size=[3])
            TensorDict(batch_size=[3], fields={a: f32[2]})
        """
        if not OPTIONS["compact"]:
            return detailed(self)
        td: Any = self
        about: list[str] = []
        if OPTIONS["show_batch_size"]:
            about.append(f"batch_size={_shape(self._batch_size)}")
        if OPTIONS["show_device"] and self._device is not None:
            about.append(f"device={self._device}")
        if td._is_stack:
            about.append(f"stack_dim={td.stack_dim}")
        head = f"{type(self).__name__}({''.join(part + ', ' for part in about)}fields="
        text = f"{head}{_fields(self, 0, len(head) + 1)}"
        return f"{text}{_exclusive_fields(self, text) if td._is_stack else ''})"


def _fields(td: Any, level: int, used: int) -> str:
    """Return the entries of `td` in braces; on lines of their own if they would be too wide.

    Args:
        td: a tensordict.
        level: how deep it is nested.
        used: characters already on the line.
    """
    names = _names_to_show(td)
    line = "{" + ", ".join(_describe(td, name, None) for name in names) + "}"
    if "\n" not in line and used + len(line) <= _MAX_WIDTH:
        return line
    pad = "\n" + " " * (_INDENT * (level + 1))
    return "{" + ",".join(pad + _describe(td, name, level + 1) for name in names) + "}"


def _exclusive_fields(stack: Any, text: str) -> str:
    """Return what only some elements of a lazy stack have, by number of the element."""
    elements = [
        f"{i}: {{{', '.join(_describe(stack.tensordicts[i], key, None) for key in sorted(keys))}}}"
        for i, keys in stack._exclusive_keys().items()
    ]
    if not elements:
        return ""
    head = ", exclusive_fields={"
    line = ", ".join(elements)
    used = len(text) - text.rfind("\n") - 1
    if used + len(head) + len(line) + 2 <= _MAX_WIDTH:
        return f"{head}{line}}}"
    pad = "\n" + " " * _INDENT
    return head + ",".join(pad + element for element in elements) + "}"


def _names_to_show(td: Any) -> list[str]:
    """Return the keys in order, then the fields of a tensorclass that have no value."""
    names = sorted_keys(td)
    schema = td.__tensorclass_schema__
    if schema is not None and schema.known is not None:
        names += [name for name in schema.names if name not in td._entries]
    return names


def _describe(td: Any, name: str, level: int | None) -> str:
    ndim = len(td._batch_size)
    if td._is_stack:
        value = td._first()._entries[name]
        if isinstance(value, Tensor):
            return f"{name}: {_short_dtype(value.dtype)}{_shape(td.get_item_shape(name)[ndim:])}"
    value = td._entries.get(name)
    if isinstance(value, Tensor):
        device = value.device
        at = f"@{device}" if td._device is None and device.type != "cpu" else ""
        shape = value.shape if type(value) is UnbatchedTensor else value.shape[ndim:]
        return f"{name}: {_short_dtype(value.dtype)}{_shape(shape)}{at}"
    if isinstance(value, NonTensorData):
        return f"{name}: {type(value.data).__name__}"
    if isinstance(value, NonTensorEntry):
        return f"{name}: {type(value).__name__}"
    if not isinstance(value, TensorCollection):
        # A pytree of placeholders, such as the dimensions that vmap maps over.
        return f"{name}: {value!r}"
    extra = value._batch_size[ndim:]  # type: ignore[attr-defined]
    schema = value.__tensorclass_schema__  # type: ignore[attr-defined]
    is_own_kind = value._is_stack and not td._is_stack
    kind = type(value).__name__ if schema is not None or is_own_kind else ""
    head = f"{name}: {kind}{_shape(extra) if extra else ''}"
    if level is None:
        inner = ", ".join(_describe(value, key, None) for key in _names_to_show(value))
        return head + "{" + inner + "}"
    return head + _fields(value, level, _INDENT * level + len(head) + 1)


def _shape(size: Any) -> str:
    return "[" + ",".join(str(dim) for dim in size) + "]"


def _short_dtype(dtype: torch.dtype) -> str:
    if not OPTIONS["show_dtype"]:
        return ""
    name = str(dtype).removeprefix("torch.")
    for kind, short in _SHORT_KINDS.items():
        if name.startswith(kind) and name[len(kind) : len(kind) + 1].isdigit():
            return short + name[len(kind) :]
    return name

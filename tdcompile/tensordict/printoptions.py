"""What ``repr`` of a tensordict shows, and its detailed form.

Key names: :class:`set_printoptions`, :func:`get_printoptions`, :func:`detailed`.

Invariant: options are those of the process, not of a thread; printing reads values with
``plain=True`` only.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.nontensor.data import NonTensorData

__all__ = ["detailed", "get_printoptions", "set_printoptions"]

OPTIONS: dict[str, Any] = {
    "show_batch_size": True,
    "show_device": True,
    "show_is_shared": True,
    "show_shape": True,
    "show_field_device": True,
    "show_dtype": True,
    "show_field_is_shared": True,
    "show_grad": False,
    "show_is_contiguous": False,
    "show_is_view": False,
    "show_storage_size": False,
    "plain": False,
    "sort_keys": "alphabetical",
    "compact": True,
    "html": True,
}
_COMPACT = ("show_batch_size", "show_device", "show_dtype", "sort_keys", "compact", "html")
_TERSE = (
    "show_device",
    "show_dtype",
    "show_is_shared",
    "show_field_device",
    "show_field_is_shared",
)


def get_printoptions() -> dict[str, Any]:
    """Return a copy of the options, see :class:`set_printoptions`."""
    return dict(OPTIONS)


class set_printoptions(contextlib.ContextDecorator):  # the name is the package's
    """Change what ``repr`` of a tensordict shows: in a block, in a function, or from now on.

    Args:
        verbose: with ``False``, hide devices, dtypes and what is shared, unless asked for.
        **kwargs: ``show_batch_size``, ``show_device``, ``show_dtype`` and ``sort_keys``
            (``"alphabetical"``, ``"insertion"`` or a function of a key) for both forms;
            ``compact=False`` for the detailed form; ``show_is_shared``, ``show_shape``,
            ``show_field_device``, ``show_field_is_shared``, ``show_grad``,
            ``show_is_contiguous``, ``show_is_view``, ``show_storage_size`` and ``plain`` (mean and
            deviation, or least and greatest value) of the detailed form, which they choose.

    Raises:
        TypeError: for an unknown option.

    Example:
        >>> with set_printoptions(show_dtype=False):
        ...     TensorDict({"a": torch.zeros(3, 2)}, batch_size=[3])
        TensorDict(batch_size=[3], fields={a: [2]})
    """

    def __init__(self, *, verbose: bool = True, **kwargs: Any) -> None:
        unknown = kwargs.keys() - OPTIONS.keys()
        if unknown:
            raise TypeError(
                f"Unknown printoptions {sorted(unknown)}: expected some of {sorted(OPTIONS)}"
            )
        chosen = {} if verbose else dict.fromkeys(_TERSE, False)
        if "compact" not in kwargs and any(name not in _COMPACT for name in kwargs):
            chosen["compact"] = False
        self._chosen = chosen | kwargs
        self._before: list[dict[str, Any]] = []

    def set(self) -> None:
        """Change the options until something else is set."""
        self._before.append(dict(OPTIONS))
        OPTIONS.update(self._chosen)

    def __enter__(self) -> None:
        """Change the options; leaving the block restores them."""
        self.set()

    def __exit__(self, *exc: object) -> None:
        OPTIONS.update(self._before.pop())


def sorted_keys(td: Any) -> list[str]:
    """Return the keys of a tensordict in the order that was chosen."""
    order = OPTIONS["sort_keys"]
    if callable(order):
        return sorted(td._entries, key=order)
    return sorted(td._entries) if order == "alphabetical" else list(td._entries)


def detailed(td: Any) -> str:
    """Return the form with a line for each entry, its full shape and what was asked for."""
    schema = td.__tensorclass_schema__
    glue = ": " if schema is None else "="
    lines = [f"{name}{glue}{_entry(td, name)}" for name in sorted_keys(td)]
    if schema is None:
        lines = [f"fields={_braces(lines)}"]
    if td._is_stack:
        exclusive = td._exclusive_keys()
        parts = [
            f"{i} ->" + _block([f"{key}: {_entry(td.tensordicts[i], key)}" for key in sorted(keys)])
            for i, keys in exclusive.items()
        ]
        lines.append(f"exclusive_fields={_braces(parts)}")
    if OPTIONS["show_batch_size"]:
        lines.append(f"batch_size={td.batch_size}")
    if OPTIONS["show_device"]:
        lines.append(f"device={td.device}")
    if OPTIONS["show_is_shared"]:
        lines.append(f"is_shared={td.is_shared()}")
    if td._is_stack:
        lines.append(f"stack_dim={td.stack_dim}")
    return f"{type(td).__name__}({_block(lines)})"


def _block(lines: list[str]) -> str:
    return ",".join("\n    " + line.replace("\n", "\n    ") for line in lines)


def _braces(lines: list[str]) -> str:
    return "{" + (_block(lines) if lines else "\n") + "}"


def _entry(td: Any, name: str) -> str:
    value = td.get(name)
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, NonTensorData):
        return (
            f"NonTensorData(data={value.data}, batch_size={value.batch_size}, device={td.device})"
        )
    return detailed(value) if isinstance(value, TensorCollection) else repr(value)


def _tensor(value: Tensor) -> str:
    about = {
        "show_shape": lambda: f"shape={value.shape}",
        "show_field_device": lambda: f"device={value.device}",
        "show_dtype": lambda: f"dtype={value.dtype}",
        "show_field_is_shared": lambda: f"is_shared={value.is_shared()}",  # type: ignore[no-untyped-call]
        "show_grad": lambda: f"requires_grad={value.requires_grad}",
        "show_is_contiguous": lambda: f"is_contiguous={value.is_contiguous()}",
        "show_is_view": lambda: f"is_view={value._base is not None}",
        "show_storage_size": lambda: f"storage_size={value.untyped_storage().nbytes()}",
        "plain": lambda: _statistics(value),
    }
    parts = [text() for option, text in about.items() if OPTIONS[option]]  # type: ignore[no-untyped-call]
    return f"{type(value).__name__}({', '.join(part for part in parts if part)})"


def _statistics(value: Tensor) -> str:
    if value.numel() == 0 or value.is_meta:
        return ""
    data = value.detach()
    if data.is_floating_point():
        spread = data.std(correction=0) if data.numel() == 1 else data.std()
        return f"mean={data.mean().item():.4g}, std={spread.item():.4g}"
    if data.dtype is torch.bool or data.is_complex():
        return ""
    return f"min={data.min().item()}, max={data.max().item()}"

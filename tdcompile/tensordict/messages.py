"""The errors that several files of the container raise, with their wording.

Key names: :func:`locked_error`, :func:`absent_error`, :func:`through_leaf_error`,
:func:`misfit_error`, :func:`require_fields`.

Invariant: a message says what was expected, what was found, at which key path, and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdcompile.errors import (
    KeyPathError,
    KeyThroughLeafError,
    LockedError,
    TensorDictShapeError,
    UnknownFieldError,
)
from tdcompile.tensordict.keys import format_entry, format_key
from tdcompile.tensordict.nontensor.data import NonTensorEntry

if TYPE_CHECKING:
    from torch import Tensor


def locked_error(path: Any) -> LockedError:
    """Make the error for a write to a locked tensordict."""
    what = f"write {format_entry(path)}" if path else "change the entries"
    return LockedError(
        f"Cannot modify locked TensorDict: expected an unlocked tensordict to {what}. Write in "
        "place (set_, update_, or inplace=True) or unlock the root first (td.unlock_())"
    )


def absent_error(node: Any, path: tuple[str, ...], depth: int) -> KeyPathError:
    """Make the error for ``path[depth]`` not being a key of `node`."""
    where = f" at {format_entry(path[:depth])}" if depth else ""
    return KeyPathError(
        f"key {format_key(path)} was not found in TensorDict with keys {list(node._entries)}{where}"
    )


def through_leaf_error(value: Any, path: tuple[str, ...]) -> KeyThroughLeafError:
    """Make the error for a path that goes on below ``path[0]``, which is the leaf `value`."""
    kind = "a non-tensor value" if isinstance(value, NonTensorEntry) else "a tensor"
    return KeyThroughLeafError(
        f"expected a tensordict at {path[0]!r} on the way to {format_key(path)}, found {kind}: "
        "shorten the key, or delete that entry first"
    )


def require_fields(cls: Any, keys: Any) -> None:
    """Raise unless all keys are fields of a class that allows no others.

    Raises:
        UnknownFieldError: if one is not.
    """
    schema = cls.__tensorclass_schema__
    if schema.known is None:
        return
    for key in keys:
        if key not in schema.known:
            raise UnknownFieldError(
                f"Cannot set the attribute {key!r}: expected one of the fields "
                f"{list(schema.names)} of {cls.__name__}. Declare it in the class, or use a plain "
                "tensordict (to_tensordict())"
            )


def misfit_error(node: Any, value: Tensor, path: Any, scalar: Any = None) -> TensorDictShapeError:
    """Make the error for a tensor (made of `scalar`) without the batch size of `node` in front."""
    size, shape = node._batch_size, value.shape
    entry = format_entry(path)
    if len(shape) < len(size):
        detail = f"it has {len(shape)} dimensions, at least {len(size)} are needed"
    else:
        dim = next(i for i in range(len(size)) if shape[i] != size[i])
        detail = f"dimension {dim} must be {size[dim]}, got {shape[dim]}"
    advice = "reshape the value, or change td.batch_size first"
    if isinstance(scalar, (bool, int, float)):
        advice = (
            f"a Python number is stored as a 0-d tensor; write torch.full({list(size)}, {scalar!r})"
            " or td.set_non_tensor(key, value)"
        )
    return TensorDictShapeError(
        f"batch dimension mismatch: expected {entry} to start with the batch size {list(size)}, "
        f"found shape {list(shape)}: {detail}; {advice}"
    )

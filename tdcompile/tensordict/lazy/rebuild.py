"""Lazy stacks made of stacked entries: what a compiled frame runs for each result, and asks first.

Key names: :func:`stack_rebuilder`, :func:`is_plain`, :func:`is_uniform`.

Symbols: ``*B`` batch dimensions of the stack, ``*F`` trailing dimensions of a leaf.

Invariant: stacking the entries of a uniform stack, and cutting them again, gives the same stack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdcompile.tensordict.dense import TensorDict
from tdcompile.tensordict.lazy.stack import LazyStackedTensorDict

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["is_plain", "is_uniform", "stack_rebuilder"]

_new = object.__new__


def is_plain(stack: LazyStackedTensorDict, stack_dim: int) -> bool:
    """Tell whether a stack has elements, along a dimension, and no hooks."""
    return (
        stack.stack_dim == stack_dim
        and stack.hook_in is None
        and stack.hook_out is None
        and len(stack.tensordicts) > 0
    )


def is_uniform(stack: LazyStackedTensorDict) -> bool:
    """Tell whether all elements are unlocked plain tensordicts that differ in values only."""
    first, *rest = stack.tensordicts
    return _is_plain_dense(first) and all(_is_alike(first, other) for other in rest)


def _is_plain_dense(td: Any) -> bool:
    if type(td) is not TensorDict or td._is_locked:
        return False
    return all(isinstance(v, Tensor) or _is_plain_dense(v) for v in td._entries.values())


def _is_alike(td: Any, other: Any) -> bool:
    if (
        type(other) is not TensorDict
        or other._is_locked
        or other._batch_size != td._batch_size
        or other._device != td._device
        or other._names != td._names
        or list(other._entries) != list(td._entries)
    ):
        return False
    for value, match in zip(td._entries.values(), other._entries.values(), strict=True):
        if isinstance(value, Tensor):
            if (
                not isinstance(match, Tensor)
                or match.shape != value.shape
                or match.dtype != value.dtype
                or match.requires_grad != value.requires_grad
            ):
                return False
        elif not _is_alike(value, match):
            return False
    return True


def stack_rebuilder(stack_dim: int) -> Callable[..., Any]:
    """Make the function that builds a lazy stack along `stack_dim` of stacked entries.

    Its arguments:
        entries: leaves ``(*B, *F)`` and lazy stacks along the same dimension.
        batch_size: ``(*B,)``.
        device: device of the elements, or None.
        names: one a batch dimension, or None.
        is_locked: lock the result.

    It returns a new lazy stack; the leaves of its elements are views of `entries`.
    """

    def rebuild(
        entries: dict[str, Any],
        batch_size: torch.Size,
        device: torch.device | None,
        names: tuple[str | None, ...] | None,
        is_locked: bool,
    ) -> Any:
        length = batch_size[stack_dim]
        size = torch.Size((*batch_size[:stack_dim], *batch_size[stack_dim + 1 :]))
        dim_name = None
        if names is not None:
            dim_name = names[stack_dim]
            names = (*names[:stack_dim], *names[stack_dim + 1 :])
            if all(name is None for name in names):
                names = None
        columns = {key: _column(value, stack_dim, length) for key, value in entries.items()}
        elements = [
            TensorDict._from_entries(
                {key: column[i] for key, column in columns.items()}, size, device, names
            )
            for i in range(length)
        ]
        stack: Any = _new(LazyStackedTensorDict)
        stack.tensordicts = elements
        stack.stack_dim = stack_dim
        stack.hook_out = None
        stack.hook_in = None
        stack._dim_name = dim_name
        stack._template = None
        stack._locked = False
        if is_locked:
            stack.lock_()
        return stack

    rebuild.stack_dim = stack_dim  # type: ignore[attr-defined]
    return rebuild


def _column(value: Any, stack_dim: int, length: int) -> Any:
    if not isinstance(value, Tensor):
        return value.tensordicts
    if value.requires_grad:
        # One view each: torch refuses to write in place into views that came in one call.
        return [value.select(stack_dim, i) for i in range(length)]
    return value.unbind(stack_dim)

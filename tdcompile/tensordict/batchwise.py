"""The loops behind shape operations and indexing: one description, done to every leaf.

Key names: :class:`BatchwiseMixin`. An operation is described to ``_map_leaves`` by a torch
function, its arguments, how the trailing dimensions of a leaf enter these (``tail_sizes``,
``tail_order``, ``tail_ones`` or not at all), the new leading sizes, and where each new dimension
came from (``Origin``). Operations with several results go through ``_pieces``.

Symbols: ``*B`` batch dimensions (``batch_size``), ``*F`` trailing dimensions of a leaf; a leaf is
``(*B, *F)``. Dimension numbers count batch dimensions only, negative ones from the last of these.

Invariants: trailing dimensions stay as they are; a nested tensordict keeps its further batch
dimensions; names follow their dimensions; the result of a locked tensordict is locked; sizes are
computed before any leaf is touched, so that they hold without leaves too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from tdcompile.errors import LockedError, TensorDictIndexError
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.names import Names, Origin, carry_names
from tdcompile.tensordict.nontensor.data import LeafKind
from tdcompile.tensordict.nontensor.unbatched import UnbatchedTensor

Ints = tuple[int, ...]


def view_leaf(leaf: Tensor, sizes: Ints) -> Tensor:
    """Return ``leaf.view(sizes)``."""
    # torch reads a row of integers twice as fast as one tuple; an empty row it does not take.
    return leaf.view(*sizes) if sizes else leaf.view(sizes)


# Operations whose result a ``with`` block writes back, see ``contexts.py``.
_UNDONE_BY_WITH = (
    view_leaf,
    torch.flatten,
    torch.flip,
    torch.permute,
    torch.squeeze,
    torch.transpose,
    torch.unflatten,
    torch.unsqueeze,
)
Tail = Callable[[Ints, torch.Size, int], Ints]


def tail_sizes(head: Ints, shape: torch.Size, batch_dims: int) -> Ints:
    """New leading sizes, then the sizes of the trailing dimensions."""
    return head + shape[batch_dims:]


def tail_order(head: Ints, shape: torch.Size, batch_dims: int) -> Ints:
    """A permutation of the batch dimensions, then the trailing dimensions in order."""
    return head + tuple(range(batch_dims, len(shape)))


def tail_ones(head: Ints, shape: torch.Size, batch_dims: int) -> Ints:
    """Repeats of the leading dimensions, then one for each trailing dimension."""
    return head + (1,) * (len(shape) - batch_dims)


class BatchwiseMixin:
    """What shape operations and indexing share."""

    __slots__ = ()

    _entries: dict[str, Any]
    _batch_size: torch.Size
    _device: torch.device | None
    _names: Names
    _is_locked: bool
    _from_entries: Callable[..., Self]
    _lock: Callable[[Any], None]

    def _map_leaves(
        self,
        op: Callable[..., Tensor],
        args: tuple[Any, ...],
        tail: Tail | None,
        sizes: torch.Size,
        origin: Origin,
        batch_dims: int,
    ) -> Self:
        """Apply a torch function to every leaf, nested ones included.

        Args:
            op: gets the leaf and `args`; or, with `tail`, the leaf and ``tail(args, shape, dims)``.
            args: arguments that are the same for every leaf.
            tail: extends `args` to the trailing dimensions of a leaf.
            sizes: what replaces the first `batch_dims` sizes of each leaf.
            origin: for each of `sizes` the dimension that it came from, or ``None``.
            batch_dims: number of batch dimensions of the outermost tensordict.
        """
        entries: dict[str, Any] = {}
        for key, value in self._entries.items():
            if isinstance(value, Tensor) and type(value) is not UnbatchedTensor:
                if tail is None:
                    entries[key] = op(value, *args)
                else:
                    entries[key] = op(value, tail(args, value.shape, batch_dims))
            elif isinstance(value, LeafKind):
                size = value._batch_size
                given = args if tail is None else (tail(args, size, batch_dims),)
                entries[key] = value._shaped(op, given, sizes + size[batch_dims:])
            else:
                entries[key] = value._map_leaves(op, args, tail, sizes, origin, batch_dims)
        return self._from_entries(
            entries,
            sizes + self._batch_size[batch_dims:],
            self._device,
            carry_names(self._names, origin, batch_dims),
        )

    def _pieces(self, lengths: Sequence[int] | None, dim: int) -> list[Self]:
        """Cut every leaf along `dim` into `lengths`, or into slices without that dimension."""
        batch_size = self._batch_size
        before = batch_size[:dim]
        after = batch_size[dim + 1 :]
        if lengths is None:
            batch_sizes = [torch.Size(before + after)] * batch_size[dim]
        else:
            batch_sizes = [torch.Size((*before, length, *after)) for length in lengths]
        parts: list[dict[str, Any]] = [{} for _ in batch_sizes]
        for key, value in self._entries.items():
            pieces: Sequence[Any]
            if isinstance(value, Tensor) and type(value) is not UnbatchedTensor:
                if lengths is None:
                    pieces = torch.unbind(value, dim)
                else:
                    pieces = torch.split_with_sizes(value, lengths, dim)
            elif isinstance(value, LeafKind):
                extra = value._batch_size[len(batch_size) :]
                pieces = value._cut(lengths, dim, [size + extra for size in batch_sizes])
            else:
                pieces = value._pieces(lengths, dim)
            for part, piece in zip(parts, pieces, strict=True):
                part[key] = piece
        names = self._names
        if names is not None and lengths is None:
            names = carry_names(names, dims_without(len(names), dim), len(names))
        device = self._device
        return [
            self._from_entries(part, size, device, names)
            for part, size in zip(parts, batch_sizes, strict=True)
        ]

    def _reshaped(
        self,
        op: Callable[..., Tensor],
        args: tuple[Any, ...],
        tail: Tail | None,
        sizes: Sequence[int],
        origin: Origin,
        inplace: bool = False,
    ) -> Self:
        """Run :meth:`_map_leaves` from the outermost tensordict, then lock or write back."""
        if inplace:
            check_unlocked(self)
        batch_dims = len(self._batch_size)
        result = self._map_leaves(op, args, tail, torch.Size(sizes), origin, batch_dims)
        if inplace:
            become(self, result)
            return self
        if self._is_locked:
            result._lock(None)
        if op in _UNDONE_BY_WITH:
            slots: Any = result  # mypy takes the empty __slots__ of a mixin for all there are
            slots._last_op = ("reshape", weakref.ref(self), (op, args, origin))
        return result

    def _batch_dim(self, dim: int, extra: int = 0) -> int:
        """Return `dim` counted from the first batch dimension."""
        count = len(self._batch_size) + extra
        if dim < -count or dim >= count:
            raise TensorDictIndexError(
                f"Incompatible dim {dim} for batch size {tuple(self._batch_size)}: expected one "
                f"from {-count} to {count - 1}. Dimensions of a tensordict are batch dimensions, "
                "leaves may have more"
            )
        return dim + count if dim < 0 else dim

    def _require_batch_dims(self, count: int, what: str) -> None:
        """Raise an error unless there are `count` batch dimensions."""
        if len(self._batch_size) < count:
            raise TensorDictIndexError(
                f"{what} requires at least {count} batch dimensions, found batch size "
                f"{tuple(self._batch_size)}"
            )

    def _batch_dim_list(self, dims: int | Sequence[int], what: str) -> list[int]:
        given = list(dims) if isinstance(dims, (tuple, list)) else [dims]
        result = [self._batch_dim(d) for d in given]  # type: ignore[arg-type]
        if len(set(result)) != len(result):
            raise TensorDictIndexError(
                f"repeated dim in {what}: expected dimensions that differ, found {given}"
            )
        return result

    def _same_dims(self) -> Origin:
        return tuple(range(len(self._batch_size)))


def become(td: Any, result: Any) -> None:
    """Let `td` take over the leaves, batch size and names of `result`, which has the same keys."""
    if td._is_stack:
        td._become(result)
        return
    entries = td._entries
    for key, value in result._entries.items():
        if isinstance(value, TensorCollection):
            become(entries[key], value)
        else:
            entries[key] = value
    td._batch_size = result._batch_size
    td._names = result._names


def dims_without(count: int, dim: int) -> Ints:
    """Return the dimension numbers below `count` but `dim`."""
    return (*range(dim), *range(dim + 1, count))


def product(sizes: Sequence[int]) -> int:
    """Multiply sizes, symbolic ones too."""
    result = 1
    for size in sizes:
        result = result * size
    return result


def read_sizes(name: str, shape: tuple[Any, ...], size: Any) -> Ints:
    """Read sizes that were given as integers, as one sequence, or by keyword."""
    if size is not None:
        if shape:
            raise TypeError(
                f"{name}: expected sizes either as arguments or as size=...; found {shape} "
                f"and {size}"
            )
        return tuple(size)
    if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        shape = tuple(shape[0])
    for item in shape:
        if isinstance(item, (float, str, tuple, list)) or item is None:
            raise TypeError(f"{name}: expected sizes that are integers; found {shape}")
    return shape


def check_unlocked(td: Any) -> None:
    """Raise a ``LockedError`` if `td` or a tensordict nested in it is locked."""
    if td._is_locked:
        raise LockedError(
            "expected an unlocked tensordict, to give it another batch size in place; found a "
            "locked one: call it without inplace=True, or unlock_() first"
        )
    for value in td.tensordicts if td._is_stack else td._entries.values():
        if isinstance(value, TensorCollection):
            check_unlocked(value)

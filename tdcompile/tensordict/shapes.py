"""Shape operations: what torch does to the dimensions of a tensor, done to the batch dimensions.

Key names: :class:`ShapesMixin`; its methods describe themselves to the loops in ``batchwise``.

Symbols: ``*B`` batch dimensions (``batch_size``), ``*F`` trailing dimensions of a leaf; a leaf is
``(*B, *F)``. Dimension numbers count batch dimensions only, negative ones from the last of these.

Invariant: trailing dimensions stay as they are, and leaves are views wherever torch gives views.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tdcompile.errors import TensorDictIndexError, TensorDictShapeError
from tdcompile.tensordict.batchwise import (
    Ints,
    product,
    read_sizes,
    tail_order,
    tail_sizes,
    view_leaf,
)
from tdcompile.tensordict.nontensor.data import LeafKind
from tdcompile.tensordict.nontensor.unbatched import UnbatchedTensor
from tdcompile.tensordict.repeats import RepeatsMixin
from tdcompile.tensordict.splits import SplitsMixin

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class ShapesMixin(SplitsMixin, RepeatsMixin):
    """Shape operations over the batch dimensions."""

    __slots__ = ()

    # -- same elements, other shape ----------------------------------------------------------

    def view(
        self,
        *shape: Any,
        size: Sequence[int] | None = None,
        batch_size: Sequence[int] | None = None,
    ) -> Self:
        """Return a tensordict of another batch size whose leaves are views.

        Args:
            *shape: the new batch size, as integers or one sequence; one size may be -1. Or a dtype,
                which reinterprets the bytes of every leaf.
            size: the new batch size, instead of `shape`.
            batch_size: with a dtype, the batch size of the result (names are then lost); ours by
                default.

        Returns:
            A tensordict ``(*shape,)`` with leaves ``(*shape, *F)`` that share storage with ours;
            the same tensordict if the batch size is already that. Names are lost.

        Raises:
            RuntimeError: if the number of elements differs, if more than one size is -1, or if a
                leaf has strides that no view of that shape can have (use :meth:`reshape`).

        Example:
            >>> TensorDict({"x": torch.zeros(3, 4, 5)}, batch_size=[3, 4]).view(-1)["x"].shape
            torch.Size([12, 5])
        """
        if len(shape) == 1 and isinstance(shape[0], torch.dtype):
            result = self._view_dtype(
                shape[0], None if batch_size is None else torch.Size(batch_size)
            )
            if self._is_locked:
                result._lock(None)
            return result
        return self._resized(view_leaf, read_sizes("view", shape, size))

    def reshape(self, *shape: Any, size: Sequence[int] | None = None) -> Self:
        """Return a tensordict of another batch size; leaves are views where possible, else copies.

        Arguments and errors as :meth:`view`, but any strides will do and there is no dtype.
        """
        return self._resized(torch.reshape, read_sizes("reshape", shape, size))

    def _resized(self, op: Callable[..., Tensor], shape: Ints) -> Self:
        batch_size = self._batch_size
        sizes = _resolved_sizes(batch_size, shape)
        # Lengths first: with symbolic sizes a comparison of elements costs a guard.
        if len(sizes) == len(batch_size) and sizes == batch_size:
            return self
        return self._reshaped(op, sizes, tail_sizes, sizes, (None,) * len(sizes))

    def _view_dtype(self, dtype: torch.dtype, batch_size: torch.Size | None) -> Self:
        size = self._batch_size if batch_size is None else batch_size
        entries: dict[str, Any] = {}
        for key, value in self._entries.items():
            if isinstance(value, Tensor) and type(value) is not UnbatchedTensor:
                leaf = value.view(dtype)
                if leaf.shape[: len(size)] != size:
                    raise TensorDictShapeError(
                        f'expected td["{key}"].view({dtype}) to start with the batch size '
                        f"{tuple(size)}; found the shape {tuple(leaf.shape)}: pass batch_size=..."
                    )
                entries[key] = leaf
            elif isinstance(value, LeafKind):
                entries[key] = value._with_batch_size(size)
            else:
                entries[key] = value._view_dtype(dtype, batch_size)
        names = self._names if batch_size is None else None
        return self._from_entries(entries, size, self._device, names)

    def flatten(
        self, start_dim: int | None = None, end_dim: int | None = None, *, inplace: bool = False
    ) -> Self:
        """Merge the batch dimensions from `start_dim` to `end_dim`, both included, into one.

        Args:
            start_dim: first dimension, 0 by default.
            end_dim: last dimension, the last one by default.
            inplace: change this tensordict and those nested in it instead of making new ones.

        Returns:
            A tensordict whose leaves are views where possible, else copies; without batch
            dimensions it gets one of size 1. The merged dimension has no name.

        Raises:
            IndexError: if a dimension is out of range.
            ValueError: if `end_dim` comes before `start_dim`.
            LockedError: if it is to work in place and the tensordict is locked.

        Example:
            >>> TensorDict({}, batch_size=[3, 4, 5]).flatten(1).batch_size
            torch.Size([3, 20])
        """
        batch_size = self._batch_size
        extra = 0 if batch_size else 1
        start = self._batch_dim(0 if start_dim is None else start_dim, extra)
        end = self._batch_dim(-1 if end_dim is None else end_dim, extra)
        if extra:
            return self._reshaped(torch.unsqueeze, (0,), None, (1,), (None,), inplace)
        if end < start:
            raise TensorDictIndexError(
                f"expected end_dim at or after start_dim; found start_dim={start}, end_dim={end} "
                f"for batch size {tuple(batch_size)}"
            )
        merged = product(batch_size[start : end + 1])
        sizes = (*batch_size[:start], merged, *batch_size[end + 1 :])
        origin = (*range(start), None, *range(end + 1, len(batch_size)))
        return self._reshaped(torch.flatten, (start, end), None, sizes, origin, inplace)

    def unflatten(
        self, dim: int, unflattened_size: Sequence[int], *, inplace: bool = False
    ) -> Self:
        """Split one batch dimension into several.

        Args:
            dim: the dimension.
            unflattened_size: the sizes that replace it; one of them may be -1.
            inplace: change this tensordict and those nested in it instead of making new ones.

        Returns:
            A tensordict whose leaves are views. The name goes to the last of the new dimensions.

        Raises:
            IndexError: if `dim` is out of range.
            RuntimeError: if the product of the sizes is not the size of the dimension.
            LockedError: if it is to work in place and the tensordict is locked.
        """
        dim = self._batch_dim(dim)
        batch_size = self._batch_size
        new = _resolved_sizes(batch_size[dim : dim + 1], tuple(unflattened_size))
        if not new:
            raise TensorDictShapeError(
                f"expected one size or more in place of dimension {dim} of {tuple(batch_size)}; "
                "found none"
            )
        sizes = (*batch_size[:dim], *new, *batch_size[dim + 1 :])
        origin = (
            *range(dim),
            *((None,) * (len(new) - 1)),
            *range(dim, len(batch_size)),
        )
        return self._reshaped(torch.unflatten, (dim, new), None, sizes, origin, inplace)

    def squeeze(self, dim: int | Sequence[int] | None = None) -> Self:
        """Remove batch dimensions of size 1.

        Args:
            dim: the dimension or dimensions to remove if their size is 1; all by default.

        Returns:
            A tensordict whose leaves are views; the same tensordict if nothing is to remove.

        Raises:
            IndexError: if a dimension is out of range.
        """
        batch_size = self._batch_size
        candidates: Sequence[int]
        if dim is None:
            candidates = range(len(batch_size))
        elif isinstance(dim, (tuple, list)):
            candidates = [self._batch_dim(d) for d in dim]
        else:
            candidates = (self._batch_dim(dim),)  # type: ignore[arg-type]
        removed = [d for d in candidates if batch_size[d] == 1]
        if not removed:
            return self
        origin = tuple([d for d in range(len(batch_size)) if d not in removed])
        sizes = [batch_size[d] for d in origin]
        return self._reshaped(torch.squeeze, (tuple(removed),), None, sizes, origin)

    def unsqueeze(self, dim: int) -> Self:
        """Insert a batch dimension of size 1 before `dim`; leaves are views.

        Args:
            dim: from ``-td.batch_dims - 1`` to ``td.batch_dims``.

        Raises:
            IndexError: (a ``RuntimeError`` as well) if `dim` is out of range.
        """
        dim = self._batch_dim(dim, 1)
        batch_size = self._batch_size
        sizes = (*batch_size[:dim], 1, *batch_size[dim:])
        origin = (*range(dim), None, *range(dim, len(batch_size)))
        return self._reshaped(torch.unsqueeze, (dim,), None, sizes, origin)

    def atleast_1d(self) -> Self:
        """Return a tensordict of one batch dimension or more; see :meth:`atleast_3d`."""
        return self._at_least(1)

    def atleast_2d(self) -> Self:
        """Return a tensordict of two batch dimensions or more; see :meth:`atleast_3d`."""
        return self._at_least(2)

    def atleast_3d(self) -> Self:
        """Return a tensordict of three batch dimensions or more.

        Missing dimensions are put in front (``torch.atleast_3d`` puts one of them at the end);
        leaves are views; the same tensordict if none is missing.
        """
        return self._at_least(3)

    def _at_least(self, batch_dims: int) -> Self:
        result = self
        while len(result._batch_size) < batch_dims:
            result = result.unsqueeze(0)
        return result

    # -- dimensions in another order ---------------------------------------------------------

    def permute(self, *dims: Any, **kwargs: Any) -> Self:
        """Return a tensordict with its batch dimensions in the order `dims`; leaves are views.

        Args:
            *dims: dimension numbers, as integers or one sequence (also as ``dims=``). Fewer than
                ``td.batch_dims`` permute the leading ones among themselves.
            **kwargs: ``dims`` only.

        Returns:
            A tensordict; the same one if the order does not change.

        Raises:
            ValueError: if `dims` is not a permutation (an ``IndexError`` as well).
        """
        if kwargs:
            if dims or list(kwargs) != ["dims"]:
                raise TypeError(f"expected dimensions or dims=...; found {dims} and {kwargs}")
            dims = tuple(kwargs["dims"])
        elif len(dims) == 1 and isinstance(dims[0], (tuple, list)):
            dims = tuple(dims[0])
        order = [self._batch_dim(d) for d in dims]
        if len(set(order)) != len(order) or (order and max(order) >= len(order)):
            raise TensorDictIndexError(
                f"expected a permutation of the dimensions 0 to {len(dims) - 1}; found "
                f"{tuple(dims)} for batch size {tuple(self._batch_size)}"
            )
        return self._permuted(order)

    def _permuted(self, order: list[int]) -> Self:
        batch_size = self._batch_size
        full = (*order, *range(len(order), len(batch_size)))
        if full == tuple(range(len(full))):
            return self
        sizes = [batch_size[d] for d in full]
        return self._reshaped(torch.permute, full, tail_order, sizes, full)

    def transpose(self, dim0: int, dim1: int) -> Self:
        """Swap two batch dimensions; leaves are views.

        Returns:
            A tensordict; the same one if both dimensions are one.

        Raises:
            ValueError: if a dimension is out of range (an ``IndexError`` as well).
        """
        first = self._batch_dim(dim0)
        second = self._batch_dim(dim1)
        if first == second:
            return self
        batch_size = self._batch_size
        origin = list(range(len(batch_size)))
        origin[first] = second
        origin[second] = first
        sizes = [batch_size[d] for d in origin]
        return self._reshaped(torch.transpose, (first, second), None, sizes, tuple(origin))

    def swapaxes(self, axis0: int, axis1: int) -> Self:
        """Swap two batch dimensions; another name of :meth:`transpose`."""
        return self.transpose(axis0, axis1)

    def swapdims(self, axis0: int, axis1: int) -> Self:
        """Swap two batch dimensions; another name of :meth:`transpose`."""
        return self.transpose(axis0, axis1)

    def movedim(self, source: int | Sequence[int], destination: int | Sequence[int]) -> Self:
        """Move batch dimensions to other places; the rest keep their order. Leaves are views.

        Args:
            source: dimension or dimensions to move.
            destination: where each of them goes.

        Returns:
            A tensordict; the same one if the order does not change.

        Raises:
            IndexError: if a dimension is out of range.
            ValueError: if there are not as many destinations as sources.
            RuntimeError: if a dimension occurs twice in either.
        """
        sources = self._batch_dim_list(source, "source")
        destinations = self._batch_dim_list(destination, "destination")
        if len(sources) != len(destinations):
            raise TensorDictIndexError(
                f"expected as many destinations as sources; found source={source} and "
                f"destination={destination}"
            )
        rest = iter([d for d in range(len(self._batch_size)) if d not in sources])
        order = []
        for place in range(len(self._batch_size)):
            if place in destinations:
                order.append(sources[destinations.index(place)])
            else:
                order.append(next(rest))
        return self._permuted(order)

    def moveaxis(self, source: int | Sequence[int], destination: int | Sequence[int]) -> Self:
        """Move batch dimensions; another name of :meth:`movedim`."""
        return self.movedim(source, destination)

    # -- elements in another order -----------------------------------------------------------

    def flip(self, dims: int | Sequence[int]) -> Self:
        """Reverse the order of elements along batch dimensions; leaves are copies.

        Raises:
            IndexError: if a dimension is out of range.
            RuntimeError: if a dimension occurs twice.
        """
        where = tuple(self._batch_dim_list(dims, "dims"))
        return self._reshaped(torch.flip, (where,), None, self._batch_size, self._same_dims())

    def fliplr(self) -> Self:
        """Reverse batch dimension 1; leaves are copies.

        Raises:
            RuntimeError: with fewer than two batch dimensions (an ``IndexError`` as well).
        """
        self._require_batch_dims(2, "fliplr")
        return self.flip(1)

    def flipud(self) -> Self:
        """Reverse batch dimension 0; leaves are copies.

        Raises:
            RuntimeError: without batch dimensions (an ``IndexError`` as well).
        """
        self._require_batch_dims(1, "flipud")
        return self.flip(0)

    def rot90(self, k: int = 1, dims: Sequence[int] = (0, 1)) -> Self:
        """Rotate by `k` times 90 degrees in the plane of two batch dimensions; leaves are copies.

        Returns:
            A tensordict; the same one if `k` is a multiple of 4.

        Raises:
            RuntimeError: if there are not two different dimensions, in range (an ``IndexError`` as
                well).
        """
        self._require_batch_dims(2, "rot90")
        if len(dims) != 2:
            raise TensorDictIndexError(f"expected two dimensions to rotate in; found {dims}")
        first, second = self._batch_dim_list(dims, "dims")
        if k % 4 == 0:
            return self
        origin = list(range(len(self._batch_size)))
        if k % 2 == 1:
            origin[first] = second
            origin[second] = first
        sizes = [self._batch_size[d] for d in origin]
        return self._reshaped(torch.rot90, (k, (first, second)), None, sizes, tuple(origin))

    def roll(
        self,
        shifts: int | Sequence[int],
        dims: int | Sequence[int] | None = None,
        *,
        inplace: bool = False,
    ) -> Self:
        """Shift elements along batch dimensions; what falls off the end comes in at the start.

        Args:
            shifts: how far, one number for each of `dims`.
            dims: the dimensions; by default the batch is rolled as if it were flat.
            inplace: change this tensordict and those nested in it; leaves are new tensors all the
                same.

        Returns:
            A tensordict whose leaves are copies.

        Raises:
            IndexError: if a dimension is out of range.
            RuntimeError: if there are not as many shifts as dimensions.
            LockedError: if it is to work in place and the tensordict is locked.
        """
        amounts = tuple(shifts) if isinstance(shifts, (tuple, list)) else (shifts,)
        if dims is None or (not isinstance(dims, int) and len(dims) == 0):
            if len(amounts) != 1:
                raise TensorDictShapeError(
                    f"expected one shift for the flat batch; found {len(amounts)}: pass dims=..."
                )
            op: Callable[..., Tensor] = _roll_flat
            args: tuple[Any, ...] = (amounts[0], len(self._batch_size))
        else:
            where = tuple(dims) if isinstance(dims, (tuple, list)) else (dims,)
            where = tuple([self._batch_dim(d) for d in where])
            if len(amounts) != len(where):
                raise TensorDictShapeError(
                    f"expected as many shifts as dimensions; found shifts={shifts}, dims={dims}"
                )
            op = torch.roll
            args = (amounts, where)
        return self._reshaped(op, args, None, self._batch_size, self._same_dims(), inplace)


def _roll_flat(leaf: Tensor, shift: int, batch_dims: int) -> Tensor:
    if batch_dims == 0:
        return leaf.clone()
    flat = torch.flatten(leaf, 0, batch_dims - 1)
    return torch.roll(flat, shift, 0).view(leaf.shape)


def _resolved_sizes(batch_size: torch.Size, shape: Ints) -> Ints:
    """Replace a -1 in `shape`, and check that the number of elements stays."""
    total = product(batch_size)
    known = 1
    hole = None
    for place, size in enumerate(shape):
        if size == -1:
            if hole is not None:
                raise TensorDictShapeError(f"expected one size of -1 at most; found {shape}")
            hole = place
        elif size < 0:
            raise TensorDictShapeError(f"expected sizes of -1 or more; found {shape}")
        else:
            known = known * size
    if hole is None:
        if known != total:
            raise TensorDictShapeError(
                f"expected sizes with {total} elements, as in {tuple(batch_size)}; found {shape} "
                f"with {known}"
            )
        return shape
    if known == 0 or total % known != 0:
        raise TensorDictShapeError(
            f"expected sizes that divide {total} elements, as in {tuple(batch_size)}; found {shape}"
        )
    return (*shape[:hole], total // known, *shape[hole + 1 :])

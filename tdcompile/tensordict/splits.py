"""Cutting a tensordict along a batch dimension into several.

Key names: :class:`SplitsMixin` (``split``, ``chunk``, ``tensor_split``, ``unbind``, ``narrow``).

Invariant: leaves of all results are views; sizes follow ``torch``'s rules for one tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tdcompile.errors import TensorDictIndexError, TensorDictShapeError
from tdcompile.tensordict.batchwise import BatchwiseMixin

if TYPE_CHECKING:
    from collections.abc import Sequence


class SplitsMixin(BatchwiseMixin):
    """Pieces of a tensordict along one batch dimension."""

    __slots__ = ()

    def split(self, split_size: int | Sequence[int], dim: int = 0) -> tuple[Self, ...]:
        """Cut along a batch dimension; leaves are views.

        Args:
            split_size: the size of each piece, the last may be smaller; or the sizes of all pieces.
            dim: the dimension to cut.

        Raises:
            IndexError: if `dim` is out of range.
            ValueError: if one size is given and it is not positive.
            RuntimeError: if the given sizes do not add up to the size of the dimension, or one of
                them is negative.
            TypeError: if `split_size` is neither an integer nor a sequence of integers.

        Example:
            >>> [td.batch_size[0] for td in TensorDict({}, batch_size=[5]).split(2)]
            [2, 2, 1]
        """
        dim = self._batch_dim(dim)
        size = self._batch_size[dim]
        if isinstance(split_size, (tuple, list)):
            lengths = list(split_size)
            total = 0
            for length in lengths:
                if isinstance(length, float):
                    raise TypeError(f"expected sizes that are integers; found {lengths}")
                if length < 0:
                    raise TensorDictShapeError(
                        f"expected sizes that are not negative; found {lengths}"
                    )
                total = total + length
            if not lengths or total != size:
                raise TensorDictShapeError(
                    f"expected sizes that add up to {size}, dimension {dim} of batch size "
                    f"{tuple(self._batch_size)}; found {lengths}"
                )
            return self._cut(lengths, dim)
        if isinstance(split_size, (float, str)) or split_size is None:
            raise TypeError(f"expected an integer or a sequence of integers; found {split_size!r}")
        step: int = split_size  # type: ignore[assignment]
        if step <= 0:
            raise TensorDictShapeError(f"expected a positive split_size; found {step}")
        lengths = []
        start = 0
        while start == 0 or start < size:
            lengths.append(min(step, size - start))
            start = start + step
        return self._cut(lengths, dim)

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Self, ...]:
        """Cut along a batch dimension into at most `chunks` pieces of one size; leaves are views.

        Raises:
            IndexError: if `dim` is out of range.
            ValueError: if `chunks` is not positive.
        """
        dim = self._batch_dim(dim)
        if chunks <= 0:
            raise TensorDictShapeError(f"expected a positive number of chunks; found {chunks}")
        size = self._batch_size[dim]
        if size == 0:
            return self._cut([0] * chunks, dim)
        step = (size + chunks - 1) // chunks
        # A loop over the constant `chunks`, so that a symbolic size stays one.
        lengths = []
        for place in range(chunks):
            start = place * step
            if start >= size:
                break
            lengths.append(min(step, size - start))
        return self._cut(lengths, dim)

    def tensor_split(
        self, indices_or_sections: int | Sequence[int] | Tensor, dim: int = 0
    ) -> tuple[Self, ...]:
        """Cut along a batch dimension at given places, or into pieces of nearly one size.

        Args:
            indices_or_sections: the number of pieces, or where to cut (negative places count from
                the end); a tensor of either on the CPU will do.
            dim: the dimension to cut.

        Returns:
            Tensordicts whose leaves are views; pieces may be empty, and overlap if the places are
            not in order.

        Raises:
            IndexError: if `dim` is out of range.
            ValueError: if the number of pieces is not positive.
        """
        dim = self._batch_dim(dim)
        size = self._batch_size[dim]
        places: Any = indices_or_sections
        if isinstance(places, Tensor):
            places = places.tolist()
        if isinstance(places, (tuple, list)):
            starts, ends = [0, *places], [*places, size]
            bounds = []
            for start, end in zip(starts, ends, strict=True):
                low = _clamped(start, size)
                bounds.append((low, max(_clamped(end, size), low)))
        else:
            if places <= 0:
                raise TensorDictShapeError(f"expected a positive number of pieces; found {places}")
            base, longer = size // places, size % places
            bounds = [
                (i * base + min(i, longer), (i + 1) * base + min(i + 1, longer))
                for i in range(places)
            ]
        return tuple([self.narrow(dim, low, high - low) for low, high in bounds])

    def _cut(self, lengths: Sequence[int], dim: int) -> tuple[Self, ...]:
        pieces = self._pieces(lengths, dim)
        if self._is_locked:
            for piece in pieces:
                piece._lock(None)
        return tuple(pieces)

    def unbind(self, dim: int = 0) -> tuple[Self, ...]:
        """Return the slices along a batch dimension, without that dimension; leaves are views.

        Unlike other results, these are unlocked even if the tensordict is locked.

        Raises:
            IndexError: if `dim` is out of range.
        """
        return tuple(self._pieces(None, self._batch_dim(dim)))

    def narrow(self, dim: int, start: int | Tensor, length: int) -> Self:
        """Return the elements from `start` to ``start + length`` along a batch dimension, as views.

        Args:
            dim: the dimension.
            start: first element, negative ones count from the end; a 0-d integer tensor will do.
            length: how many elements.

        Raises:
            IndexError: if `dim` or `start` is out of range.
            RuntimeError: if `length` is negative or goes beyond the end.
        """
        dim = self._batch_dim(dim)
        batch_size = self._batch_size
        size = batch_size[dim]
        if length < 0:
            raise TensorDictShapeError(f"expected a length that is not negative; found {length}")
        if not isinstance(start, Tensor):
            if start < -size or start > size:
                raise TensorDictIndexError(
                    f"expected a start from {-size} to {size} for dimension {dim} of batch size "
                    f"{tuple(batch_size)}; found {start}"
                )
            first = start + size if start < 0 else start
            if first + length > size:
                raise TensorDictShapeError(
                    f"expected start + length to be at most {size} for dimension {dim} of batch "
                    f"size {tuple(batch_size)}; found {first} + {length}"
                )
        sizes = (*batch_size[:dim], length, *batch_size[dim + 1 :])
        return self._reshaped(torch.narrow, (dim, start, length), None, sizes, self._same_dims())


def _clamped(place: int, size: int) -> int:
    return max(0, min(place + size if place < 0 else place, size))

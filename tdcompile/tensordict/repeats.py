"""Making a batch larger: expanding without a copy, repeating with one.

Key names: :class:`RepeatsMixin` (``expand``, ``expand_as``, ``broadcast_to``, ``repeat``, ``tile``,
``repeat_interleave``), :func:`expanded_sizes`.

Invariant: ``expand`` and its relatives give views, ``repeat`` and its relatives copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tdcompile.errors import TensorDictShapeError
from tdcompile.tensordict.batchwise import (
    BatchwiseMixin,
    Ints,
    become,
    check_unlocked,
    read_sizes,
    tail_ones,
    tail_sizes,
)
from tdcompile.tensordict.collection import TensorCollection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tdcompile.tensordict.names import Origin


class RepeatsMixin(BatchwiseMixin):
    """Larger batches made of the same elements."""

    __slots__ = ()

    reshape: Callable[..., Self]
    unsqueeze: Callable[..., Self]

    def expand(self, *shape: Any, size: Sequence[int] | None = None) -> Self:
        """Repeat dimensions of size 1, and put new ones in front, without copying.

        Args:
            *shape: the new batch size, as integers or one sequence; -1 keeps a size.
            size: the new batch size, instead of `shape`.

        Returns:
            A tensordict ``(*shape,)`` whose leaves ``(*shape, *F)`` are views; several elements may
            share one place in memory.

        Raises:
            RuntimeError: if there are fewer sizes than batch dimensions, or a dimension of another
                size than 1 would change.
        """
        target = read_sizes("expand", shape, size)
        return self._expanded(target, keep_names=True)

    def expand_as(self, other: Any) -> Self:
        """Expand to the batch size of a tensordict or the shape of a tensor; see :meth:`expand`.

        Names are kept with a tensor and lost with a tensordict.
        """
        return self._expanded(
            tuple(other.shape), keep_names=not isinstance(other, TensorCollection)
        )

    def broadcast_to(self, shape: Sequence[int]) -> Self:
        """Expand to `shape`; see :meth:`expand`. Names are lost."""
        return self._expanded(tuple(shape), keep_names=False)

    def _expanded(self, target: Ints, keep_names: bool) -> Self:
        batch_size = self._batch_size
        sizes = expanded_sizes(batch_size, target)
        added = len(sizes) - len(batch_size)
        if keep_names:
            origin: Origin = (*((None,) * added), *range(len(batch_size)))
        else:
            origin = (None,) * len(sizes)
        return self._reshaped(torch.broadcast_to, sizes, tail_sizes, sizes, origin)

    def repeat(self, *repeats: Any, inplace: bool = False) -> Self:
        """Repeat the batch along its dimensions; leaves are copies.

        Args:
            *repeats: how often, one number for each batch dimension (or one sequence of them).
            inplace: change this tensordict and those nested in it; leaves are new tensors all the
                same.

        Raises:
            ValueError: if there are not as many numbers as batch dimensions.
            LockedError: if it is to work in place and the tensordict is locked.
        """
        if len(repeats) == 1 and isinstance(repeats[0], (tuple, list)):
            repeats = tuple(repeats[0])
        batch_size = self._batch_size
        if len(repeats) != len(batch_size):
            raise TensorDictShapeError(
                f"expected one number of repeats for each of the {len(batch_size)} batch "
                f"dimensions; found {len(repeats)}: {repeats}"
            )
        sizes = [size * count for size, count in zip(batch_size, repeats, strict=True)]
        return self._reshaped(Tensor.repeat, repeats, tail_ones, sizes, self._same_dims(), inplace)

    def tile(self, dims: int | Sequence[int]) -> Self:
        """Repeat the batch; leaves are copies. Names are lost.

        Args:
            dims: how often along each dimension. Fewer than batch dimensions leave the first ones
                as they are; more put new dimensions in front.
        """
        batch_size = self._batch_size
        if isinstance(dims, int):
            dims = (dims,)
        counts = (1,) * (len(batch_size) - len(dims)) + tuple(dims)
        padded = (1,) * (len(counts) - len(batch_size)) + tuple(batch_size)
        sizes = [size * count for size, count in zip(padded, counts, strict=True)]
        return self._reshaped(Tensor.repeat, counts, tail_ones, sizes, (None,) * len(sizes))

    def repeat_interleave(
        self,
        repeats: int | Tensor,
        dim: int | None = None,
        *,
        output_size: int | None = None,
        inplace: bool = False,
    ) -> Self:
        """Repeat each element along a batch dimension; leaves are copies.

        Args:
            repeats: how often, one number for all elements or a tensor ``(n,)`` with one for each.
            dim: the dimension; by default the batch is flattened first.
            output_size: the size of the result's dimension if known; with a tensor of `repeats` it
                saves waiting for the device.
            inplace: change this tensordict and those nested in it; leaves are new tensors all the
                same.

        Raises:
            IndexError: if `dim` is out of range.
            RuntimeError: if a tensor of `repeats` has another size than the dimension, or if it is
                to work in place without `dim`.
            LockedError: if it is to work in place and the tensordict is locked.
        """
        batch_size = self._batch_size
        if inplace:
            check_unlocked(self)
            if dim is None:
                raise TensorDictShapeError(
                    "expected a dimension to repeat along in place; found none: pass dim=..."
                )
        if len(batch_size) == 0 or (dim is None and len(batch_size) > 1):
            flat = self.unsqueeze(0) if len(batch_size) == 0 else self.reshape(-1)
            if dim is not None:
                self._batch_dim(dim, 1)
            result = flat.repeat_interleave(repeats, 0, output_size=output_size)
            if not inplace:
                return result
            become(self, result)
            return self
        dim = self._batch_dim(0 if dim is None else dim)
        op: Callable[..., Tensor]
        args: tuple[Any, ...]
        if isinstance(repeats, Tensor):
            # One tensor of positions for all leaves: its size, which depends on the data, is then
            # one number for the whole tensordict.
            counts = repeats.expand(batch_size[dim]) if repeats.numel() == 1 else repeats
            if counts.dim() != 1 or counts.shape[0] != batch_size[dim]:
                raise TensorDictShapeError(
                    f"expected one number of repeats or {batch_size[dim]}, the size of dimension "
                    f"{dim} of {tuple(batch_size)}; found shape {tuple(repeats.shape)}"
                )
            positions = torch.repeat_interleave(counts, output_size=output_size)
            length = positions.shape[0]
            op, args = torch.index_select, (dim, positions)
        else:
            length = batch_size[dim] * repeats
            op, args = torch.repeat_interleave, (repeats, dim)
        sizes = (*batch_size[:dim], length, *batch_size[dim + 1 :])
        return self._reshaped(op, args, None, sizes, self._same_dims(), inplace)


def expanded_sizes(batch_size: torch.Size, target: Ints) -> Ints:
    """Return the sizes that `batch_size` has after an expansion to `target` (-1 keeps a size).

    Raises:
        TensorDictShapeError: if there are too few sizes, or a size other than 1 would change.
    """
    added = len(target) - len(batch_size)
    if added < 0:
        raise TensorDictShapeError(
            f"expected {len(batch_size)} sizes or more, to expand batch size {tuple(batch_size)}; "
            f"found {len(target)}: {target}"
        )
    result = list(target)
    for place, size in enumerate(target):
        if place < added:
            if size < 0:
                raise TensorDictShapeError(
                    f"expected a size for the new dimension {place}; found {size} in {target}"
                )
            continue
        current = batch_size[place - added]
        if size == -1:
            result[place] = current
        elif current != size and current != 1:
            raise TensorDictShapeError(
                f"expected sizes that {tuple(batch_size)} can expand to; found {target}: "
                f"dimension {place - added} has size {current}, not 1 and not {size}"
            )
    return tuple(result)

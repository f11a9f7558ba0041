"""Shapes of a lazy stack: what moves, splits or merges dimensions, and joins tensordicts.

Key names: :class:`LazyShapesMixin`, :data:`ALONG` (operations that pick elements),
:data:`RESHAPES` (those that may split or merge the stack dimension), :data:`MOVES`.

Symbols: ``*B`` batch dimensions of the stack, ``k`` the stack dimension, ``n`` its size.

Invariant: an operation is done to each element with the stack dimension in it (of size 1), and the
dimension is counted again where the operation has put it. Only what mixes values of several
elements (``gather`` along the stack dimension) needs stacked tensors.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdcompile.errors import TensorDictShapeError
from tdcompile.tensordict.batchwise import Ints, Tail, product, tail_sizes, view_leaf
from tdcompile.tensordict.dense import TensorDict
from tdcompile.tensordict.indexing import gather_leaf
from tdcompile.tensordict.state import TensorDictState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Picked = tuple[list[int] | None, tuple[Any, ...] | None]
"""Which elements, in which order (``None``: all as they are), and the arguments for each of them
(``None``: nothing is left to do)."""


def _flip(args: Any, dim: int, count: int, at: int) -> Picked:
    (dims,) = args
    if dim not in dims:
        return None, args
    rest = tuple([d for d in dims if d != dim])
    return list(range(count))[::-1], (rest,) if rest else None


def _roll(args: Any, dim: int, count: int, at: int) -> Picked:
    shifts, dims = args
    if dim not in dims:
        return None, args
    shift = sum(s for s, d in zip(shifts, dims, strict=True) if d == dim)
    rest = [(s, d) for s, d in zip(shifts, dims, strict=True) if d != dim]
    order = [(i - shift) % count for i in range(count)]
    return order, (tuple([s for s, _ in rest]), tuple([d for _, d in rest])) if rest else None


def _narrow(args: Any, dim: int, count: int, at: int) -> Picked:
    along, start, length = args
    if along != dim:
        return None, args
    start = int(start)
    start = start + count if start < 0 else start
    return list(range(start, start + length)), None


def _index_select(args: Any, dim: int, count: int, at: int) -> Picked:
    return (args[1].tolist(), None) if args[0] == dim else (None, args)


def _interleave(args: Any, dim: int, count: int, at: int) -> Picked:
    repeats, along = args
    if along != dim:
        return None, args
    return [i for i in range(count) for _ in range(repeats)], None


def _repeat(args: Any, dim: int, count: int, at: int) -> Picked:
    rest = (*args[:at], 1, *args[at + 1 :])
    is_done = len(args) == 0 or (at == dim and all(i == 1 for i in rest))
    return list(range(count)) * args[at], None if is_done else rest


def _expand(args: Any, dim: int, count: int, at: int) -> Picked:
    return ([0] * args[at] if count == 1 else None), args


ALONG: dict[Any, Callable[[Any, int, int, int], Picked]] = {
    torch.flip: _flip,
    torch.roll: _roll,
    torch.narrow: _narrow,
    torch.index_select: _index_select,
    torch.repeat_interleave: _interleave,
    Tensor.repeat: _repeat,
    torch.broadcast_to: _expand,
}
"""Torch function -> how it picks elements, given its arguments, the stack dimension, the number of
elements and the place of the stack dimension in the result."""

MOVES = (torch.unsqueeze, torch.squeeze, torch.permute, torch.transpose)
RESHAPES = (view_leaf, torch.reshape, torch.flatten, torch.unflatten)
VIEWS = (torch.narrow, torch.broadcast_to)


class LazyShapesMixin(TensorDictState):
    """Shape operations, splits and joins."""

    __slots__ = ()

    if TYPE_CHECKING:
        tensordicts: list[Any]
        stack_dim: int
        batch_size: torch.Size
        batch_dims: int
        _first: Callable[[], Any]
        _like: Callable[..., Any]
        _dim_name: str | None
        _template: Any

    def _map_leaves(
        self,
        op: Callable[..., Tensor],
        args: tuple[Any, ...],
        tail: Tail | None,
        sizes: torch.Size,
        origin: Any,
        batch_dims: int,
    ) -> Any:
        """Apply a torch function to every leaf; see ``BatchwiseMixin``."""
        dim = self.stack_dim
        if dim >= batch_dims:
            # Only dimensions in front of ours change.
            moved = dim - batch_dims + len(sizes)
            return self._each(
                lambda e: e._map_leaves(op, args, tail, sizes, origin, batch_dims), moved
            )
        if op in RESHAPES:
            return self._regrouped(sizes, batch_dims, op, origin)
        if op is gather_leaf:
            return self._gathered(args[0], args[1], batch_dims)
        if op not in ALONG and op not in MOVES:
            dense = self._stacked_form()
            return dense._map_leaves(op, args, tail, sizes, origin, batch_dims)
        added = len(sizes) - batch_dims
        if op in (torch.broadcast_to, Tensor.repeat):
            place = dim + added
        elif dim in origin:
            place = origin.index(dim)
        else:
            return self._one_left(op, args, tail, sizes, origin, batch_dims)
        count = len(self.tensordicts)
        picked = ALONG[op](args, dim, count, place) if op in ALONG else (None, args)
        order, rest = picked
        elements = self.tensordicts
        if order is not None:
            elements = [elements[i] for i in order]
            # Results are as independent of each other and of ours as those of a dense tensordict.
            if op not in VIEWS and rest is None:
                elements = [element.clone() for element in elements]
            elif op is torch.broadcast_to:
                elements = [element.copy() for element in elements]
        template = None
        if rest is not None:

            def on_wide(element: Any) -> Any:
                wide = element.unsqueeze(dim)
                size = [*sizes]
                for i, source in enumerate(origin):
                    if size[i] == -1 and source is not None:
                        size[i] = wide._batch_size[source]
                size[place] = 1
                given = tuple(size) if tail is tail_sizes else rest
                done = wide._map_leaves(op, given, tail, torch.Size(size), origin, batch_dims)
                return done.squeeze(place)

            elements = [on_wide(element) for element in elements]
            if not elements:
                template = on_wide(self._first().empty())
        result = self._like(elements, place, template)
        if origin[place] is None:
            result._dim_name = None
        return result

    def _stacked_form(self) -> Any:
        """Return a dense tensordict of the stacked entries."""
        return TensorDict._from_entries(
            self._entries.copy(), self._batch_size, self._device, self._names
        )

    def _each(self, function: Callable[[Any], Any], stack_dim: int) -> Any:
        results = [function(element) for element in self.tensordicts]
        template = None if results else function(self._first())
        return self._like(results, stack_dim, template)

    def _one_left(
        self, op: Any, args: Any, tail: Any, sizes: torch.Size, origin: Any, batch_dims: int
    ) -> Any:
        """Do an operation that removes the stack dimension, of size 1: a squeeze."""
        wide = self.tensordicts[0].unsqueeze(self.stack_dim)
        return wide._map_leaves(op, args, tail, sizes, origin, batch_dims)

    def _gathered(self, along: int, index: Tensor, batch_dims: int) -> Any:
        """Gather; along the stack dimension values of several elements meet in one leaf."""
        dim = self.stack_dim
        if along == dim:
            origin = tuple(range(batch_dims))
            return self._stacked_form()._map_leaves(
                gather_leaf, (along, index), None, index.shape, origin, batch_dims
            )
        rows = torch.unbind(index, dim)
        origin = tuple(range(batch_dims - 1))
        results = [
            element._map_leaves(
                gather_leaf, (along - (along > dim), row), None, row.shape, origin, batch_dims - 1
            )
            for element, row in zip(self.tensordicts, rows, strict=False)
        ]
        return self._like(results)

    # -- splitting and merging dimensions ----------------------------------------------------------

    def _regrouped(self, sizes: torch.Size, batch_dims: int, op: Any, origin: Any) -> Any:
        """Give the first `batch_dims` dimensions other sizes, of the same elements in order.

        Dimensions that merge with the stack dimension are unbound: there is an element for each
        position in them.
        """
        old = self.batch_size[:batch_dims]
        dim = self.stack_dim
        (start, end), (new_start, new_end) = _group(old, sizes, dim)
        elements: list[Any] = []
        _unbound(self, start, end, elements)
        before, after = sizes[:new_start], sizes[new_end:]
        rest = torch.Size((*before, *after))
        kept = batch_dims - (end - start)
        sources = [
            source if source is None or source < start else source - (end - start)
            for source in (*origin[:new_start], *origin[new_end:])
        ]

        def shaped(element: Any) -> Any:
            if element._batch_size[:kept] == rest:
                return element
            leaf_op = view_leaf if op is view_leaf else torch.reshape
            args = tuple(rest)
            return element._map_leaves(leaf_op, args, tail_sizes, rest, tuple(sources), kept)

        elements = [shaped(element) for element in elements]
        template = None if elements else shaped(self._first().empty())
        result = self._stacked_list(elements, list(sizes[new_start:new_end]), new_start, template)
        if new_end - new_start == 1 and origin[new_start] == dim:
            result._dim_name = self._dim_name
        return result

    def _stacked_list(
        self, elements: list[Any], sizes: list[int], place: int, template: Any
    ) -> Any:
        """Stack a list along several dimensions: lazy stacks of lazy stacks."""
        if not sizes:
            return elements[0]
        if len(sizes) > 1:
            step = product(sizes[1:])
            elements = [
                self._stacked_list(elements[i * step : (i + 1) * step], sizes[1:], place, template)
                for i in range(sizes[0])
            ]
            if not elements:
                template = self._stacked_list([], sizes[1:], place, template)
        result = self._like(elements, place, template)
        result._dim_name = None
        return result

    def _resized(self, op: Any, shape: Ints) -> Any:
        size = self.batch_size
        if tuple(shape) == tuple(size):
            return self
        if -1 in size:
            if len(shape) == 1 and shape[0] == -1:
                return self.flatten()  # type: ignore[attr-defined]
            raise TensorDictShapeError(
                f"expected elements of one batch size to reshape to {tuple(shape)}; found "
                f"{tuple(size)}, where -1 stands for sizes that differ"
            )
        return super()._resized(op, shape)  # type: ignore[misc]

    def _view_dtype(self, dtype: torch.dtype, batch_size: torch.Size | None) -> Any:
        if batch_size is not None and len(batch_size) <= self.stack_dim:
            return self._stacked_form()._view_dtype(dtype, batch_size)
        rest = None if batch_size is None else self._element_size(batch_size)
        return self._each(lambda element: element._view_dtype(dtype, rest), self.stack_dim)

    if TYPE_CHECKING:
        _element_size: Callable[[torch.Size], torch.Size]

    # -- pieces ------------------------------------------------------------------------------------

    def _pieces(self, lengths: Sequence[int] | None, dim: int) -> list[Any]:
        """Cut along `dim` into lazy stacks, or into slices without that dimension."""
        place = self.stack_dim
        if dim == place:
            if lengths is None:
                return list(self.tensordicts)
            pieces, start = [], 0
            for length in lengths:
                pieces.append(self._like(self.tensordicts[start : start + length]))
                start += length
            return pieces
        if self.batch_size[dim] == -1:
            raise TensorDictShapeError(
                f"expected a dimension of one size to cut; found dimension {dim} of batch size "
                f"{tuple(self.batch_size)}, where elements differ"
            )
        own = dim - (dim > place)
        moved = place - (lengths is None and dim < place)
        if not self.tensordicts:
            parts = self._first()._pieces(lengths, own)
            return [self._like([], moved, part) for part in parts]
        rows = [element._pieces(lengths, own) for element in self.tensordicts]
        return [self._like(column, moved) for column in zip(*rows, strict=True)]

    def _become(self, result: Any) -> None:
        """Take over the elements of another tensordict."""
        other = result if result._is_stack else result.to_lazystack(0)
        slots: Any = self
        for name in ("tensordicts", "stack_dim", "_template", "_dim_name"):
            setattr(slots, name, getattr(other, name))

    def to_lazystack(self, dim: int = 0) -> Any:
        """Return a lazy stack along another dimension; this one if `dim` is the stack dimension."""
        dim = self._batch_dim(dim)  # type: ignore[attr-defined]
        if dim == self.stack_dim:
            return self
        return super().to_lazystack(dim)  # type: ignore[misc]


def _unbound(td: Any, start: int, end: int, out: list[Any]) -> None:
    """List the slices of a tensordict over the dimensions from `start` to `end`, in order."""
    if start == end:
        out.append(td)
        return
    for piece in td._pieces(None, start):
        _unbound(piece, start, end - 1, out)


def _group(old: Sequence[int], new: Sequence[int], dim: int) -> tuple[tuple[int, int], Any]:
    """Find the old dimensions around `dim`, and the new ones, that have as many elements.

    Returns:
        The first and last (excluded) dimension of both, as small as they can be.
    """
    if -1 in old:
        # A merge of everything: sizes that differ have no product.
        same = 0
        while same < dim and old[same] == new[same]:
            same += 1
        return (same, len(old) - (len(new) - same - 1)), (same, same + 1)
    if product(old) == 0:
        return (0, len(old)), (0, len(new))
    i = j = 0
    while True:
        start, new_start = i, j
        mine, theirs = old[i], new[j] if j < len(new) else 1
        i, j = i + 1, min(j + 1, len(new))
        while mine != theirs:
            if mine < theirs and i < len(old):
                mine *= old[i]
                i += 1
            elif j < len(new):
                theirs *= new[j]
                j += 1
            else:
                mine *= old[i]
                i += 1
        if dim < i:
            return (start, i), (new_start, j)


def _not_in_place(name: str) -> None:
    """Let a shape operation refuse ``inplace=True``: elements held elsewhere would not follow."""
    operation = getattr(TensorDict, name)

    @functools.wraps(operation)
    def method(self: Any, *args: Any, inplace: bool = False, **kwargs: Any) -> Any:
        if inplace:
            raise NotImplementedError(
                f"expected {name} without inplace=True for a {type(self).__name__}, whose elements "
                "stay what they are: take the result, or make it dense first (to_tensordict())"
            )
        return operation(self, *args, **kwargs)

    setattr(LazyShapesMixin, name, method)


for _name in ("flatten", "unflatten", "repeat", "repeat_interleave", "gather", "masked_select"):
    _not_in_place(_name)

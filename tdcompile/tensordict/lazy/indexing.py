"""Indexing a lazy stack: elements are picked, and the rest of the index goes to each of them.

Key names: :class:`LazyIndexingMixin`, :class:`Picks` and :func:`pick` (an index taken apart).

Symbols: ``*B`` batch dimensions of the stack, ``k`` the stack dimension, ``n`` its size; ``*I`` the
batch dimensions of the result.

Invariant: an integer along the stack dimension gives the element itself, a slice or positions give
a stack of the very elements, as far as nothing else is indexed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor

from tdcompile.errors import TensorDictIndexError
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.dense import TensorDict
from tdcompile.tensordict.index_writes import Fill, IndexWrite, as_fill, broadcast_value
from tdcompile.tensordict.indexing import (
    parse_index,
    result_size,
)
from tdcompile.tensordict.keys import unravel_key_to_tuple
from tdcompile.tensordict.lazy.elements import dense_form
from tdcompile.tensordict.leafwise import broadcast_batch_size
from tdcompile.tensordict.state import TensorDictState

if TYPE_CHECKING:
    from collections.abc import Callable

_FULL = slice(None)


class Picks(NamedTuple):
    """An index over the batch dimensions of a lazy stack, taken apart."""

    elements: Any
    """Positions of elements, in lists nested `depth` deep; one position for a depth of 0."""
    indices: Any
    """The index of each picked element, a tuple, in the same lists."""
    place: int
    """The result dimension where the positions begin."""
    depth: int
    """The number of result dimensions that count elements."""
    is_wide: bool
    """Whether the index is for an element with the stack dimension in it (of size 1), which then
    stands at `place` of the result: advanced indices on both sides of a slice go to the front."""
    model: tuple[Any, ...]
    """An index of an element like those in `indices`, of which there may be none."""


def pick(items: tuple[Any, ...], stack_dim: int, count: int) -> Picks:
    """Take a parsed index apart; see :class:`Picks`.

    Args:
        items: what ``parse_index`` gives, as a tuple.
        stack_dim: the stack dimension.
        count: the number of elements.
    """
    items = _with_positions(items)
    at, dim = None, 0
    advanced: list[int] = []
    for place, item in enumerate(items):
        is_position = isinstance(item, Tensor) and item.dim() > 0
        if is_position or _is_bool(item):
            advanced.append(place)
        if item is None or _is_bool(item):
            continue
        if dim == stack_dim:
            at = place
        dim += 1
    if at is None:
        missing = stack_dim - dim
        items = (*items, *(_FULL,) * (missing + 1))
        at = len(items) - 1
    item = items[at]
    rest = (*items[:at], *items[at + 1 :])
    if isinstance(item, slice):
        elements = list(range(count))[item]
        is_wide = bool(advanced) and advanced[0] < at < advanced[-1]
        index = (*items[:at], _FULL, *items[at + 1 :]) if is_wide else rest
        place = _place_of(items, advanced, at)
        return Picks(elements, [index] * len(elements), place, 1, is_wide, index)
    if at not in advanced:
        return Picks(int(item), rest, 0, 0, False, rest)
    place = _block_place(items, advanced)
    if len(advanced) == 1:
        elements = item.tolist()
        return Picks(elements, _like_lists(elements, rest), place, item.dim(), False, rest)
    # Positions meet other advanced indices: one element each, indexed with integers.
    tensors = [_as_positions(items[i]) for i in advanced]
    shape = broadcast_batch_size(*[tensor.shape for tensor in tensors])
    tensors = [tensor.expand(shape) for tensor in tensors]
    depth = tensors[0].dim()
    lists = {i: tensor.tolist() for i, tensor in zip(advanced, tensors, strict=True)}
    indices = _zip_lists(items, lists, at, depth)
    model = _zip_lists(items, dict.fromkeys(advanced, 0), at, 0)
    return Picks(lists[at], indices, place, depth, False, model)


def _with_positions(items: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replace masks, which a write of one number keeps, by the positions that they stand for."""
    found: list[Any] = []
    for item in items:
        if isinstance(item, Tensor) and item.dtype == torch.bool and item.dim() > 0:
            found.extend(item.nonzero().unbind(1))
        else:
            found.append(item)
    return tuple(found)


def _is_bool(item: Any) -> bool:
    if isinstance(item, Tensor):
        return item.dtype == torch.bool and item.dim() == 0
    return isinstance(item, bool)


def _as_positions(item: Any) -> Tensor:
    """Return an advanced index as a tensor; a bool has one position or none."""
    if _is_bool(item):
        return torch.zeros(1 if item else 0, dtype=torch.long)
    return item  # type: ignore[no-any-return]


def _place_of(items: tuple[Any, ...], advanced: list[int], at: int) -> int:
    """Return the result dimension of the slice ``items[at]``."""
    before = sum(item is None or isinstance(item, slice) for item in items[:at])
    if advanced and (advanced[0] < at or _is_split(items, advanced)):
        before += max([1, *[items[i].dim() for i in advanced if isinstance(items[i], Tensor)]])
    return before


def _block_place(items: tuple[Any, ...], advanced: list[int]) -> int:
    """Return the first result dimension that advanced indices make."""
    if _is_split(items, advanced):
        return 0
    return sum(item is None or isinstance(item, slice) for item in items[: advanced[0]])


def _is_split(items: tuple[Any, ...], advanced: list[int]) -> bool:
    between = items[advanced[0] : advanced[-1]]
    return any(item is None or isinstance(item, slice) for item in between)


def _like_lists(lists: Any, value: Any) -> Any:
    return [_like_lists(item, value) for item in lists] if isinstance(lists, list) else value


def _zip_lists(items: tuple[Any, ...], lists: dict[int, Any], at: int, depth: int) -> Any:
    """Return `items` with integers for advanced indices, without the one at `at`, in lists."""
    if depth == 0:
        kept = [i for i in range(len(items)) if i != at and not _is_bool(items[i])]
        return tuple([lists.get(i, items[i]) for i in kept])
    length = len(lists[at])
    return [
        _zip_lists(items, {i: part[j] for i, part in lists.items()}, at, depth - 1)
        for j in range(length)
    ]


class LazyIndexingMixin(TensorDictState):
    """``stack[...]`` and ``stack[...] = value``."""

    __slots__ = ()

    if TYPE_CHECKING:
        tensordicts: list[Any]
        stack_dim: int
        batch_size: torch.Size
        batch_dims: int
        _first: Callable[[], Any]
        _like: Callable[..., Any]
        _require: Callable[[tuple[str, ...]], Any]
        _has_path: Callable[[tuple[str, ...]], bool]
        _stacked_form: Callable[[], Any]
        select: Callable[..., Any]
        set_: Callable[..., Any]
        update_: Callable[..., Any]

    def _index(self, index: Any) -> Any:
        """Return what an index picks: an element, or a lazy stack."""
        alone = self._single_element(index)
        if alone is not None:
            return alone
        items, origin, is_whole = parse_index(index, self._least_size())
        return self._like(self.tensordicts) if is_whole else self._index_stack(items, origin)

    def _single_element(self, index: Any) -> Any:
        """Return what an index picks that has an integer along the stack dimension.

        Only this element needs to have the sizes that the rest of the index asks for.
        """
        given = index if isinstance(index, tuple) else (index,)
        place = self.stack_dim
        if len(given) <= place or not all(isinstance(item, slice) for item in given[:place]):
            return None
        position, rest = given[place], (*given[:place], *given[place + 1 :])
        count = len(self.tensordicts)
        if type(position) is not int or not -count <= position < count:
            return None
        element = self.tensordicts[position]
        if len(rest) < self.batch_dims and all(_is_full(item) for item in rest):
            return element
        return element._index(rest)

    def _least_size(self) -> torch.Size:
        """Return the batch size, with the least of several sizes of the elements."""
        size = self.batch_size
        if -1 not in size:
            return size
        rows = zip(*[element.batch_size for element in self.tensordicts], strict=True)
        least = [min(row) for row in rows]
        place = self.stack_dim
        return torch.Size((*least[:place], len(self.tensordicts), *least[place:]))

    def _index_leaves(
        self,
        items: Any,
        sizes: torch.Size,
        origin: Any,
        batch_dims: int,
        first_key: str | None,
        first: Tensor | None,
    ) -> Any:
        """Index the leading batch dimensions, for a tensordict that this one is nested in."""
        return self._index_stack(items, (*origin, *range(batch_dims, self.batch_dims)))

    def _index_parsed(self, items: Any, origin: Any) -> Any:
        return self._index_stack(items, origin)

    def _index_stack(self, items: Any, origin: Any) -> Any:
        given = items
        items = items if isinstance(items, tuple) else (items,)
        if torch.compiler.is_compiling() and _asks_data(items, self.stack_dim):
            # Positions that are data are not known in a trace; stacked entries can be indexed.
            return self._stacked_form()._index_parsed(given, origin)
        picks = pick(items, self.stack_dim, len(self.tensordicts))
        return self._picked(picks.elements, picks.indices, picks, picks.depth)

    def _picked(self, elements: Any, indices: Any, picks: Picks, depth: int) -> Any:
        if depth == 0:
            return self._one(self.tensordicts[elements], indices, picks)
        results = [
            self._picked(element, index, picks, depth - 1)
            for element, index in zip(elements, indices, strict=True)
        ]
        template = None if results else self._empty_pick(picks)
        result = self._like(results, picks.place, template)
        if picks.depth > 1:
            result._dim_name = None
        return result

    def _one(self, element: Any, index: tuple[Any, ...], picks: Picks) -> Any:
        if all(_is_full(item) for item in index):
            return element
        if not picks.is_wide:
            return element._index(index)
        return element.unsqueeze(self.stack_dim)._index(index).squeeze(picks.place)

    def _empty_pick(self, picks: Picks) -> Any:
        """Return a tensordict without entries that stands for a picked element."""
        return self._one(self._first().empty(), picks.model, picks)

    # -- writing -----------------------------------------------------------------------------------

    def _set_index(self, index: Any, value: Any) -> None:
        """Write into ``stack[index]``; the leaves of the elements keep their storage."""
        size = self._least_size()
        items, _, _ = parse_index(index, size)
        if isinstance(value, Mapping):
            value = TensorDict(value, batch_size=result_size(items, size))
        elif not isinstance(value, (TensorCollection, Tensor)):
            value = as_fill(value)
        given = items if isinstance(items, tuple) else (items,)
        if torch.compiler.is_compiling() and _asks_data(given, self.stack_dim):
            stacked = dense_form(self, False)
            stacked._set_index(index, value)
            self.update_(stacked)
            return
        writes: list[IndexWrite] = []
        self._plan_index(items, value, True, writes, ())
        for write in writes:
            write.run()

    def update_at_(
        self,
        input_dict_or_td: Any,
        idx: Any,
        clone: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Any = None,
    ) -> Self:
        """Write entries into a part of the batch, in place; see ``TensorDict.update_at_``."""
        size = self._least_size()
        items, _, _ = parse_index(idx, size)
        source: Any = input_dict_or_td
        if not isinstance(source, TensorCollection):
            source = TensorDict(source, batch_size=result_size(items, size))
        if keys_to_update is not None:
            source = source.select(*keys_to_update)
        writes: list[IndexWrite] = []
        self._plan_index(items, source, False, writes, ())
        for write in writes:
            write.run()
        return self

    def _set_entry_at(self, path: tuple[str, ...], value: Any, index: Any) -> None:
        """Write into a part of one entry."""
        if issubclass(self._first().entry_class(path), TensorCollection):
            self._require(path)._set_index(index, value)
            return
        try:
            self.select(path)._set_index(index, value)
        except TensorDictIndexError:
            # Into trailing dimensions: of the stacked tensor, which is then copied back.
            stacked = self._require(path)
            stacked[index] = value
            self.set_(path, stacked)

    def get_at(self, key: Any, index: Any, default: Any = None) -> Any:
        """Return the entry at `key`, indexed; see ``TensorDict.get_at``."""
        path = unravel_key_to_tuple(key)
        if not self._has_path(path):
            return default
        try:
            return self.select(path)._index(index)._require(path)
        except TensorDictIndexError:
            return self._require(path)[index]

    def _plan_index(
        self, items: Any, value: Any, may_add: bool, writes: list[IndexWrite], path: Any
    ) -> None:
        """Plan the writes of ``stack[items] = value``, one for each picked element.

        Args:
            items: a parsed index.
            value: a tensordict that broadcasts to the result, a tensor (or part of one) or a
                number for every leaf.
            may_add: whether keys may be new.
            writes: what is planned is added here.
            path: where the stack lies, for messages.
        """
        items = items if isinstance(items, tuple) else (items,)
        sizes = result_size(items, self._least_size())
        if isinstance(value, TensorCollection):
            like: Any = value
            if path and like.batch_dims < len(sizes):
                # Nested: its leaves have all of our dimensions, its batch size need not.
                value = like._with_batch_size(sizes, path)
            value = broadcast_value(value, sizes)
        elif isinstance(value, Tensor) and value.dim() > 0:
            value = Fill(value)
        picks = pick(items, self.stack_dim, len(self.tensordicts))
        parts: list[tuple[int, tuple[Any, ...], Any]] = []
        _cut_value(picks.elements, picks.indices, value, len(sizes), picks, picks.depth, parts)
        for position, index, part in parts:
            target = self.tensordicts[position]
            if picks.is_wide:
                target = target.unsqueeze(self.stack_dim)
            _plan_element(target, index, part, may_add and not picks.is_wide, writes, path)


def _cut_value(
    elements: Any,
    indices: Any,
    value: Any,
    rank: int,
    picks: Picks,
    depth: int,
    out: list[tuple[int, tuple[Any, ...], Any]],
) -> None:
    """List the position, the index and the part of the value of each picked element."""
    if depth == 0:
        out.append((elements, indices, value))
        return
    parts: Any = [value] * len(elements)
    if isinstance(value, TensorCollection):
        parts = value.unbind(picks.place)  # type: ignore[attr-defined]
        if picks.is_wide:
            parts = [part.unsqueeze(picks.place) for part in parts]
    elif isinstance(value, Fill):
        parts = [value.cut(rank - picks.place, i, picks.is_wide) for i in range(len(elements))]
    for element, index, part in zip(elements, indices, parts, strict=True):
        _cut_value(element, index, part, rank - 1, picks, depth - 1, out)


def _plan_element(
    target: Any,
    index: tuple[Any, ...],
    value: Any,
    may_add: bool,
    writes: list[IndexWrite],
    path: Any,
) -> None:
    """Plan to write into a part of one element."""
    size = target._least_size() if target._is_stack else target._batch_size
    items, _, is_whole = parse_index(index, size)
    if target._is_stack:
        target._plan_index(items, value, may_add, writes, path)
        return
    sizes = result_size(items, size)
    write = IndexWrite(items, sizes, len(size), is_whole, may_add)
    if isinstance(value, TensorCollection):
        write.plan(target, broadcast_value(value, sizes), path)
    else:
        write.fill(target, value, not isinstance(value, Fill), path)
    writes.append(write)


def _is_full(item: Any) -> bool:
    return isinstance(item, slice) and item == _FULL


def _asks_data(items: tuple[Any, ...], stack_dim: int) -> bool:
    """Tell whether a tensor says which elements are picked."""
    dim = 0
    for item in items:
        if item is None or _is_bool(item):
            continue
        if dim == stack_dim:
            return isinstance(item, Tensor)
        dim += 1
    return False

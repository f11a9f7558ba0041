"""``NonTensorStack``: an entry with a value of its own for each element of the batch.

Key names: :class:`NonTensorStack`, :class:`LinkedList` (what ``td["s"]`` gives of one),
:func:`join` (``torch.stack`` and ``torch.cat`` of entries), :func:`choose` (``torch.where``).

Symbols: ``*B`` batch dimensions.

Invariant: values are in a flat list, and the positions of the elements in it are where torch would
find them in the memory of a tensor: an operation runs on a tensor of positions, and the result is
a view (it shares the list) exactly where torch gives a view.

Note [Shared places]. A ``NonTensorData`` that is stacked has one place, however large its batch;
its elements share it. What consists of such elements only is a ``NonTensorData`` again: of two
tensordicts ``td`` with ``td["s"] == "x"``, ``torch.stack([td, td])[0]["s"]`` is ``"x"``. A write to
some of the elements that share a place gives each element a place of its own first.
"""

from __future__ import annotations

import operator
import warnings
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tdcompile.errors import TensorDictShapeError
from tdcompile.tensordict.nontensor.data import (
    MetaData,
    NonTensorData,
    NonTensorDataBase,
    NonTensorEntry,
    as_batch_size,
    broadcast_size,
    same_value,
    spread_values,
)
from tdcompile.tensordict.nontensor.positions import join_places, move_places
from tdcompile.tensordict.switches import capture_non_tensor_stack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tdcompile.tensordict.nontensor.positions import Moved


class NonTensorStack(NonTensorEntry):
    """Values that are no tensors, one for each element of a batch.

    ``td["s"]`` gives the values as a (nested) list that writes through; ``td.get("s")`` the stack.
    Integers, slices and views share their values with the stack that they come from, as those of
    tensors do; masks and lists of positions copy.

    Args:
        args: values, or non-tensor entries of one batch size, to be stacked.
        stack_dim: where the new dimension goes.
        batch_size: to be checked against the result.
        device: kept for information only.

    Raises:
        TensorDictShapeError: if batch sizes differ, or `batch_size` is another one.

    Example:
        >>> stack = NonTensorStack("a", "b", "c")
        >>> stack[0].data, stack[1:].tolist()
        ('a', ['b', 'c'])
    """

    # `_places` holds for each element its place in `_values`, in row-major order. None: element i
    # is at place i, and there are no others.
    __slots__ = ("_places", "_values", "stack_dim")

    def __init__(
        self, *args: Any, stack_dim: int = 0, batch_size: Any = None, device: Any = None
    ) -> None:
        entries = [a if isinstance(a, NonTensorEntry) else NonTensorData(a) for a in args]
        places: tuple[int, ...] | None = None
        if entries:
            values, size, places = _stacked(entries, stack_dim)
        else:
            values, size = [], torch.Size((0,))
        if device is None and entries:
            device = entries[0]._device
        if batch_size is not None and as_batch_size(batch_size) != size:
            expected = as_batch_size(batch_size)
            if size[: len(expected)] != expected:
                raise TensorDictShapeError(
                    f"expected values for the batch size {tuple(expected)}; found {tuple(size)}"
                )
        self._values: list[Any] = values
        self._places = places
        self._batch_size = size
        self._device = None if device is None else torch.device(device)
        self.stack_dim = stack_dim

    @classmethod
    def _of(
        cls, values: list[Any], size: torch.Size, device: Any = None, places: Any = None
    ) -> Self:
        self = object.__new__(cls)
        self._values = values
        self._places = places
        self._batch_size = size
        self._device = device
        self.stack_dim = 0
        return self

    @classmethod
    def from_list(cls, values: Any, device: Any = None) -> Self:
        """Return a stack of the items of a list; lists of one length are further dimensions.

        Example:
            >>> NonTensorStack.from_list([["a", "b"], ["c", "d"]]).batch_size
            torch.Size([2, 2])
        """
        items = values if isinstance(values, list) else [values]
        size: list[int] = [len(items)]
        while items and all(isinstance(item, list) for item in items):
            length = len(items[0])
            if any(len(item) != length for item in items):
                break
            size.append(length)
            items = [part for item in items for part in item]
        bare = [item.data if isinstance(item, NonTensorDataBase) else item for item in items]
        if bare and all(isinstance(item, NonTensorStack) for item in bare):
            inner, more, places = _stacked(bare, 0)
            return cls._of(inner, torch.Size((*size, *more[1:])), device, places)
        return cls._of(bare, torch.Size(size), device)

    @classmethod
    def from_nested(cls, values: Any, size: torch.Size, device: Any = None) -> Self | None:
        """Return a stack of values in nested lists of `size`; ``None`` if they have another one."""
        items = [values]
        for length in size:
            if not all(isinstance(item, list) and len(item) == length for item in items):
                return None
            items = [part for item in items for part in item]
        return cls._of(items, size, device)

    @classmethod
    def from_nontensordata(cls, non_tensor: NonTensorDataBase) -> Self:
        """Return a stack with the value at each element."""
        size = non_tensor._batch_size
        return cls._of([non_tensor.data] * size.numel(), size, non_tensor._device)

    # -- values ----------------------------------------------------------------------------------

    def _flat(self) -> list[Any]:
        """The values of the elements in row-major order, in a new list."""
        if self._places is None:
            return list(self._values)
        values = self._values
        return [values[place] for place in self._places]

    def _compared(self) -> Any:
        return self._flat()

    @property
    def data(self) -> Any:
        """The value, if there is one element or all are equal.

        Raises:
            AttributeError: if values differ.
        """
        values = self._flat()
        if not values or not all(same_value(values[0], value) for value in values[1:]):
            raise AttributeError(
                "expected one value for all elements, found a NonTensorStack with several: Cannot "
                "get the non-unique data of a NonTensorStack. Use .tolist()"
            )
        return values[0]

    def tolist(self, **kwargs: Any) -> Any:
        """Return the values in nested lists of the batch size.

        Example:
            >>> NonTensorStack.from_list([["a", "b"], ["c", "d"]]).tolist()
            [['a', 'b'], ['c', 'd']]
        """
        return _nested(self._flat(), self._batch_size)

    def maybe_to_stack(self) -> Self:
        """Return itself."""
        return self

    def _bare(self) -> Any:
        return _linked(self._flat(), self._batch_size, self, ())

    def append(self, value: Any) -> None:
        """Add a value at the end of the first batch dimension."""
        self.insert(len(self), value)

    def extend(self, values: Iterable[Any]) -> None:
        """Add values at the end of the first batch dimension."""
        for value in values:
            self.append(value)

    def insert(self, index: int, value: Any) -> None:
        """Insert a value before `index` of the first batch dimension.

        Raises:
            TensorDictShapeError: if `value` has another batch size than an element.
        """
        entry = value if isinstance(value, NonTensorEntry) else NonTensorData(value)
        element = self._batch_size[1:]
        if entry._batch_size != element:
            raise TensorDictShapeError(
                f"expected a value of batch size {tuple(element)}; found {tuple(entry._batch_size)}"
            )
        step = element.numel()
        start = range(len(self) + 1)[index] if index < len(self) else len(self)
        values = self._flat()
        values[start * step : start * step] = spread_values(entry, element)
        self._values = values
        self._places = None
        self._batch_size = torch.Size((self._batch_size[0] + 1, *element))

    # -- protocol --------------------------------------------------------------------------------

    def _values_for(self, size: torch.Size) -> list[Any]:
        broadcast_size(self._batch_size, size)
        if size == self._batch_size:
            return self._flat()
        places, _, _ = self._moved(torch.broadcast_to, tuple(size))
        return [self._values[place] for place in places]

    def _taken(self, moved: Moved, kind: str) -> Any:
        places, sizes, is_view = moved
        size = torch.Size(sizes)
        if len(places) == self._batch_size.numel() and kind == "spreads":
            kind = "moves"
        is_one = len(places) > 1 and len(set(places)) == 1 and self._shares()
        if size and not (kind == "picks" and len(size) < len(self._batch_size) and is_one):
            if is_view and kind != "spreads":
                return self._of(self._values, size, self._device, places)
            if kind == "spreads" or not self._shares():
                values = self._values
                return self._of([values[place] for place in places], size, self._device)
            values, places = _compact(self._values, places)
            return self._of(values, size, self._device, places)
        # See Note [Shared places].
        result = NonTensorData(None, size, self._device)
        if is_view:
            result._values, result._place = self._values, places[0]
        else:
            result._values = [self._values[places[0]]]
        return result

    def _shares(self) -> bool:
        """Tell whether elements share a place."""
        places = self._places
        return places is not None and len(set(places)) < len(places)

    def _with_batch_size(self, batch_size: torch.Size) -> Any:
        own = self._batch_size
        if batch_size == own:
            return self
        added = len(batch_size) - len(own)
        if added < 0 and own[:added] == batch_size:
            return self
        if added < 0 or batch_size[: len(own)] != own:
            raise TensorDictShapeError(
                f"expected a batch size that the values {tuple(own)} of a NonTensorStack fill; "
                f"found {tuple(batch_size)}"
            )
        places, size, _ = self._moved(_appended, tuple(batch_size))
        return self._taken((places, size, False), "spreads")

    def _shaped(self, op: Callable[..., Any], args: tuple[Any, ...], size: torch.Size) -> Any:
        return self._taken(self._moved(op, *args), _KINDS.get(op.__name__, "moves"))

    def _indexed(self, items: Any, size: torch.Size) -> Any:
        return self._taken(self._moved(operator.getitem, items), "picks")

    def _cut(self, lengths: Sequence[int] | None, dim: int, sizes: list[torch.Size]) -> list[Any]:
        if lengths is None:
            pieces = self._moved(torch.unbind, dim)
        else:
            pieces = self._moved(torch.split_with_sizes, list(lengths), dim)
        return [self._taken(piece, "picks") for piece in pieces]

    def _reduced(self, size: torch.Size) -> Any:
        if size == self._batch_size:
            return self._carried()
        raise RuntimeError(
            f"expected entries that can be reduced to {tuple(size)}, found a NonTensorStack of "
            f"{tuple(self._batch_size)}: leave it out with exclude() or filter_non_tensor_data()"
        )

    def _emptied(self, size: torch.Size) -> Any:
        # A value that is there, so that all are of one type.
        values = self._flat()[:1] or [None]
        return self._of(values * size.numel(), size, self._device)

    def _carried(self) -> Any:
        values, places = self._values, self._places
        if places is None:
            return self._of(list(values), self._batch_size, self._device)
        values, places = _compact(values, places)
        return self._of(values, self._batch_size, self._device, places)

    # -- writes ----------------------------------------------------------------------------------

    def _assign(self, value: Any) -> None:
        if isinstance(value, Tensor):
            raise RuntimeError(
                f"expected non-tensor values for a NonTensorStack, found a "
                f"{type(value).__name__}: use set() to replace the entry"
            )
        self._write(self._planned_at(..., value))

    def _planned_at(self, items: Any, value: Any) -> list[tuple[int, Any]]:
        """Return elements and values of a write of `value` to ``self[items]``."""
        elements, sizes, _ = move_places(tuple(self._batch_size), None, operator.getitem, items)
        size = torch.Size(sizes)
        entry = _as_entry(value, size)
        own = entry._batch_size
        if len(own) > len(size) and all(extra == 1 for extra in own[: len(own) - len(size)]):
            # As torch does, leading sizes of 1 may be dropped.
            tail = own[len(own) - len(size) :]
            entry = entry._shaped(torch.reshape, (tuple(tail),), tail)
        return list(zip(elements, spread_values(entry, size), strict=True))

    def _write(self, planned: list[tuple[int, Any]]) -> None:
        places = self._places
        if places is not None and self._shares():
            written = {places[element]: value for element, value in planned}
            elements = {element for element, _ in planned}
            is_whole = all(element in elements for element, p in enumerate(places) if p in written)
            if not is_whole or any(written[places[e]] is not value for e, value in planned):
                # See Note [Shared places].
                self._values, self._places = self._flat(), None
                places = None
        values = self._values
        for element, value in planned:
            values[element if places is None else places[element]] = value

    def __setitem__(self, index: Any, value: Any) -> None:
        self._write(self._planned_at(index, value))

    def __repr__(self) -> str:
        device = "" if self._device is None else f", device={self._device}"
        return f"NonTensorStack({self.tolist()!r}, batch_size={list(self._batch_size)}{device})"

    def __reduce__(self) -> tuple[Any, ...]:
        own = self._carried()
        return _restored, (own._values, tuple(self._batch_size), self._device, own._places)


def _restored(values: list[Any], size: Any, device: Any, places: Any) -> NonTensorStack:
    return NonTensorStack._of(values, torch.Size(size), device, places)


def _compact(values: list[Any], places: tuple[int, ...]) -> tuple[list[Any], tuple[int, ...]]:
    """Return the values at `places` in a list of their own, and the places there."""
    numbers = {place: number for number, place in enumerate(dict.fromkeys(places))}
    return [values[place] for place in numbers], tuple([numbers[place] for place in places])


def _as_entry(value: Any, size: torch.Size) -> Any:
    if isinstance(value, NonTensorEntry):
        return value
    if isinstance(value, list) and len(size) > 0:
        stack = NonTensorStack.from_list(value)
        count = len(stack._batch_size)
        if count <= len(size) and stack._batch_size == size[len(size) - count :]:
            return stack
    return NonTensorData(value)


def _nested(values: list[Any], size: torch.Size) -> Any:
    if not size:
        return values[0]
    for length in reversed(size[1:]):
        count = len(values) // length if length else 0
        values = [values[i * length : (i + 1) * length] for i in range(count)]
    if 0 in size[1:]:
        return [_nested([], size[1:]) for _ in range(size[0])]
    return values


class LinkedList(list[Any]):
    """The values of a :class:`NonTensorStack` as a list; assigning to an item writes to the stack.

    Anything that changes the length (``append``, ``del``, ...) ends the link: it changes the list
    only.

    Example:
        >>> td = TensorDict(s=NonTensorStack("a", "b"), batch_size=[2])
        >>> td["s"][0] = "c"
        >>> td["s"]
        LinkedList(['c', 'b'])
    """

    def __init__(self, values: Any = (), stack: Any = None, prefix: tuple[int, ...] = ()) -> None:
        super().__init__(values)
        self._stack = stack
        self._prefix = prefix

    def _td(self) -> Any:
        """The stack that items are written to, or ``None``."""
        return self._stack

    def __setitem__(self, index: Any, value: Any) -> None:
        stack = self._stack
        if stack is None:
            super().__setitem__(index, value)
            return
        if isinstance(index, slice):
            value = list(value)
            if len(value) != len(range(*index.indices(len(self)))):
                self._stack = None
                super().__setitem__(index, value)
                return
        stack[(*self._prefix, index)] = value
        own = stack[self._prefix] if self._prefix else stack
        super().__setitem__(slice(None), own._bare())

    def __repr__(self) -> str:
        return f"LinkedList({list.__repr__(self)})"

    __str__ = __repr__

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def _unlinking(name: str) -> Callable[..., Any]:
    original = getattr(list, name)

    def method(self: LinkedList, *args: Any, **kwargs: Any) -> Any:
        self._stack = None
        return original(self, *args, **kwargs)

    method.__name__ = name
    return method


for _name in (
    *("append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse"),
    *("__delitem__", "__iadd__", "__imul__"),
):
    setattr(LinkedList, _name, _unlinking(_name))


def _linked(values: list[Any], size: torch.Size, stack: Any, prefix: tuple[int, ...]) -> LinkedList:
    if len(size) == 1:
        return LinkedList(values, stack, prefix)
    step = size[1:].numel()
    rows = [
        _linked(values[i * step : (i + 1) * step], size[1:], stack, (*prefix, i))
        for i in range(size[0])
    ]
    return LinkedList(rows, stack, prefix)


# -- several entries -----------------------------------------------------------------------------


_Joined = tuple[list[Any], torch.Size, tuple[int, ...]]
"""Values, batch size and places of a stack."""


def _stacked(entries: Sequence[Any], dim: int) -> _Joined:
    """Stack entries of one batch size."""
    first = entries[0]._batch_size
    for entry in entries:
        if entry._batch_size != first:
            raise TensorDictShapeError(
                f"expected values of one batch size to stack; found {tuple(first)} and "
                f"{tuple(entry._batch_size)}"
            )
    return _joined_values(entries, torch.stack, dim)


def _joined_values(entries: Sequence[Any], op: Callable[..., Tensor], dim: int) -> _Joined:
    values: list[Any] = []
    places: list[tuple[int, ...]] = []
    for entry in entries:
        size = entry._batch_size
        start = len(values)
        if op is torch.stack and isinstance(entry, NonTensorDataBase):
            places.append((start,) * size.numel())
            values.append(entry.data)
        else:
            own = entry._carried() if isinstance(entry, NonTensorStack) else entry._as_stack(size)
            found = own._places
            count = size.numel()
            places.append(tuple([start + i for i in (range(count) if found is None else found)]))
            values += own._values
    sizes = tuple([tuple(entry._batch_size) for entry in entries])
    joined, joined_size = join_places(sizes, tuple(places), op, dim)
    return values, torch.Size(joined_size), joined


def join(values: Sequence[Any], op: Callable[..., Tensor], dim: int) -> Any:
    """Stack or concatenate the entries that tensordicts have under one key.

    Args:
        values: entries that are no batched tensors, all of the same kind (non-tensor or unbatched).
        op: ``torch.stack`` or ``torch.cat``.
        dim: a batch dimension, not negative.

    Returns:
        One value where a ``MetaData`` (or, concatenated, a ``NonTensorData``) is equal in all, or
        ``capture_non_tensor_stack()`` says so; else a ``NonTensorStack``. Of unbatched tensors the
        first one, with a warning if they do not share their data.
    """
    first = values[0]
    if isinstance(first, Tensor):
        return _joined_unbatched(values, op, dim)
    same_kind = all(type(value) is type(first) for value in values)
    if same_kind and isinstance(first, NonTensorDataBase):
        keeps = isinstance(first, MetaData) or op is not torch.stack or capture_non_tensor_stack()
        data = first.data
        if keeps and all(same_value(data, value.data) for value in values[1:]):
            # Its own batch size may be longer than that of the tensordict.
            return first._new(_joined_size(values, op, dim))
    try:
        joined, found, places = _joined_values(values, op, dim)
    except RuntimeError as error:
        raise TensorDictShapeError(
            "expected non-tensor entries whose batch sizes can be joined; found "
            f"{[tuple(value._batch_size) for value in values]}"
        ) from error
    return NonTensorStack._of(joined, found, first._device, places)


def _joined_size(values: Sequence[Any], op: Callable[..., Tensor], dim: int) -> torch.Size:
    """The batch size of the result; sizes may be symbolic."""
    first = values[0]._batch_size
    if op is torch.stack:
        return torch.Size((*first[:dim], len(values), *first[dim:]))
    length = 0
    for value in values:
        length += value._batch_size[dim]
    return torch.Size((*first[:dim], length, *first[dim + 1 :]))


def _joined_unbatched(values: Sequence[Any], op: Callable[..., Tensor], dim: int) -> Any:
    first = values[0]
    pointers = {value.untyped_storage().data_ptr() for value in values}
    if op is torch.stack and len(pointers) > 1:
        warnings.warn(
            "UnbatchedTensors with different data storage are stacked: the first one's data is "
            "kept. Use plain tensors for data that differs.",
            UserWarning,
            stacklevel=2,
        )
    return first._with_batch_size(_joined_size(values, op, dim))


def choose(condition: Any, value: Any, other: Any, size: torch.Size) -> Any:
    """Return what ``torch.where(condition, value, other)`` is for entries under one key.

    Args:
        condition: booleans that broadcast to `size`.
        value: a non-tensor entry, taken where `condition` is true.
        other: a non-tensor entry, taken elsewhere; anything else changes nothing.
        size: the batch size of the result.
    """
    if not isinstance(other, NonTensorEntry):
        return value._carried() if value._batch_size == size else value._with_batch_size(size)
    one = isinstance(value, NonTensorDataBase) and isinstance(other, NonTensorDataBase)
    if one and same_value(value.data, other.data):
        return value._new(size)
    taken = condition.expand(size).flatten().tolist()
    mine, theirs = spread_values(value, size), spread_values(other, size)
    picked = [a if yes else b for yes, a, b in zip(taken, mine, theirs, strict=True)]
    return NonTensorStack._of(picked, size, value._device)


# What an operation does to elements, see NonTensorStack._taken.
_KINDS = {
    **dict.fromkeys(("squeeze", "unbind", "split", "chunk", "narrow", "tensor_split"), "picks"),
    **dict.fromkeys(("expand", "broadcast_to"), "spreads"),
}


def _join_function(op: Callable[..., Tensor]) -> Callable[..., Any]:
    def call(tensors: Sequence[Any], dim: int = 0, *, out: Any = None) -> Any:
        for entry in tensors:
            if not isinstance(entry, NonTensorEntry):
                raise TypeError(
                    f"expected non-tensor entries only, found a {type(entry).__name__} among them"
                )
        dims = len(tensors[0]._batch_size) + (op is torch.stack)
        result = join(tensors, op, dim % dims if dims else 0)
        return result if out is None else out.update_(result)

    return call


def _where(
    self: Any, condition: Tensor, other: Any, *, out: Any = None, pad: Any = None
) -> NonTensorEntry:
    """Return our values where `condition` is true, those of `other` elsewhere; or `out` with them.

    ``pad`` is accepted as in ``TensorDict.where``.
    """
    size = torch.broadcast_shapes(self._batch_size, condition.shape)  # type: ignore[no-untyped-call]
    result: NonTensorEntry = choose(condition, self, other, size)
    return result if out is None else out.update_(result)


class _Bound:
    """A torch function with its keyword arguments."""

    def __init__(self, function: Callable[..., Any], kwargs: dict[str, Any]) -> None:
        self.function = function
        self.kwargs = kwargs

    def __call__(self, *args: Any) -> Any:
        return self.function(*args, **self.kwargs)


def _appended(places: Tensor, size: tuple[int, ...]) -> Tensor:
    """Expand to `size`, which has further dimensions at the end."""
    return places.view(*places.shape, *(1,) * (len(size) - places.ndim)).expand(size)


def _positions_method(name: str) -> Callable[..., Any]:
    operation = getattr(Tensor, name)
    kind = "spreads" if name == "unsqueeze" else _KINDS.get(name, "moves")

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        # A dimension that is left out is given as None, too.
        kwargs = {key: value for key, value in kwargs.items() if value is not None}
        defaults = iter((0, -1))
        if name == "flatten":
            args = tuple([next(defaults) if a is None else a for a in args])
        moved = self._moved(_Bound(operation, kwargs), *args)
        if isinstance(moved, list):
            return tuple([self._taken(part, kind) for part in moved])
        return self._taken(moved, kind)

    method.__name__ = name
    method.__doc__ = f"Do what ``Tensor.{name}`` does with a tensor of our batch size."
    return method


_POSITION_METHODS = (
    *("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "permute", "transpose"),
    *("swapaxes", "swapdims", "movedim", "moveaxis", "expand", "broadcast_to", "repeat", "tile"),
    *("repeat_interleave", "flip", "roll", "gather", "split", "chunk", "unbind", "tensor_split"),
    *("narrow", "index_select"),
)

TORCH_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.stack: _join_function(torch.stack),
    torch.cat: _join_function(torch.cat),
    torch.concat: _join_function(torch.cat),
    torch.concatenate: _join_function(torch.cat),
}

setattr(NonTensorEntry, "where", _where)  # noqa: B010
for _name in _POSITION_METHODS:
    setattr(NonTensorEntry, _name, _positions_method(_name))
    if hasattr(torch, _name):
        TORCH_FUNCTIONS[getattr(torch, _name)] = getattr(NonTensorEntry, _name)

"""Entries that are no batched tensors: their protocol, ``NonTensorData`` and ``MetaData``.

Key names: :class:`LeafKind` (what every loop of the container asks of such an entry),
:class:`NonTensorEntry` (base of all that hold values), :class:`NonTensorDataBase` (one value),
:class:`NonTensorData`, :class:`MetaData`, :func:`is_non_tensor`, :func:`to_leaf` (value -> entry).

Symbols: ``*B`` batch dimensions.

Invariant: an entry is changed only by an in-place write to it (``update_``, ``set_``, an indexed
write); results of leaf-wise operations and copies hold objects of their own.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from tdcompile.errors import TensorDictShapeError
from tdcompile.tensordict.nontensor.positions import move_places
from tdcompile.tensordict.switches import list_to_stack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tdcompile.tensordict.nontensor.positions import Moved

_PYTHON_SCALARS = (bool, int, float)


class LeafKind:
    """An entry that is neither a batched tensor nor a tensordict.

    It has the batch size of the tensordict that holds it, or a longer one that starts with it.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        _batch_size: torch.Size

        def __init__(self, data: Any, batch_size: Any = None) -> None: ...

    def _with_batch_size(self, batch_size: torch.Size) -> Any:
        """Return the same value for another batch size; itself if it is the same."""
        raise NotImplementedError

    def _shaped(self, op: Callable[..., Any], args: tuple[Any, ...], size: torch.Size) -> Any:
        """Return what ``op(x, *args)`` is for a tensor ``x`` of our batch size: ``(*size,)``."""
        return self._with_batch_size(size)

    def _indexed(self, items: Any, size: torch.Size) -> Any:
        """Return ``self[items]``, for a parsed index that gives ``(*size,)``."""
        return self._with_batch_size(size)

    def _cut(self, lengths: Sequence[int] | None, dim: int, sizes: list[torch.Size]) -> list[Any]:
        """Return the pieces along `dim` that a tensor is split (``None``: unbound) into."""
        return [self._with_batch_size(size) for size in sizes]

    def _reduced(self, size: torch.Size) -> Any:
        """Return what stands for us where a reduction leaves the batch size `size`."""
        return self._with_batch_size(size)

    def _emptied(self, size: torch.Size) -> Any:
        """Return what ``new_zeros`` and its kin hold in our place."""
        return self._with_batch_size(size)

    def _carried(self) -> Any:
        """Return what the result of a leaf-wise operation holds in our place."""
        return self


def as_batch_size(batch_size: Any) -> torch.Size:
    """Return a batch size given as an int, a sequence or ``None``."""
    if batch_size is None:
        return torch.Size(())
    if isinstance(batch_size, (int, torch.SymInt)):
        return torch.Size((batch_size,))  # type: ignore[arg-type]
    return torch.Size(batch_size)


class NonTensorEntry(LeafKind):
    """What all entries with values that are no tensors can do: one value or a stack of them."""

    __slots__ = ("__weakref__", "_batch_size", "_device")

    if TYPE_CHECKING:
        data: Any
        _device: torch.device | None

        def tolist(self) -> Any: ...  # noqa: D102
        def _bare(self) -> Any: ...
        def _compared(self) -> Any: ...
        def _taken(self, moved: Moved, kind: str) -> Any: ...
        def _values_for(self, size: torch.Size) -> list[Any]: ...
        def _assign(self, value: Any) -> None: ...

    # -- what it is ----------------------------------------------------------------------------

    @property
    def batch_size(self) -> torch.Size:
        """The batch size ``(*B,)``."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, batch_size: Any) -> None:
        size = as_batch_size(batch_size)
        other = self._with_batch_size(size)
        if other._batch_size != size:
            raise TensorDictShapeError(
                f"expected a batch size that the values {tuple(self._batch_size)} fill; found "
                f"{tuple(size)}"
            )
        self._batch_size = size

    @property
    def shape(self) -> torch.Size:
        """The batch size: a non-tensor value has no trailing dimensions."""
        return self._batch_size

    @property
    def batch_dims(self) -> int:
        """The number of batch dimensions."""
        return len(self._batch_size)

    ndim = batch_dims

    def dim(self) -> int:
        """Return the number of batch dimensions."""
        return len(self._batch_size)

    def size(self, dim: int | None = None) -> Any:
        """Return the batch size, or its dimension `dim`."""
        return self._batch_size if dim is None else self._batch_size[dim]

    def numel(self) -> int:
        """Return the number of elements of the batch."""
        return self._batch_size.numel()

    @property
    def device(self) -> torch.device | None:
        """The device that was given, or ``None``."""
        return self._device

    @property
    def names(self) -> list[str | None]:
        """One ``None`` a batch dimension: the names are those of the tensordict."""
        return [None] * len(self._batch_size)

    def is_empty(self) -> bool:
        """Tell whether there is nothing in it: never."""
        return False

    def to_dict(self, **kwargs: Any) -> Any:
        """Return the bare value or the nested list of them, as in a tensordict's ``to_dict``."""
        return self._bare()

    # -- copies and casts ----------------------------------------------------------------------

    def clone(self, recurse: bool = True) -> Self:
        """Return a copy that holds the same values."""
        copied: Self = self._carried()
        return copied

    def copy(self) -> Self:
        """Return a copy that holds the same values."""
        return self.clone()

    def contiguous(self, canonical: bool = False) -> Self:
        """Return itself."""
        return self

    def detach(self) -> Self:
        """Return itself."""
        return self

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Return a copy that notes another device; itself for anything but a device."""
        device = kwargs.get("device")
        for value in args:
            if isinstance(value, (str, int, torch.device)):
                device = value
        if device is None or torch.device(device) == self._device:
            return self
        result = self.clone()
        result._device = torch.device(device)
        return result

    def cpu(self) -> Self:
        """Return a copy that notes the CPU as its device."""
        return self.to("cpu")

    # -- in place ------------------------------------------------------------------------------

    def update(self, other: Any, clone: bool = False, inplace: bool = False, **kwargs: Any) -> Self:
        """Take over the value of `other` and return itself; see :meth:`update_`."""
        return self.update_(other)

    def update_(self, other: Any, clone: bool = False, **kwargs: Any) -> Self:
        """Take over the value of another non-tensor entry, in place, and return itself.

        Raises:
            ValueError: if `other` holds several values and this entry holds one.
        """
        self._assign(other)
        return self

    def copy_(self, other: Any, non_blocking: bool = False) -> Self:
        """Take over the value of another non-tensor entry; see :meth:`update_`."""
        return self.update_(other)

    def update_at_(self, other: Any, index: Any, **kwargs: Any) -> Self:
        """Write a value into a part of the batch, in place."""
        self[index] = other
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        if len(self._moved(operator.getitem, index)[0]) >= self._batch_size.numel():
            self._assign(value.data if isinstance(value, NonTensorEntry) else value)
            return
        raise ValueError(
            f"expected one value for all elements of {type(self).__name__}; found another value at "
            "the index: call maybe_to_stack(), which gives a NonTensorStack, and write to that"
        )

    # -- shapes --------------------------------------------------------------------------------

    def keys(self, *args: Any, **kwargs: Any) -> Any:
        """Return no keys: to who walks through tensordicts, there is nothing below a value."""
        return {}.keys()

    def values(self, *args: Any, **kwargs: Any) -> Any:
        """Return no values; see :meth:`keys`."""
        return {}.values()

    def items(self, *args: Any, **kwargs: Any) -> Any:
        """Return no items; see :meth:`keys`."""
        return {}.items()

    def __len__(self) -> int:
        return self._batch_size[0] if self._batch_size else 0

    def __bool__(self) -> bool:
        raise RuntimeError(
            f"expected a truth value of data, found a {type(self).__name__}: use .data or .tolist()"
        )

    def __iter__(self) -> Any:
        if not self._batch_size:
            raise TypeError(
                f"expected at least one batch dimension to iterate over, found a "
                f"{type(self).__name__} without any: use .data"
            )
        return iter(self.unbind(0))  # type: ignore[attr-defined]

    def __getitem__(self, index: Any) -> Any:
        return self._taken(self._moved(operator.getitem, index), "picks")

    if TYPE_CHECKING:
        _places: tuple[int, ...] | None

    def _moved(self, op: Callable[..., Any], *args: Any) -> Any:
        """Return where an operation puts our elements, see :func:`move_places`."""
        return move_places(tuple(self._batch_size), self._places, op, *args)

    def __eq__(self, other: object) -> Any:
        """Compare element by element: booleans of the batch size; False for anything else."""
        if isinstance(other, NonTensorEntry):
            return compare_values(self, other)
        return NotImplemented

    def __ne__(self, other: object) -> Any:
        if isinstance(other, NonTensorEntry):
            return ~compare_values(self, other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # the data may be unhashable

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        from tdcompile.tensordict.nontensor.stack import TORCH_FUNCTIONS

        implementation = TORCH_FUNCTIONS.get(func)
        if implementation is None:
            return NotImplemented
        return implementation(*args, **(kwargs or {}))


class NonTensorDataBase(NonTensorEntry):
    """One value that is no tensor, with a batch size; see :class:`NonTensorData`."""

    # `_values` is a list of our own with the one value, or that of a stack that we are an element
    # of: then we are a view. (A trace hands on the items of a list without looking at them.)
    __slots__ = ("_place", "_values")

    _places = None
    _expected: ClassVar[Any] = None

    def __init__(
        self, data: Any, batch_size: Any = None, device: Any = None, names: Any = None
    ) -> None:
        if isinstance(data, NonTensorEntry):
            data = data.data
        if self._expected is not None and not isinstance(data, self._expected):
            raise TypeError(
                f"Expected data of type {self._expected.__name__}, got {type(data).__name__}"
            )
        self._values: list[Any] = [data]
        self._place = 0
        self._batch_size = as_batch_size(batch_size)
        self._device = None if device is None else torch.device(device)

    def __class_getitem__(cls, kind: Any) -> Any:
        return _typed(cls, kind)  # type: ignore[arg-type]

    @property
    def data(self) -> Any:
        """The value; setting it changes every tensordict that holds this object."""
        return self._values[self._place]

    @data.setter
    def data(self, data: Any) -> None:
        self._values[self._place] = data

    def tolist(self, **kwargs: Any) -> Any:
        """Return `data` repeated into nested lists of the batch size; bare `data` without one.

        Example:
            >>> NonTensorData("x", batch_size=[2]).tolist()
            ['x', 'x']
        """
        result = self.data
        for size in reversed(self._batch_size):
            result = [result] * size
        return result

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the value."""
        return self.data(*args, **kwargs)

    def maybe_to_stack(self) -> Any:
        """Return a :class:`NonTensorStack` with the value at each element; itself without any."""
        if not self._batch_size:
            return self
        return self._as_stack(self._batch_size)

    def _as_stack(self, size: torch.Size) -> Any:
        """Return a stack of `size` with our value at each element."""
        from tdcompile.tensordict.nontensor.stack import NonTensorStack

        return NonTensorStack._of([self.data] * size.numel(), size, self._device)

    def _spread(self, size: torch.Size) -> Any:
        """Return what ``unsqueeze`` or ``expand`` to `size` gives: rows of us, each one place."""
        from tdcompile.tensordict.nontensor.stack import NonTensorStack

        own = self._batch_size
        is_whole = size[len(size) - len(own) :] == own or size.numel() == own.numel()
        shared = own.numel() if is_whole else 1
        count = size.numel() // shared if shared else 0
        places = tuple([place for place in range(count) for _ in range(shared)])
        return NonTensorStack._of([self.data] * count, size, self._device, places)

    # -- protocol ------------------------------------------------------------------------------

    def _bare(self) -> Any:
        return self.data

    def _with_batch_size(self, batch_size: torch.Size) -> Any:
        if batch_size == self._batch_size:
            return self
        return self._new(batch_size)

    def _new(self, batch_size: torch.Size) -> Self:
        new = object.__new__(type(self))
        new._values = [self._values[self._place]]
        new._place = 0
        new._batch_size = batch_size
        new._device = self._device
        return new

    def _carried(self) -> Any:
        return self._new(self._batch_size)

    def _shaped(self, op: Callable[..., Any], args: tuple[Any, ...], size: torch.Size) -> Any:
        if op in _SPREADING and size != self._batch_size:
            return self._spread(size)
        return self._new(size)

    def _taken(self, moved: Moved, kind: str) -> Any:
        size = torch.Size(moved[1])
        if kind == "spreads" and size != self._batch_size:
            return self._spread(size)
        return self._new(size)

    def _compared(self) -> Any:
        return self.data

    def _values_for(self, size: torch.Size) -> list[Any]:
        broadcast_size(self._batch_size, size)
        return [self.data] * size.numel()

    def _assign(self, value: Any) -> None:
        if isinstance(value, NonTensorEntry):
            if not isinstance(value, NonTensorDataBase):
                raise ValueError(
                    f"expected one value for a {type(self).__name__}, found a "
                    f"{type(value).__name__} with several: Cannot update a NonTensorDataBase "
                    "object with a NonTensorStack. Call maybe_to_stack() on it first"
                )
            value = value.data
        elif isinstance(value, Tensor):
            raise RuntimeError(
                f"expected a non-tensor value for a {type(self).__name__}, found a "
                f"{type(value).__name__}: use set() to replace the entry"
            )
        self.data = value

    def __repr__(self) -> str:
        device = "" if self._device is None else f", device={self._device}"
        size = list(self._batch_size)
        return f"{type(self).__name__}(data={self.data!r}, batch_size={size}{device})"

    def __reduce__(self) -> tuple[Any, ...]:
        cls = type(self)
        state = (self.data, tuple(self._batch_size), self._device)
        if self._expected is None:
            return cls, state
        return _make_typed, (cls.__mro__[1], self._expected, *state)


class NonTensorData(NonTensorDataBase):
    """A value that is no tensor, with the batch size of the tensordict that holds it.

    ``td["s"] = "x"`` stores ``NonTensorData("x", batch_size=td.batch_size)``; ``td["s"]`` gives
    ``"x"`` back and ``td.get("s")`` the ``NonTensorData``. Indexing and most shape operations give
    the same value with another batch size; ``unsqueeze``, ``expand`` and ``torch.stack`` a
    :class:`NonTensorStack`. ``NonTensorData[int]`` is a class that takes integers only.

    Args:
        data: any object; kept as it is, never copied.
        batch_size: leading dimensions ``(*B,)``.
        device: kept for information only.
        names: accepted; dimensions have the names that the tensordict gives them.

    Raises:
        TypeError: if a class such as ``NonTensorData[int]`` gets data of another type.

    Example:
        >>> NonTensorData("x", batch_size=[3])
        NonTensorData(data='x', batch_size=[3])
    """

    __slots__ = ()


class MetaData(NonTensorDataBase):
    """A value that has nothing to do with the batch: no shape operation makes a stack of it.

    Stacking or concatenating equal values gives the value again, for other values a
    :class:`NonTensorStack`. ``MetaData[str]`` is a class that takes strings only.

    Example:
        >>> td = TensorDict(unit=MetaData("cm"), x=torch.zeros(2), batch_size=[2])
        >>> torch.stack([td, td])["unit"]
        'cm'
    """

    __slots__ = ()

    def _shaped(self, op: Callable[..., Any], args: tuple[Any, ...], size: torch.Size) -> Any:
        return self._new(size)

    def _taken(self, moved: Moved, kind: str) -> Any:
        return self._new(torch.Size(moved[1]))

    def maybe_to_stack(self) -> Any:
        """Return itself."""
        return self


# Operations that give each element a place of its own.
_SPREADING = (torch.unsqueeze, torch.broadcast_to)


@functools.cache
def _typed(cls: type, kind: Any) -> type:
    name = f"{cls.__name__}[{kind.__name__}]"
    return type(cls)(
        name, (cls,), {"__slots__": (), "_expected": kind, "__module__": cls.__module__}
    )


def _make_typed(cls: Any, kind: Any, *state: Any) -> Any:
    return _typed(cls, kind)(*state)


def compare_values(left: NonTensorEntry, right: NonTensorEntry) -> Tensor:
    """Compare two entries element by element.

    Returns:
        Booleans of the broadcast batch size.

    Raises:
        TensorDictShapeError: if the batch sizes do not broadcast.
    """
    try:
        size = torch.broadcast_shapes(left._batch_size, right._batch_size)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise TensorDictShapeError(
            f"expected batch sizes that broadcast, to compare values; found "
            f"{tuple(left._batch_size)} and {tuple(right._batch_size)}"
        ) from error
    if isinstance(left, NonTensorDataBase) and isinstance(right, NonTensorDataBase):
        return torch.full(size, same_value(left.data, right.data))
    pairs = zip(spread_values(left, size), spread_values(right, size), strict=True)
    return torch.tensor([same_value(a, b) for a, b in pairs], dtype=torch.bool).view(size)


def spread_values(entry: Any, size: torch.Size) -> list[Any]:
    """Return the values of an entry expanded to `size`, in row-major order.

    Raises:
        TensorDictShapeError: if its batch size does not expand to `size`.
    """
    values: list[Any] = entry._values_for(size)
    return values


def broadcast_size(own: torch.Size, size: torch.Size) -> None:
    """Check that a batch size expands to another one."""
    offset = len(size) - len(own)
    if offset < 0 or any(a not in (1, b) for a, b in zip(own, size[offset:], strict=True)):
        raise TensorDictShapeError(
            f"expected values that broadcast to the batch size {tuple(size)}; found {tuple(own)}"
        )


def same_value(left: Any, right: Any) -> bool:
    """Tell whether two values are equal; for arrays and tensors, whether all elements are."""
    if left is right:
        return True
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        both = isinstance(left, Tensor) and isinstance(right, Tensor)
        return both and torch.equal(left, right)
    same = left == right
    if isinstance(same, bool):
        return same
    if hasattr(same, "all"):
        return getattr(left, "shape", None) == getattr(right, "shape", None) and bool(same.all())
    return bool(same)


def is_non_tensor(data: Any) -> bool:
    """Tell whether `data` is a non-tensor entry (an instance or a class)."""
    if isinstance(data, type):
        return issubclass(data, NonTensorEntry)
    return isinstance(data, NonTensorEntry)


def to_leaf(value: Any, batch_size: torch.Size) -> Any:
    """Return what a tensordict of `batch_size` stores for a value that is no tensor and no mapping.

    Numbers, numpy arrays of numbers and (nested) sequences of numbers or tensors become tensors (a
    numpy array shares its memory); another list a ``NonTensorStack`` of its items (see
    ``set_list_to_stack``); everything else a ``NonTensorData``. Shapes are not checked here.
    """
    kind = type(value)
    if kind in _PYTHON_SCALARS:
        return torch.tensor(value)
    if kind is str or value is None:
        return NonTensorData(value, batch_size)
    if isinstance(value, LeafKind):
        return value
    if isinstance(value, (list, tuple)) or kind.__module__ == "numpy":
        # A trace ends where torch refuses a value, so what is plainly no tensor is not offered.
        tensor = None if _holds_text(value) else _try_tensor(value)
        if tensor is not None:
            return tensor
        if isinstance(value, list) and list_to_stack():
            from tdcompile.tensordict.nontensor.stack import NonTensorStack

            return NonTensorStack.from_list(value)
    elif isinstance(value, (int, float)):
        return torch.tensor(value)
    return NonTensorData(value, batch_size)


def _holds_text(value: Any) -> bool:
    """Tell whether a (nested) sequence has an item that is text, a mapping or ``None``."""
    if isinstance(value, (list, tuple)):
        return any(_holds_text(item) for item in value)
    return value is None or isinstance(value, (str, bytes, dict, LeafKind))


def _try_tensor(value: Any) -> torch.Tensor | None:
    # Whether torch can convert a sequence or an array is known only by asking it to.
    try:
        if isinstance(value, (list, tuple)):
            if len(value) > 0 and all(isinstance(item, torch.Tensor) for item in value):
                return torch.stack(list(value))
            return torch.tensor(value)
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        return None

"""Views of keys, values and items, flat or nested.

Key names: :class:`ViewsMixin` (``keys``, ``values``, ``items``), :class:`TensorDictKeysView`,
:class:`TensorDictValuesView`, :class:`TensorDictItemsView`.

Invariant: a view shows the entries of its tensordict at the time it is asked, in insertion order.
A nested view lists what is in a tensordict before the tensordict itself among keys, and after it
among values and items, as the ``tensordict`` package does; nested views are iterated over a
snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, ItemsView, Iterator, Set, ValuesView
from typing import TYPE_CHECKING, Any

from torch import Tensor

from tdcompile.tensordict.collection import TensorCollection, default_is_leaf
from tdcompile.tensordict.keys import unravel_key_to_tuple
from tdcompile.tensordict.nontensor.data import NonTensorEntry
from tdcompile.tensordict.state import TensorDictState

_IsLeaf = Callable[[type], bool]


class _View:
    """A tensordict and what of it to show."""

    __slots__ = ("_include_nested", "_is_leaf", "_leaves_only", "_sort", "_td")

    def __init__(
        self, td: Any, include_nested: bool, leaves_only: bool, is_leaf: _IsLeaf | None, sort: bool
    ) -> None:
        self._td = td
        self._include_nested = include_nested
        self._leaves_only = leaves_only
        self._is_leaf = is_leaf
        self._sort = sort

    def _shows(self, value: Any) -> bool:
        if not self._leaves_only:
            return True
        if self._is_leaf is not None:
            return self._is_leaf(type(value))
        # What default_is_leaf says; a tensor is the common case.
        return isinstance(value, Tensor) or default_is_leaf(type(value))

    def _collect(self, td: Any, prefix: tuple[str, ...], out: list[Any]) -> None:
        """Append ``(key, value)`` pairs, a tensordict before what is in it."""
        for name, value in td.items():
            if self._shows(value):
                out.append(((*prefix, name) if prefix else name, value))
            if self._include_nested and isinstance(value, TensorCollection):
                self._collect(value, (*prefix, name), out)

    def _collect_values(self, td: Any, out: list[Any]) -> None:
        """Append values, a tensordict before what is in it."""
        for value in td.values():
            if self._shows(value):
                out.append(value)
            if self._include_nested and isinstance(value, TensorCollection):
                self._collect_values(value, out)

    def _pairs(self) -> list[tuple[Any, Any]]:
        pairs: list[tuple[Any, Any]] = []
        self._collect(self._td, (), pairs)
        if self._sort:
            pairs.sort(key=_pair_as_path)
        return pairs

    def __len__(self) -> int:
        if not self._include_nested and not self._leaves_only:
            return len(self._td._entries)
        return len(self._pairs())

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({list(self)}, include_nested={self._include_nested}, "
            f"leaves_only={self._leaves_only})"
        )

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[Any]: ...


class TensorDictKeysView(_View, Set[Any]):
    """The keys of a tensordict: a set-like view.

    ``in`` takes a string, or a nested key with ``include_nested=True``; ``&``, ``|``, ``-``, ``^``,
    ``==`` and ``<=`` work with any set.

    Example:
        >>> td = TensorDict({"n": {"x": torch.ones(3)}}, batch_size=[3])
        >>> ("n", "x") in td.keys(include_nested=True), td.keys() & {"n", "y"}
        (True, {'n'})
    """

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        if self._include_nested:
            keys: list[Any] = []
            self._collect_keys(self._td, (), keys)
            return iter(sorted(keys, key=_key_as_path) if self._sort else keys)
        entries = self._td._entries
        if self._leaves_only:
            pairs = entries.peek() if self._td._is_stack else entries.items()
            names = [name for name, value in pairs if self._shows(value)]
            return iter(sorted(names) if self._sort else names)
        return iter(sorted(entries)) if self._sort else iter(entries)

    def _collect_keys(self, td: Any, prefix: tuple[str, ...], out: list[Any]) -> None:
        """Append keys, what is in a tensordict before the tensordict."""
        for name, value in td._entries.peek() if td._is_stack else td.items():
            if isinstance(value, TensorCollection):
                self._collect_keys(value, (*prefix, name), out)
            if self._shows(value):
                out.append((*prefix, name) if prefix else name)

    def __len__(self) -> int:
        # Counted by keys: the values of a lazy stack would have to be stacked.
        if not self._include_nested and not self._leaves_only:
            return len(self._td._entries)
        return len(list(iter(self)))

    def __contains__(self, key: object) -> bool:
        """Tell whether `key` names an entry, whether or not the view shows that kind of entry.

        Raises:
            InvalidKeyError: if `key` is no key.
        """
        if isinstance(key, str):
            return key in self._td._entries
        path = unravel_key_to_tuple(key)
        if len(path) > 1 and not self._include_nested:
            return False
        return bool(self._td._has_path(path))

    def __eq__(self, other: object) -> bool:
        # A list of all keys is cheaper to compare than to build sets one element at a time.
        if isinstance(other, (set, frozenset, Set)):
            return set(self) == set(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # the keys may change

    @classmethod
    def _from_iterable(cls, it: Any) -> set[Any]:
        return set(it)


class TensorDictValuesView(_View, Collection[Any]):
    """The values of a tensordict; non-tensor entries come as they are stored."""

    __slots__ = ()

    def __iter__(self) -> Iterator[Any]:
        if self._sort:
            return iter([value for _, value in self._pairs()])
        values: list[Any] = []
        self._collect_values(self._td, values)
        return iter(values)

    def __contains__(self, value: object) -> bool:
        return any(own is value for own in self)


class TensorDictItemsView(_View, Collection[Any]):
    """The pairs of key and value of a tensordict."""

    __slots__ = ()

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return iter(self._pairs())

    def __contains__(self, item: object) -> bool:
        return any(
            isinstance(item, tuple) and len(item) == 2 and key == item[0] and value is item[1]
            for key, value in self
        )


class ViewsMixin(TensorDictState):
    """``keys``, ``values`` and ``items``."""

    __slots__ = ()

    def keys(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: _IsLeaf | None = None,
        *,
        sort: bool = False,
    ) -> TensorDictKeysView:
        """Return a set-like view of the keys.

        Args:
            include_nested: show nested keys too, as tuples.
            leaves_only: show leaves only, that is tensors (or what `is_leaf` says).
            is_leaf: tells by the class of an entry whether it is a leaf.
            sort: in alphabetical order instead of insertion order.
        """
        return TensorDictKeysView(self, include_nested, leaves_only, is_leaf, sort)

    def values(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: _IsLeaf | None = None,
        *,
        sort: bool = False,
    ) -> ValuesView[Any] | TensorDictValuesView:
        """Return a view of the values; arguments as for :meth:`keys`."""
        if not include_nested and not leaves_only and not sort:
            return self._entries.values()
        return TensorDictValuesView(self, include_nested, leaves_only, is_leaf, sort)

    def items(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: _IsLeaf | None = None,
        *,
        sort: bool = False,
    ) -> ItemsView[str, Any] | TensorDictItemsView:
        """Return a view of the pairs of key and value; arguments as for :meth:`keys`."""
        if not include_nested and not leaves_only and not sort:
            return self._entries.items()
        return TensorDictItemsView(self, include_nested, leaves_only, is_leaf, sort)

    @property
    def sorted_keys(self) -> list[str]:
        """The keys of this level in alphabetical order."""
        return sorted(self._entries)

    def non_tensor_items(self, include_nested: bool = False) -> tuple[tuple[Any, Any], ...]:
        """Return the pairs of key and entry (``NonTensorData``, ...) of the non-tensor entries."""
        return tuple(
            (key, value)
            for key, value in self.items(include_nested)
            if isinstance(value, NonTensorEntry)
        )


def _pair_as_path(pair: tuple[Any, Any]) -> tuple[str, ...]:
    return _key_as_path(pair[0])


def _key_as_path(key: Any) -> tuple[str, ...]:
    return key if isinstance(key, tuple) else (key,)

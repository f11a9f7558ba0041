"""Other arrangements of the same leaves: part of the keys, other keys, flat keys.

Key names: :class:`SelectionMixin` (``select``, ``exclude``, ``replace``, ``rename_keys``,
``split_keys``, ``flatten_keys``, ``unflatten_keys``).

Invariant: leaves are never copied. A nested tensordict that is taken whole is the same object; one
that is taken in part is new, except with ``inplace=True``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from tdcompile.errors import KeyPathError
from tdcompile.tensordict.collection import TensorCollection, is_leaf_nontensor
from tdcompile.tensordict.keys import NO_DEFAULT, format_key, unravel_key_to_tuple
from tdcompile.tensordict.mapping import MappingMixin
from tdcompile.tensordict.messages import absent_error, locked_error, through_leaf_error
from tdcompile.tensordict.nontensor.data import NonTensorEntry
from tdcompile.tensordict.state import TensorDictState


class SelectionMixin(TensorDictState):
    """Selections and rearrangements by key."""

    __slots__ = ()

    if TYPE_CHECKING:
        _last_op: Any

        def _empty_like_self(self) -> Self: ...
        def _require(self, path: tuple[str, ...]) -> Any: ...
        def _has_path(self, path: tuple[str, ...]) -> bool: ...
        def _set_path(self, path: tuple[str, ...], value: Any) -> None: ...
        def copy(self) -> Self: ...  # noqa: D102
        def update(self, input_dict_or_td: Any = None, **kwargs: Any) -> Self: ...  # noqa: D102
        def del_(self, key: Any) -> Self: ...  # noqa: D102
        def items(self, include_nested: bool = False, leaves_only: bool = False) -> Any: ...  # noqa: D102

    def select(
        self, *keys: Any, inplace: bool = False, strict: bool = True, as_tensordict: bool = False
    ) -> Self:
        """Return a tensordict with the entries of `keys` only, in that order.

        Args:
            *keys: keys, which may be nested; the key of a nested tensordict takes all of it.
            inplace: remove the other entries from this tensordict and return it.
            strict: raise for an absent key; otherwise it is left out.
            as_tensordict: return a plain tensordict of a tensorclass.

        Raises:
            KeyPathError: if a key is absent (with `strict`).
            LockedError: with `inplace`, if the tensordict is locked.

        Example:
            >>> td = TensorDict({"a": torch.ones(3), "n": {"x": torch.ones(3)}}, batch_size=[3])
            >>> list(td.select(("n", "x")).keys(include_nested=True))
            [('n', 'x'), 'n']
        """
        if inplace and self._is_locked:
            raise locked_error(())
        paths = [unravel_key_to_tuple(key) for key in keys]
        changes: list[tuple[Any, dict[str, Any]]] = []
        entries = _selected(self, paths, strict, inplace, changes)
        if not inplace:
            make: Any = self._dense if as_tensordict else self
            return make._from_entries(  # type: ignore[no-any-return]
                entries, self._batch_size, self._device, self._names
            )
        for node, kept in changes:
            node._entries.clear()
            node._entries.update(kept)
        return self

    def exclude(self, *keys: Any, inplace: bool = False) -> Self:
        """Return a tensordict without the entries of `keys`; absent keys are ignored.

        Args:
            *keys: keys, which may be nested.
            inplace: remove the entries from this tensordict and return it.

        Raises:
            LockedError: with `inplace`, if the tensordict is locked.
        """
        paths = [unravel_key_to_tuple(key) for key in keys]
        if inplace:
            present = [path for path in paths if self._has_path(path)]
            for path in present:
                if self._require(path[:-1])._is_locked:
                    raise locked_error(path)
            for path in present:
                if self._has_path(path):
                    self.del_(path)
            return self
        entries = _excluded(self, paths)
        return self._from_entries(entries, self._batch_size, self._device, self._names)

    def replace(self, *args: Any, **kwargs: Any) -> Self:
        """Return a shallow copy updated with a mapping, a tensordict or keyword entries.

        Nested tensordicts are merged into copies. Without entries, the tensordict itself.

        Raises:
            RuntimeError: if there is more than one positional argument, or it is no mapping.
        """
        if len(args) > 1:
            raise RuntimeError(
                f"expected at most one mapping of entries to replace, found {len(args)}: merge them"
            )
        source: Any = args[0] if args else None
        is_source = isinstance(source, (Mapping, TensorCollection))
        if source is not None and not is_source:
            raise RuntimeError(
                f"expected a mapping or a tensordict to replace entries, found "
                f"{type(source).__name__}: pass a dict"
            )
        if not kwargs and (source is None or len(source.keys()) == 0):
            return self
        result = self.copy()
        if source is not None:
            result.update(source)
        if kwargs:
            result.update(kwargs)
        return result

    def rename_keys(self, mapping: Mapping[Any, Any], *, strict: bool = True) -> Self:
        """Return a tensordict with several keys renamed at once; swaps and chains work.

        Renamed entries come last, in the order of `mapping`; nested tensordicts are new, and one
        that the renaming leaves empty is dropped.

        Args:
            mapping: old key -> new key; both may be nested.
            strict: raise for an absent old key; otherwise it is left out.

        Raises:
            KeyPathError: if an old key is absent (with `strict`).
            ValueError: if two old or two new keys are the same or lie inside each other, or a new
                key is taken or leads through a leaf.
        """
        moves: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        for old_key, new_key in mapping.items():
            old, new = unravel_key_to_tuple(old_key), unravel_key_to_tuple(new_key)
            if strict or self._has_path(old):
                self._require(old)
                moves.append((old, new))
        _refuse_nesting([old for old, _ in moves], "old")
        _refuse_nesting([new for _, new in moves], "new")
        result = self.copy()
        values = [result._require(old) for old, _ in moves]
        for old, new in moves:
            if old != new:
                _delete_and_prune(result, old, keep=())
        for (old, new), value in zip(moves, values, strict=True):
            if old == new:
                continue
            for depth in range(1, len(new) + 1):
                if not result._has_path(new[:depth]):
                    break
                if depth == len(new) or not isinstance(
                    result._require(new[:depth]), TensorCollection
                ):
                    raise ValueError(
                        f"expected the new key {format_key(new)} to be free, found an entry at "
                        f"{format_key(new[:depth])}: rename or delete that one too"
                    )
            result._set_path(new, value)
        return result

    def split_keys(
        self,
        *key_sets: Any,
        inplace: bool = False,
        default: Any = NO_DEFAULT,
        strict: bool = True,
        reproduce_struct: bool = False,
    ) -> tuple[Self, ...]:
        """Return one tensordict a key set, and a last one with what no set took.

        Args:
            *key_sets: lists of keys, dictionaries old key -> new key, or functions
                ``fn(path, leaf) -> bool``. Each takes from what the earlier ones left.
            inplace: take the entries out of this tensordict, which is then the last one.
            default: with ``strict=False``, the value for an absent key.
            strict: raise for an absent key.
            reproduce_struct: keep nested tensordicts that are left empty, in every result.

        Raises:
            KeyPathError: if a key is absent (with `strict`).
            LockedError: with `inplace`, if the tensordict is locked.
        """
        if inplace and self._is_locked:
            raise locked_error(())
        rest = self.copy()
        taken_paths: list[tuple[str, ...]] = []
        parts: list[Self] = []
        for key_set in key_sets:
            part = _skeleton(self) if reproduce_struct else self._empty_like_self()
            for old, new in _moves_of(key_set, rest):
                if rest._has_path(old):
                    part._set_path(new, rest._require(old))
                    taken_paths.append(old)
                    _delete_and_prune(rest, old, keep=() if not reproduce_struct else None)
                elif strict:
                    rest._require(old)
                elif default is not NO_DEFAULT and default is not None:
                    part._set_path(new, default)
            parts.append(part)
        if not reproduce_struct:
            _drop_empty(rest)
        if inplace:
            for path in taken_paths:
                _delete_and_prune(self, path, keep=() if not reproduce_struct else None)
            if not reproduce_struct:
                _drop_empty(self)
            rest = self
        return (*parts, rest)

    def separates(
        self,
        *keys: Any,
        default: Any = NO_DEFAULT,
        strict: bool = True,
        filter_empty: bool = True,
    ) -> Self:
        """Take the entries of `keys` out of this tensordict and return them in a new one.

        Args:
            *keys: keys, which may be nested.
            default: the value for an absent key; without one and with ``strict=False``, ``None``.
            strict: raise for an absent key that has no `default`.
            filter_empty: drop nested tensordicts that are left empty.

        Raises:
            KeyPathError: if a key is absent (with `strict` and without `default`).
            LockedError: if the tensordict is locked.
        """
        if self._is_locked:
            raise locked_error(())
        result = self._empty_like_self()
        paths = [unravel_key_to_tuple(key) for key in keys]
        for path in paths:
            if self._has_path(path) or (strict and default is NO_DEFAULT):
                result._set_path(path, self._require(path))
            else:
                result._set_path(path, None if default is NO_DEFAULT else default)
        for path in paths:
            if self._has_path(path):
                _delete_and_prune(self, path, keep=() if filter_empty else None)
        return result

    def filter_non_tensor_data(self) -> Self:
        """Return a tensordict without the non-tensor entries, nested ones included."""
        entries: dict[str, Any] = {}
        for name, value in self._entries.items():
            if isinstance(value, TensorCollection):
                entries[name] = value.filter_non_tensor_data()  # type: ignore[attr-defined]
            elif not isinstance(value, NonTensorEntry):
                entries[name] = value
        return self._from_entries(entries, self._batch_size, self._device, self._names)

    def filter_empty_(self) -> Self:
        """Remove nested tensordicts without leaves, in place, and return the tensordict itself.

        Raises:
            LockedError: if the tensordict is locked.
        """
        if self._is_locked:
            raise locked_error(())
        _drop_empty(self)
        return self

    # -- flat keys -----------------------------------------------------------------------------

    def flatten_keys(
        self,
        separator: str = ".",
        inplace: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
    ) -> Self:
        """Return a tensordict of one level, whose keys are the key paths joined by `separator`.

        Empty nested tensordicts are left out. As a context manager, what is in the flat tensordict
        at the end is written back to this one, in nested form.

        Args:
            separator: comes between the names.
            inplace: change this tensordict and return it; nested entries then come last.
            is_leaf: tells by class which nested values are kept whole.

        Raises:
            KeyPathError: if two key paths join to the same key.
            LockedError: with `inplace`, if the tensordict is locked.

        Example:
            >>> td = TensorDict({"n": {"x": torch.ones(3)}}, batch_size=[3])
            >>> list(td.flatten_keys().keys())
            ['n.x']
        """
        if inplace and self._is_locked:
            raise locked_error(())
        flat: dict[str, Any] = {}
        _flatten_into(self, "", separator, is_leaf or is_leaf_nontensor, flat)
        if not inplace:
            result = self._from_entries(flat, self._batch_size, self._device, self._names)
            result._last_op = ("flatten_keys", weakref.ref(self), separator)
            return result
        own = self._entries
        first = {name: value for name, value in flat.items() if name in own}
        own.clear()
        own.update(first)
        own.update(flat)
        self._last_op = ("flatten_keys", weakref.ref(self), separator)
        return self

    def unflatten_keys(self, separator: str = ".", inplace: bool = False) -> Self:
        """Return a tensordict whose keys with `separator` in them are nested; the inverse of flat.

        Nested entries come last. As a context manager, as :meth:`flatten_keys`.

        Raises:
            KeyPathError: if a key leads through a leaf or is taken.
            LockedError: with `inplace`, if the tensordict is locked.

        Example:
            >>> td = TensorDict({"n.x": torch.ones(3)}, batch_size=[3])
            >>> td.unflatten_keys()["n", "x"].shape
            torch.Size([3])
        """
        if inplace and self._is_locked:
            raise locked_error(())
        result = self.copy()
        for name in list(result._entries):
            if separator not in name:
                continue
            value = result._entries.pop(name)
            path = tuple(name.split(separator))
            for depth in range(1, len(path) + 1):
                if not result._has_path(path[:depth]):
                    break
                if depth == len(path) or not isinstance(
                    result._require(path[:depth]), TensorCollection
                ):
                    raise KeyPathError(
                        f"expected {format_key(path)} to be free for the key {name!r}, found an "
                        f"entry at {format_key(path[:depth])}: rename one of the two"
                    )
            result._set_path(path, value)
        if inplace:
            self._entries.clear()
            self._entries.update(result._entries)
            result = self
        result._last_op = ("unflatten_keys", weakref.ref(self), separator)
        return result


# -- helpers ---------------------------------------------------------------------------------------


def _selected(
    td: Any,
    paths: list[tuple[str, ...]],
    strict: bool,
    inplace: bool,
    changes: list[tuple[Any, dict[str, Any]]],
) -> dict[str, Any]:
    """Return the entries of `td` that `paths` name; with `inplace`, note what each node keeps."""
    below: dict[str, list[tuple[str, ...]]] = {}
    for path in paths:
        name = path[0]
        if name not in td._entries:
            if strict:
                raise absent_error(td, path, 0)
            continue
        rest = below.setdefault(name, [])
        if len(path) > 1:
            rest.append(path[1:])
    kept: dict[str, Any] = {}
    for name, rest in below.items():
        value = td._entries[name]
        if not rest:
            kept[name] = value
        elif not isinstance(value, MappingMixin):
            if strict:
                raise through_leaf_error(value, (name, *rest[0]))
        else:
            if inplace and value._is_locked:
                raise locked_error((name,))
            entries = _selected(value, rest, strict, inplace, changes)
            if inplace:
                kept[name] = value
            else:
                kept[name] = value._from_entries(
                    entries, value._batch_size, value._device, value._names
                )
    changes.append((td, kept))
    return kept


def _excluded(td: Any, paths: list[tuple[str, ...]]) -> dict[str, Any]:
    whole = {path[0] for path in paths if len(path) == 1}
    below: dict[str, list[tuple[str, ...]]] = {}
    for path in paths:
        if len(path) > 1:
            below.setdefault(path[0], []).append(path[1:])
    # A copy with edits: a trace keeps what is not named as it is, without looking at it.
    entries: dict[str, Any] = td._entries.copy()
    for name in whole:
        entries.pop(name, None)
    for name, rest in below.items():
        value = entries.get(name)
        if isinstance(value, MappingMixin):
            entries[name] = value._from_entries(
                _excluded(value, rest), value._batch_size, value._device, value._names
            )
    return entries


def _flatten_into(
    td: Any, prefix: str, separator: str, is_leaf: Callable[[type], bool], out: dict[str, Any]
) -> None:
    for name, value in td.items():
        key = prefix + name
        if isinstance(value, TensorCollection) and not is_leaf(type(value)):
            _flatten_into(value, key + separator, separator, is_leaf, out)
            continue
        if key in out:
            raise KeyPathError(
                f"Flattening keys in tensordict causes keys to collide: two key paths give {key!r} "
                f"when joined by {separator!r}. Use another separator"
            )
        out[key] = value


def _refuse_nesting(paths: list[tuple[str, ...]], which: str) -> None:
    for i, path in enumerate(paths):
        for j, other in enumerate(paths):
            if i != j and other[: len(path)] == path:
                raise ValueError(
                    f"expected {which} keys of which none is in another, found "
                    f"{format_key(path)} and {format_key(other)}: rename in two calls"
                )


def _delete_and_prune(td: Any, path: tuple[str, ...], keep: tuple[()] | None) -> None:
    """Delete the entry at a path, and the tensordicts on the path that this leaves empty.

    With ``keep=None`` empty tensordicts stay.
    """
    nodes = [td]
    for name in path[:-1]:
        nodes.append(nodes[-1]._entries[name])
    del nodes[-1]._entries[path[-1]]
    if keep is None:
        return
    for depth in range(len(path) - 2, -1, -1):
        if len(nodes[depth + 1]._entries) > 0:
            return
        del nodes[depth]._entries[path[depth]]


def _drop_empty(td: Any) -> None:
    for name, value in list(td._entries.items()):
        if isinstance(value, TensorCollection):
            _drop_empty(value)
            if len(value._entries) == 0:  # type: ignore[attr-defined]
                del td._entries[name]


def _skeleton(td: Any) -> Any:
    result = td._empty_like_self()
    for name, value in td._entries.items():
        if isinstance(value, TensorCollection):
            result._entries[name] = _skeleton(value)
    return result


def _moves_of(key_set: Any, td: Any) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return ``(old path, new path)`` for each key of a set of :meth:`split_keys`."""
    if isinstance(key_set, Mapping):
        pairs = list(key_set.items())
    elif callable(key_set):
        leaves = [
            (unravel_key_to_tuple(key), value)
            for key, value in td.items(include_nested=True, leaves_only=True)
        ]
        return [(path, path) for path, value in leaves if key_set(path, value)]
    else:
        pairs = [(key, key) for key in key_set]
    return [(unravel_key_to_tuple(old), unravel_key_to_tuple(new)) for old, new in pairs]

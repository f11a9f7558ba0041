"""The dictionary side of a tensordict: reading, writing and removing entries.

Key names: :class:`MappingMixin` (``get``, ``set``, ``update``, ``pop``, ``keys``, ...).

Symbols: ``*B`` batch dimensions, ``*F`` trailing dimensions of a leaf; a leaf is ``(*B, *F)``.

Invariant: a call that fails has changed nothing. Each write is planned first (every lock, key,
shape and device is looked at, values are converted) and only then carried out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tdcompile.errors import KeyPathError, TensorDictShapeError
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.keys import (
    NO_DEFAULT,
    format_entry,
    format_key,
    invalid_key,
    is_flat,
    is_nested_key,
    unravel_key_to_tuple,
)
from tdcompile.tensordict.lazy.entries import column_of, read_column
from tdcompile.tensordict.messages import (
    absent_error,
    locked_error,
    misfit_error,
    require_fields,
    through_leaf_error,
)
from tdcompile.tensordict.names import spread_names
from tdcompile.tensordict.nontensor.data import LeafKind, NonTensorData, NonTensorEntry, to_leaf
from tdcompile.tensordict.nontensor.unbatched import UnbatchedTensor
from tdcompile.tensordict.state import TensorDictState
from tdcompile.tensordict.writes import (
    Copies,
    UpdatePlan,
    Writes,
    carry_out,
    plan_copies,
    plan_copy,
    tree_of_keys,
)


class MappingMixin(TensorDictState, TensorCollection):
    """Entries by key, as in a dictionary; a key may be nested."""

    __slots__ = ()

    if TYPE_CHECKING:

        def _index(self, index: Any) -> Any: ...

        def _set_index(self, index: Any, value: Any) -> None: ...

        def _with_batch_size(self, batch_size: torch.Size, path: Any = ()) -> Self: ...

        def _with_names(self, names: tuple[str | None, ...] | None) -> Self: ...

        def to(self, *args: Any, **kwargs: Any) -> Any: ...  # noqa: D102

        def copy(self) -> Self: ...  # noqa: D102

        def unbind(self, dim: int = 0) -> tuple[Self, ...]: ...  # noqa: D102

    # -- reading -------------------------------------------------------------------------------

    def get(self, key: Any, default: Any = NO_DEFAULT, **form: Any) -> Any:
        """Return the entry at `key` itself (no copy), or `default` if it is absent.

        Unlike ``td[key]``, a non-tensor entry comes as its ``NonTensorData``, and an absent key
        without a default gives ``None``.

        Args:
            key: a string or a nested key.
            default: what an absent key gives.
            **form: how to return the tensors of a lazy stack on the way, see
                ``LazyStackedTensorDict.get``.

        Raises:
            InvalidKeyError: if `key` is no key.
            KeyThroughLeafError: if the path leads through a leaf and there is no `default`.

        Example:
            >>> td = TensorDict({"n": {"x": torch.ones(3)}}, batch_size=[3])
            >>> td.get(("n", "x")).shape, td.get("y"), td.get("y", 0)
            (torch.Size([3]), None, 0)
        """
        if form:
            column = column_of(self, unravel_key_to_tuple(key))
            if column is not None:
                return read_column(column, **form)
        if isinstance(key, str):
            return self._entries.get(key, None if default is NO_DEFAULT else default)
        return self._get_path(unravel_key_to_tuple(key), default)

    def _get_path(self, path: tuple[str, ...], default: Any) -> Any:
        entries = self._entries
        name = path[0]
        if name not in entries:
            return None if default is NO_DEFAULT else default
        value = entries[name]
        if len(path) == 1:
            return value
        if isinstance(value, MappingMixin):
            return value._get_path(path[1:], default)
        if default is NO_DEFAULT:
            raise through_leaf_error(value, path)
        return default

    def _require(self, path: tuple[str, ...]) -> Any:
        """Return the entry at a path; raise if it is absent."""
        value: Any = self
        for depth, name in enumerate(path):
            if not isinstance(value, MappingMixin):
                raise through_leaf_error(value, path[depth - 1 :])
            if name not in value._entries:
                raise absent_error(value, path, depth)
            value = value._entries[name]
        return value

    def __getitem__(self, index: Any) -> Any:
        """Return an entry (``index`` is a key) or the indexed tensordict.

        With a key, the entry itself (no copy); a non-tensor entry comes as its bare value. With
        anything else, every leaf is indexed in its batch dimensions, as torch indexes tensors.

        Raises:
            KeyPathError: if the key is absent.
            KeyThroughLeafError: if the key path leads through a leaf.
        """
        if isinstance(index, str):
            entries = self._entries
            if index not in entries:
                raise absent_error(self, (index,), 0)
            value = entries[index]
            return value._bare() if isinstance(value, NonTensorEntry) else value
        if isinstance(index, tuple) and names_an_entry(index):
            value = self
            for name in index:
                if not isinstance(name, str) or not isinstance(value, MappingMixin):
                    value = self._require(unravel_key_to_tuple(index))
                    break
                if name not in value._entries:
                    value = self._require(index)
                value = value._entries[name]
            return value._bare() if isinstance(value, NonTensorEntry) else value
        return self._index(index)

    def get_non_tensor(self, key: Any, default: Any = NO_DEFAULT) -> Any:
        """Return the bare value of a non-tensor entry, or the entry itself if it is none.

        Raises:
            KeyPathError: if `key` is absent and there is no `default`.
        """
        path = unravel_key_to_tuple(key)
        value = self._require(path) if default is NO_DEFAULT else self._get_path(path, default)
        return value._bare() if isinstance(value, NonTensorEntry) else value

    def __contains__(self, key: Any) -> bool:
        """Tell whether there is an entry at `key`, which may be nested.

        Raises:
            InvalidKeyError: if `key` is no key.
        """
        if isinstance(key, str):
            return key in self._entries
        return self._has_path(unravel_key_to_tuple(key))

    def _has_path(self, path: tuple[str, ...]) -> bool:
        value: Any = self
        last = len(path) - 1
        for depth, name in enumerate(path):
            if not isinstance(value, MappingMixin) or name not in value._entries:
                return False
            if depth < last:
                value = value._entries[name]
        return True

    def __len__(self) -> int:
        """The size of the first batch dimension; 0 without batch dimensions."""
        return self._batch_size[0] if len(self._batch_size) > 0 else 0

    def __iter__(self) -> Iterator[Self]:
        """Iterate over the first batch dimension.

        Raises:
            TypeError: if there are no batch dimensions.
        """
        if len(self._batch_size) == 0:
            raise TypeError(
                "expected at least one batch dimension to iterate over, found batch_size=[]: "
                "use keys(), values() or items() to iterate over the entries"
            )
        return iter(self.unbind(0))

    # -- conversion of a value to an entry -----------------------------------------------------

    def _to_entry(self, value: Any, path: Any) -> Any:
        """Return what this tensordict stores for `value`; nothing is written.

        Args:
            value: a tensor ``(*B, *F)``, a tensordict, a mapping, or anything for :func:`to_leaf`.
            path: key path of the value, for messages.

        Raises:
            TensorDictShapeError: if the leading dimensions are not the batch size.
        """
        if not isinstance(value, Tensor):
            if isinstance(value, TensorCollection):
                return self._adopt(value, path)
            if isinstance(value, Mapping):
                return self._nest(value, path)
            scalar = value
            value = to_leaf(value, self._batch_size)
            if not isinstance(value, Tensor):
                return self._fitted(value, path, spreads=not isinstance(scalar, list))
            if value.shape[: len(self._batch_size)] != self._batch_size:
                raise misfit_error(self, value, path, scalar)
        elif isinstance(value, UnbatchedTensor):
            value = value._with_batch_size(self._batch_size)
        elif value.shape[: len(self._batch_size)] != self._batch_size:
            raise misfit_error(self, value, path)
        device = self._device
        if device is not None and value.device != device:
            return value.to(device)
        return value

    def _fitted(self, value: LeafKind, path: Any, spreads: bool = True) -> Any:
        """Return a non-tensor entry to store: `value` itself if it has our batch size.

        One of fewer dimensions is spread over the others, if `spreads`.
        """
        size = self._batch_size
        if value._batch_size[: len(size)] == size:
            return value
        try:
            if not spreads and len(value._batch_size) < len(size):
                raise TensorDictShapeError(f"expected a list of {len(size)} levels")
            return value._with_batch_size(size)
        except TensorDictShapeError as error:
            raise TensorDictShapeError(
                f"batch dimension mismatch: expected {format_entry(path)} to start with the batch "
                f"size {list(size)}, found a "
                f"{type(value).__name__} of batch size {list(value._batch_size)}: give one value "
                "for each element"
            ) from error

    def _adopt(self, value: Any, path: Any) -> Any:
        """Return a tensordict to store: `value` itself if batch size, device and names allow."""
        ndim = len(self._batch_size)
        if value.batch_size[:ndim] != self._batch_size:
            value = value._with_batch_size(self._batch_size, path)
        if self._device is not None and value.device != self._device:
            value = value.to(self._device)
        names = self._names
        if names is not None and (value._names is None or value._names[:ndim] != names):
            value = value._with_names(_refine(value, names, path))
        return value

    def _nest(self, mapping: Mapping[Any, Any], path: Any) -> Self:
        nested = self._empty_like_self()
        prefix = path if isinstance(path, tuple) else (path,)
        for key, value in mapping.items():
            nested._set_path(unravel_key_to_tuple(key), value, prefix)
        return nested

    def _empty_like_self(self) -> Self:
        # Of a class with fields, what is nested is no instance.
        nested: Any = self._dense._from_entries
        return nested({}, self._batch_size, self._device, self._names)  # type: ignore[no-any-return]

    def _write(self, entries: dict[str, Any]) -> None:
        """Store entries that :meth:`_to_entry` made."""
        self._entries.update(entries)
        if self._names is None:
            for entry in entries.values():
                if not isinstance(entry, Tensor):
                    self._take_names(entry)

    def _take_names(self, entry: Any) -> None:
        # A tensordict without names takes those of a nested one that is written to it.
        if isinstance(entry, MappingMixin) and self._names is None and entry._names is not None:
            names = entry._names[: len(self._batch_size)]
            if any(name is not None for name in names):
                spread_names(self, names)

    # -- writing -------------------------------------------------------------------------------

    def set(
        self, key: Any, item: Any, inplace: bool = False, *, non_blocking: bool = False
    ) -> Self:
        """Store `item` at `key` and return the tensordict itself.

        A tensor or a tensordict is stored as it is (same object) where batch size and device
        allow; a mapping becomes a nested tensordict, a Python number a tensor, any other value a
        ``NonTensorData``. Nested tensordicts on the way are made where absent.

        Args:
            key: a string or a nested key.
            item: a tensor ``(*B, *F)`` or any of the above.
            inplace: copy into the existing tensor, which keeps its storage; an absent key is added.
            non_blocking: let an in-place copy between devices run asynchronously.

        Raises:
            InvalidKeyError: if `key` is no key.
            KeyThroughLeafError: if the path leads through a leaf.
            LockedError: if the tensordict is locked (and it is no in-place write).
            TensorDictShapeError: if the leading dimensions of `item` are not ``(*B,)``.

        Example:
            >>> td = TensorDict(batch_size=[3]).set(("n", "x"), torch.ones(3, 2))
            >>> td["n", "x"].shape
            torch.Size([3, 2])
        """
        if inplace and key in self:
            return self.set_(key, item, non_blocking=non_blocking)
        if isinstance(key, str) and not self._is_stack:
            if self._is_locked:
                raise locked_error((key,))
            entry = self._to_entry(item, key)
            self._entries[key] = entry
            if not isinstance(entry, Tensor) and self._names is None:
                self._take_names(entry)
            return self
        self._set_path(unravel_key_to_tuple(key), item)
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        """Store an entry (``index`` is a key, see :meth:`set`) or write into indexed rows.

        Raises:
            LockedError: if `index` is a key and the tensordict is locked.
            TensorDictShapeError: if the value does not fit.
        """
        if isinstance(index, str) or (isinstance(index, tuple) and names_an_entry(index)):
            self.set(index, value)
        else:
            self._set_index(index, value)

    def _set_path(self, path: tuple[str, ...], value: Any, prefix: tuple[str, ...] = ()) -> None:
        node, depth = self._deepest(path)
        if node._is_stack:
            writes: Writes = []
            node._plan_path(path[depth:], value, prefix + path[:depth], writes)
            carry_out(writes, [])
            return
        if node._is_locked:
            raise locked_error(prefix + path)
        if node.__tensorclass_schema__ is not None:
            require_fields(type(node), (path[depth],))
        node._write({path[depth]: node._entry_below(path, depth, value, prefix)})

    def _plan_path(
        self, path: tuple[str, ...], value: Any, prefix: tuple[str, ...], writes: Writes
    ) -> None:
        """Plan to store `value` at `path`; what :meth:`_set_path` does, in two steps."""
        node, depth = self._deepest(path)
        if node._is_stack:
            node._plan_path(path[depth:], value, prefix + path[:depth], writes)
            return
        if node._is_locked:
            raise locked_error(prefix + path)
        entry = node._entry_below(path, depth, value, prefix)
        writes.append((node, {path[depth]: entry}))

    def _entry_below(
        self, path: tuple[str, ...], depth: int, value: Any, prefix: tuple[str, ...] = ()
    ) -> Any:
        """Return what to store at ``path[depth]`` so that `value` comes to stand at `path`."""
        entry = self._to_entry(value, prefix + path)
        for name in reversed(path[depth + 1 :]):
            nested = self._empty_like_self()
            nested._write({name: entry})
            entry = nested
        return entry

    def _deepest(self, path: tuple[str, ...]) -> tuple[Self, int]:
        """Return the deepest tensordict on a path that is there, and its depth.

        A lazy stack on the way is the deepest: its elements may have more of the path, or less.
        """
        node = self
        last = len(path) - 1
        for depth in range(last):
            if node._is_stack:
                return node, depth
            child = node._entries.get(path[depth])
            if child is None:
                return node, depth
            if not isinstance(child, MappingMixin):
                raise through_leaf_error(child, path[depth:])
            node = child  # type: ignore[assignment]  # nested tensordicts are of our own class
        return node, last

    def set_(self, key: Any, item: Any, *, non_blocking: bool = False) -> Self:
        """Copy `item` into the existing entry at `key`; every leaf keeps its storage.

        Allowed on a locked tensordict. For a nested tensordict, `item` is a mapping of some of its
        entries. A non-tensor entry gets a new value.

        Raises:
            KeyPathError: if `key` is absent.
            TensorDictShapeError: if `item` does not fit the entry.
        """
        path = unravel_key_to_tuple(key)
        node = self._require(path[:-1])
        if not isinstance(node, MappingMixin):
            raise through_leaf_error(node, path[-2:])
        if path[-1] not in node._entries:
            raise absent_error(node, path, len(path) - 1)
        writes: Writes = []
        copies: Copies = []
        plan_copy(node, path[-1], item, path, writes, copies)
        carry_out(writes, copies, non_blocking)
        return self

    def set_non_tensor(self, key: Any, value: Any) -> Self:
        """Store any value at `key` as a ``NonTensorData``, also a tensor or a number.

        Raises:
            LockedError: if the tensordict is locked.
        """
        self._set_path(unravel_key_to_tuple(key), NonTensorData(value, self._batch_size))
        return self

    def setdefault(self, key: Any, default: Any, inplace: bool = False) -> Any:
        """Return the entry at `key`; store `default` there first if it is absent.

        Raises:
            LockedError: if the tensordict is locked and `key` is absent.
        """
        path = unravel_key_to_tuple(key)
        if not self._has_path(path):
            self.set(path, default, inplace=inplace)
        return self._get_path(path, None)

    def update(
        self,
        input_dict_or_td: Any = None,
        clone: bool = False,
        inplace: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Any = None,
        is_leaf: Any = None,
        update_batch_size: bool = False,
        ignore_lock: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Store the entries of a mapping or tensordict and return the tensordict itself.

        Nested tensordicts are merged, not replaced. Entries are stored as by :meth:`set`. Either
        all entries are written or none.

        Args:
            input_dict_or_td: the entries; keys may be nested.
            clone: store copies.
            inplace: copy into the existing tensors; absent keys are added.
            non_blocking: let in-place copies between devices run asynchronously.
            keys_to_update: nested keys to be taken from the input; all if ``None``.
            is_leaf: tells by class which nested values replace an entry instead of merging.
            update_batch_size: take over the batch size of a tensordict given as input, where
                neither batch size starts with the other; all keys must then be in the input.
            ignore_lock: has no effect; unlock the tensordict instead.
            **kwargs: further entries, which win over those of the input.

        Raises:
            LockedError: if the tensordict is locked (and it is no in-place write).
            TensorDictShapeError: if a value does not fit the batch size.

        Example:
            >>> td = TensorDict({"n": {"x": torch.ones(3)}}, batch_size=[3])
            >>> list(td.update({"n": {"y": torch.ones(3)}})["n"].keys())
            ['x', 'y']
        """
        if self._is_locked and not inplace:
            raise locked_error(())
        if not (inplace or clone or update_batch_size or kwargs) and keys_to_update is None:
            pending = self._tensors_to_write(input_dict_or_td)
            if pending is not None:
                self._entries.update(pending)
                return self
        if update_batch_size and _contradict(self, input_dict_or_td):
            return self._refill(input_dict_or_td, kwargs)
        plan = UpdatePlan(inplace, clone, is_leaf)
        wanted = None if keys_to_update is None else tree_of_keys(keys_to_update)
        if input_dict_or_td is not None:
            plan.add(self, input_dict_or_td, (), wanted)
        if kwargs:
            plan.add(self, kwargs, (), wanted)
        carry_out(plan.writes, plan.copies, non_blocking)
        return self

    def _tensors_to_write(self, source: Any) -> dict[str, Any] | None:
        """Return the entries for a source of tensors under plain keys; ``None`` for any other."""
        if isinstance(source, MappingMixin):
            source = source._entries
        elif not isinstance(source, dict):
            return None
        if self.__tensorclass_schema__ is not None:
            return None
        pending: dict[str, Any] = {}
        for key, value in source.items():
            if not isinstance(value, Tensor) or not isinstance(key, str):
                return None
            pending[key] = self._to_entry(value, key)
        return pending

    def _refill(self, source: Any, kwargs: dict[str, Any]) -> Self:
        """Replace all entries by those of a tensordict of another batch size, and take it over."""
        missing = [key for key in self._entries if key not in source]
        if missing:
            raise TensorDictShapeError(
                f"expected all keys in the input, whose batch size {list(source.batch_size)} is to "
                f"replace {list(self._batch_size)}, found {missing} missing: delete or add them"
            )
        fresh = self._from_entries({}, source.batch_size, self._device)
        fresh.update(source, **kwargs)
        self._entries.clear()
        self._entries.update(fresh._entries)
        slots: Any = self  # mypy takes the empty __slots__ of a mixin for all there are
        slots._batch_size = fresh._batch_size
        slots._names = fresh._names
        return self

    def update_(
        self,
        input_dict_or_td: Any = None,
        clone: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Copy the entries of a mapping or tensordict into the existing ones, in place.

        Allowed on a locked tensordict. Either all entries are written or none.

        Raises:
            KeyPathError: if a key of the input is absent here.
            TensorDictShapeError: if a value does not fit its entry.
        """
        wanted = None if keys_to_update is None else tree_of_keys(keys_to_update)
        writes: Writes = []
        copies: Copies = []
        for source in (input_dict_or_td, kwargs):
            if source is not None:
                plan_copies(self, source, (), wanted, writes, copies)
        if clone:
            copies = [
                (dest, value.clone() if isinstance(value, Tensor) else value)
                for dest, value in copies
            ]
        carry_out(writes, copies, non_blocking)
        return self

    # -- removing and renaming -----------------------------------------------------------------

    def _parent_of(self, path: tuple[str, ...]) -> Self:
        """Return the tensordict that holds the last name of a path; raise if it is absent."""
        node = self._require(path[:-1])
        if not isinstance(node, MappingMixin):
            raise through_leaf_error(node, path[-2:])
        if path[-1] not in node._entries:
            raise absent_error(node, path, len(path) - 1)
        return node  # type: ignore[return-value]

    def pop(self, key: Any, default: Any = NO_DEFAULT) -> Any:
        """Remove the entry at `key` and return it; `default` if it is absent.

        Raises:
            KeyPathError: if `key` is absent and there is no `default`.
            LockedError: if the tensordict is locked and `key` is there.
        """
        path = unravel_key_to_tuple(key)
        if default is not NO_DEFAULT and not self._has_path(path):
            return default
        node = self._parent_of(path)
        if node._is_locked:
            raise locked_error(path)
        return node._entries.pop(path[-1])

    def popitem(self) -> tuple[str, Any]:
        """Remove the entry that was added last and return its key and value.

        Raises:
            KeyPathError: if there are no entries.
            LockedError: if the tensordict is locked.
        """
        if self._is_locked:
            raise locked_error(())
        if len(self._entries) == 0:
            raise KeyPathError("expected at least one entry to pop, found an empty tensordict")
        return self._entries.popitem()

    def del_(self, key: Any) -> Self:
        """Remove the entry at `key` and return the tensordict itself.

        Raises:
            KeyPathError: if `key` is absent.
            LockedError: if the tensordict is locked.
        """
        path = unravel_key_to_tuple(key)
        node = self._parent_of(path)
        if node._is_locked:
            raise locked_error(path)
        del node._entries[path[-1]]
        return self

    def __delitem__(self, key: Any) -> None:
        """Remove the entry at `key`, see :meth:`del_`."""
        self.del_(key)

    def rename_key_(self, old_key: Any, new_key: Any, safe: bool = False) -> Self:
        """Move an entry to another key and return the tensordict itself.

        The entry goes to the end, unless `new_key` is there: then it takes its place.

        Args:
            old_key: the key of the entry.
            new_key: its new key; nested tensordicts on the way are made where absent.
            safe: refuse to replace an entry at `new_key`.

        Raises:
            KeyPathError: if `old_key` is absent, or `safe` is set and `new_key` is there.
            LockedError: if the tensordict is locked.

        Example:
            >>> td = TensorDict({"a": torch.ones(3), "b": torch.ones(3)}, batch_size=[3])
            >>> list(td.rename_key_("a", "c").keys())
            ['b', 'c']
        """
        old = unravel_key_to_tuple(old_key)
        new = unravel_key_to_tuple(new_key)
        if self._is_locked:
            raise locked_error(old)
        stack, depth = self._deepest(old)
        if stack._is_stack and stack is not self and old[:depth] == new[:depth] != new:
            stack.rename_key_(old[depth:], new[depth:], safe)
            return self
        source = self._parent_of(old)
        if old == new:
            return self
        if safe and self._has_path(new):
            raise KeyPathError(
                f"key {format_key(new)} is already present in TensorDict: "
                "delete it first, or rename with safe=False"
            )
        value = source._entries[old[-1]]
        if new[: len(old)] == old:
            # The entry moves below its own key, where nothing is left of it by then.
            node, depth = source, len(old) - 1
        else:
            node, depth = self._deepest(new)
        if node._is_locked or source._is_locked:
            raise locked_error(old)
        if node.__tensorclass_schema__ is not None:
            require_fields(type(node), (new[depth],))
        entry = node._entry_below(new, depth, value)
        del source._entries[old[-1]]
        node._write({new[depth]: entry})
        return self

    def clear(self) -> Self:
        """Remove every entry and return the tensordict itself.

        Raises:
            LockedError: if the tensordict is locked.
        """
        if self._is_locked:
            raise locked_error(())
        self._entries.clear()
        return self

    def create_nested(self, key: Any) -> Self:
        """Store an empty nested tensordict at `key`, replacing what is there; return itself.

        Raises:
            LockedError: if the tensordict is locked.
        """
        path = unravel_key_to_tuple(key)
        self._set_path(path, self._empty_like_self())
        return self


def _contradict(td: Any, source: Any) -> bool:
    """Tell whether two tensordicts have batch sizes of which neither starts with the other."""
    if not isinstance(source, TensorCollection):
        return False
    ours, theirs = td._batch_size, source.batch_size  # type: ignore[attr-defined]
    ndim = min(len(ours), len(theirs))
    return bool(ours[:ndim] != theirs[:ndim])


def names_an_entry(index: tuple[Any, ...]) -> bool:
    """Tell whether a tuple in square brackets is a key path (and no index)."""
    if len(index) == 0 or not isinstance(index[0], (str, tuple)):
        return False
    if is_flat(index) or is_nested_key(index):
        return True
    if isinstance(index[0], str):
        raise invalid_key(index)
    return False


def _refine(value: Any, names: tuple[str | None, ...], path: Any) -> tuple[str | None, ...]:
    """Return the names of `value` with those of the tensordict it is stored in filled in."""
    ndim = len(names)
    old = value._names or (None,) * len(value.batch_size)
    merged = []
    for name, own in zip(names, old, strict=False):
        if name is not None and own is not None and name != own:
            raise TensorDictShapeError(
                f"expected names {list(names)} for the batch dimensions of {format_entry(path)}, "
                f"found {list(old)}: rename the dimensions of the value first"
            )
        merged.append(own if name is None else name)
    return (*merged, *old[ndim:])

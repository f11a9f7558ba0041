"""Planning the writes of ``update``, ``update_`` and ``set_``, and carrying them out.

Key names: :class:`UpdatePlan`, :func:`plan_copies`, :func:`plan_copy`, :func:`carry_out`,
:func:`tree_of_keys`.

Invariant: planning looks at every lock, key, shape and device and changes nothing; carrying out
looks at nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tdcompile.errors import TensorDictShapeError
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.keys import NO_DEFAULT, format_entry, format_key, unravel_key_to_tuple
from tdcompile.tensordict.lazy.elements import is_uniform
from tdcompile.tensordict.lazy.entries import unstack_value
from tdcompile.tensordict.messages import (
    absent_error,
    locked_error,
    misfit_error,
    require_fields,
    through_leaf_error,
)
from tdcompile.tensordict.nontensor.data import NonTensorEntry, to_leaf
from tdcompile.tensordict.nontensor.stack import NonTensorStack
from tdcompile.tensordict.nontensor.unbatched import UnbatchedTensor

# What an update is to do: one pending dictionary a tensordict, and the in-place copies.
Writes = list[tuple[Any, dict[str, Any]]]
Copies = list[tuple[Any, Any]]


def carry_out(writes: Writes, copies: Copies, non_blocking: bool = False) -> None:
    """Do what was planned: the copies into leaves first, then the writes of entries."""
    for dest, value in copies:
        dest.copy_(value, non_blocking=non_blocking)
    for node, entries in writes:
        node._write(entries)


class UpdatePlan:
    """The writes and copies of one ``update``."""

    __slots__ = ("clone", "copies", "inplace", "is_leaf", "writes")

    def __init__(self, inplace: bool, clone: bool, is_leaf: Any) -> None:
        self.inplace = inplace
        self.clone = clone
        self.is_leaf = is_leaf
        self.writes: Writes = []
        self.copies: Copies = []

    def add(self, node: Any, source: Any, path: tuple[str, ...], wanted: Any) -> None:
        """Plan to write the items of `source` to `node`, which stands at `path`."""
        if node._is_stack:
            for element, part in zip(
                node.tensordicts, unstack_value(node, source, path), strict=True
            ):
                self.add(element, part, path, wanted)
            return
        if not isinstance(source, (TensorCollection, Mapping)):
            target = format_entry(path) if path else "td"
            raise AttributeError(
                f"expected a mapping or a tensordict to update {target} from, found "
                f"{type(source).__name__}: pass a dict"
            )
        pending: dict[str, Any] = {}
        for key, value in source.items():
            name, value, is_nested = _split_item(key, value)
            below = None if wanted is None else _wanted_below(wanted, name)
            if below is _NOTHING:
                continue
            where = (*path, name)
            current: Any = pending[name] if name in pending else node._entries.get(name)
            # Tensors are asked for first: isinstance with an abstract class is slow.
            is_tree = not isinstance(value, Tensor) and isinstance(
                value, (TensorCollection, Mapping)
            )
            if is_tree and isinstance(current, TensorCollection) and not self._is_whole(value):
                if _is_apart(value, current):
                    # Its elements may differ in keys and shapes, so ours are kept apart too.
                    if node._is_locked:
                        raise locked_error(where)
                    lazy: Any = current
                    pending[name] = current = lazy.to_lazystack(value.stack_dim)
                elif name in pending:
                    # Not yet written, and perhaps the caller's own object: merge into a copy.
                    pending[name] = current = current.copy()
                self.add(current, value, where, below)
                continue
            if is_nested and current is not None:
                raise through_leaf_error(current, where)
            if self.inplace and current is not None:
                plan_copy(node, name, value, where, self.writes, self.copies)
                continue
            if node._is_locked:
                raise locked_error(where)
            if below is not None and is_tree:
                entry = node._empty_like_self()
                self.add(entry, value, where, below)
                pending[name] = entry
                continue
            if self.clone and isinstance(value, (Tensor, TensorCollection)):
                value = value.clone()
            pending[name] = node._to_entry(value, where)
        if node.__tensorclass_schema__ is not None:
            require_fields(type(node), pending)
        if pending:
            self.writes.append((node, pending))

    def _is_whole(self, value: Any) -> bool:
        # A plain mapping becomes a tensordict, so the question is not put for it.
        if self.is_leaf is None or not isinstance(value, TensorCollection):
            return False
        return bool(self.is_leaf(type(value)))


def plan_copies(
    node: Any, source: Any, path: tuple[str, ...], wanted: Any, writes: Writes, copies: Copies
) -> None:
    """Plan to copy the items of `source` into the existing entries of `node`."""
    if node._is_stack:
        for element, part in zip(node.tensordicts, unstack_value(node, source, path), strict=True):
            plan_copies(element, part, path, wanted, writes, copies)
        return
    for key, value in source.items():
        name, value, _ = _split_item(key, value)
        below = _wanted_below(wanted, name)
        if below is _NOTHING:
            continue
        where = (*path, name)
        if name not in node._entries:
            raise absent_error(node, where, len(path))
        plan_copy(node, name, value, where, writes, copies, below)


def plan_copy(
    node: Any,
    name: str,
    value: Any,
    path: tuple[str, ...],
    writes: Writes,
    copies: Copies,
    wanted: Any = None,
) -> None:
    """Plan to copy `value` into the existing entry `name` of `node`."""
    if node._is_stack:
        for element, part in zip(node.tensordicts, unstack_value(node, value, path), strict=True):
            plan_copy(element, name, part, path, writes, copies, wanted)
        return
    dest = node._entries[name]
    if isinstance(dest, TensorCollection):
        if not isinstance(value, (TensorCollection, Mapping)):
            raise TensorDictShapeError(
                f"expected a mapping or a tensordict for the nested tensordict "
                f"{format_entry(path)}, found {type(value).__name__}: use set() to replace it"
            )
        plan_copies(dest, value, path, wanted, writes, copies)
        return
    if isinstance(dest, NonTensorEntry):
        if isinstance(value, (Tensor, TensorCollection)):
            raise TensorDictShapeError(
                f"Failed to update {format_key(path)} in tensordict: expected a non-tensor value, "
                f"found {type(value).__name__}. Use set() to replace the entry"
            )
        if isinstance(value, list):
            value = to_leaf(value, node._batch_size)
        if isinstance(dest, NonTensorStack):
            dest._planned_at(..., value)
        elif isinstance(value, NonTensorStack):
            raise TensorDictShapeError(
                f"expected one value to write to {format_entry(path)}, which has one for the whole "
                "batch, found several: use set() to replace it"
            )
        copies.append((dest, value))
        return
    if not isinstance(value, Tensor):
        value = value if isinstance(value, TensorCollection) else to_leaf(value, node._batch_size)
        if not isinstance(value, Tensor):
            raise TensorDictShapeError(
                f"Failed to update {format_key(path)} in tensordict. Cannot update an existing "
                f"tensor of shape {list(dest.shape)} in place by a {type(value).__name__}: use "
                "set() to replace the entry"
            )
    if value.shape != dest.shape:
        is_unbatched = type(dest) is UnbatchedTensor
        if not is_unbatched and value.shape[: len(node._batch_size)] != node._batch_size:
            raise misfit_error(node, value, path)
        if not _broadcasts_to(value.shape, dest.shape):
            raise TensorDictShapeError(
                f"Failed to update {format_key(path)} in tensordict: expected a value that "
                f"broadcasts to {list(dest.shape)}, found shape {list(value.shape)}. "
                "Use set() to replace the entry"
            )
    copies.append((dest, value))


def _broadcasts_to(shape: torch.Size, target: torch.Size) -> bool:
    offset = len(target) - len(shape)
    if offset < 0:
        return False
    return all(size in (1, target[offset + dim]) for dim, size in enumerate(shape))


def _split_item(key: Any, value: Any) -> tuple[str, Any, bool]:
    """Return the first name of a key and the value below it, and whether the key was nested."""
    if isinstance(key, str):
        return key, value, False
    path = unravel_key_to_tuple(key)
    for name in reversed(path[1:]):
        value = {name: value}
    return path[0], value, len(path) > 1


def _is_apart(value: Any, current: Any) -> bool:
    """Tell whether a lazy stack of differing elements is to be written into a dense tensordict."""
    if not isinstance(value, TensorCollection) or not value._is_stack or current._is_stack:
        return False
    return not is_uniform(value.tensordicts)  # type: ignore[attr-defined]


# Below a name that is not wanted.
_NOTHING: Any = NO_DEFAULT


def tree_of_keys(keys: Any) -> dict[str, Any]:
    """Return nested keys as a tree: name -> ``None`` (everything below) or a tree."""
    tree: dict[str, Any] = {}
    for key in [keys] if isinstance(keys, str) else keys:
        path = unravel_key_to_tuple(key)
        node = tree
        for name in path[:-1]:
            below = node.setdefault(name, {})
            if below is None:
                break
            node = below
        else:
            node[path[-1]] = None
    return tree


def _wanted_below(wanted: Any, name: str) -> Any:
    if wanted is None:
        return None
    return wanted.get(name, _NOTHING)

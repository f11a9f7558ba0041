"""Locking: a locked tensordict keeps its key set and its entries; values may change in place.

Key names: :class:`LockingMixin` (``is_locked``, ``lock_``, ``unlock_``).

Invariant: every nested tensordict of a locked one is locked, and holds a weak reference to each
tensordict that locked it. References go up weakly and down strongly, so there are no cycles.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Self

from tdcompile.errors import LockedError
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.state import TensorDictState


class LockingMixin(TensorDictState):
    """The lock of a tensordict and of those nested in it."""

    __slots__ = ()

    if TYPE_CHECKING:
        _lock_parents: list[weakref.ref[Any]] | None
        _last_op: tuple[str, Any, Any] | None

    @property
    def is_locked(self) -> bool:
        """Whether the tensordict is locked. Setting it locks or unlocks.

        Example:
            >>> td = TensorDict({"n": {"x": torch.ones(3)}}, batch_size=[3]).lock_()
            >>> td.is_locked, td["n"].is_locked
            (True, True)
        """
        return self._is_locked

    @is_locked.setter
    def is_locked(self, value: bool) -> None:
        if value:
            self.lock_()
        else:
            self.unlock_()

    def lock_(self) -> Self:
        """Lock this tensordict and all nested in it, and return it.

        A locked tensordict refuses new, replaced and removed entries; writes in place are allowed.
        As a context manager, the lock is released at the end unless it was there before.

        Example:
            >>> td = TensorDict({"a": torch.ones(3)}, batch_size=[3])
            >>> with td.lock_():
            ...     td.set_("a", torch.zeros(3))["a"]
            tensor([0., 0., 0.])
        """
        was_locked = self._is_locked
        if not was_locked:
            self._lock(None)
        slots: Any = self
        slots._last_op = ("lock_", None, was_locked)
        return self

    def _lock(self, parent: Any) -> None:
        slots: Any = self  # mypy takes the empty __slots__ of a mixin for all there are
        if parent is not None:
            kept = [ref for ref in getattr(self, "_lock_parents", None) or () if ref() is not None]
            if all(ref() is not parent for ref in kept):
                kept.append(weakref.ref(parent))
            slots._lock_parents = kept
        if self._is_locked:
            return
        slots._is_locked = True
        for child in self._lock_children():
            child._lock(self)

    def _lock_children(self) -> list[Any]:
        """Return the tensordicts that are locked with this one."""
        return [value for value in self._entries.values() if isinstance(value, TensorCollection)]

    def unlock_(self) -> Self:
        """Unlock this tensordict and all nested in it, and return it.

        As a context manager, the tensordict is locked again at the end if it was before.

        Raises:
            LockedError: if a tensordict is locked that holds this one or one nested in it.

        Example:
            >>> td = TensorDict({"a": torch.ones(3)}, batch_size=[3], lock=True)
            >>> with td.unlock_():
            ...     td["new"] = torch.zeros(3)
            >>> td.is_locked, list(td.keys())
            (True, ['a', 'new'])
        """
        was_locked = self._is_locked
        if was_locked:
            parent = foreign_holder(self)
            if parent is not None:
                raise LockedError(
                    "Cannot unlock a tensordict that is part of a locked graph. One with the keys "
                    f"{list(parent._entries)} holds it: unlock that one first"
                )
            nodes: list[Any] = []
            _collect_nodes(self, nodes)
            for node in nodes:
                node._is_locked = False
                node._lock_parents = None
                node._memory = None
        slots: Any = self
        slots._last_op = ("unlock_", None, was_locked)
        return self


def foreign_holder(td: Any) -> Any:
    """Return a locked tensordict outside the tree of `td` that holds part of it, or ``None``."""
    nodes: list[Any] = []
    _collect_nodes(td, nodes)
    for node in nodes:
        parent = _foreign_parent(node, nodes)
        if parent is not None:
            return parent
    return None


def _collect_nodes(node: Any, out: list[Any]) -> None:
    if any(seen is node for seen in out):
        return
    out.append(node)
    for child in node._lock_children():
        _collect_nodes(child, out)


def _foreign_parent(node: Any, nodes: list[Any]) -> Any:
    """Return a live locked tensordict that holds `node` and is none of `nodes`, or ``None``."""
    for ref in getattr(node, "_lock_parents", None) or ():
        parent = ref()
        if parent is not None and parent._is_locked and all(parent is not own for own in nodes):
            return parent
    return None

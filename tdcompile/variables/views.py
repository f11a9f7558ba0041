"""Views and iterators of a storage: they ask it when they are used, so they see later edits.

Key names: :class:`EntriesViewVariable` (``entries.keys()``, ``.values()``, ``.items()``),
:class:`EntriesIteratorVariable`.

Guards: a view none; ``in`` of a key that key; length the key set; iteration its order, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdcompile._compat import dynamo as seam
from tdcompile._compat.slots import HookMixin
from tdcompile.variables.breaks import break_graph

if TYPE_CHECKING:
    from collections.abc import Callable

    from tdcompile.variables.storage import StorageVariable

__all__ = ["EntriesIteratorVariable", "EntriesViewVariable"]

_EMPTY: dict[str, Any] = {}
_TYPES: dict[str, type] = {
    "keys": type(_EMPTY.keys()),
    "values": type(_EMPTY.values()),
    "items": type(_EMPTY.items()),
}


def _element(storage: StorageVariable, kind: str, key: str) -> seam.VariableTracker:
    """What a view of `kind` yields for `key`."""
    if kind == "keys":
        return seam.constant(key)
    value = storage.get(key)
    assert value is not None
    return value if kind == "values" else seam.TupleVariable([seam.constant(key), value])


class EntriesViewVariable(HookMixin, seam.VariableTracker):
    """A live view of the entries."""

    _nonvar_fields = {"kind", *seam.VariableTracker._nonvar_fields}  # noqa: RUF012

    def __init__(self, storage: StorageVariable, kind: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.storage = storage
        self.kind = kind

    def python_type(self) -> type:
        return _TYPES[self.kind]

    def unpack_var_sequence(self, tx: Any) -> list[seam.VariableTracker]:
        keys = self.storage.keys(tx, ordered=True)
        return [_element(self.storage, self.kind, key) for key in keys]

    def iter_hook(self, tx: Any) -> seam.VariableTracker:
        return EntriesIteratorVariable(self.storage, self.kind, self.storage.keys(tx, ordered=True))

    def length_hook(self, tx: Any) -> seam.VariableTracker:
        return self.storage.length_hook(tx)

    def contains_hook(self, tx: Any, item: seam.VariableTracker) -> seam.VariableTracker:
        if self.kind == "keys":
            return self.storage.contains_hook(tx, item)
        elements = seam.TupleVariable(self.unpack_var_sequence(tx))
        return elements.call_method(tx, "__contains__", [item], {})

    def call_method(
        self,
        tx: Any,
        name: str,
        args: list[seam.VariableTracker],
        kwargs: dict[str, seam.VariableTracker],
    ) -> seam.VariableTracker:
        hooks: dict[str, Callable[..., seam.VariableTracker]] = {
            "__contains__": self.contains_hook,
            "__iter__": self.iter_hook,
            "__len__": self.length_hook,
        }
        if name in hooks and not kwargs:
            return hooks[name](tx, *args)
        return super().call_method(tx, name, args, kwargs)

    def is_hashable(self) -> bool:
        return False


class EntriesIteratorVariable(HookMixin, seam.IteratorVariable):
    """An iterator over the entries; as in eager code, a change of size ends it."""

    _nonvar_fields = {  # noqa: RUF012
        "kind",
        "keys",
        "position",
        *seam.IteratorVariable._nonvar_fields,
    }

    def __init__(
        self,
        storage: StorageVariable,
        kind: str,
        keys: list[str],
        position: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.storage = storage
        self.kind = kind
        self.keys = keys
        self.position = position

    def python_type(self) -> type:
        return type(iter(_EMPTY))

    def next_hook(self, tx: Any) -> seam.VariableTracker:
        self._check_keys(tx)
        if self.position == len(self.keys):
            seam.raise_in_user_code(tx, StopIteration)
        self.position += 1
        return _element(self.storage, self.kind, self.keys[self.position - 1])

    def unpack_var_sequence(self, tx: Any) -> list[seam.VariableTracker]:
        self._check_keys(tx)
        rest = self.keys[self.position :]
        self.position = len(self.keys)
        return [_element(self.storage, self.kind, key) for key in rest]

    def _check_keys(self, tx: Any) -> None:
        now = self.storage.keys(tx, ordered=False)
        if len(now) != len(self.keys):
            seam.raise_in_user_code(tx, RuntimeError, "dictionary changed size during iteration")
        if now != self.keys:
            # What comes next depends on the memory of the real dictionary.
            break_graph("tdcompile: keys renamed while iterating", self.kind)

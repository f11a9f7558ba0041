"""``StorageVariable``: the entries as a row: what was read, what was edited, and a rest.

Key names: :class:`EntryState` (an input dictionary as it was when the frame began),
:class:`StorageVariable` (entry state plus edit log; answers the whole ``dict`` protocol).

Invariant: a key that the trace neither read nor wrote is neither guarded nor known; an operation
that needs all keys guards the key set first. The log, not a finished dictionary, is replayed.

Note [Edit log]
    An edit is kept once a key, in the order in which the keys come to stand:
    overwriting a key keeps its place, deleting it and setting it again moves it to the end.
    Deletions of different keys commute with all other edits, so a replay deletes first and sets
    then, in log order; on the real dictionary this gives eager's insertion order whatever its other
    keys are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tdcompile._compat import dynamo as seam
from tdcompile._compat.slots import HookMixin
from tdcompile.variables.calls import BoundCallVariable
from tdcompile.variables.views import EntriesIteratorVariable, EntriesViewVariable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Edit", "EntryState", "NestedCopies", "StorageVariable", "items_of_mapping"]


class EntryState:
    """An input's dictionary at the start of the frame: its source and what is known of it."""

    __slots__ = ("absent", "entries", "is_complete", "is_ordered", "present", "source", "value")

    def __init__(self, value: dict[str, Any], source: seam.Source) -> None:
        self.value = value
        self.source = source
        self.entries: dict[str, seam.VariableTracker] = {}
        self.present: set[str] = set()
        self.absent: set[str] = set()
        self.is_complete = False
        self.is_ordered = False

    def contains(self, key: str) -> bool:
        """Whether the input has `key`. Guards: the presence or the absence of this one key."""
        if key in self.value:
            if not self.is_complete and key not in self.present:
                seam.install_presence_guard(self.source, key)
            self.present.add(key)
            return True
        if not self.is_complete and key not in self.absent:
            seam.install_absence_guard(self.source, key)
        self.absent.add(key)
        return False

    def get(self, key: str) -> seam.VariableTracker | None:
        """The entry under `key`, lazily: its own guards come when it is used. None if absent."""
        entry = self.entries.get(key)
        if entry is not None:
            return entry
        if not self.contains(key):
            return None
        entry = seam.lazy_input(self.value[key], seam.DictGetItemSource(self.source, key))
        self.entries[key] = entry
        return entry

    def keys(self, tx: Any, *, ordered: bool) -> list[str]:
        """All keys, in the order of this call. Guards: the key set; with `ordered` its order."""
        if not self.is_complete or (ordered and not self.is_ordered):
            seam.install_key_set_guard(tx, self.source, ordered=ordered)
            self.is_complete = True
            self.is_ordered = self.is_ordered or ordered
        return list(self.value)


class NestedCopies(Protocol):
    """How a shallow copy copies nested tensordicts (``variables.copies``).

    Attributes:
        at_run_time: importable function ``(entries, originals, templates)`` -> new ``dict``,
            for the rest.
        originals: sources of the tensordicts that the trace had edited when the copy was made.
        templates: copies of these as they were then; whichever entry is an original is copied from
            its template.
    """

    at_run_time: Callable[..., dict[str, Any]]
    originals: list[seam.Source]
    templates: list[seam.VariableTracker]

    def now(self, entry: seam.VariableTracker) -> seam.VariableTracker:
        """A copy of an entry as it is now; a leaf is its own copy."""

    def at_entry(self, entry: seam.VariableTracker) -> seam.VariableTracker:
        """A copy of an input's entry as it was when the shallow copy was made."""


@dataclass(slots=True)
class Edit:
    """What became of one key: its new value, or None for deleted; `moved` if it went to the end."""

    value: seam.VariableTracker | None
    moved: bool = False


class StorageVariable(HookMixin, seam.VariableTracker):
    """The entries of a tensordict while tracing; Python sees a ``dict``.

    Guards: reading a key guards its presence and, once used, its value; a write guards nothing;
    ``len`` and iteration guard the key set (iteration by user code also its order).
    """

    _cpython_type = dict
    _nonvar_fields = {  # noqa: RUF012 - upstream's convention
        "base",
        "cleared",
        "nested_copies",
        "known_alias_items",
        "notify",
        *seam.VariableTracker._nonvar_fields,
    }

    def __init__(
        self,
        base: EntryState | None = None,
        edits: dict[str, Edit] | None = None,
        cleared: bool = False,
        notify: Callable[[Any], None] | None = None,
        values: dict[str, seam.VariableTracker] | None = None,
        nested_copies: NestedCopies | None = None,
        templates: Any = None,
        alias: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.base = base
        self.edits: dict[str, Edit] = {} if edits is None else edits
        self.cleared = cleared
        # Called before each edit: the owner records that it is modified (and may refuse).
        self.notify = notify
        # Upstream's walk over live values looks into dictionaries of trackers, not into Edit
        # records.
        self.values: dict[str, seam.VariableTracker] = {} if values is None else values
        # A dictionary of the traced program that became this storage and may still be used under
        # its own name, and its items as both sides last agreed on them.
        self.alias = alias
        self.known_alias_items: dict[str, seam.VariableTracker] = (
            {} if alias is None else seam.dict_items(alias)
        )
        # Set where this is a shallow copy whose nested tensordicts are copies, too.
        self.nested_copies = nested_copies
        # For upstream's walks over live values.
        self.templates = [] if nested_copies is None else nested_copies.templates

    @classmethod
    def of_items(
        cls, items: dict[str, seam.VariableTracker], alias: seam.VariableTracker | None = None
    ) -> StorageVariable:
        """A dictionary made in the trace, with these items; `alias` is the program's own."""
        return cls(
            alias=alias,
            edits={key: Edit(value) for key, value in items.items()},
            values={key: value for key, value in items.items() if not _is_unread(value)},
            mutation_type=seam.new_mutation(),
        )

    def python_type(self) -> type:
        return dict

    # ---- the row --------------------------------------------------------------------------------

    @property
    def _rest(self) -> EntryState | None:
        return None if self.cleared else self.base

    def _sync(self) -> None:
        """Take over what the program did to the dictionary under its own name."""
        if self.alias is None:
            return
        now = seam.dict_items(self.alias)
        known = self.known_alias_items
        if list(now) == list(known) and all(now[key] is known[key] for key in now):
            return
        # Made in the trace, so the dictionary is its edits and nothing else.
        self.edits.clear()
        self.values.clear()
        for key, value in now.items():
            self._record(key, Edit(value))
        self.known_alias_items = now

    def _tell_alias(self, tx: Any, method: str, *args: seam.VariableTracker) -> None:
        if self.alias is not None:
            self.alias.call_method(tx, method, list(args), {})
            self.known_alias_items = seam.dict_items(self.alias)

    def contains(self, key: str) -> bool:
        self._sync()
        edit = self.edits.get(key)
        if edit is not None:
            return edit.value is not None
        return self._rest is not None and self._rest.contains(key)

    def get(self, key: str) -> seam.VariableTracker | None:
        self._sync()
        edit = self.edits.get(key)
        if edit is not None:
            return edit.value
        found = None if self._rest is None else self._rest.get(key)
        if found is not None and self.nested_copies is not None:
            # What the trace did to the original since is not in the copy: it was not looked at
            # when the copy was made, so it was then as at the start of the frame.
            copied = self.nested_copies.at_entry(found)
            if copied is not found:
                # From now on this copy is what the key holds; it keeps the key's place.
                self._record(key, Edit(copied))
            return copied
        return found

    def keys(self, tx: Any, *, ordered: bool) -> list[str]:
        self._sync()
        kept = [] if self._rest is None else self._rest.keys(tx, ordered=ordered)
        edits = self.edits
        stay = [
            k for k in kept if k not in edits or (edits[k].value is not None and not edits[k].moved)
        ]
        known = set(stay)
        return stay + [k for k, edit in edits.items() if edit.value is not None and k not in known]

    def items(self, tx: Any, *, ordered: bool) -> Iterator[tuple[str, seam.VariableTracker]]:
        for key in self.keys(tx, ordered=ordered):
            value = self.get(key)
            assert value is not None
            yield key, value

    def set(self, tx: Any, key: str, value: seam.VariableTracker) -> None:
        """Write one key. Guards: none."""
        self._before_edit(tx)
        edit = self.edits.get(key)
        if edit is not None and edit.value is None:
            del self.edits[key]
            edit = Edit(value, moved=True)
        elif edit is not None:
            edit.value = value
        else:
            edit = Edit(value)
        self._record(key, edit)
        self._tell_alias(tx, "__setitem__", seam.constant(key), value)

    def delete(self, tx: Any, key: str) -> bool:
        """Delete one key; False (and nothing done) if it is absent. Guards: its presence."""
        edit = self.edits.get(key)
        if edit is None:
            if not self.contains(key):
                return False
        elif edit.value is None:
            return False
        self._before_edit(tx)
        self.edits.pop(key, None)
        self.values.pop(key, None)
        rest = self._rest
        if (
            rest is not None
            and key not in rest.absent
            and not (rest.is_complete and key not in rest.value)
        ):
            self.edits[key] = Edit(None)
        self._tell_alias(tx, "__delitem__", seam.constant(key))
        return True

    def clear(self, tx: Any) -> None:
        self._before_edit(tx)
        self.cleared = True
        self.edits.clear()
        self.values.clear()
        self._tell_alias(tx, "clear")

    def assign(self, tx: Any, other: StorageVariable) -> None:
        """Take over the content of `other`: what ``self._entries = other`` means."""
        items = dict(other.items(tx, ordered=True))
        self.clear(tx)
        for key, value in items.items():
            self.set(tx, key, value)
        self.alias, self.known_alias_items = other.alias, other.known_alias_items

    def snapshot(self) -> StorageVariable:
        """A new dictionary with the content of this one; the rest stays symbolic.

        Guards: none; of a shallow copy the key set and the type of each entry, since its nested
        copies are then in two dictionaries and must be made once.
        """
        self._sync()
        if self.nested_copies is not None and self._rest is not None:
            for key in self.keys(seam.current_translator(), ordered=False):
                self.get(key)
        return self._duplicate(self.nested_copies)

    def _duplicate(self, nested_copies: NestedCopies | None) -> StorageVariable:
        return StorageVariable(
            base=self.base,
            edits={key: Edit(edit.value, edit.moved) for key, edit in self.edits.items()},
            cleared=self.cleared,
            values=dict(self.values),
            nested_copies=nested_copies,
            mutation_type=seam.new_mutation(),
        )

    def shallow_copy(self, nested_copies: NestedCopies) -> StorageVariable:
        """A snapshot whose nested tensordicts are copies. Guards: none until a key is read."""
        self._sync()
        copied = self._duplicate(nested_copies)
        for key, edit in self.edits.items():
            if edit.value is not None:
                copied._record(key, Edit(nested_copies.now(edit.value), edit.moved))
        if self.nested_copies is None and self._rest is not None:
            # Those that the trace has in hand may be edited already, and may be from now on.
            for key, entry in self._rest.entries.items():
                if key not in self.edits and entry.is_realized():
                    value = nested_copies.now(entry)
                    if value is not entry:
                        copied._record(key, Edit(value))
        return copied

    def _record(self, key: str, edit: Edit) -> None:
        self.edits[key] = edit
        value = edit.value
        if value is None or _is_unread(value):
            self.values.pop(key, None)
        else:
            self.values[key] = value

    def _before_edit(self, tx: Any) -> None:
        self._sync()
        if self.notify is not None:
            self.notify(tx)

    # ---- the dict protocol ----------------------------------------------------------------------

    def call_method(
        self,
        tx: Any,
        name: str,
        args: list[seam.VariableTracker],
        kwargs: dict[str, seam.VariableTracker],
    ) -> seam.VariableTracker:
        handler = _DICT_METHODS.get(name)
        if handler is None or kwargs:
            return super().call_method(tx, name, args, kwargs)
        return handler(self, tx, *args)

    def getattr_hook(self, tx: Any, name: str) -> seam.VariableTracker:
        if name in _DICT_METHODS:
            return BoundCallVariable(self, name)
        return super().getattr_hook(tx, name)  # type: ignore[misc,no-any-return]

    def subscript_hook(self, tx: Any, key: seam.VariableTracker) -> seam.VariableTracker:
        value = self.get(_key(tx, key))
        if value is None:
            seam.raise_in_user_code(tx, KeyError, _key(tx, key))
        return value

    def assign_subscript_hook(
        self, tx: Any, key: seam.VariableTracker, value: seam.VariableTracker | None
    ) -> seam.VariableTracker:
        name = _key(tx, key)
        if value is not None:
            self.set(tx, name, value)
        elif not self.delete(tx, name):
            seam.raise_in_user_code(tx, KeyError, name)
        return seam.constant(None)

    def contains_hook(self, tx: Any, item: seam.VariableTracker) -> seam.VariableTracker:
        return seam.constant(self.contains(_key(tx, item)))

    def length_hook(self, tx: Any) -> seam.VariableTracker:
        return seam.constant(len(self.keys(tx, ordered=False)))

    def bool_hook(self, tx: Any) -> seam.VariableTracker:
        return seam.constant(bool(self.keys(tx, ordered=False)))

    def iter_hook(self, tx: Any) -> seam.VariableTracker:
        return EntriesIteratorVariable(self, "keys", self.keys(tx, ordered=True))

    def unpack_var_sequence(self, tx: Any) -> list[seam.VariableTracker]:
        return [seam.constant(key) for key in self.keys(tx, ordered=True)]

    def is_hashable(self) -> bool:
        return False

    # ---- bytecode -------------------------------------------------------------------------------

    def reconstruct(self, codegen: seam.PyCodegen) -> None:
        """Push a new ``dict`` with this content: base, then deletions, then sets in log order."""
        self._sync()
        rest = self._rest
        sets = {key: edit.value for key, edit in self.edits.items() if edit.value is not None}
        if rest is not None and rest.is_ordered and all(key in self.edits for key in rest.value):
            # Nothing of the rest is left but its order, which is known.
            order = self.keys(codegen.tx, ordered=True)
            self._push_map(codegen, {key: sets[key] for key in order})
            return
        gone = [key for key, edit in self.edits.items() if edit.value is None or edit.moved]
        if rest is None:
            self._push_map(codegen, sets)
            return
        is_fresh = self._push_rest(codegen, rest)
        if gone and not is_fresh:
            self._push_method_call(codegen, "copy")
            is_fresh = True
        for key in gone:
            # pop with a default: a key that was set blindly and deleted may have been absent.
            codegen.append_output(seam.create_instruction("COPY", arg=1))
            codegen.load_method("pop")
            codegen.append_output(codegen.create_load_const(key))
            codegen.append_output(codegen.create_load_const(None))
            codegen.extend_output(seam.create_call_method(2))
            codegen.append_output(seam.create_instruction("POP_TOP"))
        if not is_fresh:
            self._push_method_call(codegen, "copy")
        for key, value in sets.items():
            # A copy and stores, not a union of two: half the time of one, and no second dict.
            codegen.append_output(seam.create_instruction("COPY", arg=1))
            codegen.clear_tos()
            codegen(value)
            codegen.append_output(seam.create_instruction("SWAP", arg=2))
            codegen.append_output(codegen.create_load_const(key))
            codegen.append_output(seam.create_instruction("STORE_SUBSCR"))
        codegen.clear_tos()

    def _push_rest(self, codegen: seam.PyCodegen, rest: EntryState) -> bool:
        """Push the input's dictionary, or a copy of it with copied nested ones; True for a copy."""
        is_all_set = rest.is_complete and all(key in self.edits for key in rest.value)
        if self.nested_copies is None or is_all_set:
            codegen(rest.source)
            return False
        function = self.nested_copies.at_run_time
        codegen.add_push_null(
            lambda: codegen.load_import_from(function.__module__, function.__name__)
        )
        codegen(rest.source)
        originals, templates = self.nested_copies.originals, self.nested_copies.templates
        if originals:
            codegen.foreach(originals)
            codegen.append_output(seam.create_instruction("BUILD_TUPLE", arg=len(originals)))
            codegen.clear_tos()
            codegen.foreach(templates)
            codegen.append_output(seam.create_instruction("BUILD_TUPLE", arg=len(templates)))
            codegen.clear_tos()
        codegen.extend_output(seam.create_call_function(3 if originals else 1, False))
        return True

    @staticmethod
    def _push_method_call(codegen: seam.PyCodegen, name: str) -> None:
        codegen.load_method(name)
        codegen.extend_output(seam.create_call_method(0))

    @staticmethod
    def _push_map(codegen: seam.PyCodegen, items: dict[str, seam.VariableTracker]) -> None:
        for value in items.values():
            codegen(value)
        codegen.append_output(codegen.create_load_const(tuple(items)))
        codegen.append_output(seam.create_instruction("BUILD_CONST_KEY_MAP", arg=len(items)))
        codegen.clear_tos()


def _is_unread(vt: seam.VariableTracker) -> bool:
    return isinstance(vt, seam.LazyVariableTracker) and not vt.is_realized()


def _key(tx: Any, vt: seam.VariableTracker) -> str:
    return vt.as_python_constant()  # type: ignore[no-any-return]


def _pop(storage: StorageVariable, tx: Any, key: Any, *default: Any) -> seam.VariableTracker:
    name = _key(tx, key)
    value = storage.get(name)
    if value is None:
        if default:
            return default[0]  # type: ignore[no-any-return]
        seam.raise_in_user_code(tx, KeyError, name)
    storage.delete(tx, name)
    return value


def _popitem(storage: StorageVariable, tx: Any) -> seam.VariableTracker:
    keys = storage.keys(tx, ordered=True)
    if not keys:
        seam.raise_in_user_code(tx, KeyError, "popitem(): dictionary is empty")
    value = storage.get(keys[-1])
    assert value is not None
    storage.delete(tx, keys[-1])
    return seam.TupleVariable([seam.constant(keys[-1]), value])


def _get(storage: StorageVariable, tx: Any, key: Any, *default: Any) -> seam.VariableTracker:
    value = storage.get(_key(tx, key))
    if value is not None:
        return value
    return default[0] if default else seam.constant(None)


def _setdefault(storage: StorageVariable, tx: Any, key: Any, *default: Any) -> seam.VariableTracker:
    value = storage.get(_key(tx, key))
    if value is None:
        value = default[0] if default else seam.constant(None)
        storage.set(tx, _key(tx, key), value)
    return value


def _view(kind: str) -> Callable[..., seam.VariableTracker]:
    return lambda storage, tx: EntriesViewVariable(storage, kind)


def items_of_mapping(tx: Any, mapping: seam.VariableTracker) -> dict[str, seam.VariableTracker]:
    """The items of a tracked dictionary, whoever's tracker it is."""
    mapping = mapping.realize()
    if isinstance(mapping, StorageVariable):
        return dict(mapping.items(tx, ordered=True))
    pairs = mapping.call_method(tx, "items", [], {}).unpack_var_sequence(tx)
    out = {}
    for pair in pairs:
        key, value = pair.unpack_var_sequence(tx)
        out[key.as_python_constant()] = value
    return out


def _update(storage: StorageVariable, tx: Any, other: Any) -> seam.VariableTracker:
    for key, value in items_of_mapping(tx, other).items():
        storage.set(tx, key, value)
    return seam.constant(None)


def _clear(storage: StorageVariable, tx: Any) -> seam.VariableTracker:
    storage.clear(tx)
    return seam.constant(None)


_DICT_METHODS: dict[str, Callable[..., seam.VariableTracker]] = {
    "__getitem__": StorageVariable.subscript_hook,
    "__setitem__": StorageVariable.assign_subscript_hook,
    "__delitem__": lambda storage, tx, key: storage.assign_subscript_hook(tx, key, None),
    "__contains__": StorageVariable.contains_hook,
    "__len__": StorageVariable.length_hook,
    "__iter__": StorageVariable.iter_hook,
    "clear": _clear,
    "copy": lambda storage, tx: storage.snapshot(),
    "get": _get,
    "items": _view("items"),
    "keys": _view("keys"),
    "pop": _pop,
    "popitem": _popitem,
    "setdefault": _setdefault,
    "update": _update,
    "values": _view("values"),
}

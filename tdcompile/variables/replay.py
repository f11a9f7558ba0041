"""Writing a trace's edits back: what the compiled frame does to the caller's tensordicts.

Key names: :func:`codegen_update_mutated` (wraps ``SideEffects.codegen_update_mutated``).

Invariant: the values of all edits are loaded before anything is written, ours and upstream's, so a
swap of two keys or a leaf that is only carried along is right. Then upstream's writes, then ours:
locks that were released, deletions, sets in log order (see Note [Edit log] in ``storage.py``),
fields, locks that were taken.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from tdcompile._compat import dynamo as seam
from tdcompile._compat.guards import require_distinct
from tdcompile.variables.fields import InputField
from tdcompile.variables.layout import FIELDS
from tdcompile.variables.tensordict import TensorDictVariable, push_field

if TYPE_CHECKING:
    from collections.abc import Callable

    from tdcompile.variables.storage import Edit, EntryState

__all__ = ["codegen_update_mutated"]


def codegen_update_mutated(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make the replacement of ``SideEffects.codegen_update_mutated``."""

    def replacement(side_effects: Any, codegen: seam.PyCodegen, *args: Any, **kwargs: Any) -> Any:
        modified = side_effects._get_modified_vars()
        ours = [vt for vt in modified if isinstance(vt, TensorDictVariable)]
        if not ours:
            return original(side_effects, codegen, *args, **kwargs)
        # One of the tensordicts is written, so what the others are read for depends on it.
        require_distinct(codegen.tx)
        replays = [_Replay(vt, codegen) for vt in ours]
        # Upstream has no branch for our trackers; it sees the others only.
        side_effects._get_modified_vars = lambda: [vt for vt in modified if vt not in ours]
        try:
            result = original(side_effects, codegen, *args, **kwargs)
        finally:
            del side_effects._get_modified_vars
        for phase in (_Replay.unlock, _Replay.write, _Replay.lock):
            for replay in replays:
                phase(replay, codegen)
        codegen.clear_tos()
        return result

    return replacement


class _Replay:
    """The write-back of one input tensordict: values in local variables, then the writes."""

    def __init__(self, td: TensorDictVariable, codegen: seam.PyCodegen) -> None:
        state, entry_state = td.input_state, td.entry_state
        assert state is not None
        assert entry_state is not None
        self.cleared = td.storage.cleared
        self.removed: list[str] = []
        self.sets: list[tuple[str, str]] = []
        self.fields: list[tuple[str, str]] = []
        self.unlocked: tuple[str, ...] = ()
        self.is_locked = False
        self.object = _store(codegen, lambda: codegen(state.source))
        edits = {
            key: edit
            for key, edit in td.storage.edits.items()
            if self.cleared or not _writes_what_was_there(entry_state, key, edit)
        }
        self.entries = ""
        if edits or self.cleared:
            self.entries = _store(codegen, lambda: codegen(entry_state.source))
        for key, edit in edits.items():
            if edit.value is None or edit.moved:
                self.removed.append(key)
            if edit.value is not None:
                self.sets.append((key, _store(codegen, functools.partial(codegen, edit.value))))
        for field in FIELDS:
            value = td.fields[field]
            if isinstance(value, InputField) and value.state is state:
                continue
            if field == "is_locked" and td.layout.may_unlock is not None:
                self._plan_lock(td, value.as_python_constant())
            else:
                name = _store(codegen, functools.partial(push_field, codegen, value))
                self.fields.append((getattr(td.layout, field), name))

        for name, note in td.notes.items():
            self.fields.append((name, _store(codegen, functools.partial(codegen, note))))

    def _plan_lock(self, td: TensorDictVariable, is_locked: bool) -> None:
        assert td.input_state is not None
        if is_locked == td.input_state.peek("is_locked") and not td.was_unlocked:
            return  # The flag was read, hence guarded, before it was written.
        self.is_locked = is_locked
        if not is_locked or td.was_unlocked:
            self.unlocked = (td.layout.is_locked, *td.layout.lock_references)

    def unlock(self, codegen: seam.PyCodegen) -> None:
        """Clear the flag and the references to holders: the trace checked that this is allowed."""
        for index, attribute in enumerate(self.unlocked):
            value = None if index else False
            codegen.append_output(codegen.create_load_const(value))
            self._store_attribute(codegen, attribute)

    def write(self, codegen: seam.PyCodegen) -> None:
        """Deletions, sets in log order, fields."""
        if self.cleared:
            _call(codegen, self.entries, "clear")
        else:
            for key in self.removed:
                # With a default: a key that was set blindly and deleted may have been absent.
                _call(codegen, self.entries, "pop", key, None)
        for key, value in self.sets:
            codegen.append_output(codegen.create_load(value))
            codegen.append_output(codegen.create_load(self.entries))
            codegen.append_output(codegen.create_load_const(key))
            codegen.append_output(seam.create_instruction("STORE_SUBSCR"))
        for attribute, value in self.fields:
            codegen.append_output(codegen.create_load(value))
            self._store_attribute(codegen, attribute)

    def lock(self, codegen: seam.PyCodegen) -> None:
        """Call the real ``lock_()``, which makes the weak references to holders."""
        if self.is_locked:
            _call(codegen, self.object, "lock_")

    def _store_attribute(self, codegen: seam.PyCodegen, attribute: str) -> None:
        codegen.append_output(codegen.create_load(self.object))
        codegen.append_output(seam.create_instruction("STORE_ATTR", argval=attribute))


def _writes_what_was_there(state: EntryState, key: str, edit: Edit) -> bool:
    """Whether an edit puts back the very entry that the input had under the key."""
    entry = state.entries.get(key)
    if edit.value is None or edit.moved or entry is None:
        return False
    return edit.value is entry or (
        edit.value.is_realized() and entry.is_realized() and edit.value.realize() is entry.realize()
    )


def _store(codegen: seam.PyCodegen, push: Callable[[], object]) -> str:
    """Push a value and keep it in a new local variable; returns the variable's name."""
    push()
    name: str = codegen.new_var()
    codegen.append_output(codegen.create_store(name))
    codegen.clear_tos()
    return name


def _call(codegen: seam.PyCodegen, variable: str, method: str, *args: Any) -> None:
    """Call a method of a local variable with constants and drop what it returns."""
    codegen.append_output(codegen.create_load(variable))
    codegen.load_method(method)
    for arg in args:
        codegen.append_output(codegen.create_load_const(arg))
    codegen.extend_output(seam.create_call_method(len(args)))
    codegen.append_output(seam.create_instruction("POP_TOP"))

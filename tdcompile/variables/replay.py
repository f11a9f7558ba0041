"""Writing a trace's edits back: what the compiled frame does to the caller's tensordicts.

Key names: :func:`codegen_update_mutated` (wraps ``SideEffects.codegen_update_mutated``).

Invariant: the values of all edits are loaded before anything is written, ours and upstream's, so a
swap of two keys or a leaf that is only carried along is right. Then upstream's writes, then ours:
locks that were released, deletions, sets in log order (see Note [Edit log] in ``storage.py``), fields,
locks that were taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tdcompile._compat import dynamo as seam
from tdcompile.variables.fields import InputField
from tdcompile.variables.layout import FIELDS
from tdcompile.variables.tensordict import TensorDictVariable, push_field

__all__ = ["codegen_update_mutated"]


def codegen_update_mutated(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make the replacement of ``SideEffects.codegen_update_mutated``."""

    def replacement(side_effects: Any, codegen: seam.PyCodegen, *args: Any, **kwargs: Any) -> Any:
        modified = side_effects._get_modified_vars()
        ours = [vt for vt in modified if isinstance(vt, TensorDictVariable)]
        if not ours:
            return original(side_effects, codegen, *args, **kwargs)
        _guard_distinct(side_effects, codegen.tx)
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


def _guard_distinct(side_effects: Any, tx: Any) -> None:
    """Guard that the tensordicts of this frame are distinct objects, since one of them is written."""
    inputs = [
        vt.source
        for vt in side_effects.id_to_variable.values()
        if isinstance(vt, TensorDictVariable) and vt.input_state is not None
    ]
    seen = getattr(tx.output, "_tdcompile_distinct", None)
    if len(inputs) > 1 and seen != len(inputs):
        tx.output._tdcompile_distinct = len(inputs)
        seam.install_no_alias_guard(inputs)


class _Replay:
    """The write-back of one input tensordict: values in local variables, then the writes."""

    def __init__(self, td: TensorDictVariable, codegen: seam.PyCodegen) -> None:
        assert td.input_state is not None
        storage = td.storage
        self.cleared = storage.cleared
        self.removed: list[str] = []
        self.unlocked: tuple[str, ...] = ()
        self.sets: list[tuple[str, str]] = []
        self.fields: list[tuple[str, str]] = []
        self.object = _store(codegen, lambda: codegen(td.source))
        self.entries = None
        changed = {key: edit for key, edit in storage.edits.items() if not _is_identity(td, key, edit)}
        if changed or self.cleared:
            self.entries = _store(codegen, lambda: codegen(td.entry_state.source))  # type: ignore[union-attr]
        for key, edit in changed.items():
            if edit.value is None or edit.moved:
                self.removed.append(key)
            if edit.value is not None:
                self.sets.append((key, _store(codegen, lambda v=edit.value: codegen(v))))  # type: ignore[misc]
        self.lock_call = ""
        for field in FIELDS:
            value = td.fields[field]
            if isinstance(value, InputField) and value.state is td.input_state:
                continue
            if field == "is_locked" and td.layout.may_unlock is not None:
                self._plan_lock(td, value.as_python_constant())
                continue
            name = _store(codegen, lambda v=value: push_field(codegen, v))  # type: ignore[misc]
            self.fields.append((getattr(td.layout, field), name))

    def _plan_lock(self, td: TensorDictVariable, is_locked: bool) -> None:
        assert td.input_state is not None
        if is_locked == td.input_state.peek("is_locked"):
            return  # The flag was read, hence guarded, before it was written.
        self.lock_call = "lock_" if is_locked else ""
        if not is_locked:
            self.unlocked = (td.layout.is_locked, *td.layout.lock_references)

    def unlock(self, codegen: seam.PyCodegen) -> None:
        """Clear the flag and the references to holders: the trace checked that this is allowed."""
        for attribute, value in zip(self.unlocked, (False, None), strict=False):
            codegen.append_output(codegen.create_load_const(value))
            codegen.append_output(codegen.create_load(self.object))
            codegen.append_output(seam.create_instruction("STORE_ATTR", argval=attribute))

    def lock(self, codegen: seam.PyCodegen) -> None:
        """Call the real ``lock_()``, which makes the weak references to holders."""
        if self.lock_call:
            self._call(codegen, self.lock_call, on=self.object)

    def write(self, codegen: seam.PyCodegen) -> None:
        if self.cleared:
            self._call(codegen, "clear")
        else:
            for key in self.removed:
                # pop with a default: a key that was set blindly and deleted may have been absent.
                self._call(codegen, "pop", key, None)
        for key, value in self.sets:
            codegen.append_output(codegen.create_load(value))
            codegen.append_output(codegen.create_load(self.entries))
            codegen.append_output(codegen.create_load_const(key))
            codegen.append_output(seam.create_instruction("STORE_SUBSCR"))
        for attribute, value in self.fields:
            codegen.append_output(codegen.create_load(value))
            codegen.append_output(codegen.create_load(self.object))
            codegen.append_output(seam.create_instruction("STORE_ATTR", argval=attribute))
        codegen.clear_tos()

    def _call(self, codegen: seam.PyCodegen, method: str, *args: Any, on: str | None = None) -> None:
        codegen.append_output(codegen.create_load(on or self.entries))
        codegen.load_method(method)
        for arg in args:
            codegen.append_output(codegen.create_load_const(arg))
        codegen.extend_output(seam.create_call_method(len(args)))
        codegen.append_output(seam.create_instruction("POP_TOP"))


def _is_identity(td: TensorDictVariable, key: str, edit: Any) -> bool:
    """Whether an edit writes back the very entry that was there."""
    state = td.entry_state
    return (
        edit.value is not None
        and not edit.moved
        and not td.storage.cleared
        and state is not None
        and state.entries.get(key) is not None
        and edit.value.realize() is state.entries[key].realize()
        if _both_realised(td, key, edit)
        else edit.value is not None and not edit.moved and state is not None and edit.value is state.entries.get(key)
    )


def _both_realised(td: TensorDictVariable, key: str, edit: Any) -> bool:
    entry = td.entry_state.entries.get(key) if td.entry_state is not None else None
    return edit.value is not None and entry is not None and edit.value.is_realized() and entry.is_realized()


def _store(codegen: seam.PyCodegen, push: Callable[[], None]) -> str:
    push()
    name = codegen.new_var()
    codegen.append_output(codegen.create_store(name))
    codegen.clear_tos()
    return name  # type: ignore[no-any-return]

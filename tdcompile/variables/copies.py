"""Shallow copies of a tensordict in a trace: the rest is copied at run time, the edits now.

Key names: :func:`shallow_copy`, :class:`Copies` (how one shallow copy copies nested tensordicts).

Invariant: a copy is what it was when the traced program made it. Nested tensordicts that the trace
has in hand are copied at once; one that it has not looked at is unedited, unless it is the same
object as one that was edited elsewhere: then it is copied from a template of that one.

Guards: none for the rest; the type of an entry that is read from a copy.
"""

from __future__ import annotations

from typing import Any

from tdcompile._compat import dynamo as seam
from tdcompile.variables.fields import InputField
from tdcompile.variables.layout import FIELDS, Layout
from tdcompile.variables.storage import StorageVariable
from tdcompile.variables.tensordict import TensorDictVariable

__all__ = ["Copies", "shallow_copy"]


def shallow_copy(td: TensorDictVariable) -> TensorDictVariable | None:
    """A new tensordict with the same leaves and copies of the nested ones, not locked.

    None where the class has no such copy to run for the rest.
    """
    if td.layout.shallow_entries is None:
        return None
    copies = td.storage.nested_copies
    if copies is None:
        copies = Copies(td.layout, _edited_inputs(td))
    copied = td.with_entries(td.storage.shallow_copy(copies))
    copied.fields["is_locked"] = seam.constant(False)
    return copied


def _edited_inputs(td: TensorDictVariable) -> list[TensorDictVariable]:
    """The input tensordicts that the trace has edited so far, but for the one to be copied."""
    tracked = seam.current_translator().output.side_effects.id_to_variable.values()
    return [
        vt
        for vt in tracked
        if isinstance(vt, TensorDictVariable)
        and vt.input_state is not None
        and vt.is_modified
        and vt is not td
    ]


class Copies:
    """See :class:`~tdcompile.variables.storage.NestedCopies`."""

    def __init__(self, layout: Layout, edited: list[TensorDictVariable]) -> None:
        assert layout.shallow_entries is not None
        self.layout = layout
        self.at_run_time = layout.shallow_entries
        self.originals: list[seam.Source] = []
        self.templates: list[seam.VariableTracker] = []
        self._template_of: dict[TensorDictVariable, TensorDictVariable] = {}
        for vt in edited:
            template = shallow_copy(vt) if vt.layout is layout else None
            if template is not None and vt.input_state is not None:
                self.originals.append(vt.input_state.source)
                self.templates.append(template)
                self._template_of[vt] = template

    def now(self, entry: seam.VariableTracker) -> seam.VariableTracker:
        """A copy of an entry as it is now; a leaf is its own copy."""
        nested = self._nested(entry)
        return entry if nested is None else shallow_copy(nested) or entry

    def at_entry(self, entry: seam.VariableTracker) -> seam.VariableTracker:
        """A copy of an input's entry as it was when the shallow copy was made."""
        nested = self._nested(entry)
        if nested is None:
            return entry
        template = self._template_of.get(nested)
        if template is not None:
            return shallow_copy(template) or entry
        assert nested.input_state is not None
        storage = StorageVariable(
            base=nested.entry_state, nested_copies=self, mutation_type=seam.new_mutation()
        )
        fields: dict[str, Any] = {field: InputField(nested.input_state, field) for field in FIELDS}
        fields["is_locked"] = seam.constant(False)
        return TensorDictVariable.new(nested.layout, storage, fields)

    def _nested(self, entry: seam.VariableTracker) -> TensorDictVariable | None:
        if isinstance(entry, seam.LazyVariableTracker) and not entry.is_realized():
            # Whether it is copied depends on its type, also where nothing else is read of it.
            seam.install_type_guard(entry.source)
            if entry.peek_type() is not self.layout.cls:
                return None
        nested = entry.realize()
        return nested if isinstance(nested, TensorDictVariable) else None

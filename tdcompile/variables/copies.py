"""Shallow copies of a tensordict in a trace: the rest is copied at run time, the edits now.

Key names: :func:`shallow_copy`, :class:`Copies` (how one shallow copy copies nested tensordicts).

Invariant: a copy is what it was when the traced program made it. Nested tensordicts that the trace
has in hand are copied at once; one that it has not looked at is unedited, unless it is the same
object as one that was edited elsewhere: then it is copied from a template of that one.

Guards: none for the rest; the type of an entry that is read from a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdcompile._compat import dynamo as seam
from tdcompile.variables.breaks import break_graph
from tdcompile.variables.fields import input_states
from tdcompile.variables.layout import SERVED, STACKS
from tdcompile.variables.storage import NestedCopies, StorageVariable
from tdcompile.variables.tensordict import TensorDictVariable

if TYPE_CHECKING:
    from tdcompile.variables.layout import Layout

__all__ = ["Copies", "nested_tensordict", "shallow_copy"]


def shallow_copy(td: TensorDictVariable) -> TensorDictVariable | None:
    """A new tensordict with the same leaves and copies of the nested ones, not locked.

    None where the class has no such copy to run for the rest.
    """
    if td.layout.shallow_entries is None:
        return None
    tx = seam.current_translator()
    tracked = list(tx.output.side_effects.id_to_variable.values())
    if any(_is_of_subclass(td.layout, vt) for vt in tracked):
        # It may be nested in this one, and edited: its edits are not ours to order.
        break_graph("tdcompile: nested tensordict of a subclass", td)
    for vt in tracked:
        # A lazy stack may be nested, too; its edits are to be those of its elements.
        if isinstance(vt, TensorDictVariable) and not vt.is_row:
            vt.settle(tx)
    copies = td.storage.nested_copies
    if copies is None:
        edited = _edited_inputs(td)
        if len(edited) > 1:
            # Which of them holds which is not known, so nothing is left to run time.
            _look_at_all(td, [])
            edited = []
        copies = Copies(td.layout, edited)
    return _copy(td, copies)


def _copy(td: TensorDictVariable, copies: NestedCopies) -> TensorDictVariable:
    if td.is_being_copied:
        break_graph("tdcompile: copy of a tensordict in itself", td)
    td.is_being_copied = True
    try:
        copied = td.with_entries(td.storage.shallow_copy(copies))
    finally:
        td.is_being_copied = False
    copied.fields["is_locked"] = seam.constant(False)
    return copied


def _edited_inputs(td: TensorDictVariable) -> list[TensorDictVariable]:
    """The input tensordicts that the trace has edited so far, but for the one to be copied."""
    inputs = [state.owner for state in input_states(seam.current_translator())]
    return [vt for vt in inputs if vt.is_modified and vt is not td]


def _look_at_all(td: TensorDictVariable, seen: list[TensorDictVariable]) -> None:
    """Take every nested tensordict in hand. Guards: key sets, and the type of each entry."""
    if any(td is other for other in seen):
        return
    seen.append(td)
    tx = seam.current_translator()
    for _, entry in list(td.storage.items(tx, ordered=False)):
        nested = nested_tensordict(td.layout, entry)
        if nested is not None:
            for row in nested.rows(tx):
                _look_at_all(row, seen)


def nested_tensordict(layout: Layout, entry: seam.VariableTracker) -> TensorDictVariable | None:
    """The entry, if it is a tensordict. Guards: its type; a leaf is not looked at further.

    A nested tensordict of a subclass has no tracker of ours, and to take it for a leaf would be
    wrong: the graph breaks.
    """
    if isinstance(entry, seam.LazyVariableTracker) and not entry.is_realized():
        seam.install_type_guard(entry.source)
        cls = entry.peek_type()
        if cls not in SERVED and cls not in STACKS:
            if layout.is_unserved(cls):
                break_graph("tdcompile: nested tensordict of a subclass", cls.__name__)
            return None
    nested = entry.realize()
    if _is_of_subclass(layout, nested):
        break_graph("tdcompile: nested tensordict of a subclass", nested)
    return nested if isinstance(nested, TensorDictVariable) else None


def _is_non_tensor(layout: Layout, entry: seam.VariableTracker) -> bool:
    if isinstance(entry, seam.LazyVariableTracker) and not entry.is_realized():
        return issubclass(entry.peek_type(), layout.non_tensor)
    try:
        return issubclass(entry.realize().python_type(), layout.non_tensor)
    except NotImplementedError:
        return False


def _is_of_subclass(layout: Layout, vt: seam.VariableTracker) -> bool:
    """Whether it is a tensordict that upstream tracks as any other object."""
    return (
        isinstance(vt, seam.UserDefinedObjectVariable)
        and not isinstance(vt, TensorDictVariable)
        and vt.python_type() not in STACKS
        and layout.is_unserved(vt.python_type())
    )


def _copy_stack(stack: TensorDictVariable) -> seam.VariableTracker:
    """A lazy stack of copies of the elements, as they are now."""
    tx = seam.current_translator()
    return stack.call_method(tx, "clone", [seam.constant(False)], {})


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
            if vt.is_row and vt.input_state is not None:
                # What it holds in turn is unedited: a tensordict cannot be inside itself.
                template = _copy(vt, Copies(vt.layout, []))
                self.originals.append(vt.input_state.source)
                self.templates.append(template)
                self._template_of[vt] = template

    def _leaf(self, entry: seam.VariableTracker) -> seam.VariableTracker:
        """A leaf is its own copy; an entry that is no tensor makes one."""
        layout = self.layout
        if layout.carry is None or not _is_non_tensor(layout, entry):
            return entry
        tx = seam.current_translator()
        return entry.realize().call_method(tx, layout.carry, [], {})

    def now(self, entry: seam.VariableTracker) -> seam.VariableTracker:
        """A copy of an entry as it is now; a leaf is its own copy."""
        nested = nested_tensordict(self.layout, entry)
        if nested is None:
            return self._leaf(entry)
        if not nested.is_row:
            return _copy_stack(nested)
        copies = nested.storage.nested_copies or self
        return _copy(nested, Copies(self.layout, []) if nested in self._template_of else copies)

    def at_entry(self, entry: seam.VariableTracker) -> seam.VariableTracker:
        """A copy of an input's entry as it was when the shallow copy was made."""
        nested = nested_tensordict(self.layout, entry)
        if nested is None:
            return self._leaf(entry)
        if not nested.is_row:
            if any(state.owner.is_modified for state in input_states(seam.current_translator())):
                # Whether an element was edited before the copy or after it is not known.
                break_graph("tdcompile: late look into a copied lazy stack", nested)
            return _copy_stack(nested)
        template = self._template_of.get(nested)
        if template is not None and template.storage.nested_copies is not None:
            return _copy(template, template.storage.nested_copies)
        assert nested.input_state is not None
        storage = StorageVariable(
            base=nested.entry_state, nested_copies=self, mutation_type=seam.new_mutation()
        )
        fields = {**nested.input_state.unread_fields(), "is_locked": seam.constant(False)}
        return TensorDictVariable.new(nested.layout, storage, fields)

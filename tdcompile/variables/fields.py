"""Batch size, device, names and lock of a tracked tensordict: carried unread, guarded when read.

Key names: :class:`InputState` (the fields of an input), :class:`InputField` (one, not read),
:func:`input_states` (of all inputs of a frame).

Invariant: a field that is only carried along costs no guard: it is loaded from its tensordict when
the result is built. A batch size is a relation to leaves: a trace that read a leaf takes the sizes
off the leaf, so that a dimension which is dynamic there is dynamic here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tdcompile._compat import dynamo as seam
from tdcompile.variables.layout import FIELDS, SERVED

if TYPE_CHECKING:
    from tdcompile.variables.layout import Layout
    from tdcompile.variables.tensordict import TensorDictVariable

__all__ = ["InputField", "InputState", "input_states", "marked_dims"]


class InputState:
    """The fields of an input tensordict as they were when the frame began, read on demand."""

    __slots__ = ("_read", "owner", "path", "root", "source", "value")

    def __init__(self, owner: TensorDictVariable, value: Any, source: seam.Source) -> None:
        self.owner = owner
        self.value = value
        self.source = source
        # The tensordict that it is nested in at the outermost, and the keys that lead here.
        self.root, self.path = seam.nesting(source, owner.layout.entries)
        self._read: dict[str, seam.VariableTracker] = {}

    @property
    def depth(self) -> int:
        """The number of tensordicts that it is nested in."""
        return len(self.path)

    def attribute_source(self, field: str) -> seam.Source:
        return seam.AttrSource(self.source, getattr(self.owner.layout, field))

    def peek(self, field: str) -> Any:
        """The value itself, unguarded: only for choices that are sound either way."""
        return getattr(self.value, getattr(self.owner.layout, field))

    def unread_fields(self) -> dict[str, InputField]:
        """All fields as they were, by our names."""
        return {field: InputField(self, field) for field in FIELDS}

    def read(self, tx: Any, field: str) -> seam.VariableTracker:
        """The field as a tracker.

        Guards: its value; of a batch size its length, and its sizes only where no leaf tells them.
        """
        found = self._read.get(field)
        if found is None:
            source = self.attribute_source(field)
            if field == "batch_size":
                found = self._read_batch_size(tx, source)
            else:
                # Lazy: a value that is only handed on is loaded, not guarded.
                found = seam.lazy_input(self.peek(field), source)
            self._read[field] = found
        return found

    def batch_dims(self) -> int:
        """The number of batch dimensions. Guards: this number."""
        seam.install_length_guard(self.attribute_source("batch_size"))
        return len(self.peek("batch_size"))

    def _read_batch_size(self, tx: Any, source: seam.Source) -> seam.VariableTracker:
        sizes = self.peek("batch_size")
        dims: list[seam.VariableTracker] = []
        leaf, num_told = self._leaf_that_tells(tx) if self.batch_dims() else (None, 0)
        for i in range(len(sizes)):
            if leaf is not None and i < num_told:
                dims.append(leaf.call_method(tx, "size", [seam.constant(i)], {}))
            else:
                dims.append(seam.wrap_input(tx, sizes[i], seam.GetItemSource(source, i)))
        return seam.SizeVariable(dims)

    def _leaf_that_tells(self, tx: Any) -> tuple[seam.VariableTracker | None, int]:
        """A tensor leaf to take sizes from, and how many leading ones it tells.

        A leaf that the trace used, of this tensordict, of one nested in it or of one that holds it;
        else one that is marked dynamic. Sound by the container's invariant: every leaf has the
        batch size as its leading shape, and a nested batch size begins with its parent's.
        """
        batch_dims = len(self.peek("batch_size"))
        found: seam.VariableTracker | None = None
        num_told = 0
        for other in self._relatives(tx):
            told = batch_dims
            if other.depth < self.depth:
                told = min(batch_dims, other.batch_dims())
            if told > num_told:
                used = other.used_leaf()
                if used is not None:
                    found, num_told = used, told
        if num_told < batch_dims:
            marked = self.marked_leaf(batch_dims)
            if marked is not None:
                found, num_told = marked, batch_dims
        return found, num_told

    def _relatives(self, tx: Any) -> list[InputState]:
        """The input tensordicts of this frame on one path with this one, this one first."""
        related = [
            other
            for other in input_states(tx)
            if other is not self
            and other.root == self.root
            and all(a == b for a, b in zip(other.path, self.path, strict=False))
        ]
        return [self, *related]

    def used_leaf(self) -> seam.VariableTracker | None:
        """A tensor entry that the trace has used."""
        state = self.owner.entry_state
        for vt in () if state is None else state.entries.values():
            if (
                vt.is_realized()
                and isinstance(vt.realize(), seam.TensorVariable)
                and not issubclass(vt.python_type(), self.owner.layout.unbatched)
            ):
                return vt.realize()
        return None

    def marked_leaf(self, batch_dims: int) -> seam.VariableTracker | None:
        """A tensor entry, here or nested, marked on a batch dimension. Guards: its key path."""
        td: Any = self.owner
        for key in _marked_path(self.value, self.owner.layout, batch_dims, set()) or ():
            td = td.entry_state.get(key).realize()
        return None if td is self.owner else td


def input_states(tx: Any) -> list[InputState]:
    """The states of all input tensordicts that the frame has touched."""
    tracked = tx.output.side_effects.id_to_variable.values()
    states = [getattr(vt, "input_state", None) for vt in tracked]
    return [state for state in states if state is not None]


def _marked_path(value: Any, layout: Layout, batch_dims: int, seen: set[int]) -> list[str] | None:
    """The key path of the first leaf with a mark; looks at the objects, guards nothing."""
    if id(value) in seen:
        return None  # A tensordict may hold itself.
    seen.add(id(value))
    for key, entry in getattr(value, layout.entries).items():
        if isinstance(entry, layout.unbatched):
            continue
        if isinstance(entry, torch.Tensor):
            if marked_dims(entry, batch_dims):
                return [key]
        elif type(entry) in SERVED:
            below = _marked_path(entry, SERVED[type(entry)], batch_dims, seen)
            if below is not None:
                return [key, *below]
    return None


def marked_dims(leaf: torch.Tensor, batch_dims: int) -> set[int]:
    """The batch dimensions of a leaf that are marked dynamic, by the program or by us (weakly)."""
    marks = {
        *getattr(leaf, "_dynamo_dynamic_indices", ()),
        *getattr(leaf, "_dynamo_weak_dynamic_indices", ()),
    }
    return {dim for dim in marks if dim < batch_dims}


class InputField:
    """A field that equals an input's field at the start of the frame; nothing was read yet."""

    __slots__ = ("field", "state")

    def __init__(self, state: InputState, field: str) -> None:
        self.state = state
        self.field = field

    def read(self, tx: Any) -> seam.VariableTracker:
        return self.state.read(tx, self.field)

    def push(self, codegen: seam.PyCodegen) -> None:
        codegen(self.state.attribute_source(self.field))

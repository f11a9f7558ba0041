"""Batch size, device, names and lock of a tracked tensordict: carried unread, guarded when read.

Key names: :class:`InputField` (a field of an input, not read), :func:`read_field`.

Invariant: a field that is only carried along costs no guard: it is loaded from its tensordict when
the result is built. A batch size is a relation to leaves: a trace that read a leaf takes the sizes
off the leaf, so that a dimension which is dynamic there is dynamic here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tdcompile._compat import dynamo as seam

if TYPE_CHECKING:
    from tdcompile.variables.tensordict import TensorDictVariable

__all__ = ["InputField", "InputState"]


class InputState:
    """The fields of an input tensordict as they were when the frame began, read on demand."""

    __slots__ = ("_read", "owner", "source", "value")

    def __init__(self, owner: TensorDictVariable, value: Any, source: seam.Source) -> None:
        self.owner = owner
        self.value = value
        self.source = source
        self._read: dict[str, seam.VariableTracker] = {}

    def attribute_source(self, field: str) -> seam.Source:
        return seam.AttrSource(self.source, getattr(self.owner.layout, field))

    def peek(self, field: str) -> Any:
        """The value itself, unguarded: only for choices that are sound either way."""
        return getattr(self.value, getattr(self.owner.layout, field))

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
                found = seam.wrap_input(tx, self.peek(field), source)
            self._read[field] = found
        return found

    def batch_dims(self) -> int:
        """The number of batch dimensions. Guards: this number."""
        seam.install_length_guard(self.attribute_source("batch_size"))
        return len(self.peek("batch_size"))

    def _read_batch_size(self, tx: Any, source: seam.Source) -> seam.VariableTracker:
        sizes = self.peek("batch_size")
        batch_dims = self.batch_dims()
        leaf = self._leaf_that_tells(tx, batch_dims) if batch_dims else None
        if leaf is not None:
            dims = [leaf.call_method(tx, "size", [seam.constant(i)], {}) for i in range(batch_dims)]
        else:
            dims = [
                seam.wrap_input(tx, sizes[i], seam.GetItemSource(source, i))
                for i in range(batch_dims)
            ]
        return seam.SizeVariable(dims)

    def _leaf_that_tells(self, tx: Any, batch_dims: int) -> seam.VariableTracker | None:
        """A tensor leaf to take sizes from: one that the trace used, else one marked dynamic.

        Sound since every leaf has the batch size as its leading shape (the container's invariant).
        """
        state = self.owner.entry_state
        if state is None:
            return None
        for vt in state.entries.values():
            if vt.is_realized() and isinstance(vt.realize(), seam.TensorVariable):
                return vt.realize()
        for key, value in state.value.items():
            if isinstance(value, torch.Tensor) and marked_dims(value, batch_dims):
                found = state.get(key)
                return None if found is None else found.realize()
        return None


def marked_dims(leaf: torch.Tensor, batch_dims: int) -> set[int]:
    """The batch dimensions of a leaf that ``torch._dynamo.mark_dynamic`` marked."""
    return {dim for dim in getattr(leaf, "_dynamo_dynamic_indices", ()) if dim < batch_dims}


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

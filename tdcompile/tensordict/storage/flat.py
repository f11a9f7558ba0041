"""All leaves of a tensordict as views of one block of memory.

Key names: :class:`FlatLayout` (where each leaf is), :class:`Slot` (one leaf),
:func:`flat_layout_of`, :func:`plan`.

The leaves of one dtype lie together, so a pointwise operation on all of them is one operation on
``layout.block(dtype)``. A leaf starts at a multiple of 8 bytes (or of its own item size), the
leaves of a dtype at a multiple of 64; what lies between two leaves is zero when it is made.

Invariant: the leaves are views, in the sense of torch, of ``layout.storage``, so a write to one is
seen by autograd as a write to the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tdcompile.tensordict.storage.memory import memory_of, tensors_of

__all__ = ["FlatLayout", "Slot", "flat_layout_of", "movable_layout_of", "plan"]

_LEAF_ALIGNMENT = 8
_DTYPE_ALIGNMENT = 64


class Slot:
    """Where one leaf is, in bytes: its elements from `start`, its share of the block to `stop`."""

    __slots__ = ("dtype", "shape", "start", "stop")

    def __init__(self, dtype: torch.dtype, shape: torch.Size, start: int, stop: int) -> None:
        self.dtype = dtype
        self.shape = shape
        self.start = start
        self.stop = stop

    @property
    def nbytes(self) -> int:
        """The bytes of the elements; the rest of the share is padding."""
        return self.shape.numel() * self.dtype.itemsize

    def __reduce__(self) -> tuple[Any, ...]:
        return Slot, (self.dtype, self.shape, self.start, self.stop)


def plan(tensors: list[Tensor]) -> list[Slot]:
    """Return a slot for each tensor, in the same order; those of one dtype lie together."""
    slots: dict[int, Slot] = {}
    last: Slot | None = None
    position = 0
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        if last is not None:
            # The gap to the next dtype is padding of the last leaf, so that shares leave no gap.
            position = last.stop = _round_up(position, _DTYPE_ALIGNMENT)
        alignment = max(_LEAF_ALIGNMENT, dtype.itemsize)
        for index, tensor in enumerate(tensors):
            if tensor.dtype != dtype:
                continue
            nbytes = tensor.numel() * dtype.itemsize
            stop = _round_up(position + nbytes, alignment)
            slots[index] = Slot(dtype, tensor.shape, position, stop)
            if nbytes:
                last = slots[index]
            position = stop
    return [slots[index] for index in range(len(tensors))]


def _round_up(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def nbytes_of_slots(slots: list[Slot]) -> int:
    """Return where the last share ends."""
    return max((slot.stop for slot in slots), default=0)


class FlatLayout:
    """One block of memory, and the leaves that are views of it.

    Args:
        storage: the block, ``uint8`` of shape ``(nbytes,)``.
        slots: where each leaf is, in the order of the keys.
        is_file: whether the block maps a file; it is pickled by value then, too.
    """

    __slots__ = ("is_file", "slots", "storage", "tensors")

    def __init__(self, storage: Tensor, slots: list[Slot], is_file: bool = False) -> None:
        self.is_file = is_file
        self.storage = storage
        self.slots = slots
        with torch.no_grad():
            self.tensors = [
                storage[slot.start : slot.start + slot.nbytes].view(slot.dtype).view(slot.shape)
                for slot in slots
            ]

    def dtypes(self) -> list[torch.dtype]:
        """Return the dtypes of the leaves, in the order of the block."""
        return list(dict.fromkeys(slot.dtype for slot in self.slots))

    def block(self, dtype: torch.dtype) -> Tensor | None:
        """Return the leaves of a dtype and the padding between them as one tensor ``(n,)``, a view.

        Returns:
            ``None`` if leaves of other dtypes lie between them, as in files of other writers.

        Example:
            >>> td = TensorDict({"a": torch.ones(2), "b": torch.ones(3)}).consolidate()
            >>> flat_layout_of(td).block(torch.float32)
            tensor([1., 1., 1., 1., 1.])
        """
        own = [slot for slot in self.slots if slot.dtype == dtype and slot.nbytes]
        if not own:
            return self.storage[:0].view(dtype)
        start = min(slot.start for slot in own)
        stop = max(slot.start + slot.nbytes for slot in own)
        if any(
            slot.dtype != dtype and start < slot.stop and slot.start < stop for slot in self.slots
        ):
            return None
        with torch.no_grad():
            return self.storage[start:stop].view(dtype)

    def matches(self, td: Any) -> bool:
        """Tell whether the leaves of `td` are still the views, in order."""
        found = tensors_of(td)
        return len(found) == len(self.tensors) and all(
            one is other for one, other in zip(found, self.tensors, strict=True)
        )


def flat_layout_of(td: Any) -> FlatLayout | None:
    """Return the layout of a consolidated tensordict; ``None`` if it is none, or no longer.

    In compiled code there is none: leaves are then handled one by one.
    """
    if torch.compiler.is_compiling():
        return None
    record = memory_of(td, "consolidated")
    return None if record is None else record.layout


def movable_layout_of(td: Any) -> FlatLayout | None:
    """Return the layout if copying the block is the same as copying each leaf.

    It is not where autograd follows a leaf: the block has no history.
    """
    layout = flat_layout_of(td)
    if layout is None or any(tensor.requires_grad for tensor in layout.tensors):
        return None
    return layout

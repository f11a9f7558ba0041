"""What a tensordict knows of its memory: mapped, shared, or one block.

Key names: :class:`Memory` (the record), :func:`memory_of`, :func:`tensors_of`.

Invariant: a record is a claim that is checked when it is read, so code that changes a tensordict
without knowing of records (compiled code, a write to an unlocked copy) makes it void.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from tdcompile.tensordict.collection import TensorCollection

if TYPE_CHECKING:
    from pathlib import Path

    from tdcompile.tensordict.storage.flat import FlatLayout


class Memory:
    """A record on a tensordict.

    Args:
        kind: ``"memmap"``, ``"shared"`` or ``"consolidated"``.
        path: the folder of a memory-mapped tensordict, if it has one.
        layout: of a consolidated one.
    """

    __slots__ = ("kind", "layout", "path")

    def __init__(
        self, kind: str, path: Path | None = None, layout: FlatLayout | None = None
    ) -> None:
        self.kind = kind
        self.path = path
        self.layout = layout


def record_of(td: Any) -> tuple[str, Path | None] | None:
    """Return what a pickle keeps of a record: kind and folder; the block is pickled otherwise."""
    record = getattr(td, "_memory", None)
    if not isinstance(record, Memory) or record.kind == "consolidated":
        return None
    return record.kind, record.path


def memory_of(td: Any, kind: str) -> Memory | None:
    """Return the record of a tensordict if it is of that kind and still true."""
    record = getattr(td, "_memory", None)
    if not isinstance(record, Memory) or record.kind != kind:
        return None
    return record if _CHECKS[kind](td, record) else None


def _is_mapped(td: Any, record: Memory) -> bool:
    from tdcompile.tensordict.storage.memmap_tensor import MemoryMappedTensor

    return bool(td.is_locked) and all(
        isinstance(value, MemoryMappedTensor) for value in own_tensors(td)
    )


def _is_shared(td: Any, record: Memory) -> bool:
    own: list[Any] = own_tensors(td)
    return bool(td.is_locked) and all(value.numel() == 0 or value.is_shared() for value in own)


def _is_consolidated(td: Any, record: Memory) -> bool:
    return record.layout is not None and record.layout.matches(td)


_CHECKS = {"memmap": _is_mapped, "shared": _is_shared, "consolidated": _is_consolidated}


def children_of(value: Any) -> list[tuple[str, Any]]:
    """Return what a tensordict holds itself: its entries, or the elements of a lazy stack."""
    elements = getattr(value, "tensordicts", None)
    if elements is not None:
        return [(str(index), element) for index, element in enumerate(elements)]
    entries: Any = getattr(value, "_entries", {}) if isinstance(value, TensorCollection) else {}
    return list(entries.items())


def own_tensors(td: Any) -> list[Tensor]:
    """Return the tensors of a tensordict itself, not of those nested in it."""
    return [value for _, value in children_of(td) if isinstance(value, Tensor)]


def tensors_of(td: Any) -> list[Tensor]:
    """Return all tensors of a tensordict, nested ones where their holder stands."""
    found: list[Tensor] = []
    _collect(td, found)
    return found


def _collect(td: Any, found: list[Tensor]) -> None:
    for _, value in children_of(td):
        if isinstance(value, Tensor):
            found.append(value)
        else:
            _collect(value, found)


def device_of_memory(td: Any) -> str:
    """Return the type of a tensordict's device; the CPU without one."""
    return "cpu" if td.device is None else str(td.device.type)

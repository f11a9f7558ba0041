"""A tensordict as one row of bytes: what travels between processes that share no structure.

Key names: :func:`pack` (tensordict -> bytes in a tensor), :func:`unpack` (the way back).

The row is a description, pickled with the tensors taken out, and behind it the values of the
tensors, each aligned; so every kind of tensordict travels that can be pickled, with its non-tensor
values, and the leaves of what arrives are views of the row.

Invariant: a row is unpickled on arrival, as ``torch.distributed`` does with objects: it must come
from a process that is trusted.
"""

from __future__ import annotations

import ctypes
import io
import pickle
import struct
from typing import Any

import torch
from torch import Tensor

from tdcompile.tensordict.storage.memmap_tensor import MemoryMappedTensor

__all__ = ["ALIGNMENT", "bytes_of", "copy_bytes", "pack", "to_bytes", "unpack"]

# Bytes; a view of any dtype may begin at a multiple of it.
ALIGNMENT = 64

_LENGTH = struct.Struct("<q")


class _TakingPickler(pickle.Pickler):
    """Pickles all but the dense tensors, which it collects; one that comes twice is one."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []
        self._places: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> Any:
        # Other subclasses pickle themselves, with plain tensors in them. A mapped tensor would
        # pickle the name of its file, which the receiver need not have.
        if type(obj) not in (Tensor, torch.nn.Parameter, MemoryMappedTensor):
            return None
        if obj.layout is not torch.strided or obj.is_quantized or obj.device.type == "meta":
            return None
        place = self._places.get(id(obj))
        if place is None:
            place = self._places[id(obj)] = len(self.tensors)
            self.tensors.append(obj)
        is_parameter = type(obj) is torch.nn.Parameter
        return place, obj.dtype, tuple(obj.shape), str(obj.device), is_parameter, obj.requires_grad


class _GivingUnpickler(pickle.Unpickler):
    def __init__(self, file: Any, row: Tensor, offset: int) -> None:
        super().__init__(file)
        self._row = row
        self._offset = offset
        self._tensors: dict[int, Tensor] = {}

    def persistent_load(self, pid: Any) -> Any:
        # Tensors come back in the order in which they were taken, so the offset follows.
        place, dtype, shape, device, is_parameter, requires_grad = pid
        if place not in self._tensors:
            numel = 1
            for size in shape:
                numel *= size
            nbytes = numel * dtype.itemsize
            self._offset = _aligned(self._offset)
            tensor = self._row[self._offset : self._offset + nbytes].view(dtype).view(shape)
            self._offset += nbytes
            if tensor.device != torch.device(device):
                tensor = tensor.to(device)
            if is_parameter:
                tensor = torch.nn.Parameter(tensor, requires_grad=requires_grad)
            elif requires_grad:
                tensor.requires_grad_()
            self._tensors[place] = tensor
        return self._tensors[place]


def pack(td: Any) -> Tensor:
    """Return the bytes of a tensordict of any kind.

    Args:
        td: the tensordict. The row is made on the device of the leaves if they share one, else on
            the CPU.

    Returns:
        uint8 ``(n,)``; a copy.

    Raises:
        TypeError, AttributeError, pickle.PicklingError: what pickling a non-tensor value raises.
    """
    file = io.BytesIO()
    pickler = _TakingPickler(file)
    pickler.dump(td)
    text = file.getvalue()
    devices = {tensor.device for tensor in pickler.tensors}
    device = devices.pop() if len(devices) == 1 else torch.device("cpu")
    offset = _LENGTH.size + len(text)
    offsets = []
    for tensor in pickler.tensors:
        offset = _aligned(offset)
        offsets.append(offset)
        offset += tensor.numel() * tensor.dtype.itemsize
    row = torch.empty(offset, dtype=torch.uint8, device=device)
    head = _LENGTH.pack(len(text)) + text
    row[: len(head)].copy_(to_bytes(head))
    for start, tensor in zip(offsets, pickler.tensors, strict=True):
        copy_bytes(tensor, row, start)
    return row


def unpack(row: Tensor) -> Any:
    """Return the tensordict whose bytes are in `row`; its leaves are views of it where possible.

    Args:
        row: what :func:`pack` made.
    """
    (length,) = _LENGTH.unpack(bytes_of(row[: _LENGTH.size]))
    start = _LENGTH.size + length
    file = io.BytesIO(bytes_of(row[_LENGTH.size : start]))
    return _GivingUnpickler(file, row, start).load()


def copy_bytes(tensor: Tensor, row: Tensor, start: int) -> None:
    """Write the values of `tensor` into the bytes of `row` from `start` on."""
    nbytes = tensor.numel() * tensor.dtype.itemsize
    target = row[start : start + nbytes].view(tensor.dtype).view(tensor.shape)
    target.copy_(tensor.detach().as_subclass(Tensor))


def to_bytes(data: bytes) -> Tensor:
    """Return bytes as uint8 ``(n,)`` on the CPU, a copy."""
    if not data:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def bytes_of(row: Tensor) -> bytes:
    """Return uint8 ``(n,)`` as bytes."""
    row = row.detach().cpu().contiguous()
    return ctypes.string_at(row.data_ptr(), row.numel())


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT

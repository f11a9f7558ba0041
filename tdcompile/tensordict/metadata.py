"""Batch size and device of a tensordict: reading them, changing them.

Key names: :class:`MetadataMixin` (``batch_size``, ``device``, ``size``, ``numel``, ...),
:func:`as_size`, :func:`as_device`.

Symbols: ``*B`` batch dimensions, ``*F`` trailing dimensions of a leaf; a leaf is ``(*B, *F)``.

Invariant: a batch size is changed only after every leaf was seen to start with it.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from tdcompile.errors import TensorDictShapeError
from tdcompile.tensordict.keys import format_entry
from tdcompile.tensordict.nontensor.data import LeafKind
from tdcompile.tensordict.nontensor.unbatched import UnbatchedTensor
from tdcompile.tensordict.state import TensorDictState


class MetadataMixin(TensorDictState):
    """What all leaves share: leading dimensions and device."""

    __slots__ = ()

    @property
    def batch_size(self) -> torch.Size:
        """The leading dimensions ``(*B,)`` that all leaves share.

        Setting it checks every leaf first; nested tensordicts whose batch size does not start with
        the new one get it too. Names of dimensions that stay are kept.

        Raises:
            TensorDictShapeError: on setting, if a leaf does not start with the new batch size.
        """
        return self._batch_size

    @batch_size.setter
    def batch_size(self, batch_size: Any) -> None:
        size = as_size(batch_size)
        _check_leaves(self, size, ())
        self._change_batch_size(size)

    def _change_batch_size(self, size: torch.Size) -> None:
        ndim = len(size)
        for name, value in self._entries.items():
            if isinstance(value, Tensor) and type(value) is not UnbatchedTensor:
                continue
            if value._batch_size[:ndim] == size:
                continue
            if isinstance(value, LeafKind):
                # The same key gets another object: the dictionary keeps its size in the loop.
                self._entries[name] = value._with_batch_size(size)
            else:
                value._change_batch_size(size)
        slots: Any = self  # mypy takes the empty __slots__ of a mixin for all there are
        slots._names = _fit_names(self._names, ndim)
        slots._batch_size = size

    def _with_batch_size(self, batch_size: torch.Size, path: Any = ()) -> Self:
        """Return a tensordict with the same leaves and another batch size (not in place)."""
        _check_leaves(self, batch_size, path if isinstance(path, tuple) else (path,))
        return self._rebatched(batch_size)

    def _rebatched(self, size: torch.Size) -> Self:
        ndim = len(size)
        entries: dict[str, Any] = {}
        for name, value in self._entries.items():
            if (
                isinstance(value, Tensor) and type(value) is not UnbatchedTensor
            ) or value._batch_size[:ndim] == size:
                entries[name] = value
            elif isinstance(value, LeafKind):
                entries[name] = value._with_batch_size(size)
            else:
                entries[name] = value._rebatched(size)
        return self._from_entries(entries, size, self._device, _fit_names(self._names, ndim))

    @property
    def shape(self) -> torch.Size:
        """The batch size ``(*B,)``."""
        return self._batch_size

    @shape.setter
    def shape(self, batch_size: Any) -> None:
        self.batch_size = batch_size

    def size(self, dim: int | None = None) -> Any:
        """Return the batch size, or its dimension `dim`.

        Raises:
            IndexError: if `dim` is no batch dimension.
        """
        return self._batch_size if dim is None else self._batch_size[dim]

    @property
    def batch_dims(self) -> int:
        """The number of batch dimensions."""
        return len(self._batch_size)

    @property
    def ndim(self) -> int:
        """The number of batch dimensions."""
        return len(self._batch_size)

    def dim(self) -> int:
        """Return the number of batch dimensions."""
        return len(self._batch_size)

    def ndimension(self) -> int:
        """Return the number of batch dimensions."""
        return len(self._batch_size)

    def numel(self) -> int:
        """Return the number of elements of the batch, the product of ``(*B,)``; at least 1."""
        count = 1
        for size in self._batch_size:
            count *= size
        return max(1, count)

    @property
    def device(self) -> torch.device | None:
        """The device of all leaves, or ``None`` if they may live anywhere.

        Raises:
            RuntimeError: on setting; use ``td.to(device)``.
        """
        return self._device

    @device.setter
    def device(self, device: Any) -> None:
        raise RuntimeError(
            f"device cannot be set using {_kind(self)}.device = device, found {device!r}: it is "
            "moved by td.to(device), which returns a new one; td.clear_device_() forgets the device"
        )


def _kind(td: Any) -> str:
    schema = td.__tensorclass_schema__
    return "tensordict" if schema is None or schema.known is None else "tensorclass"


def as_size(batch_size: Any) -> torch.Size:
    """Return a batch size given as an int, a sequence of ints or ``None`` (no dimensions).

    Raises:
        ValueError: if it is anything else, or has a negative dimension.
    """
    if isinstance(batch_size, torch.Size):
        return batch_size
    if batch_size is None:
        return torch.Size(())
    if isinstance(batch_size, (int, torch.SymInt)):
        return torch.Size((batch_size,))  # type: ignore[arg-type]
    if isinstance(batch_size, Tensor):
        batch_size = batch_size.tolist()
    if isinstance(batch_size, (list, tuple)):
        for size in batch_size:
            if not isinstance(size, (int, torch.SymInt)) or size < 0:
                raise ValueError(
                    "expected a batch size of ints that are not negative, found "
                    f"{batch_size!r}: pass a list such as [3, 4]"
                )
        return torch.Size(batch_size)
    raise ValueError(
        "expected the batch size as an int or a sequence of ints, found "
        f"{batch_size!r} of type {type(batch_size).__name__}: pass a list such as [3, 4]"
    )


def as_device(device: Any) -> torch.device:
    """Return a device with its index: ``"cuda"`` means the current CUDA device.

    Leaves carry an index, so a device without one would compare unequal to theirs.
    """
    result = torch.device(device)
    if result.index is None and result.type not in _DEVICES_WITHOUT_INDEX:
        module = getattr(torch, result.type, None)
        if module is not None and hasattr(module, "current_device") and module.is_available():
            return torch.device(result.type, module.current_device())
    return result


_DEVICES_WITHOUT_INDEX = ("cpu", "meta", "mps")


def _fit_names(names: tuple[str | None, ...] | None, ndim: int) -> tuple[str | None, ...] | None:
    """Cut or fill names to `ndim` dimensions; ``None`` if no dimension has one."""
    if names is None or len(names) == ndim:
        return names
    fitted = (*names, *(None,) * (ndim - len(names)))[:ndim]
    return fitted if any(name is not None for name in fitted) else None


def _check_leaves(td: Any, size: torch.Size, path: tuple[str, ...]) -> None:
    """Raise unless every leaf under `td`, which stands at `path`, starts with `size`."""
    ndim = len(size)
    if td._is_stack:
        rest = td._element_size(size)
        for element in td.tensordicts:
            _check_leaves(element, rest, path)
        return
    for name, value in td._entries.items():
        if isinstance(value, Tensor) and type(value) is not UnbatchedTensor:
            if value.shape[:ndim] != size:
                raise TensorDictShapeError(
                    f"the Tensor {name} has shape {value.shape} which does not start with the "
                    f"batch size {list(size)} of the tensordict, found at "
                    f"{format_entry((*path, name))}: choose a batch size that all leaves share"
                )
        elif not isinstance(value, LeafKind) and value._batch_size[:ndim] != size:
            _check_leaves(value, size, (*path, name))

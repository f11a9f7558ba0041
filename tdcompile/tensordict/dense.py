"""``TensorDict``: a dictionary of tensors that share their leading (batch) dimensions.

Key names: :class:`TensorDict`, :func:`as_size`, :func:`as_device`.

Symbols: ``*B`` batch dimensions, ``*F`` trailing dimensions of a leaf; a leaf is ``(*B, *F)``.

Invariant: every value in ``_entries`` is a tensor, a tensordict or a ``NonTensorData`` whose
leading dimensions are exactly ``_batch_size``. The trackers rely on it: they read a batch size
off a leaf.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from tdcompile.errors import TensorDictShapeError
from tdcompile.tensordict.apply import ApplyMixin
from tdcompile.tensordict.arithmetic import ArithmeticMixin
from tdcompile.tensordict.casting import CastingMixin
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.construct import ConstructMixin
from tdcompile.tensordict.contexts import ContextsMixin
from tdcompile.tensordict.copying import CopyingMixin
from tdcompile.tensordict.functional import TorchFunctionMixin
from tdcompile.tensordict.indexing import IndexingMixin
from tdcompile.tensordict.keys import format_entry, unravel_key_to_tuple
from tdcompile.tensordict.locking import LockingMixin
from tdcompile.tensordict.mapping import MappingMixin
from tdcompile.tensordict.names import NamesMixin, check_names
from tdcompile.tensordict.nontensor import NonTensorData
from tdcompile.tensordict.printing import PrintingMixin
from tdcompile.tensordict.reductions import ReductionsMixin
from tdcompile.tensordict.selection import SelectionMixin
from tdcompile.tensordict.shapes import ShapesMixin
from tdcompile.tensordict.views import ViewsMixin


class TensorDict(
    MappingMixin,
    ViewsMixin,
    SelectionMixin,
    CopyingMixin,
    ConstructMixin,
    LockingMixin,
    ContextsMixin,
    NamesMixin,
    IndexingMixin,
    ShapesMixin,
    ArithmeticMixin,
    ReductionsMixin,
    ApplyMixin,
    CastingMixin,
    TorchFunctionMixin,
    PrintingMixin,
):
    """A dictionary of tensors with a batch size.

    Args:
        source: a mapping or a tensordict; its keys may be nested, nested mappings become nested
            tensordicts with the same batch size. Tensors are stored as they are (no copy).
        batch_size: leading dimensions ``(*B,)`` of every leaf, as an int or a sequence; ``()`` if
            ``None``.
        device: every leaf is moved there; ``None`` leaves each where it is.
        names: a name or ``None`` for each batch dimension.
        non_blocking: let moves between devices run asynchronously.
        lock: lock the result.
        **kwargs: the entries, instead of `source`.

    Raises:
        TensorDictShapeError: if a leaf does not start with the batch size.
        ValueError: if `source` is no mapping, comes together with `kwargs`, or `names` do not fit.

    Example:
        >>> td = TensorDict({"obs": torch.zeros(3, 2), "n": {"x": torch.ones(3)}}, batch_size=[3])
        >>> td["n", "x"].shape, td.batch_size
        (torch.Size([3]), torch.Size([3]))
    """

    __slots__ = (
        "__weakref__",
        "_batch_size",  # torch.Size, (*B,)
        "_device",  # torch.device, or None: leaves may live anywhere
        "_entries",  # dict[str, Tensor | TensorDict | NonTensorData], insertion order is key order
        "_is_locked",  # bool
        "_last_op",  # what `with` would undo, see contexts.py; unset until there is something
        "_lock_parents",  # weak references to the tensordicts that locked this one; unset without
        "_names",  # tuple[str | None, ...] of length len(*B), or None: no dimension has a name
        "_open_ops",  # the open `with` blocks; unset until there is one
    )

    def __init__(
        self,
        source: Any = None,
        batch_size: Any = None,
        device: Any = None,
        names: Any = None,
        *,
        non_blocking: bool | None = None,
        lock: bool = False,
        **kwargs: Any,
    ) -> None:
        if source is None:
            source = kwargs
        elif kwargs:
            raise ValueError(
                "expected the entries either as one mapping or as keyword arguments, found both: "
                f"move {sorted(kwargs)} into the mapping"
            )
        elif not isinstance(source, (Mapping, TensorCollection)):
            raise ValueError(
                f"expected a mapping or a tensordict as source, found {type(source).__name__}: "
                "pass a dict"
            )
        size = as_size(batch_size)
        self._entries = {}
        # Read back, not kept: a trace follows the dictionary through its tensordict.
        entries = self._entries
        self._batch_size = size
        self._device = device = None if device is None else as_device(device)
        self._names = None if names is None else check_names(names, len(size))
        self._is_locked = False
        ndim = len(size)
        nested: list[tuple[Any, Any]] = []
        for key, value in source.items():
            if not isinstance(key, str):
                nested.append((unravel_key_to_tuple(key), value))
            elif isinstance(value, Tensor) and device is None and value.shape[:ndim] == size:
                entries[key] = value
            else:
                self._write({key: self._to_entry(value, key)})
        # As in the tensordict package, entries with nested keys come last.
        for path, value in nested:
            self._set_path(path, value)
        if lock:
            self.lock_()

    @classmethod
    def _from_entries(
        cls,
        entries: dict[str, Any],
        batch_size: torch.Size,
        device: torch.device | None = None,
        names: tuple[str | None, ...] | None = None,
    ) -> Self:
        """Make a tensordict that owns `entries`, without any check or copy."""
        self = _new(cls)
        self._entries = entries
        self._batch_size = batch_size
        self._device = device
        self._names = names
        self._is_locked = False
        return self

    # -- batch size and device -----------------------------------------------------------------

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
            if isinstance(value, Tensor) or value._batch_size[:ndim] == size:
                continue
            if isinstance(value, NonTensorData):
                # The same key gets another object: the dictionary keeps its size in the loop.
                self._entries[name] = value._with_batch_size(size)
            else:
                value._change_batch_size(size)
        self._names = _fit_names(self._names, ndim)
        self._batch_size = size

    def _with_batch_size(self, batch_size: torch.Size, path: Any = ()) -> Self:
        """Return a tensordict with the same leaves and another batch size (not in place)."""
        _check_leaves(self, batch_size, path if isinstance(path, tuple) else (path,))
        return self._rebatched(batch_size)

    def _rebatched(self, size: torch.Size) -> Self:
        ndim = len(size)
        entries: dict[str, Any] = {}
        for name, value in self._entries.items():
            if isinstance(value, Tensor) or value._batch_size[:ndim] == size:
                entries[name] = value
            elif isinstance(value, NonTensorData):
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
            f"expected no assignment to td.device, found td.device = {device!r}: a tensordict is "
            "moved by td.to(device), which returns a new one; td.clear_device_() forgets the device"
        )


_new = object.__new__


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
    for name, value in td._entries.items():
        if isinstance(value, Tensor):
            if value.shape[:ndim] != size:
                raise TensorDictShapeError(
                    f"expected every leaf to start with the batch size {list(size)}, found shape "
                    f"{list(value.shape)} at {format_entry((*path, name))}: "
                    "choose a batch size that all leaves share"
                )
        elif not isinstance(value, NonTensorData) and value._batch_size[:ndim] != size:
            _check_leaves(value, size, (*path, name))

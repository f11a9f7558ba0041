"""``TensorDict``: a dictionary of tensors that share their leading (batch) dimensions.

Key names: :class:`TensorDict`.

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

from tdcompile.tensordict.base import DENSE_SLOTS, TensorDictBase, TensorDictMethods
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.keys import unravel_key_to_tuple
from tdcompile.tensordict.metadata import as_device, as_size
from tdcompile.tensordict.names import check_names
from tdcompile.tensordict.nontensor.unbatched import UnbatchedTensor


class TensorDict(TensorDictBase):
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

    __slots__ = DENSE_SLOTS

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
                "expected the entries either as one mapping or as keyword arguments, not both: "
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
            elif (
                isinstance(value, Tensor)
                and device is None
                and value.shape[:ndim] == size
                and type(value) is not UnbatchedTensor
            ):
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


_new = object.__new__
TensorDictMethods._dense = TensorDict

"""Making tensordicts from other things, and metadata worked out from the leaves.

Key names: :class:`ConstructMixin` (``from_dict``, ``fromkeys``, ``from_any``, ``auto_batch_size_``,
``bytes``, ...), :func:`make_tensordict`, :func:`from_dict`, :func:`from_any`, :func:`fromkeys`.

Invariant: tensors are stored as they are; nothing is copied unless it must move to a device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.keys import unravel_key_to_tuple
from tdcompile.tensordict.lazy.elements import tensor_leaves
from tdcompile.tensordict.nontensor.data import LeafKind, NonTensorDataBase, NonTensorEntry, to_leaf
from tdcompile.tensordict.nontensor.unbatched import UnbatchedTensor


class ConstructMixin:
    """Class methods that make a tensordict, and metadata read off its leaves."""

    __slots__ = ()

    if TYPE_CHECKING:
        _entries: dict[str, Any]
        _batch_size: torch.Size
        _device: torch.device | None

        def __init__(self, source: Any = None, *args: Any, **kwargs: Any) -> None: ...
        def _change_batch_size(self, size: torch.Size) -> None: ...
        def _require(self, path: tuple[str, ...]) -> Any: ...
        def _get_path(self, path: tuple[str, ...], default: Any) -> Any: ...
        def values(  # noqa: D102
            self, include_nested: bool = False, leaves_only: bool = False
        ) -> Any: ...

    @classmethod
    def _make(
        cls, source: Any, batch_size: Any = None, device: Any = None, names: Any = None
    ) -> Self:
        """Make an instance of a mapping, also where the constructor takes something else."""
        return cls(source, batch_size=batch_size, device=device, names=names)

    @classmethod
    def from_dict(
        cls,
        input_dict: Any,
        *,
        auto_batch_size: bool | None = None,
        batch_size: Any = None,
        device: Any = None,
        batch_dims: int | None = None,
        names: Any = None,
    ) -> Self:
        """Return a tensordict with the entries of a dictionary, converted by :meth:`from_any`.

        Args:
            input_dict: a mapping; keys may be nested.
            auto_batch_size: take the longest leading shape that all leaves share; a given
                `batch_size` wins.
            batch_size: the batch size ``(*B,)``.
            device: every leaf is moved there.
            batch_dims: at most so many batch dimensions; implies `auto_batch_size`.
            names: a name or ``None`` for each batch dimension.

        Raises:
            ValueError: if both `batch_size` and `batch_dims` are given.

        Example:
            >>> TensorDict.from_dict({"a": torch.zeros(3, 2)}, auto_batch_size=True).batch_size
            torch.Size([3, 2])
        """
        if batch_size is not None and batch_dims is not None:
            raise ValueError(
                f"expected either batch_size or batch_dims, found both: {batch_size!r} and "
                f"{batch_dims!r}"
            )
        if isinstance(input_dict, TensorCollection):
            source = dict(input_dict.items())
            if batch_size is None:
                batch_size = input_dict.batch_size  # type: ignore[attr-defined]
        else:
            source = {key: _convert(cls, value) for key, value in input_dict.items()}
        if batch_size is not None:
            return cls._make(source, batch_size, device, names)
        result = cls._make(source, None, device)
        if auto_batch_size or batch_dims is not None:
            result.auto_batch_size_(batch_dims)
        if names is not None:
            result.names = names  # type: ignore[attr-defined]
        return result

    @classmethod
    def fromkeys(cls, keys: Iterable[Any], value: Any = 0) -> Self:
        """Return a tensordict without batch dimensions and with the same value under each key.

        A tensor is stored as it is: every key then holds the same tensor.
        """
        return cls._make(dict.fromkeys(keys, value))

    @classmethod
    def from_any(
        cls,
        obj: Any,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: Any = None,
        batch_size: Any = None,
    ) -> Any:
        """Return a tensordict for a mapping, a (named) tuple or a dataclass instance, recursively.

        A plain tuple gets the keys ``"0"``, ``"1"``, ...; a list becomes a tensor where torch can
        make one of it. Tensors, tensordicts and everything else come back as they are.
        """
        fields = _fields_of(obj)
        if fields is None:
            return _convert(cls, obj) if isinstance(obj, list) else obj
        return cls.from_dict(
            fields,
            auto_batch_size=auto_batch_size,
            batch_dims=batch_dims if auto_batch_size else None,
            device=device,
            batch_size=batch_size,
        )

    def auto_batch_size_(
        self, batch_dims: int | None = None, keep_compliant_size: bool = False
    ) -> Self:
        """Set the batch size to the longest leading shape that all entries share; return itself.

        Nested tensordicts get theirs first. Without tensors, the batch size stays.

        Args:
            batch_dims: at most so many batch dimensions, here and in nested tensordicts.
            keep_compliant_size: leave nested tensordicts alone that have `batch_dims` or more.
        """
        shapes: list[torch.Size] = []
        for value in self._entries.values():
            if isinstance(value, (UnbatchedTensor, NonTensorDataBase)):
                # They fit any batch size.
                continue
            if isinstance(value, Tensor):
                shapes.append(value.shape)
            elif isinstance(value, LeafKind):
                shapes.append(value._batch_size)
            else:
                keep = keep_compliant_size and batch_dims is not None
                if not (keep and len(value.batch_size) >= (batch_dims or 0)):
                    value.auto_batch_size_(batch_dims, keep_compliant_size)
                shapes.append(value.batch_size)
        if not shapes:
            return self
        common = shapes[0] if batch_dims is None else shapes[0][:batch_dims]
        for shape in shapes[1:]:
            common = common_prefix(common, shape)
        self._change_batch_size(common)
        return self

    def auto_device_(self) -> Self:
        """Set the device to that of the leaves if they share one, else to none; return itself."""
        devices = {value.device for value in tensor_leaves(self)}
        self._change_device(devices.pop() if len(devices) == 1 else None)
        return self

    def clear_device_(self) -> Self:
        """Forget the device, here and below; leaves are not moved; return itself."""
        self._change_device(None)
        return self

    def _change_device(self, device: torch.device | None) -> None:
        slots: Any = self  # mypy takes the empty __slots__ of a mixin for all there are
        slots._device = device
        for value in self._entries.values():
            if isinstance(value, TensorCollection):
                value._change_device(device)  # type: ignore[attr-defined]

    # -- what there is -------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """The number of levels of nested tensordicts below this one that hold anything."""
        deepest = 0
        for value in self._entries.values():
            if isinstance(value, TensorCollection) and len(value._entries) > 0:  # type: ignore[attr-defined]
                deepest = max(deepest, 1 + value.depth)  # type: ignore[attr-defined]
        return deepest

    def is_empty(self) -> bool:
        """Tell whether there are no leaves, at any level; a non-tensor entry counts as a leaf."""
        for value in self._entries.values():
            if not isinstance(value, TensorCollection) or not value.is_empty():  # type: ignore[attr-defined]
                return False
        return True

    def is_non_tensor(self, key: Any) -> bool:
        """Tell whether the entry at `key` is a non-tensor value.

        Raises:
            KeyPathError: if `key` is absent.
        """
        return isinstance(self._require(unravel_key_to_tuple(key)), NonTensorEntry)

    def entry_class(self, key: Any) -> type:
        """Return the class of the entry at `key`; that of ``None`` if it is absent."""
        return type(self._get_path(unravel_key_to_tuple(key), None))

    def param_count(self, *, count_duplicates: bool = True) -> int:
        """Return the number of elements of all tensor leaves.

        Args:
            count_duplicates: count a tensor under several keys once a key, not once.
        """
        return sum(leaf.numel() for leaf in self._leaf_list(count_duplicates))

    def bytes(self, *, count_duplicates: bool = True) -> int:
        """Return the number of bytes of all tensor leaves and of their gradients.

        Args:
            count_duplicates: count a tensor under several keys once a key, not once.
        """
        total = 0
        for leaf in self._leaf_list(count_duplicates):
            total += leaf.numel() * leaf.element_size()
            if leaf.is_leaf and leaf.grad is not None:
                total += leaf.grad.numel() * leaf.grad.element_size()
        return total

    def _leaf_list(self, count_duplicates: bool) -> list[Tensor]:
        leaves = tensor_leaves(self)
        return leaves if count_duplicates else list({id(leaf): leaf for leaf in leaves}.values())


def common_prefix(first: torch.Size, second: torch.Size) -> torch.Size:
    """Return the longest leading shape that two shapes share."""
    count = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        count += 1
    return first[:count]


def _fields_of(obj: Any) -> dict[Any, Any] | None:
    """Return the entries of something that becomes a tensordict, or ``None``."""
    if isinstance(obj, TensorCollection):
        return None
    if isinstance(obj, Mapping):
        return dict(obj)
    if isinstance(obj, tuple) and not isinstance(obj, torch.Size):
        names = getattr(obj, "_fields", None)
        if names is None:
            names = [str(i) for i in range(len(obj))]
        return dict(zip(names, obj, strict=True))
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        return {field.name: getattr(obj, field.name) for field in dataclasses.fields(obj)}
    return None


def _convert(cls: Any, value: Any) -> Any:
    fields = _fields_of(value)
    if fields is not None:
        return {key: _convert(cls, item) for key, item in fields.items()}
    return to_leaf(value, torch.Size(())) if isinstance(value, list) else value

"""New leaves of the keys of a tensordict: ``new_zeros``, ``new_full``, ``new_tensor`` and so on.

Key names: :class:`NewLeavesMixin`.

Symbols: ``*B`` batch dimensions, ``*F`` trailing dimensions of a leaf ``(*B, *F)``.

Invariant: a result shares no memory with the tensordict; trailing dimensions stay.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.combine import combine
from tdcompile.tensordict.keys import NO_DEFAULT
from tdcompile.tensordict.lazy.elements import each_element
from tdcompile.tensordict.nontensor.unbatched import UnbatchedTensor

if TYPE_CHECKING:
    from collections.abc import Callable


class NewLeavesMixin:
    """``new_zeros``, ``new_ones``, ``new_empty``, ``new_full`` and ``new_tensor``."""

    __slots__ = ()

    def new_zeros(self: Any, *size: Any, **kwargs: Any) -> Any:
        """Return a tensordict of zeros with our keys and another batch size.

        Args:
            size: the batch size ``(*N,)``; a leaf ``(*B, *F)`` gives one ``(*N, *F)``.
            kwargs: ``dtype``, ``device``, ``requires_grad``, ``layout``, ``pin_memory``.
        """
        return _new(self, _size(size), kwargs, Tensor.new_zeros)

    def new_ones(self: Any, *size: Any, **kwargs: Any) -> Any:
        """Return a tensordict of ones with another batch size; see :meth:`new_zeros`."""
        return _new(self, _size(size), kwargs, Tensor.new_ones)

    def new_empty(self: Any, *size: Any, **kwargs: Any) -> Any:
        """Return an uninitialised tensordict of another batch size; see :meth:`new_zeros`."""
        return _new(self, _size(size), kwargs, Tensor.new_empty)

    def new_full(self: Any, size: Any, fill_value: float | bool, **kwargs: Any) -> Any:
        """Return a tensordict of `fill_value` with another batch size; see :meth:`new_zeros`."""
        return _new(self, _size((size,)), kwargs, Tensor.new_full, fill_value)

    def new_tensor(self: Any, data: Any, *, device: Any = NO_DEFAULT, **kwargs: Any) -> Any:
        """Return a tensordict with our keys and copies of `data`.

        Args:
            data: a tensordict with the same keys, or anything that ``torch.Tensor.new_tensor``
                takes, which then stands under every key and gives the batch size.
            device: device of the result.
            kwargs: ``dtype``, ``requires_grad``, ``pin_memory``.
        """
        place = {} if device is NO_DEFAULT else {"device": device}
        if isinstance(data, TensorCollection):
            return combine(
                lambda leaf, value: _copied(leaf, value, {**kwargs, **place}), (self, data), {}
            )
        sample = data if isinstance(data, Tensor) else torch.as_tensor(data)
        result = _new(
            self, sample.shape, {}, lambda leaf, _: _copied(leaf, sample, {**kwargs, **place})
        )
        return _on_device(result, place.get("device", sample.device))


def _size(size: tuple[Any, ...]) -> torch.Size:
    """Batch size out of ``(3, 4)`` or ``((3, 4),)`` arguments."""
    if len(size) == 1 and not isinstance(size[0], (int, torch.SymInt)):
        return torch.Size(size[0])
    return torch.Size(size)


def _new(
    td: Any,
    size: torch.Size,
    kwargs: dict[str, Any],
    function: Callable[..., Tensor],
    *args: Any,
) -> Any:
    """New tensordict of ``function(leaf, (*size, *F), *args, **kwargs)``."""
    is_lazy_empty = bool(kwargs.pop("empty_lazy", False))
    kwargs = {k: v for k, v in kwargs.items() if v is not NO_DEFAULT}
    device = torch.device(kwargs["device"]) if kwargs.get("device") is not None else td._device
    batch_dims = len(td._batch_size)
    return _new_level(td, size, batch_dims, device, kwargs, function, args, is_lazy_empty)


def _emptied(td: Any, size: torch.Size, batch_dims: int, device: Any) -> Any:
    """A lazy stack without entries, of the batch size ``(*size, *B[batch_dims:])``."""
    full = (*size, *td._batch_size[batch_dims:])
    place = min(td.stack_dim, len(full) - 1)
    rest = torch.Size((*full[:place], *full[place + 1 :]))
    elements = [td._from_entries({}, rest, device) for _ in range(full[place])]
    return td._like(elements, place, td._from_entries({}, rest, device))


def _new_level(
    td: Any,
    size: torch.Size,
    batch_dims: int,
    device: Any,
    kwargs: dict[str, Any],
    function: Callable[..., Tensor],
    args: tuple[Any, ...],
    is_lazy_empty: bool,
) -> Any:
    if td._is_stack and is_lazy_empty:
        return _emptied(td, size, batch_dims, device)
    if td._is_stack and td.stack_dim >= batch_dims:
        return each_element(
            _new_level, td, size, batch_dims, device, kwargs, function, args, is_lazy_empty
        )
    entries: dict[str, Any] = {}
    batch_size = torch.Size((*size, *td._batch_size[batch_dims:]))
    for key, value in td._entries.items():
        if isinstance(value, Tensor) and type(value) is not UnbatchedTensor:
            shape = (*size, *value.shape[batch_dims:])
            entries[key] = function(value, shape, *args, **kwargs)
        elif isinstance(value, TensorCollection):
            entries[key] = _new_level(
                value, size, batch_dims, device, kwargs, function, args, is_lazy_empty
            )
        else:
            entries[key] = value._emptied(batch_size)
    # Names belong to dimensions; they stay where the number of dimensions stays.
    names = td._names if len(batch_size) == len(td._batch_size) else None
    return td._from_entries(entries, batch_size, device, names)


def _copied(leaf: Tensor, value: Any, kwargs: dict[str, Any]) -> Tensor:
    """A copy of `value` with the dtype of `leaf`, unless `kwargs` says another one."""
    if isinstance(value, Tensor):
        requires_grad = kwargs.get("requires_grad", False)
        dtype = kwargs.get("dtype") or leaf.dtype
        copy = value.detach().to(device=kwargs.get("device") or leaf.device, dtype=dtype, copy=True)
        return copy.requires_grad_(requires_grad)
    return leaf.new_tensor(value, **kwargs)


def _on_device(td: Any, device: Any) -> Any:
    """Note a device on a tensordict and on those nested in it."""
    if td._is_stack:
        for element in td.tensordicts:
            _on_device(element, device)
        return td
    td._device = torch.device(device)
    for value in td._entries.values():
        if isinstance(value, TensorCollection):
            _on_device(value, device)
    return td


def _tell_keywords(name: str, told: dict[str, Any]) -> None:
    """Name the keywords that a method hands on to torch in its signature."""
    method: Any = getattr(NewLeavesMixin, name)
    given = inspect.signature(method)
    kept = [p for p in given.parameters.values() if p.kind is not p.VAR_KEYWORD]
    more = {key: value for key, value in told.items() if key not in given.parameters}
    only = inspect.Parameter.KEYWORD_ONLY
    kept += [inspect.Parameter(key, only, default=value) for key, value in more.items()]
    method.__signature__ = given.replace(parameters=kept)


_NEW = {"dtype": None, "device": NO_DEFAULT, "requires_grad": False, "pin_memory": None}
_tell_keywords("new_tensor", _NEW)
for _name in ("new_zeros", "new_ones", "new_empty", "new_full"):
    _tell_keywords(_name, {**_NEW, "layout": torch.strided, "empty_lazy": False})

"""``UnbatchedTensor``: a tensor entry that has no batch dimensions.

Key names: :class:`UnbatchedTensor`.

Invariant: the batch size is a note on the object, that of the tensordict which holds it; two
tensordicts of different batch sizes hold two objects over one storage.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tdcompile.tensordict.nontensor.data import LeafKind, as_batch_size

if TYPE_CHECKING:
    from collections.abc import Callable

_NO_BATCH = torch.Size(())


class UnbatchedTensor(LeafKind, Tensor):
    """A tensor that belongs to the whole batch: a table, a mask or parameters shared by all.

    In a tensordict, shape operations and indexing leave the data as it is; leaf-wise operations
    (arithmetic, ``clone``, ``to``, ...) apply to it as to any tensor. It is a ``torch.Tensor``.

    Args:
        data: a tensor of any shape (the storage is shared), or what ``torch.as_tensor`` takes.
        batch_size: batch size of the tensordict that holds it; a tensordict sets it.

    Example:
        >>> table = UnbatchedTensor(torch.zeros(5))
        >>> td = TensorDict(table=table, x=torch.ones(2, 3), batch_size=[2, 3])
        >>> td[0]["table"].shape, td[0]["table"].batch_size
        (torch.Size([5]), torch.Size([3]))
    """

    _batch_size: torch.Size = _NO_BATCH

    def __new__(cls, data: Any, batch_size: Any = None) -> Self:  # noqa: D102
        tensor = data if isinstance(data, Tensor) else torch.as_tensor(data)
        if batch_size is None:
            size = tensor._batch_size if isinstance(tensor, UnbatchedTensor) else _NO_BATCH
        else:
            size = as_batch_size(batch_size)
        self = tensor.as_subclass(cls)
        self._batch_size = size
        return self

    def __init__(self, data: Any, batch_size: Any = None) -> None:
        pass

    @property
    def batch_size(self) -> torch.Size:
        """The batch size of the tensordict that holds it."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, batch_size: Any) -> None:
        self._batch_size = as_batch_size(batch_size)

    def _with_batch_size(self, batch_size: torch.Size) -> Self:
        if batch_size == self._batch_size:
            return self
        return type(self)(self, batch_size)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        if isinstance(result, (Tensor, tuple, list)):
            for value in args:
                inner = value[0] if isinstance(value, (tuple, list)) and value else value
                if isinstance(inner, UnbatchedTensor):
                    _note_batch_size(result, inner._batch_size)
                    break
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        if id(self) not in memo:
            data = self.detach().clone().requires_grad_(self.requires_grad)
            memo[id(self)] = type(self)(data, self._batch_size)
        copied: Self = memo[id(self)]
        return copied

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"UnbatchedTensor({_plain(self)!r})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return UnbatchedTensor, (_plain(self), tuple(self._batch_size))


def _note_batch_size(result: Any, batch_size: torch.Size) -> None:
    if isinstance(result, UnbatchedTensor):
        if not result._batch_size:
            result._batch_size = batch_size
    elif isinstance(result, (tuple, list)):
        for item in result:
            _note_batch_size(item, batch_size)


def _plain(tensor: Tensor) -> Tensor:
    """The same data as a plain tensor."""
    return tensor.as_subclass(Tensor)


def _plain_method(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: UnbatchedTensor, *args: Any) -> Any:
        return function(_plain(self), *args)

    method.__name__ = name
    return method


# What Python makes of a number is no entry any more; errors are those of a plain tensor.
_CONVERSIONS: dict[str, Callable[..., Any]] = {
    **{"__round__": round, "__trunc__": math.trunc, "__floor__": math.floor},
    **{"__ceil__": math.ceil, "__format__": format, "__str__": str},
}
for _name, _function in _CONVERSIONS.items():
    setattr(UnbatchedTensor, _name, _plain_method(_name, _function))

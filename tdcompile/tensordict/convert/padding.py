"""Padding the batch dimensions of a tensordict.

Key names: :class:`PaddingMixin` (the method), :func:`pad` (the function).

Symbols: ``*B`` batch dimensions, ``*F`` trailing dimensions of a leaf; a leaf is ``(*B, *F)``.

Invariant: only batch dimensions of the tensordict itself are padded, in every leaf alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tdcompile.errors import TensorDictShapeError
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.functional import cat
from tdcompile.tensordict.messages import locked_error
from tdcompile.tensordict.nontensor.data import NonTensorData
from tdcompile.tensordict.nontensor.unbatched import UnbatchedTensor
from tdcompile.tensordict.state import TensorDictState

if TYPE_CHECKING:
    from collections.abc import Sequence

_Pairs = list[tuple[int, int]]


class PaddingMixin(TensorDictState):
    """The method ``pad``."""

    __slots__ = ()

    def pad(
        self, pad_size: Sequence[int], value: float = 0.0, inplace: bool = False, safe: bool = True
    ) -> Self:
        """Return the tensordict with more rows, filled with `value`, around those that are there.

        Args:
            pad_size: how much to add before and after each batch dimension, from the first one on:
                ``(before_0, after_0, before_1, ...)``; a negative number cuts.
            value: what tensors are filled with; non-tensor entries are ``None`` there.
            inplace: replace the leaves of this tensordict one by one, and return it.
            safe: with `inplace`, check that every leaf can be padded before one is replaced.

        Raises:
            RuntimeError: if `pad_size` has an odd length or is longer than twice the number of
                batch dimensions, or cuts more than there is.
            LockedError: with `inplace`, if the tensordict is locked.

        Example:
            >>> td = TensorDict({"a": torch.ones(2, 3)}, [2])
            >>> td.pad([1, 0], value=5.0)["a"]
            tensor([[5., 5., 5.],
                    [1., 1., 1.],
                    [1., 1., 1.]])
        """
        pairs = _pairs(self._batch_size, pad_size)
        if not inplace:
            result: Self = _padded(self, pairs, value)
            return result
        if self._is_locked:
            raise locked_error(())
        if safe:
            # Metadata alone: shapes are worked out, nothing is allocated.
            _padded(self.to("meta"), pairs, value)  # type: ignore[attr-defined]
        _pad_in_place(self, pairs, value)
        return self


def pad(
    tensordict: Any,
    pad_size: Sequence[int],
    value: float = 0.0,
    inplace: bool = False,
    safe: bool = True,
) -> Any:
    """Pad the batch dimensions of a tensordict; see ``TensorDict.pad``.

    Example:
        >>> pad(TensorDict({"a": torch.ones(2)}, [2]), [0, 1])["a"]
        tensor([1., 1., 0.])
    """
    return tensordict.pad(pad_size, value=value, inplace=inplace, safe=safe)


def pad_leaf(leaf: Tensor, pairs: _Pairs, value: float) -> Tensor:
    """Pad the leading dimensions of a tensor."""
    sizes = [0, 0] * (leaf.ndim - len(pairs))
    for pair in reversed(pairs):
        sizes.extend(pair)
    return torch.nn.functional.pad(leaf, sizes, value=value)


def pad_non_tensor(value: Any, pairs: _Pairs) -> Any:
    """Pad the leading dimensions of a non-tensor entry with ``None``."""
    for dim, pair in enumerate(pairs):
        size = value.batch_size
        before, after = pair
        if before < 0 or after < 0:
            stop = size[dim] + min(after, 0)
            index = (*(slice(None),) * dim, slice(max(-before, 0), stop))
            value = _boxed(value, size)[index].get("v")
            size = value.batch_size
        parts = [_boxed(value, size)]
        for count, place in ((before, 0), (after, len(parts))):
            if count > 0:
                filler = torch.Size((*size[:dim], count, *size[dim + 1 :]))
                parts.insert(place and len(parts), _boxed(NonTensorData(None, filler), filler))
        if len(parts) > 1:
            value = cat(parts, dim).get("v")
    return value


def _boxed(value: Any, size: torch.Size) -> Any:
    # Indexing and joining non-tensor entries is the business of a tensordict that holds them.
    from tdcompile.tensordict.dense import TensorDict

    return TensorDict._from_entries({"v": value}, size)


def _pairs(size: torch.Size, pad_size: Sequence[int]) -> _Pairs:
    """Return `pad_size` as pairs, checked."""
    if len(pad_size) % 2:
        raise RuntimeError(
            f"expected two numbers for each batch dimension, found {len(pad_size)}: "
            f"{list(pad_size)}"
        )
    if len(pad_size) > 2 * len(size):
        raise TensorDictShapeError(
            f"expected at most {2 * len(size)} numbers for {len(size)} batch dimensions, found "
            f"{len(pad_size)}: {list(pad_size)}"
        )
    pairs = list(zip(pad_size[::2], pad_size[1::2], strict=True))
    _new_size(size, pairs)
    return pairs


def _new_size(size: torch.Size, pairs: _Pairs) -> torch.Size:
    result = list(size)
    for dim, (before, after) in enumerate(pairs):
        result[dim] += before + after
        if result[dim] < 0:
            raise TensorDictShapeError(
                f"negative output size: expected to cut at most {size[dim]} rows of batch "
                f"dimension {dim}, found pad_size ({before}, {after})"
            )
    return torch.Size(result)


def _padded_entry(entry: Any, pairs: _Pairs, value: float) -> Any:
    if isinstance(entry, UnbatchedTensor):
        return entry._with_batch_size(_new_size(entry._batch_size, pairs))
    if isinstance(entry, Tensor):
        return pad_leaf(entry, pairs, value)
    if isinstance(entry, TensorCollection):
        return _padded(entry, pairs, value)
    return pad_non_tensor(entry, pairs)


def _padded(td: Any, pairs: _Pairs, value: float) -> Any:
    if td._is_stack:
        (before, after), rest = _stack_pair(td, pairs)
        elements = [_padded(element, rest, value) for element in td.tensordicts]
        return td._like(_with_fillers(td, elements, before, after, rest, value))
    entries = {name: _padded_entry(entry, pairs, value) for name, entry in td._entries.items()}
    return td._from_entries(entries, _new_size(td._batch_size, pairs), td._device, td._names)


def _stack_pair(stack: Any, pairs: _Pairs) -> tuple[tuple[int, int], _Pairs]:
    """Return what is added along the stack dimension, and the pairs of an element."""
    place = stack.stack_dim
    if place >= len(pairs):
        return (0, 0), pairs
    return pairs[place], [*pairs[:place], *pairs[place + 1 :]]


def _with_fillers(
    stack: Any, elements: list[Any], before: int, after: int, rest: _Pairs, value: float
) -> list[Any]:
    """Add elements full of `value` at both ends of a list, or cut it there."""
    kept = elements[max(-before, 0) : len(elements) + min(after, 0)]
    model = elements[0] if elements else _padded(stack._first(), rest, value)
    front = [_filled(model, value) for _ in range(before)]
    return [*front, *kept, *[_filled(model, value) for _ in range(after)]]


def _filled(td: Any, value: float) -> Any:
    """Return a tensordict like `td` that is full of `value`, ``None`` for what is no tensor."""
    if td._is_stack:
        return td._like([_filled(element, value) for element in td.tensordicts])
    entries: dict[str, Any] = {}
    for name, entry in td._entries.items():
        if isinstance(entry, UnbatchedTensor):
            entries[name] = entry
        elif isinstance(entry, Tensor):
            entries[name] = torch.full_like(entry, value)
        elif isinstance(entry, TensorCollection):
            entries[name] = _filled(entry, value)
        else:
            entries[name] = NonTensorData(None, entry.batch_size)
    return td._from_entries(entries, td._batch_size, td._device, td._names)


def _pad_in_place(td: Any, pairs: _Pairs, value: float) -> None:
    if td._is_stack:
        (before, after), rest = _stack_pair(td, pairs)
        for element in td.tensordicts:
            _pad_in_place(element, rest, value)
        td.tensordicts[:] = _with_fillers(td, td.tensordicts, before, after, rest, value)
        return
    for name, entry in td._entries.items():
        if isinstance(entry, TensorCollection):
            _pad_in_place(entry, pairs, value)
        else:
            # The same key gets another object: the dictionary keeps its size in the loop.
            td._entries[name] = _padded_entry(entry, pairs, value)
    td._batch_size = _new_size(td._batch_size, pairs)

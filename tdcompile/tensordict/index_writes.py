"""Writing into a part of the batch: planned and checked as a whole, then carried out.

Key names: :class:`IndexWrite`, :class:`Fill`, :func:`broadcast_value`, :func:`as_fill`.

Symbols: ``*B`` batch dimensions, ``*F`` trailing dimensions of a leaf; a leaf is ``(*B, *F)``. An
index that turns ``(*B,)`` into ``(*I,)`` turns the leaf into ``(*I, *F)``.

Invariant: nothing is written before every entry was seen to fit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from tdcompile.errors import KeyPathError, LockedError, TensorDictShapeError
from tdcompile.tensordict.keys import format_entry
from tdcompile.tensordict.nontensor.data import NonTensorDataBase, NonTensorEntry, same_value
from tdcompile.tensordict.nontensor.stack import NonTensorStack
from tdcompile.tensordict.nontensor.unbatched import UnbatchedTensor

_Path = tuple[str, ...]


class Fill(NamedTuple):
    """A tensor that is written to every leaf, and which slices of it an element gets."""

    value: Tensor
    cuts: tuple[tuple[int, int, bool], ...] = ()
    """For each cut the result dimension, counted from the end of the batch dimensions, the
    position there, and whether the dimension stays."""

    def cut(self, from_end: int, position: int, stays: bool) -> Fill:
        """Return the part at a position of a result dimension."""
        return Fill(self.value, (*self.cuts, (from_end, position, stays)))

    def widened(self, extra: int) -> Fill:
        """Return what goes to a nested tensordict with so many more batch dimensions."""
        cuts = [(from_end + extra, position, stays) for from_end, position, stays in self.cuts]
        return Fill(self.value, tuple(cuts))

    def for_leaf(self, trailing: int) -> Tensor:
        """Return what goes to a leaf with so many trailing dimensions."""
        value = self.value
        for from_end, position, stays in self.cuts:
            dim = value.dim() - from_end - trailing
            if dim >= 0:
                position = position if value.shape[dim] > 1 else 0
                value = value.narrow(dim, position, 1) if stays else value.select(dim, position)
        return value


class IndexWrite:
    """A write to a part of the batch: first planned and checked as a whole, then carried out."""

    __slots__ = (
        *("added", "batch_dims", "is_whole", "items", "may_add", "parts"),
        *("replaced", "sizes", "stacks", "written"),
    )

    def __init__(
        self, items: Any, sizes: torch.Size, batch_dims: int, is_whole: bool, may_add: bool
    ) -> None:
        self.items = items
        self.sizes = sizes
        self.batch_dims = batch_dims
        self.is_whole = is_whole
        self.may_add = may_add
        self.written: list[tuple[Tensor, Any]] = []
        self.replaced: list[tuple[Tensor, Tensor]] = []
        self.stacks: list[tuple[Any, list[tuple[int, Any]]]] = []
        self.added: list[tuple[Any, str, Any]] = []
        self.parts: list[IndexWrite] = []  # those of nested lazy stacks

    def plan(self, td: Any, source: Any, path: _Path) -> None:
        """Plan to write the entries of the tensordict `source` into those of `td`."""
        if td._is_stack:
            td._plan_index(self.items, source, self.may_add, self.parts, path)
            return
        entries = td._entries
        for key, value in source._entries.items():
            where = (*path, key)
            if key not in entries:
                self._plan_new(td, key, value, where)
                continue
            target = entries[key]
            if isinstance(target, Tensor):
                if not isinstance(value, Tensor):
                    raise _kind_mismatch(where, "a tensor", value)
                if type(target) is UnbatchedTensor:
                    self._plan_unbatched(target, value, where)
                else:
                    self._plan_leaf(target, value, where)
            elif isinstance(target, NonTensorEntry):
                self.plan_non_tensor(td, key, target, value)
            elif isinstance(value, Tensor):
                self.fill(target, value, value.dim() == 0, where)
            elif isinstance(value, NonTensorEntry):
                raise _kind_mismatch(where, "a tensordict", value)
            else:
                self.plan(target, value, where)

    def fill(self, td: Any, value: Any, is_scalar: bool, path: _Path) -> None:
        """Plan to write one number or tensor into every tensor of `td`."""
        if td._is_stack:
            if isinstance(value, Fill):
                value = value.widened(td.batch_dims - self.batch_dims)
            td._plan_index(self.items, value, False, self.parts, path)
            return
        for key, target in td._entries.items():
            if isinstance(target, UnbatchedTensor):
                # It has no part that belongs to a part of the batch.
                continue
            if isinstance(target, Tensor):
                if is_scalar:
                    self.written.append((target, value))
                elif isinstance(value, Fill):
                    leaf = value.for_leaf(target.dim() - self.batch_dims)
                    self._plan_leaf(target, leaf, (*path, key))
                else:
                    self._plan_leaf(target, value, (*path, key))
            elif not isinstance(target, NonTensorEntry):
                self.fill(target, value, is_scalar, (*path, key))

    def run(self) -> None:
        """Write what was planned, nested lazy stacks first."""
        for part in self.parts:
            part.run()
        items = self.items
        for target, value in self.written:
            target[items] = value
        for leaf, value in self.replaced:
            leaf.copy_(value)
        for stack, planned in self.stacks:
            stack._write(planned)
        for td, key, value in self.added:
            td._entries[key] = value

    def plan_non_tensor(self, td: Any, key: str, target: Any, value: Any) -> None:
        """Plan to write a value (a non-tensor entry or anything bare) into a non-tensor entry."""
        data = value.data if isinstance(value, NonTensorDataBase) else value
        if isinstance(target, NonTensorDataBase):
            if not isinstance(value, NonTensorStack) and same_value(target.data, data):
                return
            # One value no longer does: the entry becomes a stack, in a locked tensordict, too.
            target = target._as_stack(target._batch_size)
            self.added.append((td, key, target))
        self.stacks.append((target, target._planned_at(self.items, value)))

    def _plan_unbatched(self, target: Tensor, value: Tensor, path: _Path) -> None:
        if type(value) is not UnbatchedTensor or value.shape != target.shape:
            raise TensorDictShapeError(
                f"expected an UnbatchedTensor of shape {tuple(target.shape)} to write to "
                f"{format_entry(path)}, which the whole batch shares; found {type(value).__name__} "
                f"of shape {tuple(value.shape)}"
            )
        self.replaced.append((target, value))

    def _plan_leaf(self, target: Tensor, value: Tensor, path: _Path) -> None:
        expected = self.sizes + target.shape[self.batch_dims :]
        if value.shape != expected and not _broadcasts(value.shape, expected):
            raise TensorDictShapeError(
                f"expected a value that broadcasts to {tuple(expected)}, the indexed shape of "
                f"{format_entry(path)}; found shape {tuple(value.shape)}"
            )
        self.written.append((target, value))

    def _plan_new(self, td: Any, key: str, value: Any, path: _Path) -> None:
        if not self.may_add:
            raise KeyPathError(
                f"expected keys that are there, {list(td._entries)}; found the new key "
                f"{format_entry(path)}"
            )
        if td._is_locked:
            raise LockedError(
                f"expected keys that a locked tensordict has; found the new key "
                f"{format_entry(path)}: unlock_() first"
            )
        self.added.append((td, key, self._zeros_with(td, value, path)))

    def _zeros_with(self, td: Any, value: Any, path: _Path) -> Any:
        """Return a new entry that holds `value` where the index points and zero elsewhere."""
        extra = getattr(value, "batch_size", value.shape)[len(self.sizes) :]
        shape = td._batch_size[: self.batch_dims] + extra
        if isinstance(value, (UnbatchedTensor, NonTensorDataBase)):
            # What holds for all elements of the part holds for all that there are.
            return value._with_batch_size(shape)
        if isinstance(value, NonTensorStack):
            stack = NonTensorStack._of([None] * shape.numel(), shape, value._device)
            stack._write(stack._planned_at(self.items, value))
            return stack
        if isinstance(value, Tensor):
            leaf = torch.zeros(shape, dtype=value.dtype, device=value.device)
            leaf[self.items] = value
            return leaf
        entries = {}
        for key, inner in value._entries.items():
            entries[key] = self._zeros_with(td, inner, (*path, key))
        names = td._names
        if names is not None:
            names = names[: self.batch_dims] + (None,) * len(extra)
        return value._from_entries(entries, shape, value._device, names)


def _broadcasts(shape: torch.Size, target: torch.Size) -> bool:
    """Tell whether ``x[index] = value`` takes a value of `shape` where ``x[index]`` is `target`."""
    extra = len(shape) - len(target)
    for place in range(extra):
        # As torch does, leading sizes of 1 may be dropped.
        if shape[place] != 1:
            return False
    rest = shape[extra:] if extra > 0 else shape
    offset = len(target) - len(rest)
    for place, size in enumerate(rest):
        if size != target[place + offset] and size != 1:
            return False
    return True


def broadcast_value(value: Any, sizes: torch.Size) -> Any:
    """Expand a tensordict to the size of an indexed batch."""
    own = value._batch_size
    if len(own) == len(sizes) and own == sizes:
        return value
    if len(own) > len(sizes) or not _broadcasts(own, sizes):
        raise TensorDictShapeError(
            f"indexed destination TensorDict batch size is {tuple(sizes)}, which differs from the "
            f"source batch size {tuple(own)}, and that does not broadcast to it"
        )
    return value.expand(sizes)


def as_tensor(value: Any) -> Tensor:
    """Return a tensor of a value that is to be written; strings and objects are none."""
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TensorDictShapeError(
            "expected a tensordict, a dictionary, a number or a tensor to write into a part of the "
            f"batch; found {value!r} of type {type(value).__name__}"
        ) from error


def as_fill(value: Any) -> Any:
    """Return a value to fill leaves with: a number as it is, else a tensor."""
    return value if isinstance(value, (bool, int, float, complex)) else as_tensor(value)


def _kind_mismatch(path: _Path, expected: str, value: Any) -> TensorDictShapeError:
    return TensorDictShapeError(
        f"expected {expected} to write into {format_entry(path)}; found {type(value).__name__}"
    )

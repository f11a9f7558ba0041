"""The entries of a lazy stack: stacked when they are read, unbound when they are written.

Key names: :class:`StackedEntries` (a lazy stack as a dictionary), :func:`stack_values`,
:func:`unstack_value`; :class:`Column`, :func:`column_of` and :func:`read_column` (entries of
several shapes).

Symbols: ``*B`` batch dimensions of the stack, which has ``n`` elements along dimension ``k``.

Invariant: reading copies (a new stacked tensor each time), except for nested tensordicts, which
come as a lazy stack of the very tensordicts that the elements hold; writing stores views.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from tdcompile.errors import KeyMismatchError, TensorDictShapeError
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.keys import NO_DEFAULT, format_entry
from tdcompile.tensordict.messages import misfit_error
from tdcompile.tensordict.nontensor.data import LeafKind, to_leaf
from tdcompile.tensordict.nontensor.stack import NonTensorStack, join

if TYPE_CHECKING:
    from collections.abc import Iterator


class StackedEntries:
    """What ``_entries`` of a lazy stack is: a mapping over the keys that all elements have.

    Keys come in the order of the first element.
    """

    __slots__ = ("_stack",)

    def __init__(self, stack: Any) -> None:
        self._stack = stack

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def keys(self) -> list[str]:
        """Return the keys that all elements have."""
        elements = self._stack.tensordicts
        if not elements:
            return list(self._stack._template._entries)
        rest = [element._entries for element in elements[1:]]
        return [key for key in elements[0]._entries if all(key in own for own in rest)]

    def values(self) -> list[Any]:
        """Return the stacked values."""
        return [self[key] for key in self.keys()]

    def items(self) -> list[tuple[str, Any]]:
        """Return pairs of key and stacked value."""
        return [(key, self[key]) for key in self.keys()]

    def peek(self) -> list[tuple[str, Any]]:
        """Return the items with the first element's tensor for each stacked one."""
        stack = self._stack
        first = stack._first()._entries
        pairs = []
        for key in self.keys():
            value = first[key]
            pairs.append((key, self[key] if isinstance(value, TensorCollection) else value))
        return pairs

    def __len__(self) -> int:
        return len(self.keys())

    def __contains__(self, key: object) -> bool:
        elements = self._stack.tensordicts
        return len(elements) > 0 and all(key in element._entries for element in elements)

    def __getitem__(self, key: str) -> Any:
        stack = self._stack
        values = [element._entries[key] for element in stack.tensordicts]
        if not values:
            return stack._template._entries[key]
        return stack_values(values, stack, key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the stacked value, or `default` if an element lacks the key."""
        if key not in self:
            return default
        return self[key]

    def copy(self) -> dict[str, Any]:
        """Return the stacked values as a dictionary."""
        return dict(self.items())

    def __setitem__(self, key: str, value: Any) -> None:
        stack = self._stack
        pieces = unstack_value(stack, value, (key,))
        for element, piece in zip(stack.tensordicts, pieces, strict=True):
            element._entries[key] = piece

    def update(self, entries: Any) -> None:
        """Write several values."""
        for key, value in entries.items():
            self[key] = value

    def __delitem__(self, key: str) -> None:
        for element in self._stack.tensordicts:
            if key in element._entries:
                del element._entries[key]

    def pop(self, key: str, default: Any = NO_DEFAULT) -> Any:
        """Remove a key from all elements and return what was there, stacked."""
        if default is not NO_DEFAULT and key not in self:
            return default
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove the last of the keys."""
        key = self.keys()[-1]
        return key, self.pop(key)

    def clear(self) -> None:
        """Remove all keys of all elements, also those that only some have."""
        for element in self._stack.tensordicts:
            element._entries.clear()


def stack_values(values: list[Any], stack: Any, key: str) -> Any:
    """Stack what the elements have under one key.

    Raises:
        TensorDictShapeError: if tensors differ in shape; the message names the ways to read them.
        KeyMismatchError: if some are tensors and others are not.
    """
    first = values[0]
    if isinstance(first, LeafKind):
        if any(isinstance(value, Tensor) != isinstance(first, Tensor) for value in values):
            raise _kinds_error(values, key)
        if not all(isinstance(value, LeafKind) for value in values):
            raise _kinds_error(values, key)
        return join(values, torch.stack, stack.stack_dim)
    if isinstance(first, Tensor):
        for value in values:
            if not isinstance(value, Tensor) or isinstance(value, LeafKind):
                raise _kinds_error(values, key)
            if value.shape != first.shape:
                raise TensorDictShapeError(
                    f"Failed to stack tensors within a tensordict: {format_entry(key)} has the "
                    f"shapes {[tuple(v.shape) for v in values]}: read it with td.get(key, "
                    "as_list=True), as_padded_tensor=True or as_nested_tensor=True"
                )
        return torch.stack(values, stack.stack_dim)
    if not all(isinstance(value, TensorCollection) for value in values):
        raise _kinds_error(values, key)
    return stack._like(values)


def _kinds_error(values: list[Any], key: str) -> KeyMismatchError:
    kinds = [type(value).__name__ for value in values]
    return KeyMismatchError(
        f"expected entries of one kind to stack for {format_entry(key)}; found {kinds}: rename the"
        " key in some of the tensordicts"
    )


def _cut(stack: Any, value: Any, path: tuple[str, ...]) -> list[Any]:
    """Cut an entry that is no batched tensor into one for each element."""
    size, own = stack.batch_size, value._batch_size
    sizes = [element.batch_size for element in stack.tensordicts]
    if isinstance(value, NonTensorStack):
        if own[: len(size)] != size:
            raise TensorDictShapeError(
                f"expected {format_entry(path)} to start with the batch size {list(size)}, found a "
                f"NonTensorStack of batch size {list(own)}: give one value for each element"
            )
        return value._cut(None, stack.stack_dim, sizes)
    return [value._with_batch_size(own_size) for own_size in sizes]


def unstack_value(stack: Any, value: Any, path: tuple[str, ...]) -> list[Any]:
    """Cut a value that is to be stored at `path` of a lazy stack into one for each element.

    Args:
        stack: a lazy stack ``(*B,)``.
        value: a tensor ``(*B, *F)``, a tensordict, a mapping of these, a list with one item for
            each element of the first batch dimension, or anything else (for all elements).
        path: for messages.

    Returns:
        Views of tensors; the elements of a lazy stack with the same stack dimension.

    Raises:
        TensorDictShapeError: if the leading dimensions are not the batch size.
    """
    place = stack.stack_dim
    count = len(stack.tensordicts)
    if isinstance(value, Mapping):
        columns = {
            key: unstack_value(stack, item, (*path, *(key if isinstance(key, tuple) else (key,))))
            for key, item in value.items()
        }
        return [{key: column[i] for key, column in columns.items()} for i in range(count)]
    if isinstance(value, list) and len(value) == stack.batch_size[0]:
        return [_item_at(value, place, i, path) for i in range(count)]
    if not isinstance(value, (Tensor, TensorCollection)) or isinstance(value, LeafKind):
        scalar = value
        value = to_leaf(value, stack.batch_size)
        if isinstance(value, LeafKind):
            return _cut(stack, value, path)
        if value.dim() <= place or value.shape[place] != count:
            raise misfit_error(stack, value, path, scalar)
    if isinstance(value, TensorCollection):
        like: Any = value
        if like._is_stack and like.stack_dim == place and len(like.tensordicts) == count:
            return list(like.tensordicts)
        if like.batch_dims <= place or like.batch_size[place] != count:
            like = like._with_batch_size(stack.batch_size, path)
        return list(like.unbind(place))
    if value.dim() <= place or value.shape[place] != count:
        raise misfit_error(stack, value, path)
    return list(torch.unbind(value, place))


def _item_at(value: Any, depth: int, index: int, path: Any) -> Any:
    """Take the item `index` of the lists `depth` levels below a nested list."""
    if depth == 0:
        return value[index]
    rows = []
    for row in value:
        if not isinstance(row, list) or (depth == 1 and index >= len(row)):
            raise TensorDictShapeError(
                f"expected nested lists down to the stack dimension for {format_entry(path)}; "
                f"found {row!r}"
            )
        rows.append(_item_at(row, depth - 1, index, path))
    return rows


# -- entries of several shapes ---------------------------------------------------------------------


class Column(NamedTuple):
    """The tensors that the elements of a lazy stack have at one path."""

    dim: int
    """The stack dimension."""
    values: list[Any]
    """Tensors or non-tensor values; columns where an element is a lazy stack itself."""

    def as_list(self) -> list[Any]:
        """Return the tensors in lists, one level for each lazy stack."""
        return [v.as_list() if isinstance(v, Column) else v for v in self.values]

    def as_padded(self, value: float | bool, side: str) -> Tensor:
        """Return one tensor of the tensors, padded, see :func:`padded`."""
        tensors = [v.as_padded(value, side) if isinstance(v, Column) else v for v in self.values]
        return padded(tensors, self.dim, value, side)


def column_of(td: Any, path: tuple[str, ...]) -> Column | None:
    """Return the tensors at a path through at least one lazy stack.

    ``None`` if an element lacks it, if it names tensordicts, or if there is no lazy stack.
    """
    value = td
    for depth, name in enumerate(path):
        if not isinstance(value, TensorCollection):
            return None
        node: Any = value
        if node._is_stack:
            return _column_of_stack(node, path[depth:])
        value = node._entries.get(name)
    return None


def _column_of_stack(stack: Any, path: tuple[str, ...]) -> Column | None:
    values: list[Any] = []
    for element in stack.tensordicts:
        value = column_of(element, path)
        if value is None:
            value = element._get_path(path, None)
            if value is None or isinstance(value, TensorCollection):
                return None
        values.append(value)
    return Column(stack.stack_dim, values)


def read_column(
    column: Column,
    *,
    as_list: bool = False,
    as_padded_tensor: bool = False,
    as_nested_tensor: bool = False,
    layout: torch.layout | None = None,
    padding_side: str = "right",
    padding_value: float | bool = 0.0,
) -> Any:
    """Return tensors as a list, as one padded tensor, or as a nested tensor; else stacked.

    Raises:
        ValueError: if more than one form is asked for.
        TensorDictShapeError: if none is and the shapes differ.
    """
    if as_list + as_padded_tensor + as_nested_tensor > 1:
        raise ValueError(
            "expected one of as_list, as_padded_tensor and as_nested_tensor; found several"
        )
    if as_list:
        return column.as_list()
    if as_padded_tensor:
        return column.as_padded(padding_value, padding_side)
    if as_nested_tensor:
        return nested(column.values, layout)
    shapes = [tuple(value.shape) for value in column.values]
    if any(shape != shapes[0] for shape in shapes):
        raise TensorDictShapeError(
            f"Failed to stack tensors within a tensordict: they have the shapes {shapes}: pass "
            "as_list=True, as_padded_tensor=True or as_nested_tensor=True"
        )
    return torch.stack(column.values, column.dim)


def padded(values: Any, dim: int, value: float | bool, side: str) -> Tensor:
    """Stack tensors of several shapes, each padded to the largest size of each dimension.

    Args:
        values: tensors of one number of dimensions.
        dim: the new dimension.
        value: what is put where a tensor has nothing.
        side: ``"left"`` or ``"right"``, where in each dimension.

    Raises:
        ValueError: if `side` is anything else.
        TensorDictShapeError: if tensors differ in their number of dimensions.
    """
    if side not in ("left", "right"):
        raise ValueError(f'expected padding_side to be "left" or "right"; found {side!r}')
    ranks = {tensor.dim() for tensor in values}
    if len(ranks) > 1:
        raise TensorDictShapeError(
            "expected tensors of one number of dimensions to pad; found shapes "
            f"{[tuple(tensor.shape) for tensor in values]}"
        )
    shape = [max(sizes) for sizes in zip(*[tensor.shape for tensor in values], strict=True)]
    result = []
    for tensor in values:
        pads: list[int] = []
        for size, wanted in zip(reversed(tensor.shape), reversed(shape), strict=True):
            pads.extend((wanted - size, 0) if side == "left" else (0, wanted - size))
        result.append(torch.nn.functional.pad(tensor, pads, value=value) if any(pads) else tensor)
    return torch.stack(result, dim)


def nested(values: list[Any], layout: Any) -> Tensor:
    """Make a nested tensor of tensors that differ in sizes.

    Raises:
        ValueError: if a value is a nested tensor itself, or a list of tensors.
    """
    for value in values:
        if not isinstance(value, Tensor) or value.is_nested:
            raise ValueError(
                "expected plain tensors for a nested tensor, which has one nested level; found a "
                f"{type(value).__name__}: use as_list=True or as_padded_tensor=True"
            )
    return torch.nested.as_nested_tensor(values, layout=torch.jagged if layout is None else layout)

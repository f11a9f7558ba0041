"""What a loop over the entries of a tensordict does with a lazy stack: run on each element.

Key names: :func:`each_element` (same arguments for all elements), :func:`each_row` (operands are
split along the stack dimension), :func:`element_rows`, :func:`restack` (results to a lazy stack),
:func:`element_dims` (dimension numbers of the stack to those of its elements),
:func:`is_uniform`, :func:`tensor_leaves`.

Every loop that recurs into nested tensordicts starts with ``if td._is_stack`` and one of these; so
a lazy stack is served wherever it lies, and its elements may differ in keys and shapes.

Symbols: ``*B`` batch dimensions of the stack; an element has ``*B`` without the stack dimension.

Invariant: elements meet operands in order; an operand without the stack dimension, or of size 1
there, meets every element.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdcompile.errors import TensorDictShapeError
from tdcompile.tensordict.collection import TensorCollection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def each_element(loop: Callable[..., Any], stack: Any, *args: Any) -> Any:
    """Call ``loop(element, *args)`` for each element, and stack the results lazily."""
    return restack(stack, [loop(element, *args) for element in stack.tensordicts])


def each_row(call: Callable[..., Any], stack: Any, operands: tuple[Any, ...]) -> Any:
    """Call `call` with the operands of each element, and stack the results lazily.

    Args:
        call: gets one value for each of `operands`.
        stack: the lazy stack, which is one of the operands.
        operands: tensordicts and tensors that broadcast against the stack, and other values.
    """
    return restack(stack, [call(*row) for row in element_rows(stack, operands)])


def restack(stack: Any, results: list[Any]) -> Any:
    """Make a lazy stack of what came of each element, of any new number of batch dimensions.

    ``None`` if nothing came of any element; an empty tensordict stands where one gave nothing.
    """
    if not results:
        return stack._like([])
    if any(result is None for result in results):
        if all(result is None for result in results):
            return None
        elements = stack.tensordicts
        results = [
            elements[i].empty() if result is None else result for i, result in enumerate(results)
        ]
    # What an operation adds comes in front of the batch dimensions.
    added = len(results[0]._batch_size) + 1 - stack.batch_dims
    return stack._like(results, stack.stack_dim + added)


def element_rows(
    stack: Any, operands: Sequence[Any], split_tensors: bool = True
) -> list[tuple[Any, ...]]:
    """Split operands along the stack dimension: one tuple for each element.

    Raises:
        TensorDictShapeError: if an operand has another size along the stack dimension.
    """
    # Operands broadcast from the right, so the stack dimension is counted from there.
    from_end = stack.batch_dims - stack.stack_dim
    columns: list[Any] = []
    count = len(stack.tensordicts)
    for value in operands:
        pieces = stack.tensordicts
        if value is not stack:
            pieces = _pieces(value, from_end, split_tensors)
        columns.append(pieces)
        if pieces is not None and len(pieces) != 1 and len(pieces) != count:
            if count != 1:
                raise TensorDictShapeError(
                    f"expected operands of size {count} along dimension {stack.stack_dim} of batch "
                    f"size {tuple(stack.batch_size)}; found size {len(pieces)}"
                )
            count = len(pieces)
    rows = []
    for i in range(count):
        row = []
        for value, pieces in zip(operands, columns, strict=True):
            if pieces is None:
                row.append(value)
            else:
                row.append(pieces[0] if len(pieces) == 1 else pieces[i])
        rows.append(tuple(row))
    return rows


def _pieces(value: Any, from_end: int, split_tensors: bool) -> Any:
    """Cut a value along a dimension; ``None`` if it has no such dimension."""
    if isinstance(value, TensorCollection):
        like: Any = value
        place = like.batch_dims - from_end
        if place < 0:
            return None
        if like._is_stack and like.stack_dim == place:
            return like.tensordicts
        return like.unbind(place)
    if split_tensors and isinstance(value, Tensor) and value.dim() >= from_end:
        return torch.unbind(value, value.dim() - from_end)
    return None


def element_dims(stack: Any, dims: Sequence[int]) -> tuple[int, ...]:
    """Turn dimensions of the stack, none of them the stack dimension, into those of elements."""
    return tuple([dim - (dim > stack.stack_dim) for dim in dims])


def joint_size(tensordicts: Sequence[Any]) -> torch.Size:
    """Return the batch size of tensordicts, with -1 where they differ.

    Raises:
        TensorDictShapeError: if they differ in their number of batch dimensions.
    """
    size: torch.Size = tensordicts[0].batch_size
    for td in tensordicts[1:]:
        other = td.batch_size
        if other == size:
            continue
        if len(other) != len(size):
            raise TensorDictShapeError(
                "batch sizes in tensordicts differs, and stacking tensordicts requires one number "
                f"of dimensions: found {tuple(tensordicts[0].batch_size)} and {tuple(other)}"
            )
        pairs = zip(size, other, strict=True)
        size = torch.Size([own if own == found else -1 for own, found in pairs])
    return size


def check_elements(tensordicts: Sequence[Any], strict_shape: bool = False) -> None:
    """Check that tensordicts can be the elements of one lazy stack.

    Raises:
        TypeError: if one is no tensordict.
        RuntimeError: if they differ in device or in their number of batch dimensions; with
            `strict_shape`, in their batch size.
    """
    for td in tensordicts:
        if not isinstance(td, TensorCollection):
            raise TypeError(f"expected tensordicts to stack lazily; found {type(td).__name__}")
    first = tensordicts[0]
    size = joint_size(tensordicts)
    for td in tensordicts:
        if td.device != first.device:
            raise RuntimeError(
                f"expected tensordicts of one device; found {first.device} and {td.device}: move "
                "them first (td.to(device))"
            )
        if strict_shape and td.batch_size != size:
            raise TensorDictShapeError(
                "batch sizes in tensordicts differs, and stacking tensordicts requires one with "
                f"strict_shape=True: found {tuple(first.batch_size)} and {tuple(td.batch_size)}"
            )


def is_uniform(tensordicts: Sequence[Any]) -> bool:
    """Tell whether tensordicts have the same keys, at every level, and the same shapes."""
    first = tensordicts[0]
    for td in tensordicts[1:]:
        if td.batch_size != first.batch_size or not _is_alike(first, td):
            return False
    return not first._is_stack or is_uniform(first.tensordicts or [first._template])


def _is_alike(first: Any, other: Any) -> bool:
    if first._is_stack or other._is_stack:
        own = first.tensordicts if first._is_stack else first.unbind(other.stack_dim)
        if first._is_stack and other._is_stack and first.stack_dim != other.stack_dim:
            return False
        theirs = other.tensordicts if other._is_stack else other.unbind(first.stack_dim)
        return is_uniform([*own, *theirs]) if own or theirs else True
    entries = other._entries
    if len(entries) != len(first._entries):
        return False
    for key, value in first._entries.items():
        match = entries.get(key)
        if isinstance(value, Tensor):
            if not isinstance(match, Tensor) or match.shape != value.shape:
                return False
        elif isinstance(value, TensorCollection):
            if not isinstance(match, TensorCollection) or not is_uniform([value, match]):
                return False
        elif match is None or isinstance(match, (Tensor, TensorCollection)):
            return False
    return True


def tensor_leaves(value: Any) -> list[Tensor]:
    """All tensors of a tensordict in key order, those of a lazy stack element by element."""
    if isinstance(value, Tensor):
        return [value]
    leaves: list[Tensor] = []
    if isinstance(value, TensorCollection):
        td: Any = value
        if td._is_stack:
            for element in td.tensordicts:
                leaves.extend(tensor_leaves(element))
            return leaves
        for entry in td._entries.values():
            if isinstance(entry, Tensor):
                leaves.append(entry)
            else:
                leaves.extend(tensor_leaves(entry))
    return leaves


def leaf_pieces(td: Any, name: str, value: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the leaves that are stored under a key, with the part of `value` that goes to each.

    Args:
        td: a tensordict; of a lazy stack, each element has a leaf.
        name: the key.
        value: of the shape of the (stacked) leaf.
    """
    if not td._is_stack:
        return [(td._entries[name], value)]
    pieces: list[tuple[Tensor, Tensor]] = []
    for element, part in zip(td.tensordicts, torch.unbind(value, td.stack_dim), strict=True):
        pieces.extend(leaf_pieces(element, name, part))
    return pieces


def dense_form(td: Any, copied: bool) -> Any:
    """Return a tensordict without lazy stacks, made of copies or of the leaves that there are.

    Raises:
        TensorDictShapeError: if the elements of a stack differ in shapes or in batch size.
    """
    size = td._batch_size
    if td._is_stack and -1 in size:
        raise TensorDictShapeError(
            f"expected elements of one batch size to make a dense tensordict; found {tuple(size)}, "
            "where -1 stands for sizes that differ: use densify()"
        )
    entries: dict[str, Any] = {}
    for key, value in td._entries.items():
        if isinstance(value, TensorCollection):
            entries[key] = dense_form(value, copied)
        elif isinstance(value, Tensor) and copied and not td._is_stack:
            entries[key] = value.clone()
        else:
            entries[key] = value
    return td._from_entries(entries, size, td._device, td._names)


def stack_rows(stacks: Sequence[Any]) -> list[tuple[Any, ...]] | None:
    """Return the elements of lazy stacks side by side.

    ``None`` if one is no lazy stack, or they differ in stack dimension or number of elements.
    """
    first = stacks[0]
    for stack in stacks:
        if not stack._is_stack or stack.stack_dim != first.stack_dim:
            return None
        if len(stack.tensordicts) != len(first.tensordicts):
            return None
    return list(zip(*[stack.tensordicts for stack in stacks], strict=True))

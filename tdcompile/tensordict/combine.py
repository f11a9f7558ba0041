"""One leaf-wise operation over operands of any kind: which leaves meet, and in which shape.

Key names: :func:`combine` (the general case), :func:`combine_with_default` (keys may differ),
:func:`aligned_leaves`, :func:`nested_operands`, :func:`result_batch_size` (its parts).

Symbols: ``*B`` batch dimensions, ``*F`` trailing dimensions of a leaf ``(*B, *F)``.

Invariants: the first tensordict among the operands gives keys, order, device, names and type of the
result; an operation on nested tensordicts is the same operation called on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdcompile.errors import KeyMismatchError, TensorDictShapeError
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.lazy.elements import each_row
from tdcompile.tensordict.leafwise import align_leaves, align_operand, broadcast_batch_size
from tdcompile.tensordict.nontensor.unbatched import UnbatchedTensor

if TYPE_CHECKING:
    from collections.abc import Callable

_Path = tuple[str, ...]


def combine(
    function: Callable[..., Any],
    operands: tuple[Any, ...],
    kwargs: dict[str, Any],
    on_non_tensor: Callable[[Any, tuple[Any, ...], torch.Size], Any] | None = None,
    path: _Path = (),
) -> Any:
    """Call `function` once for each leaf, on the operands aligned to one another.

    Args:
        function: gets one leaf (or number) for each operand, and `kwargs`.
        operands: tensordicts, tensors, numbers, None; at least one tensordict. The first one
            gives keys, order, device, names and type of the result.
        kwargs: passed on to each call.
        on_non_tensor: gets a non-tensor entry, the entries under its key (or the operands that are
            no tensordict) and the batch size; without it the entry passes through.
        path: where the operands lie in the roots, for messages.

    Returns:
        A new unlocked tensordict with new leaves.

    Raises:
        KeyMismatchError: if two tensordicts differ in the keys of their tensors.
        TensorDictShapeError: if the batch sizes and the operands' shapes do not broadcast.
    """
    td: Any = next(value for value in operands if isinstance(value, TensorCollection))
    if td._is_stack:
        result_batch_size(td, operands)  # raises where operands do not fit
        return each_row(
            lambda *row: combine(function, row, kwargs, on_non_tensor, path), td, operands
        )
    if on_non_tensor is None and _is_alike(td, operands):
        return _combine_alike(function, td, operands, kwargs, path)
    batch_size = result_batch_size(td, operands)
    batch_dims = len(td._batch_size)
    same_batch = batch_size == td._batch_size
    entries: dict[str, Any] = {}
    for key, value in td._entries.items():
        if isinstance(value, Tensor):
            leaves = aligned_leaves(key, operands, path)
            entries[key] = function(*leaves, **kwargs)
        elif isinstance(value, TensorCollection):
            nested = nested_operands(key, value, operands, batch_dims, path)
            entries[key] = combine(function, nested, kwargs, on_non_tensor, (*path, key))
        elif on_non_tensor is not None:
            others = tuple(
                o._entries.get(key) if isinstance(o, TensorCollection) else o  # type: ignore[attr-defined]
                for o in operands
            )
            entries[key] = on_non_tensor(value, others, batch_size)
        else:
            entries[key] = value._carried() if same_batch else value._with_batch_size(batch_size)
    for value in operands:
        if isinstance(value, TensorCollection) and value is not td:
            check_no_further_keys(td, value, path)
    names = td._names
    if names is not None and len(batch_size) > batch_dims:
        names = (None,) * (len(batch_size) - batch_dims) + names
    return td._from_entries(entries, batch_size, td._device, names)


def _is_alike(td: Any, operands: tuple[Any, ...]) -> bool:
    """Tell whether no operand has batch dimensions to align: all have ours or none at all."""
    for value in operands:
        if isinstance(value, Tensor):
            if value.ndim > 0:
                return False
        elif (
            value is not td
            and isinstance(value, TensorCollection)
            and value._batch_size != td._batch_size  # type: ignore[attr-defined]
        ):
            return False
    return True


def _combine_alike(
    function: Callable[..., Any],
    td: Any,
    operands: tuple[Any, ...],
    kwargs: dict[str, Any],
    path: _Path,
) -> Any:
    """Do what :func:`combine` does where only leaves of different rank are to align."""
    mine = [i for i, value in enumerate(operands) if value is td]
    theirs: list[tuple[int, Any]] = [
        (i, value)
        for i, value in enumerate(operands)
        if value is not td and isinstance(value, TensorCollection)
    ]
    entries: dict[str, Any] = {}
    for key, value in td._entries.items():
        if isinstance(value, Tensor):
            leaves = list(operands)
            for i in mine:
                leaves[i] = value
            alike = True
            for i, other in theirs:
                leaf = other._entries.get(key)
                if not isinstance(leaf, Tensor):
                    raise key_error(path, key, leaf, "a tensor")
                alike = alike and leaf.ndim == value.ndim
                leaves[i] = leaf
            if not alike:
                leaves = aligned_leaves(key, operands, path)
            entries[key] = function(*leaves, **kwargs)
        elif isinstance(value, TensorCollection):
            nested = nested_operands(key, value, operands, len(td._batch_size), path)
            entries[key] = combine(function, nested, kwargs, None, (*path, key))
        else:
            entries[key] = value._carried()
    for _, other in theirs:
        check_no_further_keys(td, other, path)
    return td._from_entries(entries, td._batch_size, td._device, td._names)


def result_batch_size(td: Any, operands: tuple[Any, ...]) -> torch.Size:
    """Broadcast the batch sizes of tensordicts and the shapes of tensors among `operands`."""
    own: torch.Size = td._batch_size
    shapes = [own]
    for value in operands:
        shape = None
        if isinstance(value, TensorCollection):
            shape = value._batch_size  # type: ignore[attr-defined]
        elif isinstance(value, Tensor):
            shape = value.shape
        if shape is not None and len(shape) > 0 and shape != own:
            shapes.append(shape)
    return own if len(shapes) == 1 else broadcast_batch_size(*shapes)


def aligned_leaves(key: str, operands: tuple[Any, ...], path: _Path) -> list[Any]:
    """Take the leaf `key` out of each tensordict and align all operands to one another."""
    leaves: list[Any] = []
    positions: list[int] = []
    batch_dims: list[int] = []
    unbatched = 0
    for position, value in enumerate(operands):
        if isinstance(value, TensorCollection):
            leaf = value._entries.get(key)  # type: ignore[attr-defined]
            if not isinstance(leaf, Tensor):
                raise key_error(path, key, leaf, "a tensor")
            unbatched += type(leaf) is UnbatchedTensor
            leaves.append(leaf)
            positions.append(position)
            batch_dims.append(len(value._batch_size))  # type: ignore[attr-defined]
        else:
            leaves.append(value)
    if unbatched:
        _check_unbatched(key, operands, path, unbatched == len(positions))
        return leaves
    if len(positions) > 1:
        aligned = align_leaves([leaves[i] for i in positions], batch_dims)
        for position, leaf in zip(positions, aligned, strict=True):
            leaves[position] = leaf
    features = leaves[positions[0]].ndim - batch_dims[0]
    if features:
        for position, value in enumerate(operands):
            if isinstance(value, Tensor) and value.ndim > 0:
                leaves[position] = align_operand(value, 0, features)
    return leaves


def _check_unbatched(key: str, operands: tuple[Any, ...], path: _Path, are_all: bool) -> None:
    """Check that only unbatched tensors and numbers meet an unbatched tensor."""
    batched = [o for o in operands if isinstance(o, Tensor) and o.ndim > 0]
    if batched or not are_all:
        raise TensorDictShapeError(
            f"{path_text((*path, key))} is an UnbatchedTensor, which meets numbers and unbatched"
            " tensors only; the other operand has batch dimensions. Exclude the key first."
        )


def nested_operands(
    key: str, nested: Any, operands: tuple[Any, ...], batch_dims: int, path: _Path
) -> tuple[Any, ...]:
    """Operands of the same operation on the nested tensordicts under `key`."""
    found: list[Any] = []
    for value in operands:
        if isinstance(value, TensorCollection):
            entry = value._entries.get(key)  # type: ignore[attr-defined]
            if entry is None:
                # Nothing there is the same as an empty tensordict: only tensors count as keys.
                entry = nested.empty()
            elif not isinstance(entry, TensorCollection):
                raise key_error(path, key, entry, "a tensordict")
            found.append(entry)
        elif isinstance(value, Tensor):
            found.append(align_operand(value, batch_dims, len(nested._batch_size)))
        else:
            found.append(value)
    return tuple(found)


def check_no_further_keys(td: Any, other: Any, path: _Path) -> None:
    """Check that `other` has no tensor under a key that `td` lacks.

    Raises:
        KeyMismatchError: naming those keys.
    """
    known = td._entries
    further = [key for key in other._entries if key not in known]
    if further:
        # Entries that are no tensors are nobody's operands.
        values = other._entries
        further = [k for k in further if isinstance(values[k], Tensor) or _has_tensors(values[k])]
    if further:
        raise KeyMismatchError(
            f"the operands must have the same keys; {path_text(path)} of the second has the"
            f" further keys {further}. Select the common keys first, or give default=."
        )


def _has_tensors(value: Any) -> bool:
    if not isinstance(value, TensorCollection):
        return False
    entries = value._entries  # type: ignore[attr-defined]
    return any(isinstance(v, Tensor) or _has_tensors(v) for v in entries.values())


def path_text(path: _Path) -> str:
    """Print where a tensordict lies: ``td["n"]``, or words for the root."""
    return "the tensordict" if not path else "td[" + ", ".join(f'"{key}"' for key in path) + "]"


def key_error(path: _Path, key: str, found: Any, expected: str) -> KeyMismatchError:
    """Make the error for an operand that has nothing, or another kind of entry, under a key."""
    where = path_text((*path, key))
    if found is None:
        return KeyMismatchError(
            f"the operands must have the same keys; {where} is missing from one of them."
            " Select the common keys first, or give default=."
        )
    return KeyMismatchError(
        f"{where} must be {expected} in every operand, found {type(found).__name__} in one of them."
    )


def combine_with_default(
    function: Callable[..., Any],
    td: Any,
    other: Any,
    default: Any,
    kwargs: dict[str, Any],
) -> Any:
    """Binary operation on two tensordicts whose keys may differ.

    Args:
        function: binary function of torch.
        td: our side.
        other: the other side, of the same batch size.
        default: number or 0-d tensor that stands for a missing leaf (our keys come first, then the
            further ones of `other`), or ``"intersection"``: only keys that both have.
        kwargs: passed on to each call.

    Raises:
        ValueError: if `default` is another string.
        TensorDictShapeError: if the batch sizes differ.
    """
    if isinstance(default, str):
        if default != "intersection":
            raise ValueError(
                f'default must be a number, a 0-d tensor or "intersection", got {default!r}.'
            )
    elif not isinstance(default, Tensor):
        default = torch.tensor(default)
    if td._batch_size != other._batch_size:
        raise TensorDictShapeError(
            "with default=, both tensordicts must have the same batch size; got"
            f" {tuple(td._batch_size)} and {tuple(other._batch_size)}. Expand one of them first."
        )
    if td._is_stack:
        return each_row(
            lambda own, match: combine_with_default(function, own, match, default, kwargs),
            td,
            (td, other),
        )
    intersection = isinstance(default, str)
    batch_dims = len(td._batch_size)
    entries: dict[str, Any] = {}
    for key, value in td._entries.items():
        match = other._entries.get(key)
        if match is None and intersection and not _is_non_tensor(value):
            continue
        if isinstance(value, Tensor):
            if match is None:
                entries[key] = function(value, default, **kwargs)
            elif isinstance(match, Tensor):
                left, right = align_leaves([value, match], [batch_dims, batch_dims])
                entries[key] = function(left, right, **kwargs)
            else:
                raise key_error((), key, match, "a tensor")
        elif isinstance(value, TensorCollection):
            if match is None:
                entries[key] = combine(function, (value, default), kwargs)
            elif isinstance(match, TensorCollection):
                entries[key] = combine_with_default(function, value, match, default, kwargs)
            else:
                raise key_error((), key, match, "a tensordict")
        else:
            entries[key] = value._carried()
    if not intersection:
        for key, value in other._entries.items():
            if key in td._entries:
                continue
            if isinstance(value, Tensor):
                entries[key] = function(default, value, **kwargs)
            elif isinstance(value, TensorCollection):
                entries[key] = combine(function, (default, value), kwargs)
            else:
                entries[key] = value._carried()
    return td._from_entries(entries, td._batch_size, td._device, td._names)


def _is_non_tensor(value: Any) -> bool:
    return not isinstance(value, (Tensor, TensorCollection))

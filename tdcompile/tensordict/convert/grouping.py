"""Merging tensordicts, and finding rows by the value of an entry.

Key names: :func:`merge_tensordicts`, :func:`group_by`, :func:`isin`, :func:`remove_duplicates`,
and the tests on dtypes :func:`is_bool`, :func:`is_floating`, :func:`is_inexact`,
:func:`is_integer`.

Invariant: the tensordicts that are given stay as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdcompile.errors import KeyMismatchError, KeyPathError
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.convert.forms import bare
from tdcompile.tensordict.keys import NO_DEFAULT, format_entry, format_key, unravel_key_to_tuple

if TYPE_CHECKING:
    from collections.abc import Callable

# -- merging ---------------------------------------------------------------------------------------


def merge_tensordicts(*tensordicts: Any, callback_exist: Any = None) -> Any:
    """Return a tensordict with every entry of several ones, which are not copied.

    Args:
        *tensordicts: two or more; under a key that several have, the first one wins. Batch size,
            device and names are those of the first.
        callback_exist: gets the leaves under a key that all have, and returns the leaf of the
            result; or a dictionary with such a function by key.

    Raises:
        RuntimeError: if there are less than two.
        KeyMismatchError: if a key holds a tensordict in one and a leaf in another.
        TensorDictShapeError: if an entry does not fit the batch size of the first.

    Example:
        >>> one, two = TensorDict(a=1, n={"x": 1}), TensorDict(a=2, n={"y": 2})
        >>> merged = merge_tensordicts(one, two, callback_exist=lambda *leaves: sum(leaves))
        >>> merged["a"], sorted(merged["n"].keys())
        (tensor(3), ['x', 'y'])
    """
    if len(tensordicts) < 2:
        raise RuntimeError(f"expected two tensordicts or more, found {len(tensordicts)}")
    for td in tensordicts:
        if not isinstance(td, TensorCollection):
            raise TypeError(f"expected tensordicts, found a {type(td).__name__}")
    if isinstance(callback_exist, dict):
        callback_exist = {unravel_key_to_tuple(key): f for key, f in callback_exist.items()}
    first: Any = tensordicts[0]
    result = first.empty()
    result.update(_merge(list(tensordicts), callback_exist, ()))
    return result


def _merge(tds: list[Any], callback: Any, path: tuple[str, ...]) -> dict[str, Any]:
    columns: dict[str, list[Any]] = {}
    for td in tds:
        for name, value in td.items():
            columns.setdefault(name, []).append(value)
    merged: dict[str, Any] = {}
    for name, values in columns.items():
        where = (*path, name)
        nested = [isinstance(value, TensorCollection) for value in values]
        if any(nested) and not all(nested):
            raise KeyMismatchError(
                f"expected {format_entry(where)} to be a tensordict in all or in none, found "
                f"{[type(value).__name__ for value in values]}"
            )
        if nested[0]:
            # What lacks the level takes part as an empty one: no leaf below is in all of them.
            empty: list[Any] = [{}] * (len(tds) - len(values))
            entry = values[0].empty()
            entry.update(_merge([*values, *empty], callback, where))
            merged[name] = entry
            continue
        function = callback.get(where) if isinstance(callback, dict) else callback
        in_all = len(values) == len(tds) and all(isinstance(value, Tensor) for value in values)
        merged[name] = function(*values) if in_all and function is not None else values[0]
    return merged


# -- rows by value ---------------------------------------------------------------------------------


def group_by(tensordict: Any, key: Any) -> tuple[Any, tuple[Any, ...]]:
    """Split a tensordict into the rows that share a value of an entry.

    Args:
        tensordict: with one batch dimension or more; rows are taken along the first.
        key: a tensor entry, or a non-tensor entry of values that can be hashed and sorted. An entry
            with several values a row is compared row by row.

    Returns:
        The sorted values, as a tensor (a list, of a non-tensor entry), and as many tensordicts; in
        each the rows keep their order.

    Raises:
        ValueError: if there is no batch dimension.
        KeyPathError: if `key` is absent.
        TypeError: if the entry is a tensordict, or its values cannot be hashed or sorted.

    Example:
        >>> td = TensorDict({"id": torch.tensor([2, 0, 2]), "x": torch.arange(3.0)}, [3])
        >>> values, groups = group_by(td, "id")
        >>> values, [group["x"].tolist() for group in groups]
        (tensor([0, 2]), [[1.0], [0.0, 2.0]])
    """
    if tensordict.batch_dims == 0:
        raise ValueError("expected a batch dimension to group the rows of, found batch_size=[]")
    entry = tensordict.get(key, NO_DEFAULT)
    if entry is None:
        raise KeyPathError(f"expected key {format_key(key)}, found none in {tensordict}")
    if isinstance(entry, TensorCollection):
        raise TypeError(
            f"expected a leaf at {format_entry(key)} to group by, found a {type(entry).__name__}"
        )
    values: Any
    if isinstance(entry, Tensor):
        values, group = torch.unique(entry, dim=0 if entry.ndim > 1 else None, return_inverse=True)
    else:
        rows = [_frozen(row) for row in _rows(entry, tensordict.batch_size)]
        values = sorted(set(rows))
        place = {value: index for index, value in enumerate(values)}
        group = torch.tensor([place[row] for row in rows], dtype=torch.int64)
    counts = torch.bincount(group.reshape(-1), minlength=len(values)).tolist()
    order = torch.argsort(group.reshape(-1), stable=True)
    return values, tensordict[order].split(counts, 0)


def _rows(entry: Any, size: torch.Size) -> list[Any]:
    return [bare(entry)] * size[0] if not isinstance(listed := entry.tolist(), list) else listed


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def isin(input: Any, reference: Any, key: Any, dim: int = 0) -> Tensor:
    """Tell which elements of `input` along `dim` have an entry that occurs in `reference`.

    Args:
        input: a tensordict.
        reference: one with as many batch dimensions, and an entry of the same shape but for `dim`.
        key: of a tensor; its slices along `dim` are compared.
        dim: a batch dimension.

    Returns:
        A boolean tensor of length ``input.batch_size[dim]``.

    Raises:
        KeyPathError: if there is no tensor at `key` in one of them.
        ValueError: if `dim` is no batch dimension, or their numbers differ.

    Example:
        >>> td = TensorDict({"x": torch.tensor([[1, 2], [3, 4]])}, [2])
        >>> isin(td, td[:1], "x")
        tensor([ True, False])
    """
    leaf, dim = _slices(input, key, dim)
    other, _ = _slices(reference, key, dim)
    if input.batch_dims != reference.batch_dims:
        raise ValueError(
            "expected as many batch dimensions in both, found "
            f"{input.batch_dims} and {reference.batch_dims}"
        )
    group = torch.unique(torch.cat((leaf, other), dim), dim=dim, return_inverse=True)[1]
    size = leaf.shape[dim]
    return torch.isin(group[:size], group[size:])


def remove_duplicates(input: Any, key: Any, dim: int = 0, *, return_indices: bool = False) -> Any:
    """Return the elements along `dim` whose entry `key` occurs for the first time, sorted by it.

    Args:
        input: a tensordict.
        key: of a tensor; its slices along `dim` are compared.
        dim: a batch dimension.
        return_indices: also return, for each element of `input`, where its value is in the result.

    Raises:
        KeyPathError: if there is no tensor at `key`.
        ValueError: if `dim` is no batch dimension.

    Example:
        >>> td = TensorDict({"x": torch.tensor([7, 1, 7]), "y": torch.arange(3)}, [3])
        >>> remove_duplicates(td, "x")["y"]
        tensor([1, 0])
    """
    leaf, dim = _slices(input, key, dim)
    group = torch.unique(leaf, dim=dim, return_inverse=True)[1]
    order = torch.argsort(group, stable=True)
    sorted_group = group[order]
    is_first = torch.ones_like(sorted_group, dtype=torch.bool)
    is_first[1:] = sorted_group[1:] != sorted_group[:-1]
    result = input[(slice(None),) * dim + (order[is_first],)]
    return (result, group) if return_indices else result


def _slices(td: Any, key: Any, dim: int) -> tuple[Tensor, int]:
    leaf = td.get(key, None)
    if not isinstance(leaf, Tensor):
        raise KeyPathError(
            f"expected a tensor at key {format_key(key)}, found "
            f"{'nothing' if leaf is None else type(leaf).__name__}"
        )
    if not -td.batch_dims <= dim < td.batch_dims:
        raise ValueError(f"expected dim to be one of {td.batch_dims} batch dimensions, found {dim}")
    return leaf, dim % td.batch_dims


# -- dtypes ----------------------------------------------------------------------------------------


def _dtype_test(name: str, told: str, test: Callable[[torch.dtype], bool]) -> Callable[..., bool]:
    def function(*args: Any) -> bool:
        return test(args[-1].dtype)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = (
        f"Tell whether the last argument has a dtype that is {told}.\n\n"
        "    A key may stand before it: the function serves as ``cast_filter``, and for ``apply``."
    )
    return function


def _is_integral(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


is_bool = _dtype_test("is_bool", "bool", lambda dtype: dtype is torch.bool)
is_floating = _dtype_test("is_floating", "floating-point", lambda dtype: dtype.is_floating_point)
is_inexact = _dtype_test(
    "is_inexact",
    "floating-point or complex",
    lambda dtype: dtype.is_floating_point or dtype.is_complex,
)
is_integer = _dtype_test("is_integer", "an integer's (not bool)", _is_integral)

"""Arithmetic on tensordicts: every method and operator of the leaf-wise table, made from it.

Key names: :class:`ArithmeticMixin`, :func:`call_leafwise` (one row on operands of any kind),
:func:`combine_inplace`.

Symbols: ``*B`` batch dimensions, ``*F`` trailing dimensions of a leaf ``(*B, *F)``.

Invariants: results keep the keys and their order, device and names of the first tensordict among
the operands; a nested tensordict is treated as if the operation were called on it; non-tensor
entries pass through as the same object. An in-place form checks every leaf before it writes one,
and writes leaf after leaf, so that an operand may share storage with an output.
"""

from __future__ import annotations

import inspect
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdcompile.errors import TensorDictShapeError
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.combine import (
    aligned_leaves,
    check_no_further_keys,
    combine,
    combine_with_default,
    key_error,
    nested_operands,
    path_text,
    result_batch_size,
)
from tdcompile.tensordict.lazy.elements import each_element, element_rows
from tdcompile.tensordict.leafwise import (
    LEAFWISE_BY_NAME,
    LEAFWISE_OPS,
    LeafwiseOp,
    broadcast_batch_size,
)
from tdcompile.tensordict.nontensor.data import NonTensorDataBase, NonTensorEntry, compare_values

if TYPE_CHECKING:
    from collections.abc import Callable

_Path = tuple[str, ...]


class ArithmeticMixin:
    """Leaf-wise methods (``add``, ``exp``, ``clamp_`` ...) and operators (``+``, ``==`` ...).

    A number or a 0-d tensor meets each leaf as it is; a tensor ``(*O,)`` broadcasts against the
    batch dimensions; another tensordict gives the leaf under the same key. The result has the
    broadcast of the batch sizes, and our device and names.

    ``==`` gives a tensordict of booleans, so tensordicts cannot be hashed.

    Example:
        >>> td = TensorDict({"a": torch.ones(3, 4)}, [3])
        >>> (td * torch.arange(3))["a"][:, 0]
        tensor([0., 1., 2.])
    """

    __slots__ = ()

    __hash__ = None  # type: ignore[assignment]


def is_operand(value: Any) -> bool:
    """Tell whether `value` may stand in arithmetic with a tensordict."""
    # numpy's scalars are numbers to torch, too; strings, lists and None have no __float__.
    return isinstance(value, (Tensor, TensorCollection, int, float, complex)) or hasattr(
        value, "__float__"
    )


# In place


def combine_inplace(
    op: LeafwiseOp, td: Any, operands: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Call the in-place form of `op` on each leaf of `td`; all leaves are checked first.

    Raises:
        KeyMismatchError: if a tensordict operand has other keys.
        TensorDictShapeError: if the result would be larger than `td`.
        RuntimeError: if a leaf cannot hold the dtype of its result.
    """
    assert op.inplace is not None
    method = getattr(Tensor, op.inplace)
    if len(operands) == 1:
        leaves: list[Tensor] = []
        others: list[Any] = []
        _collect_inplace_binary(op, td, operands[0], leaves, others, ())
        for leaf, other in zip(leaves, others, strict=True):
            method(leaf, other, **kwargs)
        return
    calls: list[list[Any]] = []
    _collect_inplace(op, (td, *operands), calls, ())
    for arguments in calls:
        method(*arguments, **kwargs)


def _collect_inplace_binary(
    op: LeafwiseOp, td: Any, other: Any, leaves: list[Tensor], others: list[Any], path: _Path
) -> None:
    """Do what :func:`_collect_inplace` does, for the two common kinds of one operand."""
    if td._is_stack:
        for element, part in element_rows(td, (td, other)):
            _collect_inplace_binary(op, element, part, leaves, others, path)
        return
    if _is_number(other):
        for key, value in td._entries.items():
            if isinstance(value, Tensor):
                if not (value.is_floating_point() and isinstance(other, (int, float))):
                    check_inplace_leaf(op, value, [other], (*path, key))
                leaves.append(value)
                others.append(other)
            elif isinstance(value, TensorCollection):
                _collect_inplace_binary(op, value, other, leaves, others, (*path, key))
    elif isinstance(other, TensorCollection) and td._batch_size == other._batch_size:  # type: ignore[attr-defined]
        matches: dict[str, Any] = other._entries  # type: ignore[attr-defined]
        for key, value in td._entries.items():
            if isinstance(value, Tensor):
                match = matches.get(key)
                if not isinstance(match, Tensor):
                    raise key_error(path, key, match, "a tensor")
                if match.shape != value.shape:
                    match = aligned_leaves(key, (td, other), path)[1]
                    check_inplace_leaf(op, value, [match], (*path, key))
                elif match.dtype != value.dtype or not value.is_floating_point():
                    check_inplace_leaf(op, value, [match], (*path, key))
                leaves.append(value)
                others.append(match)
            elif isinstance(value, TensorCollection):
                nested = nested_operands(key, value, (td, other), 0, path)[1]
                _collect_inplace_binary(op, value, nested, leaves, others, (*path, key))
        check_no_further_keys(td, other, path)
    else:
        calls: list[list[Any]] = []
        _collect_inplace(op, (td, other), calls, path)
        for leaf, aligned in calls:
            leaves.append(leaf)
            others.append(aligned)


def _collect_inplace(
    op: LeafwiseOp,
    operands: tuple[Any, ...],
    calls: list[list[Any]],
    path: _Path,
) -> None:
    """Check all leaves of a tensordict; add the arguments of one call for each to `calls`."""
    td = operands[0]
    batch_size = result_batch_size(td, operands)
    if batch_size != td._batch_size:
        raise TensorDictShapeError(
            f"in-place {op.inplace_name}: the operands must broadcast to the batch size"
            f" {tuple(td._batch_size)} of {path_text(path)}, got {tuple(batch_size)}."
            f" Use the out-of-place {op.name}."
        )
    if td._is_stack:
        for row in element_rows(td, operands):
            _collect_inplace(op, row, calls, path)
        return
    batch_dims = len(batch_size)
    for key, value in td._entries.items():
        if isinstance(value, Tensor):
            arguments = aligned_leaves(key, operands, path)
            check_inplace_leaf(op, value, arguments[1:], (*path, key))
            calls.append([value, *arguments[1:]])
        elif isinstance(value, TensorCollection):
            nested = nested_operands(key, value, operands, batch_dims, path)
            _collect_inplace(op, nested, calls, (*path, key))
    for value in operands[1:]:
        if isinstance(value, TensorCollection):
            check_no_further_keys(td, value, path)


def check_inplace_leaf(op: LeafwiseOp, leaf: Tensor, others: list[Any], path: _Path) -> None:
    """Check shape and dtype of what would be written to `leaf`."""
    dtype = leaf.dtype
    for other in others:
        if isinstance(other, Tensor):
            if other.ndim > 0 and other.shape != leaf.shape:
                shape = broadcast_batch_size(other.shape, leaf.shape)
                if shape != leaf.shape:
                    raise TensorDictShapeError(
                        f"in-place {op.inplace_name}: the operand for {path_text(path)} must"
                        f" broadcast to {tuple(leaf.shape)}, got {tuple(other.shape)}."
                        f" Use the out-of-place {op.name}."
                    )
            if other.dtype != dtype:
                _check_inplace_dtype(op, leaf, other, path)
        elif isinstance(other, complex) or (
            isinstance(other, (int, float)) and not dtype.is_floating_point
        ):
            _check_inplace_dtype(op, leaf, other, path)
    if op.result == "float" and not (dtype.is_floating_point or dtype.is_complex):
        raise RuntimeError(
            f"in-place {op.inplace_name}: {path_text(path)} has dtype {dtype}, which cannot hold"
            f" the floating-point result. Use the out-of-place {op.name}, or cast first."
        )


def _check_inplace_dtype(op: LeafwiseOp, leaf: Tensor, other: Any, path: _Path) -> None:
    if _kind_of(other) > _kind_of(leaf):
        found = torch.result_type(leaf, other)
        raise RuntimeError(
            f"in-place {op.inplace_name}: {path_text(path)} has dtype {leaf.dtype}, which cannot"
            f" hold the result of dtype {found}. Use the out-of-place {op.name}, or cast first."
        )


def _kind_of(value: Any) -> int:
    """Rank bool, integer, floating point and complex; a leaf holds what ranks no higher than it."""
    if isinstance(value, Tensor):
        dtype = value.dtype
        if dtype.is_complex:
            return 3
        if dtype.is_floating_point:
            return 2
        return 0 if dtype == torch.bool else 1
    if isinstance(value, bool):
        return 0
    if isinstance(value, int):
        return 1
    return 3 if isinstance(value, complex) else 2


# Methods from the table


def _each_leaf(td: Any, function: Callable[..., Any]) -> Any:
    """Unary operation; the loop that most programs run most, so it stands on its own."""
    if td._is_stack:
        return each_element(_each_leaf, td, function)
    entries: dict[str, Any] = {}
    for key, value in td._entries.items():
        if isinstance(value, Tensor):
            entries[key] = function(value)
        elif isinstance(value, TensorCollection):
            entries[key] = _each_leaf(value, function)
        else:
            entries[key] = value._carried()
    return td._from_entries(entries, td._batch_size, td._device, td._names)


def _each_leaf_with_number(td: Any, function: Callable[..., Any], other: Any) -> Any:
    """Binary operation with a number or a 0-d tensor on the right."""
    if td._is_stack:
        return each_element(_each_leaf_with_number, td, function, other)
    entries: dict[str, Any] = {}
    for key, value in td._entries.items():
        if isinstance(value, Tensor):
            entries[key] = function(value, other)
        elif isinstance(value, TensorCollection):
            entries[key] = _each_leaf_with_number(value, function, other)
        else:
            entries[key] = value._carried()
    return td._from_entries(entries, td._batch_size, td._device, td._names)


def _number_with_each_leaf(td: Any, function: Callable[..., Any], other: Any) -> Any:
    """Binary operation with a number or a 0-d tensor on the left."""
    if td._is_stack:
        return each_element(_number_with_each_leaf, td, function, other)
    entries: dict[str, Any] = {}
    for key, value in td._entries.items():
        if isinstance(value, Tensor):
            entries[key] = function(other, value)
        elif isinstance(value, TensorCollection):
            entries[key] = _number_with_each_leaf(value, function, other)
        else:
            entries[key] = value._carried()
    return td._from_entries(entries, td._batch_size, td._device, td._names)


def _each_pair(
    td: Any,
    function: Callable[..., Any],
    other: Any,
    on_non_tensor: Callable[[Any, tuple[Any, ...], torch.Size], Any] | None,
    path: _Path,
) -> Any:
    """Binary operation on two tensordicts; like :func:`combine`, quick for equal batch sizes."""
    if td._is_stack or td._batch_size != other._batch_size:
        return combine(function, (td, other), {}, on_non_tensor, path)
    entries: dict[str, Any] = {}
    matches: dict[str, Any] = other._entries
    for key, value in td._entries.items():
        if isinstance(value, Tensor):
            match = matches.get(key)
            if not isinstance(match, Tensor):
                raise key_error(path, key, match, "a tensor")
            if value.ndim == match.ndim:
                entries[key] = function(value, match)
            else:
                entries[key] = function(*aligned_leaves(key, (td, other), path))
        elif isinstance(value, TensorCollection):
            nested = nested_operands(key, value, (td, other), 0, path)[1]
            entries[key] = _each_pair(value, function, nested, on_non_tensor, (*path, key))
        elif on_non_tensor is not None:
            entries[key] = on_non_tensor(value, (value, matches.get(key)), td._batch_size)
        else:
            entries[key] = value._carried()
    check_no_further_keys(td, other, path)
    return td._from_entries(entries, td._batch_size, td._device, td._names)


def _is_number(value: Any) -> bool:
    """Tell whether `value` meets each leaf as it is."""
    if isinstance(value, Tensor):
        return value.ndim == 0
    return not isinstance(value, TensorCollection)


def _keywords(op: LeafwiseOp, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Check keyword arguments against the table and drop those that are None."""
    for keyword in kwargs:
        if keyword not in op.keywords:
            raise TypeError(
                f"{op.name}() takes the keywords {op.keywords}, got an unexpected {keyword!r}."
            )
    return {keyword: value for keyword, value in kwargs.items() if value is not None}


def _compare_non_tensor(equal: bool) -> Callable[[Any, tuple[Any, ...], torch.Size], Any]:
    """Comparison of non-tensor entries, element by element."""

    def compare(value: Any, others: tuple[Any, ...], batch_size: torch.Size) -> Any:
        other = others[1] if others[0] is value else others[0]
        if not isinstance(other, NonTensorEntry):
            if other is None:
                return torch.full(batch_size, not equal)
            same_batch = value._batch_size == batch_size
            return value._carried() if same_batch else value._with_batch_size(batch_size)
        same = compare_values(value, other)
        return same if equal else ~same

    return compare


def _combine_booleans(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A bitwise operation on non-tensor entries: done to booleans, others are carried."""

    def call(value: Any, others: tuple[Any, ...], batch_size: torch.Size) -> Any:
        data = [o.data if isinstance(o, NonTensorDataBase) else o for o in others]
        if len(data) == 2 and all(isinstance(item, bool) for item in data):
            return torch.full(batch_size, function(*data))
        same_batch = value._batch_size == batch_size
        return value._carried() if same_batch else value._with_batch_size(batch_size)

    return call


_NON_TENSOR_COMPARISONS: dict[str, Callable[..., Any]] = {
    "eq": _compare_non_tensor(True),
    "ne": _compare_non_tensor(False),
    "bitwise_and": _combine_booleans(operator.and_),
    "bitwise_or": _combine_booleans(operator.or_),
    "bitwise_xor": _combine_booleans(operator.xor),
}


def call_leafwise(op: LeafwiseOp, operands: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do `op` on operands of which at least one, not always the first, is a tensordict."""
    on_non_tensor = _NON_TENSOR_COMPARISONS.get(op.name)
    result = combine(op.function, operands, kwargs, on_non_tensor)
    return _lock_as(op, operands, result)


def _lock_as(op: LeafwiseOp, operands: tuple[Any, ...], result: Any) -> Any:
    """Lock the result where the first tensordict is locked and no operand adds batch dimensions."""
    if op.keeps_lock:
        for value in operands:
            if isinstance(value, Tensor) and value.ndim > 0:
                return result
        first: Any = next(value for value in operands if isinstance(value, TensorCollection))
        if first._is_locked:
            result.lock_()
    return result


def _unary_method(op: LeafwiseOp) -> Callable[..., Any]:
    function = op.function
    keeps_lock = op.keeps_lock

    def method(self: Any) -> Any:
        result = _each_leaf(self, function)
        if keeps_lock and self._is_locked:
            result.lock_()
        return result

    return method


def _unary_inplace_method(op: LeafwiseOp) -> Callable[..., Any]:
    def method(self: Any) -> Any:
        combine_inplace(op, self, (), {})
        return self

    return method


def _binary_method(op: LeafwiseOp) -> Callable[..., Any]:
    function = op.function
    number_function = op.number_function or function
    keeps_lock = op.keeps_lock
    on_non_tensor = _NON_TENSOR_COMPARISONS.get(op.name)

    def method(self: Any, other: Any, *, default: Any = None, **kwargs: Any) -> Any:
        if kwargs:
            kwargs = _keywords(op, kwargs)
        if default is not None and isinstance(other, TensorCollection):
            result = combine_with_default(function, self, other, default, kwargs)
        elif kwargs:
            result = combine(function, (self, other), kwargs, on_non_tensor)
        elif isinstance(other, TensorCollection):
            result = _each_pair(self, function, other, on_non_tensor, ())
        elif isinstance(other, Tensor) and other.ndim > 0:
            return combine(function, (self, other), kwargs, on_non_tensor)
        else:
            is_weak = isinstance(other, Tensor)
            result = _each_leaf_with_number(self, function if is_weak else number_function, other)
        if keeps_lock and self._is_locked:
            return _lock_as(op, (self, other), result)
        return result

    return method


def _operator_method(op: LeafwiseOp) -> Callable[..., Any]:
    method = _binary_method(op)

    def dunder(self: Any, other: Any) -> Any:
        return method(self, other) if is_operand(other) else NotImplemented

    return dunder


def _reflected_method(op: LeafwiseOp) -> Callable[..., Any]:
    function = op.operator_function
    assert function is not None

    def dunder(self: Any, other: Any) -> Any:
        if not is_operand(other):
            return NotImplemented
        if _is_number(other):
            result = _number_with_each_leaf(self, function, other)
        else:
            result = combine(function, (other, self), {})
        return _lock_as(op, (other, self), result)

    return dunder


def _binary_inplace_method(op: LeafwiseOp) -> Callable[..., Any]:
    def method(self: Any, other: Any, **kwargs: Any) -> Any:
        combine_inplace(op, self, (other,), _keywords(op, kwargs))
        return self

    return method


def _augmented_method(op: LeafwiseOp) -> Callable[..., Any]:
    def dunder(self: Any, other: Any) -> Any:
        if not is_operand(other):
            return NotImplemented
        combine_inplace(op, self, (other,), {})
        return self

    return dunder


def _further_operands(
    op: LeafwiseOp, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Bind the arguments of a ternary method: operands by place or name, then keywords."""
    names = (*op.operands, *op.keywords)
    if len(args) > len(names):
        raise TypeError(f"{op.name}() takes {names}, got {len(args)} positional arguments.")
    bound = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names or name in bound:
            raise TypeError(f"{op.name}() takes each of {names} once, got an unexpected {name!r}.")
        bound[name] = value
    operands = tuple(bound.pop(name, None) for name in op.operands)
    given = [value for value in operands if value is not None]
    if not given or (len(given) < len(operands) and not op.optional_operands):
        raise TypeError(f"{op.name}() needs the operands {op.operands}, got {len(given)} of them.")
    return operands, {name: value for name, value in bound.items() if value is not None}


def _ternary_method(op: LeafwiseOp) -> Callable[..., Any]:
    function = op.function

    def method(self: Any, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        operands, keywords = _further_operands(op, args, kwargs)
        result = combine(function, (self, *operands), keywords)
        if out is not None:
            out.update_(result)
            return out
        return _lock_as(op, (self, *operands), result)

    return method


def _ternary_inplace_method(op: LeafwiseOp) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        operands, keywords = _further_operands(op, args, kwargs)
        combine_inplace(op, self, operands, keywords)
        return self

    return method


def _signature(op: LeafwiseOp, *, inplace: bool) -> inspect.Signature:
    """The parameters of the method of a row, as its documentation tells them."""
    kinds = inspect.Parameter
    named, only = kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY
    empty = None if op.optional_operands else kinds.empty
    found = [kinds("self", named)]
    found += [kinds(name, named, default=empty) for name in op.operands]
    keyword_kind = named if op.arity == 3 else only
    found += [
        kinds(name, keyword_kind, default=_KEYWORD_DEFAULTS.get(name)) for name in op.keywords
    ]
    if op.takes_default and not inplace:
        found.append(kinds("default", only, default=None))
    if op.arity == 3 and not inplace:
        found.append(kinds("out", only, default=None))
    return inspect.Signature(found)


# What torch takes where a keyword is left out, if it is not None.
_KEYWORD_DEFAULTS = {"value": 1}


def _install(name: str, method: Any, doc: str, signature: inspect.Signature | None = None) -> None:
    if signature is not None:
        method.__signature__ = signature
    method.__name__ = name
    method.__qualname__ = f"ArithmeticMixin.{name}"
    method.__doc__ = doc
    setattr(ArithmeticMixin, name, method)


def _install_row(op: LeafwiseOp) -> None:
    """Make the methods and operators of one row."""
    makers = {1: _unary_method, 2: _binary_method, 3: _ternary_method}
    inplace_makers = {
        1: _unary_inplace_method,
        2: _binary_inplace_method,
        3: _ternary_inplace_method,
    }
    what = f"torch.{op.function.__name__}"
    _install(
        op.name,
        makers[op.arity](op),
        f"Apply {what} to each leaf; a new tensordict with new leaves.",
        _signature(op, inplace=False),
    )
    if op.inplace is not None:
        _install(
            f"{op.name}_",
            inplace_makers[op.arity](op),
            f"Apply {what} to each leaf in place; each leaf keeps its storage, returns self.",
            _signature(op, inplace=True),
        )
    if op.operator is not None:
        dunder = _unary_method(op) if op.arity == 1 else _operator_method(op)
        _install(op.operator, dunder, f"See :meth:`{op.name}`.")
    if op.reflected_operator is not None:
        _install(op.reflected_operator, _reflected_method(op), f"See :meth:`{op.name}`.")
    if op.inplace_operator is not None:
        _install(op.inplace_operator, _augmented_method(op), f"See :meth:`{op.name}_`.")


def _equality_method(op: LeafwiseOp, otherwise: bool) -> Callable[..., Any]:
    """``==`` and ``!=`` answer for any object, as Python wants: a plain bool for a foreign one."""
    method = _binary_method(op)

    def dunder(self: Any, other: Any) -> Any:
        if isinstance(other, dict):
            other = self._dense(other, batch_size=self._batch_size)
        return method(self, other) if is_operand(other) else otherwise

    return dunder


for _op in LEAFWISE_OPS:
    _install_row(_op)
_install("__eq__", _equality_method(LEAFWISE_BY_NAME["eq"], False), "See :meth:`eq`.")
_install("__ne__", _equality_method(LEAFWISE_BY_NAME["ne"], True), "See :meth:`ne`.")

"""Torch functions on tensordicts: ``torch.stack``, ``torch.cat``, ``torch.where``, ``torch.add``.

Key names: :class:`TorchFunctionMixin`, :data:`TORCH_FUNCTIONS` (torch function to implementation),
:data:`METHOD_FUNCTIONS` (those that call the method of the same name), :func:`stack`, :func:`cat`,
:func:`where`.

Symbols: ``*B`` batch dimensions, ``*F`` trailing dimensions of a leaf ``(*B, *F)``.

Invariants: dimensions count among the batch dimensions, also when they are negative; every leaf
function of the leaf-wise table works with the tensordict as any of its operands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdcompile.errors import KeyMismatchError, TensorDictIndexError, TensorDictShapeError
from tdcompile.tensordict.arithmetic import call_leafwise
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.combine import combine
from tdcompile.tensordict.keys import format_entry
from tdcompile.tensordict.lazy.elements import (
    check_elements,
    each_element,
    stack_rows,
    tensor_leaves,
)
from tdcompile.tensordict.leafwise import LEAFWISE_BY_TORCH_FUNCTION, LeafwiseOp
from tdcompile.tensordict.legacy import lazy_legacy
from tdcompile.tensordict.nontensor.data import LeafKind, NonTensorEntry
from tdcompile.tensordict.nontensor.stack import choose, join
from tdcompile.tensordict.nontensor.unbatched import UnbatchedTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_Path = tuple[str, ...]

TORCH_FUNCTIONS: dict[Any, Callable[..., Any]] = {}
"""Torch function to what does its work on tensordicts; it gets the arguments of the call."""

METHOD_FUNCTIONS: tuple[str, ...] = (
    *("clone", "detach", "numel", "is_floating_point"),
    *("unbind", "split", "chunk", "tensor_split"),
    *("squeeze", "unsqueeze", "reshape", "flatten", "unflatten", "permute", "transpose"),
    *("swapaxes", "swapdims", "movedim", "moveaxis", "narrow", "broadcast_to", "tile"),
    *("flip", "fliplr", "flipud", "rot90", "roll", "repeat_interleave"),
    *("atleast_1d", "atleast_2d", "atleast_3d"),
    *("gather", "masked_select", "masked_fill"),
    *("sum", "mean", "nansum", "nanmean", "prod", "std", "var", "amin", "amax", "min", "max"),
    *("all", "any", "quantile", "logsumexp", "softmax", "norm", "cummin", "cummax"),
)
"""Names in :mod:`torch` whose function on a tensordict is its method of that name."""


class TorchFunctionMixin:
    """Torch functions that take tensordicts."""

    __slots__ = ()

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        op = LEAFWISE_BY_TORCH_FUNCTION.get(func)
        if op is not None:
            return _call_by_row(op, args, kwargs or {})
        implementation = TORCH_FUNCTIONS.get(func)
        if implementation is None:
            return NotImplemented
        return implementation(*args, **(kwargs or {}))

    @classmethod
    def stack(cls, input: Sequence[Any], dim: int = 0, *, out: Any = None) -> Any:
        """Stack tensordicts along a new batch dimension; see :func:`stack`."""
        return stack(input, dim, out=out)

    @classmethod
    def cat(cls, input: Sequence[Any], dim: int = 0, *, out: Any = None) -> Any:
        """Concatenate tensordicts along a batch dimension; see :func:`cat`."""
        return cat(input, dim, out=out)

    def stack_tensors(
        self: Any, *keys: Any, out_key: Any, dim: int = 0, keep_entries: bool = False
    ) -> Any:
        """Stack the leaves under `keys` into a new entry `out_key`, in this tensordict.

        Args:
            keys: keys of leaves of one shape.
            out_key: key of the new entry.
            dim: the new dimension, as :func:`torch.stack` counts it.
            keep_entries: keep the entries under `keys`.
        """
        return _join_entries(self, torch.stack, keys, out_key, dim, keep_entries)

    def cat_tensors(
        self: Any, *keys: Any, out_key: Any, dim: int = 0, keep_entries: bool = False
    ) -> Any:
        """Concatenate the leaves under `keys` into a new entry `out_key`, in this tensordict.

        Args:
            keys: keys of leaves whose shapes differ in `dim` at most.
            out_key: key of the new entry.
            dim: a dimension, as :func:`torch.cat` counts it.
            keep_entries: keep the entries under `keys`.
        """
        return _join_entries(self, torch.cat, keys, out_key, dim, keep_entries)

    def stack_from_tensordict(
        self: Any, dim: int = 0, *, sorted: Any = None, out: Tensor | None = None
    ) -> Tensor:
        """Stack all leaves into one tensor.

        Args:
            dim: the new dimension, as :func:`torch.stack` counts it.
            sorted: True for alphabetical order of the keys, False or None for key order, or a list
                of the keys to take.
            out: a tensor for the result.
        """
        return torch.stack(_ordered_leaves(self, sorted), dim, out=out)

    def cat_from_tensordict(
        self: Any, dim: int = 0, *, sorted: Any = None, out: Tensor | None = None
    ) -> Tensor:
        """Concatenate all leaves into one tensor; see :meth:`stack_from_tensordict`."""
        return torch.cat(_ordered_leaves(self, sorted), dim, out=out)


def stack(input: Sequence[Any], dim: int = 0, *, out: Any = None) -> Any:
    """Stack tensordicts along a new batch dimension.

    Args:
        input: tensordicts of one batch size ``(*B,)``, with the same keys and leaf shapes.
        dim: where the new dimension goes among the batch dimensions, in ``[-n-1, n]``.
        out: a tensordict of the resulting batch size that is updated in place, and returned.

    Returns:
        A new tensordict with new leaves; keys and device of the first one, names if all have the
        same, the new dimension without one.

    Raises:
        RuntimeError: if there is no tensordict.
        TensorDictIndexError: if `dim` is out of range.
        TensorDictShapeError: if batch sizes or leaf shapes differ.
        KeyMismatchError: if keys differ; the message names them.

    Example:
        >>> td = TensorDict({"a": torch.ones(3, 4)}, [3])
        >>> stack([td, td], dim=-1)["a"].shape
        torch.Size([3, 2, 4])
    """
    tds = _checked(input, "stack")
    if lazy_legacy():
        return tds[0].lazy_stack(tds, dim, out=out)
    first = tds[0]
    batch_dims = len(first._batch_size)
    for position, td in enumerate(tds):
        if td._batch_size != first._batch_size:
            raise TensorDictShapeError(
                f"stack needs tensordicts of one batch size; the first has"
                f" {tuple(first._batch_size)}, number {position} has {tuple(td._batch_size)}."
            )
    if not -batch_dims - 1 <= dim <= batch_dims:
        raise TensorDictIndexError(
            f"dim must be in [{-batch_dims - 1}, {batch_dims}] to stack tensordicts with"
            f" {batch_dims} batch dimensions, got {dim}."
        )
    if dim < 0:
        dim += batch_dims + 1
    return deliver(_stack_level(tds, dim, ()), out)


def cat(input: Sequence[Any], dim: int = 0, *, out: Any = None) -> Any:
    """Concatenate tensordicts along a batch dimension.

    Args:
        input: tensordicts with the same keys, and batch sizes that differ in `dim` at most.
        dim: a batch dimension, in ``[-n, n)``.
        out: a tensordict of the resulting batch size that is updated in place, and returned.

    Returns:
        A new tensordict with new leaves; keys and names of the first one, device if all have the
        same.

    Raises:
        RuntimeError: if there is no tensordict.
        TensorDictIndexError: if `dim` is out of range.
        TensorDictShapeError: if batch sizes differ in another dimension.
        KeyMismatchError: if keys differ; the message names them.

    Example:
        >>> td = TensorDict({"a": torch.ones(3, 2, 4)}, [3, 2])
        >>> cat([td, td], dim=-2)["a"].shape
        torch.Size([6, 2, 4])
    """
    tds = _checked(input, "cat")
    first = tds[0]
    batch_dims = len(first._batch_size)
    if not -batch_dims <= dim < batch_dims:
        raise TensorDictIndexError(
            f"dim must be in [{-batch_dims}, {batch_dims}) to concatenate tensordicts with"
            f" {batch_dims} batch dimensions, got {dim}."
        )
    dim = dim % batch_dims
    if any(td._is_stack for td in tds):
        return deliver(_cat_lazy(tds, dim), out)
    for position, td in enumerate(tds):
        size = td._batch_size
        if (
            len(size) != batch_dims
            or size[:dim] != first._batch_size[:dim]
            or size[dim + 1 :] != first._batch_size[dim + 1 :]
        ):
            raise TensorDictShapeError(
                f"cat needs batch sizes that differ in dimension {dim} at most; the first is"
                f" {tuple(first._batch_size)}, number {position} is {tuple(size)}."
            )
    return deliver(_cat_level(tds, dim, ()), out)


def where(condition: Any, input: Any, other: Any, *, out: Any = None) -> Any:
    """Take elements of `input` where `condition` is true and of `other` elsewhere.

    Args:
        condition: boolean tensor that broadcasts against the batch dimensions, or a tensordict.
        input: a tensordict, a tensor that broadcasts against the batch dimensions, or a number.
        other: the same.
        out: a tensordict that is updated in place, and returned.

    Raises:
        KeyMismatchError: if tensordicts differ in their keys.
        TensorDictShapeError: if shapes do not broadcast against the batch size.
    """
    if isinstance(input, TensorCollection):
        return input.where(condition, other, out=out)  # type: ignore[attr-defined]
    result = combine(torch.where, (condition, input, other), {}, _choose)
    if out is None and not isinstance(condition, TensorCollection) and other._is_locked:
        result.lock_()
    return deliver(result, out)


def _choose(value: Any, others: tuple[Any, ...], size: torch.Size) -> Any:
    condition, mine, other = others
    if not isinstance(condition, Tensor) or not isinstance(mine, NonTensorEntry):
        mine, other = value, None
    return choose(condition, mine, other, size)


def _checked(tensordicts: Any, name: str) -> list[Any]:
    tds = list(tensordicts)
    if not tds:
        raise RuntimeError(f"{name} expects at least one tensordict, got none.")
    for position, td in enumerate(tds):
        if not isinstance(td, TensorCollection):
            raise TypeError(
                f"{name} takes tensordicts only or tensors only; number {position} is a"
                f" {type(td).__name__}."
            )
    return tds


def deliver(result: Any, out: Any) -> Any:
    """Return the result, or `out` updated with it."""
    if out is None:
        return result
    if out._batch_size != result._batch_size:
        raise TensorDictShapeError(
            f"out must have the batch size {tuple(result._batch_size)} of the result, got"
            f" {tuple(out._batch_size)}."
        )
    out.update(result, inplace=True)
    return out


def _entries_under(tds: list[Any], key: str, path: _Path) -> list[Any]:
    """What all tensordicts have under `key`; all tensors, all tensordicts or all non-tensors."""
    values = [td._entries.get(key) for td in tds]
    is_tensor = isinstance(values[0], Tensor)
    is_nested = isinstance(values[0], TensorCollection)
    is_unbatched = type(values[0]) is UnbatchedTensor
    for value in values:
        if (
            isinstance(value, Tensor) != is_tensor
            or isinstance(value, TensorCollection) != is_nested
            or (type(value) is UnbatchedTensor) != is_unbatched
        ):
            raise KeyMismatchError(
                f"{format_entry((*path, key))} must be of one kind in all tensordicts, found"
                f" {type(values[0]).__name__} and {type(value).__name__}."
            )
    return values


def _check_keys(tds: list[Any], path: _Path) -> None:
    kind = type(tds[0])
    first = tds[0]._entries
    for position, td in enumerate(tds):
        entries = td._entries
        if type(td) is not kind:
            _check_kinds(kind, type(td), path)
        missing = [key for key in first if key not in entries]
        further = [key for key in entries if key not in first]
        if missing or further:
            where_ = f" under {format_entry(path)}" if path else ""
            raise KeyMismatchError(
                f"the tensordicts must have the same keys{where_}; number {position} lacks"
                f" {missing} of the first and has {further} beyond it. Select the common keys"
                " first."
            )


def _check_kinds(first: type[Any], other: type[Any], path: _Path) -> None:
    """Raise if one of two classes is a tensorclass and neither is derived from the other."""
    schemas = (first.__tensorclass_schema__, other.__tensorclass_schema__)
    closed = any(schema is not None and schema.known is not None for schema in schemas)
    if closed and not (issubclass(first, other) or issubclass(other, first)):
        where_ = f" under {format_entry(path)}" if path else ""
        raise TypeError(
            f"no implementation found to join tensorclasses{where_} of two classes: found "
            f"{first.__name__} and {other.__name__}: convert one of them first, as by "
            "to_tensordict() or from_tensordict()"
        )


def _stack_level(tds: list[Any], dim: int, path: _Path) -> Any:
    rows = stack_rows(tds) if tds[0]._is_stack else None
    if rows is not None:
        place = tds[0].stack_dim
        results = [stack(row, dim - (dim > place)) for row in rows]
        return tds[0]._like(results, place + (dim <= place))
    _check_keys(tds, path)
    first = tds[0]
    size = first._batch_size
    batch_size = torch.Size((*size[:dim], len(tds), *size[dim:]))
    entries: dict[str, Any] = {}
    for key in first._entries:
        values = _entries_under(tds, key, path)
        if isinstance(values[0], LeafKind):
            entries[key] = join(values, torch.stack, dim)
        elif isinstance(values[0], Tensor):
            shape = values[0].shape
            for value in values:
                if value.shape != shape:
                    raise TensorDictShapeError(
                        f"stack needs leaves of one shape; {format_entry((*path, key))} has"
                        f" {tuple(shape)} and {tuple(value.shape)}."
                    )
            entries[key] = torch.stack(values, dim)
        else:
            nested_size = values[0]._batch_size
            for value in values:
                if value._batch_size != nested_size:
                    raise TensorDictShapeError(
                        f"stack needs tensordicts of one batch size; {format_entry((*path, key))}"
                        f" has {tuple(nested_size)} and {tuple(value._batch_size)}."
                    )
            entries[key] = _stack_level(values, dim, (*path, key))
    return first._from_entries(entries, batch_size, first._device, stacked_names(tds, dim))


def stacked_names(tds: list[Any], dim: int) -> Any:
    """Return the names of a stack: those that all tensordicts have, none for the new dimension."""
    names = tds[0]._names
    # Names that the tensordicts do not agree on say nothing of the stack.
    if names is None or any(td._names != names for td in tds):
        return None
    return (*names[:dim], None, *names[dim:])


def _cat_lazy(tds: list[Any], dim: int) -> Any:
    """Concatenate tensordicts of which one is a lazy stack: a lazy stack again."""
    first = next(td for td in tds if td._is_stack)
    place = first.stack_dim
    stacks = [td.to_lazystack(place) for td in tds]
    if dim == place:
        elements = [element for stack in stacks for element in stack.tensordicts]
        if elements:
            check_elements(elements)
        return first._like(elements)
    rows = stack_rows(stacks)
    if rows is None:
        raise TensorDictShapeError(
            f"cat needs the same number of stacked tensordicts along dimension {place}; found"
            f" {[len(stack.tensordicts) for stack in stacks]}."
        )
    return first._like([cat(row, dim - (dim > place)) for row in rows])


def _cat_level(tds: list[Any], dim: int, path: _Path) -> Any:
    if any(td._is_stack for td in tds):
        return _cat_lazy(tds, dim)
    _check_keys(tds, path)
    first = tds[0]
    size = first._batch_size
    length = 0
    for td in tds:
        length += td._batch_size[dim]
    batch_size = torch.Size((*size[:dim], length, *size[dim + 1 :]))
    entries: dict[str, Any] = {}
    for key in first._entries:
        values = _entries_under(tds, key, path)
        if isinstance(values[0], LeafKind):
            entries[key] = join(values, torch.cat, dim)
        elif isinstance(values[0], Tensor):
            entries[key] = torch.cat(values, dim)
        else:
            entries[key] = _cat_level(values, dim, (*path, key))
    device = first._device if all(td._device == first._device for td in tds) else None
    return first._from_entries(entries, batch_size, device, first._names)


def _join_entries(
    td: Any,
    function: Callable[..., Tensor],
    keys: tuple[Any, ...],
    out_key: Any,
    dim: int,
    keep_entries: bool,
) -> Any:
    joined = function([td.get(key) for key in keys], dim)
    td.set(out_key, joined)
    if not keep_entries:
        for key in keys:
            if key != out_key:
                td.del_(key)
    return td


def _ordered_leaves(td: Any, order: Any) -> list[Tensor]:
    if isinstance(order, (list, tuple)):
        return [td.get(key) for key in order]
    leaves: list[tuple[_Path, Tensor]] = []
    _collect_paths(td, (), leaves)
    if order:
        leaves.sort(key=lambda item: ".".join(item[0]))
    return [leaf for _, leaf in leaves]


def _collect_paths(td: Any, path: _Path, leaves: list[tuple[_Path, Tensor]]) -> None:
    for key, value in td._entries.items():
        if isinstance(value, Tensor):
            leaves.append(((*path, key), value))
        elif isinstance(value, TensorCollection):
            _collect_paths(value, (*path, key), leaves)


def _autograd_grad(outputs: Any, inputs: Any, grad_outputs: Any = None, **kwargs: Any) -> Any:
    """Gradients of the leaves of tensordicts (or tensors), in the structure of `inputs`.

    A leaf that `outputs` does not depend on has no entry in the result (with `allow_unused`).
    """
    # torch hands on tuples, also of one.
    outputs, inputs = _only(outputs), _only(inputs)
    leaves = (_leaves_of(outputs), _leaves_of(inputs), _leaves_of(_only(grad_outputs)))
    grads = torch.autograd.grad(*leaves, **kwargs)
    return _with_leaves(inputs, iter(grads)) if isinstance(inputs, TensorCollection) else grads


def _only(value: Any) -> Any:
    return value[0] if isinstance(value, (tuple, list)) and len(value) == 1 else value


def _leaves_of(value: Any) -> Any:
    if not isinstance(value, TensorCollection):
        return value
    return tensor_leaves(value)


def _with_leaves(td: Any, leaves: Iterator[Any]) -> Any:
    if td._is_stack:
        return each_element(_with_leaves, td, leaves)
    entries: dict[str, Any] = {}
    for key, value in td._entries.items():
        if isinstance(value, Tensor):
            leaf = next(leaves)
            if leaf is not None:
                entries[key] = leaf
        else:
            is_td = isinstance(value, TensorCollection)
            entries[key] = _with_leaves(value, leaves) if is_td else value
    return td._from_entries(entries, td._batch_size, td._device, td._names)


# The table


# Names of operands in torch, where the method of a tensordict has others.
_OPERANDS_IN_TORCH = {"tensor1": "other1", "tensor2": "other2"}


def _call_by_row(op: LeafwiseOp, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a leaf-wise function with the arguments of the torch function it stands for."""
    names = ("input", *op.operands)
    operands = list(args)
    keywords: dict[str, Any] = {}
    kwargs = {_OPERANDS_IN_TORCH.get(name, name): value for name, value in kwargs.items()}
    for name, value in kwargs.items():
        if name in op.keywords:
            if value is not None:
                keywords[name] = value
        elif name not in names or name in names[: len(args)]:
            raise TypeError(
                f"torch.{op.function.__name__} on tensordicts takes {names + op.keywords}, got an"
                f" unexpected {name!r}."
            )
    for name in names[len(operands) :]:
        if name in kwargs:
            operands.append(kwargs[name])
        elif op.optional_operands:
            operands.append(None)
    if len(operands) > op.arity:
        # addcdiv(input, tensor1, tensor2, value) and the like: keywords by place.
        extra = operands[op.arity :]
        keywords.update(zip(op.keywords, extra, strict=False))
        operands = operands[: op.arity]
    return call_leafwise(op, tuple(operands), keywords)


def _method_caller(name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        td = args[0] if args else kwargs.pop("input")
        return getattr(td, name)(*args[1:], **kwargs)

    call.__name__ = name
    return call


def _like(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """``torch.zeros_like`` and its kin; the result is locked where the input is."""

    def call(input: Any, *args: Any, **kwargs: Any) -> Any:
        result = _like_level(input, function, args, kwargs)
        if input._is_locked:
            result.lock_()
        return result

    call.__name__ = function.__name__
    return call


def _like_level(
    td: Any, function: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if td._is_stack:
        return each_element(_like_level, td, function, args, kwargs)
    device = td._device if kwargs.get("device") is None else torch.device(kwargs["device"])
    entries: dict[str, Any] = {}
    for key, value in td._entries.items():
        if isinstance(value, Tensor):
            entries[key] = function(value, *args, **kwargs)
        elif isinstance(value, TensorCollection):
            entries[key] = _like_level(value, function, args, kwargs)
        else:
            entries[key] = value._carried()
    return td._from_entries(entries, td._batch_size, device, td._names)


def _stack_function(tensors: Any, dim: int = 0, *, out: Any = None) -> Any:
    return stack(tensors, dim, out=out)


def _cat_function(tensors: Any, dim: int = 0, *, out: Any = None) -> Any:
    return cat(tensors, dim, out=out)


TORCH_FUNCTIONS.update(
    {
        getattr(torch, name): _method_caller(name)
        for name in METHOD_FUNCTIONS
        if hasattr(torch, name)
    }
)
TORCH_FUNCTIONS.update(
    {
        function: _like(function)
        for function in (
            torch.zeros_like,
            torch.ones_like,
            torch.empty_like,
            torch.full_like,
            torch.rand_like,
            torch.randn_like,
        )
    }
)
TORCH_FUNCTIONS.update(
    {
        torch.stack: _stack_function,
        torch.cat: _cat_function,
        torch.concat: _cat_function,
        torch.concatenate: _cat_function,
        torch.where: where,
        Tensor.where: lambda input, condition, other: where(condition, input, other),
        torch.autograd.grad: _autograd_grad,
    }
)


LOSS_FUNCTIONS: tuple[str, ...] = (
    *("l1_loss", "mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "poisson_nll_loss"),
)
"""Names in :mod:`torch.nn.functional` that compare two tensors element by element."""


def _loss(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """Make a loss of two tensordicts: for each leaf that of the two tensors under its key.

    ``reduction="none"`` keeps the batch size, the others leave none.
    """

    def implementation(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("reduction", "mean") == "none":
            return combine(lambda a, b: function(a, b, *args, **kwargs), (input, target), {})
        return input.apply(
            lambda a, b: function(a, b, *args, **kwargs), target, batch_size=(), names=None
        )

    return implementation


TORCH_FUNCTIONS.update(
    {
        function: _loss(function)
        for function in (getattr(torch.nn.functional, name) for name in LOSS_FUNCTIONS)
    }
)

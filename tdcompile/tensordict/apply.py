"""Functions over leaves: ``apply`` and its relatives, fills, masks, copies, gradients.

Key names: :class:`ApplyMixin`.

Symbols: ``*B`` batch dimensions, ``*F`` trailing dimensions of a leaf ``(*B, *F)``.

Invariants: leaves are visited in key order, depth first; an in-place call computes and checks every
leaf before it writes one; non-tensor entries pass through as the same object unless ``is_leaf`` or
``call_on_nested`` asks for them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdcompile.errors import KeyMismatchError, KeyPathError, TensorDictShapeError
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.combine import combine
from tdcompile.tensordict.keys import NO_DEFAULT, format_entry, unravel_key_to_tuple
from tdcompile.tensordict.lazy.elements import (
    dense_form,
    each_element,
    each_row,
    element_rows,
    restack,
    tensor_leaves,
)
from tdcompile.tensordict.leafwise import align_operand, broadcast_batch_size
from tdcompile.tensordict.nontensor.stack import choose
from tdcompile.tensordict.nontensor.unbatched import UnbatchedTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Request:
    """What one call of ``apply`` or ``named_apply`` asks for."""

    function: Callable[..., Any]
    named: bool
    nested_keys: bool
    batch_size: torch.Size | None
    device: Any
    names: Any
    default: Any
    filter_empty: bool | None
    call_on_nested: bool
    is_leaf: Callable[[type], bool] | None


class ApplyMixin:
    """Functions over leaves."""

    __slots__ = ()

    def apply(
        self: Any,
        fn: Callable[..., Any],
        *others: Any,
        batch_size: Sequence[int] | None = None,
        device: Any = NO_DEFAULT,
        names: Any = NO_DEFAULT,
        inplace: bool = False,
        default: Any = NO_DEFAULT,
        filter_empty: bool | None = None,
        propagate_lock: bool = False,
        call_on_nested: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        out: Any = None,
        **constructor_kwargs: Any,
    ) -> Any:
        """Call `fn` on each leaf and make a tensordict of what it returns.

        Args:
            fn: gets a leaf ``(*B, *F)``, then the leaves of `others` under the same key. What it
                returns is stored; None drops the key.
            others: tensordicts.
            batch_size: batch size of the result, also of nested tensordicts, if `fn` changes it.
            device: device of the result; does not move what `fn` returns.
            names: names of the result's batch dimensions.
            inplace: copy the results into our leaves, which keep their storage; None leaves a leaf
                as it is.
            default: passed to `fn` for a leaf that one of `others` does not have.
            filter_empty: True drops every empty nested tensordict, False none; by default those
                that `fn` made empty go.
            propagate_lock: lock the result if we are locked.
            call_on_nested: call `fn` on the entries of this level, whatever they are.
            is_leaf: gets the class of an entry and tells whether to call `fn` on it.
            out: a tensordict that is updated with the results, and returned.
            constructor_kwargs: ``lock=True`` locks the result.

        Returns:
            A new tensordict, self with `inplace`, `out` if given; None if `fn` returned None for
            every leaf (unless `filter_empty` is False).

        Raises:
            KeyPathError: if one of `others` lacks a leaf and there is no `default`.
            TensorDictShapeError: if a result does not fit the batch size.

        Example:
            >>> td = TensorDict({"a": torch.ones(3, 4)}, [3])
            >>> td.apply(lambda leaf: leaf.sum(-1))["a"]
            tensor([4., 4., 4.])
        """
        if (
            not others
            and not inplace
            and batch_size is None
            and device is NO_DEFAULT
            and names is NO_DEFAULT
            and filter_empty is None
            and not propagate_lock
            and not call_on_nested
            and is_leaf is None
            and out is None
            and not constructor_kwargs
        ):
            return _apply_plain(self, fn, ())
        request = _Request(
            fn,
            False,
            False,
            None if batch_size is None else torch.Size(batch_size),
            device,
            names,
            default,
            filter_empty,
            call_on_nested,
            is_leaf,
        )
        return _carry_out(request, self, others, inplace, propagate_lock, out, constructor_kwargs)

    def named_apply(
        self: Any,
        fn: Callable[..., Any],
        *others: Any,
        nested_keys: bool = False,
        batch_size: Sequence[int] | None = None,
        device: Any = NO_DEFAULT,
        names: Any = NO_DEFAULT,
        inplace: bool = False,
        default: Any = NO_DEFAULT,
        filter_empty: bool | None = None,
        propagate_lock: bool = False,
        call_on_nested: bool = False,
        is_leaf: Callable[[type], bool] | None = None,
        out: Any = None,
        **constructor_kwargs: Any,
    ) -> Any:
        """Do what :meth:`apply` does, with the key as first argument of `fn`.

        `fn` gets the key, the leaf, and the leaves of `others`. With `nested_keys` a nested leaf's
        key is its whole path, as a tuple; otherwise it is the last key. The other arguments, the
        result and the errors are those of :meth:`apply`.
        """
        request = _Request(
            fn,
            True,
            nested_keys,
            None if batch_size is None else torch.Size(batch_size),
            device,
            names,
            default,
            filter_empty,
            call_on_nested,
            is_leaf,
        )
        return _carry_out(request, self, others, inplace, propagate_lock, out, constructor_kwargs)

    def apply_(self: Any, fn: Callable[..., Any], *others: Any, **kwargs: Any) -> Any:
        """Call `fn` on each leaf and copy the results into the leaves; see :meth:`apply`."""
        return self.apply(fn, *others, inplace=True, **kwargs)

    def fill_(self: Any, key: Any, value: float | bool) -> Any:
        """Fill the leaf under `key`, or all leaves of the tensordict there, in place.

        Raises:
            KeyPathError: if `key` is absent.
        """
        for leaf in tensor_leaves(_require(self, key)):
            leaf.fill_(value)
        return self

    def zero_(self: Any) -> Any:
        """Set all leaves to zero in place."""
        for leaf in tensor_leaves(self):
            leaf.zero_()
        return self

    def copy_(self: Any, tensordict: Any, non_blocking: bool = False) -> Any:
        """Copy into our leaves, in place, those of `tensordict` under the same keys.

        Keys that only one side has are left alone. All shapes are checked before anything is
        written.

        Raises:
            TensorDictShapeError: if a leaf of `tensordict` does not broadcast to ours.
        """
        writes: list[tuple[Tensor, Tensor]] = []
        _collect_copies(self, tensordict, (), writes)
        for leaf, value in writes:
            leaf.copy_(value, non_blocking=non_blocking)
        return self

    def masked_fill(self: Any, mask: Tensor, value: float | bool) -> Any:
        """Return a copy with `value` where `mask` is true.

        Args:
            mask: boolean, broadcasts against the batch dimensions ``(*B,)``.
            value: a number.

        Raises:
            TensorDictShapeError: if the mask does not broadcast against the batch size.
        """
        return combine(torch.masked_fill, (self, mask, value), {})

    def masked_fill_(self: Any, mask: Tensor, value: float | bool) -> Any:
        """Write `value` where `mask` is true, in place; see :meth:`masked_fill`.

        Raises:
            TensorDictShapeError: if the mask does not broadcast to the batch size.
        """
        if broadcast_batch_size(self._batch_size, mask.shape) != self._batch_size:
            raise TensorDictShapeError(
                f"the mask must broadcast to the batch size {tuple(self._batch_size)}, got"
                f" {tuple(mask.shape)}. Use the out-of-place masked_fill."
            )
        _masked_fill(self, mask, value, len(self._batch_size))
        return self

    def where(
        self: Any,
        condition: Tensor,
        other: Any,
        *,
        out: Any = None,
        pad: float | bool | None = None,
        update_batch_size: bool = False,
    ) -> Any:
        """Take our elements where `condition` is true and those of `other` elsewhere.

        Args:
            condition: boolean, broadcasts against the batch dimensions ``(*B,)``.
            other: a tensordict, a tensor that broadcasts against the batch dimensions, a number.
            out: a tensordict that is updated in place with the result, and returned.
            pad: stands for a leaf that only one side has.
            update_batch_size: give `out` the batch size of the result.

        Returns:
            A new tensordict, locked if we are and `other` is no tensordict; or `out`.

        Raises:
            KeyPathError: if a leaf is on one side only and there is no `pad`.
            TensorDictShapeError: if shapes do not broadcast against the batch size.
        """
        left: Any = self
        if pad is not None and isinstance(other, TensorCollection):
            left, other = _padded(self, other, pad), _padded(other, self, pad)
        try:
            result = combine(_where_left, (left, condition, other), {}, _choose)
        except KeyMismatchError as error:
            text = f"a key was not found and no pad value provided, give pad=. {error}"
            raise KeyMismatchError(text) from None
        if out is not None:
            if update_batch_size and out._batch_size != result._batch_size:
                out.batch_size = result._batch_size
            out.update(result, inplace=True)
            return out
        if self._is_locked and not isinstance(other, TensorCollection):
            result.lock_()
        return result

    # -- gradients and storage -----------------------------------------------------------------

    def detach(self: Any) -> Any:
        """Return a tensordict of detached leaves that share our storage; locked if we are."""
        return _same_kind(self, _map(self, Tensor.detach))

    def detach_(self: Any) -> Any:
        """Detach all leaves in place."""
        for leaf in tensor_leaves(self):
            leaf.detach_()
        return self

    @property
    def data(self: Any) -> Any:
        """A tensordict of the leaves' ``data``: same storage, no gradient; locked if we are."""
        return _same_kind(self, _map(self, _data))

    @property
    def grad(self: Any) -> Any:
        """A tensordict of the gradients that there are, or None if there are none."""
        return _apply_plain(self, _grad, ())

    @property
    def requires_grad(self: Any) -> bool:
        """Tell whether some leaf requires a gradient."""
        return any(leaf.requires_grad for leaf in tensor_leaves(self))

    def requires_grad_(self: Any, requires_grad: bool = True) -> Any:
        """Set ``requires_grad`` of all leaves in place."""
        for leaf in tensor_leaves(self):
            leaf.requires_grad_(requires_grad)
        return self

    def zero_grad(self: Any, set_to_none: bool = True) -> Any:
        """Drop the gradients of all leaves, or set them to zero."""
        for leaf in tensor_leaves(self):
            if leaf.grad is None:
                continue
            if set_to_none:
                leaf.grad = None
            else:
                leaf.grad.zero_()
        return self

    def backward(
        self: Any,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Any = None,
    ) -> None:
        """Compute the gradients of all leaves that require one, as for tensors.

        Args:
            gradient: a tensordict of the gradients with respect to our leaves; may be left out
                where those are single numbers.
            retain_graph: keep the graph for another call.
            create_graph: make the gradients differentiable.
            inputs: tensors, or a tensordict of them, to accumulate gradients into.
        """
        tensors: list[Tensor] = []
        gradients: list[Tensor | None] = []
        _collect_backward(self, gradient, tensors, gradients)
        if isinstance(inputs, TensorCollection):
            inputs = tensor_leaves(inputs)
        torch.autograd.backward(
            tensors, gradients, retain_graph=retain_graph, create_graph=create_graph, inputs=inputs
        )

    def contiguous(self: Any, *, canonical: bool = False, inplace: bool = False) -> Any:
        """Return a tensordict of contiguous leaves; those that are so already are shared.

        Args:
            canonical: also sort the keys of every level.
            inplace: put the leaves into this tensordict and return it.
        """
        result = _map(dense_form(self, False), Tensor.contiguous)
        if canonical:
            result = _sorted(result)
        if not inplace:
            return result
        self.update(result)
        return self

    def is_contiguous(self: Any) -> bool:
        """Tell whether all leaves are contiguous."""
        return all(leaf.is_contiguous() for leaf in tensor_leaves(self))

    def record_stream(self: Any, stream: Any) -> Any:
        """Mark all leaves as used by `stream`."""
        for leaf in tensor_leaves(self):
            leaf.record_stream(stream)
        return self


def _apply_plain(td: Any, fn: Callable[[Any], Any], path: _Path) -> Any:
    """``apply`` with one argument and no option, which is nearly every call."""
    if td._is_stack:
        return each_element(_apply_plain, td, fn, path)
    batch_size = td._batch_size
    batch_dims = len(batch_size)
    result = td._from_entries({}, batch_size, td._device, td._names)
    entries = result._entries
    dropped = False
    for key, value in td._entries.items():
        if isinstance(value, Tensor):
            new = fn(value)
            if type(value) is UnbatchedTensor and isinstance(new, Tensor):
                new = UnbatchedTensor(new)
        elif isinstance(value, TensorCollection):
            new = _apply_plain(value, fn, (*path, key))
        else:
            new = value._carried()
        if new is None:
            dropped = True
        elif isinstance(new, Tensor) and isinstance(value, Tensor):
            _store(result, key, new, batch_size, batch_dims, path)
        elif isinstance(value, Tensor):
            entries[key] = result._to_entry(new, (*path, key))
        else:
            entries[key] = new
    return None if dropped and not entries else _completed(td, result)


def _store(
    result: Any, key: str, new: Tensor, batch_size: torch.Size, batch_dims: int, path: _Path
) -> None:
    if (
        new.shape[:batch_dims] == batch_size
        and (result._device is None or result._device == new.device)
        and type(new) is not UnbatchedTensor
    ):
        result._entries[key] = new
    else:
        result._entries[key] = result._to_entry(new, (*path, key))


def _carry_out(
    request: _Request,
    td: Any,
    others: tuple[Any, ...],
    inplace: bool,
    propagate_lock: bool,
    out: Any,
    constructor_kwargs: dict[str, Any],
) -> Any:
    lock = constructor_kwargs.pop("lock", False)
    if constructor_kwargs:
        raise TypeError(f"apply() got unexpected keyword arguments {sorted(constructor_kwargs)}.")
    if inplace:
        writes: list[tuple[Any, Any, Any, _Path]] = []
        called = _collect_writes(request, td, others, (), writes)
        _write(writes)
        if request.batch_size is not None:
            td.batch_size = request.batch_size
        nothing = not writes and called and request.filter_empty is not False
        return None if nothing else td
    result = _visit(request, td, others, ())
    if result is None:
        return None
    if out is not None:
        out.update(result)
        return out
    if lock or (propagate_lock and td._is_locked):
        result.lock_()
    return result


def _is_called(request: _Request, value: Any) -> bool:
    """Tell whether the function is called on an entry."""
    if request.call_on_nested:
        return True
    if request.is_leaf is not None:
        return request.is_leaf(type(value))
    return isinstance(value, Tensor)


def _call(request: _Request, key: str, value: Any, others: tuple[Any, ...], path: _Path) -> Any:
    """Call the function on one entry and on what the others have under its key."""
    arguments = [_entry_of(request, other, key, path) for other in others]
    if not request.named:
        return request.function(value, *arguments)
    name = (*path, key) if request.nested_keys and path else key
    return request.function(name, value, *arguments)


def _entry_of(request: _Request, other: Any, key: str, path: _Path) -> Any:
    found = other._entries.get(key, NO_DEFAULT) if isinstance(other, TensorCollection) else other  # type: ignore[attr-defined]
    if found is not NO_DEFAULT:
        return found
    if request.default is NO_DEFAULT:
        raise KeyPathError(
            f"every tensordict must have {format_entry((*path, key))}; one of the others does not."
            " Give default= for leaves that are missing."
        )
    return request.default


def _visit(request: _Request, td: Any, others: tuple[Any, ...], path: _Path) -> Any:
    """Make the result for one level; None if there is nothing in it."""
    if td._is_stack and request.batch_size is None:
        return _visit_elements(request, td, others, path)
    batch_size = td._batch_size if request.batch_size is None else request.batch_size
    batch_dims = len(batch_size)
    device = td._device if request.device is NO_DEFAULT else request.device
    result = td._from_entries({}, batch_size, device, _result_names(request, td, batch_dims))
    if request.device is not NO_DEFAULT and device is not None:
        result._device = torch.device(device)
    dropped = False
    for key, value in td._entries.items():
        if _is_called(request, value):
            new = _call(request, key, value, others, path)
            if isinstance(new, Tensor):
                if type(value) is UnbatchedTensor:
                    new = UnbatchedTensor(new)
                _store(result, key, new, batch_size, batch_dims, path)
                continue
            if new is not None:
                new = result._to_entry(new, (*path, key))
        elif isinstance(value, TensorCollection):
            nested = tuple(_entry_of(request, other, key, path) for other in others)
            new = _visit(request, value, nested, (*path, key))
        elif value.batch_size != batch_size:
            new = value._with_batch_size(batch_size)
        else:
            new = value._carried()
        if new is None:
            dropped = True
        else:
            result._entries[key] = new
    if not result._entries and (request.filter_empty or (dropped and request.filter_empty is None)):
        return None
    return _completed(td, result)


def _visit_elements(request: _Request, td: Any, others: tuple[Any, ...], path: _Path) -> Any:
    """Make the result for a lazy stack, element by element; names are set on the whole."""
    plain = replace(request, names=NO_DEFAULT)
    rows = element_rows(td, (td, *others), split_tensors=False)
    result = restack(td, [_visit(plain, element, tuple(rest), path) for element, *rest in rows])
    if result is not None and request.names is not NO_DEFAULT:
        result._names = _result_names(request, td, td.batch_dims)
    return result


def _result_names(request: _Request, td: Any, batch_dims: int) -> tuple[str | None, ...] | None:
    own: tuple[str | None, ...] | None = td._names if request.batch_size is None else None
    if request.names is NO_DEFAULT:
        return own
    if request.names is None:
        return None
    names = tuple(request.names)
    # A nested tensordict keeps the names of its further dimensions.
    further = batch_dims - len(names)
    if further < 0:
        raise ValueError(
            f"names must have one name for each of the {batch_dims} batch dimensions, got {names}."
        )
    tail = (None,) * further if own is None else own[batch_dims - further :]
    return names + tail


def _collect_writes(
    request: _Request,
    td: Any,
    others: tuple[Any, ...],
    path: _Path,
    writes: list[tuple[Any, Any, Any, _Path]],
) -> bool:
    """Call the function for all entries of a level, in place; tells whether it was called."""
    called = False
    if td._is_stack:
        for element, *rest in element_rows(td, (td, *others), split_tensors=False):
            called = _collect_writes(request, element, tuple(rest), path, writes) or called
        return called
    for key, value in td._entries.items():
        if _is_called(request, value):
            called = True
            new = _call(request, key, value, others, path)
            if new is None:
                continue
            if isinstance(value, Tensor) and new is not value:
                if not isinstance(new, Tensor):
                    new = torch.as_tensor(new)
                size = None if type(value) is UnbatchedTensor else td._batch_size
                _check_write(value, new, (*path, key), size)
            writes.append((td, value, new, (*path, key)))
        elif isinstance(value, TensorCollection):
            nested = tuple(_entry_of(request, other, key, path) for other in others)
            called = _collect_writes(request, value, nested, (*path, key), writes) or called
    return called


def _check_write(
    leaf: Tensor, value: Tensor, path: _Path, batch_size: torch.Size | None = None
) -> None:
    """Check that `value` can be copied into `leaf`, and has the batch size if one is given."""
    if value.shape == leaf.shape:
        return
    misses_batch = batch_size is not None and value.shape[: len(batch_size)] != batch_size
    if misses_batch or not _broadcasts_to(value.shape, leaf.shape):
        raise TensorDictShapeError(
            f"{format_entry(path)} has shape {tuple(leaf.shape)}, which cannot hold a value of"
            f" shape {tuple(value.shape)} in place. Use the out-of-place form."
        )


def _broadcasts_to(shape: torch.Size, target: torch.Size) -> bool:
    if len(shape) > len(target):
        return False
    tail = target[len(target) - len(shape) :]
    return all(size in (1, wanted) for size, wanted in zip(shape, tail, strict=True))


def _write(writes: list[tuple[Any, Any, Any, _Path]]) -> None:
    for td, value, new, path in writes:
        if new is value:
            continue
        if isinstance(value, Tensor):
            value.copy_(new)
        elif isinstance(value, TensorCollection) and isinstance(new, TensorCollection):
            value.update(new, inplace=True)  # type: ignore[attr-defined]
        else:
            td.set(path[-1], new)


def _require(td: Any, key: Any) -> Any:
    """The entry under `key`."""
    path = unravel_key_to_tuple(key)
    entry: Any = td
    for depth, name in enumerate(path):
        found = entry._entries.get(name) if isinstance(entry, TensorCollection) else None  # type: ignore[attr-defined]
        if found is None:
            there = list(entry._entries) if isinstance(entry, TensorCollection) else []  # type: ignore[attr-defined]
            raise KeyPathError(
                f"{format_entry(path)} must exist; {name!r} is not among the keys {there} of"
                f" {format_entry(path[:depth]) if depth else 'the tensordict'}."
            )
        entry = found
    return entry


def _collect_copies(td: Any, source: Any, path: _Path, writes: list[tuple[Tensor, Tensor]]) -> None:
    if td._is_stack:
        for element, part in element_rows(td, (td, source)):
            _collect_copies(element, part, path, writes)
        return
    for key, value in td._entries.items():
        new = source._entries.get(key)
        if isinstance(value, Tensor) and isinstance(new, Tensor):
            _check_write(value, new, (*path, key))
            writes.append((value, new))
        elif isinstance(value, TensorCollection) and isinstance(new, TensorCollection):
            _collect_copies(value, new, (*path, key), writes)


def _collect_backward(
    td: Any, gradient: Any, tensors: list[Tensor], gradients: list[Tensor | None]
) -> None:
    if td._is_stack:
        for element, part in element_rows(td, (td, gradient)):
            _collect_backward(element, part, tensors, gradients)
        return
    for key, value in td._entries.items():
        given = None if gradient is None else gradient._entries.get(key)
        if isinstance(value, Tensor):
            if value.requires_grad:
                tensors.append(value)
                gradients.append(given)
        elif isinstance(value, TensorCollection):
            _collect_backward(value, given, tensors, gradients)


def _map(td: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """New tensordict of ``function(leaf)``, which keeps the batch dimensions."""
    if td._is_stack:
        return each_element(_map, td, function)
    entries: dict[str, Any] = {}
    for key, value in td._entries.items():
        if isinstance(value, Tensor):
            entries[key] = function(value)
        elif isinstance(value, TensorCollection):
            entries[key] = _map(value, function)
        else:
            entries[key] = value._carried()
    return td._from_entries(entries, td._batch_size, td._device, td._names)


def _same_kind(td: Any, result: Any) -> Any:
    """Lock the result if the tensordict it comes from is locked."""
    if td._is_locked:
        result.lock_()
    return result


def _data(leaf: Tensor) -> Tensor:
    return leaf.data


def _grad(leaf: Tensor) -> Tensor | None:
    return leaf.grad


def _masked_fill(td: Any, mask: Tensor, value: float | bool, batch_dims: int) -> None:
    """Fill leaves where the mask, which broadcasts to `batch_dims` dimensions, is true."""
    if td._is_stack:
        mask = align_operand(mask, batch_dims, len(td._batch_size))
        for element, part in element_rows(td, (td, mask)):
            _masked_fill(element, part, value, len(element._batch_size))
        return
    for entry in td._entries.values():
        if isinstance(entry, Tensor):
            entry.masked_fill_(align_operand(mask, batch_dims, entry.ndim), value)
        elif isinstance(entry, TensorCollection):
            _masked_fill(entry, mask, value, batch_dims)


def _where_left(leaf: Tensor, condition: Tensor, other: Any) -> Tensor:
    return torch.where(condition, leaf, other)


def _choose(value: Any, others: tuple[Any, ...], size: torch.Size) -> Any:
    mine, condition, other = others
    return choose(condition, mine, other, size)


def _padded(td: Any, other: Any, pad: float | bool) -> Any:
    """`td` with leaves full of `pad` for those that only `other` has."""
    if td._is_stack:
        return each_row(lambda own, match: _padded(own, match, pad), td, (td, other))
    entries = dict(td._entries)
    for key, value in other._entries.items():
        own = entries.get(key)
        if isinstance(value, TensorCollection):
            if own is None:
                like: Any = value
                own = td._from_entries({}, like._batch_size, like._device, like._names)
            if isinstance(own, TensorCollection):
                entries[key] = _padded(own, value, pad)
        elif own is None:
            entries[key] = torch.full_like(value, pad) if isinstance(value, Tensor) else value
    return td._from_entries(entries, td._batch_size, td._device, td._names)


def _sorted(td: Any) -> Any:
    if td._is_stack:
        return each_element(_sorted, td)
    entries = {
        key: _sorted(value) if isinstance(value, TensorCollection) else value
        for key, value in sorted(td._entries.items(), key=lambda item: str(item[0]))
    }
    return td._from_entries(entries, td._batch_size, td._device, td._names)


def _completed(td: Any, result: Any) -> Any:
    """Return a result of the class of `td` that has all its entries now."""
    schema = td.__tensorclass_schema__
    if schema is None or not schema.runs_post_init:
        return result
    # Made anew of its entries: then its class runs ``__post_init__``.
    return td._from_entries(result._entries, result._batch_size, result._device, result._names)

"""Stacks of either kind: dense where tensordicts allow it, lazy otherwise; and between the two.

Key names: :class:`StackingMixin` (``lazy_stack``, ``maybe_dense_stack``, ``to_lazystack``,
``densify``, ``to_padded_tensor``), :func:`maybe_dense_stack`, :func:`dense_stack_tds`.

Symbols: ``*B`` batch dimensions; ``n`` tensordicts are stacked along dimension ``k``.

Invariant: a dense stack is made of tensordicts that have the same keys and leaf shapes at their own
level; tensordicts nested in them are stacked by the same rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdcompile.errors import TensorDictShapeError
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.functional import deliver, stacked_names
from tdcompile.tensordict.keys import unravel_key_to_tuple
from tdcompile.tensordict.lazy.elements import stack_rows
from tdcompile.tensordict.nontensor.data import LeafKind
from tdcompile.tensordict.nontensor.stack import join

if TYPE_CHECKING:
    from collections.abc import Sequence


def _lazy() -> Any:
    # The class needs the methods of this file, and they need the class.
    from tdcompile.tensordict.lazy import stack as lazy

    return lazy


class StackingMixin:
    """Stacks, and forms of a tensordict with and without lazy stacks."""

    __slots__ = ()

    @classmethod
    def lazy_stack(
        cls, input: Sequence[Any], dim: int = 0, *, out: Any = None, **kwargs: Any
    ) -> Any:
        """Stack tensordicts lazily; see :func:`tdcompile.tensordict.lazy.stack.lazy_stack`."""
        return _lazy().lazy_stack(input, dim, out=out, **kwargs)

    @classmethod
    def maybe_dense_stack(
        cls, input: Sequence[Any], dim: int = 0, *, out: Any = None, **kwargs: Any
    ) -> Any:
        """Stack tensordicts densely where possible; see :func:`maybe_dense_stack`."""
        return maybe_dense_stack(input, dim, out=out, **kwargs)

    def to_lazystack(self: Any, dim: int = 0) -> Any:
        """Return a lazy stack of the slices along `dim`, which are views.

        Example:
            >>> TensorDict(a=torch.zeros(2, 3), batch_size=[2, 3]).to_lazystack(1).stack_dim
            1
        """
        dim = self._batch_dim(dim)
        kind = _lazy().LazyStackedTensorDict
        slices = self.unbind(dim)
        if slices:
            names = self._names
            result = kind(*slices, stack_dim=dim)
            result._dim_name = None if names is None else names[dim]
            return result
        size = self._batch_size
        return kind(stack_dim=dim, batch_size=(*size[:dim], *size[dim + 1 :]), device=self._device)

    def densify(self: Any, layout: torch.layout = torch.strided) -> Any:
        """Return the tensordict with its lazy stacks made dense.

        Tensors of several shapes become a nested tensor along the stack dimension; a key that some
        elements lack has empty tensors for them.

        Args:
            layout: of nested tensors, ``torch.strided`` or ``torch.jagged``.

        Returns:
            A dense tensordict; this one if there is no lazy stack in it.

        Raises:
            NotImplementedError: if shapes or keys differ and the stack dimension is not the first.

        Example:
            >>> stack = lazy_stack([TensorDict(a=torch.zeros(3)), TensorDict(a=torch.ones(4))])
            >>> stack.densify(layout=torch.jagged)["a"].is_nested
            True
        """
        return _densified(self, layout) if _holds_stack(self) else self

    def to_padded_tensor(self: Any, padding: float = 0.0, mask_key: Any = None) -> Any:
        """Return a tensordict with padded tensors in place of nested ones.

        Args:
            padding: what tensors are padded with.
            mask_key: where to put a mask of what is no padding, over the batch dimensions; one of
                them must be ragged then.

        Raises:
            RuntimeError: if there is a `mask_key` and no batch dimension is ragged.
        """
        return _padded_form(self, padding, mask_key)


def maybe_dense_stack(
    input: Sequence[Any], dim: int = 0, *, out: Any = None, strict: bool = False
) -> Any:
    """Stack tensordicts densely if they have the same keys and shapes, else lazily.

    Args:
        input: tensordicts of one number of batch dimensions.
        dim: the new batch dimension.
        out: a tensordict that is updated in place with the result, and returned.
        strict: with `out`, refuse keys that `out` lacks.

    Raises:
        RuntimeError: if there is nothing to stack.

    Example:
        >>> same, other = TensorDict(a=torch.zeros(3)), TensorDict(b=torch.zeros(3))
        >>> type(maybe_dense_stack([same, same])).__name__
        'TensorDict'
        >>> type(maybe_dense_stack([same, other])).__name__
        'LazyStackedTensorDict'
    """
    tds = list(input)
    if not tds:
        raise RuntimeError("expected at least one tensordict to stack; found none")
    batch_dims = len(tds[0].batch_size)
    place = dim + batch_dims + 1 if dim < 0 else dim
    result = None
    if 0 <= place <= batch_dims and _may_be_dense(tds):
        result = _dense_stack(tds, place)
    if result is None:
        result = _lazy().lazy_stack(tds, dim)
    if out is not None and strict and set(out.keys()) != set(result.keys()):
        raise RuntimeError(
            f"expected out with the keys {list(result.keys())} (strict=True); found "
            f"{list(out.keys())}"
        )
    return result if out is None else deliver(result, out)


def dense_stack_tds(td_list: Any, dim: int | None = None) -> Any:
    """Stack tensordicts, or the elements of a lazy stack, densely where possible.

    Args:
        td_list: tensordicts, or a lazy stack; a dense tensordict is returned as it is.
        dim: the new dimension; for a lazy stack its stack dimension is taken.

    Raises:
        ValueError: if a list is given without `dim`.
    """
    if isinstance(td_list, TensorCollection):
        td: Any = td_list
        if not td._is_stack:
            return td
        td_list, dim = td.tensordicts, td.stack_dim
    elif dim is None:
        raise ValueError("expected a dimension to stack a list of tensordicts along; found None")
    return maybe_dense_stack(td_list, dim)


def _may_be_dense(tds: list[Any]) -> bool:
    """Tell whether tensordicts have the same keys and leaf shapes at their own level."""
    first = tds[0]
    if any(td.batch_size != first.batch_size for td in tds) or -1 in first.batch_size:
        return False
    if all(td._is_stack for td in tds):
        rows = stack_rows(tds)
        return rows is not None and all(_may_be_dense(list(row)) for row in rows)
    for td in tds:
        if td._is_stack and not _may_be_dense(td.tensordicts):
            return False
    entries = [td._entries for td in tds]
    keys = entries[0].keys()
    if any(set(own.keys()) != set(keys) for own in entries):
        return False
    for key in keys:
        values = [own[key] for own in entries]
        if isinstance(values[0], Tensor):
            if not all(isinstance(v, Tensor) and v.shape == values[0].shape for v in values):
                return False
            if any(isinstance(v, LeafKind) != isinstance(values[0], LeafKind) for v in values):
                return False
        elif isinstance(values[0], TensorCollection):
            if not all(isinstance(v, TensorCollection) for v in values):
                return False
            if any(v.batch_dims != values[0].batch_dims for v in values):  # type: ignore[attr-defined]
                return False
        elif any(isinstance(v, (Tensor, TensorCollection)) for v in values):
            return False
    return True


def _dense_stack(tds: list[Any], dim: int) -> Any:
    """Stack tensordicts of which :func:`_may_be_dense` is true."""
    first = tds[0]
    if all(td._is_stack for td in tds):
        place = first.stack_dim
        rows = [_dense_stack(list(row), dim - (dim > place)) for row in stack_rows(tds) or ()]
        return first._like(rows, place + (dim <= place))
    size = first._batch_size
    size = torch.Size((*size[:dim], len(tds), *size[dim:]))
    entries: dict[str, Any] = {}
    for key in first._entries.keys():  # noqa: SIM118  # of any kind
        values = [td._entries[key] for td in tds]
        if isinstance(values[0], Tensor) and not isinstance(values[0], LeafKind):
            entries[key] = torch.stack(values, dim)
        elif isinstance(values[0], TensorCollection):
            entries[key] = maybe_dense_stack(values, dim)
        else:
            entries[key] = join(values, torch.stack, dim)
    return first._from_entries(entries, size, first._device, stacked_names(tds, dim))


# -- without lazy stacks ---------------------------------------------------------------------------


def _holds_stack(td: Any) -> bool:
    if td._is_stack:
        return True
    values = td._entries.values()
    return any(isinstance(v, TensorCollection) and _holds_stack(v) for v in values)


def _densified(td: Any, layout: torch.layout) -> Any:
    if not td._is_stack:
        entries = {
            key: _densified(value, layout) if isinstance(value, TensorCollection) else value
            for key, value in td._entries.items()
        }
        return td._from_entries(entries, td._batch_size, td._device, td._names)
    elements = [_densified(element, layout) for element in td.tensordicts]
    if not elements:
        return td._from_entries({}, td._batch_size, td._device, td._names)
    return _densified_stack(elements, td.stack_dim, td._batch_size, td._device, td._names, layout)


def _densified_stack(
    elements: list[Any], dim: int, size: torch.Size, device: Any, names: Any, layout: torch.layout
) -> Any:
    keys: list[str] = []
    for element in elements:
        keys.extend(key for key in element._entries if key not in keys)
    entries: dict[str, Any] = {}
    for key in keys:
        values = [element._entries.get(key) for element in elements]
        found = [value for value in values if value is not None]
        if isinstance(found[0], TensorCollection):
            model: Any = found[0]
            parts = [model.empty() if value is None else value for value in values]
            inner = torch.Size((*size, *model._batch_size[len(size) - 1 :]))
            entries[key] = _densified_stack(parts, dim, inner, device, None, layout)
        elif isinstance(found[0], Tensor) and not isinstance(found[0], LeafKind):
            entries[key] = _ragged(values, found, dim, layout)
        elif len(found) == len(values):
            entries[key] = join(values, torch.stack, dim)
    return elements[0]._from_entries(entries, size, device, names)


def _ragged(values: list[Any], found: list[Tensor], dim: int, layout: torch.layout) -> Tensor:
    """Stack tensors, of which some may be missing or have other sizes."""
    shape = found[0].shape
    if len(found) == len(values) and all(value.shape == shape for value in found):
        return torch.stack(found, dim)
    if dim != 0:
        raise NotImplementedError(
            f"expected the stack dimension to be the first, to make nested tensors of entries that "
            f"differ; found {dim}: permute the lazy stack first"
        )
    agreed = shape[1:] if all(value.shape[1:] == shape[1:] for value in found) else ()
    empty = found[0].new_empty((0, *agreed)) if shape else found[0].new_empty(0)
    tensors = [empty if value is None else value for value in values]
    return torch.nested.as_nested_tensor(tensors, layout=layout)


def _padded_form(td: Any, padding: float, mask_key: Any) -> Any:
    batch_dims = len(td._batch_size)
    entries: dict[str, Any] = {}
    mask = None
    for key, value in td._entries.items():
        if isinstance(value, Tensor) and value.is_nested:
            entries[key] = torch.nested.to_padded_tensor(value, padding)
            if mask is None and -1 in td._batch_size:
                ones = torch.nested.nested_tensor(
                    [torch.ones_like(piece, dtype=torch.bool) for piece in value.unbind()],
                    layout=value.layout,
                )
                mask = torch.nested.to_padded_tensor(ones, False)
                mask = mask.flatten(batch_dims)[..., 0] if mask.dim() > batch_dims else mask
        elif isinstance(value, TensorCollection):
            entries[key] = _padded_form(value, padding, None)
        else:
            entries[key] = value
    size = td._batch_size
    if -1 in size:
        for value in entries.values():
            if isinstance(value, Tensor):
                size = value.shape[:batch_dims]
                break
    result = td._from_entries(entries, size, td._device, td._names)
    if mask_key is not None:
        if mask is None:
            raise TensorDictShapeError(
                f"expected a ragged batch dimension for a mask; found batch size "
                f"{tuple(td._batch_size)}: leave mask_key out"
            )
        result._set_path(unravel_key_to_tuple(mask_key), mask)
    return result

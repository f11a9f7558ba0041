"""Reductions over batch dimensions, trailing dimensions, whole leaves or whole tensordicts.

Key names: :class:`ReductionOp` (one row), :data:`REDUCTION_OPS` (the table),
:data:`REDUCTION_BY_NAME`, :class:`ReductionsMixin`, :func:`normalise_dims`.

Symbols: ``*B`` batch dimensions, ``*F`` trailing dimensions of a leaf ``(*B, *F)``.

Invariants: ``dim`` counts among the batch dimensions, also when it is negative; a reduced dimension
goes from the batch size, and its name with it; results are new and never locked; non-tensor entries
are carried along.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdcompile.errors import TensorDictIndexError
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.lazy.elements import each_element, element_dims, is_uniform, tensor_leaves
from tdcompile.tensordict.nontensor.unbatched import UnbatchedTensor

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class ReductionOp:
    """One reduction.

    Attributes:
        name: name of the method.
        function: ``function(leaf, dim, keepdim=..., **keywords)``, or ``function(leaf)`` for all.
        keywords: further keyword arguments that `function` takes.
        takes_dims: `function` takes a tuple of dimensions.
        gives_indices: with a dimension, `function` gives a pair of values and indices.
        takes_feature: ``dim="feature"`` reduces the trailing dimensions of each leaf.
        takes_key_transform: the method has ``key_transform=``.
    """

    name: str
    function: Callable[..., Any]
    keywords: tuple[str, ...] = ()
    takes_dims: bool = True
    gives_indices: bool = False
    takes_feature: bool = True
    takes_key_transform: bool = False


REDUCTION_OPS: tuple[ReductionOp, ...] = (
    ReductionOp("sum", torch.sum, ("dtype",), takes_key_transform=True),
    ReductionOp("mean", torch.mean, ("dtype",), takes_key_transform=True),
    ReductionOp("nansum", torch.nansum, ("dtype",)),
    ReductionOp("nanmean", torch.nanmean, ("dtype",)),
    ReductionOp("prod", torch.prod, ("dtype",), takes_dims=False),
    ReductionOp("std", torch.std, ("correction",), takes_key_transform=True),
    ReductionOp("var", torch.var, ("correction",), takes_key_transform=True),
    ReductionOp("amin", torch.amin, takes_feature=False),
    ReductionOp("amax", torch.amax, takes_feature=False),
    ReductionOp("min", torch.min, takes_dims=False, gives_indices=True, takes_feature=False),
    ReductionOp("max", torch.max, takes_dims=False, gives_indices=True, takes_feature=False),
)

REDUCTION_BY_NAME: dict[str, ReductionOp] = {op.name: op for op in REDUCTION_OPS}
"""Method name to row."""

_Dims = tuple[int, ...]


def normalise_dims(dim: int | tuple[int, ...], batch_dims: int) -> _Dims:
    """Turn `dim` into non-negative batch dimensions, in increasing order.

    Raises:
        TensorDictIndexError: if one is outside ``[-batch_dims, batch_dims)``.
    """
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    found: list[int] = []
    for one in dims:
        if not -batch_dims <= one < batch_dims:
            raise TensorDictIndexError(
                f"dim must be in [{-batch_dims}, {batch_dims}) for a tensordict with {batch_dims}"
                f' batch dimensions, got {one}. For trailing dimensions use dim="feature" or'
                " td.apply(...)."
            )
        found.append(one % batch_dims)
    return tuple(sorted(found))


def _without(size: tuple[Any, ...], dims: _Dims, keepdim: bool, one: Any) -> tuple[Any, ...]:
    """Drop the reduced dimensions of a batch size or of names; with keepdim put `one` there."""
    if keepdim:
        return tuple(one if i in dims else value for i, value in enumerate(size))
    return tuple(value for i, value in enumerate(size) if i not in dims)


def _map_leaves(
    td: Any,
    leaf_function: Callable[[Tensor, int, Any], Any],
    shape_function: Callable[[Any, Any], tuple[torch.Size, Any]],
    dims: _Dims | None,
) -> Any:
    """New tensordict of ``leaf_function(leaf, batch_dims, dims)``.

    `shape_function` gives the batch size and the names of the result for a tensordict and `dims`,
    the dimensions that the reduction is about; ``None``: all. A lazy stack whose elements differ
    is reduced element by element, as long as the stack dimension is none of them.
    """
    is_apart = td._is_stack and dims is not None and td.stack_dim not in dims
    if is_apart and not is_uniform(td.tensordicts or [td._template]):
        return _map_elements(td, leaf_function, shape_function, dims or ())
    batch_size, names = shape_function(td, dims)
    batch_dims = len(td._batch_size)
    entries: dict[str, Any] = {}
    for key, value in td._entries.items():
        if isinstance(value, Tensor) and type(value) is not UnbatchedTensor:
            entries[key] = leaf_function(value, batch_dims, dims)
        elif isinstance(value, TensorCollection):
            entries[key] = _map_leaves(value, leaf_function, shape_function, dims)
        else:
            entries[key] = value._reduced(batch_size)
    return td._from_entries(entries, batch_size, td._device, names)


def _map_elements(td: Any, leaf_function: Any, shape_function: Any, dims: _Dims) -> Any:
    own = element_dims(td, dims)
    results = [
        _map_leaves(element, leaf_function, shape_function, own) for element in td.tensordicts
    ]
    place = td.stack_dim
    if len(results[0]._batch_size) + 1 < td.batch_dims:
        place -= sum(dim < place for dim in dims)
    return td._like(results, place)


def _same_shape(td: Any, dims: Any) -> tuple[torch.Size, Any]:
    return td._batch_size, td._names


def _dims_shape(keepdim: bool) -> Callable[[Any, Any], tuple[torch.Size, Any]]:
    def shape(td: Any, dims: Any) -> tuple[torch.Size, Any]:
        names = td._names
        if names is not None:
            # A kept dimension keeps its name.
            names = names if keepdim else _without(names, dims, False, None)
        return torch.Size(_without(td._batch_size, dims, keepdim, 1)), names or None

    return shape


def _whole_shape(keepdim: bool) -> Callable[[Any, Any], tuple[torch.Size, Any]]:
    def shape(td: Any, dims: Any) -> tuple[torch.Size, Any]:
        if keepdim:
            return torch.Size([1] * len(td._batch_size)), td._names
        return torch.Size([]), None

    return shape


def _stacked_leaves(td: Any) -> list[Tensor]:
    """The tensors of a tensordict and of those nested in it, in key order; stacked ones whole."""
    leaves: list[Tensor] = []
    for value in td._entries.values():
        if isinstance(value, Tensor):
            leaves.append(value)
        elif isinstance(value, TensorCollection):
            leaves.extend(_stacked_leaves(value))
    return leaves


def _features(leaf: Tensor, batch_dims: int) -> Tensor:
    """View a leaf ``(*B, *F)`` as ``(*B, N)``."""
    return leaf.flatten(batch_dims) if leaf.ndim > batch_dims else leaf.unsqueeze(-1)


def _joined(op_name: str, td: Any, dim: Any) -> tuple[Tensor, Any]:
    """One tensor of all leaves for ``reduce=True``, and the dimension of it to reduce."""
    leaves = _stacked_leaves(td)
    if not leaves:
        raise ValueError(
            f"{op_name}(reduce=True) needs at least one tensor, this tensordict has none."
        )
    if dim is None:
        return torch.cat([leaf.flatten() for leaf in leaves]), None
    batch_dims = len(td._batch_size)
    if any(type(leaf) is UnbatchedTensor for leaf in leaves):
        raise ValueError(
            f"{op_name}(reduce=True) with a dimension needs leaves with batch dimensions, this"
            " tensordict has an UnbatchedTensor. Exclude its key first."
        )
    if dim == "feature":
        return torch.cat([_features(leaf, batch_dims) for leaf in leaves], -1), batch_dims
    dims = normalise_dims(dim, batch_dims)
    return torch.cat(leaves, dims[0]), dims


def _reduce_dims(
    op: ReductionOp, leaf: Tensor, dims: _Dims, keepdim: bool, kwargs: dict[str, Any]
) -> Any:
    """Reduce `dims` of one tensor."""
    if len(dims) == 1:
        return op.function(leaf, dims[0], keepdim=keepdim, **kwargs)
    if op.takes_dims:
        return op.function(leaf, dims, keepdim=keepdim, **kwargs)
    if op.gives_indices:
        raise TypeError(f"{op.name}() reduces one dimension at a time, got dim={dims}.")
    count = len(dims)
    merged = leaf.movedim(dims, tuple(range(-count, 0))).flatten(-count)
    result = op.function(merged, -1, **kwargs)
    if keepdim:
        # Increasing order, and counted from the left: q of quantile may have put a dim in front.
        offset = result.ndim - (leaf.ndim - count)
        for dim in dims:
            result = result.unsqueeze(dim + offset)
    return result


def _reduce(
    op: ReductionOp, td: Any, dim: Any, keepdim: bool, reduce: bool | None, kwargs: dict[str, Any]
) -> Any:
    """Do one reduction; a ``gives_indices`` row with a dimension gives a named pair."""
    function = op.function
    if isinstance(dim, str) and (dim != "feature" or not op.takes_feature):
        allowed = 'an int, a tuple of ints, "feature"' if op.takes_feature else "an int"
        raise ValueError(f"{op.name}() takes dim as {allowed} or None, got {dim!r}.")
    if reduce:
        joined, dims = _joined(op.name, td, dim)
        if dims is None:
            return function(joined, **kwargs)
        dims = dims if isinstance(dims, tuple) else (dims,)
        return _reduce_dims(op, joined, dims, keepdim, kwargs)
    if dim is None:
        if keepdim and op.gives_indices:
            raise TypeError(f"{op.name}() takes keepdim only together with dim.")

        def whole(leaf: Tensor, batch_dims: int, dims: Any) -> Any:
            result = function(leaf, **kwargs)
            return result.reshape((1,) * leaf.ndim) if keepdim else result

        return _map_leaves(td, whole, _whole_shape(keepdim), None)
    if isinstance(dim, str):

        def features(leaf: Tensor, batch_dims: int, dims: Any) -> Any:
            result = function(_features(leaf, batch_dims), -1, **kwargs)
            if keepdim:
                for _ in range(leaf.ndim - batch_dims):
                    result = result.unsqueeze(-1)
            return result

        return _map_leaves(td, features, _same_shape, ())
    dims = normalise_dims(dim, len(td._batch_size))
    shape = _dims_shape(keepdim)

    def over_dims(leaf: Tensor, batch_dims: int, dims: Any) -> Any:
        return _reduce_dims(op, leaf, dims, keepdim, kwargs)

    if not op.gives_indices:
        return _map_leaves(td, over_dims, shape, dims)
    return _pair(op.name, td, over_dims, shape, dims)


def _pair(
    name: str,
    td: Any,
    leaf_function: Callable[[Tensor, int, Any], Any],
    shape: Callable[[Any, Any], tuple[torch.Size, Any]],
    dims: _Dims,
) -> Any:
    """Map a function that gives values and indices; a named pair of tensordicts."""
    indices: list[Tensor] = []

    def values(leaf: Tensor, batch_dims: int, dims: Any) -> Any:
        pair = leaf_function(leaf, batch_dims, dims)
        indices.append(pair[1])
        return pair[0]

    first = _map_leaves(td, values, shape, dims)
    left = iter(indices)
    second = _map_leaves(td, lambda leaf, batch_dims, dims: next(left), shape, dims)
    return getattr(torch.return_types, name)((first, second))


def _rename(td: Any, key_transform: Callable[[str], str] | None) -> Any:
    """Rename the keys of a result, level by level."""
    if key_transform is None or not isinstance(td, TensorCollection):
        return td
    source: Any = td
    if source._is_stack:
        return each_element(_rename, source, key_transform)
    entries = {key_transform(k): _rename(v, key_transform) for k, v in source._entries.items()}
    return source._from_entries(entries, source._batch_size, source._device, source._names)


def _keywords(op: ReductionOp, kwargs: dict[str, Any]) -> dict[str, Any]:
    for keyword in kwargs:
        if keyword not in op.keywords:
            raise TypeError(
                f"{op.name}() takes the keywords {op.keywords}, got an unexpected {keyword!r}."
            )
    return {keyword: value for keyword, value in kwargs.items() if value is not None}


class ReductionsMixin:
    """Reductions: ``sum``, ``mean``, ``std``, ``amax``, ``all`` ...; most are made from the table.

    Without ``dim`` each leaf is reduced to one number, with ``dim`` over batch dimensions, with
    ``dim="feature"`` over the trailing dimensions; ``reduce=True`` joins all leaves into one tensor
    first (flat, or along ``dim``) and gives a tensor.

    Example:
        >>> td = TensorDict({"a": torch.ones(3, 4)}, [3])
        >>> td.sum(dim=0)["a"]
        tensor([3., 3., 3., 3.])
        >>> td.sum(reduce=True)
        tensor(12.)
    """

    __slots__ = ()

    def all(self, dim: int | None = None) -> Any:
        """Tell whether every element is true: one bool for all leaves, or a tensordict over `dim`.

        Raises:
            IndexError: if `dim` is no batch dimension.
        """
        return _truth(self, torch.all, False, dim)

    def any(self, dim: int | None = None) -> Any:
        """Tell whether some element is true: one bool for all leaves, or a tensordict over `dim`.

        Raises:
            IndexError: if `dim` is no batch dimension.
        """
        return _truth(self, torch.any, True, dim)

    def quantile(
        self,
        q: float | Tensor,
        dim: Any = None,
        keepdim: bool = False,
        *,
        interpolation: str = "linear",
        reduce: bool | None = None,
        key_transform: Callable[[str], str] | None = None,
    ) -> Any:
        """Quantiles as :func:`torch.quantile` gives them.

        Args:
            q: one quantile, or ``(Q,)`` of them; then results have a dimension ``Q`` in front.
            dim: see the class.
            keepdim: keep reduced dimensions with size 1.
            interpolation: see :func:`torch.quantile`.
            reduce: join all leaves first; the result is a tensor.
            key_transform: gives the keys of the result.

        Returns:
            A tensordict; with `dim` and several quantiles its batch size is ``(Q, *B)`` without
            the reduced dimension.
        """

        def function(leaf: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
            return torch.quantile(leaf, q, dim, keepdim, interpolation=interpolation)

        op = ReductionOp("quantile", function, takes_dims=False)
        result = _reduce(op, self, dim, keepdim, reduce, {})
        if isinstance(q, Tensor) and q.ndim > 0 and dim is not None and not reduce:
            result = _lead_with(result, q.shape[0])
        return _rename(result, key_transform)

    def logsumexp(
        self, dim: int | tuple[int, ...] | None = None, keepdim: bool = False, *, out: Any = None
    ) -> Any:
        """Log of the sum of exponentials, over `dim` or over all batch dimensions.

        Raises:
            IndexError: if `dim` is no batch dimension.
        """
        td: Any = self
        batch_dims = len(td._batch_size)
        dims = tuple(range(batch_dims)) if dim is None else normalise_dims(dim, batch_dims)
        result = _map_leaves(
            self,
            lambda leaf, _, dims: torch.logsumexp(leaf, dims, keepdim) if dims else leaf.clone(),
            _dims_shape(keepdim),
            dims,
        )
        if out is None:
            return result
        out.update(result, inplace=True)
        return out

    def softmax(self, dim: int, dtype: torch.dtype | None = None) -> Any:
        """Softmax of each leaf over the batch dimension `dim`.

        Raises:
            IndexError: if `dim` is no batch dimension.
        """
        td: Any = self
        (dim,) = normalise_dims(dim, len(td._batch_size))
        return _map_leaves(
            self,
            lambda leaf, _, dims: torch.softmax(leaf, dims[0], dtype=dtype),
            _same_shape,
            (dim,),
        )

    def norm(
        self,
        *,
        out: Any = None,
        dtype: torch.dtype | None = None,
        key_transform: Callable[[str], str] | None = None,
    ) -> Any:
        """Euclidean norm of each leaf; a tensordict of 0-d tensors with batch size ``()``."""
        result = _map_leaves(
            self,
            lambda leaf, _, dims: torch.linalg.vector_norm(leaf, dtype=dtype),
            _whole_shape(keepdim=False),
            None,
        )
        result = _rename(result, key_transform)
        if out is None:
            return result
        out.update_(result)
        return out

    def cummin(self, dim: int, *, reduce: bool | None = None, return_indices: bool = True) -> Any:
        """Cumulative minimum over the batch dimension `dim`: a pair of values and indices."""
        return _cumulative("cummin", torch.cummin, self, dim, reduce, return_indices)

    def cummax(self, dim: int, *, reduce: bool | None = None, return_indices: bool = True) -> Any:
        """Cumulative maximum over the batch dimension `dim`: a pair of values and indices."""
        return _cumulative("cummax", torch.cummax, self, dim, reduce, return_indices)

    def __bool__(self) -> bool:
        raise RuntimeError(
            "Converting a tensordict to boolean value is not permitted. Write td.is_empty() to ask"
            " for entries, or (a == b).all() to compare."
        )


def _truth(
    td: Any, function: Callable[..., Any], decisive: bool, dim: int | tuple[int, ...] | None
) -> Any:
    """``all`` and ``any``; one `decisive` leaf settles the answer."""
    if dim is not None:
        dims = normalise_dims(dim, len(td._batch_size))
        if not dims:
            raise TensorDictIndexError(
                f"expected at least one dimension to reduce, found dim={dim!r}: leave dim out to"
                " reduce everything to a bool"
            )
        return _map_leaves(td, lambda leaf, _, dims: function(leaf, dims), _dims_shape(False), dims)
    for leaf in tensor_leaves(td):
        found = function(leaf)
        # A branch, not `bool(found) is decisive`: a trace with fullgraph=True answers an identity
        # test of a symbolic bool with False, whatever the tensor holds.
        if found if decisive else not found:
            return decisive
    return not decisive


def _cumulative(
    name: str,
    function: Callable[..., Any],
    td: Any,
    dim: int,
    reduce: bool | None,
    return_indices: bool,
) -> Any:
    (dim,) = normalise_dims(dim, len(td._batch_size))
    if reduce:
        result = function(_joined(name, td, dim)[0], dim)
        return result if return_indices else result[0]
    if not return_indices:
        return _map_leaves(
            td, lambda leaf, _, dims: function(leaf, dims[0])[0], _same_shape, (dim,)
        )
    return _pair(name, td, lambda leaf, _, dims: function(leaf, dims[0]), _same_shape, (dim,))


def _lead_with(td: Any, size: int) -> Any:
    """Give a tensordict whose leaves got a dimension in front the batch size that goes with it."""
    if td._is_stack:
        return each_element(_lead_with, td, size)
    batch_size = torch.Size((size, *td._batch_size))
    entries: dict[str, Any] = {}
    for key, value in td._entries.items():
        if isinstance(value, Tensor) and type(value) is not UnbatchedTensor:
            entries[key] = value
        elif isinstance(value, TensorCollection):
            entries[key] = _lead_with(value, size)
        else:
            entries[key] = value._with_batch_size(batch_size)
    names = None if td._names is None else (None, *td._names)
    return td._from_entries(entries, batch_size, td._device, names)


def _method(op: ReductionOp) -> Callable[..., Any]:
    def method(
        self: Any,
        dim: Any = None,
        keepdim: bool = False,
        *,
        reduce: bool | None = None,
        key_transform: Callable[[str], str] | None = None,
        **kwargs: Any,
    ) -> Any:
        if key_transform is not None and not op.takes_key_transform:
            raise TypeError(f"{op.name}() takes no key_transform.")
        result = _reduce(op, self, dim, keepdim, reduce, _keywords(op, kwargs))
        return result if key_transform is None else _rename(result, key_transform)

    return method


def _method_with_indices(op: ReductionOp) -> Callable[..., Any]:
    def method(
        self: Any,
        dim: Any = None,
        keepdim: bool = False,
        *,
        reduce: bool | None = None,
        return_indices: bool = True,
    ) -> Any:
        result = _reduce(op, self, dim, keepdim, reduce, {})
        if dim is None or return_indices:
            return result
        return result[0]

    return method


def _signature(op: ReductionOp, method: Any) -> inspect.Signature:
    """The parameters of the method of a row, its own keywords by name."""
    given = inspect.signature(method)
    kept = [p for p in given.parameters.values() if p.kind is not p.VAR_KEYWORD]
    if not op.takes_key_transform:
        kept = [p for p in kept if p.name != "key_transform"]
    only = inspect.Parameter.KEYWORD_ONLY
    own = [
        inspect.Parameter(name, only, default=1 if name == "correction" else None)
        for name in op.keywords
    ]
    return given.replace(parameters=[*kept, *own])


def _install(op: ReductionOp) -> None:
    method: Any = _method_with_indices(op) if op.gives_indices else _method(op)
    method.__signature__ = _signature(op, method)
    method.__name__ = op.name
    method.__qualname__ = f"ReductionsMixin.{op.name}"
    method.__doc__ = (
        f"Apply torch.{op.name} to each leaf; see the class for `dim`, `keepdim` and `reduce`."
    )
    setattr(ReductionsMixin, op.name, method)


for _op in REDUCTION_OPS:
    _install(_op)

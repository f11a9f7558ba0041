"""Tensordicts as pytrees: what ``torch.vmap``, ``torch.export`` and ``tree_map`` see.

Key names: :func:`register_pytree`, :class:`TensorDictContext`.

Leaves are the tensors and nested tensordicts, in key order; non-tensor values are in the context.

Invariant: a context holds no tensor and no size that unflattening with the same ranks would look
at, so a tensordict with other sizes (dynamic batch) unflattens without a comparison of sizes.

Note [Batch size of an unflattened tensordict]. Leaves may come back with other shapes than those
that were flattened: ``vmap`` takes one batch dimension off and puts one on, ``tree_map`` may do
anything. The number of batch dimensions is worked out for each leaf from its rank: the same rank
keeps it; a leaf that lost or got *leading* dimensions (its other sizes are those of the old leaf)
loses or gets as many; a leaf that still starts with the old batch size keeps it; else the
difference in rank counts. The smallest result is taken, cut to the leading sizes that all leaves
share.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tdcompile.errors import TensorDictShapeError
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.construct import common_prefix
from tdcompile.tensordict.convert.statedict import StateDict
from tdcompile.tensordict.dense import TensorDict
from tdcompile.tensordict.lazy.stack import LazyStackedTensorDict
from tdcompile.tensordict.nontensor.data import (
    MetaData,
    NonTensorData,
    NonTensorDataBase,
    NonTensorEntry,
)
from tdcompile.tensordict.nontensor.stack import LinkedList, NonTensorStack
from tdcompile.tensordict.nontensor.unbatched import UnbatchedTensor

if TYPE_CHECKING:
    from collections.abc import Iterable

# In a context, stands where a leaf is.
_LEAF = None


class Unbatched(NamedTuple):
    """In a context, stands for the shape of a leaf that has no batch dimensions."""

    ndim: int


class TensorDictContext:
    """What a tensordict is besides its leaves.

    Two contexts are equal if class, keys, number of batch dimensions, names, device and non-tensor
    values are: ``tree_map`` over tensordicts of different sizes is allowed, as for tensors.
    """

    __slots__ = ("batch_size", "cls", "device", "entries", "names", "shapes")

    def __init__(
        self,
        cls: type,
        entries: dict[str, NonTensorEntry | None],
        batch_size: tuple[Any, ...],
        device: torch.device | None,
        names: tuple[str | None, ...] | None,
        shapes: tuple[Any, ...],
    ) -> None:
        self.cls = cls
        self.entries = entries  # key -> non-tensor value, or None for a leaf
        self.batch_size = batch_size
        self.device = device
        self.names = names
        self.shapes = shapes  # of the leaves; None for what is no tensor

    def leaf_keys(self) -> list[str]:
        """Return the keys of the leaves, in order."""
        return [key for key, value in self.entries.items() if value is _LEAF]

    def _identity(self) -> tuple[Any, ...]:
        data = [
            (key, _LEAF if value is _LEAF else (type(value), value._compared()))
            for key, value in self.entries.items()
        ]
        return (self.cls, data, len(self.batch_size), self.device, self.names)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorDictContext):
            return NotImplemented
        return bool(self._identity() == other._identity())

    def __hash__(self) -> int:
        return hash((self.cls, tuple(self.entries), len(self.batch_size), self.device, self.names))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(keys={list(self.entries)}, batch_dims={len(self.batch_size)}, "
            f"device={self.device}, names={self.names})"
        )


def register_pytree(cls: type) -> None:
    """Register a class of dense tensordicts with torch's pytrees, under its qualified name."""
    pytree.register_pytree_node(
        cls,
        _flatten,
        _unflatten,
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
        to_dumpable_context=_to_dumpable,
        from_dumpable_context=_from_dumpable,
        flatten_with_keys_fn=_flatten_with_keys,
    )
    _CLASSES[f"{cls.__module__}.{cls.__qualname__}"] = cls


_CLASSES: dict[str, type] = {}


def _flatten(td: Any) -> tuple[list[Any], TensorDictContext]:
    leaves: list[Any] = []
    shapes: list[Any] = []
    entries: dict[str, NonTensorEntry | None] = {}
    for key, value in td._entries.items():
        if isinstance(value, NonTensorEntry):
            entries[key] = value
        else:
            entries[key] = _LEAF
            leaves.append(value)
            is_unbatched = type(value) is UnbatchedTensor
            shapes.append(Unbatched(value.ndim) if is_unbatched else getattr(value, "shape", None))
    context = TensorDictContext(
        type(td), entries, td._batch_size, td._device, td._names, tuple(shapes)
    )
    return leaves, context


def _flatten_with_keys(td: Any) -> tuple[list[tuple[Any, Any]], TensorDictContext]:
    leaves, context = _flatten(td)
    paths: list[Any] = [pytree.MappingKey(key) for key in context.leaf_keys()]
    return list(zip(paths, leaves, strict=True)), context


def _unflatten(leaves: Iterable[Any], context: TensorDictContext) -> Any:
    values = list(leaves)
    batch_size, names = _new_batch(values, context)
    device = context.device
    for value in values:
        if device is not None and getattr(value, "device", device) != device:
            device = None
    remaining = iter(zip(values, context.shapes or (None,) * len(values), strict=True))
    entries: dict[str, Any] = {}
    for key, value in context.entries.items():
        if value is _LEAF:
            entries[key] = _leaf(*next(remaining), batch_size, len(context.batch_size))
        else:
            entries[key] = _restored(value, batch_size)
    cls: Any = context.cls
    schema = getattr(cls, "__tensorclass_schema__", None)
    runs_post_init = schema is not None and schema.runs_post_init
    if not runs_post_init or all(isinstance(v, (Tensor, TensorCollection)) for v in values):
        return cls._from_entries(entries, batch_size, device, names)
    # Placeholders, such as the dimensions that vmap maps over, are nothing for a ``__post_init__``.
    make: Any = TensorDict._from_entries
    return make.__func__(cls, entries, batch_size, device, names)


def _leaf(value: Any, shape: Any, batch_size: torch.Size, batch_dims: int) -> Any:
    if not isinstance(shape, Unbatched) or not isinstance(value, Tensor):
        return value
    if value.ndim == shape.ndim - 1 and len(batch_size) < batch_dims:
        raise TensorDictShapeError(
            "expected an UnbatchedTensor to keep its dimensions where a batch loses one, as under "
            f"vmap, found {value.ndim} of {shape.ndim}: leave the entry out of what is mapped, and "
            "put it in again inside"
        )
    return UnbatchedTensor(value, batch_size)


def _restored(value: NonTensorEntry, batch_size: torch.Size) -> NonTensorEntry:
    if isinstance(value, NonTensorDataBase):
        # Made anew: comparing the sizes would make a dynamic batch a constant.
        return value._new(batch_size)
    if value._batch_size[: len(batch_size)] != batch_size:
        raise TensorDictShapeError(
            f"expected leaves of the batch size {tuple(value._batch_size)} of a NonTensorStack, "
            f"found {tuple(batch_size)}: exclude the key first, no leaf says which values remain"
        )
    carried: NonTensorEntry = value._carried()
    return carried


def _new_batch(
    values: list[Any], context: TensorDictContext
) -> tuple[torch.Size, tuple[str | None, ...] | None]:
    """Return batch size and names for new leaves, see Note [Batch size of ...]."""
    old = context.batch_size
    names = context.names
    sized: list[tuple[torch.Size, Any]] = [
        (value.shape, shape)  # type: ignore[union-attr]  # tensordicts of every kind have one
        for value, shape in zip(values, context.shapes or (None,) * len(values), strict=True)
        if isinstance(value, (Tensor, TensorCollection)) and not isinstance(shape, Unbatched)
    ]
    if not sized:
        # No leaves at all, or placeholders such as the None that vmap flattens in_dims with.
        return torch.Size(old), names
    ndim = len(old)
    leading = 0
    for index, (new, shape) in enumerate(sized):
        wanted, added = _batch_dims(new, shape, old)
        if index == 0 or wanted < ndim:
            ndim, leading = wanted, added
    ndim = min(ndim, *(len(new) for new, _ in sized)) if len(sized) > 1 else ndim
    size = sized[0][0][:ndim]
    for new, _ in sized[1:]:
        size = common_prefix(size, new[:ndim])
    if names is not None:
        names = (None,) * leading + names if leading > 0 else names[-leading:]
        names = (*names, *(None,) * len(size))[: len(size)]
        if all(name is None for name in names):
            names = None
    return size, names


def _batch_dims(new: torch.Size, shape: Any, old: tuple[Any, ...]) -> tuple[int, int]:
    """Return for one leaf the number of batch dimensions and how many were put in front."""
    ndim = len(old)
    if shape is None or len(new) == len(shape):
        return min(ndim, len(new)), 0
    added = len(new) - len(shape)
    in_front = new[added:] == shape if added > 0 else new == shape[-added:]
    if not in_front and new[:ndim] == torch.Size(old):
        return ndim, 0
    return min(max(ndim + added, 0), len(new)), added


def _to_dumpable(context: TensorDictContext) -> dict[str, Any]:
    """Return the context as JSON; sizes are left out where there are leaves to read them off."""
    unbatched = {
        key: shape.ndim
        for key, shape in zip(context.leaf_keys(), context.shapes, strict=False)
        if isinstance(shape, Unbatched)
    }
    has_leaves = any(v is _LEAF and key not in unbatched for key, v in context.entries.items())
    return {
        "class": f"{context.cls.__module__}.{context.cls.__qualname__}",
        "keys": list(context.entries),
        "non_tensor": {
            key: [type(value).__name__, list(value._batch_size), value._compared()]
            for key, value in context.entries.items()
            if value is not _LEAF
        },
        "unbatched": unbatched,
        "batch_dims": len(context.batch_size),
        "batch_size": None if has_leaves else [int(size) for size in context.batch_size],
        "device": None if context.device is None else str(context.device),
        "names": None if context.names is None else list(context.names),
    }


def _from_dumpable(dumped: dict[str, Any]) -> TensorDictContext:
    size = dumped["batch_size"]
    batch_size = (0,) * dumped["batch_dims"] if size is None else tuple(size)
    data = dumped["non_tensor"]
    entries = {
        key: _from_dumped(batch_size, *data[key]) if key in data else _LEAF
        for key in dumped["keys"]
    }
    device, unbatched = dumped["device"], dumped["unbatched"]
    keys = [key for key, value in entries.items() if value is _LEAF]
    return TensorDictContext(
        _CLASSES[dumped["class"]],
        entries,
        batch_size,
        None if device is None else torch.device(device),
        None if dumped["names"] is None else tuple(dumped["names"]),
        tuple([Unbatched(unbatched[key]) if key in unbatched else None for key in keys]),
    )


def _from_dumped(batch_size: Any, kind: str, own_size: Any, data: Any) -> NonTensorEntry:
    if kind == "NonTensorStack":
        return NonTensorStack._of(data, torch.Size(own_size))
    return MetaData(data, batch_size) if kind == "MetaData" else NonTensorData(data, batch_size)


# -- lazy stacks -----------------------------------------------------------------------------------


class LazyStackContext(NamedTuple):
    """What a lazy stack is besides its elements, which are its children."""

    cls: type
    stack_dim: int
    dim_name: str | None
    element_dims: int  # number of batch dimensions of an element


def register_lazy_pytree(cls: type) -> None:
    """Register a class of lazy stacks with torch's pytrees: the children are the elements."""
    name = f"{cls.__module__}.{cls.__qualname__}"
    pytree.register_pytree_node(
        cls,
        _flatten_stack,
        _unflatten_stack,
        serialized_type_name=name,
        to_dumpable_context=lambda context: {**context._asdict(), "cls": name},
        from_dumpable_context=lambda dumped: LazyStackContext(
            **{**dumped, "cls": _CLASSES[dumped["cls"]]}
        ),
        flatten_with_keys_fn=_flatten_stack_with_keys,
    )
    _CLASSES[name] = cls


def _flatten_stack(stack: Any) -> tuple[list[Any], LazyStackContext]:
    dims = len(stack._first()._batch_size)
    context = LazyStackContext(type(stack), stack.stack_dim, stack._dim_name, dims)
    return list(stack.tensordicts), context


def _flatten_stack_with_keys(stack: Any) -> tuple[list[tuple[Any, Any]], LazyStackContext]:
    elements, context = _flatten_stack(stack)
    return [(pytree.SequenceKey(i), element) for i, element in enumerate(elements)], context


def _unflatten_stack(elements: Iterable[Any], context: LazyStackContext) -> Any:
    elements = list(elements)
    for element in elements:
        if isinstance(element, TensorCollection):
            dims = len(element._batch_size)  # type: ignore[attr-defined]
            if dims != context.element_dims:
                # Which dimension went or came decides what becomes of the stack dimension, and a
                # function over leaves (vmap, say) does not tell.
                raise TensorDictShapeError(
                    f"expected elements with {context.element_dims} batch dimensions to make the "
                    f"lazy stack anew; found {dims}: make the stack dense first (to_tensordict())"
                )
    cls: Any = context.cls
    size = torch.Size([0] * context.element_dims)
    model = cls(stack_dim=context.stack_dim, batch_size=size, stack_dim_name=context.dim_name)
    return model._like(elements)


register_pytree(TensorDict)
# As an OrderedDict, which a state dict is but for its metadata.
pytree.register_pytree_node(
    StateDict,
    lambda state: (list(state.values()), list(state)),
    lambda leaves, keys: collections.OrderedDict(zip(keys, leaves, strict=True)),
    serialized_type_name=f"{StateDict.__module__}.{StateDict.__qualname__}",
)
register_lazy_pytree(LazyStackedTensorDict)
# What reading a stack of values gives. Mapped over, it is a list that writes nothing back.
pytree.register_pytree_node(
    LinkedList,
    lambda values: (list(values), None),
    lambda values, _: list(values),
    serialized_type_name=f"{LinkedList.__module__}.{LinkedList.__qualname__}",
)

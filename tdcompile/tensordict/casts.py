"""What a tensorclass stores for a value: conversions by option and by annotation.

Key names: :func:`convert`, :func:`hint_class` (what a field is annotated with),
:func:`require_tensor_hints`.

Invariant: the result is a tensor, a tensordict or a ``NonTensorData``, or something that
``_to_entry`` turns into a tensor.
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tdcompile.tensordict.classes.fields import resolve_hints
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.dense import TensorDict
from tdcompile.tensordict.nontensor.data import LeafKind, NonTensorData, NonTensorEntry

_NUMBERS = (bool, int, float)
_UNIONS = (typing.Union, types.UnionType)
_SAYS_NOTHING: tuple[Any, ...] = (object, Any, type(None))


def convert(td: Any, name: str, value: Any, keeps_mapping: bool = False) -> Any:
    """Return `value` as the class of `td` wants it in the field `name`.

    Args:
        td: an instance of a tensorclass.
        name: a field, or a key below one.
        value: any value.
        keeps_mapping: a mapping stays what it is unless the annotation asks for a tensordict.
    """
    is_field = name in td.__tensorclass_schema__.known
    if td._autocast and is_field:
        value = _autocast(td, name, value)
    if _is_entry(value):
        return value
    if isinstance(value, Mapping):
        if td._tensor_only:
            keeps_mapping = type(value) is not dict and not (
                is_field and hint_class(type(td), name)[1]
            )
        return NonTensorData(value, td._batch_size) if keeps_mapping else value
    if td._tensor_only or (isinstance(value, list) and not td._autocast):
        return value
    if not td._nocast and (type(value) in _NUMBERS or _is_number_array(value)):
        return value
    return NonTensorData(value, td._batch_size)


def _is_entry(value: Any) -> bool:
    return isinstance(value, (Tensor, TensorCollection, LeafKind))


def _is_number_array(value: Any) -> bool:
    kind = type(value)
    return kind.__module__ == "numpy" and kind.__name__ == "ndarray" and value.dtype.kind in "biufc"


def _autocast(td: Any, name: str, value: Any) -> Any:
    kind = hint_class(type(td), name)[0]
    if kind is None or value is None or (isinstance(value, kind) and _is_entry(value)):
        return value
    if issubclass(kind, Tensor):
        return _as_tensor(value, name)
    if issubclass(kind, LeafKind):
        return kind(value, td._batch_size)
    if _is_collection(kind):
        return _as_collection(td, kind, name, value)
    if type(value) is dict or (isinstance(value, kind) and type(value) is not bool):
        return NonTensorData(value, td._batch_size)
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        module = sys.modules["numpy"]
        return NonTensorData(module.asarray(value), td._batch_size)
    return NonTensorData(kind(value), td._batch_size)


def _as_tensor(value: Any, name: str) -> Any:
    if isinstance(value, (dict, TensorCollection)):
        return value
    if isinstance(value, NonTensorEntry):
        value = value.tolist() if hasattr(value, "stack_dim") else value.data
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"expected a value for the field {name!r} that torch makes a tensor of, found "
            f"{type(value).__name__}: {error}"
        ) from error


def _as_collection(td: Any, kind: Any, name: str, value: Any) -> Any:
    if isinstance(value, TensorCollection):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(
            f"expected a mapping or a {kind.__name__} for the field {name!r}, found "
            f"{type(value).__name__}"
        )
    if getattr(kind, "__tensorclass_schema__", None) is not None:
        return kind.from_dict(value, batch_size=td._batch_size, device=td._device)
    return TensorDict(value, batch_size=td._batch_size, device=td._device)


def _is_collection(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, TensorCollection)


def hint_class(cls: Any, name: str) -> tuple[Any, bool]:
    """Return the class that a field is annotated with, and whether it may hold a tensordict.

    The class is ``None`` for a union, for ``Any`` and the like; a union may hold a tensordict if
    one of its parts is a tensordict type.
    """
    schema = cls.__tensorclass_schema__
    # With a prefix: every class has attributes of its own, such as ``mro``.
    attribute = f"of_{name}"
    if not hasattr(schema.kinds, attribute):
        hint = cls.__tensorclass_schema__.hints.get(name)
        if isinstance(hint, str):
            # What was not there at the class statement may be by now.
            hint = resolve_hints(cls, {name: hint}, {})[name]
        if isinstance(hint, str):
            return None, False
        kind, may_be_collection = _read_hint(hint)
        setattr(schema.kinds, attribute, kind)
        if may_be_collection:
            schema.collections |= {name}
    return getattr(schema.kinds, attribute), name in schema.collections


def _read_hint(hint: Any) -> tuple[Any, bool]:
    origin = typing.get_origin(hint)
    if origin in _UNIONS:
        return None, any(_read_hint(part)[1] for part in typing.get_args(hint))
    kind = hint if origin is None else origin
    if not isinstance(kind, type) or kind in _SAYS_NOTHING:
        return None, False
    return kind, _is_collection(kind)


def require_tensor_hints(cls: Any) -> None:
    """Raise unless every part of each annotation is a tensor or tensordict type.

    Raises:
        TypeError: if one is not.
    """
    for name, hint in cls.__tensorclass_schema__.hints.items():
        if not _is_tensor_hint(hint):
            raise TypeError(
                "tensor_only requires types to be Tensor, Tensor-subtypes or None: expected such "
                f"for the field {name!r} of {cls.__name__}, found {hint!r}"
            )


def _is_tensor_hint(hint: Any) -> bool:
    if hint is None or hint is type(None) or isinstance(hint, (str, typing.ForwardRef)):
        return True  # what is not known yet is taken on trust
    origin = typing.get_origin(hint)
    if origin in _UNIONS:
        return all(_is_tensor_hint(part) for part in typing.get_args(hint))
    kind = hint if origin is None else origin
    if isinstance(kind, type(torch.IntTensor)):
        return True  # torch.IntTensor and its like are no classes of tensors, but mean them
    return isinstance(kind, type) and issubclass(kind, (Tensor, TensorCollection, LeafKind))

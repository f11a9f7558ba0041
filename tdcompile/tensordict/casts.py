"""What a tensorclass stores for a value: conversions by option and by annotation.

Key names: :func:`convert`, :func:`hint_class` (the class that a field is annotated with).

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

from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.dense import TensorDict
from tdcompile.tensordict.nontensor import NonTensorData

_NUMBERS = (bool, int, float)


def convert(td: Any, name: str, value: Any, keeps_mapping: bool = False) -> Any:
    """Return `value` as the class of `td` wants it in the field `name`.

    Args:
        td: an instance of a tensorclass.
        name: a field, or a key below one.
        value: any value.
        keeps_mapping: a mapping stays what it is unless the annotation asks for a tensordict.
    """
    schema = td.__tensorclass_schema__
    if td._autocast and name in schema.known:
        value = _autocast(td, schema, name, value)
    if isinstance(value, (Tensor, TensorCollection, NonTensorData)):
        return value
    if isinstance(value, Mapping):
        if td._tensor_only:
            kind = hint_class(schema, type(td), name) if name in schema.known else None
            keeps_mapping = type(value) is not dict and not _is_collection(kind)
        return NonTensorData(value, td._batch_size) if keeps_mapping else value
    if td._tensor_only or (isinstance(value, list) and not td._autocast):
        return value
    if not td._nocast and (type(value) in _NUMBERS or _is_number_array(value)):
        return value
    return NonTensorData(value, td._batch_size)


def _is_number_array(value: Any) -> bool:
    kind = type(value)
    return kind.__module__ == "numpy" and kind.__name__ == "ndarray" and value.dtype.kind in "biufc"


def _autocast(td: Any, schema: Any, name: str, value: Any) -> Any:
    kind = hint_class(schema, type(td), name)
    if kind is None or value is None or isinstance(value, kind):
        return value
    if issubclass(kind, Tensor):
        return _as_tensor(value, name)
    if issubclass(kind, NonTensorData):
        return NonTensorData(value, td._batch_size)
    if _is_collection(kind):
        return _as_collection(td, kind, name, value)
    if type(value) is dict:
        return NonTensorData(value, td._batch_size)
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        module = sys.modules["numpy"]
        return NonTensorData(module.asarray(value), td._batch_size)
    return NonTensorData(kind(value), td._batch_size)


def _as_tensor(value: Any, name: str) -> Any:
    if isinstance(value, (dict, TensorCollection)):
        return value
    if isinstance(value, NonTensorData):
        value = value.data
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


def hint_class(schema: Any, cls: Any, name: str, must_be_tensor: bool = False) -> Any:
    """Return the class that a field is annotated with; ``None`` for a union, ``Any`` and the like.

    Args:
        schema: the schema of `cls`.
        cls: a tensorclass.
        name: a field.
        must_be_tensor: raise unless every part of the annotation is a tensor or tensordict type.

    Raises:
        TypeError: if `must_be_tensor` and it is not.
    """
    hint = schema.hints.get(name)
    if isinstance(hint, str):
        # What was not there at the class statement may be by now.
        module = sys.modules.get(cls.__module__)
        try:
            hint = eval(hint, getattr(module, "__dict__", {}), {cls.__name__: cls})
        except Exception:
            hint = None
        else:
            schema.hints[name] = hint
    if must_be_tensor and not _is_tensor_hint(hint):
        raise TypeError(
            f"tensor_only requires tensor or tensordict types, found {schema.hints.get(name)!r} "
            f"for the field {name!r} of {cls.__name__}"
        )
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return None
    kind = hint if origin is None else origin
    return (
        kind if isinstance(kind, type) and kind is not type(None) and kind is not object else None
    )


def _is_tensor_hint(hint: Any) -> bool:
    if hint is None or hint is type(None) or isinstance(hint, typing.ForwardRef):
        return True
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return all(_is_tensor_hint(part) for part in typing.get_args(hint))
    kind = hint if origin is None else origin
    if isinstance(kind, type(torch.IntTensor)):
        return True  # torch.IntTensor and its like are no classes of tensors, but mean them
    return isinstance(kind, type) and issubclass(kind, (Tensor, TensorCollection, NonTensorData))

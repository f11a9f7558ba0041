"""Calls and properties of a tensordict that the trackers answer without tracing our Python.

Key names: :data:`METHODS` (method name -> handler), :data:`PROPERTIES` (property -> handler); both
are tables of ``variables.tensordict`` that this module fills.

Invariant: a handler gives exactly what tracing the eager method gives, or answers None and leaves
the call to it. Handlers exist for speed of tracing and for fewer guards, not for behaviour.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from tdcompile._compat import dynamo as seam
from tdcompile.tensordict.leafwise import LEAFWISE_BY_NAME
from tdcompile.variables import collectives, leafwise, locks
from tdcompile.variables.breaks import break_graph
from tdcompile.variables.copies import shallow_copy
from tdcompile.variables.tensordict import CLASS_METHODS, METHODS, PROPERTIES, TensorDictVariable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["METHODS", "PROPERTIES", "key_path"]


def _leafwise(
    name: str, td: TensorDictVariable, tx: Any, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    return leafwise.method(td, tx, name, args, kwargs)


def _getitem(td: TensorDictVariable, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``td["a"]`` and ``td["n", "x"]`` where the entry is a tensor or a tensordict.

    Guards: the presence of each key on the path, nothing beside it.
    """
    if kwargs or len(args) != 1:
        return None
    path = key_path(args[0])
    return None if path is None else _entry(td, path)


def _entry(td: TensorDictVariable, path: tuple[str, ...]) -> Any:
    for depth, key in enumerate(path):
        found = td.storage.get(key)
        if found is None:
            return None
        is_last = depth == len(path) - 1
        if leafwise.entry_kind(td, found) not in (
            ("tensor", "tensordict") if is_last else ("tensordict",)
        ):
            return None
        if is_last:
            return found.realize()
        td = found.realize()  # type: ignore[assignment]
    return None


def key_path(vt: Any) -> tuple[str, ...] | None:
    """A constant key path, or None for any other index."""
    vt = vt.realize()
    if not vt.is_python_constant():
        return None
    value = vt.as_python_constant()
    if type(value) is str:
        return (value,)
    if type(value) is tuple and value and all(type(key) is str for key in value):
        return value
    return None


def _get(td: TensorDictVariable, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``td.get(key)`` where the entry is there; a missing one is the eager method's business."""
    if kwargs.keys() - {"default"} or not 1 <= len(args) <= 2:
        return None
    path = key_path(args[0])
    return None if path is None else _entry(td, path)


def _clone(td: TensorDictVariable, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``td.clone(recurse=False)``: the rest stays symbolic. Guards: none."""
    given = [*args, *kwargs.values()]
    if kwargs.keys() - {"recurse"} or len(given) != 1 or not given[0].is_constant_match(False):
        return None
    return shallow_copy(td)


def _copy(td: TensorDictVariable, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``td.copy()``, the same as ``td.clone(recurse=False)``."""
    return None if args or kwargs else shallow_copy(td)


def _torch_function(
    td: TensorDictVariable, tx: Any, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """``torch.mul(td, 2)``: the torch function and its arguments."""
    return leafwise.torch_function(tx, args[0], args[1:], kwargs)


# What has to do with the memory of leaves, not with their values.
_MEMORY_OF_CLASS = ("from_consolidated", "load", "load_memmap")
_MEMORY = (
    "consolidate",
    "data_ptr",
    "dumps",
    "is_consolidated",
    "is_memmap",
    "is_shared",
    "load_",
    "load_memmap_",
    "make_memmap",
    "make_memmap_from_storage",
    "make_memmap_from_tensor",
    "memmap",
    "memmap_",
    "memmap_like",
    "memmap_refresh_",
    "save",
    "share_memory_",
)


def _memory(
    name: str, td: TensorDictVariable, tx: Any, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    """``td.memmap()`` and its like: the graph breaks at this call."""
    break_graph("tdcompile: memory of a tensordict", f"td.{name}")


def _memory_of_class(name: str, cls: Any, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``TensorDict.load_memmap(prefix)`` and its like: the graph breaks at this call."""
    break_graph("tdcompile: memory of a tensordict", f"{cls.value.__name__}.{name}()")


METHODS.update({name: functools.partial(_memory, name) for name in _MEMORY})
CLASS_METHODS.update({name: functools.partial(_memory_of_class, name) for name in _MEMORY_OF_CLASS})
METHODS.update({name: functools.partial(_leafwise, name) for name in LEAFWISE_BY_NAME})
METHODS.update(
    {
        "__getitem__": _getitem,
        "__torch_function__": _torch_function,
        "all_reduce": collectives.all_reduce,
        "clone": _clone,
        "copy": _copy,
        "get": _get,
        "lock_": locks.lock,
        "unlock_": locks.unlock,
    }
)


def _field(name: str) -> Callable[[TensorDictVariable, Any], seam.VariableTracker]:
    return lambda td, tx: td.read_field(tx, name)


PROPERTIES.update(
    {
        "batch_size": _field("batch_size"),
        "shape": _field("batch_size"),
        "device": _field("device"),
        "is_locked": _field("is_locked"),
        "batch_dims": lambda td, tx: seam.constant(td.batch_dims(tx)),
        "ndim": lambda td, tx: seam.constant(td.batch_dims(tx)),
        "saved_path": lambda td, tx: _memory("saved_path", td, tx, [], {}),
    }
)

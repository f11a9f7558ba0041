"""``TensorCollection``: the base that tells a tensordict of any kind from a leaf.

Key names: :class:`TensorCollection`, :func:`is_tensor_collection`, :func:`default_is_leaf`,
:func:`is_leaf_nontensor`.

Invariant: a value is a tensordict (of any kind) exactly if it is a ``TensorCollection``.
"""

from __future__ import annotations

from types import GenericAlias
from typing import TYPE_CHECKING, Any

from tdcompile.tensordict.nontensor.data import NonTensorEntry


class TensorCollection:
    """Base of everything that maps keys to tensors: dense, lazy stacks, tensorclasses."""

    __slots__ = ()

    # A sequence of rows can be iterated over in one direction only, as a mapping.
    __reversed__ = None
    __class_getitem__: Any = classmethod(GenericAlias)
    # A lazy stack keeps tensordicts, and no entries of its own; see elements.py.
    _is_stack = False

    if TYPE_CHECKING:
        # What every kind has.
        clone: Any
        copy: Any
        items: Any


def is_tensor_collection(datatype: Any) -> bool:
    """Tell whether `datatype` (an instance or a class) is something to walk into.

    That is a tensordict of any kind, or a non-tensor entry: it has no keys.
    """
    cls = datatype if isinstance(datatype, type) else type(datatype)
    return issubclass(cls, (TensorCollection, NonTensorEntry))


def default_is_leaf(cls: type) -> bool:
    """Tell whether entries of class `cls` are leaves: everything but tensordicts and non-tensors.

    It is what ``keys(include_nested=True, leaves_only=True)`` uses.
    """
    return not issubclass(cls, (TensorCollection, NonTensorEntry))


def is_leaf_nontensor(cls: type) -> bool:
    """Tell whether entries of class `cls` are leaves, non-tensor values included."""
    return not issubclass(cls, TensorCollection)

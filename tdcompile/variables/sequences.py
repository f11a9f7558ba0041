"""Torch functions over a tuple of tensordicts, such as ``torch.stack((td, other))``.

Key names: :func:`flatten_arguments` (makes the replacement of Dynamo's flattening).

Dynamo looks for ``__torch_function__`` among the items of lists and dictionaries, and not among
those of tuples: a call with a tuple would go to the graph as it is.

Invariant: arguments without a tensordict are flattened as before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdcompile._compat import dynamo as seam
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.variables.tensordict import TensorDictVariable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["flatten_arguments"]


def flatten_arguments(original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Make the replacement of the function that lists all arguments of a torch function."""

    def replacement(arguments: Any) -> list[Any]:
        found: list[Any] = []
        for vt in original(arguments):
            items = _items(vt)
            if any(_is_tensordict(item) for item in items):
                found.extend(replacement(items))
            else:
                found.append(vt)
        return found

    return replacement


def _items(vt: Any) -> list[Any]:
    """The items of a tuple that was looked at; none of anything else."""
    if isinstance(vt, seam.LazyVariableTracker):
        if not vt.is_realized():
            return []
        vt = vt.realize()
    return list(vt.items) if isinstance(vt, seam.TupleVariable) else []


def _is_tensordict(vt: Any) -> bool:
    if isinstance(vt, seam.LazyVariableTracker):
        if not vt.is_realized():
            return issubclass(vt.peek_type(), TensorCollection)
        vt = vt.realize()
    if isinstance(vt, TensorDictVariable):
        return True
    return isinstance(vt, seam.UserDefinedObjectVariable) and issubclass(
        vt.python_type(), TensorCollection
    )

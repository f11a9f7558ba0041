"""Making a tensordict from its parts in one call: what a compiled frame runs for each result.

Key names: :data:`rebuild_tensordict`, :func:`rebuilder` (the same for another class),
:func:`shallow_entries`, :func:`may_unlock`.

Invariant: the parts come from a trace that checked them, so nothing is checked again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.dense import TensorDict
from tdcompile.tensordict.locking import foreign_holder
from tdcompile.tensordict.nontensor.data import NonTensorEntry

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["may_unlock", "rebuild_tensordict", "rebuilder", "shallow_entries"]

_new = object.__new__


def rebuilder(cls: type) -> Callable[..., Any]:
    """Make the function that builds a tensordict of class `cls`, which has the dense state.

    Its arguments:
        entries: leaves ``(*B, *F)``, nested tensordicts and non-tensor data; owned by the result.
        batch_size: ``(*B,)``.
        device: device of the result, or None.
        names: one a batch dimension, or None.
        is_locked: lock the result, and with it the tensordicts that it holds.

    It returns a new tensordict; its leaves are those of `entries`, not copies.
    """

    def rebuild(
        entries: dict[str, Any],
        batch_size: torch.Size,
        device: torch.device | None,
        names: tuple[str | None, ...] | None,
        is_locked: bool,
    ) -> Any:
        td: Any = _new(cls)
        td._entries = entries
        td._batch_size = batch_size
        td._device = device
        td._names = names
        td._is_locked = False
        if is_locked:
            td.lock_()
        return td

    return rebuild


rebuild_tensordict = rebuilder(TensorDict)
# A compiled frame imports it by this name.
rebuild_tensordict.__qualname__ = rebuild_tensordict.__name__ = "rebuild_tensordict"


def shallow_entries(
    entries: dict[str, Any],
    originals: tuple[TensorDict, ...] = (),
    templates: tuple[TensorDict, ...] = (),
) -> dict[str, Any]:
    """Copy a dictionary of entries as ``clone(recurse=False)`` does.

    Args:
        entries: leaves and nested tensordicts.
        originals: tensordicts that are to be copied from other ones, at every depth.
        templates: these other ones, in the same order.

    Returns:
        A new dictionary in the same order: the same leaves, shallow copies of nested tensordicts.
    """
    result: dict[str, Any] = {}
    for key, value in entries.items():
        if isinstance(value, TensorCollection):
            value = _copied(value, originals, templates)
        elif isinstance(value, NonTensorEntry):
            value = value._carried()
        result[key] = value
    return result


def _copied(td: Any, originals: tuple[TensorDict, ...], templates: tuple[TensorDict, ...]) -> Any:
    for original, template in zip(originals, templates, strict=True):
        if td is original:
            return template.clone(False)
    if td._is_stack:
        return td._like([_copied(element, originals, templates) for element in td.tensordicts])
    if isinstance(td, torch.nn.Module):
        copied: Any = td
        return copied.clone(False)
    entries = shallow_entries(td._entries, originals, templates)
    return td._from_entries(entries, td._batch_size, td._device, td._names)


def may_unlock(td: TensorDict) -> bool:
    """Tell whether ``td.unlock_()`` is allowed: nothing locked outside holds its tree."""
    return foreign_holder(td) is None

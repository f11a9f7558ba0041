"""``with td.unlock_():`` in a trace: the tensordict's own ``__enter__`` and ``__exit__``.

Key names: :class:`TensorDictContextVariable`, :func:`setup_with` (makes the replacement of a
method).

Invariant: a block is undone as in eager code, also after an exception that the program catches. A
graph break inside a block moves the break in front of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdcompile._compat import dynamo as seam
from tdcompile.variables.tensordict import TensorDictVariable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TensorDictContextVariable", "setup_with"]


class TensorDictContextVariable(seam.GenericContextWrappingVariable):
    """A tensordict after ``with``."""

    def __init__(self, td: TensorDictVariable, **kwargs: Any) -> None:
        kwargs.pop("cm_obj", None)
        value: Any = td.value
        super().__init__(value, **kwargs)
        self.td = td

    def enter(self, tx: Any) -> seam.VariableTracker:
        return self.td.call_method(tx, "__enter__", [], {})

    def exit(self, tx: Any, *args: seam.VariableTracker) -> seam.VariableTracker:
        result = self.td.call_method(tx, "__exit__", list(args), {})
        tx.active_generic_context_managers.pop()
        return result


def setup_with(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make the replacement of the translator's ``with`` instruction."""

    def replacement(translator: Any, *args: Any, **kwargs: Any) -> Any:
        manager = translator.stack[-1].realize()
        if isinstance(manager, TensorDictVariable) and manager.layout.is_trusted:
            translator.stack[-1] = TensorDictContextVariable(manager)
        return original(translator, *args, **kwargs)

    return replacement

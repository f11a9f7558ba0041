"""Callables that a trace meets: a bound method of a tracked object, and a native function.

Key names: :class:`BoundCallVariable`, :class:`NativeCallVariable`.

Invariant: reading a method installs no guard; our classes are constants by contract.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from tdcompile._compat import dynamo as seam

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BoundCallVariable", "NativeCallVariable"]


class BoundCallVariable(seam.VariableTracker):
    """``obj.name`` where ``name`` is a method: calling it calls ``obj.call_method``."""

    _nonvar_fields = {"name", *seam.VariableTracker._nonvar_fields}  # noqa: RUF012

    def __init__(self, obj: seam.VariableTracker, name: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.obj = obj
        self.name = name

    def python_type(self) -> type:
        return types.MethodType

    def call_function(
        self, tx: Any, args: list[seam.VariableTracker], kwargs: dict[str, seam.VariableTracker]
    ) -> seam.VariableTracker:
        return self.obj.call_method(tx, self.name, list(args), kwargs)

    def reconstruct(self, codegen: seam.PyCodegen) -> None:
        codegen(self.obj)
        codegen.append_output(codegen.create_load_attr(self.name))
        codegen.clear_tos()


class NativeCallVariable(seam.VariableTracker):
    """A callable whose calls a Python function of ours answers on trackers.

    It never leaves the graph: it stands for a classmethod that the trackers handle themselves.
    """

    _nonvar_fields = {"function", *seam.VariableTracker._nonvar_fields}  # noqa: RUF012

    def __init__(self, function: Callable[..., seam.VariableTracker], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.function = function

    def call_function(
        self, tx: Any, args: list[seam.VariableTracker], kwargs: dict[str, seam.VariableTracker]
    ) -> seam.VariableTracker:
        return self.function(tx, *args, **kwargs)

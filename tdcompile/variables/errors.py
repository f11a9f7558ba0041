"""Errors of a program in a whole graph: the caller gets what eager code raises.

Key names: :func:`exception_handler`, :func:`convert_frame` (each makes the replacement of a
method).

Without ``fullgraph=True`` a frame whose trace raises runs eagerly, and the error is eager's own.
With it upstream raises ``Unsupported: Observed exception``; for a frame that tracks a tensordict
the program's exception is raised instead, of the same type and with the same message. Nothing of
the frame has run then: the caller's objects are as they were before the call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdcompile._compat import exceptions as seam
from tdcompile._compat.guards import is_marked

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["convert_frame", "exception_handler"]

_ATTRIBUTE = "_tdcompile_raised"


def exception_handler(original: Callable[..., Any]) -> Callable[..., Any]:
    """Note the program's exception on the error that upstream raises for it."""

    def replacement(translator: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(translator, *args, **kwargs)
        except seam.Unsupported as unsupported:
            whole = translator.one_graph or translator.error_on_graph_break
            if whole and is_marked(translator.output.guards):
                setattr(unsupported, _ATTRIBUTE, seam.raised_error(translator))
            raise

    return replacement


def convert_frame(original: Callable[..., Any]) -> Callable[..., Any]:
    """Raise the program's exception where it was noted."""

    def replacement(converter: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(converter, *args, **kwargs)
        except seam.Unsupported as unsupported:
            error = getattr(unsupported, _ATTRIBUTE, None)
            if error is None:
                raise
        # Outside the handler: the program's error has no other one as its context, as in eager
        # code.
        raise error

    return replacement

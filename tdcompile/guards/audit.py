"""The audit: every guard that a pass dropped is checked again at run time.

Key names: :class:`DroppedCheck` (the dropped guards of one frame), :func:`raise_if_fired`.

It is on with ``TDCOMPILE_AUDIT=1``, or for one compiled function with the backend option
``"tdcompile.audit": True``. A dropped guard that would have fired means that the written assumption
of its pass does not hold in the program; the call raises
:class:`~tdcompile.errors.GuardAuditError`.

Invariant: the audit changes nothing but time: a frame is reused exactly when it is without it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from tdcompile.errors import GuardAuditError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DroppedCheck", "audited_call", "raise_if_fired"]

_fired = threading.local()


class DroppedCheck:
    """Checks the dropped guards of one frame each time the frame is about to be reused.

    Args:
        find: given the frame's locals, the text of the first dropped guard that fails, or None.
        passes: names of the passes that dropped them, for the message.
    """

    def __init__(self, find: Callable[[Any], str | None], passes: tuple[str, ...]) -> None:
        self._find = find
        self._passes = passes

    def __call__(self, frame_locals: Any) -> bool:
        """Note a guard that fires. Always True: as a guard, it never rejects a frame."""
        text = self._find(frame_locals)
        if text is not None:
            # An exception inside a guard is swallowed by Dynamo; the graph call raises it instead.
            _fired.text = (
                f"a dropped guard would have fired: {text}\n"
                f"dropped by: {', '.join(self._passes)} (see tdcompile.guards.passes.PASSES for the"
                " assumption of each). The compiled code may be stale for this call: turn the audit"
                " off only after the program keeps that assumption."
            )
        return True


def raise_if_fired() -> None:
    """Raise if a dropped guard fired on the way into this call.

    Raises:
        GuardAuditError: the assumption of a pass did not hold.
    """
    text = getattr(_fired, "text", None)
    if text is not None:
        _fired.text = None
        raise GuardAuditError(text)


def audited_call(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a compiled graph so that it raises what the guards before it found."""

    def call(*args: Any, **kwargs: Any) -> Any:
        raise_if_fired()
        return compiled(*args, **kwargs)

    return call

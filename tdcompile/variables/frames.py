"""Which frames Dynamo starts at: those that hold a tensordict, and none of our own functions.

Key names: :func:`has_tensor_in_frame` (makes the replacement of Dynamo's filter).

Dynamo skips a frame without a tensor among its locals, however deep it looks into lists and
dictionaries; a frame that holds only tensordicts, such as the rest of a function after a graph
break, would run eagerly without a word. Our own methods, on the other hand, are worth a frame only
where a traced function calls them; called from eager code they stay eager.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tdcompile._compat import dynamo as seam

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["has_tensor_in_frame"]

_CONTAINER_FOLDER = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tensordict", ""
)


def has_tensor_in_frame(
    original: Callable[..., bool], served: Callable[[], Iterable[type]]
) -> Callable[..., bool]:
    """Make the replacement of Dynamo's filter of frames.

    Args:
        original: the filter.
        served: the classes of tensordicts that trackers serve now.
    """

    def replacement(frame: Any, *args: Any, **kwargs: Any) -> bool:
        code = frame.f_code
        if code.co_filename.startswith(_CONTAINER_FOLDER):
            return seam.is_asked_for(code)
        if original(frame, *args, **kwargs):
            return True
        classes = tuple(served())
        return any(_holds(value, classes) for value in frame.f_locals.values())

    return replacement


def _holds(value: Any, classes: tuple[type, ...], depth: int = 3) -> bool:
    """Whether a local is a tensordict, or a list, tuple or dictionary with one in it."""
    if type(value) in classes:
        return True
    if depth == 0:
        return False
    if type(value) in (list, tuple):
        return any(_holds(element, classes, depth - 1) for element in value)
    if type(value) is dict:
        return any(_holds(element, classes, depth - 1) for element in list(value.values()))
    return False

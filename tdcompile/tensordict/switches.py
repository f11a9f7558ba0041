"""Process-wide switches of the container: context managers that are decorators too.

Key names: :class:`set_list_to_stack` and :func:`list_to_stack`,
:class:`set_capture_non_tensor_stack` and :func:`capture_non_tensor_stack`.

Invariant: a switch is read where a value is stored or stacked, never remembered.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "capture_non_tensor_stack",
    "list_to_stack",
    "set_capture_non_tensor_stack",
    "set_list_to_stack",
]

# What was set: name of the switch -> value. Absent: the default holds.
_values: dict[str, bool] = {}


class _Switch:
    """Set a switch in a ``with`` block or a decorated function; ``.set()`` sets it for good."""

    name: ClassVar[str]

    def __init__(self, mode: bool) -> None:
        self._mode = bool(mode)
        self._before: list[bool | None] = []

    def set(self) -> None:
        """Set the switch until it is set again."""
        _values[self.name] = self._mode

    def __enter__(self) -> None:
        self._before.append(_values.get(self.name))
        self.set()

    def __exit__(self, *exc_info: object) -> None:
        before = self._before.pop()
        if before is None:
            _values.pop(self.name, None)
        else:
            _values[self.name] = before

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        mode = self._mode

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with type(self)(mode):
                return function(*args, **kwargs)

        return wrapped


class set_list_to_stack(_Switch):
    """Say whether a list that is stored becomes a stack of its items (the default) or one value.

    Args:
        mode: True for a ``NonTensorStack`` of the items (a tensor where torch can make one).

    Example:
        >>> with set_list_to_stack(False):
        ...     td = TensorDict({"s": ["a", "b"]}, batch_size=[2])
        >>> td[0]["s"]
        ['a', 'b']
        >>> TensorDict({"s": ["a", "b"]}, batch_size=[2])[0]["s"]
        'a'
    """

    name = "list_to_stack"


class set_capture_non_tensor_stack(_Switch):
    """Say whether stacking equal non-tensor values gives one value, or a stack (the default).

    Args:
        mode: True for one ``NonTensorData`` where all values are equal.

    Example:
        >>> with set_capture_non_tensor_stack(True):
        ...     stacked = torch.stack([TensorDict(s="x"), TensorDict(s="x")])
        >>> stacked["s"]
        'x'
    """

    name = "capture_non_tensor_stack"


def list_to_stack(allow_none: bool = False) -> bool | None:
    """Tell whether a list that is stored becomes a stack of its items.

    Args:
        allow_none: give ``None`` where nobody has set it.
    """
    return _values.get("list_to_stack", None if allow_none else True)


def capture_non_tensor_stack(allow_none: bool = False) -> bool | None:
    """Tell whether stacking equal non-tensor values gives one value.

    Args:
        allow_none: give ``None`` where nobody has set it.
    """
    return _values.get("capture_non_tensor_stack", None if allow_none else False)

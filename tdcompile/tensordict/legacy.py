"""The legacy switch: ``torch.stack`` gives a lazy stack.

Key names: :class:`set_lazy_legacy`, :func:`lazy_legacy`.

Invariant: the switch is read at each call of ``stack``, never remembered. Views (``view``,
``permute``, ``squeeze`` ...) are made at once with the switch on or off.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["lazy_legacy", "set_lazy_legacy"]

# The value that was set, under its name; empty: the default holds.
_values: dict[str, bool] = {}
_NAME = "lazy_legacy"


class set_lazy_legacy:  # used as a function, as in the tensordict package
    """Let ``torch.stack`` give lazy stacks, in a block, in a function, or from now on.

    Args:
        mode: True for lazy stacks.

    Example:
        >>> td = TensorDict(a=torch.zeros(3))
        >>> with set_lazy_legacy(True):
        ...     type(torch.stack([td, td])).__name__
        'LazyStackedTensorDict'
    """

    def __init__(self, mode: bool) -> None:
        self._mode = bool(mode)
        self._before: list[bool | None] = []

    def set(self) -> None:
        """Set the mode until it is set again."""
        _values[_NAME] = self._mode

    def __enter__(self) -> None:
        self._before.append(_values.get(_NAME))
        self.set()

    def __exit__(self, *exc_info: object) -> None:
        before = self._before.pop()
        if before is None:
            del _values[_NAME]
        else:
            _values[_NAME] = before

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with the mode set during each call."""
        mode = self._mode

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with set_lazy_legacy(mode):
                return function(*args, **kwargs)

        return wrapped


def lazy_legacy(allow_none: bool = False) -> bool | None:
    """Tell whether ``torch.stack`` gives lazy stacks.

    Args:
        allow_none: give ``None`` where the mode was never set.
    """
    return _values.get(_NAME, None if allow_none else False)

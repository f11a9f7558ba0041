"""Who is told of a new class of tensordicts: the trackers serve a class by its exact type.

Key names: :func:`announce` (a new class says that it is there), :func:`observe` (hear of those
there are and of those to come), :func:`announced`.

Invariant: the container knows nothing of its observers; without one, nothing happens.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["announce", "announced", "observe"]

# Weak: a class defined in a function goes when nothing uses it any more.
_classes: weakref.WeakSet[type] = weakref.WeakSet()
_observers: list[Callable[[type], None]] = []


def announce(kind: type) -> None:
    """Tell all observers of a new class that keeps its leaves as ``TensorDict`` does."""
    _classes.add(kind)
    for observer in _observers:
        observer(kind)


def announced() -> list[type]:
    """Return the classes announced so far that are still in use."""
    return list(_classes)


def observe(observer: Callable[[type], None]) -> Callable[[], None]:
    """Call `observer` with each class announced from now on.

    Returns:
        A function that ends it; a second call is harmless.
    """
    _observers.append(observer)

    def end() -> None:
        if observer in _observers:
            _observers.remove(observer)

    return end

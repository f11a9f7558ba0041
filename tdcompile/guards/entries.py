"""``GuardEntry``: what a narrowing pass sees of one guard. Plain data, made by the seam.

Key names: :class:`GuardEntry`.

Invariant: a pass is a pure function over a tuple of entries; it can be tested without a compile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["GuardEntry"]


@dataclass(frozen=True, slots=True)
class GuardEntry:
    """One guard before it is built.

    Attributes:
        kind: upstream's name of the check (``"DICT_CONTAINS"``, ``"TENSOR_MATCH"``, ...).
        name: the guarded expression, as upstream prints it.
        root: name of the global at the base of the expression, or ``""`` for locals and the rest.
        source: identity of the guarded expression.
        parents: the expressions that it is read through, nearest first: for ``td._entries["a"]``
            pairs ``(source of td._entries, "a")``; the second is the key of a dictionary read, or
            None for any other step.
        is_own: whether the innermost traced frame that asked for the guard is a function of ours.
        key: key of a ``DICT_CONTAINS``, else None.
    """

    kind: str
    name: str
    root: str
    source: Hashable
    parents: tuple[tuple[Hashable, Any], ...] = ()
    key: Any = None
    is_own: bool = False

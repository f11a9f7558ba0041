"""The guard half of the seam: guards of a frame as plain entries, and their removal.

Key names: :func:`entries_of`, :func:`discard`, :func:`mark_frame`, ``CheckFunctionManager``.

Checked against torch 2.13.0, 2.14.1 and 2.15.0 (``torch/_guards.py``, ``torch/_dynamo/guards.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch._dynamo.guards import CheckFunctionManager
from torch._dynamo.source import ChainedSource, DictGetItemSource, GlobalSource
from torch._guards import Guard, GuardsSet

__all__ = ["CheckFunctionManager", "discard", "entries_of", "is_marked", "mark_frame"]

_MARK = "_tdcompile_tracked"


def mark_frame(tx: Any) -> None:
    """Note that the frame being traced has a tensordict in it."""
    setattr(tx.output.guards, _MARK, True)


def is_marked(guards: GuardsSet) -> bool:
    """Whether the frame of these guards has a tensordict in it."""
    return getattr(guards, _MARK, False)


def entries_of(guards: GuardsSet, make: Callable[..., Any]) -> list[tuple[Guard, Any]]:
    """Each guard with the entry that `make` builds from its facts."""
    return [(guard, make(**_facts(guard))) for guard in guards]


def _facts(guard: Guard) -> dict[str, Any]:
    source = guard.originating_source
    keywords = getattr(guard.create_fn, "keywords", {})
    steps = []
    step: Any = source
    while isinstance(step, ChainedSource):
        key = step.index if isinstance(step, DictGetItemSource) else None
        steps.append((step.base, key))
        step = step.base
    return {
        "kind": guard.create_fn_name(),
        "name": guard.name,
        "root": step.global_name if isinstance(step, GlobalSource) else "",
        "source": source,
        "parents": tuple(steps),
        "key": keywords.get("key"),
    }


def discard(guards: GuardsSet, dropped: Iterable[Guard]) -> None:
    """Take guards out of a frame's set."""
    for guard in dropped:
        guards.inner.discard(guard)

"""Which narrowing passes are in force, and where they run.

Key names: :func:`narrow` (run the passes over a frame's guards), :func:`patches`.

Invariant: passes run once a compiled frame, before its guards are built, and only on a frame that
tracked a tensordict or ran our own code; a frame without tensordicts keeps every guard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tdcompile._compat import guards as seam
from tdcompile.guards.entries import GuardEntry
from tdcompile.guards.passes import PASSES
from tdcompile.patching import Patch, PatchSet

__all__ = ["narrow", "patches"]


def narrow(entries: Sequence[GuardEntry]) -> list[str | None]:
    """Decide about each guard: the name of the pass that drops it, or None to keep it."""
    verdicts: list[str | None] = [None] * len(entries)
    for narrowing in PASSES:
        for index, dropped in enumerate(narrowing.drops(entries)):
            if dropped and verdicts[index] is None:
                verdicts[index] = narrowing.name
    return verdicts


def _narrowing_init(original: Callable[..., None]) -> Callable[..., None]:
    def replacement(
        manager: Any, f_code: Any, output_graph: Any, *args: Any, **kwargs: Any
    ) -> None:
        guards = None if output_graph is None else output_graph.guards
        if guards and seam.is_marked(guards):
            facts = seam.entries_of(guards, GuardEntry)
            verdicts = narrow([entry for _, entry in facts])
            dropped = [g for (g, _), v in zip(facts, verdicts, strict=True) if v is not None]
            seam.discard(guards, dropped)
        original(manager, f_code, output_graph, *args, **kwargs)

    return replacement


def patches() -> tuple[PatchSet, ...]:
    """What ``install()`` applies: the constructor that turns a frame's guards into checks."""
    return (
        PatchSet(
            "guards",
            [
                Patch(
                    target=seam.CheckFunctionManager,
                    name="__init__",
                    wrap=_narrowing_init,
                    reason="guards on our own code and implied guards are dropped before they are built",
                    upstream="torch/_dynamo/guards.py: guard_filter_fn builds all guards twice",
                    test="tests/guards/test_policy.py",
                    remove_when="guard_filter_fn can run before guards are built, for every backend",
                ),
            ],
        ),
    )

"""Which narrowing passes are in force, and where they run.

Key names: :func:`narrow` (run the passes over a frame's guards), :func:`patches`.

Invariant: passes run once a compiled frame, before its guards are built, and only on a frame that
tracked a tensordict or ran our own code; a frame without tensordicts keeps every guard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdcompile._compat import guards as seam
from tdcompile.config import settings
from tdcompile.guards.audit import DroppedCheck, audited_call
from tdcompile.guards.entries import GuardEntry
from tdcompile.guards.passes import PASSES
from tdcompile.patching import Patch, PatchSet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
        if not guards or not seam.is_marked(guards):
            original(manager, f_code, output_graph, *args, **kwargs)
            return
        seam.add_distinct_guard(guards)
        facts = seam.entries_of(guards, GuardEntry)
        verdicts = narrow([entry for _, entry in facts])
        dropped = [(guard, name) for (guard, _), name in zip(facts, verdicts, strict=True) if name]
        seam.discard(guards, [guard for guard, _ in dropped])
        original(manager, f_code, output_graph, *args, **kwargs)
        if dropped and _is_audited(guards):
            find = seam.build_check(manager, [guard for guard, _ in dropped], f_code, output_graph)
            passes = tuple(sorted({name for _, name in dropped}))
            seam.add_epilogue(manager, DroppedCheck(find, passes), "tdcompile audit")

    return replacement


def _is_audited(guards: Any) -> bool:
    return settings().audit or seam.is_audited(guards)


def _auditing_compile(original: Callable[..., Any]) -> Callable[..., Any]:
    def replacement(output_graph: Any, *args: Any, **kwargs: Any) -> Any:
        compiled = original(output_graph, *args, **kwargs)
        return audited_call(compiled) if _is_audited(output_graph.guards) else compiled

    return replacement


def _tolerant_reason(original: Callable[..., Any]) -> Callable[..., Any]:
    def replacement(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except (LookupError, AttributeError, TypeError):
            return ["Duplicate tensors found (some guarded entries are absent from this input)"]

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
                    reason="guards on our own code and implied ones are dropped unbuilt",
                    upstream="torch/_dynamo/guards.py: guard_filter_fn builds all guards twice",
                    test="tests/guards/test_policy.py",
                    remove_when="guard_filter_fn runs before guards are built, for every backend",
                ),
                Patch(
                    target=seam.guards_module,
                    name="recompilation_reason_for_no_tensor_aliasing_guard",
                    wrap=_tolerant_reason,
                    reason="a recompile's reason is looked up by keys that may be gone",
                    upstream="torch/_dynamo/guards.py; torch 2.15 skips sources that are gone",
                    test="tests/guards/test_policy.py",
                    remove_when="2.15 is the oldest supported torch",
                ),
                Patch(
                    target=seam.OutputGraph,
                    name="call_user_compiler",
                    wrap=_auditing_compile,
                    reason="with the audit on, a graph raises what its dropped guards found",
                    upstream="torch/_dynamo/output_graph.py",
                    test="tests/guards/test_audit.py",
                    remove_when="an exception inside a guard reaches the caller",
                ),
            ],
        ),
    )

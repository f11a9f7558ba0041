"""The guard half of the seam: guards of a frame as plain entries, and their removal.

Key names: :func:`entries_of`, :func:`discard`, :func:`mark_frame`, ``CheckFunctionManager``.

Checked against torch 2.13.0, 2.14.1 and 2.15.0 (``torch/_guards.py``, ``torch/_dynamo/guards.py``).
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo.guards as guards_module
from torch._C._dynamo.guards import install_no_tensor_aliasing_guard
from torch._dynamo.guards import CheckFunctionManager, GuardBuilder
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.source import DictGetItemSource, GlobalSource
from torch._guards import ChainedSource, Guard, GuardsSet, Source, TracingContext
from torch.utils._ordered_set import OrderedSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "CheckFunctionManager",
    "OutputGraph",
    "add_distinct_guard",
    "add_epilogue",
    "build_check",
    "discard",
    "entries_of",
    "guards_module",
    "is_audited",
    "is_marked",
    "mark_frame",
    "note_input",
    "request_audit",
    "require_distinct",
    "same_object_guard",
]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_POLYFILLS = os.path.join(os.path.dirname(guards_module.__file__), "polyfills", "")
_MARK = "_tdcompile_tracked"
_INPUTS = "_tdcompile_inputs"
_DISTINCT = "_tdcompile_distinct"
_AUDIT = "_tdcompile_audit"


def mark_frame(tx: Any) -> None:
    """Note that the frame being traced has a tensordict in it."""
    setattr(tx.output.guards, _MARK, True)


def is_marked(guards: GuardsSet) -> bool:
    """Whether the frame of these guards has a tensordict in it."""
    return getattr(guards, _MARK, False)


def note_input(tx: Any, source: Source) -> None:
    """Note an input tensordict of the frame being traced."""
    guards = tx.output.guards
    mark_frame(tx)
    setattr(guards, _INPUTS, [*getattr(guards, _INPUTS, ()), source])


def require_distinct(tx: Any) -> None:
    """Guard that the frame's input tensordicts, also those to come, are distinct objects.

    Upstream guards tensors that way, not other objects. A trace that writes to one tensordict and
    reads another, or that asks whether two are one, is right only while they are two.
    """
    setattr(tx.output.guards, _DISTINCT, True)


def add_distinct_guard(guards: GuardsSet) -> None:
    """Add the guard that :func:`require_distinct` asked for, if it did."""
    sources: list[Source] = list(getattr(guards, _INPUTS, ()))
    if getattr(guards, _DISTINCT, False) and len(sources) > 1:
        create_fn: Callable[..., Any] = functools.partial(_distinct, sources=tuple(sources))
        guards.add(sources[-1].make_guard(create_fn))


def _distinct(builder: Any, _: Guard, sources: tuple[Source, ...]) -> None:
    managers = [builder.get_guard_manager_from_source(source) for source in sources]
    names = [source.name for source in sources]
    code = [f"no two of {', '.join(names)} are the same tensordict"]
    install_no_tensor_aliasing_guard(managers, names, code, None)


def same_object_guard(tx: Any, first: Source | None, second: Source) -> Any:
    """Guard that two paths of this frame lead to one tensordict; None if they are not ours.

    Upstream makes no such guard between a local and a global path.
    """
    inputs = getattr(tx.output.guards, _INPUTS, ())
    if first is None or first == second or first not in inputs:
        return None
    return functools.partial(GuardBuilder.DUPLICATE_INPUT, source_b=first)


def request_audit() -> None:
    """Ask, from within a backend call, for the audit of the frame that is being compiled."""
    context = TracingContext.try_get()
    if context is not None:
        setattr(context.guards_context.dynamo_guards, _AUDIT, True)


def is_audited(guards: GuardsSet) -> bool:
    """Whether the audit was asked for the frame of these guards."""
    return getattr(guards, _AUDIT, False)


def build_check(
    manager: Any, guards: Iterable[Guard], f_code: Any, output_graph: Any
) -> Callable[[Any], str | None]:
    """Build guards apart from their frame's own.

    Returns:
        A function of the frame's locals: the text of the first guard that fails, or None.
    """
    manager.output_graph = output_graph
    try:
        with torch._C.DisableTorchFunction():
            _, wrapper = manager.build_guards(
                sorted(guards, key=Guard.sort_key), OrderedSet(), f_code, output_graph, False
            )
    finally:
        manager.output_graph = None
    root = wrapper.root

    def find(frame_locals: Any) -> str | None:
        info = root.check_verbose(frame_locals)
        return None if info.result else "; ".join(info.verbose_code_parts)

    return find


def add_epilogue(manager: Any, check: Callable[[Any], bool], text: str) -> None:
    """Run `check` on a frame's locals after all its guards passed."""
    manager.guard_manager.root.add_epilogue_lambda_guard(check, [text], None)


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
        "is_own": _is_own(guard),
    }


def _is_own(guard: Guard) -> bool:
    """Whether a function of ours asked for the guard, perhaps through one of torch's polyfills."""
    for frame in reversed(guard.user_stack or ()):
        if not frame.filename.startswith(_POLYFILLS):
            return frame.filename.startswith(_PACKAGE)
    return False


def discard(guards: GuardsSet, dropped: Iterable[Guard]) -> None:
    """Take guards out of a frame's set."""
    for guard in dropped:
        guards.inner.discard(guard)

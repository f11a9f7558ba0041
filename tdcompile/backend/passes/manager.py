"""Runs the FX passes in order, and gives them one id.

Key names: :class:`PassManager`, :func:`load_pass`.

Invariant: the id covers which passes run, in which order, and their source. Passes of the stage
``graph`` run before any cache is asked, so the caches see what they made; passes of the stage
``post_grad`` run inside Inductor, which puts the id into its cache key.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
from typing import TYPE_CHECKING, Any, cast

from tdcompile._compat import inductor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import fx

    from tdcompile.backend.passes.base import GraphPass, Stage


@functools.cache
def load_pass(name: str) -> GraphPass:
    """Return the pass of a name: ``PASS`` in the module ``tdcompile.backend.passes.<name>``."""
    module = importlib.import_module(f"tdcompile.backend.passes.{name}")
    return cast("GraphPass", module.PASS)


class PassManager:
    """Runs passes, each stage in the order given.

    Args:
        passes: Names of shipped passes, or pass objects.

    Example:
        >>> manager = PassManager(["merge_views"])
        >>> changed = manager.run("graph", graph)     # doctest: +SKIP
        >>> changed                                   # doctest: +SKIP
        {'merge_views': 49}
    """

    def __init__(self, passes: Iterable[str | GraphPass]) -> None:
        self.passes: tuple[GraphPass, ...] = tuple(
            load_pass(item) if isinstance(item, str) else item for item in passes
        )

    def of_stage(self, stage: Stage) -> tuple[GraphPass, ...]:
        """Return the passes of a stage, in order."""
        return tuple(item for item in self.passes if item.stage == stage)

    def run(self, stage: Stage, graph: fx.Graph) -> dict[str, int]:
        """Run the passes of a stage on a graph, in place.

        Returns:
            How many nodes each pass changed, by name.
        """
        return {item.name: item(graph) for item in self.of_stage(stage)}

    def uuid(self, stage: Stage) -> str:
        """Return one id for the passes of a stage: which, in which order, and their source."""
        ids = "\n".join(item.uuid() for item in self.of_stage(stage))
        return hashlib.sha256(f"{stage}\n{ids}".encode()).hexdigest()

    def inductor_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return Inductor's options with the passes of the stage ``post_grad`` after the caller's.

        Args:
            options: Inductor's options as the caller gave them; not changed.
        """
        merged = dict(options)
        if self.of_stage("post_grad"):
            theirs = merged.get(inductor.POST_GRAD_PASS)
            before = () if theirs is None else theirs
            before = tuple(before) if isinstance(before, (list, tuple)) else (before,)
            ours = inductor.custom_pass(
                functools.partial(self.run, "post_grad"), self.uuid("post_grad")
            )
            merged[inductor.POST_GRAD_PASS] = (*before, ours)
        return merged

"""What the tests of compiled code share: run a program eager and compiled, and count.

Key names: :func:`run` (one program, many inputs: results and counts), :class:`Report`.

Each compiled test states graphs, compilations and guards beside values, since values alone hide
regressions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.testing import CompileCounterWithBackend

import tdcompile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass
class Report:
    """What a compiled program did over all its inputs."""

    results: list[Any] = field(default_factory=list)
    compilations: int = 0
    graphs: list[torch.fx.GraphModule] = field(default_factory=list)

    @property
    def num_nodes(self) -> int:
        """Calls in the last graph."""
        return sum(node.op.startswith("call_") for node in self.graphs[-1].graph.nodes)


def run(
    program: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    backend: str = "eager",
    fullgraph: bool = True,
    dynamic: bool | None = None,
) -> Report:
    """Compile `program` once and feed it with all inputs: tuples of arguments, or one argument."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    report = Report()
    with tdcompile.install(strict=True):
        compiled = torch.compile(program, backend=counter, fullgraph=fullgraph, dynamic=dynamic)
        for args in inputs:
            report.results.append(compiled(*(args if isinstance(args, tuple) else (args,))))
    report.compilations = counter.frame_count
    report.graphs = counter.graphs
    return report


def guards_of(program: Callable[..., Any], *args: Any) -> list[str]:
    """The guards of the compiled frame of `program`, as upstream prints them."""
    lines: list[str] = []
    torch._dynamo.reset()
    with tdcompile.install(strict=True):
        compiled = torch.compile(program, backend="eager", fullgraph=True)
        compiled(*args)
        for entry in torch._dynamo.eval_frame._debug_get_cache_entry_list(program.__code__):
            tree = str(entry.guard_manager).splitlines()
            lines += [line.strip() for line in tree if "+- " in line]
    return [line for line in lines if "GuardManager" not in line]

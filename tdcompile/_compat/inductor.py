"""Hand-over to Inductor under our own stable names.

Key names: :func:`compile_with_inductor`, :func:`list_options`, :func:`list_mode_options`,
:func:`custom_pass` (one of our FX passes in Inductor's clothes).

Invariant: nothing here loads Inductor before the first call; it costs two seconds.

Upstream: ``torch/__init__.py`` (``_TorchCompileInductorWrapper``), ``torch/_inductor/__init__.py``,
``torch/_inductor/custom_graph_pass.py``; checked on torch 2.13.0, 2.14.1 and 2.15.0.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, cast

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import fx

POST_GRAD_PASS = "post_grad_custom_pre_pass"
"""Inductor's option for passes on the graph after autograd, before its own."""


def compile_with_inductor(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None,
    options: Mapping[str, Any],
    name: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph exactly as ``torch.compile(backend="inductor")`` does.

    Args:
        graph_module: The graph; Inductor takes it over.
        example_inputs: Its fake inputs.
        mode: An Inductor mode, or None.
        options: Inductor options; they win over the mode's.
        name: The name of the compiled region, or None.

    Returns:
        The compiled callable.

    Raises:
        RuntimeError: The mode is unknown, or an option has a value of the wrong type.
    """
    make: Any = torch._TorchCompileInductorWrapper
    wrapper = make(mode, dict(options), None, name)
    return cast("Callable[..., Any]", wrapper(graph_module, example_inputs))


def list_options() -> list[str]:
    """Return the names of all Inductor options."""
    import torch._inductor

    return torch._inductor.list_options()


def list_mode_options(mode: str | None = None) -> dict[str, Any]:
    """Return what a mode sets, or what each of them sets.

    Raises:
        RuntimeError: The mode is unknown; the message lists the modes.
    """
    import torch._inductor

    return torch._inductor.list_mode_options(mode)


def custom_pass(run: Callable[[fx.Graph], object], uuid: str) -> Any:
    """Return a pass that Inductor can put into its cache key.

    A bare function there bypasses the FX graph cache.

    Args:
        run: Changes a graph in place.
        uuid: Identifies what ``run`` does, over processes.

    Returns:
        A ``CustomGraphPass``; two of the same ``uuid`` are equal.
    """
    return _pass_class()(run, uuid)


@functools.cache
def _pass_class() -> Any:
    """Make the class once, when Inductor's base class is there."""
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class OurPass(CustomGraphPass):
        def __init__(self, run: Callable[[fx.Graph], object], uuid: str) -> None:
            self._run = run
            self._uuid = uuid

        def __call__(self, graph: fx.Graph) -> None:
            self._run(graph)

        def uuid(self) -> str:
            return self._uuid

        def __eq__(self, other: object) -> bool:
            return isinstance(other, OurPass) and self._uuid == other._uuid

        def __hash__(self) -> int:
            return hash(self._uuid)

    return OurPass

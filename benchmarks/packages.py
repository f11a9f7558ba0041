"""The packages that are compared, and the state of the compiler that each is measured in.

Key names: `PACKAGES`, `tensordict_class`, `use`, `build_nested`, and the two backends.
Stock PyTorch is what the reference runs on: it compiles while nothing is installed.
"""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

# What is measured is the checkout that the benchmarks belong to, installed or not.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# The reference first: it compiles before anything is installed.
PACKAGES = ("tensordict", "tdcompile")


def tensordict_class(package: str) -> Any:
    """Return the class `TensorDict` of `package`."""
    return importlib.import_module(package).TensorDict


def use(package: str) -> None:
    """Bring the compiler into the state for `package`: installed for tdcompile, else stock."""
    if package == "tdcompile":
        tdcompile = importlib.import_module("tdcompile")
        if not tdcompile.is_installed():
            tdcompile.install(strict=True)
    elif "tdcompile" in sys.modules:  # else the reference runs in a process that never saw it
        tdcompile = sys.modules["tdcompile"]
        if tdcompile.is_installed():
            tdcompile.uninstall()


def build_nested(td_class: Any, groups: int, leaves: int, *shape: int) -> Any:
    """Return `groups` nested tensordicts of `leaves` tensors of `shape`; plain dicts for `dict`."""
    generator = torch.Generator().manual_seed(0)
    entries = {
        f"g{g}": {f"x{i}": torch.randn(shape, generator=generator) for i in range(leaves)}
        for g in range(groups)
    }
    return entries if td_class is dict else td_class(entries, batch_size=shape[:1])


@dataclass
class CountingBackend:
    """A backend that runs the graph as it is and counts the graphs it was given."""

    num_graphs: int = 0

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        """Count and hand the graph back."""
        self.num_graphs += 1
        return gm.forward


@dataclass
class ReplayBackend(CountingBackend):
    """A backend whose graphs do no work: the first call's results are returned again and again.

    What remains of a call is what surrounds the graph: guards, arguments, building results.
    """

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        """Return a callable that computes once."""
        self.num_graphs += 1
        results: list[Any] = []

        def replay(*args: Any) -> Any:
            if not results:
                results.append(gm(*args))
            return results[0]

        return replay

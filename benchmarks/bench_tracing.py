"""Time the tracing of a function by TorchDynamo, with a backend that does nothing.

A sample is a first call after a reset: tracing, building guards, and one run of the graph as is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from packages import CountingBackend, build_nested, tensordict_class, use
from programs import leafwise, leafwise_dict, write
from report import Table, run_benchmark
from timer import ratio, sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

GROUPS, LEAVES = 10, 5
SMALL, LARGE = 3, 1000


def first_call(
    package: str, function: Callable[[Any], Any], make_input: Callable[[], Any]
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return (preparation, work) for `timer.sample`: the work is a first call of `function`."""
    state: list[Any] = [None, None]

    def prepare() -> None:
        use(package)
        torch.compiler.reset()
        state[:] = torch.compile(function, backend=CountingBackend(), fullgraph=True), make_input()

    def work() -> None:
        compiled, argument = state
        compiled(argument)

    return prepare, work


def make_tables(packages: Iterable[str]) -> list[Table]:
    """Return the tables for a leaf-wise operation and for a write."""
    classes = {package: tensordict_class(package) for package in packages}
    cases = {
        "dict": first_call("dict", leafwise_dict, lambda: build_nested(dict, GROUPS, LEAVES, 4, 4))
    }
    for package, td_class in classes.items():
        cases[package] = first_call(
            package,
            leafwise,
            lambda td_class=td_class: build_nested(td_class, GROUPS, LEAVES, 4, 4),
        )
    timings = sample(cases)
    leaf_table = Table(
        f"Tracing (td * 2 + 1).exp(), {GROUPS * LEAVES} leaves nested {GROUPS}x{LEAVES}",
        ["", "first call", "ratio to dict"],
        [[name, str(t), f"{ratio(t, timings['dict']):.2f}"] for name, t in timings.items()],
    )

    write_table = Table(
        f"Tracing a write of one key, td of {LARGE} keys against {SMALL}",
        ["", f"{SMALL} keys", f"{LARGE} keys", "ratio"],
    )
    sizes = (SMALL, LARGE)
    timings = sample(
        {
            f"{package} {size}": first_call(
                package,
                write,
                lambda td_class=td_class, size=size: build_nested(td_class, 1, size, 4)["g0"],
            )
            for package, td_class in classes.items()
            for size in sizes
        }
    )
    for package in classes:
        small, large = (timings[f"{package} {size}"] for size in sizes)
        write_table.rows.append([package, str(small), str(large), f"{ratio(large, small):.2f}"])
    return [leaf_table, write_table]


if __name__ == "__main__":
    run_benchmark(make_tables)

"""Time warm calls of compiled functions.

"graph removed": the graph returns results computed before, so that what remains is what surrounds
it, that is guards, arguments and building results. "Inductor": the whole call.
All functions run in one process in turn; those of the reference and of dicts compile before
anything is installed, and a check makes sure that none of them compiles again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from packages import CountingBackend, ReplayBackend, build_nested, tensordict_class, use
from programs import leafwise, leafwise_dict, write
from report import Table, run_benchmark
from timer import Timing, measure, ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

GROUPS, LEAVES = 10, 5
SMALL, LARGE = 3, 1000


def compile_and_warm(
    function: Callable[[Any], Any], argument: Any, backend: Any
) -> Callable[[], Any]:
    """Return a call of compiled `function` with `argument`, compiled already and stable."""
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for _ in range(3):
        compiled(argument)
    return lambda: compiled(argument)


def measure_leafwise(packages: Iterable[str], make_backend: Callable[[], Any]) -> dict[str, Timing]:
    """Return the time of `(td * 2 + 1).exp()` for dicts and for each package."""
    torch.compiler.reset()
    use("dict")
    nested = build_nested(dict, GROUPS, LEAVES, 4, 4)
    cases = {"dict": compile_and_warm(leafwise_dict, nested, make_backend())}
    for package in packages:
        use(package)
        td = build_nested(tensordict_class(package), GROUPS, LEAVES, 4, 4)
        cases[package] = compile_and_warm(leafwise, td, make_backend())
    return checked_measure(cases)


def measure_write(packages: Iterable[str], make_backend: Callable[[], Any]) -> dict[str, Timing]:
    """Return the time of a write of one key, by "package size"."""
    torch.compiler.reset()
    cases = {}
    for package in packages:
        use(package)
        for size in (SMALL, LARGE):
            td = build_nested(tensordict_class(package), 1, size, 4)["g0"]
            cases[f"{package} {size}"] = compile_and_warm(write, td, make_backend())
    return checked_measure(cases)


def checked_measure(cases: dict[str, Callable[[], Any]]) -> dict[str, Timing]:
    """Return `measure(cases)` after making sure that nothing compiles while the clock runs."""
    with torch.compiler.set_stance("fail_on_recompile"):
        for call in cases.values():
            call()
    return measure(cases)


def make_tables(packages: Iterable[str]) -> list[Table]:
    """Return the tables for a leaf-wise operation and for a write."""
    packages = list(packages)
    leaf_table = Table(
        f"Calls of (td * 2 + 1).exp(), {GROUPS * LEAVES} leaves of 4x4 nested {GROUPS}x{LEAVES}",
        ["", "graph removed", "ratio to dict", "Inductor", "ratio to dict"],
    )
    removed = measure_leafwise(packages, ReplayBackend)
    whole = measure_leafwise(packages, lambda: "inductor")
    for name in removed:
        cells = [
            (str(times[name]), f"{ratio(times[name], times['dict']):.2f}")
            for times in (removed, whole)
        ]
        leaf_table.rows.append([name, *cells[0], *cells[1]])

    write_table = Table(
        f"Calls that write one key, td of {LARGE} keys against {SMALL}",
        ["", f"{SMALL} keys", f"{LARGE} keys", "ratio"],
        notes=["The graph runs as it is, one addition."],
    )
    timings = measure_write(packages, CountingBackend)
    for package in packages:
        small, large = (timings[f"{package} {size}"] for size in (SMALL, LARGE))
        write_table.rows.append([package, str(small), str(large), f"{ratio(large, small):.2f}"])
    return [leaf_table, write_table]


if __name__ == "__main__":
    run_benchmark(make_tables)

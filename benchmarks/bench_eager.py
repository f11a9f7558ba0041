"""Time common operations in eager mode, tdcompile against the reference, side by side.

The tensordict has 4 entries and a nested one with 4 more, leaves (8, 4): the size of a step of a
reinforcement learning loop, where the overhead of the container is what counts.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from packages import tensordict_class
from report import Table, run_benchmark
from timer import measure, ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SIZE = 8


@dataclass
class Operands:
    """What an operation may use: tensordicts of one package, and tensors."""

    td_class: Any
    td: Any
    other: Any
    leaf: torch.Tensor
    mask: torch.Tensor
    index: torch.Tensor
    source: dict[str, Any]


def make_operands(td_class: Any) -> Operands:
    """Return equal operands for any package."""
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.rand(SIZE, 4, generator=generator) + 0.5 for _ in range(16)]
    first, second = (
        {
            **{key: leaves[start + i] for i, key in enumerate("abcd")},
            "next": {key: leaves[start + 4 + i] for i, key in enumerate("abcd")},
        }
        for start in (0, 8)
    )
    return Operands(
        td_class,
        td_class(first, batch_size=[SIZE]),
        td_class(second, batch_size=[SIZE]),
        torch.rand(SIZE, 4, generator=generator),
        torch.arange(SIZE) % 2 == 0,
        torch.tensor([0, 2, 4]),
        first,
    )


def set_and_delete(o: Operands) -> None:
    """Add a key and take it away again."""
    o.td["new"] = o.leaf
    del o.td["new"]


def rename_there_and_back(o: Operands) -> None:
    """Rename a key and back."""
    o.td.rename_key_("d", "e")
    o.td.rename_key_("e", "d")


def lock_and_unlock(o: Operands) -> None:
    """Lock and unlock."""
    o.td.lock_()
    o.td.unlock_()


OPERATIONS: dict[str, Callable[[Operands], Any]] = {
    "TensorDict(nested dict)": lambda o: o.td_class(o.source, batch_size=[SIZE]),
    'td["a"]': lambda o: o.td["a"],
    'td["next", "a"]': lambda o: o.td["next", "a"],
    'td.get("absent", None)': lambda o: o.td.get("absent", None),
    'td["a"] = t': lambda o: o.td.__setitem__("a", o.leaf),
    'td["next", "a"] = t': lambda o: o.td.__setitem__(("next", "a"), o.leaf),
    'td["new"] = t; del td["new"]': set_and_delete,
    'td.set_("a", t)': lambda o: o.td.set_("a", o.leaf),
    'td.update({"a": t})': lambda o: o.td.update({"a": o.leaf}),
    "td.update(td)": lambda o: o.td.update(o.other),
    "td.update_(td)": lambda o: o.td.update_(o.other),
    "td.rename_key_, twice": rename_there_and_back,
    '"a" in td.keys()': lambda o: "a" in o.td.keys(),  # noqa: SIM118 (the spelling in use)
    "list(td.keys(True, True))": lambda o: list(o.td.keys(True, True)),
    "list(td.items())": lambda o: list(o.td.items()),
    'td.select("a", ("next", "a"))': lambda o: o.td.select("a", ("next", "a")),
    'td.exclude("a")': lambda o: o.td.exclude("a"),
    "td.replace(a=t)": lambda o: o.td.replace(a=o.leaf),
    "td.copy()": lambda o: o.td.copy(),
    "td.clone()": lambda o: o.td.clone(),
    "td.flatten_keys()": lambda o: o.td.flatten_keys("."),
    "td.to_dict()": lambda o: o.td.to_dict(),
    "td.detach()": lambda o: o.td.detach(),
    "td.to(torch.float64)": lambda o: o.td.to(torch.float64),
    "td + 1": lambda o: o.td + 1,
    "td * td": lambda o: o.td * o.other,
    "td.exp()": lambda o: o.td.exp(),
    "td.zero_()": lambda o: o.td.zero_(),
    "td.apply(fn)": lambda o: o.td.apply(torch.neg),
    "td.sum()": lambda o: o.td.sum(),
    "(td == td).all()": lambda o: (o.td == o.other).all(),
    "td[0]": lambda o: o.td[0],
    "td[1:5]": lambda o: o.td[1:5],
    "td[index]": lambda o: o.td[o.index],
    "td[mask]": lambda o: o.td[o.mask],
    "td[0] = td": lambda o: o.td.__setitem__(0, o.other[0]),
    "td.reshape(2, 4)": lambda o: o.td.reshape(2, 4),
    "td.unsqueeze(0)": lambda o: o.td.unsqueeze(0),
    "td.expand(2, 8)": lambda o: o.td.expand(2, SIZE),
    "td.split(4)": lambda o: o.td.split(4),
    "td.unbind(0)": lambda o: o.td.unbind(0),
    "torch.stack([td, td])": lambda o: torch.stack([o.td, o.other]),
    "torch.cat([td, td])": lambda o: torch.cat([o.td, o.other]),
    "td.lock_().unlock_()": lock_and_unlock,
}


def make_tables(packages: Iterable[str]) -> list[Table]:
    """Return the table of times, with the speed-up over the first package."""
    packages = list(packages)
    first, last = packages[0], packages[-1]
    table = Table(
        f"Eager operations, {SIZE} leaves of {SIZE}x4",
        ["operation", *packages, "speed-up"],
        notes=[f"Speed-up: time of {first} over time of {last}, the median of the rounds' ratios."],
    )
    operands = {package: make_operands(tensordict_class(package)) for package in packages}
    speedups = []
    for name, operation in OPERATIONS.items():
        cases, cells = {}, dict.fromkeys(packages, "")
        for package, o in operands.items():
            try:
                operation(o)
            except Exception as error:  # a missing operation is a result
                cells[package] = type(error).__name__
            else:
                cases[package] = lambda operation=operation, o=o: operation(o)
        timings = measure(cases, rounds=31, block_us=1000, warmup_us=5000) if cases else {}
        cells |= {package: str(timing) for package, timing in timings.items()}
        speedup = ""
        if len(timings) == len(packages):
            speedups.append(ratio(timings[first], timings[last]))
            speedup = f"{speedups[-1]:.2f}"
        table.rows.append([name, *cells.values(), speedup])
    mean = f"{statistics.geometric_mean(speedups):.2f}" if speedups else ""
    table.rows.append([f"geometric mean of {len(speedups)}", *([""] * len(packages)), mean])
    return [table]


if __name__ == "__main__":
    run_benchmark(make_tables)

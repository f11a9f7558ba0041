"""Count compilations of one function over inputs that differ in what its code does not name.

Every row is a piece of code over a tensordict ``td`` and a further value ``v``, and a series of
inputs. ``fullgraph=True``; the graph runs as it is. Fewer is better; the column "goal" is what the
code itself asks for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from packages import CountingBackend, tensordict_class, use
from report import Table, run_benchmark

Arguments = tuple[Any, ...]
Inputs = Callable[[Any], Iterable[Arguments]]  # from the class TensorDict


def build(td_class: Any, size: int = 2, **entries: Any) -> Any:
    """Return a tensordict (size,) with "x", "w", ("n", "y") and `entries`."""
    base = {"x": torch.ones(size), "w": torch.ones(size), "n": {"y": torch.ones(size)}}
    return td_class({**base, **entries}, batch_size=[size])


def other_keys(td_class: Any, number: int = 8) -> Iterable[Arguments]:
    """Yield tensordicts with 0, 1, 2, ... keys more, also in the nested one."""
    for extra in range(number):
        td = build(td_class)
        for i in range(extra):
            td[f"k{i}"] = td["n", f"k{i}"] = torch.ones(2)
        yield td, torch.zeros(2)


def presence(td_class: Any) -> Iterable[Arguments]:
    """Yield tensordicts with and without "w" and ("n", "y")."""
    for index in range(8):
        td = build(td_class)
        if index % 2:
            del td["w"]
            del td["n", "y"]
        yield td, torch.zeros(2)


def same_object(td_class: Any) -> Iterable[Arguments]:
    """Yield one tensordict twice."""
    td = build(td_class)
    yield from [(td, torch.zeros(2))] * 2


def other_order(td_class: Any) -> Iterable[Arguments]:
    """Yield the same keys in four orders."""
    for keys in ("xwk", "kwx", "wxk", "kxw"):
        yield td_class({key: torch.ones(2) for key in keys}, batch_size=[2]), None


def three_key_sets(td_class: Any) -> Iterable[Arguments]:
    """Return tensordicts with 0, 1 and 2 keys more."""
    return other_keys(td_class, 3)


def batch_sizes(td_class: Any) -> Iterable[Arguments]:
    """Yield five batch sizes."""
    for size in (3, 4, 5, 6, 7):
        yield build(td_class, size), None


def marked_batch_sizes(td_class: Any) -> Iterable[Arguments]:
    """Yield five batch sizes, dimension 0 of "x" marked dynamic."""
    for td, value in batch_sizes(td_class):
        torch._dynamo.mark_dynamic(td["x"], 0)
        yield td, value


def even_batch_sizes(td_class: Any) -> Iterable[Arguments]:
    """Yield four even batch sizes."""
    for size in (4, 6, 8, 10):
        yield build(td_class, size), None


def split_sizes(td_class: Any) -> Iterable[Arguments]:
    """Yield four batch sizes, each with two sizes to split into."""
    for size in (4, 6, 8, 10):
        yield build(td_class, size), [2, size - 2]


def lazy_stacks(td_class: Any) -> Iterable[Arguments]:
    """Yield lazy stacks of four lengths."""
    for length in (2, 3, 4, 5):
        yield td_class.lazy_stack([build(td_class) for _ in range(length)]), None


def further_tensorclasses(td_class: Any) -> Iterable[Arguments]:
    """Yield four tensordicts; before each but the first a tensorclass is defined."""
    package = importlib.import_module(td_class.__module__.split(".")[0])
    for index in range(4):
        if index:
            package.tensorclass(type(f"Further{index}", (), {"__annotations__": {"x": Any}}))
        yield build(td_class), None


def strings(td_class: Any) -> Iterable[Arguments]:
    """Yield tensordicts that carry different strings."""
    for text in ("red", "green", "blue", "grey"):
        yield build(td_class, colour=text), None


def lock_states(td_class: Any) -> Iterable[Arguments]:
    """Yield an unlocked and a locked tensordict."""
    yield build(td_class), None
    yield build(td_class).lock_(), None


def name_states(td_class: Any) -> Iterable[Arguments]:
    """Yield tensordicts without and with dimension names."""
    yield build(td_class), None
    td = build(td_class)
    td.names = ["time"]
    yield td, None


def device_states(td_class: Any) -> Iterable[Arguments]:
    """Yield tensordicts without and with a device."""
    yield build(td_class), None
    yield build(td_class).to("cpu"), None


@dataclass(frozen=True)
class Row:
    """Code over `td` and `v`, its inputs, and the number of compilations to aim at."""

    code: str
    inputs: Inputs
    goal: int
    dynamic: bool | None = None


@dataclass(frozen=True)
class Group:
    """Rows of one kind; `varies` says what the inputs differ in."""

    varies: str
    rows: tuple[Row, ...]


def rows(inputs: Inputs, goal: int, *codes: str, dynamic: bool | None = None) -> tuple[Row, ...]:
    """Return a row for each of `codes`."""
    return tuple(Row(code, inputs, goal, dynamic) for code in codes)


RETURN = "return "
NEW_TD = 'return TensorDict({"y": td["x"] * 2}, batch_size=td.batch_size)'

GROUPS = (
    Group(
        "other keys, 8 inputs",
        rows(
            other_keys,
            1,
            'td["x"] = v',
            'td["new"] = v',
            'td["n", "new"] = v',
            'td.set("new", v)',
            'td.set_("x", v)',
            'td.update({"x": v, "new": v})',
            'td.update_({"x": v})',
            'td.setdefault("new", v)',
            'del td["w"]',
            'td.pop("w")',
            'td.rename_key_("w", "z")',
        ),
    ),
    Group(
        "other keys, 8 inputs",
        rows(
            other_keys,
            1,
            'return "w" in td.keys()',
            'return ("n", "y") in td.keys(True)',
            'return td.get("w", v)',
            'return td.get("absent", v)',
        ),
    ),
    Group(
        "the key itself, 8 inputs",
        rows(
            presence,
            2,
            'return "w" in td.keys()',
            'return ("n", "y") in td.keys(True)',
            'return td.get("w", v)',
            'return td.get(("n", "y"), v)',
        ),
    ),
    Group(
        "other keys, 8 inputs",
        rows(
            other_keys,
            1,
            "return td.replace(x=v)",
            'return td.exclude("w")',
            'return td.select("x")',
            "return td.copy()",
            "return td.clone(False)",
        ),
    ),
    Group(
        "nothing, 2 calls",
        rows(same_object, 1, 'td["new"] = v', 'td["n", "new"] = v', 'td.update({"new": v})'),
    ),
    Group("key order, 4 inputs", rows(other_order, 1, "return td + 1")),
    Group("key set, 3 inputs", rows(three_key_sets, 3, "return td + 1")),
    Group("batch size, 5 inputs", rows(batch_sizes, 2, "return td + 1", NEW_TD)),
    Group(
        "batch size, 5 inputs",
        rows(batch_sizes, 1, "return td + 1", NEW_TD, dynamic=True),
    ),
    Group(
        "marked batch size, 5 inputs",
        rows(marked_batch_sizes, 1, "return td + 1", NEW_TD),
    ),
    Group(
        "batch size, 4 inputs",
        (
            Row("return td.chunk(2)", even_batch_sizes, 1, dynamic=True),
            Row("return td.split(v)", split_sizes, 1, dynamic=True),
        ),
    ),
    Group(
        "lazy stack length, 4 inputs",
        rows(lazy_stacks, 1, 'return td["x"] * 2', "return td + 1")
        + rows(lazy_stacks, 1, 'return td["x"] * 2', "return td + 1", dynamic=True),
    ),
    Group(
        "a tensorclass defined meanwhile, 4 inputs",
        rows(further_tensorclasses, 1, "return torch.utils._pytree.tree_flatten(td)[0]"),
    ),
    Group("a string, 4 inputs", rows(strings, 1, "return td + 1")),
    Group(
        "locked or not, 2 inputs",
        rows(lock_states, 1, 'return td["x"] + 1', "return td + 1"),
    ),
    Group(
        "names or none, 2 inputs",
        rows(name_states, 1, 'return td["x"] + 1', "return td + 1"),
    ),
    Group(
        "device or none, 2 inputs",
        rows(device_states, 1, 'return td["x"] + 1', "return td + 1"),
    ),
)


def make_function(code: str, td_class: Any) -> Callable[..., Any]:
    """Return a new function of (td, v) that runs `code`, and work on "x": no graph without."""
    namespace = {"torch": torch, "TensorDict": td_class}
    work = "td['x'] * 2"
    body = f"return {work}, {code.removeprefix(RETURN)}" if code.startswith(RETURN) else code
    exec(f"def function(td, v):\n    {body}\n    return {work}\n", namespace)  # text, to be printed
    return namespace["function"]


def count_compilations(row: Row, td_class: Any) -> str:
    """Return the number of compilations for the inputs of `row`, or the error that it ends with."""
    torch.compiler.reset()
    backend = CountingBackend()
    function = torch.compile(
        make_function(row.code, td_class), backend=backend, fullgraph=True, dynamic=row.dynamic
    )
    try:
        for arguments in row.inputs(td_class):
            function(*arguments)
    except Exception as error:  # a row that fails is a result
        return type(error).__name__
    return str(backend.num_graphs)


def make_tables(packages: Iterable[str]) -> list[Table]:
    """Return one table with the counts of all packages."""
    counts: dict[str, dict[Row, str]] = {}
    # A count of 8 must be the number of inputs and not the limit.
    with torch._dynamo.config.patch(recompile_limit=64):
        for package in packages:
            use(package)
            td_class = tensordict_class(package)
            counts[package] = {
                row: count_compilations(row, td_class) for group in GROUPS for row in group.rows
            }
    table = Table("Compilations", ["code", "what varies", *counts, "goal"], num_labels=2)
    for group in GROUPS:
        for row in group.rows:
            code = f"{row.code.removeprefix(RETURN)}{', dynamic=True' * bool(row.dynamic)}"
            cells = [counts[package][row] for package in counts]
            table.rows.append([code, group.varies, *cells, str(row.goal)])
    met = {p: sum(counts[p][r] == str(r.goal) for g in GROUPS for r in g.rows) for p in counts}
    table.rows.append(
        ["rows at the goal", "", *(str(n) for n in met.values()), str(len(table.rows))]
    )
    return [table]


if __name__ == "__main__":
    run_benchmark(make_tables)

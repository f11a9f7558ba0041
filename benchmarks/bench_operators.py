"""Try every operator between a tensordict and a tensor or number with ``fullgraph=True``.

A cell is "whole" where the compiled function gives eager's result in one graph for every operand;
otherwise it names the operands that do not. What the package refuses in eager mode is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from packages import CountingBackend, tensordict_class, use
from report import Table, run_benchmark
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

OPERANDS: dict[str, Callable[[torch.dtype], Tensor | int]] = {
    "0-d": lambda dtype: torch.tensor(2).to(dtype),
    "batch": lambda dtype: torch.tensor([1, 2, 1]).to(dtype),
    "int": lambda dtype: torch.tensor(2),
    "number": lambda dtype: 2,
}
ARITHMETIC = ("+", "-", "*", "/", "**", "//", "%")
COMPARISON = ("==", "!=", "<", "<=", ">", ">=")
BITWISE = ("&", "|", "^")


@dataclass(frozen=True)
class Form:
    """How an operator is written; `code` gets the operator as `op`."""

    name: str
    code: str
    operators: tuple[str, ...]


FORMS = (
    Form("td {op} t", "return td {op} t", (*ARITHMETIC, *COMPARISON, *BITWISE)),
    Form("t {op} td", "return t {op} td", (*ARITHMETIC, *COMPARISON, *BITWISE)),
    Form("td {op}= t", "td {op}= t\n    return td", (*ARITHMETIC, *BITWISE)),
)


def build(td_class: Any, dtype: torch.dtype) -> Any:
    """Return a tensordict (3,) with a nested one, all leaves of `dtype` and shape (3,)."""
    leaf = torch.tensor([1, 2, 3]).to(dtype)
    entries = {"x": leaf.clone(), "n": {"y": leaf.clone() + leaf.clone()}}
    return td_class(entries, batch_size=[3])


def make_function(form: Form, operator: str) -> Callable[[Any, Tensor], Any]:
    """Return a new function of (td, t) that applies `operator` the way `form` says."""
    namespace: dict[str, Any] = {}
    exec(f"def function(td, t):\n    {form.code.format(op=operator)}\n", namespace)
    return namespace["function"]


def is_same(found: Any, expected: Any) -> bool:
    """Return whether both are the same kind of thing with equal leaves of equal dtype."""
    if type(found) is not type(expected):
        return False
    if isinstance(expected, Tensor):
        return found.dtype == expected.dtype and torch.equal(found, expected)
    if not hasattr(expected, "keys"):
        return found == expected
    keys = list(expected.keys())
    return list(found.keys()) == keys and all(is_same(found[k], expected[k]) for k in keys)


def try_operator(form: Form, operator: str, td_class: Any, operand: str) -> bool | None:
    """Return whether it compiles whole with eager's result; None where eager refuses."""
    dtype = torch.int64 if operator in BITWISE else torch.float32
    function = make_function(form, operator)
    tensor = OPERANDS[operand](dtype)
    try:
        expected = function(build(td_class, dtype), tensor)
    except Exception:  # whatever eager raises: nothing to compile
        return None
    torch.compiler.reset()
    compiled = torch.compile(function, backend=CountingBackend(), fullgraph=True)
    try:
        return is_same(compiled(build(td_class, dtype), tensor), expected)
    except Exception:  # a combination that fails is a result
        return False


def make_tables(packages: Iterable[str]) -> list[Table]:
    """Return the operator matrix of all packages."""
    outcomes: dict[str, dict[tuple[Form, str], dict[str, bool]]] = {}
    for package in packages:
        use(package)
        td_class = tensordict_class(package)
        outcomes[package] = {}
        for form in FORMS:
            for operator in form.operators:
                tried = {name: try_operator(form, operator, td_class, name) for name in OPERANDS}
                outcomes[package][form, operator] = {
                    k: v for k, v in tried.items() if v is not None
                }
    table = Table("Operators, fullgraph=True", ["code", *outcomes])
    for form in FORMS:
        for operator in form.operators:
            cells = [describe(outcomes[package][form, operator]) for package in outcomes]
            table.rows.append([form.name.format(op=operator), *cells])
    totals = [[ok for o in outcomes[p].values() for ok in o.values()] for p in outcomes]
    table.rows.append(["whole, of all", *(f"{sum(oks)} of {len(oks)}" for oks in totals)])
    table.notes = [
        "t: a tensor (0-d, of the batch's shape, 0-d integer) or a number. '-': eager refuses all."
    ]
    return [table]


def describe(outcome: dict[str, bool]) -> str:
    """Return "whole", or the operands that fail."""
    failing = [name for name, ok in outcome.items() if not ok]
    if not outcome:
        return "-"
    if not failing:
        return "whole"
    return "fails" if len(failing) == len(outcome) else f"fails: {', '.join(failing)}"


if __name__ == "__main__":
    run_benchmark(make_tables)

"""What a compiled tensordict function is guarded on: small programs and their guards, as data.

Key names: :data:`ROWS`, :func:`found_guards` (what a row's program is guarded on), :func:`table`
(the Markdown table of ``docs/guards.md``).

Invariant: the guards are read by public means, ``guard_filter_fn`` of ``torch.compile``. Listed are
those on the tensordict beside its type guard; ``test_docs.py`` compares each row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

import tdcompile
from tdcompile import TensorDict

__all__ = ["ROWS", "Row", "found_guards", "table"]


@dataclass(frozen=True)
class Row:
    """One program.

    Attributes:
        code: the body of a function of ``td`` and a tensor ``x``, its statements apart by ``; ``.
        guards: kind and expression of each guard on ``td`` beside ``TYPE_MATCH td``, sorted.
        words: the same in words.
    """

    code: str
    guards: tuple[str, ...]
    words: str


_DEVICE = "CONSTANT_MATCH td._device"
_LOCK = "CONSTANT_MATCH td._is_locked"
_DIMS = "SEQUENCE_LENGTH td._batch_size"
_SIZE = "CONSTANT_MATCH td._batch_size[0]"
_KEYS = "DICT_KEYS_MATCH td._entries"
_A = "TENSOR_MATCH td._entries['a']"
_N = "TYPE_MATCH td._entries['n']"

ROWS = (
    Row("return td", (), "nothing: it is only carried along"),
    Row('return td["a"] + 1', (_A,), "the leaf; reading it checks that the key is there"),
    Row(
        'return td["n", "x"] + 1',
        ("TENSOR_MATCH td._entries['n']._entries['x']", _N),
        "the type of each tensordict on the path, and the leaf",
    ),
    Row('return "a" in td.keys()', ("DICT_CONTAINS td._entries",), "the presence of this key"),
    Row(
        'return td.get("absent", None)',
        ("DICT_NOT_CONTAINS td._entries",),
        "the absence of this key",
    ),
    Row(
        'td["y"] = td["a"] + 1',
        (_DEVICE, _LOCK, _DIMS, _A),
        "what a write checks: device, lock, number of batch dimensions; no key that is written",
    ),
    Row(
        'td["y"] = x',
        (_SIZE, _DEVICE, _LOCK, _DIMS),
        "as above; no leaf was read that tells the batch size, so its sizes",
    ),
    Row('del td["a"]', (_LOCK, "DICT_CONTAINS td._entries"), "the lock, and that the key is there"),
    Row("return td.copy()", (), "nothing; `td.clone(False)` neither"),
    Row(
        'return td.exclude("b")',
        (_SIZE, "DICT_CONTAINS td._entries", _DIMS),
        "the presence of the key, and the batch size",
    ),
    Row('return td.set_("a", td["a"] + 1)', (_A,), "the leaf"),
    Row(
        "return td * 2",
        (
            _KEYS,
            "DICT_KEYS_MATCH td._entries['n']._entries",
            _A,
            "TENSOR_MATCH td._entries['b']",
            "TENSOR_MATCH td._entries['n']._entries['x']",
            _N,
        ),
        "the set of keys and each leaf; not the order of keys, not the batch size",
    ),
    Row("return len(td.keys())", (_KEYS,), "the set of keys"),
    Row("return list(td.keys())", (_KEYS,), "the set of keys and their order"),
    Row("return x.new_zeros(td.batch_size)", (_SIZE, _DIMS), "the batch size"),
    Row(
        'return td["a"] + x.new_zeros(td.batch_size[0], 1)',
        (_DIMS, _A),
        "the number of batch dimensions; the sizes are those of the leaf, dynamic if it is",
    ),
    Row("return x.to(td.device)", (_DEVICE,), "the device"),
    Row("return x if td.is_locked else -x", (_LOCK,), "the lock"),
)


def program_of(row: Row):
    """The function of a row."""
    scope: dict = {}
    exec(f"def program(td, x):\n    {row.code}", {"torch": torch}, scope)
    return scope["program"]


def example() -> TensorDict:
    """What each program gets."""
    nested = {"x": torch.ones(3, 2)}
    return TensorDict({"a": torch.ones(3, 2), "b": torch.ones(3), "n": nested}, batch_size=[3])


def found_guards(row: Row) -> tuple[str, ...]:
    """The guards on ``td`` of a row's program beside its type, sorted."""
    found: list[str] = []

    def keep_all(entries):
        found.extend(f"{entry.guard_type} {entry.name}" for entry in entries)
        return [True] * len(entries)

    torch.compiler.reset()
    with tdcompile.install():
        torch.compile(
            program_of(row), backend="eager", fullgraph=True, options={"guard_filter_fn": keep_all}
        )(example(), torch.ones(3))
    on_td = {text for text in found if text.split(" ")[1].startswith("td")}
    return tuple(sorted(on_td - {"TYPE_MATCH td"}))


def table() -> str:
    """The rows as a Markdown table."""
    lines = ["| the code | guards on `td` beside its type | in words |", "|---|---|---|"]
    for row in ROWS:
        guards = "<br>".join(f"`{text}`" for text in row.guards) or "none"
        lines.append(f"| `{row.code}` | {guards} | {row.words} |")
    return "\n".join(lines)

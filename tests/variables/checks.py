"""Eager against compiled, for programs over tensordicts: values, structure, identity and counts.

Key names: :func:`check` (one program, many inputs), :func:`td` (a small tensordict),
:class:`Holder` (an object with attributes), :func:`with_extras` (inputs that differ in keys which a
program does not name).

Invariant: the oracle is the same program run eagerly on a copy of the inputs. Compared are results
and the caller's inputs afterwards: values, key order, batch size, device, names, lock, and which
object is which (a leaf that was only carried along is the very same object).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

import tdcompile
from tdcompile import TensorDict, is_non_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

EXTRAS = (
    (),
    ("p",),
    ("p", "q"),
    ("q", "p"),
    ("r",),
    ("s", "p", "r"),
    ("zz", "q"),
    ("p", "q", "r", "s"),
)


def td(batch: int = 3, *, nested: bool = True, shift: float = 0.0, **entries: Any) -> TensorDict:
    """A tensordict ``{"a": (B, 2), "b": (B,), "n": {"x": (B, 2), "y": (B,)}}`` and more entries."""
    source: dict[str, Any] = {
        "a": torch.arange(batch * 2.0).reshape(batch, 2) + shift,
        "b": torch.arange(float(batch)) - shift,
    }
    if nested:
        x = torch.ones(batch, 2) + shift
        source["n"] = TensorDict({"x": x, "y": torch.full((batch,), 2.0)}, batch_size=[batch])
    source.update(entries)
    return TensorDict(source, batch_size=[batch])


def with_extras(
    make: Callable[[], TensorDict] = td, *, first: bool = True, nested: bool = True
) -> list[tuple[TensorDict]]:
    """Inputs of one program which differ in keys that it does not name, also in nested ones."""
    inputs = []
    for names in EXTRAS:
        base = make()
        more = {name: torch.full((base.batch_size[0],), float(i)) for i, name in enumerate(names)}
        before = dict(list(more.items())[::2]) if first else {}
        value = TensorDict(before, batch_size=base.batch_size)
        for key, entry in base.items():
            value[key] = entry
        for key, entry in more.items():
            value[key] = entry
        if nested and "n" in base.keys():  # noqa: SIM118 - a tensordict iterates over its rows
            for key, entry in more.items():
                value["n"][key] = entry + 1
        inputs.append((value,))
    return inputs


class Holder:
    """An object with attributes."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def entries_of(value: Any) -> dict[str, Any] | None:
    """The dictionary of entries of a tensordict of either package, or None."""
    if isinstance(value, TensorDict):
        return value._entries
    if type(value).__module__ == "tensordict._td" and type(value).__name__ == "TensorDict":
        return value._tensordict
    return None


class Outcome:
    """What a call did, with each object numbered by the order in which it was met."""

    def __init__(self, args: Any) -> None:
        self._labels: dict[int, int] = {}
        self._alive: list[Any] = []
        self._describe(args)
        self.raised: BaseException | None = None

    def after(self, args: Any, result: Any) -> Any:
        self._met: set[int] = set()
        return self._describe((args, result))

    def _describe(self, value: Any) -> Any:
        if isinstance(value, (str, int, float, bool, type(None), torch.Size, torch.dtype)):
            return value
        label = self._labels.setdefault(id(value), len(self._labels))
        self._alive.append(value)
        if label in getattr(self, "_met", ()):
            return ("again", label)
        if hasattr(self, "_met"):
            self._met.add(label)
        if isinstance(value, torch.Tensor):
            return ("tensor", label, value.requires_grad, value.detach().clone())
        if is_non_tensor(value):
            kind = type(value).__name__
            return ("non-tensor", kind, label, tuple(value.batch_size), value.tolist())
        entries = entries_of(value)
        if entries is not None:
            fields = tuple(value.batch_size), value.device, tuple(value.names), value.is_locked
            return (
                "tensordict",
                label,
                fields,
                [(k, self._describe(v)) for k, v in entries.items()],
            )
        if isinstance(value, dict):
            return ("dict", label, [(k, self._describe(v)) for k, v in value.items()])
        if isinstance(value, (list, tuple)):
            # The label of a tuple is no promise: eager and compiled code may share a constant.
            return (type(value).__name__, [self._describe(item) for item in value])
        if isinstance(value, BaseException):
            return ("raised", type(value), str(value))
        if type(value).__module__.startswith(("torch", "builtins")):
            return repr(value)
        return ("object", label, [(k, self._describe(v)) for k, v in vars(value).items()])


def same(left: Any, right: Any, at: str = "") -> Iterator[str]:
    """The differences of two descriptions, as text."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        try:
            torch.testing.assert_close(right, left, equal_nan=True)
        except AssertionError as error:
            yield f"{at}: {error}"
    elif isinstance(left, (list, tuple)) and type(left) is type(right) and len(left) == len(right):
        for index, (a, b) in enumerate(zip(left, right, strict=True)):
            yield from same(a, b, f"{at}.{index}")
    elif type(left) is not type(right) or left != right:
        yield f"{at}: eager {left!r}, compiled {right!r}"


def duplicate(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """A deep copy that keeps which object is which, marks of dynamic dimensions included."""
    memo = {} if memo is None else memo
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, torch.Tensor):
        copied = value.detach().clone().requires_grad_(value.requires_grad)
    elif is_non_tensor(value):
        copied = value.clone()
    elif (entries := entries_of(value)) is not None:
        names = value.names if any(value.names) else None
        copied = type(value)({}, batch_size=value.batch_size, device=value.device, names=names)
        memo[id(value)] = copied
        for key, entry in entries.items():
            entries_of(copied)[key] = duplicate(entry, memo)
        if value.is_locked:
            copied.lock_()
    elif isinstance(value, dict):
        copied = memo[id(value)] = {}
        copied.update({key: duplicate(item, memo) for key, item in value.items()})
    elif isinstance(value, list):
        copied = memo[id(value)] = []
        copied += [duplicate(item, memo) for item in value]
    elif isinstance(value, tuple) and type(value) is tuple:
        copied = tuple(duplicate(item, memo) for item in value)
    elif isinstance(value, Holder):
        copied = memo[id(value)] = Holder()
        vars(copied).update({key: duplicate(item, memo) for key, item in vars(value).items()})
    else:
        return value
    memo[id(value)] = copied
    return copied


def outcome_of(program: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What a call returns or raises and what it leaves of its arguments, as comparable data."""
    outcome = Outcome(args)
    try:
        result = program(*args)
    except Exception as error:
        result = error
    return outcome.after(args, result)


@dataclass
class Report:
    """Counts of one program over all its inputs."""

    graphs: list[torch.fx.GraphModule]
    breaks: int
    last: Any

    @property
    def num_nodes(self) -> int:
        """Calls in the last graph."""
        return sum(node.op.startswith("call_") for node in self.graphs[-1].graph.nodes)


def check(
    program: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    graphs: int = 1,
    breaks: int | None = 0,
    backend: str = "eager",
    dynamic: bool | None = None,
) -> Report:
    """Run `program` eagerly and compiled over all inputs; compare outcomes and counts.

    Args:
        program: a function; it must use a tensor operation, or there is no graph to count.
        inputs: tuples of arguments (or single arguments).
        graphs: how many there must be, all inputs together; without a break one a compilation.
        breaks: how many graph breaks there must be; 0 means ``fullgraph=True``, None any number
            (upstream does not count a break at a data-dependent branch).
        backend: of ``torch.compile``.
        dynamic: of ``torch.compile``.
    """
    calls = [args if isinstance(args, tuple) else (args,) for args in inputs]
    # One copy of all inputs: an object that several calls share is shared there, too.
    expected = [outcome_of(program, args) for args in duplicate(list(calls))]
    torch._dynamo.reset()
    counters.clear()
    counter = CompileCounterWithBackend(backend)
    with tdcompile.install(strict=True):
        compiled = torch.compile(program, backend=counter, fullgraph=breaks == 0, dynamic=dynamic)
        found = [outcome_of(compiled, args) for args in calls]
        num_breaks = sum(counters["graph_break"].values())
    for index, (eager, outcome) in enumerate(zip(expected, found, strict=True)):
        differences = list(same(eager, outcome))
        assert not differences, f"input {index}: " + "; ".join(differences)
    assert counter.frame_count == graphs, f"expected {graphs} graphs, found {counter.frame_count}"
    assert breaks in (None, num_breaks), f"expected {breaks} breaks, found {num_breaks}"
    return Report(counter.graphs, num_breaks, found[-1] if found else None)

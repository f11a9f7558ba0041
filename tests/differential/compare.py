"""Run a program eager and compiled, and say where the two disagree.

Key names: :func:`disagreement` (None, or the first difference as text), :func:`minimise`,
:func:`reproducer` (a script), :class:`Case`.

What is compared after every call: the result and the caller's arguments with key order, values,
dtype, batch size, names, device and lock; which objects are one and the same, and which are those
that the caller passed; which tensors share memory; the exception and its message; and which
tensordicts can be unlocked afterwards.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch._dynamo.testing import CompileCounterWithBackend

import tdcompile
from tdcompile import TensorDict, is_non_tensor
from tests.differential.inputs import Spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.differential.programs import Program


#: Errors that only running an operation shows. Dynamo writes side effects after the graph has run,
#: so what was written before such an error is lost, with tensordicts as with plain dictionaries.
_RUN_TIME_ERRORS = ("refer to a single memory location",)

_WHERE = "\n\nfrom user code:"


@dataclass(frozen=True)
class Case:
    """One program, the specs of its inputs, and how it is compiled (`backend` None: not at all)."""

    program: Program
    specs: tuple[Spec, ...]
    backend: str | None = "eager"
    fullgraph: bool = False
    dynamic: bool | None = None


class _Describer:
    """Turns values into plain data; an object is named by its place in the caller's arguments or,
    if the call made it, by the order in which it is met."""

    def __init__(self) -> None:
        self._objects: dict[int, tuple[Any, str]] = {}
        # Counted apart: a backend other than "eager" may make one tensor for two equal ones.
        self._tensors: dict[int, tuple[Any, str]] = {}
        self._storages: dict[int, str] = {}
        self._prefix = "argument"

    def note_arguments(self, args: Any) -> None:
        self.describe(args)
        self._prefix = "made"

    def _label(self, value: Any, table: dict[int, Any]) -> tuple[str, bool]:
        found = table.get(id(value))
        if found is None:
            number = sum(name.startswith(self._prefix) for _, name in table.values())
            found = table[id(value)] = (value, f"{self._prefix} {number}")
            return found[1], True
        return found[1], False

    def describe(self, value: Any, done: set[int] | None = None) -> Any:
        """Plain data; a tensordict that comes again is only named."""
        done = set() if done is None else done
        if isinstance(value, TensorDict):
            label, _ = self._label(value, self._objects)
            if id(value) in done:
                return {"kind": "tensordict", "object": label}
            done.add(id(value))
            return {
                "kind": "tensordict",
                "object": label,
                "batch_size": value.batch_size,
                "device": value.device,
                "names": list(value.names),
                "is_locked": value.is_locked,
                "keys": list(value._entries),
                "entries": {key: self.describe(x, done) for key, x in value._entries.items()},
            }
        if is_non_tensor(value):
            label, _ = self._label(value, self._objects)
            return {
                "kind": "non-tensor",
                "object": label,
                "type": type(value),
                "data": value.tolist(),
                "batch_size": value.batch_size,
            }
        if isinstance(value, torch.Tensor):
            return self._describe_tensor(value)
        if isinstance(value, dict):
            return {
                "kind": "dict",
                "keys": list(value),
                "entries": {key: self.describe(x, done) for key, x in value.items()},
            }
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            return {
                "kind": type(value).__name__,
                "entries": dict(enumerate(self.describe(x, done) for x in value)),
            }
        return {"kind": type(value).__name__, "value": value}

    def _describe_tensor(self, value: torch.Tensor) -> Any:
        label, _ = self._label(value, self._tensors)
        storage = value.untyped_storage().data_ptr()
        if storage not in self._storages and value.numel() > 0:
            self._storages[storage] = f"{self._prefix} storage {len(self._storages)}"
        return {
            "kind": "tensor",
            "object": label,
            "dtype": value.dtype,
            "shape": value.shape,
            "requires_grad": value.requires_grad,
            "has_grad_fn": value.grad_fn is not None,
            "strides": value.stride() if value.numel() > 1 else None,
            "storage": self._storages.get(storage),
            "values": value.detach().clone().reshape(-1).tolist(),
        }


def _same_number(left: Any, right: Any, exact: bool) -> bool:
    if left == right or (left != left and right != right):
        return True
    if exact or not isinstance(left, float):
        return False
    return math.isclose(left, right, rel_tol=1e-4, abs_tol=1e-4)


def _difference(left: Any, right: Any, where: str, backend: str | None) -> str | None:
    if isinstance(left, dict) and isinstance(right, dict):
        if left.keys() != right.keys():
            return f"{where}: eager {list(left)}, compiled {list(right)}"
        # Values last: what an object is tells more than what is in it.
        for key in left:
            if key in ("storage", "strides") and backend not in (None, "eager"):
                # AOTAutograd promises values and input mutations; an output that it made may share
                # less memory with others than in eager.
                continue
            if (
                key == "object"
                and left["kind"] == "tensor"
                and backend not in (None, "eager")
                and left[key].startswith("made")
                and right[key].startswith("made")
            ):
                continue
            name = where if key == "entries" else f"{where}.{key}"
            if where.endswith("entries") or isinstance(key, int):
                name = f"{where}[{key!r}]"
            found = _difference(left[key], right[key], name, backend)
            if found is not None:
                return found
        return None
    if where.endswith(".values") and isinstance(left, list) and isinstance(right, list):
        exact = backend != "inductor"
        if len(left) == len(right) and all(
            _same_number(x, y, exact) for x, y in zip(left, right, strict=True)
        ):
            return None
        return f"{where}: eager {left}, compiled {right}"
    if type(left) is type(right) and left == right:
        return None
    return f"{where}: eager {left!r}, compiled {right!r}"


def _call(function: Callable[..., Any], spec: Spec) -> Any:
    """Call on fresh arguments; plain data of everything that can be seen afterwards."""
    args = spec.build()
    describer = _Describer()
    describer.note_arguments(args)
    result = error = None
    try:
        result = function(*args)
    except Exception as raised:
        if type(raised).__module__.startswith("torch._dynamo"):
            raise
        # Dynamo adds where in the program an operation refused its operands.
        error = f"{type(raised).__name__}: {str(raised).partition(_WHERE)[0]}"
    if error is not None and any(text in error for text in _RUN_TIME_ERRORS):
        return {"error": error}
    seen = {
        "error": error,
        "arguments": describer.describe(args),
        "result": describer.describe(result),
    }
    seen["unlock"] = _unlocks((args, result))
    return seen


def _tensordicts(value: Any, found: list[TensorDict]) -> list[TensorDict]:
    """All tensordicts in a value, each once, the outermost first."""
    if isinstance(value, TensorDict):
        if any(value is known for known in found):
            return found
        found.append(value)
        value = value._entries
    if isinstance(value, (dict, list, tuple)):
        for entry in value.values() if isinstance(value, dict) else value:
            _tensordicts(entry, found)
    return found


def _unlocks(value: Any) -> list[str]:
    """Try to unlock every tensordict, the innermost first, and say what came of it."""
    outcomes = []
    for td in reversed(_tensordicts(value, [])):
        try:
            td.unlock_()
            outcomes.append("unlocked")
        except RuntimeError as raised:
            outcomes.append(str(raised))
    return outcomes


def disagreement(case: Case) -> str | None:
    """The first difference between eager and compiled over all inputs, or None."""
    torch._dynamo.reset()
    program = case.program.build()
    with warnings.catch_warnings(), torch._dynamo.config.patch(recompile_limit=64):
        warnings.simplefilter("ignore")
        if case.backend is None:
            return _first_difference(case, program, program)
        with tdcompile.install(strict=True):
            # Where install() refuses, the programs would run as with stock PyTorch, and agree.
            assert tdcompile.is_installed()
            compiled = torch.compile(
                case.program.build(),
                backend=CompileCounterWithBackend(case.backend),
                fullgraph=case.fullgraph,
                dynamic=case.dynamic,
            )
            return _first_difference(case, program, compiled)


def _first_difference(
    case: Case, program: Callable[..., Any], compiled: Callable[..., Any]
) -> str | None:
    for number, spec in enumerate(case.specs):
        expected = _call(program, spec)
        if expected["error"] is not None and expected["error"].startswith("RecursionError"):
            # A tensordict that holds itself; tracing it does not end either.
            continue
        if "result" not in expected and case.backend not in (None, "eager"):
            # AOTAutograd makes an in-place operation a new tensor, which need not refuse.
            continue
        if case.fullgraph and expected["error"] is not None:
            # A program that raises has no full graph; the rest of the inputs still counts.
            continue
        try:
            found = _call(compiled, spec)
        except torch._dynamo.exc.TorchRuntimeError as raised:
            # What torch says of an operation on fake tensors, under another name than in eager.
            if expected["error"] is None:
                return f"input {number}: the compiler raised {raised}"
            continue
        except Exception as raised:
            lines = [line for line in str(raised).splitlines() if line.strip()]
            return f"input {number}: the compiler raised {type(raised).__name__}: " + "\n".join(
                lines[:8]
            )
        difference = _difference(expected, found, "", case.backend)
        if difference is not None:
            return f"input {number}: {difference}"
    return None


def compare_calls(
    program: Callable[..., Any],
    other: Callable[..., Any],
    spec: Spec,
    backend: str | None = "eager",
) -> str | None:
    """The first difference between two functions on fresh arguments of one spec."""
    return _difference(_call(program, spec), _call(other, spec), "", backend)


def minimise(case: Case, is_bad: Callable[[Case], bool]) -> Case:
    """Leave out steps and inputs, and make what is left plainer, as long as `is_bad` holds."""
    shrunk = True
    while shrunk:
        shrunk = False
        for smaller in _smaller(case):
            if is_bad(smaller):
                case = smaller
                shrunk = True
                break
    return case


def _smaller(case: Case) -> list[Case]:
    program, specs = case.program, case.specs
    found = [replace(case, program=program.without(index)) for index in range(len(program.steps))]
    if len(specs) > 1:
        found += [
            replace(case, specs=specs[:index] + specs[index + 1 :]) for index in range(len(specs))
        ]
    results = ("None", "p", "q", "out", "out, p", "out, p, q")
    plainer = results[: results.index(program.result)] if program.result in results else results
    found += [replace(case, program=replace(program, result=result)) for result in plainer]
    plain = Spec()
    for index, spec in enumerate(specs):
        for name in Spec.__dataclass_fields__:
            if getattr(spec, name) != getattr(plain, name):
                new = replace(spec, **{name: getattr(plain, name)})
                found.append(replace(case, specs=(*specs[:index], new, *specs[index + 1 :])))
    return found


def reproducer(case: Case, difference: str) -> str:
    """A script that shows the disagreement on its own."""
    lines = ["import torch", "import tdcompile", "from tdcompile import TensorDict", ""]
    lines += ["# " + line for line in difference.splitlines()] + ["", case.program.source]
    for number, spec in enumerate(case.specs):
        body = "".join(f"    {line}\n" for line in spec.source.splitlines())
        lines.append(f"def input_{number}():\n{body}    return a, b, s, w\n")
    lines += [
        "tdcompile.install()",
        f"compiled = torch.compile(program, backend={case.backend!r}, fullgraph={case.fullgraph},"
        f" dynamic={case.dynamic})",
        f"for make in ({', '.join(f'input_{i}' for i in range(len(case.specs)))},):",
        "    for function in (program, compiled):",
        "        args = make()",
        "        try:",
        "            print(function.__name__, function(*args))",
        "        except Exception as error:",
        "            print(function.__name__, type(error), error)",
        "        print('  arguments', args)",
    ]
    return "\n".join(lines) + "\n"

"""Parameters of every public method and function: those of the reference, or a reason why not.

Key names: :data:`DEVIATIONS` (what may differ, and why).

A parameter of the reference has to be there under its name, in its place and with its default. More
parameters, and a default where the reference has none, are allowed.
"""

from __future__ import annotations

import enum
import inspect

import pytest
import tensordict as reference
import torch
from oracle import run_both

import tdcompile
from tdcompile.api_names import SECTIONS

# (holder, function, parameter) -> reason; "*" stands for any parameter.
DEVIATIONS: dict[tuple[str, str, str], str] = {
    ("TensorDict", "clamp_min", "default"): "keyword only, as for all other operations",
    ("TensorDict", "sub_", "alpha"): "keyword only, as for add_",
    **{
        ("TensorDict", name, "*"): "handed on to memmap, which has them"
        for name in ("save", "dumps")
    },
    **{
        ("package level", name, "*"): "handed on to the method of this name"
        for name in ("save", "memmap", "load", "load_memmap")
    },
    ("package level", "from_dataclass", "*"): "options of the class, taken together",
    ("package level", "tensorclass", "*"): "options of the class, taken together",
    ("package level", "from_dict", "d"): "the same function as TensorDict.from_dict",
    ("package level", "from_dict", "input_dict"): "the same function as TensorDict.from_dict",
}


def holder_of(package, title):
    return package if title == "package level" else getattr(package, title)


def functions(title):
    """Names of functions and methods that both packages have."""
    theirs, ours = holder_of(reference, title), getattr(tdcompile, title, tdcompile)
    names = set(SECTIONS[title])
    if theirs is not reference:
        names |= set(SECTIONS["TensorDict"])
    for name in sorted(names):
        if name.startswith("__") or not (hasattr(theirs, name) and hasattr(ours, name)):
            continue
        if inspect.isroutine(getattr(theirs, name)):
            yield name


def parameters(function):
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return {p.name: (i, p) for i, p in enumerate(found)}


def same_default(theirs, ours):
    """Whether defaults agree; a sentinel of the reference that means "not given" says nothing."""
    if theirs.default is theirs.empty or isinstance(theirs.default, enum.Enum):
        return True
    return ours.default is theirs.default or ours.default == theirs.default


def differences(title, name):
    """The parameters of the reference that we lack, or have elsewhere or otherwise."""
    theirs = parameters(getattr(holder_of(reference, title), name))
    ours = parameters(getattr(holder_of(tdcompile, title), name))
    if theirs is None or ours is None:
        return {"": "has no signature"}
    found = {}
    for key, (place, parameter) in theirs.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or key[0] == "_":
            continue
        if key not in ours:
            found[key] = "is missing"
            continue
        our_place, our = ours[key]
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and (
            our.kind is not our.POSITIONAL_OR_KEYWORD or our_place != place
        ):
            found[key] = "stands in another place"
        elif our.kind is our.POSITIONAL_ONLY:
            found[key] = "cannot be given by name"
        elif not same_default(parameter, our):
            found[key] = f"has the default {our.default!r}, not {parameter.default!r}"
    for key, (_, our) in ours.items():
        variadic = our.kind in (our.VAR_POSITIONAL, our.VAR_KEYWORD)
        takes_all = any(p.kind is p.VAR_POSITIONAL for _, p in theirs.values())
        if key not in theirs and not variadic and our.default is our.empty and not takes_all:
            found[key] = "must be given, and is not in the reference"
    return found


def wide(p):
    return p.TensorDict({"a": torch.arange(6.0).reshape(3, 2) + 1}, [3])


BY_NAME = {
    "addcmul": lambda p: wide(p).addcmul(other1=wide(p), other2=wide(p), value=2),
    "addcdiv_": lambda p: wide(p).addcdiv_(other1=wide(p), other2=wide(p), value=2),
    "lerp": lambda p: wide(p).lerp(end=wide(p) * 2, weight=0.5),
    "sub": lambda p: wide(p).sub(other=wide(p), alpha=3),
    "add_": lambda p: wide(p).add_(wide(p), alpha=3),
    "clamp": lambda p: wide(p).clamp(max=2, out=wide(p)),
    "std": lambda p: wide(p).std(dim=0, correction=0),
    "sum": lambda p: wide(p).sum(dim=0, keepdim=True, dtype=torch.float64),
    "swapdims": lambda p: wide(p).swapdims(axis0=0, axis1=-1),
    "copy_at_": lambda p: wide(p).copy_at_(wide(p)[0], 2, fast=False),
    "new_zeros": lambda p: wide(p).new_zeros(4, dtype=torch.int, layout=torch.strided),
    "new_empty": lambda p: wide(p).new_empty(4, device="meta", empty_lazy=True),
    "stack": lambda p: p.stack(input=[wide(p), wide(p)], dim=1),
    "cat": lambda p: p.cat(input=[wide(p), wide(p)], dim=0, out=None),
    "unknown": lambda p: wide(p).sum(dimension=0),
}


@pytest.mark.parametrize("program", BY_NAME.values(), ids=BY_NAME)
def test_arguments_given_by_name_do_what_the_oracle_does(program):
    run_both(program)


def test_torch_function_takes_operands_by_the_names_of_torch():
    found = torch.addcmul(wide(tdcompile), tensor1=wide(tdcompile), tensor2=wide(tdcompile))
    assert (found == wide(tdcompile).addcmul(wide(tdcompile), wide(tdcompile))).all()


TITLES = ("TensorDict", "package level")
CASES = [(title, name) for title in TITLES for name in functions(title)]


def allowed(title, name, key):
    return any((title, name, parameter) in DEVIATIONS for parameter in (key, "*"))


@pytest.mark.parametrize(("title", "name"), CASES, ids=[f"{t}.{n}" for t, n in CASES])
def test_signature_has_the_parameters_of_the_reference(title, name):
    found = differences(title, name)
    assert {key: what for key, what in found.items() if not allowed(title, name, key)} == {}


def test_every_deviation_is_there():
    used = {
        (title, name, parameter)
        for title, name in CASES
        for key in differences(title, name)
        for parameter in (key, "*")
    }
    assert [row for row in DEVIATIONS if row not in used] == []

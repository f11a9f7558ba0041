"""Classes with fields, made of either package, and programs over them.

Key names: :func:`classes`, :func:`outcome` (what a program gives, as plain data), :func:`check`.

A program is a few statements and an expression, separated by semicolons, over the names in
``outcome``.
"""

from __future__ import annotations

import dataclasses
import pickle
import types
import warnings
from typing import Any, NotRequired

import numpy as np
import tensordict as oracle
import torch
from tensordict import NonTensorData as OracleNonTensorData

import tdcompile.tensordict as ours

PACKAGES = (ours, oracle)
_KINDS_OF_ERRORS = (KeyError, IndexError, AttributeError, TypeError, ValueError, RuntimeError)


def classes(package):
    """The classes of this file, made of `package`."""
    base, tensorclass = package.TensorClass, package.tensorclass

    @tensorclass
    class Plain:
        x: torch.Tensor
        s: str
        y: Any = None

        def double(self):
            return self.x * 2

        @property
        def total(self):
            return self.x.sum()

    class Sub(base):
        x: torch.Tensor
        s: str = "none"
        y: torch.Tensor = None

    class Child(Sub):
        z: torch.Tensor = None

    class Node(base):
        x: torch.Tensor
        left: Node = None

    class Cast(base["autocast"]):
        # The oracle does not find `package`, which is local to this function, in a string.
        __annotations__ = {
            "x": torch.Tensor,
            "s": str,
            "i": int,
            "f": float,
            "td": package.TensorDict,
        }
        s = "none"
        i = 3
        f = 1.0
        td = None

    class NoCast(base, nocast=True):
        x: Any
        s: Any = None

    class Frozen(base["frozen"]):
        x: torch.Tensor
        s: str = "none"

    class Only(base["tensor_only"]):
        x: torch.Tensor
        y: torch.Tensor | None = None

    class Init(base):
        x: torch.Tensor
        k: dataclasses.InitVar[int] = 1
        y: torch.Tensor = None
        w: torch.Tensor = dataclasses.field(default_factory=lambda: torch.ones(3))

    class Post(base, skip_post_init_on_rebuild=True):
        x: torch.Tensor

        def __post_init__(self):
            self.x = self.x + 1

    class Rebuilt(base):
        x: torch.Tensor
        note: Any = None

        def __post_init__(self):
            self.x = self.x.abs()

    class Custom(base):
        x: torch.Tensor
        y: torch.Tensor = None

        def __init__(self, length):
            self.x = torch.arange(length)

    class Data(base):
        data: Any = None

    class Typed(package.TypedTensorDict):
        a: torch.Tensor
        b: torch.Tensor
        c: NotRequired[torch.Tensor]

    class TypedChild(Typed):
        d: torch.Tensor

    class TypedFrozen(package.TypedTensorDict["frozen"]):
        a: torch.Tensor

    class TypedShadow(package.TypedTensorDict["shadow"]):
        clone: torch.Tensor

    class Shadow(base["shadow"]):
        device: Any
        batch_size: Any = None

    found = {name: value for name, value in locals().items() if isinstance(value, type)}
    return types.SimpleNamespace(**found, TensorDict=package.TensorDict, package=package)


NAMES = {package: classes(package) for package in PACKAGES}


def plain(value: Any) -> Any:
    """What a program gave, as data that is comparable across the packages."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), tuple(value.shape), value.tolist())
    if isinstance(value, (ours.NonTensorData, OracleNonTensorData)):
        return ("non-tensor", plain(value.data))
    if isinstance(value, np.ndarray):
        return ("numpy", value.tolist())
    if isinstance(value, (tuple, list)) and type(value) is not torch.Size:
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if oracle.is_tensor_collection(value) or ours.is_tensor_collection(value):
        if isinstance(value, type):
            return value.__name__
        entries = {key: plain(item) for key, item in value.items()}
        names = list(value.names) if type(value).__name__ != "Shadow" else None
        return (type(value).__name__, entries, names)
    if isinstance(value, (str, int, float, bool, type(None), torch.Size, torch.device, bytes)):
        return value
    return type(value).__name__


def outcome(program: str, package: Any) -> Any:
    warnings.simplefilter("ignore")
    scope = {**vars(NAMES[package]), "torch": torch, "np": np}
    scope |= {"copy": __import__("copy"), "pickle": pickle, "dataclasses": dataclasses}
    scope["p"] = scope["Plain"](torch.arange(6.0).reshape(3, 2), "a", batch_size=[3])
    scope["q"] = scope["Plain"](torch.ones(3, 2), "b", torch.zeros(3), batch_size=[3])
    scope["td"] = scope["TensorDict"]({"x": torch.ones(3, 2), "s": "c"}, batch_size=[3])
    scope["t"] = scope["Typed"](a=torch.ones(3), b=torch.arange(6).reshape(3, 2), batch_size=[3])
    scope["n"] = scope["Node"](torch.zeros(3), scope["Node"](torch.ones(3)), batch_size=[3])
    *statements, result = program.split("; ")
    try:
        for statement in statements:
            exec(statement, scope)
        return plain(eval(result, scope))
    except Exception as error:  # what is raised is the outcome
        return error


def check(program: str) -> None:
    """Check that a program does the same on both packages, or raises errors of one kind."""
    found, expected = outcome(program, ours), outcome(program, oracle)
    if isinstance(expected, Exception):
        kind = next(kind for kind in _KINDS_OF_ERRORS if isinstance(expected, kind))
        assert isinstance(found, kind), (found, expected)
    else:
        assert found == expected

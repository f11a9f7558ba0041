"""Tensordicts of both packages, and their comparison, for the tests of leaf-wise operations.

Key names: :func:`build` (the same tensordict of either package), :func:`describe` (plain data),
:func:`both` (run one program on both packages), :func:`assert_same`.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import tensordict as oracle
import torch

import tdcompile.tensordict as ours

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGES = (ours, oracle)


def build(package: Any, dtype: torch.dtype = torch.float32, **kwargs: Any) -> Any:
    """A tensordict of batch size (3, 2) with leaves of several ranks, one of them nested."""
    a = torch.arange(1, 25).reshape(3, 2, 4).to(dtype)
    b = torch.tensor([[1, 0], [2, 1], [0, 3]]).to(dtype)
    x = torch.arange(1, 31).reshape(3, 2, 5).to(dtype)
    if dtype.is_floating_point:
        a, x = a / 25, x / 32
    nested = package.TensorDict({"x": x}, batch_size=[3, 2], device=kwargs.get("device"))
    return package.TensorDict({"b": b, "a": a, "n": nested}, batch_size=[3, 2], **kwargs)


def describe(value: Any) -> Any:
    """Turn a result into plain data that ``==`` can compare."""
    if isinstance(value, (ours.TensorDict, oracle.TensorDict)):
        return {
            "batch_size": tuple(value.batch_size),
            "device": value.device,
            "names": list(value.names),
            "is_locked": value.is_locked,
            "entries": [(key, describe(value.get(key))) for key in value.keys()],  # noqa: SIM118
        }
    if isinstance(value, torch.Tensor):
        # repr of the numbers, so that nan equals nan
        return tuple(value.shape), value.dtype, value.device, repr(value.tolist())
    if isinstance(value, tuple):
        return type(value).__name__, [describe(item) for item in value]
    if type(value).__name__ in ("NonTensorData", "NonTensorStack"):
        return "non-tensor", tuple(value.batch_size)
    return value


def both(program: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Run a program, which gets the package, on ours and on the oracle; plain data of each."""
    results = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for package in PACKAGES:
            try:
                results.append(describe(program(package)))
            except Exception as error:
                results.append(error)
    return results[0], results[1]


def assert_same(program: Callable[[Any], Any], ignore: tuple[str, ...] = ()) -> None:
    """Check that both packages give the same result, or exceptions of one kind."""
    mine, theirs = both(program)
    if isinstance(theirs, Exception):
        assert isinstance(mine, Exception), f"expected {theirs!r}, got {mine!r}"
        kinds = (KeyError, IndexError, TypeError, RuntimeError, ValueError, NotImplementedError)
        kind = next(k for k in kinds if isinstance(theirs, k))
        assert isinstance(mine, kind), f"expected {theirs!r}, got {mine!r}"
        return
    if isinstance(mine, Exception):
        raise mine
    for name in ignore:
        mine.pop(name)
        theirs.pop(name)
    assert mine == theirs

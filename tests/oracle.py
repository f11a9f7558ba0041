"""Our tensordicts beside those of the oracle, the ``tensordict`` package.

Key names: :func:`describe` (a result as plain data), :func:`to_ours` and :func:`to_oracle`
(conversion), :func:`run_both` (one program on both packages), :func:`assert_same`,
:func:`example` (the tensordict that most tests use).

A program is a function of a package, which has ``TensorDict`` and the rest of the public names.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import tensordict as oracle
import torch

import tdcompile.tensordict as ours

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "assert_same",
    "describe",
    "example",
    "oracle",
    "ours",
    "outcome",
    "run_both",
    "to_oracle",
    "to_ours",
]

_KINDS = (KeyError, TypeError, ValueError, RuntimeError, AttributeError, IndexError)


def example(package: Any, **kwargs: Any) -> Any:
    """A tensordict of batch size (3,) with two levels of nesting and a non-tensor entry."""
    entries = {
        "a": torch.arange(6.0).reshape(3, 2),
        "n": {"x": torch.arange(3.0), "d": {"z": torch.ones(3, 1)}},
        "s": "hello",
    }
    return package.TensorDict(entries, batch_size=[3], **kwargs)


def _is_td(value: Any) -> bool:
    return isinstance(value, (ours.TensorDict, oracle.TensorDict))


def describe(value: Any) -> Any:
    """Turn a result into plain data: batch size, device, names, lock, keys in order, values."""
    if _is_td(value):
        return {
            "batch_size": tuple(value.batch_size),
            "device": value.device,
            "names": list(value.names),
            "is_locked": value.is_locked,
            "entries": [(key, describe(entry)) for key, entry in value.items()],
        }
    if isinstance(value, (ours.NonTensorData, oracle.NonTensorData)):
        return ("non-tensor", value.data, tuple(value.batch_size))
    if isinstance(value, torch.Tensor):
        data = None if value.device.type == "meta" else value.tolist()
        return (value.dtype, tuple(value.shape), value.device, data)
    if isinstance(value, dict):
        return {key: describe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [describe(item) for item in value]
    return value


def _convert(td: Any, package: Any) -> Any:
    entries = {
        key: _convert(value, package)
        if _is_td(value)
        else getattr(value, "data", value)
        if not isinstance(value, torch.Tensor)
        else value
        for key, value in td.items()
    }
    names = td.names if any(name is not None for name in td.names) else None
    return package.TensorDict(entries, td.batch_size, device=td.device, names=names)


def to_ours(td: Any) -> ours.TensorDict:
    """Make ours of either, with the same leaves."""
    return _convert(td, ours)


def to_oracle(td: Any) -> oracle.TensorDict:
    """Make the oracle's of either, with the same leaves."""
    return _convert(td, oracle)


def assert_same(found: Any, expected: Any) -> None:
    """Compare results of both packages as plain data."""
    assert describe(found) == describe(expected)


def outcome(program: Callable[[Any], Any], package: Any) -> Any:
    """Run a program: its result as plain data, or the kinds of builtin errors that it raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return describe(program(package))
        except _KINDS as error:
            return {kind.__name__ for kind in _KINDS if isinstance(error, kind)}


def run_both(program: Callable[[Any], Any]) -> Any:
    """Run a program on both packages and compare; returns our outcome.

    Where the oracle raises, ours must raise an error that every handler for the oracle's catches.
    """
    found, expected = outcome(program, ours), outcome(program, oracle)
    if isinstance(expected, set):
        assert isinstance(found, set), f"expected an error among {expected}, found {found}"
        assert expected <= found, f"expected {expected}, found {found}"
    else:
        assert found == expected
    return found

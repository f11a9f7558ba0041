"""One program on two packages: ours and the oracle (the ``tensordict`` package).

Key names: :func:`build` (the same tensordict of either package), :func:`outcome` (what a program
gives, as plain data), :func:`check_same`.

A program is a Python expression, or with ``mutates=True`` statements, over ``td`` and the names in
``_scope``; its outcome is compared by batch size, names, lock, keys and their order, values,
whether a leaf shares storage with the input, and whether the input itself came back.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import tensordict as oracle
import torch

import tdcompile.tensordict as ours

KINDS = ("nested", "plain", "empty", "non_tensor", "nested_only")


def build(package: Any, batch_size: tuple[int, ...], kind: str = "nested", named: bool = True):
    """Make a tensordict of `package`; every kind of entry has distinct values."""
    size = torch.Size(batch_size)

    def values(*trailing: int, offset: int = 0) -> torch.Tensor:
        shape = size + trailing
        return torch.arange(offset, offset + shape.numel()).reshape(shape)

    make = package.TensorDict
    entries: dict[str, Any] = {}
    if kind in ("nested", "plain"):
        entries["a"] = values()
        entries["b"] = values(2, offset=100).float()
        entries["c"] = values(2, 3, offset=1000)
    if kind in ("nested", "nested_only"):
        entries["n"] = make({"x": values(offset=50)}, batch_size=size)
        entries["d"] = make({"y": values(2, offset=70)}, batch_size=(*size, 2))
    td = make(entries, batch_size=size)
    if kind == "non_tensor":
        td["s"] = "text"
        td["a"] = values()
    if named:
        td.names = list("pqrst"[: len(size)])
    return td


def _scope(package: Any, td: Any) -> dict[str, Any]:
    def other(*batch_size: int, **kwargs: Any) -> Any:
        return build(package, batch_size, **kwargs)

    return {
        "td": td,
        "torch": torch,
        "np": np,
        "TensorDict": package.TensorDict,
        "other": other,
        "tensor": torch.tensor,
        "ones": lambda *s: torch.ones(*s, dtype=torch.bool),
        "mask3": torch.tensor([True, False, True]),
        "mask34": torch.arange(12).reshape(3, 4) % 3 == 0,
    }


def _storage(leaf: torch.Tensor) -> int:
    return leaf.untyped_storage().data_ptr()


def _leaves(td: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for key in list(td.keys()):
        value = td.get(key)
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif _is_td(value):
            found.extend(_leaves(value))
    return found


def _is_td(value: Any) -> bool:
    return isinstance(value, (oracle.TensorDict, ours.TensorDict))


def describe(value: Any, source: Any = None, storages: frozenset[int] = frozenset()) -> Any:
    """Turn a result into plain data that can be compared."""
    if value is source and source is not None:
        return "the input itself", describe(value, None, storages)
    if isinstance(value, (tuple, list)):
        return [describe(item, source, storages) for item in value]
    if isinstance(value, torch.Tensor):
        shares = value.numel() > 0 and _storage(value) in storages
        return tuple(value.shape), str(value.dtype), value.tolist(), shares
    if _is_td(value):
        return {
            "batch_size": tuple(value.batch_size),
            "names": list(value.names),
            "is_locked": value.is_locked,
            "entries": [
                (key, describe(value.get(key), None, storages)) for key in list(value.keys())
            ],
        }
    if type(value).__name__ in ("NonTensorData", "NonTensorStack"):
        # The oracle makes a stack of equal values in some places where one value would do.
        data = value.tolist()
        while isinstance(data, list):
            data = data[0] if data else "text"
        return "non-tensor", tuple(value.batch_size), data
    return value


def outcome(
    package: Any,
    program: str,
    batch_size: tuple[int, ...],
    *,
    mutates: bool = False,
    locked: bool = False,
    **kwargs: Any,
) -> Any:
    """Run a program; return what it gave (or what became of ``td``), or the exception."""
    td = build(package, batch_size, **kwargs)
    if locked:
        td.lock_()
    # Held until the end: memory of a leaf that is replaced must not be used again meanwhile.
    leaves = _leaves(td)
    storages = frozenset(_storage(leaf) for leaf in leaves if leaf.numel() > 0)
    scope = _scope(package, td)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if mutates:
                exec(program, scope)
                return describe(td, None, storages)
            return describe(eval(program, scope), td, storages)
        except Exception as error:
            return error


def check_same(program: str, batch_size: tuple[int, ...], **kwargs: Any) -> None:
    """Assert that both packages give the same; an exception has to be of the oracle's kind."""
    expected = outcome(oracle, program, batch_size, **kwargs)
    found = outcome(ours, program, batch_size, **kwargs)
    if isinstance(expected, Exception):
        assert isinstance(found, type(expected)), f"expected {expected!r}; found {found!r}"
    else:
        assert not isinstance(found, Exception), f"expected {expected}; found {found!r}"
        assert found == expected

"""Comparing tensordicts in tests: ``assert_close``.

Key names: :func:`assert_close`.

Invariant: values are compared by ``torch.testing.assert_close``, so its defaults hold.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.keys import format_entry, unravel_key_to_tuple
from tdcompile.tensordict.lazy.elements import element_rows, is_uniform


def assert_close(
    actual: Any,
    expected: Any,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = True,
    intersection: bool = False,
    msg: str = "",
    prefix: Any = (),
) -> bool:
    """Raise unless two tensordicts have the same keys and close values; else return ``True``.

    Tensors are compared by ``torch.testing.assert_close``: dtype, shape and device count. Of
    non-tensor entries only their presence is compared.

    Args:
        actual: a tensordict of any kind.
        expected: another one.
        rtol: relative tolerance; by default that of the dtype.
        atol: absolute tolerance; by default that of the dtype.
        equal_nan: take two ``NaN`` as equal.
        intersection: compare only keys that both have.
        msg: text at the end of the message.
        prefix: key path in front of those in the message.

    Raises:
        TypeError: if one of them is no tensordict.
        KeyError: if keys differ, unless `intersection` is set.
        AssertionError: if an entry differs.

    Example:
        >>> td = TensorDict({"a": torch.ones(2)})
        >>> assert_close(td, td + 1e-9)
        True
    """
    for value in (actual, expected):
        if not isinstance(value, TensorCollection):
            raise TypeError(f"expected two tensordicts, found a {type(value).__name__}")
    path: tuple[str, ...] = unravel_key_to_tuple(prefix) if prefix else ()
    tolerance = {"rtol": rtol, "atol": atol, "equal_nan": equal_nan}
    _compare(actual, expected, path, tolerance, intersection, f"\n{msg}" if msg else "")
    return True


def _compare(
    actual: Any, expected: Any, path: Any, tolerance: Any, intersection: bool, msg: str
) -> None:
    stack = next((td for td in (actual, expected) if td._is_stack and not _is_uniform(td)), None)
    if stack is not None and actual.batch_size == expected.batch_size:
        for one, other in element_rows(stack, (actual, expected)):
            _compare(one, other, path, tolerance, intersection, msg)
        return
    ours, theirs = dict(actual.items()), dict(expected.items())
    if ours.keys() != theirs.keys() and not intersection:
        where = f" of {format_entry(path)}" if path else ""
        raise KeyError(
            f"expected the same keys{where}, found {sorted(ours.keys() - theirs.keys())} in the "
            f"first alone and {sorted(theirs.keys() - ours.keys())} in the second alone{msg}"
        )
    for name, one in ours.items():
        if name not in theirs:
            continue
        other = theirs[name]
        at = (*path, name)
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            _compare_tensors(one, other, at, tolerance, msg)
        elif isinstance(one, TensorCollection) and isinstance(other, TensorCollection):
            _compare(one, other, at, tolerance, intersection, msg)
        elif isinstance(one, (Tensor, TensorCollection)) or isinstance(
            other, (Tensor, TensorCollection)
        ):
            raise AssertionError(
                f"key {at} does not match, found a {type(one).__name__} and a "
                f"{type(other).__name__}{msg}"
            )


def _is_uniform(stack: Any) -> bool:
    return not stack.tensordicts or is_uniform(stack.tensordicts)


def _compare_tensors(one: Tensor, other: Tensor, path: Any, tolerance: Any, msg: str) -> None:
    try:
        torch.testing.assert_close(one, other, **tolerance)
    except AssertionError as error:
        distance = ""
        if one.shape == other.shape and one.device == other.device and not one.is_meta:
            mse = (one.double() - other.double()).pow(2).mean().sqrt()
            distance = f", got mse = {mse.item():4.4f}"
        raise AssertionError(f"key {path} does not match{distance}\n{error}{msg}") from None

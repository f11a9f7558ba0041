"""``td.all_reduce()`` in a trace: one coalesced functional collective for each dtype.

Key names: :func:`all_reduce` (the handler).

Invariant: what the graph does is what the eager method does: leaves are matched by key and written
in place, and ranks that differ raise (from a check in the graph) before a leaf is reduced.

Guards: the key set of each tensordict in the tree, and what its leaves need.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch

from tdcompile._compat import dynamo as seam
from tdcompile.tensordict.collection import TensorCollection

if TYPE_CHECKING:
    from tdcompile.variables.tensordict import TensorDictVariable

__all__ = ["all_reduce"]

_MODULUS = (1 << 61) - 1

_MESSAGE = (
    "all_reduce: expected the same keys, shapes and dtypes on every rank: call it outside the "
    "compiled function to be told which differ"
)


def all_reduce(td: TensorDictVariable, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``td.all_reduce(op, group=..., bucket_bytes=..., check=...)``; with ``async_op`` not ours.

    Buckets are not needed, since nothing is reduced leaf by leaf.
    """
    if len(args) > 1 or kwargs.keys() - {"op", "group", "async_op", "bucket_bytes", "check"}:
        return None
    if args and "op" in kwargs:
        return None
    if "async_op" in kwargs and not kwargs["async_op"].is_constant_match(False):
        return None
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    from tdcompile._compat.collectives import NAME_OF_OP

    op = args[0] if args else kwargs.get("op")
    name: Any = "sum"
    if op is not None and not op.is_constant_none():
        name = NAME_OF_OP.get(_constant(op))
    check = kwargs.get("check")
    if name is None or (check is not None and not check.is_python_constant()):
        return None
    group = kwargs.get("group", seam.constant(None))
    checks = seam.constant(check is None or bool(check.as_python_constant()))
    return seam.inline_function(tx, _all_reduce, [td, seam.constant(name), group, checks])


def _constant(vt: Any) -> Any:
    vt = vt.realize()
    if vt.is_python_constant():
        return vt.as_python_constant()
    return getattr(vt, "value", None)


# ---- traced by Dynamo --------------------------------------------------------------------------


def _all_reduce(td: Any, op: str, group: Any, check: bool) -> None:
    from tdcompile._compat import collectives

    if group is None:
        group = torch.distributed.group.WORLD
    found: dict[str, Any] = {}
    _collect(td, "", found)
    leaves = [found[name] for name in sorted(found) if found[name].numel() > 0]
    with torch.no_grad():
        if check:
            marks = _marks(found)
            highest = collectives.all_reduce(marks, "max", group)
            collectives.assert_true((highest[:2] == -highest[2:]).all(), _MESSAGE)
        kinds: dict[Any, list[Any]] = {}
        for leaf in leaves:
            kinds.setdefault((leaf.dtype, leaf.device), []).append(leaf)
        # All are read before one is written: leaves may share memory.
        reduced = [
            collectives.all_reduce_coalesced(
                [leaf.detach().contiguous() for leaf in same], op, group
            )
            for same in kinds.values()
        ]
        for same, values in zip(kinds.values(), reduced, strict=True):
            for leaf, value in zip(same, values, strict=True):
                leaf.copy_(value)


def _collect(td: Any, prefix: str, found: dict[str, Any]) -> None:
    if td._is_stack:
        for place, element in enumerate(td.tensordicts):
            _collect(element, f"{prefix}{place}/", found)
        return
    for key, value in td.items():
        if isinstance(value, torch.Tensor):
            found[f"{prefix}{key!r}"] = value
        elif isinstance(value, TensorCollection):
            _collect(value, f"{prefix}{key!r}/", found)


def _marks(found: dict[str, Any]) -> torch.Tensor:
    """Return two numbers that differ if keys, dtypes or sizes do, and their negatives: ``(4,)``.

    Sizes may be symbols, so they are not hashed but weighed; sizes of 1 do not count.
    """
    text = ""
    sizes: list[Any] = []
    device: Any = "cpu"
    for name in sorted(found):
        counted = [size for size in found[name].shape if size != 1]
        text += f"{name}:{found[name].dtype}:{len(counted)};"
        sizes += counted
        device = found[name].device
    digest, weights = _digest(text, len(sizes))
    total: Any = 0
    for size, weight in zip(sizes, weights, strict=True):
        total = (total + size * weight) % _MODULUS
    return torch.tensor([digest, total, -digest, -total], device=device)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _digest(text: str, number: int) -> tuple[int, list[int]]:
    raw = hashlib.shake_128(text.encode()).digest(8 + 4 * number)
    weights = [int.from_bytes(raw[8 + 4 * n : 12 + 4 * n], "little") for n in range(number)]
    return int.from_bytes(raw[:8], "little") >> 3, weights

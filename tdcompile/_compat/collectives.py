"""Functional collectives of torch: they return new tensors, so they can stand in a graph.

Key names: :func:`all_reduce_coalesced`, :func:`all_reduce`, :func:`assert_true`,
:data:`NAME_OF_OP`. All are traced by Dynamo, none is called from eager code.

Upstream: ``torch/distributed/_functional_collectives.py``; the public ``torch.distributed`` has no
coalesced collective that Dynamo keeps in the graph. Checked on torch 2.13.0, 2.14.1 and 2.15.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NAME_OF_OP", "all_reduce", "all_reduce_coalesced", "assert_true"]

#: ``ReduceOp`` -> what the functional collectives call it.
NAME_OF_OP: dict[Any, str] = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "avg",
    dist.ReduceOp.PRODUCT: "product",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.BAND: "band",
    dist.ReduceOp.BOR: "bor",
    dist.ReduceOp.BXOR: "bxor",
}


def all_reduce_coalesced(tensors: Sequence[torch.Tensor], op: str, group: Any) -> Any:
    """Reduce tensors of one dtype in one collective; return new ones."""
    return functional.all_reduce_coalesced(list(tensors), op, group)


def all_reduce(tensor: torch.Tensor, op: str, group: Any) -> Any:
    """Reduce one tensor; return a new one."""
    return functional.all_reduce(tensor, op, group)


def assert_true(condition: torch.Tensor, message: str) -> None:
    """Raise when the graph runs if `condition` is false; on a GPU nobody waits for it."""
    torch._assert_async(condition, message)

"""Functions on tensordicts, under the name that the reference has them under.

Key names: those in ``__all__``.

Invariant: nothing is defined here.
"""

from __future__ import annotations

from tdcompile.tensordict import (
    collate,
    dense_stack_tds,
    group_by,
    make_tensordict,
    merge_tensordicts,
    pad,
    pad_sequence,
    unpad_sequence,
)

__all__ = [
    "collate",
    "dense_stack_tds",
    "group_by",
    "make_tensordict",
    "merge_tensordicts",
    "pad",
    "pad_sequence",
    "unpad_sequence",
]

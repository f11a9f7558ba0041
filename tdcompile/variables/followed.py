"""Whether a transform such as ``vmap`` follows a tensor, asked in a trace.

Key names: :class:`IsFollowedVariable`, :func:`build_is_followed`.

Invariant: the answer is a constant of the trace, since the transform is part of it.
"""

from __future__ import annotations

from typing import Any

import torch

from tdcompile._compat import dynamo as seam

__all__ = ["build_is_followed"]


class IsFollowedVariable(seam.UserFunctionVariable):
    """``modules.is_followed``: its own Python asks what Dynamo does not trace."""

    def call_function(
        self, tx: Any, args: Any, kwargs: dict[str, seam.VariableTracker]
    ) -> seam.VariableTracker:
        value: Any = args[0].realize()
        example = value.as_proxy().node.meta["example_value"]
        followed = example.requires_grad or torch.func.debug_unwrap(example) is not example
        return seam.constant(followed)


def build_is_followed(builder: seam.VariableBuilder, value: Any) -> seam.VariableTracker:
    """A tracker of the function; it is ours, so it has no guard."""
    return IsFollowedVariable(value)

"""Modules over tensordicts.

Key names: :class:`TensorDictParams` (parameters and buffers kept in a tensordict).

Invariant: nothing here knows of trackers; the modules work without ``install()``.
"""

from __future__ import annotations

from tdcompile.tensordict.params import TensorDictParams

__all__ = ["TensorDictParams"]

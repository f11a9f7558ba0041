"""The programs that several benchmarks compile, over tensordicts and over plain dicts."""

from __future__ import annotations

from typing import Any


def leafwise(td: Any) -> Any:
    """Return a new tensordict: three pointwise operations on every leaf."""
    return (td * 2 + 1).exp()


def leafwise_dict(nested: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what `leafwise` does, for a dict of dicts of tensors."""
    return {
        group: {key: (value * 2 + 1).exp() for key, value in leaves.items()}
        for group, leaves in nested.items()
    }


def write(td: Any) -> None:
    """Write one entry, read another."""
    td["x0"] = td["x1"] + 1

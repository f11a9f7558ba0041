"""Saving and loading as functions.

Key names: :func:`memmap`, :func:`save`, :func:`load_memmap`, :func:`load`.
"""

from __future__ import annotations

from typing import Any

from tdcompile.tensordict.dense import TensorDict


def memmap(data: Any, prefix: Any = None, copy_existing: bool = False, **kwargs: Any) -> Any:
    """Write a tensordict of any kind to files, see ``TensorDict.memmap``.

    Example:
        >>> memmap(TensorDict({"a": torch.ones(2)}))["a"]
        MemoryMappedTensor([1., 1.])
    """
    return data.memmap(prefix, copy_existing, **kwargs)


def save(data: Any, prefix: Any = None, copy_existing: bool = False, **kwargs: Any) -> Any:
    """Write a tensordict of any kind to files, see ``TensorDict.save``."""
    return data.save(prefix, copy_existing, **kwargs)


def load_memmap(prefix: Any, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    """Load a saved tensordict, see ``TensorDict.load_memmap``."""
    return TensorDict.load_memmap(prefix, device, non_blocking, **kwargs)


def load(prefix: Any, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    """Load a saved tensordict, see ``TensorDict.load_memmap``."""
    return TensorDict.load_memmap(prefix, device, non_blocking, **kwargs)

"""Helpers around tensordicts, under the name that the reference has them under.

Key names: :func:`assert_close`, :func:`expand_as_right`, :func:`expand_right`, :func:`isin`,
:func:`remove_duplicates`, :class:`timeit`, :func:`print_directory_tree`.

Invariant: what is about tensordicts is in ``tdcompile.tensordict`` and only handed on here.
"""

from __future__ import annotations

import collections
import functools
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.nn import Buffer

from tdcompile.tensordict import (
    KEY_SEPARATOR,
    NestedKey,
    TensorDictFuture,
    assert_allclose_td,
    assert_close,
    capture_non_tensor_stack,
    get_printoptions,
    is_bool,
    is_floating,
    is_inexact,
    is_integer,
    is_non_tensor,
    is_tensorclass,
    lazy_legacy,
    list_to_stack,
    set_capture_non_tensor_stack,
    set_lazy_legacy,
    set_list_to_stack,
    set_printoptions,
    unravel_key,
    unravel_key_list,
    unravel_key_to_tuple,
)
from tdcompile.tensordict.convert.grouping import isin, remove_duplicates
from tdcompile.tensordict.nontensor.stack import LinkedList

__all__ = [
    "KEY_SEPARATOR",
    "Buffer",
    "DeviceType",
    "IndexType",
    "LinkedList",
    "NestedKey",
    "TensorDictFuture",
    "assert_allclose_td",
    "assert_close",
    "capture_non_tensor_stack",
    "expand_as_right",
    "expand_right",
    "get_printoptions",
    "is_bool",
    "is_floating",
    "is_inexact",
    "is_integer",
    "is_non_tensor",
    "is_tensorclass",
    "isin",
    "lazy_legacy",
    "list_to_stack",
    "logger",
    "print_directory_tree",
    "remove_duplicates",
    "set_capture_non_tensor_stack",
    "set_lazy_legacy",
    "set_list_to_stack",
    "set_printoptions",
    "timeit",
    "unravel_key",
    "unravel_key_list",
    "unravel_key_to_tuple",
]

DeviceType = torch.device | str | int
IndexType = None | int | slice | str | Tensor | list[Any] | tuple[Any, ...]
_F = TypeVar("_F", bound=Callable[..., Any])

logger = logging.getLogger("tdcompile")


def expand_right(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a view of `tensor` with the given shape; new dimensions come last.

    Raises:
        RuntimeError: if `shape` has fewer dimensions, or its leading ones differ.

    Example:
        >>> expand_right(torch.arange(2), (2, 3))
        tensor([[0, 0, 0],
                [1, 1, 1]])
    """
    extra = len(shape) - tensor.ndim
    if extra < 0:
        raise RuntimeError(
            f"expected at least {tensor.ndim} dimensions to expand shape {list(tensor.shape)} to, "
            f"found {list(shape)}"
        )
    for _ in range(extra):
        tensor = tensor.unsqueeze(-1)
    return tensor.expand(torch.Size(shape))


def expand_as_right(tensor: Any, dest: Any) -> Any:
    """Return a view of a tensor or tensordict with the shape of `dest`; new dimensions come last.

    Args:
        tensor: its dimensions are the leading ones of `dest`, or of size 1.
        dest: a tensor or a tensordict.

    Raises:
        RuntimeError: if `dest` has fewer dimensions, or its leading ones differ.
    """
    return expand_right(tensor, dest.shape)


class timeit:  # the name is the reference's
    """Measure how long a block of code or a function takes, by name.

    Args:
        name: calls, total and mean time in seconds are kept under it.

    Example:
        >>> with timeit("block"):
        ...     total = sum(range(3))
        >>> timeit.todict()["block"] > 0
        True
    """

    _times: ClassVar[dict[str, list[float]]] = collections.defaultdict(lambda: [0, 0.0])

    def __init__(self, name: str) -> None:
        self.name = name
        self._start = 0.0

    def __call__(self, function: _F) -> _F:
        """Return a function that is measured at each call."""

        @functools.wraps(function)
        def measured(*args: Any, **kwargs: Any) -> Any:
            with timeit(self.name):
                return function(*args, **kwargs)

        return measured  # type: ignore[return-value]

    def __enter__(self) -> timeit:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        entry = self._times[self.name]
        entry[0] += 1
        entry[1] += time.perf_counter() - self._start

    @classmethod
    def todict(cls) -> dict[str, float]:
        """Return the mean time of each name in seconds."""
        return {name: total / count for name, (count, total) in cls._times.items()}

    @classmethod
    def print(cls, prefix: str = "") -> None:
        """Log the mean time and the number of calls of each name, the longest total first."""
        for name, (count, total) in sorted(cls._times.items(), key=lambda item: -item[1][1]):
            message = "%s%s took %.3f msec (total %.3f sec, %d calls)"
            logger.info(message, prefix, name, 1e3 * total / count, total, count)

    @classmethod
    def erase(cls) -> None:
        """Forget all times."""
        cls._times.clear()


def print_directory_tree(path: Any, indent: str = "", display_metadata: bool = True) -> str:
    """Log the files and folders under a path, and return the same text.

    Args:
        path: a folder or a file.
        indent: text in front of each line; each level adds four spaces.
        display_metadata: tell the total size of the files in the first line.
    """
    lines = []
    if display_metadata:
        files = [os.path.join(at, name) for at, _, names in os.walk(path) for name in names]
        lines.append(f"{indent}{sum(map(os.path.getsize, files))} bytes in {len(files)} files")
    _list_tree(os.fspath(path), indent, lines)
    for line in lines:
        logger.info(line)
    return "\n".join(lines)


def _list_tree(path: str, indent: str, lines: list[str]) -> None:
    name = os.path.basename(os.path.normpath(path))
    if not os.path.isdir(path):
        lines.append(indent + name)
        return
    lines.append(f"{indent}{name}/")
    for entry in os.listdir(path):
        _list_tree(os.path.join(path, entry), indent + "    ", lines)

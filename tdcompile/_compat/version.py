"""Which torch is installed, and whether it is one that we support.

Key names: :func:`torch_version`, :func:`torch_at_least`, :func:`is_supported`,
:data:`MIN_TORCH`, :data:`MAX_TESTED_TORCH`.

Versions are compared as tuples of integers over the release part only, so a nightly
(``2.15.0a0+git1234``) counts as the release that it becomes. ``packaging`` is not used since torch
does not depend on it at run time. Every version test of the package goes through here.
"""

from __future__ import annotations

import functools
import re

import torch

MIN_TORCH = (2, 13)
"""Oldest supported release, ``(major, minor)``."""

MAX_TESTED_TORCH = (2, 15)
"""Newest release that the contract was checked on, ``(major, minor)``."""

_RELEASE = re.compile(r"\s*v?(\d+(?:\.\d+)*)")


def parse_release(text: str) -> tuple[int, int, int]:
    """Return the release part of a version as three integers.

    Args:
        text: A version such as ``"2.14.0a0+git"`` or ``"2.15.0+cpu"``.

    Raises:
        ValueError: The text does not begin with a number.

    Example:
        >>> parse_release("2.14.1.dev20260401+cu126")
        (2, 14, 1)
    """
    match = _RELEASE.match(text)
    if match is None:
        raise ValueError(f"expected a version such as '2.13.0', got {text!r}")
    numbers = [int(part) for part in match.group(1).split(".")][:3]
    major, minor, micro = numbers + [0] * (3 - len(numbers))
    return major, minor, micro


@functools.cache
def torch_version() -> tuple[int, int, int]:
    """Return the release of the installed torch, for example ``(2, 13, 0)``."""
    return parse_release(str(torch.__version__))


def torch_at_least(major: int, minor: int) -> bool:
    """Return whether the installed torch is release ``major.minor`` or newer."""
    return torch_version()[:2] >= (major, minor)


def is_supported(version: tuple[int, ...] | None = None) -> bool:
    """Return whether a release is in the range that the seam was written for.

    Args:
        version: A release; the installed one by default.
    """
    release = torch_version() if version is None else version
    return MIN_TORCH <= release[:2] <= MAX_TESTED_TORCH


def supported_range() -> str:
    """Return the range as text, for messages."""
    low, high = (".".join(map(str, version)) for version in (MIN_TORCH, MAX_TESTED_TORCH))
    return f"{low} to {high}"

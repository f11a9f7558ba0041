"""Environment switches, read once, validated, and handed out frozen.

Key names: :class:`Settings` (what was read), :func:`settings` (the process-wide value),
:func:`read_settings` (the same from any mapping).

Invariant: a switch is either absent or one of its legal values; anything else is an error that
lists them, since a misspelt switch that does nothing is worse than one that complains.

======================  ============  ==========================================================
Variable                Legal values  Effect
======================  ============  ==========================================================
``TDCOMPILE_DISABLE``   0, 1          1: ``install()`` does nothing, programs run with stock PyTorch
``TDCOMPILE_AUDIT``     0, 1          1: every dropped guard is checked again at run time
======================  ============  ==========================================================
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tdcompile.errors import UnknownOptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIX = "TDCOMPILE_"
_FLAG_VALUES = {"0": False, "1": True}


@dataclass(frozen=True)
class Settings:
    """The switches of this process.

    Args:
        disable: ``install()`` does nothing.
        audit: Dropped guards are checked again at run time.
    """

    disable: bool = False
    audit: bool = False


# One line a switch: environment name -> field of Settings.
_SWITCHES = {
    "TDCOMPILE_DISABLE": "disable",
    "TDCOMPILE_AUDIT": "audit",
}


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Read the switches from ``environ``.

    Args:
        environ: Names and values, as in ``os.environ``. An empty value counts as absent.

    Returns:
        The frozen settings.

    Raises:
        UnknownOptionError: A name that begins with ``TDCOMPILE_`` is unknown, or a value is not
            one of the legal ones.

    Example:
        >>> read_settings({"TDCOMPILE_AUDIT": "1"})
        Settings(disable=False, audit=True)
    """
    values: dict[str, bool] = {}
    for name, text in environ.items():
        if not name.startswith(_PREFIX):
            continue
        if name not in _SWITCHES:
            raise UnknownOptionError(
                f"environment variable {name} is not a switch of tdcompile; "
                f"the switches are {', '.join(sorted(_SWITCHES))}"
            )
        if text == "":
            continue
        if text not in _FLAG_VALUES:
            raise UnknownOptionError(
                f"environment variable {name}: expected one of "
                f"{', '.join(_FLAG_VALUES)}, got {text!r}"
            )
        values[_SWITCHES[name]] = _FLAG_VALUES[text]
    return Settings(**values)


@functools.cache
def settings() -> Settings:
    """Return the switches of this process; the environment is read at the first call only."""
    return read_settings(os.environ)

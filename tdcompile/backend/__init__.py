"""The ``"tdcompile"`` backend: our FX passes, then Inductor with the caller's mode and options.

Key names: :class:`TensorDictBackend`, :data:`tdcompile_backend` (the one behind the name),
:func:`list_options`, :func:`list_mode_options`.

``torch.compile(fn, backend="tdcompile")`` goes through :mod:`tdcompile.plugin`, which installs the
trackers before the first trace. The objects here install nothing: whoever passes them instead of
the name calls :func:`tdcompile.install` first.

This file imports its modules when their names are asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tdcompile.backend.backend import TensorDictBackend, tdcompile_backend
    from tdcompile.backend.options import list_mode_options, list_options

__all__ = ["TensorDictBackend", "list_mode_options", "list_options", "tdcompile_backend"]

_HOMES = {
    "TensorDictBackend": "tdcompile.backend.backend",
    "tdcompile_backend": "tdcompile.backend.backend",
    "list_mode_options": "tdcompile.backend.options",
    "list_options": "tdcompile.backend.options",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)

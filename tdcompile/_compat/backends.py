"""Dynamo's table of backends: what a name stands for, and what a compiled function asked for.

Key names: :func:`announce` and :func:`forget` (our entry in the table, and its undo),
:func:`options_of` (the options of a compile that uses a given backend).

Upstream: ``torch/_dynamo/backends/registry.py``, ``_TorchCompileWrapper`` in ``torch/__init__.py``;
checked on torch 2.13.0, 2.14.1 and 2.15.0.

Note [When the backend is resolved]. ``torch.compile(fn, backend="name")`` looks the name up when
it wraps the function, before any trace, on all three releases. The first look-up of a name loads
its entry point and remembers the callable; later ones find that callable and run nothing of ours.
So :func:`forget` makes the table remember the entry point again: the next ``torch.compile`` with
the name loads it again, and :mod:`tdcompile.plugin` installs again.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

ENTRY_POINT_GROUP = "torch_dynamo_backends"

_UNKNOWN = object()


def announce(name: str, target: str) -> object:
    """Make a backend name known to ``torch.compile``, also without installed package metadata.

    Args:
        name: The name.
        target: Where the callable is, ``"module:attribute"``.

    Returns:
        A token for :func:`forget`: what the table held before.
    """
    from torch._dynamo.backends import registry

    # Dynamo reads the installed entry points once. It has to happen before we look, or it would
    # overwrite our entry later and forget() would drop the installed one for good.
    registry._discover_entrypoint_backends()
    before = registry._BACKENDS.get(name, _UNKNOWN)
    if before is _UNKNOWN:
        registry._BACKENDS[name] = EntryPoint(name, target, ENTRY_POINT_GROUP)
    return before


def forget(name: str, backend: object, before: object) -> None:
    """Undo :func:`announce` and the registration that a look-up made since.

    Args:
        name: The name.
        backend: Our callable; an entry with another one is left alone.
        before: The token that :func:`announce` returned.
    """
    from torch._dynamo.backends import registry

    compiler_fns: dict[str, Any] = registry._COMPILER_FNS
    if compiler_fns.get(name, backend) is not backend:
        return
    compiler_fns.pop(name, None)
    entries: dict[str, Any] = registry._BACKENDS
    if before is _UNKNOWN:
        entries.pop(name, None)
    else:
        entries[name] = before
    # From torch 2.14 on a registration has tags in a table of their own.
    getattr(registry, "_BACKEND_TAGS", {}).pop(name, None)


def options_of(compiler_fn: Any, backend: object) -> dict[str, Any] | None:
    """Return the options that a compile gave to a backend.

    Args:
        compiler_fn: What Dynamo calls, wrapped or not (``tx.output.compiler_fn``).
        backend: Our callable.

    Returns:
        A fresh dictionary with the caller's options (``mode`` is under ``"tdcompile.mode"``), or
        None if the compile uses another backend.
    """
    import torch
    from torch._dynamo.eval_frame import innermost_backend

    inner: Any = innermost_backend(compiler_fn)
    kwargs: dict[str, Any] = {}
    if isinstance(inner, torch._TorchCompileWrapper):
        kwargs = inner.kwargs
        inner = inner.compiler_fn
    if type(inner) is not type(backend):
        return None
    options = dict(getattr(inner, "options", {}))
    options.update(kwargs.get("options") or {})
    mode = kwargs.get("mode", getattr(inner, "mode", None))
    if mode is not None:
        options.setdefault("tdcompile.mode", mode)
    return options

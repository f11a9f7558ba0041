"""Compile code over dictionaries of tensors as if it were code over plain tensors.

Key names: :class:`TensorDict` (the container), :func:`install` and :func:`uninstall` (the switch
that teaches Dynamo about it), ``torch.compile(fn, backend="tdcompile")`` (which installs by
itself).

Invariant: importing this package loads neither ``torch._dynamo`` nor Inductor and changes nothing
in torch.

Example:
    >>> import torch
    >>> td = TensorDict({"obs": torch.zeros(3, 4)}, batch_size=[3])
    >>> (td + 1)["obs"].sum()
    tensor(12.)
"""

from __future__ import annotations

from tdcompile import base, functional, utils
from tdcompile.plugin import install, is_installed, uninstall
from tdcompile.tensordict import *  # noqa: F403
from tdcompile.tensordict import __all__ as _container_names

__version__ = "0.1.0"

# The container's names are listed once, in tdcompile.tensordict. They are bound here and not
# served by a module __getattr__: Dynamo reads `tdcompile.stack` from the module's dictionary.
__all__ = [
    *_container_names,
    "__version__",
    "base",
    "functional",
    "install",
    "is_installed",
    "uninstall",
    "utils",
]

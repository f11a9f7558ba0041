"""The container: ``TensorDict`` and what belongs to it, in plain eager Python on public torch.

Key names: :class:`TensorDict`, :class:`NonTensorData`, :func:`make_tensordict`,
:func:`unravel_key`.

Invariant: nothing in this folder knows of Dynamo, of trackers or of the rest of the package.
"""

from __future__ import annotations

from tdcompile.tensordict.base import TensorDictBase
from tdcompile.tensordict.collection import (
    TensorCollection,
    default_is_leaf,
    is_leaf_nontensor,
    is_tensor_collection,
)
from tdcompile.tensordict.dense import TensorDict
from tdcompile.tensordict.factories import from_any, from_dict, fromkeys, make_tensordict
from tdcompile.tensordict.keys import (
    NestedKey,
    unravel_key,
    unravel_key_list,
    unravel_key_to_tuple,
)
from tdcompile.tensordict.nontensor import NonTensorData, is_non_tensor
from tdcompile.tensordict.pytree import register_pytree
from tdcompile.tensordict.tensorclass import (
    TensorClass,
    from_dataclass,
    is_tensorclass,
    tensorclass,
)

__all__ = [
    "NestedKey",
    "NonTensorData",
    "TensorClass",
    "TensorCollection",
    "TensorDict",
    "TensorDictBase",
    "default_is_leaf",
    "from_any",
    "from_dataclass",
    "from_dict",
    "fromkeys",
    "is_leaf_nontensor",
    "is_non_tensor",
    "is_tensor_collection",
    "is_tensorclass",
    "make_tensordict",
    "register_pytree",
    "tensorclass",
    "unravel_key",
    "unravel_key_list",
    "unravel_key_to_tuple",
]

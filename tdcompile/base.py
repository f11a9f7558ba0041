"""``TensorDictBase`` and what goes with it, under the name that the reference has them under.

Key names: those in ``__all__``.

Invariant: nothing is defined here.
"""

from __future__ import annotations

from tdcompile.tensordict import (
    TensorDictBase,
    from_any,
    from_dict,
    from_namedtuple,
    from_struct_array,
    from_tuple,
    is_tensor_collection,
)
from tdcompile.tensordict.keys import NO_DEFAULT

__all__ = [
    "NO_DEFAULT",
    "TensorDictBase",
    "from_any",
    "from_dict",
    "from_namedtuple",
    "from_struct_array",
    "from_tuple",
    "is_tensor_collection",
]

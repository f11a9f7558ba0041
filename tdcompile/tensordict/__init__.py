"""The container: ``TensorDict`` and what belongs to it, in plain eager Python on public torch.

Key names: :class:`TensorDict`, :class:`NonTensorData`, :func:`make_tensordict`,
:func:`unravel_key`.

Invariant: nothing in this folder knows of Dynamo, of trackers or of the rest of the package.
"""

from __future__ import annotations

from tdcompile.tensordict.base import TensorDictBase
from tdcompile.tensordict.classes.tensorclass import (
    TensorClass,
    from_dataclass,
    is_tensorclass,
    tensorclass,
)
from tdcompile.tensordict.classes.typed import TypedTensorDict
from tdcompile.tensordict.collection import (
    TensorCollection,
    default_is_leaf,
    is_leaf_nontensor,
    is_tensor_collection,
)
from tdcompile.tensordict.convert.compare import assert_close
from tdcompile.tensordict.convert.grouping import (
    group_by,
    is_bool,
    is_floating,
    is_inexact,
    is_integer,
    merge_tensordicts,
)
from tdcompile.tensordict.convert.padding import pad
from tdcompile.tensordict.convert.sequences import pad_sequence, unpad_sequence
from tdcompile.tensordict.dense import TensorDict
from tdcompile.tensordict.factories import (
    from_any,
    from_dict,
    from_module,
    from_modules,
    from_namedtuple,
    from_pytree,
    from_struct_array,
    from_tuple,
    fromkeys,
    make_tensordict,
)
from tdcompile.tensordict.functional import cat, stack
from tdcompile.tensordict.keys import (
    KEY_SEPARATOR,
    NestedKey,
    unravel_key,
    unravel_key_list,
    unravel_key_to_tuple,
)
from tdcompile.tensordict.lazy.stack import LazyStackedTensorDict, lazy_stack
from tdcompile.tensordict.legacy import lazy_legacy, set_lazy_legacy
from tdcompile.tensordict.nontensor.data import (
    MetaData,
    NonTensorData,
    NonTensorDataBase,
    is_non_tensor,
)
from tdcompile.tensordict.nontensor.stack import NonTensorStack
from tdcompile.tensordict.nontensor.unbatched import UnbatchedTensor
from tdcompile.tensordict.params import TensorDictParams
from tdcompile.tensordict.printoptions import get_printoptions, set_printoptions
from tdcompile.tensordict.processes.collate import collate
from tdcompile.tensordict.pytree import register_pytree
from tdcompile.tensordict.stacking import dense_stack_tds, maybe_dense_stack
from tdcompile.tensordict.storage.archive import (
    is_memmap_archive,
    pack_memmap,
    refresh_archive_checksums,
    unpack_memmap,
)
from tdcompile.tensordict.storage.consolidated import from_consolidated
from tdcompile.tensordict.storage.extend import append_memmap
from tdcompile.tensordict.storage.functions import load, load_memmap, memmap, save
from tdcompile.tensordict.storage.memmap_tensor import MemoryMappedTensor
from tdcompile.tensordict.storage.pack import PackLayout
from tdcompile.tensordict.storage.safetensors import from_safetensors, to_safetensors
from tdcompile.tensordict.storage.save import TensorDictFuture
from tdcompile.tensordict.switches import (
    capture_non_tensor_stack,
    list_to_stack,
    set_capture_non_tensor_stack,
    set_list_to_stack,
)

assert_allclose_td = assert_close

__all__ = [
    "KEY_SEPARATOR",
    "LazyStackedTensorDict",
    "MemoryMappedTensor",
    "MetaData",
    "NestedKey",
    "NonTensorData",
    "NonTensorDataBase",
    "NonTensorStack",
    "PackLayout",
    "TensorClass",
    "TensorCollection",
    "TensorDict",
    "TensorDictBase",
    "TensorDictFuture",
    "TensorDictParams",
    "TypedTensorDict",
    "UnbatchedTensor",
    "append_memmap",
    "assert_allclose_td",
    "assert_close",
    "capture_non_tensor_stack",
    "cat",
    "collate",
    "default_is_leaf",
    "dense_stack_tds",
    "from_any",
    "from_consolidated",
    "from_dataclass",
    "from_dict",
    "from_module",
    "from_modules",
    "from_namedtuple",
    "from_pytree",
    "from_safetensors",
    "from_struct_array",
    "from_tuple",
    "fromkeys",
    "get_printoptions",
    "group_by",
    "is_bool",
    "is_floating",
    "is_inexact",
    "is_integer",
    "is_leaf_nontensor",
    "is_memmap_archive",
    "is_non_tensor",
    "is_tensor_collection",
    "is_tensorclass",
    "lazy_legacy",
    "lazy_stack",
    "list_to_stack",
    "load",
    "load_memmap",
    "make_tensordict",
    "maybe_dense_stack",
    "memmap",
    "merge_tensordicts",
    "pack_memmap",
    "pad",
    "pad_sequence",
    "refresh_archive_checksums",
    "register_pytree",
    "save",
    "set_capture_non_tensor_stack",
    "set_lazy_legacy",
    "set_list_to_stack",
    "set_printoptions",
    "stack",
    "tensorclass",
    "to_safetensors",
    "unpack_memmap",
    "unpad_sequence",
    "unravel_key",
    "unravel_key_list",
    "unravel_key_to_tuple",
]

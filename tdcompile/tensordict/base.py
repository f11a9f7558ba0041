"""``TensorDictMethods``: the whole interface, over a state that each kind of tensordict keeps.

Key names: :class:`TensorDictMethods` (every kind has it, tensorclasses too),
:class:`TensorDictBase` (every kind but tensorclasses), :data:`DENSE_SLOTS` (the state of a kind
that keeps its leaves in a dictionary).

Invariant: nothing here knows one kind from another; a kind that keeps its leaves otherwise gives
``_entries`` and its like as properties and overrides what does not go over them.
"""

from __future__ import annotations

from tdcompile.tensordict.apply import ApplyMixin
from tdcompile.tensordict.arithmetic import ArithmeticMixin
from tdcompile.tensordict.casting import CastingMixin
from tdcompile.tensordict.construct import ConstructMixin
from tdcompile.tensordict.contexts import ContextsMixin
from tdcompile.tensordict.convert.forms import ConversionMixin
from tdcompile.tensordict.convert.padding import PaddingMixin
from tdcompile.tensordict.convert.statedict import StateDictMixin
from tdcompile.tensordict.convert.structarrays import StructArraysMixin
from tdcompile.tensordict.copying import CopyingMixin
from tdcompile.tensordict.functional import TorchFunctionMixin
from tdcompile.tensordict.indexing import IndexingMixin
from tdcompile.tensordict.locking import LockingMixin
from tdcompile.tensordict.mapping import MappingMixin
from tdcompile.tensordict.metadata import MetadataMixin
from tdcompile.tensordict.modules import ModulesMixin
from tdcompile.tensordict.names import NamesMixin
from tdcompile.tensordict.newleaves import NewLeavesMixin
from tdcompile.tensordict.printing import PrintingMixin
from tdcompile.tensordict.processes.distributed import DistributedMixin
from tdcompile.tensordict.processes.parallel import ParallelMixin
from tdcompile.tensordict.reductions import ReductionsMixin
from tdcompile.tensordict.selection import SelectionMixin
from tdcompile.tensordict.shapes import ShapesMixin
from tdcompile.tensordict.stacking import StackingMixin
from tdcompile.tensordict.storage.methods import StorageMixin
from tdcompile.tensordict.views import ViewsMixin

DENSE_SLOTS = (
    "__weakref__",
    "_batch_size",  # torch.Size, (*B,)
    "_device",  # torch.device, or None: leaves may live anywhere
    "_entries",  # dict[str, Tensor | TensorDict | NonTensorData], insertion order is key order
    "_is_locked",  # bool
    "_last_op",  # what `with` would undo, see contexts.py; unset until there is something
    "_lock_parents",  # weak references to the tensordicts that locked this one; unset without
    "_memory",  # what is known of the memory of the leaves, see storage/; unset without
    "_names",  # tuple[str | None, ...] of length len(*B), or None: no dimension has a name
    "_open_ops",  # the open `with` blocks; unset until there is one
)
"""The attributes of a dense tensordict; a class with them inherits all that works on them."""


class TensorDictMethods(
    MappingMixin,
    ViewsMixin,
    SelectionMixin,
    CopyingMixin,
    ConstructMixin,
    ConversionMixin,
    StructArraysMixin,
    StateDictMixin,
    StorageMixin,
    LockingMixin,
    ContextsMixin,
    NamesMixin,
    IndexingMixin,
    ShapesMixin,
    PaddingMixin,
    ArithmeticMixin,
    ReductionsMixin,
    ApplyMixin,
    NewLeavesMixin,
    CastingMixin,
    TorchFunctionMixin,
    ModulesMixin,
    PrintingMixin,
    MetadataMixin,
    DistributedMixin,
    StackingMixin,
    ParallelMixin,
):
    """Every method of a tensordict, over the state declared in ``TensorDictState``."""

    __slots__ = ()


class TensorDictBase(TensorDictMethods):
    """Base of every kind of tensordict; a tensorclass is a ``TensorCollection``, not one of these.

    Example:
        >>> isinstance(TensorDict(), TensorDictBase)
        True
    """

    __slots__ = ()

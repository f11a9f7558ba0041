"""``LazyStackVariable``: a lazy stack while tracing, read as a stack and not element by element.

Key names: :class:`LazyStackVariable`, :func:`build` (makes one of an input),
:func:`settle` (what happens when the frame meets another tensordict).

A graph that took the elements apart would be compiled once a length. So an entry is stacked just
before the graph runs and is one graph input, whose stack dimension is dynamic; a leaf-wise result
is cut into elements after the graph. Whatever is not modelled that way goes through the elements:
the class's own Python is traced over ``stack.tensordicts``, which costs a compilation a length.
See ``docs/design/lazy_stacks.md``.

Invariant: a stacked graph input has the values of the moment when the frame began. It is read only
while nothing that it could be made of was written since, and the program gets a copy of it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from tdcompile._compat import dynamo as seam
from tdcompile._compat.guards import mark_frame, note_input
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.lazy import elements
from tdcompile.tensordict.lazy.rebuild import is_plain, is_uniform, stack_rebuilder
from tdcompile.tensordict.lazy.stack import LazyStackedTensorDict
from tdcompile.tensordict.leafwise import LEAFWISE_BY_NAME
from tdcompile.variables import leafwise
from tdcompile.variables.breaks import break_graph
from tdcompile.variables.calls import BoundCallVariable
from tdcompile.variables.fields import InputState, input_states
from tdcompile.variables.layout import Layout
from tdcompile.variables.methods import key_path
from tdcompile.variables.storage import EntryState, StorageVariable
from tdcompile.variables.tensordict import METHODS, PROPERTIES, TensorDictVariable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LazyStackVariable", "build", "settle"]


class StackedEntryState(EntryState):
    """The entries of a lazy stack at the start of the frame: each is stacked when it is asked for.

    Guards: presence and key set by a call of Python, since the entries are no ``dict``.
    """

    __slots__ = ("stack",)

    def __init__(self, stack: Any, source: seam.Source) -> None:
        super().__init__(stack._entries, source)
        self.stack = stack

    def contains(self, key: str) -> bool:
        is_there = key in self.value
        known = self.present if is_there else self.absent
        if not self.is_complete and key not in known:
            seam.install_lambda_guard(
                self.source, functools.partial(_answers, key, is_there), f"{key!r} is {is_there}"
            )
        known.add(key)
        return is_there

    def get(self, key: str) -> seam.VariableTracker | None:
        entry = self.entries.get(key)
        if entry is None and self.contains(key):
            value = self.value[key]
            source: seam.Source = seam.GetItemSource(self.source, key)
            if isinstance(value, torch.Tensor):
                seam.maybe_mark_dynamic(value, self.stack.stack_dim)
                source = seam.temporary_tensor(source)
            entry = seam.lazy_input(value, source)
            self.entries[key] = entry
        return entry

    def keys(self, tx: Any, *, ordered: bool) -> list[str]:
        keys = list(self.value)
        if not self.is_complete:
            seam.install_lambda_guard(
                self.source, functools.partial(_has_keys, keys), f"the keys are {keys}"
            )
        self.is_complete = self.is_ordered = True
        return keys


def _answers(key: str, is_there: bool, entries: Any) -> bool:
    return (key in entries) is is_there


def _has_keys(keys: list[str], entries: Any) -> bool:
    return list(entries) == keys


class StackedInputState(InputState):
    """The fields of a lazy stack; the length of its stack dimension is read off a stacked entry."""

    __slots__ = ()

    def _leaf_that_tells(self, tx: Any) -> tuple[seam.VariableTracker | None, int]:
        batch_dims = len(self.peek("batch_size"))
        leaf = self.used_leaf() or _first_leaf(self.owner)
        return (None, 0) if leaf is None else (leaf, batch_dims)


def _first_leaf(td: Any) -> seam.VariableTracker | None:
    """A stacked tensor entry, here or nested. Guards: its key path."""
    for key, value in td.entry_state.value.items():
        if isinstance(value, torch.Tensor):
            return td.entry_state.get(key).realize()  # type: ignore[no-any-return]
        if isinstance(value, LazyStackedTensorDict):
            nested = td.entry_state.get(key).realize()
            found = _first_leaf(nested) if isinstance(nested, LazyStackVariable) else None
            if found is not None:
                return found
    return None


class LazyStackVariable(TensorDictVariable):
    """A lazy stack: an input, or the result of a leaf-wise operation on one.

    Guards: exact type, stack dimension and hooks of an input; its elements when they are read.
    """

    is_row = False
    _nonvar_fields = {"family", "is_known_uniform", *TensorDictVariable._nonvar_fields}  # noqa: RUF012

    def __init__(self, value: Any, layout: Layout, *args: Any, **kwargs: Any) -> None:
        # The source of the outermost lazy stack that this one is part of.
        self.family = kwargs.pop("family", None)
        # The same stack, element by element: set once something is asked that needs them.
        self.elements: seam.VariableTracker | None = kwargs.pop("elements", None)
        # The elements of an input are guarded to be alike.
        self.is_known_uniform = kwargs.pop("is_known_uniform", False)
        super().__init__(value, layout, *args, **kwargs)

    def _states_of(self, value: Any, source: seam.Source) -> tuple[InputState, EntryState]:
        self.family = seam.stack_root(source, self.layout.entries)
        entries = StackedEntryState(value, seam.AttrSource(source, self.layout.entries))
        return StackedInputState(self, value, source), entries

    def class_variable(self) -> Any:
        source = None if self.source is None else seam.TypeSource(self.source)
        return seam.UserDefinedClassVariable(self.layout.cls, source=source)

    # ---- whether the stack may be read as one ---------------------------------------------------

    def is_stacked(self, tx: Any) -> bool:
        """Whether stacked entries still are what the program would read; else use the elements."""
        if self.elements is not None:
            return False
        if self.input_state is None:
            return True
        if self._others_written(tx) or seam.any_input_mutated(tx):
            self.through_elements(tx)
            return False
        return True

    def _others(self, tx: Any) -> list[TensorDictVariable]:
        owners = [state.owner for state in input_states(tx)]
        return [vt for vt in owners if getattr(vt, "family", None) != self.family]

    def _others_written(self, tx: Any) -> bool:
        return any(vt.is_modified for vt in self._others(tx))

    def accepts_leafwise(self, tx: Any, *, inplace: bool) -> bool:
        """Whether a leaf-wise operation may run on stacked leaves. Guards: that elements are alike.

        In place it may not: the elements' own leaves are to be written.
        """
        if inplace or not self.is_stacked(tx):
            return False
        state = self.input_state
        if state is None:
            return True
        if not is_uniform(state.value):
            return False
        if not self.is_known_uniform:
            self.is_known_uniform = True
            seam.install_lambda_guard(state.source, is_uniform, "the elements are alike")
        return True

    # ---- element by element ---------------------------------------------------------------------

    def through_elements(self, tx: Any) -> Any:
        """The same stack as upstream tracks any object; edits made so far are made on it."""
        if self.elements is None:
            if self.input_state is None:
                self.elements = self._cut(tx)
            else:
                edits = dict(self.storage.edits)
                elements = seam.UserDefinedObjectVariable(self.value, source=self.source)
                seam.track_attributes(tx, self.value, elements)
                self.elements = elements
                self.storage = StorageVariable(base=self.entry_state)
                for key, edit in edits.items():
                    if edit.value is None or edit.moved:
                        elements.call_method(tx, "__delitem__", [seam.constant(key)], {})
                    if edit.value is not None:
                        elements.call_method(tx, "set", [seam.constant(key), edit.value], {})
        return self.elements

    def rows(self, tx: Any) -> list[TensorDictVariable]:
        """The elements, also those of nested lazy stacks."""
        found: list[TensorDictVariable] = []
        elements = self.through_elements(tx)
        for vt in seam.get_attribute(tx, elements, "tensordicts").unpack_var_sequence(tx):
            element = vt.realize()
            if not isinstance(element, TensorDictVariable):
                break_graph("tdcompile: nested tensordict of a subclass", element)
            found += element.rows(tx)
        return found

    def settle(self, tx: Any) -> None:
        if self.is_modified and self.elements is None:
            self.through_elements(tx)
        if self.elements is not None:
            elements = seam.get_attribute(tx, self.elements, "tensordicts").realize()
            if tx.output.side_effects.is_modified(elements):
                break_graph("tdcompile: late look into a copied lazy stack", self)

    def _cut(self, tx: Any) -> seam.VariableTracker:
        """Make the elements of a stack that the trace made."""
        names = ("batch_size", "device", "names", "is_locked")
        fields = [self.read_field(tx, name) for name in names]
        rebuild = self.layout.rebuild
        return seam.inline_function(tx, rebuild, [self.storage, *fields])

    # ---- what is answered on stacked entries ----------------------------------------------------

    def getattr_hook(self, tx: Any, name: str) -> seam.VariableTracker:
        if self.elements is None:
            if name == "stack_dim":
                return seam.constant(self._stack_dim)
            if name in _PROPERTIES and self.is_stacked(tx):
                return PROPERTIES[name](self, tx)
            if name in _METHODS:
                return BoundCallVariable(self, name)
        return seam.get_attribute(tx, self.through_elements(tx), name)

    @property
    def _stack_dim(self) -> int:
        return self.layout.rebuild.stack_dim  # type: ignore[attr-defined,no-any-return]

    def call_method(
        self,
        tx: Any,
        name: str,
        args: list[seam.VariableTracker],
        kwargs: dict[str, seam.VariableTracker],
    ) -> seam.VariableTracker:
        handler = _METHODS.get(name)
        if handler is not None and self.is_stacked(tx):
            result = handler(self, tx, args, kwargs)
            if result is not None:
                return result  # type: ignore[no-any-return]
        elements = self.through_elements(tx)
        result = elements.call_method(tx, name, args, kwargs)
        return self if result is elements else result

    def call_torch_function(
        self, tx: Any, fn: Any, types: Any, args: Any, kwargs: Any
    ) -> seam.VariableTracker:
        if self.is_stacked(tx):
            result = METHODS["__torch_function__"](self, tx, [fn, *args], dict(kwargs))
            if result is not None:
                return result
        return self.through_elements(tx).call_torch_function(tx, fn, types, args, kwargs)  # type: ignore[no-any-return]

    def call_obj_hasattr(self, tx: Any, name: str) -> Any:
        return self.through_elements(tx).call_obj_hasattr(tx, name)

    def set_attribute(
        self, tx: Any, name: str, value: seam.VariableTracker
    ) -> seam.VariableTracker:
        elements = self.through_elements(tx)
        return elements.call_method(tx, "__setattr__", [seam.constant(name), value], {})  # type: ignore[no-any-return]

    def may_be_edited(self, tx: Any) -> bool:
        """Whether a write may stay in the log: no other tensordict could show the elements."""
        return self.input_state is None or not self._others(tx)

    # ---- bytecode -------------------------------------------------------------------------------

    def reconstruct(self, codegen: seam.PyCodegen) -> None:
        """Push a new lazy stack; that of the elements where there is one."""
        if self.elements is not None:
            codegen(self.elements)
        else:
            super().reconstruct(codegen)


def _read(td: LazyStackVariable, path: tuple[str, ...]) -> seam.VariableTracker | None:
    """The entry at a path as the program gets it: a tensor of its own, or a nested lazy stack."""
    found = td.storage.get(path[0])
    if found is None:
        return None
    entry = found.realize()
    if isinstance(entry, seam.TensorVariable):
        # Each read of a lazy stack stacks anew, also of what was written: two reads are two
        # tensors, and what the stack holds changes with the tensor that was written to it.
        tx = seam.current_translator()
        return entry.call_method(tx, "clone", [], {}) if len(path) == 1 else None
    if isinstance(entry, LazyStackVariable) and entry.elements is None:
        return entry if len(path) == 1 else _read(entry, path[1:])
    return None


def _getitem(td: LazyStackVariable, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    path = key_path(args[0]) if len(args) == 1 and not kwargs else None
    return None if path is None else _read(td, path)


def _contains(td: LazyStackVariable, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    path = key_path(args[0])
    if path is None or len(path) != 1:
        return None
    return seam.constant(td.storage.contains(path[0]))


def _set(td: LazyStackVariable, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``stack["a"] = tensor``: kept in the log, cut into the elements at replay."""
    if kwargs or len(args) != 2 or not td.may_be_edited(tx):
        return None
    path = key_path(args[0])
    value = args[1].realize()
    if path is None or len(path) != 1 or not isinstance(value, seam.TensorVariable):
        return None
    plain = all(
        td.read_field(tx, field).is_constant_match(constant)
        for field, constant in (("is_locked", False), ("device", None))
    )
    if not plain or not _leads_with_batch(tx, td, value):
        return None
    td.storage.set(tx, path[0], value)
    return td


def _leads_with_batch(tx: Any, td: LazyStackVariable, value: seam.TensorVariable) -> bool:
    sizes = td.read_field(tx, "batch_size").realize().items  # type: ignore[attr-defined]
    shape = leafwise.example(value).shape
    if len(shape) < len(sizes):
        return False
    return all(
        seam.sizes_equal(leafwise.example(own), size)
        for own, size in zip(sizes, shape, strict=False)
    )


def _setitem(td: LazyStackVariable, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return None if _set(td, tx, args, kwargs) is None else seam.constant(None)


#: What is answered on stacked entries; each handler answers None for what is not the plain case.
_METHODS: dict[str, Callable[..., Any]] = {
    **{name: METHODS[name] for name, op in LEAFWISE_BY_NAME.items() if name == op.name},
    "__contains__": _contains,
    "__getitem__": _getitem,
    "__setitem__": _setitem,
    "get": _getitem,
    "set": _set,
}
_PROPERTIES = ("batch_dims", "batch_size", "device", "is_locked", "ndim", "shape")


@functools.cache
def _layout(stack_dim: int) -> Layout:
    """The layout of lazy stacks along one dimension."""
    return Layout(
        cls=LazyStackedTensorDict,
        entries="_entries",
        batch_size="_batch_size",
        device="_device",
        names="_names",
        is_locked="_is_locked",
        rebuild=stack_rebuilder(stack_dim),
        is_trusted=True,
        base=TensorCollection,
    )


def build(builder: seam.VariableBuilder, stack: Any) -> seam.VariableTracker:
    """The tracker of an input lazy stack."""
    seam.install_type_guard(builder.source)
    plain = functools.partial(is_plain, stack_dim=stack.stack_dim)
    vt = LazyStackVariable(stack, _layout(stack.stack_dim), source=builder.source)
    if vt.family == builder.source:
        note_input(builder.tx, builder.source)
    else:
        # Made anew each time that it is read, so it is never the same as another one.
        mark_frame(builder.tx)
    settle(builder.tx, vt.family)
    seam.track_existing(builder.tx, stack, vt)
    # Elements that differ have no stacked form; what one of them lacks is not seen from the stack.
    if plain(stack) and elements.is_uniform(stack.tensordicts):
        seam.install_lambda_guard(builder.source, plain, f"stacked along {stack.stack_dim}")
    else:
        vt.through_elements(builder.tx)
    return vt


def settle(tx: Any, family: seam.Source | None = None) -> bool:
    """Make the writes of all lazy stacks on their elements: an input comes that may be one.

    Returns:
        Whether there was anything to write.

    Args:
        tx: the translator.
        family: of the input that comes; its own stacks are left alone.
    """
    stacks = [
        stack
        for stack in (state.owner for state in input_states(tx))
        if isinstance(stack, LazyStackVariable)
        and stack.elements is None
        and stack.is_modified
        and stack.family != family
    ]
    for stack in stacks:
        stack.through_elements(tx)
    return bool(stacks)

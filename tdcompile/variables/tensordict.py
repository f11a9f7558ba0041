"""``TensorDictVariable``: what Dynamo sees instead of a tensordict.

Key names: :class:`TensorDictVariable` (an instance), :class:`TensorDictClassVariable` (the class).

Invariant: a trace depends on the entries it touches. State lives in the storage (``storage.py``)
and in four fields (``fields.py``); everything else is the class's own Python, which is traced with
the tracker as ``self`` unless ``methods.py`` answers a call natively.
"""

from __future__ import annotations

import functools
import inspect
import types
from typing import TYPE_CHECKING, Any

import torch

from tdcompile._compat import dynamo as seam
from tdcompile._compat.guards import require_distinct
from tdcompile._compat.slots import HookMixin
from tdcompile.variables.breaks import break_graph
from tdcompile.variables.calls import BoundCallVariable, NativeCallVariable
from tdcompile.variables.fields import InputField, InputState, marked_dims
from tdcompile.variables.layout import FIELDS, SERVED, Layout
from tdcompile.variables.storage import EntryState, StorageVariable, items_of_mapping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "CLASS_METHODS",
    "METHODS",
    "PROPERTIES",
    "TensorDictClassVariable",
    "TensorDictVariable",
]

_MISSING = object()

#: Calls and properties that are answered without tracing the class's Python. ``variables.methods``
#: fills them; it says what a handler may do.
METHODS: dict[str, Callable[..., seam.VariableTracker | None]] = {}
CLASS_METHODS: dict[str, Callable[..., seam.VariableTracker]] = {}
PROPERTIES: dict[str, Callable[..., seam.VariableTracker]] = {}

# What a tracker of an instance notes while tracing; no trackers that upstream has to see.
_TRACE_STATE = (
    "entry_state",
    "input_state",
    "is_being_copied",
    "is_modified",
    "locked_by",
    "notes",
    "was_unlocked",
)


class TensorDictVariable(HookMixin, seam.UserDefinedObjectVariable):
    """A tensordict while tracing: an input (with a source) or one made in the trace.

    Guards: its exact type when it is an input; everything else when it is read.
    """

    #: Whether the entries are a row in a dictionary of its own.
    is_row = True

    _nonvar_fields = {  # noqa: RUF012 - upstream's convention
        "fields",
        "layout",
        *_TRACE_STATE,
        *seam.UserDefinedObjectVariable._nonvar_fields,
    }

    def __init__(
        self,
        value: Any,
        layout: Layout,
        storage: StorageVariable | None = None,
        fields: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        for name in _TRACE_STATE:
            kwargs.pop(name, None)  # There only where upstream clones a tracker.
        super().__init__(value, **kwargs)
        self.layout = layout
        self.is_modified = False
        self.is_being_copied = False
        # The tensordicts that locked this one in the trace.
        self.locked_by: list[TensorDictVariable] = []
        # Who holds whom may have changed since, also where it is locked again.
        self.was_unlocked = False
        # Attribute -> tracker, for what the layout calls notes.
        self.notes: dict[str, seam.VariableTracker] = {}
        self.input_state: InputState | None = None
        self.entry_state: EntryState | None = None
        if self.source is not None and storage is None:
            self.input_state, self.entry_state = self._states_of(value, self.source)
            storage = StorageVariable(base=self.entry_state)
            fields = self.input_state.unread_fields()
        self.storage = storage if storage is not None else StorageVariable.of_items({})
        self.storage.notify = self._before_change
        # Our name of a field -> its tracker, or the InputField that it still equals.
        self.fields: dict[str, Any] = fields if fields is not None else {}

    def _states_of(self, value: Any, source: seam.Source) -> tuple[InputState, EntryState]:
        """What is known of an input at the start of the frame."""
        layout = self.layout
        spread_dynamic_marks(value, layout)
        entries = EntryState(
            getattr(value, layout.entries), seam.AttrSource(source, layout.entries)
        )
        return InputState(self, value, source), entries

    @classmethod
    def new(
        cls, layout: Layout, storage: StorageVariable, fields: dict[str, Any]
    ) -> TensorDictVariable:
        """A tensordict made in the trace; ``layout.rebuild`` builds it if it gets out."""
        placeholder: Any = object.__new__(layout.cls)
        return cls(placeholder, layout, storage, fields, mutation_type=seam.new_mutation())

    def with_entries(self, storage: StorageVariable) -> TensorDictVariable:
        """A new tensordict with this one's fields and other entries."""
        return self.new(self.layout, storage, dict(self.fields))

    # ---- state ----------------------------------------------------------------------------------

    def read_field(self, tx: Any, field: str) -> seam.VariableTracker:
        found = self._field(field)
        if isinstance(found, InputField):
            return found.read(tx)
        if found is None:
            seam.raise_in_user_code(tx, AttributeError, getattr(self.layout, field))
        return found  # type: ignore[no-any-return]

    def _field(self, field: str) -> Any:
        """The field's tracker or InputField; a constant of the class where no one set it."""
        found = self.fields.get(field)
        if found is None:
            default = inspect.getattr_static(self.layout.cls, getattr(self.layout, field), _MISSING)
            if default is None or isinstance(default, (bool, str, tuple)):
                found = seam.constant(default)
        return found

    def write_field(self, tx: Any, field: str, value: seam.VariableTracker) -> None:
        self._before_change(tx)
        self.fields[field] = value

    def batch_dims(self, tx: Any) -> int:
        found = self.fields["batch_size"]
        if isinstance(found, InputField):
            return found.state.batch_dims()
        return len(found.realize().items)

    def rows(self, tx: Any) -> list[TensorDictVariable]:
        """The tensordicts that hold the entries: itself; of a lazy stack its elements."""
        return [self]

    def settle(self, tx: Any) -> None:
        """Make edits on the tensordicts that they belong to, where these are others."""

    def accepts_leafwise(self, tx: Any, *, inplace: bool) -> bool:
        """Whether the native loop may run over the entries of this tensordict."""
        return True

    def _before_change(self, tx: Any) -> None:
        tx.output.side_effects.mutation(self)
        self.is_modified = True

    def get_real_python_backed_value(self) -> object:
        """The object, where upstream decides ``is``: distinct now must be distinct at each call."""
        if self.input_state is not None:
            require_distinct(seam.current_translator())
        return super().get_real_python_backed_value()

    def is_base_vt_modified(self, side_effects: Any) -> bool:
        return self.is_modified

    # ---- attributes -----------------------------------------------------------------------------

    def getattr_hook(self, tx: Any, name: str) -> seam.VariableTracker:
        layout = self.layout
        if name == layout.entries:
            return self.storage
        field = layout.field_of(name)
        if field is not None:
            return self.read_field(tx, field)
        if name in layout.notes:
            return self._read_note(tx, name)
        if name in layout.records:
            return self._read_record(name)
        if name in layout.bookkeeping:
            return seam.constant(None)
        if name == "__class__":
            return self.class_variable()
        prop = PROPERTIES.get(name) if layout.is_trusted else None
        if prop is not None:
            return prop(self, tx)
        attribute = inspect.getattr_static(layout.cls, name, _MISSING)
        if isinstance(attribute, types.FunctionType):
            return BoundCallVariable(self, name)
        if isinstance(attribute, classmethod):
            return BoundCallVariable(self.class_variable(), name)
        if layout.is_trusted:
            if isinstance(attribute, property):
                return seam.inline_function(tx, attribute.fget, [self])
            if isinstance(attribute, staticmethod):
                return seam.build(tx, attribute.__func__)
            if attribute is None or isinstance(attribute, (bool, int, str)):
                return seam.constant(attribute)
            if isinstance(attribute, type) and attribute in SERVED:
                return TensorDictClassVariable(attribute, SERVED[attribute])
            if isinstance(attribute, bool):
                # A class attribute of our own: a constant by contract.
                return seam.constant(attribute)
            if attribute is _MISSING:
                fallback = inspect.getattr_static(layout.cls, "__getattr__", None)
                if isinstance(fallback, types.FunctionType):
                    return seam.inline_function(tx, fallback, [self, seam.constant(name)])
                seam.raise_in_user_code(
                    tx, AttributeError, f"'{layout.cls.__name__}' object has no attribute '{name}'"
                )
        return super().getattr_hook(tx, name)  # type: ignore[misc,no-any-return]

    def call_obj_hasattr(self, tx: Any, name: str) -> Any:
        layout = self.layout
        known = {
            layout.entries,
            *layout.notes,
            *layout.bookkeeping,
            *layout.records,
            *(getattr(layout, f) for f in FIELDS),
        }
        if name in known or inspect.getattr_static(layout.cls, name, _MISSING) is not _MISSING:
            return seam.constant(True)
        if layout.is_trusted:
            return seam.constant(False)
        return super().call_obj_hasattr(tx, name)

    def method_setattr_standard(
        self, tx: Any, name: seam.VariableTracker, value: seam.VariableTracker, *args: Any
    ) -> seam.VariableTracker:
        """``object.__setattr__(td, name, value)``, which upstream answers by this method."""
        return self.set_attribute(tx, name.as_python_constant(), value)

    def set_attribute(
        self, tx: Any, name: str, value: seam.VariableTracker
    ) -> seam.VariableTracker:
        """What ``object.__setattr__`` does: state by our own names, then a property's setter."""
        layout = self.layout
        field = layout.field_of(name)
        if name == layout.entries:
            self._assign_entries(tx, value)
        elif field is not None:
            self.write_field(tx, field, value)
        elif name in layout.notes:
            self._before_change(tx)
            self.notes[name] = value
        elif name in layout.bookkeeping:
            pass
        elif name in layout.records:
            if not value.is_constant_none():
                break_graph("tdcompile: memory of a tensordict", name)
        else:
            attribute = inspect.getattr_static(layout.cls, name, None)
            if not isinstance(attribute, property) or attribute.fset is None:
                if not layout.is_trusted:
                    return super().call_method(tx, "__setattr__", [seam.constant(name), value], {})
                seam.raise_in_user_code(
                    tx, AttributeError, f"'{layout.cls.__name__}' object has no attribute '{name}'"
                )
            return seam.inline_function(tx, attribute.fset, [self, value])
        return seam.constant(None)

    def _read_record(self, name: str) -> seam.VariableTracker:
        """What is known of the memory of an input. Guards: that nothing is."""
        state = self.input_state
        if state is not None:
            if getattr(state.value, name, None) is not None:
                break_graph("tdcompile: memory of a tensordict", name)
            is_unset = functools.partial(_is_unset, name)
            seam.install_lambda_guard(state.source, is_unset, f"{name} is not set")
        return seam.constant(None)

    def _read_note(self, tx: Any, name: str) -> seam.VariableTracker:
        note = self.notes.get(name)
        if note is not None:
            return note
        if self.input_state is None or not hasattr(self.input_state.value, name):
            return seam.constant(None)
        source = seam.AttrSource(self.input_state.source, name)
        return seam.wrap_input(tx, getattr(self.input_state.value, name), source)

    def _assign_entries(self, tx: Any, value: seam.VariableTracker) -> None:
        value = value.realize()
        if not isinstance(value, StorageVariable):
            value = StorageVariable.of_items(items_of_mapping(tx, value), _own_dict(value))
        if self.input_state is not None:
            self.storage.assign(tx, value)
            return
        self.storage = value
        self.storage.notify = self._before_change

    def class_variable(self) -> TensorDictClassVariable:
        source = None if self.source is None else seam.TypeSource(self.source)
        return TensorDictClassVariable(self.layout.cls, self.layout, source=source)

    # ---- calls ----------------------------------------------------------------------------------

    def call_method(
        self,
        tx: Any,
        name: str,
        args: list[seam.VariableTracker],
        kwargs: dict[str, seam.VariableTracker],
    ) -> seam.VariableTracker:
        handler = METHODS.get(name)
        if handler is not None:
            result = handler(self, tx, args, kwargs)
            if result is not None:
                return result
        if name == "__setattr__" and args[0].is_python_constant():
            custom = inspect.getattr_static(self.layout.cls, "__setattr__", None)
            if self.layout.is_trusted and isinstance(custom, types.FunctionType):
                return seam.inline_function(tx, custom, [self, *args])
            return self.set_attribute(tx, args[0].as_python_constant(), args[1])
        if self.layout.is_trusted:
            attribute = inspect.getattr_static(self.layout.cls, name, None)
            if isinstance(attribute, types.FunctionType):
                return seam.inline_function(tx, attribute, [self, *args], kwargs)
            if isinstance(attribute, (classmethod, staticmethod, property)):
                return self.getattr_hook(tx, name).call_function(tx, args, kwargs)
        return super().call_method(tx, name, args, kwargs)

    def call_torch_function(
        self, tx: Any, fn: Any, types: Any, args: Any, kwargs: Any
    ) -> seam.VariableTracker:
        result = METHODS["__torch_function__"](self, tx, [fn, *args], dict(kwargs))
        if result is not None:
            return result
        if self.layout.is_trusted:
            handler = self.layout.cls.__torch_function__.__func__  # type: ignore[attr-defined]
            packed = seam.build(tx, dict(kwargs)) if kwargs else seam.build(tx, {})
            return seam.inline_function(
                tx,
                handler,
                [self.class_variable(), fn, types, seam.TupleVariable(list(args)), packed],
            )
        return super().call_torch_function(tx, fn, types, args, kwargs)

    def subscript_hook(self, tx: Any, key: seam.VariableTracker) -> seam.VariableTracker:
        return self.call_method(tx, "__getitem__", [key], {})

    def assign_subscript_hook(
        self, tx: Any, key: seam.VariableTracker, value: seam.VariableTracker | None
    ) -> seam.VariableTracker:
        if value is None:
            return self.call_method(tx, "__delitem__", [key], {})
        return self.call_method(tx, "__setitem__", [key, value], {})

    def richcompare_hook(
        self, tx: Any, other: seam.VariableTracker, op: str
    ) -> seam.VariableTracker:
        # Operators are answered before they come here; this is a list or a tuple that compares its
        # elements, and that asks the answer for its truth value.
        answer = self.call_method(tx, op, [other], {})
        if answer.is_constant_match(NotImplemented):
            return answer
        return seam.build(tx, bool).call_function(tx, [answer], {})

    def contains_hook(self, tx: Any, item: seam.VariableTracker) -> seam.VariableTracker:
        return self.call_method(tx, "__contains__", [item], {})

    def length_hook(self, tx: Any) -> seam.VariableTracker:
        return self.call_method(tx, "__len__", [], {})

    def bool_hook(self, tx: Any) -> seam.VariableTracker:
        return self.call_method(tx, "__bool__", [], {})

    def iter_hook(self, tx: Any) -> seam.VariableTracker:
        return seam.build(tx, iter).call_function(
            tx, [self.call_method(tx, "__iter__", [], {})], {}
        )

    # ---- bytecode -------------------------------------------------------------------------------

    def reconstruct(self, codegen: seam.PyCodegen) -> None:
        """Push a new tensordict: one call of ``layout.rebuild``."""
        rebuild = self.layout.rebuild
        codegen.add_push_null(lambda: seam.push_function(codegen, rebuild))
        codegen(self.storage)
        for field in FIELDS:
            push_field(codegen, self._field(field))
        codegen.extend_output(seam.create_call_function(1 + len(FIELDS), False))
        for name, note in self.notes.items():
            if _refers_to(note, self):
                # What `with` would undo on itself cannot be made before the object is.
                continue
            if seam.ends_with_return(codegen) and _refers_to_new(note):
                # A view of a tensordict that goes with the trace: there is nothing to write back.
                continue
            codegen.append_output(seam.create_instruction("COPY", arg=1))
            codegen.clear_tos()
            codegen(note)
            codegen.append_output(seam.create_instruction("SWAP", arg=2))
            codegen.append_output(seam.create_instruction("STORE_ATTR", argval=name))
        codegen.clear_tos()


def _is_unset(name: str, td: Any) -> bool:
    return getattr(td, name, None) is None


def _refers_to(vt: seam.VariableTracker, target: seam.VariableTracker) -> bool:
    found = []
    seam.VariableTracker.visit(lambda part: found.append(part) if part is target else None, vt)
    return bool(found)


def _refers_to_new(vt: seam.VariableTracker) -> bool:
    found = []

    def visit(part: seam.VariableTracker) -> None:
        if isinstance(part, TensorDictVariable) and part.input_state is None:
            found.append(part)

    seam.VariableTracker.visit(visit, vt)
    return bool(found)


def _own_dict(value: seam.VariableTracker) -> seam.VariableTracker | None:
    """A dictionary of the traced program that could go on being used under its own name."""
    return value if isinstance(value, seam.ConstDictVariable) and seam.is_new(value) else None


def spread_dynamic_marks(value: Any, layout: Layout) -> None:
    """Give each leaf the marks that one leaf has on a batch dimension: they are one dimension.

    The others are marked weakly, so that a program which specialises on the size still compiles.
    """
    batch_dims = len(getattr(value, layout.batch_size))
    if batch_dims == 0:
        return
    leaves = list(_tensor_leaves(value, layout, set()))
    marks = {dim for leaf in leaves for dim in marked_dims(leaf, batch_dims)}
    for dim in marks:
        for leaf in leaves:
            if dim not in marked_dims(leaf, batch_dims):
                seam.maybe_mark_dynamic(leaf, dim)


def _tensor_leaves(value: Any, layout: Layout, seen: set[int]) -> Iterator[torch.Tensor]:
    if id(value) in seen:
        return  # A tensordict may hold itself.
    seen.add(id(value))
    for entry in getattr(value, layout.entries).values():
        if isinstance(entry, torch.Tensor) and not isinstance(entry, layout.unbatched):
            yield entry
        elif type(entry) in SERVED:
            yield from _tensor_leaves(entry, SERVED[type(entry)], seen)


def push_field(codegen: seam.PyCodegen, value: Any) -> None:
    """Push one field: from the tensordict it came from, as a constant, or rebuilt."""
    if isinstance(value, InputField):
        value.push(codegen)
    elif isinstance(value, seam.LazyVariableTracker) and not value.is_realized():
        codegen(value)
    elif value.is_python_constant():
        # A torch.Size or a device as a constant of the code object: no call to make it again.
        codegen.append_output(codegen.create_load_const_unchecked(value.as_python_constant()))
        codegen.clear_tos()
    else:
        codegen(value)


class TensorDictClassVariable(HookMixin, seam.UserDefinedClassVariable):
    """The class of tensordicts while tracing: calling it makes a tensordict in the trace."""

    _nonvar_fields = {"layout", *seam.UserDefinedClassVariable._nonvar_fields}  # noqa: RUF012

    def __init__(self, value: type, layout: Layout, **kwargs: Any) -> None:
        super().__init__(value, **kwargs)
        self.layout = layout

    def call_function(
        self, tx: Any, args: list[seam.VariableTracker], kwargs: dict[str, seam.VariableTracker]
    ) -> seam.VariableTracker:
        made = self._make(tx)
        made.call_method(tx, "__init__", list(args), kwargs)
        return made

    def _make(self, tx: Any) -> TensorDictVariable:
        return TensorDictVariable.new(self.layout, StorageVariable.of_items({}), {})

    def _from_entries(
        self,
        tx: Any,
        entries: seam.VariableTracker,
        batch_size: seam.VariableTracker,
        device: seam.VariableTracker | None = None,
        names: seam.VariableTracker | None = None,
    ) -> seam.VariableTracker:
        entries = entries.realize()
        if not isinstance(entries, StorageVariable):
            entries = StorageVariable.of_items(items_of_mapping(tx, entries), _own_dict(entries))
        none = seam.constant(None)
        fields = {
            "batch_size": batch_size,
            "device": device if device is not None else none,
            "names": names if names is not None else none,
            "is_locked": seam.constant(False),
        }
        return TensorDictVariable.new(self.layout, entries, fields)

    def getattr_hook(self, tx: Any, name: str) -> seam.VariableTracker:
        if name == self.layout.from_entries:
            return NativeCallVariable(self._from_entries)
        attribute = inspect.getattr_static(self.layout.cls, name, None)
        if isinstance(attribute, classmethod):
            return BoundCallVariable(self, name)
        if self.layout.is_trusted:
            function = getattr(attribute, "__func__", attribute)
            if isinstance(function, types.FunctionType):
                return seam.UserFunctionVariable(function)
        return super().getattr_hook(tx, name)  # type: ignore[misc,no-any-return]

    def call_method(
        self,
        tx: Any,
        name: str,
        args: list[seam.VariableTracker],
        kwargs: dict[str, seam.VariableTracker],
    ) -> seam.VariableTracker:
        if name == self.layout.from_entries:
            return self._from_entries(tx, *args, **kwargs)
        handler = CLASS_METHODS.get(name) if self.layout.is_trusted else None
        if handler is not None:
            return handler(self, tx, args, kwargs)
        attribute = inspect.getattr_static(self.layout.cls, name, None)
        if isinstance(attribute, classmethod):
            return seam.inline_function(tx, attribute.__func__, [self, *args], kwargs)
        if name == "__new__":
            return self._make(tx)
        return super().call_method(tx, name, args, kwargs)

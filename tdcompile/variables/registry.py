"""Which classes the trackers serve, and the patches that make Dynamo use them.

Key names: :func:`register`, :func:`unregister`, :func:`registered_layouts`, :func:`patches`.

Invariant: nothing happens at import. ``patches()`` describes, ``plugin.install()`` applies.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tdcompile._compat import dynamo as seam
from tdcompile._compat.exceptions import FrameConverter, Translator
from tdcompile._compat.guards import mark_frame, note_input
from tdcompile.patching import Patch, PatchSet, TablePatch
from tdcompile.tensordict import kinds, modules
from tdcompile.tensordict.classes.fields import FieldsMeta
from tdcompile.tensordict.classes.tensorclass import TensorClassMeta
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.dense import TensorDict
from tdcompile.tensordict.lazy.stack import LazyStackedTensorDict
from tdcompile.tensordict.leafwise import LeafwiseOp
from tdcompile.tensordict.nontensor.data import MetaData, NonTensorData, NonTensorEntry
from tdcompile.tensordict.nontensor.positions import join_places, move_places
from tdcompile.tensordict.nontensor.stack import NonTensorStack
from tdcompile.tensordict.nontensor.unbatched import UnbatchedTensor
from tdcompile.tensordict.rebuild import (
    may_unlock,
    rebuild_tensordict,
    rebuilder,
    shallow_entries,
)
from tdcompile.tensordict.reductions import ReductionOp
from tdcompile.variables import aliases, contexts, errors, frames, lazy, leafwise, methods, replay
from tdcompile.variables.breaks import skip_frame
from tdcompile.variables.followed import build_is_followed
from tdcompile.variables.layout import FIELDS, SERVED, STACKS, Layout
from tdcompile.variables.nontensor import ConstantFunctionVariable, NonTensorVariable
from tdcompile.variables.sequences import flatten_arguments
from tdcompile.variables.tensordict import TensorDictClassVariable, TensorDictVariable

if TYPE_CHECKING:
    from collections.abc import Callable

# Imported for what it does: it fills the tables of native methods.
assert methods.METHODS

__all__ = ["OWN_LAYOUT", "patches", "register", "registered_layouts", "serve_kinds", "unregister"]

OWN_LAYOUT = Layout(
    cls=TensorDict,
    entries="_entries",
    batch_size="_batch_size",
    device="_device",
    names="_names",
    is_locked="_is_locked",
    rebuild=rebuild_tensordict,
    is_trusted=True,
    from_entries="_from_entries",
    shallow_entries=shallow_entries,
    may_unlock=may_unlock,
    lock_references=("_lock_parents", "_memory"),
    notes=("_last_op", "_open_ops"),
    bookkeeping=("_lock_parents",),
    records=("_memory",),
    non_tensor=(NonTensorEntry,),
    carry="_carried",
    unbatched=(UnbatchedTensor,),
    base=TensorCollection,
)

#: Classes of the rows of our tables; a row is a constant.
_TABLE_ROWS = (LeafwiseOp, ReductionOp)

#: Class -> its table entries, of the classes served beside our own.
_ENTRIES: dict[type, PatchSet] = {}

SERVED[TensorDict] = OWN_LAYOUT
STACKS.add(LazyStackedTensorDict)


def registered_layouts() -> tuple[Layout, ...]:
    """The layouts that are served now: ours, and those that were registered."""
    return tuple(SERVED.values())


def register(layout: Layout) -> None:
    """Serve another class by the same trackers, until :func:`unregister`.

    Raises:
        ValueError: the class is served already.
    """
    _serve(layout, after=(seam.reset,))


def _serve(layout: Layout, after: tuple[Any, ...] = ()) -> None:
    if layout.cls in SERVED:
        raise ValueError(
            f"{layout.cls.__qualname__} is served already: "
            f"call unregister({layout.cls.__qualname__}) first"
        )
    entries = PatchSet(f"layout of {layout.cls.__qualname__}", _table_patches(layout), after=after)
    entries.apply()
    SERVED[layout.cls] = layout
    _ENTRIES[layout.cls] = entries


def unregister(cls: type) -> Layout:
    """Stop serving a class that was registered; returns its layout.

    Raises:
        KeyError: the class was not registered.
    """
    entries = _ENTRIES.pop(cls)
    entries.undo()
    return SERVED.pop(cls)


def serve_kinds() -> Callable[[], None]:
    """Serve the classes that the container announces: those there are and those to come.

    A class defined later needs no reset: no compiled frame knows it.

    Returns:
        A function that ends it.
    """
    served: list[type] = []

    def serve(kind: type) -> None:
        # A result of a class that runs ``__post_init__`` is more than its entries: upstream traces
        # the Python of such a class, and where a tensordict holds one, the graph breaks.
        schema = getattr(kind, "__tensorclass_schema__", None)
        if kind not in SERVED and not (schema is not None and schema.runs_post_init):
            _serve(replace(OWN_LAYOUT, cls=kind, rebuild=rebuilder(kind)))
            served.append(kind)

    for kind in kinds.announced():
        serve(kind)
    stop = kinds.observe(serve)

    def end() -> None:
        stop()
        while served:
            unregister(served.pop())

    return end


# ---- building trackers
# ------------------------------------------------------------------------------


def _build_instance(
    layout: Layout, builder: seam.VariableBuilder, value: Any
) -> seam.VariableTracker:
    if not all(hasattr(value, getattr(layout, name)) for name in ("entries", *FIELDS)):
        skip_frame("tdcompile: tensordict under construction", builder.source.name)
    if lazy.settle(builder.tx):
        # It may have turned out to be an element of a stack.
        known = seam.tracked(builder.tx, value)
        if known is not None:
            return seam.wrap_input(builder.tx, value, builder.source)
    seam.install_type_guard(builder.source)
    note_input(builder.tx, builder.source)
    return seam.track_existing(
        builder.tx, value, TensorDictVariable(value, layout, source=builder.source)
    )


def _build_class(layout: Layout, builder: seam.VariableBuilder, value: Any) -> seam.VariableTracker:
    seam.install_class_guard(builder.source)
    mark_frame(builder.tx)
    return TensorDictClassVariable(value, layout, source=builder.source)


def _build_non_tensor(builder: seam.VariableBuilder, value: Any) -> seam.VariableTracker:
    seam.install_type_guard(builder.source)
    return seam.track_object(builder.tx, value, NonTensorVariable(value, source=builder.source))


def _build_constant_function(builder: seam.VariableBuilder, value: Any) -> seam.VariableTracker:
    return ConstantFunctionVariable(value)


def _non_tensor_patches() -> list[TablePatch]:
    """Entries for non-tensor entries, in each type table, and for functions of constants."""
    return [
        *(
            TablePatch(
                table=seam.id_table(),
                key=id(function),
                name="id table",
                replacement=_build_constant_function,
                reason="where elements go depends on constants only",
            )
            for function in (move_places, join_places)
        ),
        *(
            TablePatch(
                table=seam.type_table(trace_numpy),
                key=cls,
                name=f"type table (trace_numpy={trace_numpy})",
                replacement=_build_non_tensor,
                reason=f"the values of a {cls.__name__} are handed on unread",
            )
            for cls in (NonTensorData, MetaData, NonTensorStack)
            for trace_numpy in (True, False)
        ),
    ]


def _table_patches(layout: Layout) -> list[TablePatch]:
    """Entries for an instance, in each type table (one a ``trace_numpy``), and for the class."""
    name = layout.cls.__qualname__
    instance = functools.partial(_build_instance, layout)
    return [
        *(
            TablePatch(
                table=seam.type_table(trace_numpy),
                key=layout.cls,
                name=f"type table (trace_numpy={trace_numpy})",
                replacement=instance,
                reason=f"a {name} is tracked as a row",
            )
            for trace_numpy in (True, False)
        ),
        TablePatch(
            table=seam.id_table(),
            key=id(layout.cls),
            name="id table",
            replacement=functools.partial(_build_class, layout),
            reason=f"a call of {name} makes a tracked tensordict",
        ),
    ]


# ---- operators
# --------------------------------------------------------------------------------------


def _make_handler(original: Any) -> Any:
    """Take operators with a tensordict operand out before tensors claim them."""
    function = original.__func__ if isinstance(original, staticmethod) else original

    def replacement(
        fn: Any, arg_types: list[type], has_kwargs: bool, *args: Any, **kwargs: Any
    ) -> Any:
        handler = None if has_kwargs else _handler_for(fn, arg_types)
        if handler is not None:
            return handler
        return function(fn, arg_types, has_kwargs, *args, **kwargs)

    return staticmethod(replacement)


def _handler_for(fn: Any, arg_types: list[type]) -> Any:
    if not any(issubclass(t, TensorDictVariable) for t in arg_types):
        return None
    # A lazy operand is realised and dispatched again by upstream.
    if any(issubclass(t, seam.LazyVariableTracker) for t in arg_types):
        return None
    try:
        is_operator = fn in leafwise.OPERATORS
    except TypeError:
        return None
    if is_operator:
        return lambda tx, args, kwargs: leafwise.operator_call(tx, fn, args)
    if fn is seam.operator_getitem and issubclass(arg_types[0], TensorDictVariable):
        return lambda tx, args, kwargs: args[0].call_method(tx, "__getitem__", [args[1]], {})
    if fn is type and len(arg_types) == 1:
        return lambda tx, args, kwargs: args[0].class_variable()
    return None


def _builtin_call_method(original: Any) -> Any:
    """Answer ``object.__setattr__(td, name, value)``, which a class with its own setter calls."""

    def replacement(builtin: Any, tx: Any, name: str, args: Any, *rest: Any, **kwargs: Any) -> Any:
        if builtin.fn is object and name == "__setattr__" and len(args) == 3:
            td, attribute, value = (arg.realize() if i == 0 else arg for i, arg in enumerate(args))
            if isinstance(td, TensorDictVariable):
                return td.method_setattr_standard(tx, attribute, value)
        return original(builtin, tx, name, args, *rest, **kwargs)

    return replacement


def _build_sourceless_class(tx: Any, cls: type) -> seam.VariableTracker:
    """A class with fields that the trace came by in another way than by a path."""
    layout = SERVED.get(cls)
    if layout is None:
        return seam.UserDefinedClassVariable(cls)
    return TensorDictClassVariable(cls, layout)


def patches() -> tuple[PatchSet, ...]:
    """What ``install()`` applies: trackers, the frames to start at, errors of whole graphs."""
    return (
        PatchSet(
            "trackers",
            [
                *_table_patches(OWN_LAYOUT),
                *_non_tensor_patches(),
                *(
                    TablePatch(
                        table=seam.type_table(trace_numpy),
                        key=LazyStackedTensorDict,
                        name=f"type table (trace_numpy={trace_numpy})",
                        replacement=lazy.build,
                        reason="a lazy stack is tracked as a stack",
                    )
                    for trace_numpy in (True, False)
                ),
                *(
                    TablePatch(
                        table=seam.sourceless_table(),
                        key=row,
                        name="sourceless table",
                        replacement=lambda tx, value: seam.UserDefinedObjectVariable(value),
                        reason="the methods made from a table close over a row of it",
                    )
                    for row in _TABLE_ROWS
                ),
                *(
                    TablePatch(
                        table=seam.sourceless_table(),
                        key=metaclass,
                        name="sourceless table",
                        replacement=_build_sourceless_class,
                        reason="an annotation names a tensorclass, which makes rows, too",
                    )
                    for metaclass in (FieldsMeta, TensorClassMeta)
                ),
                TablePatch(
                    table=seam.id_table(),
                    key=id(modules.is_followed),
                    name="id table",
                    replacement=build_is_followed,
                    reason="to_module asks whether vmap follows a tensor, which is not traced",
                ),
                Patch(
                    target=seam.BuiltinVariable,
                    name="_make_handler",
                    wrap=_make_handler,
                    reason="an operator with a tensor goes to the graph before a class is asked",
                    upstream="pytorch/pytorch#200455",
                    test="tests/variables/test_operators.py",
                    remove_when="Dynamo asks user classes for operators with a tensor operand",
                ),
                Patch(
                    target=seam.BuiltinVariable,
                    name="call_method",
                    wrap=_builtin_call_method,
                    reason="object.__setattr__ of a tensordict is a write of its state",
                    upstream="torch/_dynamo/variables/builtin.py: asks for attribute mutation",
                    test="tests/variables/test_kinds.py",
                    remove_when="upstream asks the tracker of the object",
                ),
                Patch(
                    target=seam.torch_functions,
                    name="_flatten_vts",
                    wrap=flatten_arguments,
                    reason="a tuple of tensordicts is an argument of torch.stack as a list is",
                    upstream="torch/_dynamo/variables/torch_function.py: looks into lists only",
                    test="tests/variables/test_sequences.py",
                    remove_when="Dynamo looks for __torch_function__ in tuples, too",
                ),
                Patch(
                    target=seam.SideEffects,
                    name="codegen_update_mutated",
                    wrap=replay.codegen_update_mutated,
                    reason="edits of a tensordict are replayed as a log",
                    upstream="pytorch/pytorch#175858",
                    test="tests/variables/test_write.py",
                    remove_when="every supported torch has register_side_effect_replay_handler",
                ),
            ],
            after=(seam.clear_handler_cache,),
        ),
        PatchSet(
            "frames",
            [
                Patch(
                    target=Translator,
                    name="setup_or_before_with",
                    wrap=contexts.setup_with,
                    reason="a tensordict that a method returned can stand after `with`",
                    upstream="pytorch/pytorch#141964",
                    test="tests/variables/test_fields.py",
                    remove_when="Dynamo enters any object with __enter__ and __exit__",
                ),
                Patch(
                    target=seam.builder,
                    name="make_dupe_guard",
                    wrap=aliases.make_dupe_guard,
                    reason="a tensordict by a local and by a global path must stay one object",
                    upstream="torch/_dynamo/guards.py: a note says that the guard is missing",
                    test="tests/variables/test_alias.py",
                    remove_when="make_dupe_guard relates local and global sources",
                ),
                Patch(
                    target=seam.convert_frame,
                    name="has_tensor_in_frame",
                    wrap=lambda original: frames.has_tensor_in_frame(
                        original, lambda: (*SERVED, LazyStackedTensorDict)
                    ),
                    reason="a frame that holds tensors in tensordicts only is worth a trace, too",
                    upstream="torch/_dynamo/convert_frame.py",
                    test="tests/variables/test_graph_break.py",
                    remove_when="Dynamo asks registered classes whether they hold tensors",
                ),
            ],
        ),
        PatchSet(
            "errors",
            [
                Patch(
                    target=Translator,
                    name="exception_handler",
                    wrap=errors.exception_handler,
                    reason="a program's exception is noted where a whole-graph trace ends",
                    upstream="torch/_dynamo/symbolic_convert.py: 'Observed exception'",
                    test="tests/variables/test_errors.py",
                    remove_when="fullgraph=True raises the program's own exception",
                ),
                Patch(
                    target=FrameConverter,
                    name="__call__",
                    wrap=errors.convert_frame,
                    reason="a program's exception leaves a whole-graph trace as itself",
                    upstream="torch/_dynamo/convert_frame.py",
                    test="tests/variables/test_errors.py",
                    remove_when="fullgraph=True raises the program's own exception",
                ),
            ],
        ),
    )

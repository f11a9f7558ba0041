"""Which classes the trackers serve, and the patches that make Dynamo use them.

Key names: :func:`register`, :func:`unregister`, :func:`registered_layouts`, :func:`patches`.

Invariant: nothing happens at import. ``patches()`` describes, ``plugin.install()`` applies.
"""

from __future__ import annotations

import functools
from typing import Any

from tdcompile._compat import dynamo as seam
from tdcompile._compat.exceptions import FrameConverter, Translator
from tdcompile._compat.guards import mark_frame, note_input
from tdcompile.patching import Patch, PatchSet, TablePatch
from tdcompile.tensordict.dense import TensorDict
from tdcompile.tensordict.leafwise import LeafwiseOp
from tdcompile.tensordict.nontensor import NonTensorData
from tdcompile.tensordict.rebuild import may_unlock, rebuild_tensordict, shallow_entries
from tdcompile.tensordict.reductions import ReductionOp
from tdcompile.variables import aliases, contexts, errors, frames, leafwise, methods, replay
from tdcompile.variables.breaks import skip_frame
from tdcompile.variables.layout import FIELDS, Layout
from tdcompile.variables.tensordict import TensorDictClassVariable, TensorDictVariable

# Imported for what it does: it fills the tables of native methods.
assert methods.METHODS

__all__ = ["OWN_LAYOUT", "patches", "register", "registered_layouts", "unregister"]

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
    lock_references=("_lock_parents",),
    notes=("_last_op", "_open_ops"),
    bookkeeping=("_lock_parents",),
    non_tensor=(NonTensorData,),
)

#: Classes of the rows of our tables; a row is a constant.
_TABLE_ROWS = (LeafwiseOp, ReductionOp)

_FOREIGN: dict[type, tuple[Layout, PatchSet]] = {}


def registered_layouts() -> tuple[Layout, ...]:
    """The layouts that are served now: ours, and those that were registered."""
    return (OWN_LAYOUT, *(layout for layout, _ in _FOREIGN.values()))


def _served_classes() -> list[type]:
    return [layout.cls for layout in registered_layouts()]


def register(layout: Layout) -> None:
    """Serve another class by the same trackers, until :func:`unregister`.

    Raises:
        ValueError: the class is served already.
    """
    if any(known.cls is layout.cls for known in registered_layouts()):
        raise ValueError(
            f"{layout.cls.__qualname__} is served already: "
            f"call unregister({layout.cls.__qualname__}) first"
        )
    entries = PatchSet(
        f"layout of {layout.cls.__qualname__}", _table_patches(layout), after=(seam.reset,)
    )
    entries.apply()
    _FOREIGN[layout.cls] = (layout, entries)


def unregister(cls: type) -> Layout:
    """Stop serving a class that was registered; returns its layout.

    Raises:
        KeyError: the class was not registered.
    """
    layout, entries = _FOREIGN.pop(cls)
    entries.undo()
    return layout


# ---- building trackers
# ------------------------------------------------------------------------------


def _build_instance(
    layout: Layout, builder: seam.VariableBuilder, value: Any
) -> seam.VariableTracker:
    if not all(hasattr(value, getattr(layout, name)) for name in ("entries", *FIELDS)):
        skip_frame("tdcompile: tensordict under construction", builder.source.name)
    seam.install_type_guard(builder.source)
    note_input(builder.tx, builder.source)
    return seam.track_existing(
        builder.tx, value, TensorDictVariable(value, layout, source=builder.source)
    )


def _build_class(layout: Layout, builder: seam.VariableBuilder, value: Any) -> seam.VariableTracker:
    seam.install_class_guard(builder.source)
    mark_frame(builder.tx)
    return TensorDictClassVariable(value, layout, source=builder.source)


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


def patches() -> tuple[PatchSet, ...]:
    """What ``install()`` applies: trackers, the frames to start at, errors of whole graphs."""
    return (
        PatchSet(
            "trackers",
            [
                *_table_patches(OWN_LAYOUT),
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
                    wrap=lambda original: frames.has_tensor_in_frame(original, _served_classes),
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

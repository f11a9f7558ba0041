"""The Dynamo half of the seam: every private ``torch._dynamo`` name that trackers need, by job.

Key names: :func:`install_presence_guard`, :func:`install_key_set_guard`,
:func:`wrap_input`, :func:`lazy_input`, :func:`call_torch_function`,
:func:`inline_function`, :func:`raise_in_user_code`, :func:`graph_break`, :func:`reset`.

Invariant: importing this module costs what importing ``torch._dynamo`` costs, so only
``tdcompile.variables``, ``tdcompile.guards`` and the plug-in's switch import it, and only on
install.

Checked against torch 2.13.0, 2.14.1 and 2.15.0 (``torch/_dynamo/variables/base.py``,
``builder.py``, ``side_effects.py``, ``codegen.py``, ``guards.py``, ``source.py``).
"""

from __future__ import annotations

import functools
import operator
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch._dynamo
from torch._dynamo import convert_frame
from torch._dynamo.bytecode_transformation import (
    create_call_function,
    create_call_method,
    create_instruction,
)
from torch._dynamo.codegen import PyCodegen
from torch._dynamo.exc import raise_observed_exception, unimplemented
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.source import (
    AttrSource,
    DictGetItemSource,
    GetItemSource,
    NumpyTensorSource,
    TypeSource,
)
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables import builder
from torch._dynamo.variables import torch_function as torch_functions
from torch._dynamo.variables.base import (
    ValueMutationNew,
    VariableTracker,
)
from torch._dynamo.variables.builder import SourcelessBuilder, VariableBuilder
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.ctx_manager import GenericContextWrappingVariable
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.functions import UserFunctionVariable
from torch._dynamo.variables.iter import IteratorVariable
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.lists import (
    SizeVariable,
    TupleVariable,
)
from torch._dynamo.variables.tensor import SymNodeVariable, TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch._dynamo.variables.user_defined import (
    UserDefinedClassVariable,
    UserDefinedObjectVariable,
)
from torch._guards import Guard, Source
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, statically_known_true

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "AttrSource",
    "BuiltinVariable",
    "ConstDictVariable",
    "ConstantVariable",
    "DictGetItemSource",
    "GenericContextWrappingVariable",
    "GetItemSource",
    "Guard",
    "GuardBuilder",
    "IteratorVariable",
    "LazyVariableTracker",
    "PyCodegen",
    "SideEffects",
    "SizeVariable",
    "Source",
    "SymNodeVariable",
    "TensorVariable",
    "TorchInGraphFunctionVariable",
    "TupleVariable",
    "TypeSource",
    "UserDefinedClassVariable",
    "UserDefinedObjectVariable",
    "UserFunctionVariable",
    "ValueMutationNew",
    "VariableBuilder",
    "VariableTracker",
    "any_input_mutated",
    "build",
    "builder",
    "call_torch_function",
    "constant",
    "convert_frame",
    "create_call_function",
    "create_call_method",
    "create_instruction",
    "current_translator",
    "dict_items",
    "ends_with_return",
    "get_attribute",
    "graph_break",
    "inline_function",
    "install_absence_guard",
    "install_class_guard",
    "install_key_set_guard",
    "install_lambda_guard",
    "install_length_guard",
    "install_presence_guard",
    "install_type_guard",
    "is_asked_for",
    "is_new",
    "lazy_input",
    "maybe_mark_dynamic",
    "nesting",
    "new_mutation",
    "push_function",
    "raise_in_user_code",
    "reset",
    "sizes_equal",
    "skip_frame",
    "stack_root",
    "temporary_tensor",
    "torch_functions",
    "track_attributes",
    "track_existing",
    "track_object",
    "tracked",
    "wrap_input",
]


def reset() -> None:
    """Drop every compiled frame; compiled frames hold trackers and guards of the moment."""
    torch._dynamo.reset()


operator_getitem = operator.getitem

# ---- values
# ---------------------------------------------------------------------------------------


def constant(value: Any) -> VariableTracker:
    """A tracker of a Python constant (no source, no guard)."""
    return ConstantVariable.create(value)  # type: ignore[no-any-return]


def build(tx: Any, value: Any, source: Source | None = None) -> VariableTracker:
    """A tracker of any Python value; with a source it is an input and gets guards."""
    return VariableTracker.build(tx, value, source)  # type: ignore[no-any-return]


def wrap_input(tx: Any, value: Any, source: Source) -> VariableTracker:
    """A tracker of an input value, realised now, with the guards of its kind."""
    return VariableBuilder(tx, source)(value).realize()


def lazy_input(value: Any, source: Source) -> VariableTracker:
    """A tracker of an input value that installs no guard before it is used."""
    return LazyVariableTracker.create(value, source)


def new_mutation() -> ValueMutationNew:
    """The mutation type of a value made inside the trace."""
    return ValueMutationNew()


def is_new(vt: VariableTracker) -> bool:
    """Whether `vt` was made inside the trace (and is rebuilt, not written back)."""
    return isinstance(vt.mutation_type, ValueMutationNew)


def current_translator() -> Any:
    """The translator of the frame that is being traced."""
    return InstructionTranslator.current_tx()


def dict_items(vt: VariableTracker) -> dict[Any, VariableTracker]:
    """The items of an upstream dictionary tracker, by constant key; nothing is guarded."""
    return {key.vt.as_python_constant(): value for key, value in vt.items.items()}  # type: ignore[attr-defined]


def track_existing(tx: Any, value: Any, vt: VariableTracker) -> VariableTracker:
    """Register an input object, so that each path to it gives this one tracker."""
    return tx.output.side_effects.track_mutable(value, vt)  # type: ignore[no-any-return]


def track_object(tx: Any, value: Any, vt: VariableTracker) -> VariableTracker:
    """Register an input object whose attributes the trace may write."""
    return tx.output.side_effects.track_object_existing(value, vt)  # type: ignore[no-any-return]


def call_torch_function(
    tx: Any, function: Any, args: Sequence[VariableTracker], kwargs: dict[str, VariableTracker]
) -> VariableTracker:
    """Call a torch function on trackers: one FX node, no Python interpreted."""
    return TorchInGraphFunctionVariable(function).call_function(tx, list(args), dict(kwargs))


def inline_function(
    tx: Any,
    function: Any,
    args: Sequence[VariableTracker],
    kwargs: dict[str, VariableTracker] | None = None,
) -> VariableTracker:
    """Trace a plain Python function of ours: it is a constant by contract, so it has no guard."""
    return UserFunctionVariable(function).call_function(tx, list(args), dict(kwargs or {}))


def ends_with_return(codegen: PyCodegen) -> bool:
    """Whether the frame that is being put together returns, and does not go on after a break."""
    return not codegen.tx.output.compile_subgraph_reason.graph_break


def push_function(codegen: PyCodegen, function: Any) -> None:
    """Push a function of ours: by import where it has a place, else as a global of the frame."""
    name = getattr(function, "__qualname__", "")
    module = sys.modules.get(getattr(function, "__module__", ""))
    if name and getattr(module, name, None) is function:
        codegen.load_import_from(function.__module__, name)
        return
    glob = codegen.tx.output.install_global_by_id("__tdcompile_function", function)
    codegen.append_output(codegen.create_load_global(glob, add=True))


def sizes_equal(a: Any, b: Any) -> bool:
    """Whether two sizes are equal; equal symbolic ones get a guard, unbacked are unknown."""
    if statically_known_true(a == b):
        return True
    try:
        return bool(a == b)
    except GuardOnDataDependentSymNode:
        return False


def maybe_mark_dynamic(tensor: torch.Tensor, dim: int) -> None:
    """Ask for a dynamic dimension without insisting (public, but costs Dynamo's import)."""
    torch._dynamo.maybe_mark_dynamic(tensor, dim)


def tracked(tx: Any, value: Any) -> VariableTracker | None:
    """The tracker of an input object that the frame has met, or None."""
    return tx.output.side_effects.id_to_variable.get(id(value))  # type: ignore[no-any-return]


def track_attributes(tx: Any, value: Any, vt: VariableTracker) -> None:
    """Let upstream track writes to attributes of an input that has another tracker beside this.

    The tracker is filed under an object of its own, so that `value` still leads to the other one.
    """
    tx.output.side_effects.track_object_existing(_Place(value), vt)


class _Place:
    """Stands for an object in a table of objects."""

    def __init__(self, value: Any) -> None:
        self.value = value


def temporary_tensor(source: Source) -> Source:
    """The source of a tensor that is made each time that `source` is evaluated.

    Upstream has one for arrays, which become tensors: it compares no identities and keeps no weak
    reference; of what is a tensor already it makes nothing else.
    """
    return NumpyTensorSource(source)


def get_attribute(tx: Any, vt: VariableTracker, name: str) -> VariableTracker:
    """``vt.name``, whoever's tracker it is."""
    return build(tx, getattr).call_function(tx, [vt, constant(name)], {})


def any_input_mutated(tx: Any) -> bool:
    """Whether the graph so far writes to one of its input tensors in place."""
    for graph in {tx.output.root_tracer.graph, tx.output.graph}:
        for node in graph.find_nodes(op="placeholder"):
            example = node.meta.get("example_value")
            if isinstance(example, torch.Tensor) and example._version > 0:
                return True
    return False


def stack_root(source: Source, entries: str) -> Source:
    """The source of the outermost lazy stack that an entry's source goes through."""
    while (
        isinstance(source, GetItemSource)
        and isinstance(source.base, AttrSource)
        and source.base.member == entries
    ):
        source = source.base.base
    return source


# ---- errors
def nesting(source: Source, entries: str) -> tuple[Source, tuple[Any, ...]]:
    """Split a source into what lies outside all tensordicts and the keys that lead inwards.

    Args:
        source: of a tensordict.
        entries: the attribute that holds the entries of one.
    """
    path: list[Any] = []
    while (
        isinstance(source, DictGetItemSource)
        and isinstance(source.base, AttrSource)
        and source.base.member == entries
    ):
        path.append(source.index)
        source = source.base.base
    return source, tuple(reversed(path))


# ---------------------------------------------------------------------------------------


def raise_in_user_code(tx: Any, exception_type: type[Exception], *args: Any) -> NoReturn:
    """Raise an exception that the traced program may catch, as eager code would."""
    raise_observed_exception(exception_type, tx, args=[constant(arg) for arg in args])


def graph_break(category: str, context: str, explanation: str, hints: Sequence[str]) -> NoReturn:
    """Stop tracing here, with upstream's four-part message; ``variables.breaks`` calls it."""
    unimplemented(gb_type=category, context=context, explanation=explanation, hints=list(hints))


def skip_frame(category: str, context: str, explanation: str, hints: Sequence[str]) -> NoReturn:
    """Run this frame eagerly, and do not try again to resume within it."""
    unimplemented(
        gb_type=category,
        context=context,
        explanation=explanation,
        hints=list(hints),
        skip_frame=True,
    )


# ---- guards
# ---------------------------------------------------------------------------------------


def install_type_guard(source: Source | None) -> None:
    """Guard the exact type of an input."""
    assert source is not None
    install_guard(source.make_guard(GuardBuilder.TYPE_MATCH))


def install_class_guard(source: Source) -> None:
    """Guard that a name still is the very same class object."""
    install_guard(source.make_guard(GuardBuilder.CLASS_MATCH))


def install_presence_guard(source: Source, key: Any) -> None:
    """Guard that a dictionary has `key`."""
    install_guard(source.make_guard(functools.partial(GuardBuilder.DICT_CONTAINS, key=key)))


def install_absence_guard(source: Source, key: Any) -> None:
    """Guard that a dictionary does not have `key`."""
    install_guard(source.make_guard(functools.partial(GuardBuilder.DICT_NOT_CONTAINS, key=key)))


def install_length_guard(source: Source) -> None:
    """Guard the length of a sequence or a dictionary."""
    install_guard(source.make_guard(GuardBuilder.SEQUENCE_LENGTH))


def install_key_set_guard(tx: Any, source: Source, *, ordered: bool) -> None:
    """Guard all keys of a dictionary; with `ordered` their order too.

    Without an entry in ``guard_on_key_order`` upstream checks the length and the presence of each
    key (``GuardBuilder.guard_on_dict_keys_and_ignore_order``), which is a set and not a sequence.
    """
    if ordered:
        tx.output.guard_on_key_order.add(source)
    install_guard(source.make_guard(GuardBuilder.DICT_KEYS_MATCH))


def _lambda(builder: Any, guard: Guard, test: Callable[[Any], bool], text: str) -> None:
    builder.get_guard_manager(guard).add_lambda_guard(test, [f"{text}: {guard.name}"], None)


def install_lambda_guard(source: Source, test: Callable[[Any], bool], text: str) -> None:
    """Guard a condition of ours on an input; it costs a Python call each time."""
    create_fn: Callable[..., Any] = functools.partial(_lambda, test=test, text=text)
    install_guard(source.make_guard(create_fn))


def type_table(trace_numpy: bool) -> Any:
    """The table type -> builder of trackers, one for each value of ``config.trace_numpy``."""
    return VariableBuilder._type_dispatch_impl(trace_numpy)


def id_table() -> Any:
    """The table id(object) -> builder of trackers."""
    return VariableBuilder._id_dispatch()


def is_asked_for(code: Any) -> bool:
    """Whether the program gave this very function to ``torch.compile``."""
    return code in convert_frame.always_optimize_code_objects  # type: ignore[attr-defined]


def sourceless_table() -> Any:
    """The table type -> builder of trackers for values without a source."""
    return SourcelessBuilder._type_handlers  # type: ignore[attr-defined]


def clear_handler_cache() -> None:
    """Forget which handler each operator and operand types had."""
    BuiltinVariable.call_function_handler_cache.clear()

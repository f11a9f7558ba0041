"""Non-tensor entries while tracing: handed on without a look at their values.

Key names: :class:`NonTensorVariable` (an entry that is an input), :class:`DeferredCopyVariable` (a
copy of one that is made at run time).

Invariant: a copy has the values that the entry had when the traced program made it. So a copy is
deferred only while the trace has not touched the values, and is made before it does.

Guards: the exact type; the values once they are read.
"""

from __future__ import annotations

from typing import Any

from tdcompile._compat import dynamo as seam
from tdcompile._compat.slots import HookMixin
from tdcompile.variables.breaks import break_graph
from tdcompile.variables.calls import BoundCallVariable

__all__ = ["DeferredCopyVariable", "NonTensorVariable"]

#: Methods that give a new entry with the same values, and look at no value on the way.
COPYING_METHODS = ("_carried", "_new")


def _list_of(vt: Any) -> list[Any]:
    return vt.value._values  # type: ignore[no-any-return]


def _values(vt: seam.VariableTracker) -> seam.VariableTracker | None:
    """The tracker of the list of values of an input entry, if the trace has touched it."""
    tracked = seam.current_translator().output.side_effects.id_to_variable
    return tracked.get(id(_list_of(vt)))  # type: ignore[no-any-return]


def _pending(tx: Any) -> dict[int, list[DeferredCopyVariable]]:
    """Id of a list of values -> the copies of its entries that this frame has not made yet."""
    return vars(tx.output).setdefault("_tdcompile_copies", {})  # type: ignore[no-any-return]


def _deferred(
    tx: Any, entry: NonTensorVariable, name: str, args: list[seam.VariableTracker]
) -> DeferredCopyVariable:
    copy = DeferredCopyVariable(entry, name, args)
    _pending(tx).setdefault(id(_list_of(entry)), []).append(copy)
    return copy


class NonTensorVariable(HookMixin, seam.UserDefinedObjectVariable):
    """A non-tensor entry of an input."""

    # Whether a copying method may be left to run time.
    defers = True

    _nonvar_fields = {  # noqa: RUF012 - upstream's convention
        "defers",
        *seam.UserDefinedObjectVariable._nonvar_fields,
    }

    def getattr_hook(self, tx: Any, name: str) -> seam.VariableTracker:
        if name in COPYING_METHODS and hasattr(self.value, name):
            return BoundCallVariable(self, name)
        if name == "_values":
            # Who gets the list may write to it: copies made so far have what is in it now.
            for copy in _pending(tx).pop(id(_list_of(self)), ()):
                copy.make(tx)
        return super().getattr_hook(tx, name)  # type: ignore[misc,no-any-return]

    def call_method(
        self,
        tx: Any,
        name: str,
        args: list[seam.VariableTracker],
        kwargs: dict[str, seam.VariableTracker],
    ) -> seam.VariableTracker:
        if (
            name in COPYING_METHODS
            and self.defers
            and self.source is not None
            and not kwargs
            and hasattr(self.value, name)
            and _values(self) is None
            and not tx.output.side_effects.is_modified(self)
        ):
            return _deferred(tx, self, name, args)
        return super().call_method(tx, name, args, kwargs)


class DeferredCopyVariable(HookMixin, seam.VariableTracker):
    """What a copying method of an input entry returns: called at run time, or when looked at."""

    _nonvar_fields = {  # noqa: RUF012 - upstream's convention
        "entry",
        "name",
        *seam.VariableTracker._nonvar_fields,
    }

    def __init__(
        self,
        entry: NonTensorVariable,
        name: str,
        args: list[seam.VariableTracker],
        made: seam.VariableTracker | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.entry = entry
        self.name = name
        self.args = args
        self.made = made

    def make(self, tx: Any) -> seam.VariableTracker:
        """The entry, made in the trace."""
        if self.made is None:
            values = _values(self.entry)
            effects = tx.output.side_effects
            if effects.is_modified(self.entry) or (
                values is not None and effects.is_modified(values)
            ):
                break_graph("tdcompile: copy of a non-tensor entry that was written", self.entry)
            method = getattr(type(self.entry.value), self.name)
            self.entry.defers = False
            try:
                self.made = seam.inline_function(tx, method, [self.entry, *self.args])
            finally:
                self.entry.defers = True
        return self.made

    def python_type(self) -> type:
        return type(self.entry.value)

    def getattr_hook(self, tx: Any, name: str) -> seam.VariableTracker:
        if name == "__class__":
            return seam.build(tx, self.python_type())
        return seam.build(tx, getattr).call_function(tx, [self.make(tx), seam.constant(name)], {})

    def call_obj_hasattr(self, tx: Any, name: str) -> Any:
        return seam.constant(hasattr(self.entry.value, name))

    def call_method(
        self,
        tx: Any,
        name: str,
        args: list[seam.VariableTracker],
        kwargs: dict[str, seam.VariableTracker],
    ) -> seam.VariableTracker:
        if name == "_carried" and self.made is None:
            return _deferred(tx, self.entry, self.name, self.args)
        return self.make(tx).call_method(tx, name, args, kwargs)

    def reconstruct(self, codegen: seam.PyCodegen) -> None:
        if self.made is not None:
            codegen(self.made)
            return
        codegen(self.entry)
        codegen.load_method(self.name)
        codegen.foreach(self.args)
        codegen.extend_output(seam.create_call_method(len(self.args)))
        codegen.clear_tos()


class ConstantFunctionVariable(seam.VariableTracker):
    """A pure function of ours that is called, while tracing, on constants.

    An argument that is no constant (a mask, positions in a tensor) breaks the graph.
    """

    _nonvar_fields = {"function", *seam.VariableTracker._nonvar_fields}  # noqa: RUF012

    def __init__(self, function: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.function = function

    def python_type(self) -> type:
        return type(self.function)

    def call_function(
        self, tx: Any, args: list[seam.VariableTracker], kwargs: dict[str, seam.VariableTracker]
    ) -> seam.VariableTracker:
        try:
            values = [_constant_of(vt.realize()) for vt in args]
        except _NoConstantError:
            break_graph("tdcompile: values picked by a tensor", args)
        return seam.build(tx, self.function(*values))


class _NoConstantError(Exception):
    """An argument depends on data."""


def _constant_of(vt: Any) -> Any:
    if isinstance(vt, seam.TensorVariable):
        raise _NoConstantError
    if vt.is_python_constant() or isinstance(vt, seam.SymNodeVariable):
        return vt.as_python_constant()
    items = getattr(vt, "items", None)
    if isinstance(items, list):
        values = [_constant_of(item.realize()) for item in items]
        kind = vt.python_type()
        return slice(*values) if kind is slice else kind(values)
    function = getattr(vt, "value", None) or getattr(vt, "fn", None)
    if not callable(function):
        raise _NoConstantError
    return function

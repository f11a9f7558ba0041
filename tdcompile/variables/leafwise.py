"""Leaf-wise operations in a trace: one FX node a leaf, none of our Python interpreted.

Key names: :func:`method` (``td.add(x)``, ``td.exp_()``), :func:`operator_call` (``t * td``,
``-td``, ``td += 1``), :func:`torch_function` (``torch.mul(td, 2)``).

Invariant: everything is read off the one table (``tensordict.leafwise``). The native loop covers
the operands whose result has the batch size of the tensordict; for anything else these functions
answer None and the eager method is traced, which is slower and equally right.

Guards: the key set (not its order) of each tensordict operand, and what its leaves need. Batch
size, device, names and lock are carried, not read.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tdcompile._compat import dynamo as seam
from tdcompile.tensordict.arithmetic import check_inplace_leaf
from tdcompile.tensordict.leafwise import (
    LEAFWISE_BY_NAME,
    LEAFWISE_BY_TORCH_FUNCTION,
    LEAFWISE_OPS,
    LeafwiseOp,
)
from tdcompile.variables.tensordict import TensorDictVariable

if TYPE_CHECKING:
    from tdcompile.variables.storage import StorageVariable

__all__ = ["OPERATORS", "entry_kind", "example", "method", "operator_call", "torch_function"]

#: function of the ``operator`` module (or ``abs``) -> row and whether it writes in place.
OPERATORS: dict[Any, tuple[LeafwiseOp, bool]] = {}
for _op in LEAFWISE_OPS:
    if _op.operator_function is not None:
        OPERATORS[_op.operator_function] = (_op, False)
        # Where the row has no augmented form, Python falls back to the plain operator.
        _augmented = getattr(operator, f"i{_op.operator_function.__name__.strip('_')}", None)
        if _augmented is not None:
            OPERATORS[_augmented] = (_op, _op.inplace_operator is not None)
OPERATORS[operator.neg] = (LEAFWISE_BY_NAME["neg"], False)
OPERATORS[operator.invert] = (LEAFWISE_BY_NAME["bitwise_not"], False)
OPERATORS[abs] = (LEAFWISE_BY_NAME["abs"], False)

# A result that is a tensor for each non-tensor entry, too: the eager method knows how.
_READS_NON_TENSORS = ("eq", "ne", "bitwise_and", "bitwise_or", "bitwise_xor")
_MIRRORED = {"__lt__": "__gt__", "__gt__": "__lt__", "__le__": "__ge__", "__ge__": "__le__"}

Call = Callable[[list[seam.VariableTracker]], seam.VariableTracker]


def method(
    td: TensorDictVariable, tx: Any, name: str, args: list[Any], kwargs: dict[str, Any]
) -> seam.VariableTracker | None:
    """``td.<name>(*args, **kwargs)`` for a method of the table, or None."""
    op = LEAFWISE_BY_NAME[name]
    bound = _bind(op, args, kwargs)
    if bound is None:
        return None
    operands = [td, *bound]
    kwargs = {key: value for key, value in kwargs.items() if key in op.keywords}
    if name.endswith("_"):
        return _combine_inplace(tx, op, operands, kwargs)

    function = op.function
    if op.number_function is not None and operands[1].is_python_constant():
        function = op.number_function

    return _combine(tx, op, operands, _torch_call(tx, function, kwargs))


def _torch_call(tx: Any, function: Any, kwargs: dict[str, Any]) -> Call:
    """A call of a torch function on the operands of one leaf."""
    return lambda leaves: seam.call_torch_function(tx, function, leaves, kwargs)


def _bind(op: LeafwiseOp, args: list[Any], kwargs: dict[str, Any]) -> list[Any] | None:
    """The operands after the first, by place or by name; None for any other call."""
    if len(args) > len(op.operands) or kwargs.keys() - {*op.operands, *op.keywords}:
        return None
    operands = [arg.realize() for arg in args]
    for operand in op.operands[len(args) :]:
        given = kwargs.get(operand)
        if given is None and not op.optional_operands:
            return None
        operands.append(seam.constant(None) if given is None else given.realize())
    if op.optional_operands and all(vt.is_constant_none() for vt in operands):
        return None
    return operands


def operator_call(tx: Any, function: Any, args: Sequence[Any]) -> seam.VariableTracker:
    """A Python operator with a tensordict on at least one side."""
    op, inplace = OPERATORS[function]
    operands = [arg.realize() for arg in args]
    if function is operator.eq and tx.current_instruction.opname == "CONTAINS_OP":
        return _is_element(tx, *operands)
    if inplace and isinstance(operands[0], TensorDictVariable):
        result = _combine_inplace(tx, op, operands, {})
    elif inplace or op.operator_function is None:
        result = _combine(tx, op, operands, _torch_call(tx, op.function, {}))
    else:
        # The operator itself: a Python number may stand on the left.
        python_operator = seam.build(tx, op.operator_function)
        result = _combine(
            tx, op, operands, lambda leaves: python_operator.call_function(tx, leaves, {})
        )
    return result if result is not None else _by_protocol(tx, op, operands, inplace)


def _is_element(tx: Any, left: Any, right: Any) -> seam.VariableTracker:
    """``td in [...]`` compares identities first, then asks ``==`` for its truth value."""
    if left is right:
        return seam.constant(True)
    answer = _by_protocol(tx, LEAFWISE_BY_NAME["eq"], [left, right], inplace=False)
    return seam.build(tx, bool).call_function(tx, [answer], {})


def torch_function(
    tx: Any, fn: seam.VariableTracker, args: list[Any], kwargs: dict[str, Any]
) -> seam.VariableTracker | None:
    """``torch.<name>(..., td, ...)`` for a function of the table, or None."""
    value = getattr(fn, "value", None) or getattr(fn, "fn", None)
    try:
        op = LEAFWISE_BY_TORCH_FUNCTION.get(value)
    except TypeError:
        return None
    if op is None or len(args) != op.arity or any(key not in op.keywords for key in kwargs):
        return None
    operands = [arg.realize() for arg in args]

    return _combine(tx, op, operands, _torch_call(tx, op.function, kwargs))


def _by_protocol(
    tx: Any, op: LeafwiseOp, operands: list[Any], inplace: bool
) -> seam.VariableTracker:
    """Python's own protocol: the left operand's dunder, then the right operand's."""
    left, *rest = operands
    if isinstance(left, TensorDictVariable):
        name = op.inplace_operator if inplace else op.operator
        assert name is not None
        result = left.call_method(tx, name, rest, {})
        if not result.is_constant_match(NotImplemented):
            return result
    right = rest[0] if rest else None
    if isinstance(right, TensorDictVariable):
        assert op.operator is not None
        name = (
            _MIRRORED.get(op.operator, op.operator)
            if op.result == "bool"
            else op.reflected_operator
        )
        if name is not None:
            result = right.call_method(tx, name, [left], {})
            if not result.is_constant_match(NotImplemented):
                return result
    names = " and ".join(repr(vt.python_type_name()) for vt in operands)
    return seam.raise_in_user_code(
        tx, TypeError, f"unsupported operand type(s) for {op.name}: {names}"
    )


# ---- the native loop
# --------------------------------------------------------------------------------


class _Operand:
    """One operand, and what it gives for the leaf under a key."""

    __slots__ = ("_aligned", "vt")

    def __init__(self, vt: Any) -> None:
        self.vt = vt
        self._aligned: dict[int, Any] = {}

    @property
    def is_tensordict(self) -> bool:
        return isinstance(self.vt, TensorDictVariable)

    def aligned(self, tx: Any, features: int) -> Any:
        """The operand with a 1 for each trailing dimension of a leaf; a number as it is."""
        if features == 0 or not isinstance(self.vt, seam.TensorVariable) or _ndim(self.vt) == 0:
            return self.vt
        found = self._aligned.get(features)
        if found is None:
            found = self.vt
            for _ in range(features):
                found = found.call_method(tx, "unsqueeze", [seam.constant(-1)], {})
            self._aligned[features] = found
        return found


def _ndim(tensor: seam.TensorVariable) -> int:
    return tensor.as_proxy().node.meta["example_value"].ndim  # type: ignore[no-any-return]


def example(vt: Any) -> Any:
    """What stands for an operand while tracing: a fake tensor, a number, or None."""
    if isinstance(vt, seam.TensorVariable):
        return vt.as_proxy().node.meta["example_value"]
    if isinstance(vt, seam.SymNodeVariable):
        return vt.sym_num
    return vt.as_python_constant()


def _is_number(vt: Any) -> bool:
    if isinstance(vt, seam.TensorVariable):
        return _ndim(vt) == 0
    if isinstance(vt, seam.SymNodeVariable):
        return True
    if not vt.is_python_constant():
        return False
    value = vt.as_python_constant()
    # None is an operand that was left out (clamp).
    return value is None or isinstance(value, (int, float, complex))


def _same_sizes(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Whether two shapes are equal. Guards: symbolic sizes that are equal now stay equal."""
    return len(left) == len(right) and all(
        seam.sizes_equal(a, b) for a, b in zip(left, right, strict=True)
    )


def _plan(tx: Any, operands: list[Any], *, inplace: bool) -> list[_Operand] | None:
    """The operands, if the result surely has the batch size of the first tensordict."""
    tds = [vt for vt in operands if isinstance(vt, TensorDictVariable)]
    if not all(td.accepts_leafwise(tx, inplace=inplace) for td in tds):
        return None
    td = tds[0]
    for vt in operands:
        if vt is td or _is_number_or_tensordict(vt):
            continue
        if not isinstance(vt, seam.TensorVariable) or not _broadcasts_to_batch(tx, td, vt):
            return None
    return [_Operand(vt) for vt in operands]


def _is_number_or_tensordict(vt: Any) -> bool:
    return isinstance(vt, TensorDictVariable) or _is_number(vt)


def _broadcasts_to_batch(tx: Any, td: TensorDictVariable, tensor: seam.TensorVariable) -> bool:
    """Whether a tensor ``(*O,)`` broadcasts to ``(*B,)``. Guards: the length of ``*B``."""
    shape = example(tensor).shape
    batch_dims = td.batch_dims(tx)
    if len(shape) > batch_dims:
        return False
    leaf = _first_tensor(tx, td)
    if leaf is None:
        return False
    sizes = example(leaf).shape[batch_dims - len(shape) : batch_dims]
    return all(
        _same_sizes((size,), (1,)) or _same_sizes((size,), (b,))
        for size, b in zip(shape, sizes, strict=True)
    )


def _first_tensor(tx: Any, td: TensorDictVariable) -> seam.TensorVariable | None:
    for _, vt in td.storage.items(tx, ordered=False):
        if entry_kind(td, vt) == "tensor":
            return vt.realize()  # type: ignore[return-value]
    return None


def entry_kind(td: TensorDictVariable, vt: Any) -> str:
    """Tell ``"tensor"``, ``"unbatched"``, ``"tensordict"``, ``"non-tensor"`` or ``"other"``."""
    if isinstance(vt, seam.LazyVariableTracker) and not vt.is_realized():
        value_type = vt.peek_type()
        if issubclass(value_type, td.layout.non_tensor):
            seam.install_type_guard(vt.source)
            return "non-tensor"
    vt = vt.realize()
    if isinstance(vt, seam.TensorVariable):
        return "unbatched" if issubclass(vt.python_type(), td.layout.unbatched) else "tensor"
    if isinstance(vt, TensorDictVariable):
        return "tensordict"
    try:
        return "non-tensor" if issubclass(vt.python_type(), td.layout.non_tensor) else "other"
    except NotImplementedError:
        return "other"


def _row(
    tx: Any,
    td: TensorDictVariable,
    key: str,
    own: Any,
    operands: list[_Operand],
    batch_dims: int | None,
) -> list[Any] | None:
    """The operands of one leaf, aligned; None if alignment is not the plain case."""
    own = own.realize()
    row = []
    for operand in operands:
        if operand.vt is td:
            row.append(own)
        elif operand.is_tensordict:
            other = operand.vt.storage.get(key)
            if other is None or entry_kind(operand.vt, other) != "tensor":
                return None
            other = other.realize()
            if _ndim(other) != _ndim(own):
                return None
            assert batch_dims is not None
            if not _same_sizes(example(own).shape[:batch_dims], example(other).shape[:batch_dims]):
                return None
            row.append(other)
        else:
            features = 0 if batch_dims is None else _ndim(own) - batch_dims
            row.append(operand.aligned(tx, features))
    return row


def _needs_batch_dims(operands: list[_Operand]) -> bool:
    """Whether anything but numbers meets the leaves."""
    tensordicts = sum(operand.is_tensordict for operand in operands)
    return tensordicts > 1 or any(
        not operand.is_tensordict and not _is_number(operand.vt) for operand in operands
    )


def _rows(
    tx: Any, op: LeafwiseOp, operands: list[_Operand], *, inplace: bool
) -> tuple[TensorDictVariable, list[Any]] | None:
    """The structure of the first tensordict with, for each leaf, its aligned operands.

    Returns:
        The tensordict and a list of ``(key, row)``: `row` is a list of operands for a leaf,
        a nested pair like this one for a nested tensordict, None for a non-tensor that is carried.
        None where the plain case does not hold; nothing has been emitted then but views.
    """
    for operand in operands:
        if operand.is_tensordict and not operand.vt.accepts_leafwise(tx, inplace=inplace):
            return None
    td = next(operand.vt for operand in operands if operand.is_tensordict)
    batch_dims = td.batch_dims(tx) if _needs_batch_dims(operands) else None
    keys = td.storage.keys(tx, ordered=False)
    for operand in operands:
        if operand.is_tensordict and operand.vt is not td:
            if set(operand.vt.storage.keys(tx, ordered=False)) != set(keys):
                return None
            if operand.vt.batch_dims(tx) != batch_dims:
                return None
    out = []
    for key in keys:
        entry = td.storage.get(key)
        kind = entry_kind(td, entry)
        if kind == "tensor":
            row: Any = _row(tx, td, key, entry, operands, batch_dims)
            if row is None:
                return None
        elif kind == "tensordict":
            row = _nested_rows(
                tx, op, key, td, entry.realize(), operands, batch_dims, inplace=inplace
            )
            if row is None:
                return None
        elif kind == "non-tensor" and op.name not in _READS_NON_TENSORS:
            row = None
        else:
            return None
        out.append((key, row))
    return td, out


def _nested_rows(
    tx: Any,
    op: LeafwiseOp,
    key: str,
    td: TensorDictVariable,
    nested: TensorDictVariable,
    operands: list[_Operand],
    batch_dims: int | None,
    *,
    inplace: bool,
) -> Any:
    below = []
    for operand in operands:
        if operand.vt is td:
            below.append(_Operand(nested))
        elif operand.is_tensordict:
            other = operand.vt.storage.get(key)
            if other is None or entry_kind(operand.vt, other) != "tensordict":
                return None
            below.append(_Operand(other.realize()))
        elif batch_dims is None:
            below.append(operand)
        else:
            below.append(_Operand(operand.aligned(tx, nested.batch_dims(tx) - batch_dims)))
    return _rows(tx, op, below, inplace=inplace)


def _combine(tx: Any, op: LeafwiseOp, operands: list[Any], call: Call) -> TensorDictVariable | None:
    plan = _plan(tx, operands, inplace=False)
    rows = None if plan is None else _rows(tx, op, plan, inplace=False)
    if plan is None or rows is None:
        return None
    keeps_lock = op.keeps_lock and all(
        operand.is_tensordict or _is_number(operand.vt) for operand in plan
    )
    # The lock of the root is that of the whole result, whatever nested operands have.
    return _emit(
        tx, rows, call, rows[0].fields["is_locked"] if keeps_lock else seam.constant(False)
    )


def _emit(
    tx: Any, rows: tuple[TensorDictVariable, list[Any]], call: Call, is_locked: Any
) -> TensorDictVariable:
    td, entries = rows
    storage: StorageVariable = td.storage.snapshot()
    for key, row in entries:
        if row is None:
            value = carried(tx, td, td.storage.get(key))
        else:
            value = call(row) if isinstance(row, list) else _emit(tx, row, call, is_locked)
        if value is not None:
            storage.set(tx, key, value)
    result = td.with_entries(storage)
    result.fields["is_locked"] = is_locked
    return result


def carried(tx: Any, td: TensorDictVariable, entry: Any) -> seam.VariableTracker | None:
    """What stands for a non-tensor entry in a new tensordict; None for the entry itself.

    It is made by the entry's own method, which does not look at the value: that is not guarded.
    """
    if td.layout.carry is None:
        return None
    return entry.realize().call_method(tx, td.layout.carry, [], {})  # type: ignore[no-any-return]


def _combine_inplace(
    tx: Any, op: LeafwiseOp, operands: list[Any], kwargs: dict[str, Any]
) -> seam.VariableTracker | None:
    plan = _plan(tx, operands, inplace=True)
    rows = None if plan is None else _rows(tx, op, plan, inplace=True)
    if rows is None:
        return None
    _check_in_place(tx, op, rows, ())
    _emit_inplace(tx, op, rows, kwargs)
    return operands[0]  # type: ignore[no-any-return]


def _check_in_place(
    tx: Any, op: LeafwiseOp, rows: tuple[TensorDictVariable, list[Any]], path: tuple[str, ...]
) -> None:
    """Check that each leaf can hold its result, as the eager method does before it writes one."""
    for key, row in rows[1]:
        if isinstance(row, tuple):
            _check_in_place(tx, op, row, (*path, key))
        elif row is not None:
            leaf, *others = [example(vt) for vt in row]
            try:
                check_inplace_leaf(op, leaf, others, (*path, key))
            except RuntimeError as error:
                seam.raise_in_user_code(tx, type(error), *error.args)


def _emit_inplace(
    tx: Any, op: LeafwiseOp, rows: tuple[TensorDictVariable, list[Any]], kwargs: dict[str, Any]
) -> None:
    assert op.inplace is not None
    for _, row in rows[1]:
        if isinstance(row, list):
            row[0].call_method(tx, op.inplace, row[1:], kwargs)
        elif row is not None:
            _emit_inplace(tx, op, row, kwargs)

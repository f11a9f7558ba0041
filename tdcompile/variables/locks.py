"""``lock_`` and ``unlock_`` in a trace: flags now, the real calls when the trace is replayed.

Key names: :func:`lock`, :func:`unlock`.

Invariant: a tensordict of a locked tree can be unlocked by its root only, in a trace as in eager
code. The weak references that enforce it are made by the real ``lock_()`` at replay; within the
trace the trackers remember who locked whom.

Guards: the lock flag and the key set of each tensordict in the tree, the types of its entries;
``unlock_`` also that no locked tensordict from outside holds one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tdcompile._compat import dynamo as seam
from tdcompile.variables.breaks import break_graph
from tdcompile.variables.copies import nested_tensordict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tdcompile.variables.tensordict import TensorDictVariable

__all__ = ["lock", "unlock"]


def lock(td: TensorDictVariable, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``td.lock_()``: returns the tensordict."""
    if args or kwargs or td.layout.may_unlock is None:
        return None
    was_locked = _is_locked(td, tx)
    if not was_locked:
        _lock(td, tx)
    _note(td, tx, "lock_", was_locked)
    return td


def _lock(td: TensorDictVariable, tx: Any) -> None:
    td.write_field(tx, "is_locked", seam.constant(True))
    for nested in _nested(td, tx):
        nested.locked_by.append(td)
        if not _is_locked(nested, tx):
            _lock(nested, tx)


def unlock(td: TensorDictVariable, tx: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """``td.unlock_()``: returns the tensordict."""
    may_unlock = td.layout.may_unlock
    if args or kwargs or may_unlock is None:
        return None
    if not _is_locked(td, tx):
        _note(td, tx, "unlock_", False)
        return td
    tree: list[TensorDictVariable] = []
    _collect(td, tx, tree)
    for node in tree:
        held = any(
            all(holder is not own for own in tree) and _is_locked(holder, tx)
            for holder in node.locked_by
        )
        if held or (node.input_state is not None and not _guard_unheld(node, tree, may_unlock)):
            break_graph("tdcompile: unlock of a held tensordict", td)
    for node in tree:
        node.write_field(tx, "is_locked", seam.constant(False))
        node.locked_by.clear()
        node.was_unlocked = True
        for stack in _children(node, tx):
            if not stack.is_row:
                # A lazy stack has a flag of its own beside those of its elements.
                stack.set_attribute(tx, "_locked", seam.constant(False))
                stack.set_attribute(tx, "_lock_parents", seam.constant(None))
    _note(td, tx, "unlock_", True)
    return td


def _note(td: TensorDictVariable, tx: Any, name: str, was_locked: bool) -> None:
    """What ``with`` would undo; the eager methods note the same."""
    op = [seam.constant(part) for part in (name, None, was_locked)]
    td.set_attribute(tx, "_last_op", seam.TupleVariable(op))


def _guard_unheld(
    node: TensorDictVariable, tree: list[TensorDictVariable], may_unlock: Any
) -> bool:
    """Guard that no locked tensordict from outside the tree holds `node`; False if one does."""
    state = node.input_state
    assert state is not None
    root = next(own for own in tree if own.input_state is not None)
    assert root.input_state is not None
    if not may_unlock(root.input_state.value):
        return False
    seam.install_lambda_guard(
        root.input_state.source, may_unlock, "no locked tensordict holds this one"
    )
    return True


def _is_locked(td: TensorDictVariable, tx: Any) -> bool:
    return td.read_field(tx, "is_locked").as_python_constant()  # type: ignore[no-any-return]


def _children(td: TensorDictVariable, tx: Any) -> Iterator[TensorDictVariable]:
    for _, entry in td.storage.items(tx, ordered=False):
        nested = nested_tensordict(td.layout, entry)
        if nested is not None:
            yield nested


def _nested(td: TensorDictVariable, tx: Any) -> Iterator[TensorDictVariable]:
    """The tensordicts that hold the entries one level below: the elements of a lazy stack."""
    for nested in _children(td, tx):
        yield from nested.rows(tx)


def _collect(td: TensorDictVariable, tx: Any, tree: list[TensorDictVariable]) -> None:
    """Add the tensordict and all nested in it, each once."""
    if any(td is node for node in tree):
        return
    tree.append(td)
    for nested in _nested(td, tx):
        _collect(nested, tx, tree)

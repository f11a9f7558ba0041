"""Methods as context managers: ``with td.unlock_():``, ``with td.flatten_keys() as flat:``.

Key names: :class:`ContextsMixin`, ``WRITE_BACK`` (method name -> how a result is taken back).

Invariant: a method that can be undone notes itself in ``_last_op`` of its result as ``(method
name, weak reference to the original or None, what undoing needs)``; leaving the block undoes it,
also after an exception.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from tdcompile.tensordict.modules import undo_to_module

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class ContextsMixin:
    """``__enter__`` and ``__exit__``."""

    __slots__ = ()

    if TYPE_CHECKING:
        _last_op: tuple[str, Any, Any] | None
        _open_ops: list[Any] | None

    def clear_refs_for_compile_(self) -> Self:
        """Forget what ``with`` would undo, here and below, and return the tensordict itself.

        Compiled code does not need it; it is here for programs that call it.
        """
        slots: Any = self  # mypy takes the empty __slots__ of a mixin for all there are
        slots._last_op = None
        for value in slots._entries.values():
            if isinstance(value, ContextsMixin):
                value.clear_refs_for_compile_()
        return self

    def __enter__(self) -> Self:
        """Open a block that undoes the method which gave this tensordict, if it can be undone."""
        op = getattr(self, "_last_op", None)
        if op is None:
            op = ("", None, None)
        if op[1] is not None:
            # The block keeps the original alive; the result alone does not.
            op = (op[0], _Held(op[1]()), op[2])
        slots: Any = self  # mypy takes the empty __slots__ of a mixin for all there are
        slots._open_ops = [*(getattr(self, "_open_ops", None) or ()), op]
        slots._last_op = None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        open_ops: Any = self._open_ops
        name, source, detail = open_ops.pop()
        if name in WRITE_BACK:
            WRITE_BACK[name](self, None if source is None else source.value, detail)


class _Held:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _undo_lock(td: Any, _: Any, was_locked: bool) -> None:
    if not was_locked:
        td.unlock_()


def _undo_unlock(td: Any, _: Any, was_locked: bool) -> None:
    if was_locked:
        td.lock_()


def _undo_key_change(inverse: str) -> Callable[[Any, Any, Any], None]:
    def undo(result: Any, source: Any, separator: str) -> None:
        if source is None:
            return
        if source is result:
            getattr(result, inverse)(separator, inplace=True)
            return
        was_locked = source.is_locked
        if was_locked:
            source.unlock_()
        try:
            source.update(getattr(result, inverse)(separator))
        finally:
            if was_locked:
                source.lock_()

    return undo


def _undo_reshape(result: Any, source: Any, detail: tuple[Any, Any, tuple[Any, ...]]) -> None:
    """Write back what a block did to a view: permuted, reshaped or flipped back."""
    if source is None or source is result:
        return
    op, args, origin = detail
    if op is torch.flip:
        back = result.flip(args[0])
    elif op in (torch.permute, torch.transpose):
        back = result.permute(*(origin.index(dim) for dim in range(len(origin))))
    else:
        back = result.reshape(source.batch_size)
    if source.is_locked:
        source.update_(back)
    else:
        source.update(back)


WRITE_BACK: dict[str, Callable[[Any, Any, Any], None]] = {
    "lock_": _undo_lock,
    "unlock_": _undo_unlock,
    "flatten_keys": _undo_key_change("unflatten_keys"),
    "reshape": _undo_reshape,
    "to_module": undo_to_module,
    "unflatten_keys": _undo_key_change("flatten_keys"),
}

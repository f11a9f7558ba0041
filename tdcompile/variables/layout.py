"""Where a tensordict class keeps its state: the descriptor that trackers read instead of a class.

Key names: :class:`Layout` (one record a class), :data:`SERVED` (those in use), :data:`FIELDS` (our
names of the state).

Invariant: no tracker names a tensordict class or an attribute of one; both come from a ``Layout``.
A class is served by the trackers when a ``Layout`` of it is registered (``variables.registry``);
one tensordict may hold others of any served class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FIELDS", "SERVED", "STACKS", "Layout"]

#: The state of a tensordict beside its entries, in the order in which a rebuild function takes it.
FIELDS = ("batch_size", "device", "names", "is_locked")


@dataclass(frozen=True, slots=True)
class Layout:
    """How one class of tensordicts is laid out.

    Attributes:
        cls: the exact class; a subclass needs its own record.
        entries: attribute that holds the ``dict`` of entries.
        batch_size: attribute that holds the ``torch.Size``, shape ``(*B,)``.
        device: attribute that holds the device or None.
        names: attribute that holds the dimension names or None.
        is_locked: attribute that holds the lock flag.
        rebuild: function ``(entries, batch_size, device, names, is_locked)`` that returns a new
            tensordict which owns `entries`; it runs once for each result.
        is_trusted: whether the Python of the class is a constant by contract, so that tracing it
            installs no guard on its functions (our own class; not a foreign package).
        from_entries: name of the classmethod ``(entries, batch_size, device, names)`` that makes a
            tensordict without checks, or None if the class has none.
        shallow_entries: importable function ``(entries, originals, templates)`` that copies a
            ``dict`` of entries as ``clone(recurse=False)`` does, see ``variables.copies``; None
            leaves that method to its own Python.
        may_unlock: importable test whether ``unlock_()`` of a tensordict is allowed; None leaves
            ``lock_`` and ``unlock_`` to their own Python.
        lock_references: attribute that refers to the locked tensordicts which hold this one, or
            nothing; unlocking clears it.
        notes: attributes that a trace writes back as they are and that results rarely have.
        bookkeeping: attributes that carry no meaning for a program (weak references of a lock);
            a trace reads them as None and drops writes to them.
        records: attributes that say what the memory of the leaves is, mostly unset; a trace that
            reads one which is set breaks.
        non_tensor: classes of entries that hold a value which is no tensor.
        base: class of all that is no leaf; an entry of it whose own class is not served is unknown
            to a trace. None stands for `cls`.
        carry: method of such an entry that makes the one in the result of a leaf-wise operation and
            in a copy; None hands the same object on.
        unbatched: classes of tensor entries without batch dimensions; no size is read off them.
    """

    cls: type
    entries: str
    batch_size: str
    device: str
    names: str
    is_locked: str
    rebuild: Callable[..., Any]
    is_trusted: bool = False
    from_entries: str | None = None
    shallow_entries: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    may_unlock: Callable[[Any], bool] | None = None
    lock_references: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    bookkeeping: tuple[str, ...] = ()
    records: tuple[str, ...] = ()
    non_tensor: tuple[type, ...] = ()
    base: type | None = None
    carry: str | None = None
    unbatched: tuple[type, ...] = ()

    def field_of(self, attribute: str) -> str | None:
        """Our name of the state that `attribute` holds, or None."""
        for field in FIELDS:
            if getattr(self, field) == attribute:
                return field
        return None

    def is_unserved(self, cls: type) -> bool:
        """Whether an entry of class `cls` is a tensordict that no tracker serves."""
        return cls not in SERVED and issubclass(cls, self.base or self.cls)


#: Classes of lazy stacks that are tracked: what they hold is in their elements.
STACKS: set[type] = set()

#: Class -> its layout, of all classes that are served now; ``variables.registry`` writes it.
SERVED: dict[type, Layout] = {}

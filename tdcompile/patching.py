"""Reversible patches of attributes and of table entries; knows nothing about torch.

Key names: :class:`Patch` (one attribute), :class:`TablePatch` (one entry of a mapping),
:class:`PatchSet` (several, applied all or not at all).

Invariants: a patch changes something that is there and that nobody else changed since it was
looked at; undoing gives back the very same objects in the same places, an inherited attribute
becomes inherited again, an absent entry absent again; a failed call changes nothing.
"""

from __future__ import annotations

import inspect
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from tdcompile.errors import PatchConflictError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, MutableMapping
    from types import TracebackType
    from typing import Self


class _Absent:
    """Type of :data:`ABSENT`."""

    def __repr__(self) -> str:
        return "<absent>"


ABSENT: Final = _Absent()
"""Stands for an attribute or an entry that is not there."""


@dataclass(frozen=True, kw_only=True)
class _PatchBase(ABC):
    """What both kinds of patch state about themselves.

    Args:
        reason: Why the change is needed, one sentence.
        upstream: Link to the upstream code, issue or pull request.
        test: Name of the test that fails without the patch.
        remove_when: The condition under which the patch can go.
        replacement: The new value. Give this or ``wrap``.
        wrap: Makes the new value from the original one (the raw one of the target's dictionary,
            so a ``staticmethod`` object stays one). The result must take ``*args, **kwargs``.
        expected: If given, the present value must be this very object.
    """

    reason: str
    upstream: str = ""
    test: str = ""
    remove_when: str = ""
    replacement: Any = field(default=ABSENT, repr=False)
    wrap: Callable[[Any], Any] | None = field(default=None, repr=False)
    expected: Any = field(default=ABSENT, repr=False)

    def __post_init__(self) -> None:
        if (self.replacement is ABSENT) == (self.wrap is None):
            raise ValueError(f"{self.where()}: give exactly one of replacement and wrap")

    @abstractmethod
    def where(self) -> str:
        """Return the place that is patched, for messages."""

    @abstractmethod
    def slot(self) -> tuple[int, object]:
        """Return what identifies the place, to find two patches of one place."""

    @abstractmethod
    def read(self) -> Any:
        """Return what is stored in the place itself, :data:`ABSENT` if nothing is."""

    @abstractmethod
    def visible(self) -> Any:
        """Return what a reader of the place sees, an inherited value included."""

    @abstractmethod
    def write(self, value: Any) -> None:
        """Store ``value`` in the place; :data:`ABSENT` empties it."""

    @abstractmethod
    def check_before(self, seen: Any) -> None:
        """Raise :class:`PatchConflictError` if the place may not be patched."""

    def make(self, original: Any) -> Any:
        """Return the new value."""
        return self.replacement if self.wrap is None else self.wrap(original)


@dataclass(frozen=True, kw_only=True)
class Patch(_PatchBase):
    """Replace ``target.name``.

    Args:
        target: A module, a class or an instance with a ``__dict__``.
        name: The attribute.
        may_be_absent: The attribute may be missing; otherwise that is a conflict, since a patch of
            something that is gone would be lost without a word.

    Example:
        >>> import types
        >>> box = types.SimpleNamespace(double=lambda x: 2 * x)
        >>> with PatchSet("demo", [Patch(target=box, name="double", reason="to show it",
        ...                              wrap=lambda old: lambda x: old(x) + 1)]):
        ...     box.double(3)
        7
        >>> box.double(3)
        6
    """

    target: Any
    name: str
    may_be_absent: bool = False

    @override
    def where(self) -> str:
        owner = getattr(self.target, "__qualname__", None) or getattr(
            self.target, "__name__", type(self.target).__qualname__
        )
        module = getattr(self.target, "__module__", None)
        prefix = f"{module}." if isinstance(module, str) and inspect.isclass(self.target) else ""
        return f"{prefix}{owner}.{self.name}"

    @override
    def slot(self) -> tuple[int, object]:
        return id(self.target), ("attribute", self.name)

    @override
    def read(self) -> Any:
        return vars(self.target).get(self.name, ABSENT)

    @override
    def visible(self) -> Any:
        own = self.read()
        if own is not ABSENT:
            return own
        return inspect.getattr_static(self.target, self.name, ABSENT)

    @override
    def write(self, value: Any) -> None:
        if value is ABSENT:
            delattr(self.target, self.name)
        else:
            setattr(self.target, self.name, value)

    @override
    def check_before(self, seen: Any) -> None:
        if seen is ABSENT and not self.may_be_absent:
            raise PatchConflictError(
                f"cannot patch {self.where()}: expected an attribute of that name, found none. "
                f"The patch is there because: {self.reason}"
            )
        if self.expected is not ABSENT and seen is not self.expected:
            raise PatchConflictError(
                f"cannot patch {self.where()}: expected {self.expected!r}, found {seen!r}; "
                f"another library replaced it first"
            )


@dataclass(frozen=True, kw_only=True)
class TablePatch(_PatchBase):
    """Set ``table[key]``.

    Args:
        table: The mapping.
        key: The key.
        may_replace: An entry that is already there may be displaced (undo puts it back);
            otherwise it is a conflict.
        name: How messages call the table.
    """

    table: MutableMapping[Any, Any] = field(repr=False)
    key: Any
    may_replace: bool = False
    name: str = "table"

    @override
    def where(self) -> str:
        return f"{self.name}[{self.key!r}]"

    @override
    def slot(self) -> tuple[int, object]:
        return id(self.table), ("entry", self.key)

    @override
    def read(self) -> Any:
        return self.table.get(self.key, ABSENT)

    @override
    def visible(self) -> Any:
        return self.read()

    @override
    def write(self, value: Any) -> None:
        if value is ABSENT:
            # The owner may have emptied its table; then there is nothing left of ours.
            self.table.pop(self.key, None)
        else:
            self.table[self.key] = value

    @override
    def check_before(self, seen: Any) -> None:
        if self.expected is not ABSENT and seen is not self.expected:
            raise PatchConflictError(
                f"cannot set {self.where()}: expected {self.expected!r}, found {seen!r}"
            )
        if seen is not ABSENT and self.expected is ABSENT and not self.may_replace:
            raise PatchConflictError(
                f"cannot set {self.where()}: expected no entry, found {seen!r}; another library "
                f"registered it first. The entry is there because: {self.reason}"
            )


@dataclass(frozen=True)
class _Applied:
    """One patch in force: what was stored before, what we stored."""

    patch: _PatchBase
    before: Any
    ours: Any

    def is_undisturbed(self) -> bool:
        now = self.patch.read()
        # A table that its owner emptied holds nothing foreign.
        return now is self.ours or (now is ABSENT and isinstance(self.patch, TablePatch))


class PatchSet:
    """Several patches under one name, applied all or not at all.

    Nested use is counted: the first :meth:`apply` applies, the last :meth:`undo` undoes, in
    reverse order. Use it as a context manager or through the two methods. A lock makes both safe
    to call from several threads.

    Args:
        name: For messages.
        patches: The patches, in the order in which they are applied.
        after: Called after the patches came into force and again after they are undone, to empty
            caches that hold what was true before.

    Raises:
        ValueError: Two patches name the same place.
    """

    def __init__(
        self,
        name: str,
        patches: Iterable[Patch | TablePatch] = (),
        after: Iterable[Callable[[], object]] = (),
    ) -> None:
        self.name = name
        self.patches = tuple(patches)
        self.after = tuple(after)
        self._applied: list[_Applied] = []
        self._count = 0
        self._lock = threading.RLock()
        seen: set[tuple[int, object]] = set()
        for patch in self.patches:
            if patch.slot() in seen:
                raise ValueError(f"patch set {name!r} patches {patch.where()} twice")
            seen.add(patch.slot())

    def __repr__(self) -> str:
        state = f"applied {self._count} times" if self._count else "not applied"
        return f"PatchSet({self.name!r}, {len(self.patches)} patches, {state})"

    @classmethod
    def merged(cls, name: str, sets: Iterable[PatchSet]) -> Self:
        """Return one set with the patches of several, so that they are applied all or not at all.

        Raises:
            ValueError: Two of them patch the same place.
        """
        members = tuple(sets)
        return cls(
            name,
            [patch for member in members for patch in member.patches],
            [call for member in members for call in member.after],
        )

    @property
    def is_applied(self) -> bool:
        """Whether the patches are in force."""
        return self._count > 0

    def apply(self) -> Self:
        """Put the patches in force, or count one more user of them.

        Returns:
            The set itself.

        Raises:
            PatchConflictError: An attribute is absent, or an entry is taken. Nothing has changed.
        """
        with self._lock:
            if self._count == 0:
                try:
                    for patch in self.patches:
                        self._apply_one(patch)
                    self._call_after()
                except BaseException:
                    self._undo_all()
                    raise
            self._count += 1
        return self

    def undo(self) -> None:
        """Count one user less; the last one puts everything back. Harmless when not applied.

        Raises:
            PatchConflictError: Somebody else replaced one of our values since. Nothing has
                changed: undo theirs first, then call this again.
        """
        with self._lock:
            if self._count == 0:
                return
            if self._count == 1:
                disturbed = [a for a in self._applied if not a.is_undisturbed()]
                if disturbed:
                    lines = "\n".join(
                        f"  {a.patch.where()}: expected {a.ours!r}, found {a.patch.read()!r}"
                        for a in disturbed
                    )
                    raise PatchConflictError(
                        f"cannot undo patch set {self.name!r}: somebody else replaced our values "
                        f"since; undo that first, then uninstall again\n{lines}"
                    )
                self._undo_all()
                self._call_after()
            self._count -= 1

    def __enter__(self) -> Self:
        return self.apply()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.undo()

    def _apply_one(self, patch: _PatchBase) -> None:
        seen = patch.visible()
        patch.check_before(seen)
        before = patch.read()
        ours = patch.make(seen)
        patch.write(ours)
        self._applied.append(_Applied(patch, before, ours))

    def _call_after(self) -> None:
        for call in self.after:
            call()

    def _undo_all(self) -> None:
        while self._applied:
            applied = self._applied.pop()
            applied.patch.write(applied.before)

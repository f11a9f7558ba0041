"""Names of the batch dimensions: reading, setting, refining, and carrying them to results.

Key names: :class:`NamesMixin`, :func:`check_names` (validation), :func:`carry_names` (what the
names become when batch dimensions move), :func:`spread_names` (parent to nested tensordicts).

Invariant: ``_names`` is ``None`` (no dimension has a name) or a tuple with one string or ``None``
for each batch dimension, at least one of them a string; a nested tensordict starts with the names
of the tensordict that holds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from tdcompile.errors import NameConflictError
from tdcompile.tensordict.lazy.elements import each_element

if TYPE_CHECKING:
    from types import EllipsisType

    import torch

Names = tuple[str | None, ...] | None
Origin = tuple[int | None, ...]
"""For each batch dimension of a result, the batch dimension that it came from, or ``None``."""


def check_names(names: Any, batch_dims: int) -> Names:
    """Return `names` in the form in which a tensordict stores them.

    Args:
        names: an iterable of `batch_dims` strings or ``None``, or ``None`` for no names.
        batch_dims: number of batch dimensions.

    Raises:
        ValueError: if the number of names differs from `batch_dims`, or a name occurs twice.
        TypeError: if a name is neither a string nor ``None``.
    """
    if names is None:
        return None
    result = tuple(names)
    if len(result) != batch_dims:
        raise ValueError(
            "the length of the dimension names must equate the tensordict batch_dims: expected "
            f"{batch_dims} names, found {len(result)}: {list(result)}"
        )
    seen: list[str] = []
    for name in result:
        if name is None:
            continue
        if not isinstance(name, str):
            raise TypeError(
                f"expected names that are strings or None; found {name!r} of type "
                f"{type(name).__name__} in {list(result)}"
            )
        if name in seen:
            raise ValueError(
                f"expected names that differ from each other; found {name!r} twice in "
                f"{list(result)}"
            )
        seen.append(name)
    return result if seen else None


def carry_names(names: Names, origin: Origin, batch_dims: int) -> Names:
    """Return the names of a result whose leading dimensions come from other places.

    Args:
        names: names of the source, or ``None``.
        origin: for each of the result's dimensions that replace the first `batch_dims` ones, the
            dimension of the source that it came from, or ``None``.
        batch_dims: how many leading dimensions `origin` replaces; later names are kept.
    """
    if names is None:
        return None
    result = [None if source is None else names[source] for source in origin]
    result.extend(names[batch_dims:])
    for name in result:
        if name is not None:
            return tuple(result)
    return None


def check_spread(td: Any, names: Names, outer: tuple[str | None, ...] = ()) -> None:
    """Raise a ``ValueError`` if a nested tensordict has one of these names further back."""
    if names is None:
        return
    if td._is_stack:
        place = td.stack_dim
        for element in td.tensordicts:
            check_spread(element, (*names[:place], *names[place + 1 :]), (*outer, names[place]))
        return
    for key, value in td._entries.items():
        if isinstance(value, NamesMixin):
            further = () if value._names is None else value._names[len(names) :]
            for name in further:
                if name is not None and (name in names or name in outer):
                    raise ValueError(
                        f"expected names that differ from each other; found {name!r} twice for the "
                        f"nested tensordict {key!r}: {[*names, *outer, *further]}"
                    )
            check_spread(value, (*names, *further), outer)


def spread_names(td: Any, names: Names) -> None:
    """Give `td` these names, and its nested tensordicts the same leading names.

    Writes the names only; the lock does not protect names.
    """
    if td._is_stack:
        td._spread_names(names)
        return
    td._names = names
    batch_dims = len(td._batch_size)
    for value in td._entries.values():
        if isinstance(value, NamesMixin):
            own = value._names
            extra = len(value._batch_size) - batch_dims
            rest = (None,) * extra if own is None else own[batch_dims:]
            head = (None,) * batch_dims if names is None else names
            full = head + rest
            spread_names(value, None if all(name is None for name in full) else full)


class NamesMixin:
    """Names of the batch dimensions of a tensordict."""

    __slots__ = ()

    _entries: dict[str, Any]
    _batch_size: torch.Size
    _names: Names

    @property
    def names(self) -> list[str | None]:
        """The names of the batch dimensions, ``None`` where there is none; a new list each time.

        Setting it also renames the leading dimensions of nested tensordicts; ``td.names = None``
        removes all names. A locked tensordict may be renamed: names are no entries.

        Raises:
            ValueError: when set to a sequence of another length than ``td.batch_dims``, or in which
                a name occurs twice.
            TypeError: when set to something that holds neither strings nor ``None``.

        Example:
            >>> td = TensorDict({"x": torch.zeros(3, 4)}, batch_size=[3, 4], names=["env", "time"])
            >>> td[0].names
            ['time']
        """
        if self._names is None:
            return [None] * len(self._batch_size)
        return list(self._names)

    @names.setter
    def names(self, names: Any) -> None:
        checked = check_names(names, len(self._batch_size))
        check_spread(self, checked)
        spread_names(self, checked)

    def _with_names(self, names: Names) -> Self:
        """Return a tensordict with these checked names; this one if it has them already."""
        if names is not None and all(name is None for name in names):
            names = None
        if names == self._names:
            return self
        result: Self = _shallow(self)
        spread_names(result, names)
        return result

    def _has_names(self) -> bool:
        return self._names is not None

    def rename_(self, *names: str | None, **rename_map: str | None) -> Self:
        """Rename batch dimensions in place.

        Args:
            *names: one name for each batch dimension; a single ``None`` removes all names.
            **rename_map: new names by old name; the others are kept.

        Returns:
            The same tensordict.

        Raises:
            ValueError: if both or neither of the two forms is used, if an old name is not there, or
                if the new names do not fit (see :attr:`names`).

        Example:
            >>> td = TensorDict(batch_size=[2, 3], names=["env", "time"])
            >>> td.rename_(time="step").names
            ['env', 'step']
        """
        spread_names(self, _renamed(self, names, rename_map))
        return self

    def rename(self, *names: str | None, **rename_map: str | None) -> Self:
        """Return a tensordict with other names; arguments and errors as :meth:`rename_`.

        The leaves are the same tensors; nested tensordicts are new objects.
        """
        result: Self = _shallow(self)
        spread_names(result, _renamed(self, names, rename_map))
        return result

    def refine_names(self, *names: str | EllipsisType | None) -> Self:
        """Name dimensions in place that have no name yet.

        Args:
            *names: one name for each batch dimension; one ``...`` stands for dimensions that keep
                what they have.

        Returns:
            The same tensordict.

        Raises:
            ValueError: if the number of names does not fit, or a name would occur twice.
            RuntimeError: if a dimension that has a name is given another, or ``None``.

        Example:
            >>> td = TensorDict({}, batch_size=[3, 4])
            >>> td.refine_names(..., "time").names
            [None, 'time']
        """
        wanted = _filled_ellipsis(names, self.names)
        checked = check_names(wanted, len(self._batch_size))
        for old, new in zip(self.names, wanted, strict=True):
            if old is not None and old != new:
                raise NameConflictError(
                    f"expected the names that are there, {self.names}; found {list(names)}: "
                    f"the dimension {old!r} cannot become {new!r} (use td.rename_ for that)"
                )
        spread_names(self, checked)
        return self


def _filled_ellipsis(names: tuple[Any, ...], current: list[str | None]) -> list[Any]:
    result: list[Any] = []
    missing = len(current) - (len(names) - 1)
    filled = False
    for name in names:
        if name is not Ellipsis:
            result.append(name)
        elif filled:
            raise ValueError(f"expected one ellipsis at most; found {list(names)}")
        else:
            start = len(result)
            result.extend(current[start : start + max(missing, 0)])
            filled = True
    return result


def _renamed(td: NamesMixin, names: tuple[Any, ...], rename_map: dict[str, Any]) -> Names:
    batch_dims = len(td._batch_size)
    if names and rename_map:
        raise ValueError(
            f"expected either a list of names or a map of names; found both: {list(names)} and "
            f"{rename_map}"
        )
    if rename_map:
        current = td.names
        for old in rename_map:
            if old not in current:
                raise ValueError(
                    f"expected old names out of {current}; found {old!r} in {rename_map}"
                )
        renamed = [rename_map.get(old, old) if old is not None else None for old in current]
        return check_names(renamed, batch_dims)
    if not names:
        raise ValueError("expected a list of names or a map of names; found neither")
    if len(names) == 1 and names[0] is None:
        return None
    return check_names(names, batch_dims)


def _shallow(td: Any) -> Any:
    if td._is_stack:
        return each_element(_shallow, td)
    entries = {}
    for key, value in td._entries.items():
        entries[key] = _shallow(value) if isinstance(value, NamesMixin) else value
    return td._from_entries(entries, td._batch_size, td._device, td._names)

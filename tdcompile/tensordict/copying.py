"""Copies of a tensordict: shallow, deep, empty, as plain dictionaries, pickled.

Key names: :class:`CopyingMixin` (``clone``, ``copy``, ``empty``, ``to_dict``, pickling).

Invariant: a copy has nested tensordicts of its own, at every level, and is not locked; only
pickling keeps the lock.
"""

from __future__ import annotations

import copy
from typing import Any, Self

import torch
from torch import Tensor

from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.keys import NO_DEFAULT
from tdcompile.tensordict.nontensor.data import LeafKind, NonTensorData, NonTensorEntry
from tdcompile.tensordict.nontensor.stack import LinkedList
from tdcompile.tensordict.state import TensorDictState
from tdcompile.tensordict.storage.flat import movable_layout_of
from tdcompile.tensordict.storage.memory import Memory, record_of


class CopyingMixin(TensorDictState):
    """Copies and plain forms."""

    __slots__ = ()

    def clone(self, recurse: bool = True) -> Self:
        """Return a copy with the same batch size, device and names, not locked.

        Args:
            recurse: copy the leaves too; otherwise they are the same tensors, in nested
                tensordicts that are new.

        Example:
            >>> td = TensorDict({"n": {"x": torch.ones(3)}}, batch_size=[3])
            >>> shallow = td.clone(recurse=False)
            >>> shallow["n"] is td["n"], shallow["n", "x"] is td["n", "x"]
            (False, True)
        """
        layout = movable_layout_of(self) if recurse else None
        if layout is not None:
            from tdcompile.tensordict.storage.consolidated import copied

            return copied(self, layout)  # type: ignore[no-any-return]
        entries: dict[str, Any] = {}
        for name, value in self._entries.items():
            if isinstance(value, Tensor):
                entries[name] = value.clone() if recurse else value
            elif isinstance(value, LeafKind):
                entries[name] = value._carried()
            else:
                entries[name] = value.clone(recurse)
        return self._from_entries(entries, self._batch_size, self._device, self._names)

    def copy(self) -> Self:
        """Return a shallow copy: ``clone(recurse=False)``."""
        return self.clone(False)

    def to_tensordict(self, *, retain_none: bool | None = None) -> Any:
        """Return a copy of the leaves in plain tensordicts, here and below.

        Args:
            retain_none: give fields of a tensorclass that have no value entries that are ``None``.
        """
        entries: dict[str, Any] = {}
        for name, value in self._entries.items():
            if isinstance(value, Tensor):
                entries[name] = value.clone()
            elif isinstance(value, TensorCollection):
                entries[name] = value.to_tensordict(retain_none=retain_none)  # type: ignore[attr-defined]
            else:
                entries[name] = value
        if retain_none and self.__tensorclass_schema__ is not None:
            for name in self.__tensorclass_schema__.names:
                if name not in entries:
                    entries[name] = NonTensorData(None, self._batch_size)
        return self._dense._from_entries(entries, self._batch_size, self._device, self._names)

    def empty(
        self,
        recurse: bool = False,
        *,
        batch_size: Any = None,
        device: Any = NO_DEFAULT,
        names: Any = NO_DEFAULT,
    ) -> Self:
        """Return a tensordict without entries and with the same batch size, device and names.

        Args:
            recurse: keep the nested tensordicts (without leaves) and the non-tensor entries.
            batch_size: another batch size.
            device: another device.
            names: other names.
        """
        other: dict[str, Any] = {}
        if batch_size is not None:
            other["batch_size"] = batch_size
        if device is not NO_DEFAULT:
            other["device"] = device
        if names is not NO_DEFAULT:
            other["names"] = names
        if other:
            other.setdefault("batch_size", self._batch_size)
            other.setdefault("device", self._device)
            if "names" not in other and other["batch_size"] == self._batch_size:
                other["names"] = self._names
            result: Any = type(self)._make({}, **other)  # type: ignore[attr-defined]
        else:
            result = self._from_entries({}, self._batch_size, self._device, self._names)
        if recurse:
            for name, value in self._entries.items():
                if isinstance(value, TensorCollection):
                    result._entries[name] = value.empty(True, **other)  # type: ignore[attr-defined]
                elif isinstance(value, NonTensorEntry):
                    result._entries[name] = value._with_batch_size(result._batch_size)
        return result  # type: ignore[no-any-return]

    def to_dict(
        self,
        *,
        retain_none: bool = True,
        convert_tensors: Any = False,
        tolist_first: bool = False,
    ) -> Any:
        """Return nested dictionaries with the same tensors (no copy) and bare non-tensor values.

        Args:
            retain_none: keep entries whose value is ``None``.
            convert_tensors: ``True`` makes lists of the tensors, ``"numpy"`` arrays.
            tolist_first: make a list of dictionaries out of a nested tensordict with batch
                dimensions.

        Raises:
            ValueError: if `convert_tensors` is anything else.
        """
        if convert_tensors not in (False, True, "numpy"):
            raise ValueError(
                f"expected convert_tensors to be True, False or 'numpy', found {convert_tensors!r}"
            )
        result: dict[str, Any] = {}
        for name, value in self._entries.items():
            if isinstance(value, Tensor):
                if convert_tensors == "numpy":
                    result[name] = value.numpy(force=True)
                else:
                    result[name] = value.tolist() if convert_tensors else value
            elif isinstance(value, NonTensorEntry):
                bare = value.tolist() if tolist_first else value._bare()
                if retain_none or bare is not None:
                    result[name] = bare
            elif tolist_first:
                result[name] = value.tolist(convert_tensors=convert_tensors, tolist_first=True)
            else:
                result[name] = value.to_dict(
                    retain_none=retain_none, convert_tensors=convert_tensors
                )
        return result

    def tolist(
        self,
        *,
        convert_nodes: bool = True,
        convert_tensors: Any = False,
        tolist_first: bool = False,
        as_linked_list: bool = False,
    ) -> Any:
        """Return nested lists over the batch dimensions, with a dictionary for each element.

        Args:
            convert_nodes: make dictionaries of the elements; otherwise they are tensordicts.
            convert_tensors: as in :meth:`to_dict`.
            tolist_first: as in :meth:`to_dict`.
            as_linked_list: return a list whose items, when they are set, are written here, too.

        Raises:
            TypeError: if `convert_tensors` is set and `convert_nodes` is not.

        Example:
            >>> TensorDict({"a": torch.arange(2)}, [2]).tolist(convert_tensors=True)
            [{'a': 0}, {'a': 1}]
        """
        if convert_tensors and not convert_nodes:
            raise TypeError("expected convert_nodes=True with convert_tensors, found False")
        if len(self._batch_size) == 0:
            if not convert_nodes:
                return self
            return self.to_dict(convert_tensors=convert_tensors, tolist_first=tolist_first)
        kwargs: dict[str, Any] = {
            "convert_nodes": convert_nodes,
            "convert_tensors": convert_tensors,
            "tolist_first": tolist_first,
        }
        rows = [row.tolist(**kwargs) for row in self.unbind(0)]  # type: ignore[attr-defined]
        return _LinkedRows(rows, self) if as_linked_list else rows

    def __copy__(self) -> Self:
        return self.clone(False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy everything, non-tensor values included; what is shared inside stays shared."""
        entries: dict[str, Any] = {}
        result = self._from_entries(entries, self._batch_size, self._device, self._names)
        memo[id(self)] = result
        for name, value in self._entries.items():
            if isinstance(value, Tensor) and value.requires_grad and not value.is_leaf:
                # torch refuses to deep-copy these; a clone stays in the graph of autograd.
                if id(value) not in memo:
                    memo[id(value)] = value.clone()
                entries[name] = memo[id(value)]
            else:
                entries[name] = copy.deepcopy(value, memo)
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        layout = movable_layout_of(self)
        if layout is not None:
            from tdcompile.tensordict.storage.consolidated import reduce

            return reduce(self, layout)
        state: dict[str, Any] = {
            "entries": dict(self._entries),
            "batch_size": tuple(self._batch_size),
            "device": self._device,
            "names": self._names,
            "is_locked": self._is_locked,
        }
        record = record_of(self)
        if record is not None:
            state["memory"] = record
        # Entries come with the state: one of them may lead back to this tensordict.
        return _new, (type(self),), state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over a pickled state: entries, batch size, device, names and lock."""
        slots: Any = self  # mypy takes the empty __slots__ of a mixin for all there are
        slots._entries = state["entries"]
        slots._batch_size = torch.Size(state["batch_size"])
        slots._device = state["device"]
        slots._names = state["names"]
        slots._is_locked = False
        if state.get("memory") is not None:
            slots._memory = Memory(*state["memory"])
        if state["is_locked"]:
            slots.lock_()


class _LinkedRows(LinkedList):
    """The elements of a tensordict as a list; assigning to an item writes to the tensordict."""

    def __setitem__(self, index: Any, value: Any) -> None:
        if self._stack is not None:
            self._stack[index] = value
        list.__setitem__(self, index, value)


def _new(cls: type) -> Any:
    return object.__new__(cls)

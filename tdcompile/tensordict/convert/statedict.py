"""State dicts of tensordicts, in the form in which ``torch.nn.Module`` has them.

Key names: :class:`StateDictMixin` (``state_dict``, ``load_state_dict``).

A state dict has the leaves, with keys joined by dots or in nested dictionaries, and an attribute
``_metadata``: for each level its batch size and device, for each non-tensor entry its value.

Invariant: a load that fails has changed nothing; without ``assign`` every leaf keeps its storage.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tdcompile.errors import KeyMismatchError, TensorDictShapeError
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.convert.forms import bare
from tdcompile.tensordict.keys import KEY_SEPARATOR, format_entry
from tdcompile.tensordict.lazy.elements import leaf_pieces
from tdcompile.tensordict.messages import locked_error, require_fields
from tdcompile.tensordict.nontensor.data import LeafKind, MetaData, NonTensorData
from tdcompile.tensordict.nontensor.stack import NonTensorStack
from tdcompile.tensordict.nontensor.unbatched import UnbatchedTensor
from tdcompile.tensordict.state import TensorDictState

if TYPE_CHECKING:
    from collections import OrderedDict

_Path = tuple[str, ...]
# Keys of an older form, which keeps the metadata of a level among its entries.
_OLD_KEYS = ("__batch_size", "__device")


class StateDict(collections.OrderedDict[str, Any]):
    """An ``OrderedDict`` with metadata beside its entries; saved and copied as one of those.

    A plain ``OrderedDict`` would take the attribute too, but a trace does not allow it on torch
    2.14 and 2.15.
    """

    _metadata: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return collections.OrderedDict, (), vars(self), None, iter(self.items())


def _new_state_dict() -> StateDict:
    made = StateDict()
    made._metadata = {}
    return made


class StateDictMixin(TensorDictState):
    """Saving to and loading from state dicts."""

    __slots__ = ()

    if TYPE_CHECKING:
        _change_batch_size: Any
        _empty_like_self: Any
        _to_entry: Any
        _write: Any

    def state_dict(
        self,
        destination: Any = None,
        prefix: str = "",
        keep_vars: bool = False,
        flatten: bool = True,
    ) -> OrderedDict[str, Any]:
        """Return the leaves in an ``OrderedDict``, as ``torch.nn.Module.state_dict`` does.

        Args:
            destination: an ``OrderedDict`` to write to.
            prefix: text in front of each key.
            keep_vars: give the tensors themselves, not detached ones, which share their memory.
            flatten: join the keys of nested leaves with dots; otherwise nested tensordicts become
                nested dictionaries.

        Returns:
            `destination` or a new one; its attribute ``_metadata`` tells batch size and device of
            each level, and the non-tensor values.

        Raises:
            KeyError: with `flatten`, if two entries would get one key.

        Example:
            >>> td = TensorDict({"a": torch.ones(1), "n": {"x": torch.zeros(1)}})
            >>> list(td.state_dict()), list(td.state_dict(flatten=False))
            (['a', 'n.x'], ['a', 'n'])
        """
        if destination is None:
            destination = _new_state_dict()
        _save(self, destination, prefix, prefix[:-1], keep_vars, flatten, set())
        return destination  # type: ignore[no-any-return]

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,
        assign: bool = False,
        from_flatten: bool | None = None,
    ) -> Self:
        """Load what :meth:`state_dict` gave, and return the tensordict itself.

        The batch size becomes the one in the metadata, if there is one.

        Args:
            state_dict: leaves under joined keys or in nested dictionaries.
            strict: expect exactly the entries that are here (but for empty tensordicts);
                otherwise others are added, and those that are missing stay.
            assign: put the tensors of the state dict here; otherwise they are copied into the
                tensors that are here, which keep storage, dtype and device.
            from_flatten: whether keys are joined; by default they are if there is metadata, no
                nested dictionary, and the keys are not those of this tensordict.

        Raises:
            KeyMismatchError: with `strict`, if the entries differ.
            UnknownFieldError: without `strict`, if a tensorclass has no such field.
            RuntimeError: if the state dict is of another device.
            LockedError: if entries are to be added or replaced here and the tensordict is locked.
            TensorDictShapeError: if a tensor does not fit.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"expected a state dict, found {type(state_dict).__name__}")
        metadata = getattr(state_dict, "_metadata", None)
        if from_flatten is None:
            nested = any(isinstance(value, Mapping) for value in state_dict.values())
            same = state_dict.keys() == self._entries.keys()
            # Non-tensor entries of a flat state dict stand in its metadata alone.
            has_more = metadata is not None and len(metadata) > 1
            from_flatten = metadata is not None and not nested and (has_more or not same)
        level = _unflatten(self, state_dict, metadata) if from_flatten else _nested(state_dict)
        plan = _Plan(strict, assign)
        plan.add(self, level, ())
        plan.carry_out()
        return self


def _save(
    td: Any,
    destination: Any,
    prefix: str,
    name: str,
    keep_vars: bool,
    flatten: bool,
    names: set[str],
) -> None:
    """Write a level and what is below it; `name` is the key of its metadata."""
    about: dict[str, Any] = {"batch_size": td.batch_size, "device": td.device}
    is_tensorclass = td.__tensorclass_schema__ is not None
    if is_tensorclass and td.__tensorclass_schema__.known is not None:
        # The non-tensor fields of a tensorclass go to its own metadata.
        about["_type"] = type(td).__qualname__
        about["_non_tensor"] = {
            key: bare(value)
            for key, value in td._entries.items()
            if not isinstance(value, (Tensor, TensorCollection))
        }
    _note(destination, name, names, about)
    for key, value in td._entries.items():
        if key in about.get("_non_tensor", ()):
            continue
        full = prefix + key
        if isinstance(value, Tensor):
            if flatten and full in names:
                raise _collision(full)
            names.add(full)
            destination[full] = value if keep_vars else value.detach()
            continue
        inner, at = destination, full
        if not flatten:
            destination[full] = inner = _new_state_dict()
            at = ""
        if isinstance(value, TensorCollection):
            below = names if flatten else set()
            _save(value, inner, full + "." if flatten else "", at, keep_vars, flatten, below)
        else:
            data = {"data": bare(value), "_metadata": None, "_is_non_tensor": True}
            place = {"batch_size": value.batch_size, "device": value.device}
            kind = {"_type": type(value).__name__, "_non_tensor": data}
            _note(inner, at, names if flatten else set(), {**place, **kind})


def _note(destination: Any, name: str, names: set[str], about: dict[str, Any]) -> None:
    if name in names:
        raise _collision(name)
    names.add(name)
    destination._metadata[name] = about


def _collision(key: str) -> KeyError:
    return KeyError(
        f"expected entries that differ in a flat state dict, found two with the key {key!r}: "
        "pass flatten=False"
    )


class _Level:
    """One level of a state dict: its leaves, its nested levels and its metadata."""

    __slots__ = ("about", "items")

    def __init__(self, about: Mapping[str, Any] | None = None) -> None:
        self.items: dict[str, Any] = {}
        self.about: Mapping[str, Any] = {} if about is None else about

    def entry(self) -> Any:
        """The non-tensor entry that this level stands for, or None."""
        saved = self.about.get("_non_tensor")
        if not isinstance(saved, Mapping) or "data" not in saved:
            return None
        data, size = saved["data"], self.about.get("batch_size")
        if self.about.get("_type") == "NonTensorStack":
            stack = NonTensorStack.from_nested(data, torch.Size(size))  # type: ignore[arg-type]
            if stack is not None:
                return stack
        if self.about.get("_type") == "MetaData":
            return MetaData(data, size)
        return NonTensorData(data, size)

    def take_fields(self) -> None:
        """Add the non-tensor fields that a tensorclass of the reference keeps in its metadata."""
        saved = self.about.get("_non_tensor")
        if isinstance(saved, Mapping) and "data" not in saved:
            for key, value in saved.items():
                self.items.setdefault(key, NonTensorData(value, self.about.get("batch_size")))


def _nested(state_dict: Mapping[str, Any]) -> _Level:
    if state_dict.keys() == {"_tensordict", "_non_tensordict"}:
        # An older form of tensorclasses.
        state_dict = {**state_dict["_tensordict"], **state_dict["_non_tensordict"]}
    metadata = getattr(state_dict, "_metadata", None) or {}
    about = metadata.get("")
    if about is None and _OLD_KEYS[0] in state_dict:
        about = {"batch_size": state_dict[_OLD_KEYS[0]], "device": state_dict.get(_OLD_KEYS[1])}
    level = _Level(about)
    for key, value in state_dict.items():
        if key not in _OLD_KEYS:
            level.items[key] = _nested(value) if isinstance(value, Mapping) else value
    level.take_fields()
    return level


def _unflatten(td: Any, state_dict: Mapping[str, Any], metadata: Any) -> _Level:
    known: dict[str, _Path] = {}
    _join_keys(td, (), known)
    metadata = metadata or {}
    root = _Level(metadata.get(""))
    # Metadata first: an empty level, or a non-tensor value, has no leaves to tell of it.
    for key, about in metadata.items():
        if key:
            _level_at(root, known.get(key) or tuple(key.split(KEY_SEPARATOR))).about = about
    for key, value in state_dict.items():
        path = known.get(key) or tuple(key.split(KEY_SEPARATOR))
        _level_at(root, path[:-1]).items[path[-1]] = value
    _take_all_fields(root)
    return root


def _take_all_fields(level: _Level) -> None:
    level.take_fields()
    for value in level.items.values():
        if isinstance(value, _Level):
            _take_all_fields(value)


def _level_at(level: _Level, path: _Path) -> _Level:
    for name in path:
        level = level.items.setdefault(name, _Level())
    return level


def _join_keys(td: Any, path: _Path, out: dict[str, _Path]) -> None:
    """Map joined keys to paths: a key of ours may have a dot in it."""
    for name, value in td._entries.items():
        out.setdefault(KEY_SEPARATOR.join((*path, name)), (*path, name))
        if isinstance(value, TensorCollection):
            _join_keys(value, (*path, name), out)


class _Plan:
    """What a load will do, worked out before anything is written."""

    __slots__ = ("_assign", "_copies", "_levels", "_strict")

    def __init__(self, strict: bool, assign: bool) -> None:
        self._strict = strict
        self._assign = assign
        self._copies: list[tuple[Tensor, Tensor]] = []
        # A tensordict, what to store in it, and its new batch size.
        self._levels: list[tuple[Any, dict[str, Any], torch.Size]] = []

    def add(self, td: Any, level: _Level, path: _Path) -> None:
        """Plan to load a level into `td`, which stands at `path`."""
        if self._strict:
            _check_keys(td, level, path)
        elif td.__tensorclass_schema__ is not None:
            require_fields(type(td), level.items)
        size = torch.Size(level.about.get("batch_size", td.batch_size))
        device = level.about.get("device")
        if device is not None and td.device not in (None, torch.device(device)):
            raise RuntimeError(
                f"expected a state dict of device {td.device}, found one of {device} for "
                f"{_where(path)}: move the tensordict first"
            )
        stored: dict[str, Any] = {}
        self._levels.append((td, stored, size))
        for name, value in level.items.items():
            below = (*path, name)
            old = td._entries.get(name)
            if isinstance(value, _Level):
                entry = value.entry()
                if entry is not None:
                    stored[name] = entry._with_batch_size(size)
                    continue
                if not isinstance(old, TensorCollection):
                    old = stored[name] = td._dense._from_entries({}, size, td.device)
                self.add(old, value, below)
            elif isinstance(value, Tensor) and isinstance(old, Tensor) and not self._assign:
                if value.shape != old.shape:
                    raise TensorDictShapeError(
                        f"expected shape {list(old.shape)} at {format_entry(below)}, found "
                        f"{list(value.shape)}: pass assign=True to replace the tensor"
                    )
                self._copies.extend(leaf_pieces(td, name, value))
            else:
                if type(old) is UnbatchedTensor and isinstance(value, Tensor):
                    value = UnbatchedTensor(value, size)
                stored[name] = self._leaf(td, value, size, below)
        if td._is_locked and any(isinstance(value, Tensor) or name not in td._entries
                                 for name, value in stored.items()):  # fmt: skip
            raise locked_error(path)
        _check_sizes(td, stored, size, path)

    def _leaf(self, td: Any, value: Any, size: torch.Size, path: _Path) -> Any:
        entry = td._from_entries({}, torch.Size(()), td.device)._to_entry(value, path)
        if isinstance(entry, LeafKind) or not isinstance(entry, Tensor):
            return entry._with_batch_size(size)
        if entry.shape[: len(size)] != size:
            raise _misfit(entry, size, path)
        return entry

    def carry_out(self) -> None:
        """Write: copies first, then entries, then batch sizes from the inside out."""
        with torch.no_grad():
            for old, new in self._copies:
                old.copy_(new)
        for td, stored, _ in self._levels:
            td._entries.update(stored)
        for td, _, size in reversed(self._levels):
            if td._batch_size != size:
                td._change_batch_size(size)


def _check_keys(td: Any, level: _Level, path: _Path) -> None:
    extra = [key for key in level.items if key not in td._entries and not _is_empty(level, key)]
    missing = [
        key
        for key, value in td._entries.items()
        if key not in level.items and not (isinstance(value, TensorCollection) and value.is_empty())  # type: ignore[attr-defined]
    ]
    if extra or missing:
        unknown = f"Key {extra[0]!r} wasn't expected in the state-dict. " if extra else ""
        raise KeyMismatchError(
            f"{unknown}expected the keys of {_where(path)} in the state dict, found {missing} "
            f"missing and {extra} too many: pass strict=False to load what is there"
        )


def _is_empty(level: _Level, key: str) -> bool:
    value = level.items[key]
    if not isinstance(value, _Level) or value.entry() is not None:
        return False
    return all(_is_empty(value, inner) for inner in value.items)


def _check_sizes(td: Any, stored: dict[str, Any], size: torch.Size, path: _Path) -> None:
    """Raise unless the tensors that stay start with the new batch size."""
    for name, value in td._entries.items():
        if name in stored or not isinstance(value, Tensor) or isinstance(value, LeafKind):
            continue
        if value.shape[: len(size)] != size:
            raise _misfit(value, size, (*path, name))


def _misfit(leaf: Tensor, size: torch.Size, path: _Path) -> TensorDictShapeError:
    return TensorDictShapeError(
        f"expected {format_entry(path)} to start with the batch size {list(size)} of the state "
        f"dict, found shape {list(leaf.shape)}"
    )


def _where(path: _Path) -> str:
    return format_entry(path) if path else "the tensordict"

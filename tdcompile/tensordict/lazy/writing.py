"""Writing to a lazy stack: each write is cut along the stack dimension and goes to the elements.

Key names: :class:`LazyWritingMixin` (``set``, ``update``, ``pop``, ``append``, locks, ...).

Symbols: ``*B`` batch dimensions of the stack.

Invariant: a write is planned for all elements before it is carried out for one, so a call that
fails has changed no element.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Self

import torch

from tdcompile.errors import KeyPathError, TensorDictShapeError
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.keys import format_key, unravel_key_to_tuple
from tdcompile.tensordict.lazy.elements import check_elements
from tdcompile.tensordict.lazy.entries import unstack_value
from tdcompile.tensordict.messages import absent_error, locked_error
from tdcompile.tensordict.state import TensorDictState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tdcompile.tensordict.writes import Writes


class LazyWritingMixin(TensorDictState):
    """What writes to a lazy stack, or to its list of elements."""

    __slots__ = ()

    if TYPE_CHECKING:
        tensordicts: list[Any]
        stack_dim: int
        hook_in: Callable[[Any], Any] | None
        batch_size: torch.Size
        batch_dims: int
        _locked: bool
        _lock_parents: Any
        _template: Any
        _first: Callable[[], Any]
        _require: Callable[[tuple[str, ...]], Any]
        _in_each: Callable[..., Self]

    def _check_writable(self, path: Any = ()) -> None:
        if self._locked:
            raise locked_error(path)
        for element in self.tensordicts:
            if element._is_locked:
                raise locked_error(path)

    # -- entries -----------------------------------------------------------------------------------

    def set(
        self, key: Any, item: Any, inplace: bool = False, *, non_blocking: bool = False
    ) -> Self:
        """Store a value at `key` of the elements, each its part; see ``TensorDict.set``.

        A tensor ``(*B, *F)`` is unbound along the stack dimension (elements hold views of it), a
        list has one item for each element of the first batch dimension, a lazy stack with the same
        stack dimension gives its elements, and anything else goes to all elements.

        Example:
            >>> stack = lazy_stack([TensorDict(), TensorDict()])
            >>> stack["a"] = [torch.ones(2), torch.zeros(1)]
            >>> stack[1]["a"]
            tensor([0.])
        """
        if self.hook_in is not None:
            item = self.hook_in(item)
        methods: Any = super()
        methods.set(key, item, inplace, non_blocking=non_blocking)
        return self

    def _plan_path(
        self, path: tuple[str, ...], value: Any, prefix: tuple[str, ...], writes: Writes
    ) -> None:
        """Plan to store `value` at a path of each element."""
        if self._locked:
            raise locked_error(prefix + path)
        pieces = unstack_value(self, value, prefix + path)
        for element, piece in zip(self.tensordicts, pieces, strict=True):
            element._plan_path(path, piece, prefix, writes)

    def set_(self, key: Any, item: Any, *, non_blocking: bool = False) -> Self:
        """Copy a value into the entry at `key` of each element; see ``TensorDict.set_``.

        Raises:
            KeyPathError: if an element lacks `key`.
        """
        path = unravel_key_to_tuple(key)
        if not all(element._has_path(path) for element in self.tensordicts):
            raise KeyPathError(
                "setting a value in-place on a stack of TensorDict needs an entry in each of them, "
                f"found none at {format_key(path)} in some: its keys are {list(self._entries)}"
            )
        methods: Any = super()
        methods.set_(path, item, non_blocking=non_blocking)
        return self

    def _tensors_to_write(self, source: Any) -> None:
        """Return None: an update of a lazy stack goes to its elements."""

    def _refill(self, source: Any, kwargs: dict[str, Any]) -> Self:
        """Take over the batch size of a tensordict, and copies of its entries."""
        self._check_writable()
        missing = [key for key in self._entries if key not in source]
        if missing:
            raise TensorDictShapeError(
                f"expected all keys in the input, whose batch size {list(source.batch_size)} is to "
                f"replace {list(self._batch_size)}, found {missing} missing: delete or add them"
            )
        place = min(self.stack_dim, source.batch_dims - 1)
        slots: Any = self
        slots.tensordicts = [part.clone() for part in source.to_lazystack(place).tensordicts]
        slots.stack_dim = place
        if kwargs:
            slots.update(kwargs)
        return self

    def fill_(self, key: Any, value: float | bool) -> Self:
        """Fill the leaf under `key` of each element, in place.

        Raises:
            KeyPathError: if `key` is absent from an element.
        """
        path = unravel_key_to_tuple(key)
        for element in self.tensordicts:
            element._require(path)
        for element in self.tensordicts:
            element.fill_(path, value)
        return self

    def del_(self, key: Any) -> Self:
        """Remove the entry at `key` from the elements that have it.

        Raises:
            KeyPathError: if no element has it.
            LockedError: if an element is locked.
        """
        path = unravel_key_to_tuple(key)
        holders = [element for element in self.tensordicts if element._has_path(path)]
        if not holders:
            raise absent_error(self, path[:1], 0)
        for element in holders:
            if self._locked or element._require(path[:-1])._is_locked:
                raise locked_error(path)
        for element in holders:
            element.del_(path)
        return self

    def rename_key_(self, old_key: Any, new_key: Any, safe: bool = False) -> Self:
        """Move the entry of each element to another key; see ``TensorDict.rename_key_``."""
        path = unravel_key_to_tuple(new_key)
        if safe and super().__contains__(path):  # type: ignore[misc]
            raise KeyPathError(
                f"key {format_key(path)} is already present in TensorDict: delete it first, or "
                "rename with safe=False"
            )
        return self._in_each("rename_key_", old_key, path, safe=safe)

    def clear(self) -> Self:
        """Remove every entry of every element."""
        return self._in_each("clear")

    def filter_empty_(self) -> Self:
        """Remove nested tensordicts without leaves from each element, in place."""
        return self._in_each("filter_empty_")

    def auto_batch_size_(
        self, batch_dims: int | None = None, keep_compliant_size: bool = False
    ) -> Self:
        """Set the batch size of each element, which may not lose the stack dimension.

        Raises:
            RuntimeError: if `batch_dims` would leave out the stack dimension.
        """
        if batch_dims is not None:
            if batch_dims <= self.stack_dim:
                raise self._size_error(self.batch_size[:batch_dims])
            batch_dims = batch_dims - 1
        for element in self.tensordicts:
            element.auto_batch_size_(batch_dims, keep_compliant_size)
        return self

    # -- batch size --------------------------------------------------------------------------------

    def _element_size(self, size: torch.Size) -> torch.Size:
        """Return the batch size of an element where the stack is to have `size`.

        Raises:
            TensorDictShapeError: if `size` lacks the stack dimension or has another size there.
        """
        place = self.stack_dim
        if len(size) <= place or size[place] != len(self.tensordicts):
            raise self._size_error(size)
        return torch.Size((*size[:place], *size[place + 1 :]))

    def _size_error(self, size: Any) -> TensorDictShapeError:
        return TensorDictShapeError(
            f"expected a batch size with {len(self.tensordicts)} at dimension {self.stack_dim}, "
            f"which counts the tensordicts of a lazy stack; found {tuple(size)}: make it dense "
            "first (to_tensordict())"
        )

    def _change_batch_size(self, size: torch.Size) -> None:
        rest = self._element_size(size)
        for element in self.tensordicts:
            element._change_batch_size(rest)

    def _rebatched(self, size: torch.Size) -> Any:
        rest = self._element_size(size)
        return self._like([element._rebatched(rest) for element in self.tensordicts])

    if TYPE_CHECKING:
        _like: Callable[..., Any]

    def _change_device(self, device: torch.device | None) -> None:
        for element in self.tensordicts or [self._template]:
            element._change_device(device)

    # -- the elements ------------------------------------------------------------------------------

    def append(self, tensordict: Any) -> None:
        """Add a tensordict at the end; see :meth:`insert`."""
        self.insert(len(self.tensordicts), tensordict)

    def extend(self, tensordict: Any) -> None:
        """Add tensordicts at the end: those of a list, or the slices of one tensordict."""
        if isinstance(tensordict, TensorCollection):
            like: Any = tensordict
            tensordict = like.unbind(self.stack_dim)
        self._insert(len(self.tensordicts), list(tensordict))

    def insert(self, index: int, tensordict: Any) -> None:
        """Add a tensordict before the element `index`, as ``list.insert`` does; no copy is made.

        Raises:
            TypeError: if it is no tensordict.
            ValueError: if its device or its batch size does not fit.
            LockedError: if the stack is locked.

        Example:
            >>> stack = lazy_stack([TensorDict(a=torch.zeros(()))])
            >>> stack.insert(0, TensorDict(a=torch.ones(())))
            >>> stack["a"]
            tensor([1., 0.])
        """
        self._insert(index, [tensordict])

    def _insert(self, index: int, tensordicts: Iterable[Any]) -> None:
        added = list(tensordicts)
        if self._is_locked:
            raise locked_error(())
        place = self.stack_dim
        size = self.batch_size
        size = torch.Size((*size[:place], *size[place + 1 :]))
        for td in added:
            if not isinstance(td, TensorCollection):
                raise TypeError(
                    "Expected new value to be TensorDictBase instance, to add to a lazy stack; "
                    f"found {type(td).__name__}"
                )
            found: Any = td
            if found.device != self._device:
                raise ValueError(
                    f"Devices differ: expected a tensordict on {self._device} to add to a lazy "
                    f"stack; found one on {found.device}: move it first"
                )
            fits = len(found.batch_size) == len(size) and all(
                own in (-1, new) for own, new in zip(size, found.batch_size, strict=True)
            )
            if not fits:
                raise TensorDictShapeError(
                    f"Batch sizes in tensordicts differs: expected {tuple(size)} (-1 for any), "
                    f"that of an element; found {tuple(found.batch_size)}"
                )
        check_elements([self._first(), *added])
        self.tensordicts[index:index] = added

    # -- locks -------------------------------------------------------------------------------------

    def _lock(self, parent: Any) -> None:
        slots: Any = self
        if parent is not None:
            kept = [ref for ref in getattr(self, "_lock_parents", None) or () if ref() is not None]
            if all(ref() is not parent for ref in kept):
                kept.append(weakref.ref(parent))
            slots._lock_parents = kept
        if self._locked:
            return
        slots._locked = True
        for element in self.tensordicts:
            element._lock(self)

    def _lock_children(self) -> list[Any]:
        return list(self.tensordicts)

    def lock_(self) -> Self:
        """Lock the stack and its elements, which then cannot be unlocked by themselves."""
        was_locked = self._is_locked
        self._lock(None)
        slots: Any = self
        slots._last_op = ("lock_", None, was_locked)
        return self

"""Reading a lazy stack: entries in several forms, metadata, copies, dense forms, selections.

Key names: :class:`LazyReadingMixin`.

Symbols: ``*B`` batch dimensions of the stack.

Invariant: what needs no stacked tensor makes none, so that it works where shapes differ.
"""

from __future__ import annotations

import inspect
import weakref
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tdcompile.errors import KeyMismatchError
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.dense import TensorDict
from tdcompile.tensordict.keys import NO_DEFAULT, unravel_key_to_tuple
from tdcompile.tensordict.lazy.elements import dense_form
from tdcompile.tensordict.lazy.entries import nested
from tdcompile.tensordict.nontensor.data import NonTensorEntry
from tdcompile.tensordict.state import TensorDictState
from tdcompile.tensordict.storage.flat import movable_layout_of

if TYPE_CHECKING:
    from collections.abc import Callable


# Slots that are unset until there is something.
_UNSET = ("_last_op", "_lock_parents", "_open_ops")


class LazyReadingMixin(TensorDictState):
    """What reads a lazy stack in another way than a loop over its entries."""

    __slots__ = ()

    if TYPE_CHECKING:
        tensordicts: list[Any]
        stack_dim: int
        hook_out: Callable[[Any], Any] | None
        _locked: bool
        _last_op: Any
        _first: Callable[[], Any]
        _like: Callable[..., Self]
        _require: Callable[[tuple[str, ...]], Any]
        _get_path: Callable[[tuple[str, ...], Any], Any]
        batch_size: torch.Size
        batch_dims: int

    # -- elements that are tensorclasses -----------------------------------------------------------

    def _element_tensorclass(self) -> Any:
        """Return the tensorclass of the elements; ``None`` if they are not all of one."""
        kinds = {type(td) for td in self.tensordicts}
        kind = kinds.pop() if len(kinds) == 1 else None
        schema = getattr(kind, "__tensorclass_schema__", None)
        return None if schema is None or schema.known is None else kind

    def __getattr__(self, name: str) -> Any:
        """Return a field, stacked anew, or a method or property of elements of one tensorclass.

        The stack itself is no instance of their class.
        """
        if name == "tensordicts" or name in _UNSET:
            raise AttributeError(name)
        kind = self._element_tensorclass()
        if kind is not None and name in kind.__tensorclass_schema__.known:
            value = self.get(name)
            return value._bare() if isinstance(value, NonTensorEntry) else value
        attribute = None if kind is None else inspect.getattr_static(kind, name, None)
        if isinstance(attribute, FunctionType):
            return MethodType(attribute, self)
        if isinstance(attribute, property) and attribute.fget is not None:
            return attribute.fget(self)
        if attribute is not None:
            return getattr(kind, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # -- entries -----------------------------------------------------------------------------------

    def get(self, key: Any, default: Any = NO_DEFAULT, **form: Any) -> Any:
        """Return the entry at `key`, stacked anew, or `default` if an element lacks it.

        Args:
            key: a string or a nested key.
            default: what an absent key gives.
            **form: how to return tensors. ``as_list=True``: a list, with lists in it for nested
                stacks. ``as_padded_tensor=True``: each padded to the largest size of each
                dimension, with ``padding_value`` (0) on the ``padding_side`` (``"right"``).
                ``as_nested_tensor=True``: a nested tensor of a ``layout`` (``torch.jagged``).

        Raises:
            TensorDictShapeError: if tensors differ in shape and no form is asked for.
            ValueError: if more than one form is asked for.

        Example:
            >>> stack = lazy_stack([TensorDict(a=torch.zeros(1)), TensorDict(a=torch.ones(2))])
            >>> stack.get("a", as_list=True)
            [tensor([0.]), tensor([1., 1.])]
        """
        value = super().get(key, default, **form)  # type: ignore[misc]
        return value if self.hook_out is None else self.hook_out(value)

    def __getitem__(self, index: Any) -> Any:
        """Return an entry, stacked anew (`index` is a key), or what the index picks.

        An integer along the stack dimension gives the element itself.
        """
        value = super().__getitem__(index)  # type: ignore[misc]
        if self.hook_out is not None and (isinstance(index, str) or isinstance(value, Tensor)):
            return self.hook_out(value)
        return value

    def get_nestedtensor(
        self, key: Any, default: Any = NO_DEFAULT, *, layout: torch.layout | None = None
    ) -> Any:
        """Return the tensors at `key` as a nested tensor, or `default` if an element lacks it.

        Args:
            key: a string or a nested key.
            default: what an absent key gives.
            layout: ``torch.strided`` by default.

        Raises:
            KeyPathError: if the key is absent and there is no `default`.
            RuntimeError: if the stack dimension is not the first.
        """
        if self.stack_dim != 0:
            raise RuntimeError(
                "LazyStackedTensorDict.get_nestedtensor can only be called when the stack_dim is "
                f"0. Found {self.stack_dim}: use get(key, as_nested_tensor=True)"
            )
        path = unravel_key_to_tuple(key)
        values = [element._get_path(path, None) for element in self.tensordicts]
        if any(value is None for value in values):
            return self._require(path) if default is NO_DEFAULT else default
        return nested(values, torch.strided if layout is None else layout)

    def get_item_shape(self, key: Any) -> torch.Size:
        """Return the shape of the entry at `key`, with -1 where the elements differ.

        Raises:
            KeyPathError: if an element lacks `key`.
        """
        path = unravel_key_to_tuple(key)
        shapes = [element.get_item_shape(path) for element in self.tensordicts]
        if not shapes:
            return self._require(path).shape  # type: ignore[no-any-return]
        rows = zip(*shapes, strict=True)
        joint = [row[0] if all(size == row[0] for size in row) else -1 for row in rows]
        place = self.stack_dim
        return torch.Size((*joint[:place], len(shapes), *joint[place:]))

    def entry_class(self, key: Any) -> type:
        """Return the class that the entry at `key` has when it is read."""
        path = unravel_key_to_tuple(key)
        kinds = [element.entry_class(path) for element in self.tensordicts]
        if kinds and issubclass(kinds[0], TensorCollection):
            return type(self)
        return kinds[0] if kinds else type(None)

    def valid_keys(
        self,
        include_nested: bool = False,
        leaves_only: bool = False,
        is_leaf: Any = None,
        *,
        sort: bool = False,
    ) -> Any:
        """Return the keys that all elements have; the same as ``keys()``."""
        return self.keys(include_nested, leaves_only, is_leaf, sort=sort)

    def __contains__(self, key: Any) -> bool:
        """Tell whether all elements have an entry at `key`, or whether `key` is an element."""
        if isinstance(key, TensorCollection):
            return any(element is key for element in self.tensordicts)
        return bool(super().__contains__(key))  # type: ignore[misc]

    # -- metadata ----------------------------------------------------------------------------------

    def is_empty(self) -> bool:
        """Tell whether no element has a leaf."""
        return all(element.is_empty() for element in self.tensordicts)

    @property
    def depth(self) -> int:
        """The number of levels of nested tensordicts in the deepest element."""
        return max([element.depth for element in self.tensordicts], default=0)

    def is_contiguous(self) -> bool:
        """Return False: the tensors of a lazy stack are made when they are read."""
        return False

    # -- copies and dense forms --------------------------------------------------------------------

    def clone(self, recurse: bool = True) -> Self:
        """Return a lazy stack of copies of the elements; see ``TensorDict.clone``."""
        layout = movable_layout_of(self) if recurse else None
        if layout is not None:
            from tdcompile.tensordict.storage.consolidated import copied

            return copied(self, layout)  # type: ignore[no-any-return]
        if recurse:
            return self._like([element.clone() for element in self.tensordicts])
        return self._like([_shallow(element) for element in self.tensordicts])

    def empty(
        self,
        recurse: bool = False,
        *,
        batch_size: Any = None,
        device: Any = NO_DEFAULT,
        names: Any = NO_DEFAULT,
    ) -> Any:
        """Return a lazy stack of elements without entries; a dense one for another batch size."""
        if batch_size is None and names is NO_DEFAULT:
            kwargs = {} if device is NO_DEFAULT else {"device": device}
            return self._like([e.empty(recurse, **kwargs) for e in self.tensordicts])
        size = self.batch_size if batch_size is None else batch_size
        device = self._device if device is NO_DEFAULT else device
        names = None if names is NO_DEFAULT else names
        return TensorDict({}, batch_size=size, device=device, names=names)

    def _empty_like_self(self) -> Self:
        return self._like([element._empty_like_self() for element in self.tensordicts])

    def to_tensordict(self, *, retain_none: bool | None = None) -> Any:
        """Return a dense copy with the keys that all elements have.

        Raises:
            TensorDictShapeError: if elements differ in the shape of an entry, or in batch size.
        """
        return dense_form(self, True)

    def contiguous(self, *, canonical: bool = False, inplace: bool = False) -> Any:
        """Return a dense tensordict of contiguous leaves.

        Raises:
            TensorDictShapeError: if elements differ in the shape of an entry, or in batch size.
            NotImplementedError: if it is to work in place.
        """
        if inplace:
            raise NotImplementedError(
                "expected contiguous without inplace=True for a lazy stack, whose leaves are made "
                "when they are read: make each element contiguous, or take the dense result"
            )
        dense = dense_form(self, False).contiguous(canonical=canonical)
        kind = self._element_tensorclass()
        return dense if kind is None else kind.from_tensordict(dense)

    def to_dict(
        self,
        *,
        retain_none: bool = True,
        convert_tensors: Any = False,
        tolist_first: bool = False,
    ) -> Any:
        """Return nested dictionaries of stacked tensors; see ``TensorDict.to_dict``.

        Raises:
            KeyMismatchError: if an element has a key that another lacks.
            TensorDictShapeError: if elements differ in the shape of an entry.
        """
        self._check_no_exclusive_keys("to_dict")
        return super().to_dict(  # type: ignore[misc]
            retain_none=retain_none, convert_tensors=convert_tensors, tolist_first=tolist_first
        )

    def _check_no_exclusive_keys(self, method: str) -> None:
        for i, keys in self._exclusive_keys().items():
            raise KeyMismatchError(
                f"expected elements with the same keys for {method}(); found {keys} in element {i} "
                "only: exclude them first"
            )

    def _exclusive_keys(self) -> dict[int, list[str]]:
        """Return, by number of the element, the keys that not all elements have."""
        common = self._entries.keys()
        found = {
            i: [key for key in element._entries if key not in common]
            for i, element in enumerate(self.tensordicts)
        }
        return {i: keys for i, keys in found.items() if keys}

    # -- selections --------------------------------------------------------------------------------

    def select(self, *keys: Any, inplace: bool = False, strict: bool = True, **kwargs: Any) -> Self:
        """Return a lazy stack of ``element.select(*keys)``; see ``TensorDict.select``."""
        if inplace:
            return self._in_each("select", *keys, inplace=True, strict=strict)
        return self._of_each("select", *keys, strict=strict)

    def exclude(self, *keys: Any, inplace: bool = False) -> Self:
        """Return a lazy stack of ``element.exclude(*keys)``; see ``TensorDict.exclude``."""
        if inplace:
            return self._in_each("exclude", *keys, inplace=True)
        return self._of_each("exclude", *keys)

    def rename_keys(self, mapping: Any, *, strict: bool = True) -> Self:
        """Return a lazy stack of elements with other keys; see ``TensorDict.rename_keys``."""
        return self._of_each("rename_keys", mapping, strict=strict)

    def filter_non_tensor_data(self) -> Self:
        """Return a lazy stack without the non-tensor entries."""
        return self._of_each("filter_non_tensor_data")

    def split_keys(self, *key_sets: Any, inplace: bool = False, **kwargs: Any) -> tuple[Any, ...]:
        """Return one lazy stack a key set, and a last one; see ``TensorDict.split_keys``."""
        sets = [list(keys) if hasattr(keys, "__next__") else keys for keys in key_sets]
        parts = [element.split_keys(*sets, **kwargs) for element in self.tensordicts]
        if inplace:
            self._in_each("split_keys", *sets, inplace=True, **kwargs)
        results = [self._like(column) for column in zip(*parts, strict=True)]
        return (*results[:-1], self) if inplace else tuple(results)

    def separates(self, *keys: Any, **kwargs: Any) -> Self:
        """Take the entries of `keys` out of the elements; see ``TensorDict.separates``."""
        self._check_writable()
        parts = [element.copy().separates(*keys, **kwargs) for element in self.tensordicts]
        for element in self.tensordicts:
            element.separates(*keys, **kwargs)
        return self._like(parts)

    def flatten_keys(
        self, separator: str = ".", inplace: bool = False, is_leaf: Any = None
    ) -> Self:
        """Return a lazy stack of elements of one level; see ``TensorDict.flatten_keys``."""
        return self._key_change("flatten_keys", separator, inplace, is_leaf=is_leaf)

    def unflatten_keys(self, separator: str = ".", inplace: bool = False) -> Self:
        """Return a lazy stack of nested elements; see ``TensorDict.unflatten_keys``."""
        return self._key_change("unflatten_keys", separator, inplace)

    def _key_change(self, name: str, separator: str, inplace: bool, **kwargs: Any) -> Self:
        if inplace:
            result = self._in_each(name, separator, inplace=True, **kwargs)
        else:
            result = self._of_each(name, separator, **kwargs)
        result._last_op = (name, weakref.ref(self), separator)
        return result

    def _of_each(self, name: str, *args: Any, **kwargs: Any) -> Self:
        """Call a method of each element and stack the results lazily."""
        return self._like([getattr(e, name)(*args, **kwargs) for e in self.tensordicts])

    def _in_each(self, name: str, *args: Any, **kwargs: Any) -> Self:
        """Call a method that changes each element; tried on copies first, so all or none change."""
        self._check_writable()
        for element in self.tensordicts:
            getattr(_shallow(element), name)(*args, **kwargs)
        for element in self.tensordicts:
            getattr(element, name)(*args, **kwargs)
        return self

    if TYPE_CHECKING:

        def _check_writable(self, path: Any = ()) -> None: ...


def _shallow(td: Any) -> Any:
    """Return ``td.clone(False)``; a plain loop, which a trace follows into each element."""
    if type(td) is not TensorDict:
        return td.clone(False)
    entries: dict[str, Any] = {}
    for key, value in td._entries.items():
        if isinstance(value, Tensor):
            entries[key] = value
        elif isinstance(value, TensorCollection):
            entries[key] = _shallow(value)
        else:
            entries[key] = value._carried()
    return td._from_entries(entries, td._batch_size, td._device, td._names)

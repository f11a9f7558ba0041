"""``LazyStackedTensorDict``: tensordicts kept apart that read as one stack.

Key names: :class:`LazyStackedTensorDict`, :func:`lazy_stack`, :func:`stacked_entry`,
:func:`unstack_entries`.

Symbols: ``*B`` batch dimensions of the stack, of which ``k`` (``stack_dim``) counts the elements;
an element has the batch size ``*B`` without dimension ``k``.

Invariant: the elements are the only state. Operations go to each element and give a lazy stack
again; what an entry is, is worked out when it is asked for, so elements may differ in keys, in
shapes and, where the batch size says -1, in batch dimensions.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import torch

from tdcompile.errors import TensorDictIndexError, TensorDictShapeError
from tdcompile.tensordict.base import TensorDictBase
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.dense import TensorDict
from tdcompile.tensordict.functional import deliver
from tdcompile.tensordict.lazy.elements import check_elements, joint_size
from tdcompile.tensordict.lazy.entries import Column, StackedEntries, read_column
from tdcompile.tensordict.lazy.indexing import LazyIndexingMixin
from tdcompile.tensordict.lazy.reading import LazyReadingMixin
from tdcompile.tensordict.lazy.shapes import LazyShapesMixin
from tdcompile.tensordict.lazy.writing import LazyWritingMixin
from tdcompile.tensordict.metadata import as_device, as_size
from tdcompile.tensordict.names import Names, check_names, spread_names
from tdcompile.tensordict.storage.flat import movable_layout_of
from tdcompile.tensordict.storage.memory import Memory, record_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["LazyStackedTensorDict", "lazy_stack", "stacked_entry", "unstack_entries"]


class LazyStackedTensorDict(
    LazyReadingMixin, LazyWritingMixin, LazyIndexingMixin, LazyShapesMixin, TensorDictBase
):
    """A stack of tensordicts that keeps each of them.

    ``stack[i]`` is the tensordict itself, ``stack["a"]`` a new tensor stacked from the elements;
    writing to the stack writes to them. ``keys()`` are the keys that all elements have; where
    shapes differ, ``get`` takes ``as_list``, ``as_padded_tensor`` and ``as_nested_tensor``.

    Args:
        *tensordicts: of one number of batch dimensions and one device.
        stack_dim: where the dimension that counts them goes, in ``[-n-1, n]``.
        hook_out: called on each entry that is read.
        hook_in: called on each entry that is written.
        batch_size: of an element, for a stack without elements; with elements, that of the stack,
            which is then checked.
        device: of a stack without elements.
        names: of a stack without elements.
        stack_dim_name: name of the stack dimension.
        strict_shape: refuse elements of several batch sizes; otherwise the batch size of the stack
            has -1 where they differ.

    Raises:
        TypeError: if an element is no tensordict.
        RuntimeError: if elements differ in their number of batch dimensions or in device, or in
            their batch size with `strict_shape`; or if `stack_dim` is out of range.

    Example:
        >>> tds = [TensorDict(a=torch.zeros(3)), TensorDict(a=torch.ones(4), b=torch.ones(2))]
        >>> stack = LazyStackedTensorDict(*tds)
        >>> stack.batch_size, list(stack.keys()), stack[1] is tds[1]
        (torch.Size([2]), ['a'], True)
        >>> (stack + 1).get("a", as_padded_tensor=True)
        tensor([[1., 1., 1., 0.],
                [2., 2., 2., 2.]])
    """

    __slots__ = (
        "__weakref__",
        "_dim_name",  # name of the stack dimension, or None
        "_last_op",
        "_lock_parents",
        "_locked",  # bool: the stack itself was locked
        "_memory",
        "_open_ops",
        "_template",  # TensorDict without entries that stands for an element, while there is none
        "hook_in",
        "hook_out",
        "stack_dim",  # int, not negative
        "tensordicts",  # list of the elements
    )

    _is_stack = True

    def __init__(
        self,
        *tensordicts: Any,
        stack_dim: int = 0,
        hook_out: Callable[[Any], Any] | None = None,
        hook_in: Callable[[Any], Any] | None = None,
        batch_size: Sequence[int] | None = None,
        device: Any = None,
        names: Sequence[str | None] | None = None,
        stack_dim_name: str | None = None,
        strict_shape: bool = False,
    ) -> None:
        size = as_size(batch_size)
        template = None
        if tensordicts:
            check_elements(tensordicts, strict_shape)
            batch_dims = tensordicts[0].batch_dims
        else:
            template = TensorDict._from_entries(
                {}, size, None if device is None else as_device(device)
            )
            batch_dims = len(size)
        if not -batch_dims - 1 <= stack_dim <= batch_dims:
            raise TensorDictIndexError(
                f"expected a stack dimension in [{-batch_dims - 1}, {batch_dims}] for tensordicts "
                f"with {batch_dims} batch dimensions; found {stack_dim}"
            )
        self.tensordicts = list(tensordicts)
        self.stack_dim = stack_dim + batch_dims + 1 if stack_dim < 0 else stack_dim
        self.hook_out = hook_out
        self.hook_in = hook_in
        self._dim_name = stack_dim_name
        self._template = template
        self._locked = False
        if tensordicts and batch_size is not None and size != self._batch_size:
            raise TensorDictShapeError(
                f"expected the batch size {tuple(self._batch_size)} that the tensordicts give; "
                f"found batch_size={tuple(size)}"
            )
        if not tensordicts and names is not None:
            spread_names(self, check_names(names, batch_dims + 1))

    # -- the state that every kind has -----------------------------------------------------------

    @classmethod
    def _from_entries(
        cls,
        entries: dict[str, Any],
        batch_size: torch.Size,
        device: torch.device | None = None,
        names: Names = None,
    ) -> Any:
        """Make a dense tensordict: what a loop over the stacked entries builds."""
        return TensorDict._from_entries(entries, batch_size, device, names)

    def _like(self, tensordicts: Any, stack_dim: int | None = None, template: Any = None) -> Self:
        """Make a stack of other tensordicts, without any check; names and hooks are ours.

        Args:
            tensordicts: the elements.
            stack_dim: where they are counted; ours by default.
            template: a tensordict without entries of the batch size of an element, for a stack
                that has none; ours by default.
        """
        result = object.__new__(type(self))
        result.tensordicts = list(tensordicts)
        result.stack_dim = self.stack_dim if stack_dim is None else stack_dim
        result.hook_out = self.hook_out
        result.hook_in = self.hook_in
        result._dim_name = self._dim_name
        result._template = None
        result._locked = False
        if not result.tensordicts:
            result._template = self._first().empty() if template is None else template
        return result

    def _first(self) -> Any:
        """Return the first element, or what stands for one."""
        return self.tensordicts[0] if self.tensordicts else self._template

    @property
    def _entries(self) -> Any:  # type: ignore[override]
        return StackedEntries(self)

    @property
    def _batch_size(self) -> torch.Size:  # type: ignore[override]
        size = joint_size(self.tensordicts) if self.tensordicts else self._template._batch_size
        place = self.stack_dim
        return torch.Size((*size[:place], len(self.tensordicts), *size[place:]))

    @property
    def _device(self) -> torch.device | None:
        device: torch.device | None = self._first()._device
        for element in self.tensordicts:
            if element._device != device:
                return None
        return device

    @_device.setter
    def _device(self, device: torch.device | None) -> None:
        for element in self.tensordicts or [self._template]:
            element._device = device

    @property
    def _names(self) -> Names:
        first = self._first()
        names = first._names
        if names is None:
            if self._dim_name is None:
                return None
            names = (None,) * len(first._batch_size)
        return (*names[: self.stack_dim], self._dim_name, *names[self.stack_dim :])

    @_names.setter
    def _names(self, names: Names) -> None:
        self._spread_names(names)

    def _spread_names(self, names: Names) -> None:
        """Give the elements and what is nested in them their part of the names."""
        place = self.stack_dim
        rest = None if names is None else (*names[:place], *names[place + 1 :])
        if rest is not None and all(name is None for name in rest):
            rest = None
        self._dim_name = None if names is None else names[place]
        for element in self.tensordicts or [self._template]:
            spread_names(element, rest)

    @property
    def _is_locked(self) -> bool:
        if self._locked:
            return True
        elements = self.tensordicts
        return len(elements) > 0 and all(element._is_locked for element in elements)

    @_is_locked.setter
    def _is_locked(self, value: bool) -> None:
        self._locked = value

    # -- making one ------------------------------------------------------------------------------

    @classmethod
    def from_dict(
        cls,
        input_dict: Any,
        *,
        auto_batch_size: bool | None = None,
        batch_size: Any = None,
        device: Any = None,
        batch_dims: int | None = None,
        names: Any = None,
        stack_dim_name: str | None = None,
        stack_dim: int = 0,
    ) -> Self:
        """Return a lazy stack of a tensordict for each of several dictionaries.

        Args:
            input_dict: a list of mappings; or a mapping with the keys ``"0"``, ``"1"`` and so on.
            auto_batch_size: see ``TensorDict.from_dict``; so are `batch_size`, `device` and
                `batch_dims`, all of them for an element.
            batch_size: the batch size of an element.
            device: of every leaf.
            batch_dims: at most so many batch dimensions of an element.
            names: of the dimensions of the stack.
            stack_dim_name: name of the stack dimension, without `names`.
            stack_dim: the stack dimension.

        Raises:
            KeyError: if a mapping has other keys.

        Example:
            >>> items = [{"a": torch.zeros(3)}, {"a": torch.zeros(4)}]
            >>> LazyStackedTensorDict.from_dict(items, auto_batch_size=True).batch_size
            torch.Size([2, -1])
        """
        if isinstance(input_dict, Mapping):
            input_dict = [input_dict[str(i)] for i in range(len(input_dict))]
        elements = [
            TensorDict.from_dict(
                item,
                auto_batch_size=auto_batch_size,
                batch_size=batch_size,
                device=device,
                batch_dims=batch_dims,
            )
            for item in input_dict
        ]
        result = cls(*elements, stack_dim=stack_dim, stack_dim_name=stack_dim_name)
        if names is not None:
            result.names = names
        return result

    @classmethod
    def from_list(cls, input: Any, *, lazy: bool | None = None, **kwargs: Any) -> Self:
        """Return a lazy stack of a tensordict for each dictionary; see :meth:`from_dict`."""
        return cls.from_dict(list(input), **kwargs)

    # -- copies ----------------------------------------------------------------------------------

    def __copy__(self) -> Self:
        return self.clone(False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy everything; what is shared between elements stays shared."""
        result = self._like([], template=copy.deepcopy(self._template, memo) or self._first())
        memo[id(self)] = result
        result.tensordicts = [copy.deepcopy(element, memo) for element in self.tensordicts]
        if result.tensordicts:
            result._template = None
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        layout = movable_layout_of(self)
        if layout is not None:
            from tdcompile.tensordict.storage.consolidated import reduce

            return reduce(self, layout)
        state = (self.stack_dim, self.hook_out, self.hook_in, self._dim_name, self._template)
        return _unpickle, (type(self), self.tensordicts, *state, self._locked, record_of(self))


def _unpickle(
    cls: Any,
    tensordicts: list[Any],
    stack_dim: int,
    hook_out: Any,
    hook_in: Any,
    dim_name: str | None,
    template: Any,
    is_locked: bool,
    record: Any = None,
) -> Any:
    result = object.__new__(cls)
    result.tensordicts = tensordicts
    result.stack_dim = stack_dim
    result.hook_out = hook_out
    result.hook_in = hook_in
    result._dim_name = dim_name
    result._template = template
    result._locked = False
    if record is not None:
        result._memory = Memory(*record)
    if is_locked:
        result.lock_()
    return result


def lazy_stack(
    input: Sequence[Any],
    dim: int = 0,
    *,
    out: Any = None,
    stack_dim_name: str | None = None,
    strict_shape: bool = False,
    **kwargs: Any,
) -> Any:
    """Stack tensordicts lazily; see :class:`LazyStackedTensorDict`.

    Args:
        input: tensordicts, which the result keeps as they are; or tensors.
        dim: the new batch dimension.
        out: a tensordict that is updated in place with the result, and returned.
        stack_dim_name: name of the new dimension.
        strict_shape: refuse tensordicts of several batch sizes.
        **kwargs: for tensors of several shapes, the keywords of :meth:`LazyStackedTensorDict.get`.

    Raises:
        RuntimeError: if there is nothing to stack, and as :class:`LazyStackedTensorDict`.

    Example:
        >>> lazy_stack([TensorDict(a=torch.zeros(3)), TensorDict(b=torch.zeros(3))]).batch_size
        torch.Size([2])
    """
    items = list(input)
    if not items:
        raise RuntimeError("expected at least one tensordict to stack; found none")
    if not isinstance(items[0], TensorCollection):
        return read_column(Column(dim, items), **kwargs)
    cls = type(items[0]) if isinstance(items[0], LazyStackedTensorDict) else LazyStackedTensorDict
    result = cls(*items, stack_dim=dim, stack_dim_name=stack_dim_name, strict_shape=strict_shape)
    return result if out is None else deliver(result, out)


def stacked_entry(lazy: LazyStackedTensorDict, path: tuple[str, ...]) -> Any:
    """Return the entry at a key path, stacked anew; a nested tensordict as a lazy stack."""
    return lazy._require(path)


def unstack_entries(
    entries: dict[str, Any],
    stack_dim: int,
    length: int,
    batch_size: torch.Size,
    device: torch.device | None = None,
    names: Names = None,
) -> list[TensorDict]:
    """Cut entries along a dimension into dense tensordicts made of views.

    Args:
        entries: leaves ``(*B, *F)``, nested tensordicts, non-tensor values.
        stack_dim: the dimension to cut.
        length: the size of that dimension.
        batch_size: ``(*B,)``.
        device: device of the results, or None.
        names: names of the batch dimensions, or None.

    Returns:
        `length` tensordicts with the batch size ``(*B,)`` without `stack_dim`.
    """
    size = torch.Size((*batch_size[:stack_dim], length, *batch_size[stack_dim + 1 :]))
    return TensorDict._from_entries(entries, size, device, names)._pieces(None, stack_dim)

"""Tensordicts made of plain Python and numpy data, and turned back into it.

Key names: :class:`ConversionMixin` (``from_tuple``, ``from_namedtuple``, ``from_list``,
``from_pytree``, ``from_schema``, ``from_dict_instance``; ``to_namedtuple``, ``to_pytree``,
``numpy``, ``as_tensor``).

Symbols: ``*B`` batch dimensions, ``*F`` trailing dimensions of a leaf; a leaf is ``(*B, *F)``.

Invariant: tensors are stored and given back as they are; numpy arrays share their memory.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.keys import unravel_key_to_tuple
from tdcompile.tensordict.metadata import as_size
from tdcompile.tensordict.nontensor.data import NonTensorData, NonTensorDataBase
from tdcompile.tensordict.state import TensorDictState

if TYPE_CHECKING:
    from collections.abc import Sequence

# What a tensordict made of a pytree remembers of it: the type of each level, and keys that are no
# strings (or look like these two), each beside its value under a string of our own.
PYTREE_TYPE = "_pytree_type"
_OTHER_KEY = "<NON_NESTED>"
_LATER_STORAGES = ("h5", "zarr", "redis", "dragonfly")


class ConversionMixin(TensorDictState):
    """Conversions from and to tuples, lists, pytrees and numpy."""

    __slots__ = ()

    if TYPE_CHECKING:
        from_dict: Any
        from_any: Any
        maybe_dense_stack: Any
        lazy_stack: Any
        stack: Any
        clone: Any
        lock_: Any

        def __init__(self, source: Any = None, *args: Any, **kwargs: Any) -> None: ...

        def _get_path(self, path: tuple[str, ...], default: Any) -> Any: ...

    # -- from plain data -----------------------------------------------------------------------

    @classmethod
    def from_tuple(
        cls,
        obj: Sequence[Any],
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: Any = None,
        batch_size: Any = None,
    ) -> Self:
        """Return a tensordict with the items of a tuple under ``"0"``, ``"1"``, ...

        Args:
            obj: the tuple; its items are converted as by ``from_any``.
            auto_batch_size: take the longest leading shape that all leaves share.
            batch_dims: with `auto_batch_size`, at most so many batch dimensions.
            device: every leaf is moved there.
            batch_size: the batch size ``(*B,)``, of nested tensordicts too.

        Raises:
            TypeError: if both `batch_size` and `auto_batch_size` are given.

        Example:
            >>> td = TensorDict.from_tuple((torch.zeros(3), (torch.ones(3),)), batch_size=[3])
            >>> td["1", "0"].shape
            torch.Size([3])
        """
        items = {str(index): item for index, item in enumerate(obj)}
        result: Self = _from_items(cls, items, auto_batch_size, batch_dims, device, batch_size)
        return result

    @classmethod
    def from_namedtuple(
        cls,
        named_tuple: Any,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: Any = None,
        batch_size: Any = None,
    ) -> Self:
        """Return a tensordict with the fields of a named tuple or of a result such as ``x.max(0)``.

        The arguments are those of :meth:`from_tuple`; a mapping is taken too.

        Raises:
            TypeError: if `named_tuple` has no field names, or both `batch_size` and
                `auto_batch_size` are given.

        Example:
            >>> sorted(TensorDict.from_namedtuple(torch.tensor([2, 0, 1]).max(0)).keys())
            ['indices', 'values']
        """
        items = dict(named_tuple) if isinstance(named_tuple, Mapping) else _fields(named_tuple)
        if items is None:
            raise TypeError(
                "expected a named tuple, found "
                f"{type(named_tuple).__name__}: use from_tuple or from_any"
            )
        result: Self = _from_items(cls, items, auto_batch_size, batch_dims, device, batch_size)
        return result

    @classmethod
    def from_list(
        cls,
        input: Sequence[Any],
        *,
        auto_batch_size: bool | None = None,
        batch_size: Any = None,
        device: Any = None,
        batch_dims: int | None = None,
        names: Any = None,
        lazy: bool | None = None,
    ) -> Any:
        """Return a stack of the dictionaries and tensordicts of a list.

        Args:
            input: dictionaries, which are converted as by ``from_dict``, and tensordicts, which are
                stacked as they are.
            auto_batch_size: take the longest leading shape that all leaves of an element share.
            batch_size: of the result, ``(len(input), *B)``.
            device: every leaf of a dictionary is moved there.
            batch_dims: of the result, at most so many batch dimensions.
            names: a name or ``None`` for each batch dimension of the result.
            lazy: stack lazily, or densely (``False``); by default densely where shapes allow.

        Raises:
            ValueError: if `batch_size` does not start with the number of elements.
            TypeError: if an element is neither a dictionary nor a tensordict.

        Example:
            >>> TensorDict.from_list([{"a": 1}, {"a": 2}])["a"]
            tensor([1, 2])
        """
        kwargs: dict[str, Any] = {"auto_batch_size": auto_batch_size, "device": device}
        items = list(input)
        if batch_size is not None:
            size = as_size(batch_size)
            if len(size) == 0 or size[0] != len(items):
                raise ValueError(
                    f"expected a batch size that starts with {len(items)}, the length of the list; "
                    f"found {list(size)}"
                )
            kwargs["batch_size"] = size[1:]
        if batch_dims is not None:
            kwargs["batch_dims"] = batch_dims - 1
        elements: list[Any] = []
        for item in items:
            if isinstance(item, TensorCollection):
                elements.append(item)
            elif isinstance(item, Mapping):
                elements.append(cls.from_dict(item, **kwargs))
            else:
                raise TypeError(
                    f"expected dictionaries and tensordicts in the list, found a "
                    f"{type(item).__name__}"
                )
        if lazy is None:
            result = cls.maybe_dense_stack(elements, 0)
        else:
            result = (cls.lazy_stack if lazy else cls.stack)(elements, 0)
        if names is not None and len(names) == result.batch_dims:
            result.names = names
        return result

    @classmethod
    def from_schema(
        cls,
        schema: Mapping[Any, tuple[Sequence[int], torch.dtype]],
        *,
        batch_size: Any = None,
        storage: str | None = None,
        device: Any = None,
        **kwargs: Any,
    ) -> Self:
        """Return a tensordict of zeros, made from the shape and dtype of each entry.

        Args:
            schema: maps a key to the trailing dimensions ``(*F,)`` and the dtype of a leaf.
            batch_size: ``(*B,)``, which each leaf gets in front.
            storage: ``None`` for usual tensors, ``"memmap"`` for files (see ``memmap_like``), or
                ``"shared"`` for shared memory.
            device: where the leaves are.
            **kwargs: arguments of ``memmap_like``, such as ``prefix``.

        Raises:
            ValueError: if `storage` is none of these.

        Example:
            >>> td = TensorDict.from_schema({"a": ([2], torch.int8)}, batch_size=[3])
            >>> td["a"].shape, td["a"].dtype
            (torch.Size([3, 2]), torch.int8)
        """
        if storage not in (None, "memmap", "shared"):
            told = "is not supported yet" if storage in _LATER_STORAGES else "is unknown"
            raise ValueError(
                f"expected storage to be None, 'memmap' or 'shared'; found {storage!r}, it {told}"
            )
        if kwargs and storage != "memmap":
            raise TypeError(
                f"expected no further arguments with storage={storage!r}, found {sorted(kwargs)}"
            )
        size = as_size(batch_size)
        leaves: dict[Any, Any] = {}
        for key, (shape, dtype) in schema.items():
            full = (*size, *shape)
            # Of a buffer in files only shape and dtype are read: it need not fit into memory.
            blank = torch.zeros((), dtype=dtype).expand(full) if storage == "memmap" else None
            leaves[key] = torch.zeros(full, dtype=dtype, device=device) if blank is None else blank
        result: Any = cls(leaves, size, device=None if storage == "memmap" else device)
        if storage == "memmap":
            return result.memmap_like(**kwargs)  # type: ignore[no-any-return]
        return result.share_memory_() if storage == "shared" else result  # type: ignore[no-any-return]

    def from_dict_instance(
        self,
        input_dict: Mapping[Any, Any],
        *,
        auto_batch_size: bool | None = None,
        batch_size: Any = None,
        device: Any = None,
        batch_dims: int | None = None,
        names: Any = None,
    ) -> Self:
        """Return a tensordict of a dictionary, with the types of nested entries taken from here.

        Where this tensordict has a nested tensordict or tensorclass under a key, the dictionary
        under the same key becomes one of that class. Its values are not used.

        Args:
            input_dict: the entries; other arguments as for ``from_dict``.
            auto_batch_size: take the longest leading shape that all leaves share.
            batch_size: the batch size ``(*B,)``.
            device: every leaf is moved there.
            batch_dims: at most so many batch dimensions.
            names: a name or ``None`` for each batch dimension.
        """
        source: dict[Any, Any] = {}
        for key, value in input_dict.items():
            like = self._get_path(unravel_key_to_tuple(key), None)
            if isinstance(value, Mapping) and isinstance(like, TensorCollection):
                value = like.from_dict_instance(value, device=device)  # type: ignore[attr-defined]
            source[key] = value
        kind = type(self._from_entries({}, torch.Size(())))
        return kind.from_dict(  # type: ignore[no-any-return]
            source,
            auto_batch_size=auto_batch_size,
            batch_size=batch_size,
            device=device,
            batch_dims=batch_dims,
            names=names,
        )

    @classmethod
    def from_pytree(
        cls,
        pytree: Any,
        *,
        batch_size: Any = None,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
    ) -> Any:
        """Return a tensordict of a pytree, which :meth:`to_pytree` turns back into it.

        Each list, tuple, named tuple and dictionary becomes a nested tensordict that remembers its
        type; numbers and numpy arrays become tensors. A tensor or a tensordict comes back itself.

        Args:
            pytree: nested containers of tensors, tensordicts, numbers and numpy arrays; a
                dictionary may have any keys.
            batch_size: the batch size ``(*B,)``, of nested tensordicts too.
            auto_batch_size: take the longest leading shape that all leaves share.
            batch_dims: with `auto_batch_size`, at most so many batch dimensions.

        Raises:
            NotImplementedError: if there is a leaf or a container of another type.

        Example:
            >>> td = TensorDict.from_pytree({"a": [torch.ones(1), torch.zeros(1)]})
            >>> td["a", "1"], td.to_pytree()
            (tensor([0.]), {'a': [tensor([1.]), tensor([0.])]})
        """
        source = _pytree_entries(pytree, ())
        if not isinstance(source, dict):
            return source
        result: Any = cls(source, as_size(batch_size))
        if auto_batch_size and batch_size is None:
            result.auto_batch_size_(batch_dims)
        return result

    # -- to plain data -------------------------------------------------------------------------

    def to_pytree(self) -> Any:
        """Return the pytree that :meth:`from_pytree` made this of; itself if it was not.

        Example:
            >>> TensorDict.from_pytree((1, {3: torch.ones(1)})).to_pytree()
            (tensor(1), {3: tensor([1.])})
        """
        kind = self._entries.get(PYTREE_TYPE)
        if not isinstance(kind, NonTensorData) or not isinstance(kind.data, type):
            return self
        items: dict[Any, Any] = {}
        for name, value in self._entries.items():
            if name == PYTREE_TYPE:
                continue
            if name.startswith(_OTHER_KEY):
                items[value._entries["key"].data] = _to_pytree(value._entries["value"])
            else:
                items[name] = _to_pytree(value)
        return _rebuild(kind.data, items)

    def to_namedtuple(self, dest_cls: Any = None) -> Any:
        """Return a named tuple with the same tensors; nested tensordicts become named tuples too.

        Args:
            dest_cls: class of the result, and of each nested one whose keys are its fields; the
                others are of a class ``GenericDict`` made of the keys. Entries that are ``None``
                are left out.

        Raises:
            ValueError: if a key is no name for a field.
            TypeError: if the keys are not the fields of `dest_cls`.

        Example:
            >>> TensorDict({"a": torch.ones(1), "n": {"s": "x"}}).to_namedtuple()
            GenericDict(a=tensor([1.]), n=GenericDict(s='x'))
        """
        items = _named_items(self, dest_cls)
        if dest_cls is None:
            dest_cls = generic_class(tuple(items))
        return dest_cls(**items)

    def numpy(self) -> dict[str, Any]:
        """Return nested dictionaries of numpy arrays, which share memory with the tensors.

        Non-tensor entries come as bare values, those that are ``None`` are left out.

        Raises:
            RuntimeError: if a tensor requires gradients.
            TypeError: if a tensor is not on the CPU, or numpy has no such dtype.

        Example:
            >>> TensorDict({"n": {"x": torch.zeros(2), "s": "text"}}).numpy()
            {'n': {'x': array([0., 0.], dtype=float32), 's': 'text'}}
        """
        result: dict[str, Any] = {}
        for name, value in self._entries.items():
            if isinstance(value, (Tensor, ConversionMixin)):
                result[name] = value.numpy()
            elif (data := bare(value)) is not None:
                result[name] = data
        return result

    def as_tensor(self) -> Self:
        """Return a shallow copy in which leaves that stand for a tensor are replaced by it.

        Tensors are kept as they are. The result is locked if this tensordict is.
        """
        result = self.clone(False)
        return result.lock_() if self._is_locked else result  # type: ignore[no-any-return]


def bare(value: Any) -> Any:
    """Return what a non-tensor entry stands for: its value, or the list of a stack of values."""
    return value.data if isinstance(value, NonTensorDataBase) else value.tolist()


def generic_class(names: tuple[str, ...]) -> Any:
    """Return a named tuple class ``GenericDict`` with these fields."""
    return collections.namedtuple("GenericDict", names)


def _named_items(td: Any, dest_cls: Any) -> dict[str, Any]:
    items: dict[str, Any] = {}
    for name, value in td._entries.items():
        if isinstance(value, ConversionMixin):
            wanted = getattr(dest_cls, "_fields", None)
            fits = wanted is not None and set(wanted) == set(value._entries)
            items[name] = value.to_namedtuple(dest_cls if fits else None)
        elif isinstance(value, (Tensor, TensorCollection)):
            items[name] = value
        elif (data := bare(value)) is not None:
            items[name] = data
    return items


def _fields(value: Any) -> dict[str, Any] | None:
    """Return the items of a named tuple, or of one of torch's return types, by name."""
    names = getattr(value, "_fields", None)
    if names is None and type(value).__module__ == "torch.return_types":
        names = type(value).__match_args__
    if names is None or not isinstance(value, tuple):
        return None
    return dict(zip(names, value, strict=True))


def _from_items(
    cls: Any,
    items: dict[Any, Any],
    auto_batch_size: bool,
    batch_dims: int | None,
    device: Any,
    batch_size: Any,
) -> Any:
    if auto_batch_size and batch_size is not None:
        raise TypeError(
            f"expected either batch_size or auto_batch_size, found both: batch_size={batch_size!r}"
        )
    return cls.from_any(
        items,
        auto_batch_size=auto_batch_size,
        batch_dims=batch_dims if auto_batch_size else None,
        device=device,
        batch_size=batch_size,
    )


def _pytree_entries(value: Any, path: tuple[Any, ...]) -> Any:
    """Return a leaf as a tensor, or the entries (in a plain dictionary) of a container."""
    if isinstance(value, (Tensor, TensorCollection)):
        return value
    if isinstance(value, Mapping):
        items = dict(value)
    elif isinstance(value, (list, tuple)):
        items = _fields(value) or {str(i): item for i, item in enumerate(value)}
    elif isinstance(value, (int, float)) or type(value).__name__ == "ndarray":
        return torch.as_tensor(value)
    else:
        raise NotImplementedError(
            "expected tensors, tensordicts, numbers or numpy arrays in lists, tuples and "
            f"dictionaries, found {type(value).__name__} at {list(path)}"
        )
    entries: dict[str, Any] = {}
    for key, item in items.items():
        entry = _pytree_entries(item, (*path, key))
        if isinstance(key, str) and key != PYTREE_TYPE and not key.startswith(_OTHER_KEY):
            entries[key] = entry
        else:
            pair = {"key": NonTensorData(key), "value": entry}
            entries[f"{_OTHER_KEY}{len(entries)}"] = pair
    entries[PYTREE_TYPE] = NonTensorData(type(value))
    return entries


def _to_pytree(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value
    return value.to_pytree() if isinstance(value, ConversionMixin) else value


def _rebuild(kind: Any, items: dict[Any, Any]) -> Any:
    """Make a container of class `kind`."""
    if issubclass(kind, collections.defaultdict):
        return kind(None, items)
    if issubclass(kind, Mapping):
        return items if kind is dict else kind(items)
    values = list(items.values())
    return kind(*values) if hasattr(kind, "_fields") else kind(values)

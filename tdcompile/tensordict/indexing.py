"""Indexing: everything that torch takes in square brackets, over the batch dimensions.

Key names: :class:`IndexingMixin` (``td[...]``, ``td[...] = value``, ``get_at``, ``set_at_``,
``update_at_``, ``masked_select``, ``gather``), :func:`parse_index`.

Symbols: ``*B`` batch dimensions, ``*F`` trailing dimensions of a leaf; a leaf is ``(*B, *F)``. An
index that turns ``(*B,)`` into ``(*I,)`` turns the leaf into ``(*I, *F)``.

Invariants: an index is parsed once, into a form that means the same for every leaf: an ellipsis
stands for batch dimensions only, sequences are tensors, masks are positions (so that a size that
depends on data is one size for the whole tensordict). A write checks everything before it writes
anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor

from tdcompile.errors import KeyPathError, TensorDictIndexError, TensorDictShapeError
from tdcompile.tensordict.batchwise import BatchwiseMixin, become, check_unlocked
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.index_writes import IndexWrite, as_fill, as_tensor, broadcast_value
from tdcompile.tensordict.keys import format_entry, unravel_key_to_tuple
from tdcompile.tensordict.names import carry_names
from tdcompile.tensordict.nontensor.data import LeafKind, NonTensorEntry
from tdcompile.tensordict.nontensor.unbatched import UnbatchedTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tdcompile.tensordict.names import Origin

_FULL = slice(None)
_MASK_DTYPES = (torch.bool, torch.uint8)
_Path = tuple[str, ...]

_Advanced = tuple[torch.Size | None, int | None]
"""Shape of an index tensor (``None``: positions of a mask), and the batch dimension it indexes."""
_BOOLEAN: _Advanced = (None, -1)
"""``True``, ``False`` and 0-d masks: they make a dimension that came from nowhere."""


class ParsedIndex(NamedTuple):
    """An index over batch dimensions in the form that is applied to leaves."""

    items: Any
    """What goes in the square brackets of each leaf."""
    origin: Origin
    """For each dimension of the result, the batch dimension that it came from, or ``None``."""
    is_whole: bool
    """Whether it selects the whole batch as it is, like ``td[:]``."""


def parse_index(index: Any, batch_size: torch.Size, keep_masks: bool = False) -> ParsedIndex:
    """Check an index against a batch size and bring it into the form for leaves.

    Args:
        index: int, slice, None, Ellipsis, bool, tensor, list, range, numpy array, or a tuple.
        batch_size: ``(*B,)``.
        keep_masks: leave boolean masks as they are, instead of making them positions.

    Raises:
        TensorDictIndexError: if there are too many indices, an integer is out of range, a mask has
            another shape than the dimensions that it stands for, or an item cannot be an index.
    """
    if type(index) is int and len(batch_size) > 0:
        # The most frequent index, without the detour.
        _check_position(index, 0, index, batch_size)
        return ParsedIndex(index, tuple(range(1, len(batch_size))), False)
    given = index if isinstance(index, tuple) else (index,)
    items = [_as_item(item, index) for item in given]
    items = _without_ellipsis(items, index, batch_size)
    out: list[Any] = []
    origin: list[int | None] = []
    advanced: list[_Advanced] = []  # items that torch broadcasts against each other
    block_start = 0  # where their dimensions go in the result
    block_end = -1  # how many result dimensions there were before the last of them
    is_split = False
    is_whole = True
    dim = 0
    for item in items:
        if isinstance(item, slice):
            origin.append(dim)
            out.append(item)
            dim += 1
            is_whole = is_whole and item == _FULL
            continue
        is_whole = False
        if item is None:
            origin.append(None)
            out.append(item)
            continue
        if not isinstance(item, (bool, Tensor)):
            _check_position(item, dim, index, batch_size)
            out.append(item)
            dim += 1
            continue
        if isinstance(item, Tensor) and item.dim() == 0 and item.dtype != torch.bool:
            # To torch a 0-d tensor of integers is an integer, a 0-d mask is not.
            out.append(item)
            dim += 1
            continue
        if not advanced:
            block_start = len(origin)
        elif block_end != len(origin):
            is_split = True
        block_end = len(origin)
        if isinstance(item, bool) or item.dim() == 0:
            advanced.append(_BOOLEAN)
            out.append(item)
        elif item.dtype == torch.bool:
            _check_mask(item, dim, index, batch_size)
            advanced.append((None, dim if item.dim() == 1 else None))
            dim += item.dim()
            if keep_masks:
                out.append(item)
            else:
                out.extend(item.nonzero().unbind(1))
        else:
            advanced.append((item.shape, dim))
            out.append(item)
            dim += 1
    if advanced:
        place = 0 if is_split else block_start
        origin[place:place] = _block_origin(advanced)
    origin.extend(range(dim, len(batch_size)))
    # A single item is handed over bare: torch unpacks tuples more slowly.
    bare = out[0] if len(out) == 1 and not isinstance(out[0], bool) else tuple(out)
    return ParsedIndex(bare, tuple(origin), is_whole)


def _block_origin(advanced: list[_Advanced]) -> list[int | None]:
    """Tell which batch dimension each dimension came from that broadcast indices make.

    A dimension belongs to an index if no other index varies along it, and that index along no other
    dimension; ``td[rows[:, None], columns]`` keeps both names.
    """
    given = [item for item in advanced if item[1] != -1]
    if len(given) == 1 and (given[0][0] is None or len(given[0][0]) == 1):
        return [given[0][1]]
    count = max([1, *[1 if shape is None else len(shape) for shape, _ in given]])
    varying: list[list[int]] = [[] for _ in range(count)]
    for place, (shape, _) in enumerate(given):
        if shape is None:
            varying[-1].append(place)
            continue
        for offset, size in enumerate(shape):
            if size != 1:
                varying[count - len(shape) + offset].append(place)
    result: list[int | None] = []
    for places in varying:
        alone = len(places) == 1 and sum(places[0] in others for others in varying) == 1
        result.append(given[places[0]][1] if alone else None)
    return result


def _as_item(item: Any, index: Any) -> Any:
    """Return an item of an index as an int, a slice, None, Ellipsis, a bool or a tensor."""
    if item is None or item is Ellipsis or isinstance(item, (bool, int, slice)):
        return item
    if isinstance(item, Tensor):
        if item.dtype == torch.uint8:
            return item.bool()
        if item.dtype.is_floating_point or item.dtype.is_complex:
            raise _bad_item(item, f"a tensor of {item.dtype}", index)
        return item
    if isinstance(item, torch.SymInt):
        return item
    if isinstance(item, (list, tuple, range)):
        values = list(item)
        tensor = torch.tensor(values) if values else torch.zeros(0, dtype=torch.long)
        return _as_item(tensor, index)
    kind = type(item)
    if kind.__module__ == "numpy":
        if kind.__name__ == "ndarray":
            return _as_item(torch.as_tensor(item), index)
        if kind.__name__ not in ("bool", "bool_") and hasattr(item, "__index__"):
            return item.__index__()
    raise _bad_item(item, f"{item!r} of type {kind.__name__}", index)


def _bad_item(item: Any, found: str, index: Any) -> TensorDictIndexError:
    return TensorDictIndexError(
        "expected an index of integers, slices, None, ..., booleans, or tensors, lists, ranges and "
        f"arrays of integers or booleans; found {found}"
        + ("" if item is index else f" in {index!r}")
    )


def _without_ellipsis(items: list[Any], index: Any, batch_size: torch.Size) -> list[Any]:
    """Replace an ellipsis by slices, and check the number of indexed dimensions."""
    used = 0
    ellipsis_at = None
    for place, item in enumerate(items):
        if item is Ellipsis:
            if ellipsis_at is not None:
                raise TensorDictIndexError(f"expected one ellipsis at most; found {index!r}")
            ellipsis_at = place
        elif isinstance(item, Tensor):
            used += item.dim() if item.dtype == torch.bool else 1
        elif item is not None and not isinstance(item, bool):
            used += 1
    missing = len(batch_size) - used
    if missing < 0:
        raise TensorDictIndexError(
            f"expected an index for at most {len(batch_size)} dimensions, batch size "
            f"{tuple(batch_size)}; found one for {used}: {index!r}. Trailing dimensions belong to "
            'the leaves: index these (td["key"][...])'
        )
    if ellipsis_at is None:
        return items
    return [*items[:ellipsis_at], *([_FULL] * missing), *items[ellipsis_at + 1 :]]


def _check_position(item: Any, dim: int, index: Any, batch_size: torch.Size) -> None:
    # A compiled program leaves it to torch: a size that depends on data cannot be compared there.
    if torch.compiler.is_compiling():
        return
    size = batch_size[dim]
    if item < -size or item >= size:
        raise TensorDictIndexError(
            f"expected an index from {-size} to {size - 1} for dimension {dim} of batch size "
            f"{tuple(batch_size)}; found {item}" + ("" if item is index else f" in {index!r}")
        )


def _check_mask(mask: Tensor, dim: int, index: Any, batch_size: torch.Size) -> None:
    expected = batch_size[dim : dim + mask.dim()]
    if mask.shape != expected:
        raise TensorDictIndexError(
            f"expected a mask of shape {tuple(expected)} from dimension {dim} of batch size "
            f"{tuple(batch_size)} on; found {tuple(mask.shape)}"
        )


def result_size(items: Any, batch_size: torch.Size) -> torch.Size:
    """Return the size of an indexed batch, by indexing one element that is expanded to it."""
    if type(items) is int:
        return batch_size[1:]
    device = None
    for item in items if isinstance(items, tuple) else (items,):
        if isinstance(item, Tensor):
            device = item.device
            break
    return torch.zeros((), device=device).expand(batch_size)[items].shape


class IndexingMixin(BatchwiseMixin):
    """Reading and writing parts of the batch."""

    __slots__ = ()

    if TYPE_CHECKING:
        _dense: Any

        def _require(self, path: _Path) -> Any: ...

        def _has_path(self, path: _Path) -> bool: ...

        def _deepest(self, path: _Path) -> tuple[Any, int]: ...

    # -- reading -----------------------------------------------------------------------------

    def _index(self, index: Any) -> Self:
        """Return ``td[index]``: views for integers, slices and None, copies for anything else.

        Names follow their dimensions. The result is not locked. An index that selects everything
        as it is (``td[:]``, ``td[...]``) gives the same tensordict.
        """
        items, origin, is_whole = parse_index(index, self._batch_size)
        if is_whole:
            return self
        return self._index_parsed(items, origin)

    def _index_parsed(self, items: Any, origin: Origin) -> Self:
        batch_dims = len(self._batch_size)
        # The size of the result is read off the first leaf; only without one it costs an operation.
        for key, value in self._entries.items():
            if isinstance(value, Tensor) and type(value) is not UnbatchedTensor:
                first = value[items]
                sizes = first.shape[: first.dim() - value.dim() + batch_dims]
                return self._index_leaves(items, sizes, origin, batch_dims, key, first)
        sizes = result_size(items, self._batch_size)
        return self._index_leaves(items, sizes, origin, batch_dims, None, None)

    def _index_leaves(
        self,
        items: Any,
        sizes: torch.Size,
        origin: Origin,
        batch_dims: int,
        first_key: str | None,
        first: Tensor | None,
    ) -> Self:
        entries: dict[str, Any] = {}
        for key, value in self._entries.items():
            if key == first_key:
                entries[key] = first
            elif isinstance(value, Tensor) and type(value) is not UnbatchedTensor:
                entries[key] = value[items]
            elif isinstance(value, LeafKind):
                entries[key] = value._indexed(items, sizes + value._batch_size[batch_dims:])
            else:
                entries[key] = value._index_leaves(items, sizes, origin, batch_dims, None, None)
        names = self._names
        return self._from_entries(
            entries,
            sizes + self._batch_size[batch_dims:],
            self._device,
            None if names is None else carry_names(names, origin, batch_dims),
        )

    def __getitems__(self, index: Any) -> Self:
        """Return ``td[index]``; data loaders of torch call it with a list of positions."""
        return self._index(index)

    def get_at(self, key: Any, index: Any, default: Any = None) -> Any:
        """Return the entry at `key`, indexed; `default` if there is none.

        Args:
            key: a string or a nested key.
            index: applied to the entry; over a tensor it may reach into trailing dimensions.
            default: what an absent key gives.

        Example:
            >>> TensorDict({"x": torch.arange(3)}, batch_size=[3]).get_at("x", 1)
            tensor(1)
        """
        path = unravel_key_to_tuple(key)
        if not self._has_path(path):
            return default
        value = self._require(path)
        if isinstance(value, LeafKind):
            items = parse_index(index, value._batch_size).items
            return value._indexed(items, result_size(items, value._batch_size))
        return value[index]

    def get_item_shape(self, key: Any) -> torch.Size:
        """Return the shape of the entry at `key`: ``(*B, *F)``, or the batch size of a tensordict.

        Raises:
            KeyPathError: if `key` is absent.
        """
        shape: torch.Size = self._require(unravel_key_to_tuple(key)).shape
        return shape

    def masked_select(self, mask: Tensor, *, inplace: bool = False) -> Self:
        """Return the elements where `mask` is true; leaves are copies.

        Args:
            mask: booleans of the shape of the leading batch dimensions.
            inplace: change this tensordict and those nested in it; leaves are new tensors all the
                same.

        Returns:
            A tensordict ``(n, *B[m:])`` for a mask with ``m`` dimensions and ``n`` true elements.

        Raises:
            IndexError: if `mask` is no mask or has another shape.
            LockedError: if it is to work in place and the tensordict is locked.
        """
        if mask.dtype not in _MASK_DTYPES:
            raise TensorDictIndexError(f"expected a mask of booleans; found {mask.dtype}")
        if inplace:
            check_unlocked(self)
        result = self._index_parsed(*parse_index(mask, self._batch_size)[:2])
        if not inplace:
            return result
        become(self, result)
        return self

    def gather(
        self, dim: int, index: Tensor, out: Self | None = None, *, inplace: bool = False
    ) -> Self:
        """Pick elements along a batch dimension, as ``torch.gather`` does.

        Args:
            dim: the batch dimension along which `index` counts.
            index: integers with as many dimensions as the batch; the size of each may be smaller,
                that of `dim` may be any.
            out: a tensordict of the result's batch size and our keys that is written and returned.
            inplace: change this tensordict and those nested in it; leaves are new tensors all the
                same.

        Returns:
            A tensordict with the batch size ``index.shape``; leaves are copies.

        Raises:
            IndexError: if `dim` is out of range, or `index` has another number of dimensions than
                the batch (a ``RuntimeError`` as well).
            LockedError: if it is to work in place and the tensordict is locked.
        """
        dim = self._batch_dim(dim)
        if index.dim() != len(self._batch_size):
            raise TensorDictIndexError(
                f"expected an index with {len(self._batch_size)} dimensions, as batch size "
                f"{tuple(self._batch_size)}; found shape {tuple(index.shape)}"
            )
        if index.dtype != torch.long:
            index = index.long()
        if out is not None and out._is_stack:  # type: ignore[attr-defined]
            return out.update_(self.gather(dim, index))  # type: ignore[attr-defined, no-any-return]
        if out is not None:
            _gather_into(self, dim, index, out, len(self._batch_size), ())
            return out
        if inplace:
            check_unlocked(self)
        result = self._map_leaves(
            gather_leaf, (dim, index), None, index.shape, self._same_dims(), len(self._batch_size)
        )
        if not inplace:
            return result
        become(self, result)
        return self

    # -- writing -----------------------------------------------------------------------------

    def _set_index(self, index: Any, value: Any) -> None:
        """Write into ``td[index]``; leaves keep their storage.

        Args:
            index: as for reading.
            value: a tensordict or a dictionary whose batch size broadcasts to that of
                ``td[index]``: its entries are written, keys that only we have are left alone, keys
                that we lack become entries that are zero elsewhere. Or a number or a tensor, which
                is written to every tensor as torch broadcasts it.

        Raises:
            IndexError: if the index does not fit the batch size.
            TensorDictShapeError: if a value does not broadcast.
            LockedError: if the tensordict is locked and a key is new.
        """
        batch_size = self._batch_size
        if isinstance(value, (TensorCollection, Mapping)):
            items, _, is_whole = parse_index(index, batch_size)
            sizes = result_size(items, batch_size)
            write = IndexWrite(items, sizes, len(batch_size), is_whole, may_add=True)
            if isinstance(value, TensorCollection):
                write.plan(self, broadcast_value(value, sizes), ())
            else:
                # The constructor checks leaves against the batch size that they are to fill.
                write.plan(self, self._dense(value, batch_size=sizes), ())
            write.run()
            return
        if not isinstance(value, (bool, int, float, complex, Tensor)):
            value = as_tensor(value)
        is_scalar = not isinstance(value, Tensor) or value.dim() == 0
        # A scalar goes to a mask without finding positions first.
        items, _, is_whole = parse_index(index, batch_size, keep_masks=is_scalar)
        sizes = torch.Size() if is_scalar else result_size(items, batch_size)
        write = IndexWrite(items, sizes, len(batch_size), is_whole, may_add=False)
        write.fill(self, value, is_scalar, ())
        write.run()

    def set_at_(self, key: Any, value: Any, index: Any, *, non_blocking: bool = False) -> Self:
        """Write into a part of one entry, in place.

        Args:
            key: a string or a nested key, which must be there.
            value: what ``entry[index] = value`` takes.
            index: applied to the entry; over a tensor it may reach into trailing dimensions.
            non_blocking: accepted for compatibility.

        Returns:
            The same tensordict.

        Raises:
            KeyPathError: if `key` is absent.
            TensorDictShapeError: if a tensordict is written and the value does not broadcast.
        """
        path = unravel_key_to_tuple(key)
        stack, depth = self._deepest(path)
        if stack._is_stack:
            stack._set_entry_at(path[depth:], value, index)
            return self
        entry = self._require(path)
        if isinstance(entry, NonTensorEntry):
            items = parse_index(index, entry._batch_size).items
            write = IndexWrite(items, torch.Size(()), 0, is_whole=False, may_add=False)
            write.plan_non_tensor(self._require(path[:-1]), path[-1], entry, value)
            write.run()
        elif isinstance(entry, Tensor):
            entry[index] = value if isinstance(value, Tensor) else as_fill(value)
        else:
            entry._set_index(index, value)
        return self

    def update_at_(
        self,
        input_dict_or_td: Any,
        idx: Any,
        clone: bool = False,
        *,
        non_blocking: bool = False,
        keys_to_update: Sequence[Any] | None = None,
    ) -> Self:
        """Write entries of another tensordict into a part of the batch, in place.

        Args:
            input_dict_or_td: a tensordict or a dictionary; its batch size broadcasts to that of
                ``td[idx]``, and its keys are all in ours.
            idx: index over the batch dimensions.
            clone: accepted for compatibility: values are copied in any case.
            non_blocking: accepted for compatibility.
            keys_to_update: the (nested) keys to write; all by default.

        Returns:
            The same tensordict.

        Raises:
            KeyPathError: if a key is absent from this tensordict.
            TensorDictShapeError: if a value does not broadcast.
        """
        batch_size = self._batch_size
        items, _, is_whole = parse_index(idx, batch_size)
        sizes = result_size(items, batch_size)
        source: Any = input_dict_or_td
        if isinstance(source, TensorCollection):
            source = broadcast_value(source, sizes)
        else:
            source = self._dense(source, batch_size=sizes)
        if keys_to_update is not None:
            source = source.select(*keys_to_update)
        write = IndexWrite(items, sizes, len(batch_size), is_whole, may_add=False)
        write.plan(self, source, ())
        write.run()
        return self

    def copy_at_(
        self, tensordict: Any, idx: Any, non_blocking: bool = False, *, fast: bool = True
    ) -> Self:
        """Write entries of another tensordict into a part of the batch; see :meth:`update_at_`.

        `fast` changes nothing: there is one way, and it takes every source and index.
        """
        return self.update_at_(tensordict, idx, non_blocking=non_blocking)


# -- helpers -----------------------------------------------------------------------------------


def gather_leaf(leaf: Tensor, dim: int, index: Tensor) -> Tensor:
    """Gather along a batch dimension, with the same `index` for all trailing dimensions."""
    return torch.gather(leaf, dim, _leaf_index(leaf, index))


def _leaf_index(leaf: Tensor, index: Tensor) -> Tensor:
    extra = leaf.dim() - index.dim()
    if extra == 0:
        return index
    shape = index.shape
    return index.reshape(shape + (1,) * extra).expand(shape + leaf.shape[index.dim() :])


def _gather_into(td: Any, dim: int, index: Tensor, out: Any, batch_dims: int, path: _Path) -> None:
    if out._batch_size[:batch_dims] != index.shape:
        raise TensorDictShapeError(
            f"expected out with the batch size {tuple(index.shape)}; found {tuple(out._batch_size)}"
        )
    for key, value in td._entries.items():
        where = (*path, key)
        if key not in out._entries:
            raise KeyPathError(
                f"expected out with our keys; found no {format_entry(where)} among "
                f"{list(out._entries)}"
            )
        target = out._entries[key]
        if isinstance(target, TensorCollection) and target._is_stack:
            origin = tuple(range(batch_dims))
            target.update_(  # type: ignore[attr-defined]
                value._map_leaves(gather_leaf, (dim, index), None, index.shape, origin, batch_dims)
            )
        elif isinstance(value, NonTensorEntry):
            size = torch.Size((*index.shape, *value._batch_size[batch_dims:]))
            target._assign(value._shaped(gather_leaf, (dim, index), size))
        elif isinstance(value, UnbatchedTensor):
            target.copy_(value)
        elif isinstance(value, Tensor):
            torch.gather(value, dim, _leaf_index(value, index), out=target)
        else:
            _gather_into(value, dim, index, target, batch_dims, where)

"""Stacking tensordicts of several lengths: padded to one length, and cut apart again.

Key names: :func:`pad_sequence`, :func:`unpad_sequence`.

Symbols: ``N`` samples, ``*B`` batch dimensions of a sample, ``L`` the greatest length.

Invariant: one dimension is padded, ``pad_dim``; all others have to agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdcompile.errors import KeyMismatchError, KeyPathError, TensorDictShapeError
from tdcompile.tensordict.base import TensorDictBase
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.convert.padding import pad_leaf, pad_non_tensor
from tdcompile.tensordict.dense import TensorDict
from tdcompile.tensordict.functional import stack
from tdcompile.tensordict.keys import format_entry, format_key, unravel_key_to_tuple
from tdcompile.tensordict.lazy.stack import lazy_stack

if TYPE_CHECKING:
    from collections.abc import Sequence

_Path = tuple[str, ...]


def pad_sequence(
    list_of_tensordicts: Sequence[Any],
    pad_dim: int = 0,
    padding_value: float | Mapping[Any, float] = 0.0,
    out: Any = None,
    return_mask: Any = False,
    padding_side: str = "right",
) -> Any:
    """Pad tensordicts along one dimension to the greatest length, and stack them.

    Args:
        list_of_tensordicts: ``N`` tensordicts with the same keys.
        pad_dim: a dimension of each leaf, batch dimensions included; a negative one counts from
            the last. If it is a batch dimension of all leaves, the batch size is padded too, and
            non-tensor entries are ``None`` there.
        padding_value: what is filled in, or a mapping of keys to it (0 for all others).
        out: a tensordict for the result.
        return_mask: ``True``, or a key: also store a tensordict of masks at ``"masks"`` or at the
            key. A mask is true where there are data; its shape is the batch size of the result,
            with the padded length behind it if `pad_dim` is no batch dimension.
        padding_side: ``"right"`` (after the data) or ``"left"``.

    Returns:
        A tensordict of batch size ``(N, *B)``; names if all have the same.

    Raises:
        RuntimeError: if there is no tensordict, if shapes differ elsewhere than in `pad_dim`, or if
            masks of tensorclasses are asked for.
        KeyError: if keys differ, or `padding_value` has a key that no entry has.
        ValueError: if `padding_side` is another word; if `pad_dim` is a batch dimension of some
            leaves only, and one of those is too long for the batch size.
        IndexError: if a leaf has no such dimension.

    Example:
        >>> tds = [TensorDict({"a": torch.ones(n)}, [n]) for n in (1, 3)]
        >>> padded = pad_sequence(tds, return_mask=True)
        >>> padded["a"], padded["masks", "a"].sum(-1)
        (tensor([[1., 0., 0.],
                [1., 1., 1.]]), tensor([1, 3]))
    """
    samples = list(list_of_tensordicts)
    if not samples:
        raise RuntimeError("expected at least one tensordict to pad and stack, found none")
    if padding_side not in ("left", "right"):
        raise ValueError(f"expected padding_side to be 'left' or 'right', found {padding_side!r}")
    if return_mask and not isinstance(samples[0], TensorDictBase):
        raise RuntimeError(
            "expected tensordicts to make masks for, found tensorclasses: convert them with "
            "to_tensordict() first"
        )
    work = _Padder(samples, pad_dim, padding_value, padding_side == "left")
    result = stack([work.padded(i, td, ()) for i, td in enumerate(samples)], 0)
    if return_mask:
        masks = stack([work.masks(i, td, ()) for i, td in enumerate(samples)], 0)
        result.set("masks" if return_mask is True else return_mask, masks)
    if out is None:
        return result
    out.update_(result)
    return out


class _Padder:
    """The lengths of all leaves, and what to do with each."""

    def __init__(
        self, samples: list[Any], pad_dim: int, value: float | Mapping[Any, float], left: bool
    ) -> None:
        self.left = left
        self.lengths: dict[_Path, list[int]] = {}
        self.dims: dict[_Path, int] = {}
        self.samples = samples
        self.batch_dims = samples[0].batch_dims
        self.is_mixed = False
        for td in samples:
            self._measure(td, pad_dim, ())
        self._check(samples)
        self.value, self.values = 0.0, {}
        if isinstance(value, Mapping):
            self.values = {unravel_key_to_tuple(key): fill for key, fill in value.items()}
            unknown = [format_key(path) for path in self.values if path not in self.lengths]
            if unknown:
                raise KeyPathError(
                    f"expected the keys of tensors in padding_value, found {unknown} among "
                    f"{list(self.values)}: they name no tensor"
                )
        else:
            self.value = value
        self.batch_dim = self._padded_batch_dim(samples, pad_dim)

    def _measure(self, td: Any, pad_dim: int, path: _Path) -> None:
        for name, leaf in td._entries.items():
            at = (*path, name)
            if isinstance(leaf, TensorCollection):
                self._measure(leaf, pad_dim, at)
            elif isinstance(leaf, Tensor):
                if not -leaf.ndim <= pad_dim < leaf.ndim:
                    raise IndexError(
                        f"expected pad_dim to be a dimension of every leaf, found {pad_dim} for "
                        f"shape {list(leaf.shape)} of {format_entry(at)}"
                    )
                self.dims.setdefault(at, pad_dim % leaf.ndim)
                self.lengths.setdefault(at, []).append(leaf.shape[pad_dim])

    def _check(self, samples: list[Any]) -> None:
        for path, lengths in self.lengths.items():
            if len(lengths) != len(samples):
                raise KeyMismatchError(
                    f"expected the same keys in all tensordicts, found {format_entry(path)} in "
                    f"{len(lengths)} of {len(samples)}"
                )
        for path, dim in self.dims.items():
            shapes = [_without(td.get(path).shape, dim) for td in samples]
            if any(shape != shapes[0] for shape in shapes):
                raise TensorDictShapeError(
                    f"expected shapes that differ in dimension {dim} at most, found "
                    f"{[list(td.get(path).shape) for td in samples]} of {format_entry(path)}"
                )

    def _padded_batch_dim(self, samples: list[Any], pad_dim: int) -> int | None:
        """The batch dimension that is padded; None if it is none, or not for all leaves."""
        found = {dim if dim < self.batch_dims else None for dim in self.dims.values()}
        if not found and 0 <= pad_dim < self.batch_dims:
            found = {pad_dim}
        if len(found) == 1:
            return found.pop()
        self.is_mixed = bool(found)
        for path, dim in self.dims.items():
            size = samples[0].batch_size
            if dim < self.batch_dims and max(self.lengths[path]) != size[dim]:
                raise ValueError(
                    f"expected pad_dim={pad_dim} to be a batch dimension of all leaves or of none, "
                    f"found length {max(self.lengths[path])} in a batch dimension of "
                    f"{format_entry(path)}, where the first batch size is {list(size)}: use a "
                    "pad_dim that is not negative"
                )
        return None

    def _pairs(self, path: _Path, index: int) -> list[tuple[int, int]]:
        lengths, dim = self.lengths[path], self.dims[path]
        missing = max(lengths) - lengths[index]
        return [(0, 0)] * dim + [(missing, 0) if self.left else (0, missing)]

    def _batch_pairs(self, td: Any) -> list[tuple[int, int]]:
        if self.batch_dim is None:
            return []
        longest = max(sample.batch_size[self.batch_dim] for sample in self.samples)
        missing = longest - td.batch_size[self.batch_dim]
        return [(0, 0)] * self.batch_dim + [(missing, 0) if self.left else (0, missing)]

    def padded(self, index: int, td: Any, path: _Path) -> Any:
        """One sample, padded."""
        pairs = self._batch_pairs(td)
        entries: dict[str, Any] = {}
        for name, value in td._entries.items():
            at = (*path, name)
            if isinstance(value, Tensor):
                fill = self.values.get(at, 0.0) if self.values else self.value
                entries[name] = pad_leaf(value, self._pairs(at, index), fill)
            elif isinstance(value, TensorCollection):
                entries[name] = self.padded(index, value, at)
            else:
                entries[name] = pad_non_tensor(value, pairs)
        return td._from_entries(entries, self._size(td, pairs, path), td._device, td._names)

    def _size(self, td: Any, pairs: list[tuple[int, int]], path: _Path) -> torch.Size:
        if self.is_mixed:
            td = self.samples[0].get(path) if path else self.samples[0]
        size = list(td.batch_size)
        for dim, (before, after) in enumerate(pairs):
            size[dim] += before + after
        return torch.Size(size)

    def masks(self, index: int, td: Any, path: _Path) -> TensorDict:
        """The masks of one sample, in a tensordict with its nested levels."""
        size = self._size(td, self._batch_pairs(td), path)[: self.batch_dims]
        entries: dict[str, Any] = {}
        for name, value in td._entries.items():
            at = (*path, name)
            if isinstance(value, TensorCollection):
                entries[name] = self.masks(index, value, at)
            elif isinstance(value, Tensor):
                pairs = self._pairs(at, index)
                shape = value.shape[: self.batch_dims]
                if self.batch_dim is None:
                    pairs = [(0, 0)] * self.batch_dims + pairs[-1:]
                    shape = torch.Size((*size, self.lengths[at][index]))
                data = torch.ones(shape, dtype=torch.bool, device=value.device)
                entries[name] = pad_leaf(data, pairs, False)
        return TensorDict._from_entries(entries, size, td._device)


def _without(shape: torch.Size, dim: int) -> torch.Size:
    return torch.Size((*shape[:dim], *shape[dim + 1 :]))


def unpad_sequence(padded: Any, mask: Any = None, *, pad_dim: int = 0) -> Any:
    """Cut a padded batch into its samples again, the inverse of :func:`pad_sequence`.

    Lengths are read from the masks, which needs their values: a trace ends here.

    Args:
        padded: tensordict of batch size ``(N, *B)``.
        mask: a tensordict of masks, laid out as :func:`pad_sequence` does it; or a boolean tensor
            ``(N, L)`` for all leaves. By default the entry ``"masks"``, which the samples then
            lack. In a row, what is true has to be one run.
        pad_dim: the dimension of a sample that was padded.

    Returns:
        A lazy stack of ``N`` samples, whose leaves are views of those of `padded`.

    Raises:
        ValueError: if there is no batch dimension, no mask, or a mask of another shape or of
            several runs.
        KeyError: if a leaf has no mask.

    Example:
        >>> tds = [TensorDict({"a": torch.arange(n)}, [n]) for n in (1, 3)]
        >>> [td["a"].tolist() for td in unpad_sequence(pad_sequence(tds, return_mask=True))]
        [[0], [0, 1, 2]]
    """
    if padded.batch_dims == 0:
        raise ValueError("expected the samples along a batch dimension, found batch_size=[]")
    if mask is None:
        mask = padded.get("masks", None)
        if mask is None:
            raise ValueError(
                "expected masks, found neither an argument nor an entry 'masks': pass mask=, or "
                "pad with return_mask=True"
            )
        padded = padded.exclude("masks")
    count = padded.batch_size[0]
    if isinstance(mask, Tensor) and (mask.ndim != 2 or mask.shape[0] != count):
        raise ValueError(f"expected a mask of shape [{count}, L], found {list(mask.shape)}")
    runs: dict[_Path, list[tuple[int, int, int]]] = {}
    _collect_runs(padded, padded.batch_dims - 1, mask, pad_dim, (), runs)
    return lazy_stack([_cut(padded[row], row, runs, ()) for row in range(count)], 0)


def _collect_runs(
    td: Any, batch_dims: int, mask: Any, pad_dim: int, path: _Path, runs: dict[_Path, Any]
) -> None:
    """For each leaf and row: the dimension that was padded, where data starts, how many there are.

    What is under the path of a level, ``()`` at the top, holds for its batch size; it is missing if
    no batch dimension was padded.
    """
    for name, leaf in td._entries.items():
        at = (*path, name)
        if isinstance(leaf, TensorCollection):
            _collect_runs(leaf, batch_dims, mask, pad_dim, at, runs)
        elif isinstance(leaf, Tensor):
            own = mask if isinstance(mask, Tensor) else mask.get(at, None)
            if not isinstance(own, Tensor):
                raise KeyPathError(f"expected a mask for {format_entry(at)}, found none")
            if not 1 - leaf.ndim <= pad_dim < leaf.ndim - 1:
                raise IndexError(
                    f"expected pad_dim to be a dimension of every sample, found {pad_dim} for "
                    f"shape {list(leaf.shape[1:])} of {format_entry(at)}"
                )
            dim = pad_dim % (leaf.ndim - 1)
            in_batch = dim < batch_dims and own.ndim == batch_dims + 1
            flat = own.movedim(dim + 1, -1) if in_batch and own is not mask else own
            flat = flat.reshape(own.shape[0], -1, flat.shape[-1]).any(1)
            runs[at] = [(dim, *_run(row, at)) for row in flat.tolist()]
            if dim < batch_dims and (in_batch or own is mask):
                runs.setdefault(path, runs[at])
    if path[:-1] in runs:
        runs.setdefault(path, runs[path[:-1]])


def _run(row: list[bool], path: _Path) -> tuple[int, int]:
    length = sum(row)
    start = row.index(True) if length else 0
    if not all(row[start : start + length]):
        raise ValueError(
            f"expected the data of a row to be one run, found gaps in the mask of "
            f"{format_entry(path)}"
        )
    return start, length


def _cut(td: Any, row: int, runs: dict[_Path, Any], path: _Path) -> Any:
    size = list(td.batch_size)
    whole = runs.get(path)
    if whole is not None:
        size[whole[row][0]] = whole[row][2]
    entries: dict[str, Any] = {}
    for name, value in td._entries.items():
        if isinstance(value, Tensor):
            entries[name] = value.narrow(*runs[*path, name][row])
        elif isinstance(value, TensorCollection):
            entries[name] = _cut(value, row, runs, (*path, name))
        elif whole is not None:
            dim, start, length = whole[row]
            after = td.batch_size[dim] - start - length
            entries[name] = pad_non_tensor(value, [(0, 0)] * dim + [(-start, -after)])
        else:
            entries[name] = value
    return td._from_entries(entries, torch.Size(size), td._device, td._names)

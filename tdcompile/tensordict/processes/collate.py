"""``collate``: samples of a data loader to one batch.

Key names: :func:`collate`.

Symbols: ``N`` samples, ``L`` the length of an entry in one sample, ``*F`` its other dimensions.

Invariant: the samples are left as they are; what the options change is put in shallow copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from tdcompile.errors import TensorDictShapeError
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.dense import TensorDict
from tdcompile.tensordict.keys import NO_DEFAULT, format_entry, format_key, unravel_key_to_tuple
from tdcompile.tensordict.stacking import maybe_dense_stack

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["collate"]

_Path = tuple[str, ...]


def collate(
    batch: Any,
    *,
    pad_keys: Mapping[Any, float] | None = None,
    nested_keys: Sequence[Any] | None = None,
    mask_key: Any = None,
) -> Any:
    """Make one batch of a list of samples: a ``collate_fn`` for a ``DataLoader``.

    The first sample tells how: tensordicts of any kind are stacked, densely where keys and shapes
    allow it; tensors are stacked; mappings give a dictionary and tuples a tuple of what is collated
    for each entry; anything else goes to torch's ``default_collate``.

    Args:
        batch: ``N`` samples. Anything but a list with something in it is returned as it is, for
            example the tensordict that ``DataLoader(td)`` reads by a list of positions.
        pad_keys: entries ``(L, *F)`` of tensordicts to pad to the greatest length, each with what
            is filled in. The samples have no batch dimensions then.
        nested_keys: entries ``(L, *F)`` of tensordicts to put in a jagged nested tensor.
        mask_key: where to store masks of the padded entries ``(N, L)``: a tensordict with
            their keys, true where there are data.

    Returns:
        The batch; a tensordict has the batch size ``(N, *B)``.

    Raises:
        KeyError: if a sample lacks one of `pad_keys` or `nested_keys`.
        ValueError: if `mask_key` comes without `pad_keys` or is a key of a sample, a key is in both
            `pad_keys` and `nested_keys`, samples to pad have batch dimensions, an entry to pad
            differs in other dimensions, or with `nested_keys` other entries do not stack densely.

    Example:
        >>> samples = [TensorDict(ids=torch.ones(n)) for n in (1, 3)]
        >>> collate(samples, pad_keys={"ids": -1.0})["ids"]
        tensor([[ 1., -1., -1.],
                [ 1.,  1.,  1.]])
    """
    if not isinstance(batch, list) or not batch:
        return batch
    padded = {unravel_key_to_tuple(key): value for key, value in (pad_keys or {}).items()}
    nested = [unravel_key_to_tuple(key) for key in nested_keys or ()]
    mask = None if mask_key is None else unravel_key_to_tuple(mask_key)
    if mask is not None and not padded:
        raise ValueError(
            f"expected pad_keys with mask_key={format_key(mask)}, found none: there is no mask "
            "without padding"
        )
    twice = [path for path in nested if path in padded]
    if twice:
        raise ValueError(
            f"expected a key in pad_keys or in nested_keys, found {format_key(twice[0])} in both"
        )
    return _collate(batch, padded, nested, mask)


def _collate(
    batch: Sequence[Any], padded: dict[_Path, float], nested: list[_Path], mask: _Path | None
) -> Any:
    first = batch[0]
    if isinstance(first, TensorCollection):
        if padded or nested:
            return _collate_lengths(batch, padded, nested, mask)
        return maybe_dense_stack(batch)
    if isinstance(first, Tensor):
        return torch.stack(list(batch))
    if isinstance(first, Mapping):
        return {key: _collate([item[key] for item in batch], padded, nested, mask) for key in first}
    if isinstance(first, tuple):
        columns = [_collate(column, padded, nested, mask) for column in zip(*batch, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else tuple(columns)
    return default_collate(list(batch))


def _collate_lengths(
    samples: Sequence[Any], padded: dict[_Path, float], nested: list[_Path], mask: _Path | None
) -> Any:
    columns = {path: _column(samples, path) for path in (*padded, *nested)}
    if padded and any(sample.batch_dims for sample in samples):
        raise TensorDictShapeError(
            "expected samples without batch dimensions to pad, found batch size "
            f"{list(samples[0].batch_size)}: set batch_size=[] first"
        )
    if mask is not None and any(mask in sample for sample in samples):
        raise ValueError(
            f"expected a mask_key that is free, found {format_entry(mask)} in a sample: "
            "choose another one"
        )
    copies = [sample.copy() for sample in samples]
    for path, value in padded.items():
        length = max(leaf.shape[0] for leaf in columns[path])
        shapes = {tuple(leaf.shape[1:]) for leaf in columns[path]}
        if len(shapes) > 1:
            raise TensorDictShapeError(
                f"expected {format_entry(path)} to differ in its first dimension only, found the "
                f"trailing shapes {sorted(shapes)}"
            )
        for copied, leaf in zip(copies, columns[path], strict=True):
            missing = length - leaf.shape[0]
            copied.set(path, torch.cat([leaf, leaf.new_full((missing, *leaf.shape[1:]), value)]))
            if mask is not None:
                valid = torch.arange(length, device=leaf.device) < leaf.shape[0]
                if mask not in copied:
                    copied.set(mask, TensorDict({}, device=copied.device))
                copied.get(mask).set(path, valid)
    for path in nested:
        # Stands for the entry, which keeps its place among the keys.
        for copied, leaf in zip(copies, columns[path], strict=True):
            copied.set(path, leaf.new_zeros(copied.batch_size))
    result = maybe_dense_stack(copies)
    if nested and result._is_stack:
        raise TensorDictShapeError(
            "expected entries that stack densely beside nested_keys, found keys or shapes that "
            "differ: name each entry that varies in length in pad_keys or nested_keys"
        )
    for path in nested:
        result.set(path, torch.nested.as_nested_tensor(columns[path], layout=torch.jagged))
    return result


def _column(samples: Sequence[Any], path: _Path) -> list[Tensor]:
    found = [sample.get(path, NO_DEFAULT) for sample in samples]
    for number, leaf in enumerate(found):
        if leaf is None:
            samples[number]._require(path)
        if not isinstance(leaf, Tensor) or leaf.ndim == 0:
            what = "a scalar" if isinstance(leaf, Tensor) else type(leaf).__name__
            raise TensorDictShapeError(
                f"expected a tensor with a first dimension that varies at {format_entry(path)} of "
                f"sample {number}, found {what}"
            )
    return found

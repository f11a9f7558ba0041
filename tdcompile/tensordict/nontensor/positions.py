"""Where elements go: a torch operation is run on a tensor of positions.

Key names: :func:`move_places` (one operand), :func:`join_places` (several), :func:`as_index`.

Invariant: the results are constants of the arguments, and plain integers. Trackers call these
functions while they trace, on constants, so that no tensor of positions is in a graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

Places = tuple[int, ...]
Moved = tuple[Places, Places, bool]
"""Places in row-major order, sizes, and whether torch gives a view."""


def move_places(size: Places, places: Places | None, op: Callable[..., Any], *args: Any) -> Any:
    """Return where an operation puts the elements that are at `places`.

    Args:
        size: of the batch.
        places: one an element, in row-major order; ``None`` for 0, 1, 2, ...
        op: a torch function; it gets a tensor of places and `args`.
        args: its other arguments; tensors among them are moved to the CPU.

    Returns:
        A :data:`Moved`, or a list of them where `op` gives several tensors.
    """
    own = _tensor_of(size, places)
    index = op(own, *as_index(args))
    if isinstance(index, (tuple, list)):
        return [_moved(own, item) for item in index]
    return _moved(own, index)


def join_places(
    sizes: tuple[Places, ...], places: tuple[Places, ...], op: Callable[..., Tensor], dim: int
) -> tuple[Places, Places]:
    """Return places and sizes of several operands, stacked or concatenated by `op`."""
    index = op([_tensor_of(*pair) for pair in zip(sizes, places, strict=True)], dim)
    return tuple(index.flatten().tolist()), tuple(index.shape)


def _tensor_of(size: Places, places: Places | None) -> Tensor:
    if places is None:
        return torch.arange(torch.Size(size).numel(), device="cpu").view(size)
    return torch.tensor(places, device="cpu", dtype=torch.long).view(size)


def _moved(own: Tensor, index: Tensor) -> Moved:
    is_view = index.untyped_storage().data_ptr() == own.untyped_storage().data_ptr()
    return tuple(index.flatten().tolist()), tuple(index.shape), is_view


def as_index(index: Any) -> Any:
    """Return an index, or arguments, that go with positions, which are on the CPU."""
    if type(index) is tuple:
        return tuple([as_index(item) for item in index])
    if isinstance(index, Tensor):
        return index.cpu()
    return list(index) if isinstance(index, range) else index

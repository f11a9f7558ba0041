"""All leaves of a tensordict in the columns of one tensor, and back.

Key names: :func:`pack`, :class:`PackLayout`.

Symbols: ``*B`` batch dimensions, ``*F`` trailing dimensions of a leaf, ``F`` all columns.

Invariant: a layout is a value: it holds no tensor, compares by content and can be hashed.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from tdcompile.tensordict.base import TensorDictBase
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.dense import TensorDict
from tdcompile.tensordict.keys import format_entry, unravel_key
from tdcompile.tensordict.storage.kinds import class_of_dense


def _path(key: Any) -> tuple[str, ...]:
    return key if isinstance(key, tuple) else (key,)


@dataclasses.dataclass(frozen=True)
class PackLayout:
    """Which columns of a packed tensor are which leaf.

    Args:
        keys: of the leaves, in the order of the columns.
        shapes: trailing shapes ``(*F)`` of the leaves.
        dim: where the columns are, counted from the end.
        nested: key, further batch dimensions and tensorclass (or ``None``) of each nested
            tensordict.
        device: of the tensordict.
        cls: the tensorclass of the tensordict, or ``None``.

    Example:
        >>> td = TensorDict({"p": torch.zeros(5), "v": torch.ones(5, 3)}, batch_size=[5])
        >>> flat, layout = td.pack()
        >>> layout.keys, layout.offsets, layout.numel
        (('p', 'v'), (0, 1), 4)
    """

    keys: tuple[Any, ...]
    shapes: tuple[torch.Size, ...]
    dim: int = -1
    nested: tuple[tuple[Any, torch.Size, type | None], ...] = ()
    device: torch.device | None = None
    cls: type | None = None
    offsets: tuple[int, ...] = dataclasses.field(init=False)
    numel: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        shapes = tuple(torch.Size(shape) for shape in self.shapes)
        offsets, total = [], 0
        for shape in shapes:
            offsets.append(total)
            total += shape.numel()
        fields = {
            "keys": tuple(unravel_key(key) for key in self.keys),
            "shapes": shapes,
            "nested": tuple(
                (unravel_key(key), torch.Size(size), cls) for key, size, cls in self.nested
            ),
            "offsets": tuple(offsets),
            "numel": total,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def unpack(self, flat: Tensor) -> Any:
        """Return the tensordict whose leaves are columns of `flat`, views where that is possible.

        Args:
            flat: ``(*B, F)`` for ``dim=-1``; other batch dimensions than those that were packed
                are fine.

        Raises:
            ValueError: if `flat` has another number of columns.
        """
        if flat.ndim < -self.dim or flat.shape[self.dim] != self.numel:
            found = flat.shape[self.dim] if flat.ndim >= -self.dim else f"{flat.ndim} dimensions"
            raise ValueError(
                f"expected {self.numel} entries along dim {self.dim} of the packed tensor, found "
                f"{found}: unpack what pack() gave with this layout"
            )
        columns = flat if self.dim == -1 else flat.movedim(self.dim, -1)
        batch_size = columns.shape[:-1]
        device = None if self.device is None else flat.device
        root = TensorDict._from_entries({}, batch_size, device)
        nodes: dict[tuple[str, ...], Any] = {(): root}
        for key, size, _ in sorted(self.nested, key=lambda item: len(_path(item[0]))):
            path = _path(key)
            node = TensorDict._from_entries({}, batch_size + size, device)
            nodes[path] = nodes[path[:-1]]._entries[path[-1]] = node
        for key, shape, offset in zip(self.keys, self.shapes, self.offsets, strict=True):
            path = _path(key)
            part = columns.narrow(-1, offset, shape.numel())
            nodes[path[:-1]]._entries[path[-1]] = part.reshape(batch_size + shape)
        for key, _, cls in sorted(self.nested, key=lambda item: -len(_path(item[0]))):
            if cls is not None:
                path = _path(key)
                nodes[path[:-1]]._entries[path[-1]] = class_of_dense(cls, nodes[path])
        return root if self.cls is None else class_of_dense(self.cls, root)


def pack(td: Any, dim: int, layout: PackLayout | None) -> tuple[Tensor, PackLayout]:
    """Return all leaves in one tensor and the layout, see ``TensorDict.pack``."""
    ndim = len(td.batch_size)
    if not -(ndim + 1) <= dim <= ndim:
        raise IndexError(
            f"expected dim in [{-(ndim + 1)}, {ndim}] for a tensordict of {ndim} batch dimensions, "
            f"found {dim}"
        )
    dim = dim if dim < 0 else dim - ndim - 1
    leaves: dict[tuple[str, ...], Tensor] = {}
    nested: list[tuple[Any, torch.Size, type | None]] = []
    _collect(td, (), ndim, leaves, nested)
    order = sorted(leaves, key=".".join)
    shapes = {path: leaf.shape[ndim:] for path, leaf in leaves.items()}
    if layout is None:
        layout = PackLayout(
            tuple(unravel_key(path) for path in order),
            tuple(shapes[path] for path in order),
            dim,
            tuple(sorted(nested, key=lambda item: ".".join(_path(item[0])))),
            td.device,
            _class_of(td),
        )
    else:
        order = _follow(layout, dim, order, shapes)
    tensors = [leaves[path] for path in order]
    _check_alike(order, tensors)
    columns = [
        leaf.reshape(*leaf.shape[:ndim], shapes[p].numel())
        for p, leaf in zip(order, tensors, strict=True)
    ]
    if columns:
        flat = torch.cat(columns, -1)
    else:
        flat = torch.empty(*td.batch_size, 0, device=td.device)
    if layout.dim != -1:
        flat = flat.movedim(-1, layout.dim)
    return flat.contiguous(), layout


def _class_of(value: Any) -> type | None:
    return None if isinstance(value, TensorDictBase) else type(value)


def _collect(
    td: Any,
    path: tuple[str, ...],
    ndim: int,
    leaves: dict[tuple[str, ...], Tensor],
    nested: list[tuple[Any, torch.Size, type | None]],
) -> None:
    for key, value in td._entries.items():
        here = (*path, key)
        if isinstance(value, Tensor):
            leaves[here] = value
        elif isinstance(value, TensorCollection):
            size = value.batch_size[ndim:]  # type: ignore[attr-defined]
            nested.append((unravel_key(here), torch.Size(size), _class_of(value)))
            _collect(value, here, ndim, leaves, nested)
        else:
            raise TypeError(
                f"expected tensors to pack, found a non-tensor value at {format_entry(here)}: drop "
                "these entries first, with td.filter_non_tensor_data()"
            )


def _follow(
    layout: PackLayout, dim: int, order: list[tuple[str, ...]], shapes: dict[Any, torch.Size]
) -> list[tuple[str, ...]]:
    if layout.dim != dim:
        raise ValueError(
            f"expected dim={layout.dim}, as in the layout, found {dim}: pass the same dim"
        )
    wanted = [_path(key) for key in layout.keys]
    if set(wanted) != set(order):
        raise KeyError(
            f"expected the leaves of the layout, {list(layout.keys)}, found "
            f"{[unravel_key(path) for path in order]}: select them first"
        )
    for path, shape in zip(wanted, layout.shapes, strict=True):
        if shapes[path] != shape:
            raise ValueError(
                f"expected trailing shape {list(shape)}, as in the layout, found "
                f"{list(shapes[path])} at {format_entry(path)}"
            )
    return wanted


def _check_alike(order: list[tuple[str, ...]], tensors: list[Tensor]) -> None:
    for path, leaf in zip(order[1:], tensors[1:], strict=True):
        first = tensors[0]
        if leaf.dtype != first.dtype:
            raise TypeError(
                f"expected leaves of one dtype to pack, found {first.dtype} and {leaf.dtype} at "
                f"{format_entry(path)}: cast the tensordict first, e.g. with td.float()"
            )
        if leaf.device != first.device:
            raise RuntimeError(
                f"expected leaves on one device to pack, found {first.device} and {leaf.device} at "
                f"{format_entry(path)}: move the tensordict first, with td.to(device)"
            )

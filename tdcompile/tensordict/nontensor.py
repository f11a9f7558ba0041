"""``NonTensorData``: an entry that is no tensor; and what becomes of a value that is stored.

Key names: :class:`NonTensorData`, :func:`is_non_tensor`, :func:`to_leaf` (value -> entry).

Invariant: a ``NonTensorData`` is never changed after it was made, so that several tensordicts may
hold the same object.
"""

from __future__ import annotations

from typing import Any

import torch

_PYTHON_SCALARS = (bool, int, float)


class NonTensorData:
    """A value that is no tensor, with the batch size of the tensordict that holds it.

    ``td["s"] = "x"`` stores ``NonTensorData("x", batch_size=td.batch_size)``; ``td["s"]`` gives
    ``"x"`` back and ``td.get("s")`` the ``NonTensorData``. Leaf-wise operations pass the same
    object through; shape operations and indexing make one with another batch size.

    Args:
        data: any object; kept as it is, never copied.
        batch_size: leading dimensions ``(*B,)``.
        device: kept for information only.

    Example:
        >>> NonTensorData("x", batch_size=[3])
        NonTensorData(data='x', batch_size=[3])
    """

    __slots__ = ("__weakref__", "_batch_size", "_device", "data")

    def __init__(self, data: Any, batch_size: Any = None, device: Any = None) -> None:
        self.data: Any = data.data if isinstance(data, NonTensorData) else data
        if batch_size is None:
            batch_size = ()
        elif isinstance(batch_size, int):
            batch_size = (batch_size,)
        self._batch_size = torch.Size(batch_size)
        self._device = None if device is None else torch.device(device)

    @property
    def batch_size(self) -> torch.Size:
        """The batch size ``(*B,)``."""
        return self._batch_size

    @property
    def shape(self) -> torch.Size:
        """The batch size: a non-tensor value has no trailing dimensions."""
        return self._batch_size

    @property
    def batch_dims(self) -> int:
        """The number of batch dimensions."""
        return len(self._batch_size)

    @property
    def device(self) -> torch.device | None:
        """The device that was given, or ``None``."""
        return self._device

    def _with_batch_size(self, batch_size: torch.Size) -> NonTensorData:
        """Return the same data with another batch size; itself if the batch size is the same."""
        if batch_size == self._batch_size:
            return self
        return NonTensorData(self.data, batch_size, self._device)

    def tolist(self) -> Any:
        """Return `data` repeated into nested lists of the batch size; bare `data` without one.

        Example:
            >>> NonTensorData("x", batch_size=[2]).tolist()
            ['x', 'x']
        """
        result = self.data
        for size in reversed(self._batch_size):
            result = [result] * size
        return result

    def __eq__(self, other: object) -> Any:
        """Compare the data; batch sizes count only between two ``NonTensorData``."""
        if isinstance(other, NonTensorData):
            return self._batch_size == other._batch_size and self.data == other.data
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # the data may be unhashable

    def __repr__(self) -> str:
        device = "" if self._device is None else f", device={self._device}"
        return f"NonTensorData(data={self.data!r}, batch_size={list(self._batch_size)}{device})"

    def __reduce__(self) -> tuple[Any, ...]:
        return NonTensorData, (self.data, tuple(self._batch_size), self._device)


def is_non_tensor(data: Any) -> bool:
    """Tell whether `data` is a ``NonTensorData`` (an instance or the class)."""
    if isinstance(data, type):
        return issubclass(data, NonTensorData)
    return isinstance(data, NonTensorData)


def to_leaf(value: Any, batch_size: torch.Size) -> torch.Tensor | NonTensorData:
    """Return what a tensordict of `batch_size` stores for a value that is no tensor and no mapping.

    Numbers, numpy arrays of numbers and (nested) sequences of numbers or tensors become tensors (a
    numpy array shares its memory); everything else becomes a ``NonTensorData``. Shapes are not
    checked here.
    """
    kind = type(value)
    if kind in _PYTHON_SCALARS:
        return torch.tensor(value)
    if kind is str or value is None:
        return NonTensorData(value, batch_size)
    if isinstance(value, NonTensorData):
        if value._batch_size[: len(batch_size)] == batch_size:
            return value
        return value._with_batch_size(batch_size)
    if isinstance(value, (list, tuple)) or kind.__module__ == "numpy":
        # A trace ends where torch refuses a value, so what is plainly no tensor is not offered.
        tensor = None if _holds_text(value) else _try_tensor(value)
        if tensor is not None:
            return tensor
    elif isinstance(value, (int, float)):
        return torch.tensor(value)
    return NonTensorData(value, batch_size)


def _holds_text(value: Any) -> bool:
    """Tell whether a (nested) sequence has an item that is text, a mapping or ``None``."""
    if isinstance(value, (list, tuple)):
        return any(_holds_text(item) for item in value)
    return value is None or isinstance(value, (str, bytes, dict))


def _try_tensor(value: Any) -> torch.Tensor | None:
    # Whether torch can convert a sequence or an array is known only by asking it to.
    try:
        if isinstance(value, (list, tuple)):
            if len(value) > 0 and all(isinstance(item, torch.Tensor) for item in value):
                return torch.stack(list(value))
            return torch.tensor(value)
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        return None

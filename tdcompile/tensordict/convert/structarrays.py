"""Numpy arrays of records (structured arrays) as tensordicts, and back.

Key names: :class:`StructArraysMixin` (``from_struct_array``, ``to_struct_array``).

Symbols: ``*B`` batch dimensions, ``*F`` trailing dimensions of a leaf; a leaf is ``(*B, *F)``.

Invariant: the shape of an array is the batch size, one field is one entry. numpy is imported only
when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.convert.forms import bare
from tdcompile.tensordict.nontensor.data import NonTensorData, NonTensorEntry
from tdcompile.tensordict.nontensor.stack import NonTensorStack
from tdcompile.tensordict.state import TensorDictState

if TYPE_CHECKING:
    import numpy as np

# Text shorter than this gets so many characters anyway.
_MIN_TEXT = 10
# Dtypes of numpy that stay as they are: text, bytes, times.
_TEXT_KINDS = "USMm"


class StructArraysMixin(TensorDictState):
    """Conversions from and to structured arrays."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __init__(self, source: Any = None, *args: Any, **kwargs: Any) -> None: ...

    @classmethod
    def from_struct_array(
        cls,
        struct_array: np.ndarray,
        *,
        auto_batch_size: bool = False,
        batch_dims: int | None = None,
        device: Any = None,
        batch_size: Any = None,
    ) -> Self:
        """Return a tensordict with the fields of a structured array, which share its memory.

        A field that torch cannot view is copied: its item size does not divide that of a record, or
        there is a `device` other than the CPU. Fields of text and objects become non-tensor
        entries.

        Args:
            struct_array: array ``(*B,)`` of records.
            auto_batch_size: take the longest leading shape that all leaves share.
            batch_dims: with `auto_batch_size`, at most so many batch dimensions.
            device: every leaf is moved there.
            batch_size: the batch size, in place of the shape of the array.

        Raises:
            TypeError: if the array has no fields, or both `batch_size` and `auto_batch_size` are
                given.

        Example:
            >>> import numpy
            >>> records = numpy.zeros(2, dtype=[("a", "f4", (3,)), ("s", "U5")])
            >>> td = TensorDict.from_struct_array(records)
            >>> td.batch_size, td["a"].shape
            (torch.Size([2]), torch.Size([2, 3]))
        """
        if auto_batch_size and batch_size is not None:
            raise TypeError(
                "expected either batch_size or auto_batch_size, found both: "
                f"batch_size={batch_size!r}"
            )
        if getattr(struct_array.dtype, "names", None) is None:
            raise TypeError(
                f"expected an array of records, found dtype {struct_array.dtype}, which has no "
                "fields: use torch.from_numpy for an array of numbers"
            )
        size = struct_array.shape if batch_size is None else batch_size
        result: Any = cls(_fields_of(cls, struct_array), size, device=device)
        if auto_batch_size:
            result.auto_batch_size_(batch_dims)
        return result  # type: ignore[no-any-return]

    def to_struct_array(self) -> np.ndarray:
        """Return a copy as a structured array ``(*B,)`` with one field an entry.

        Nested tensordicts become nested fields; non-tensor entries become text, unless they are
        numpy arrays that start with the batch size.

        Raises:
            TypeError: if numpy has no dtype for that of a leaf.

        Example:
            >>> td = TensorDict({"a": torch.tensor([1, 2]), "s": "x"}, [2])
            >>> td.to_struct_array()["s"].tolist()
            ['x', 'x']
        """
        import numpy as np

        size = self._batch_size
        columns = _columns(self, size)
        array = np.empty(tuple(size), dtype=_dtype(columns, len(size)))
        _fill(array, columns)
        return array


def _fields_of(cls: Any, array: Any) -> dict[str, Any]:
    return {name: _field(cls, array[name]) for name in array.dtype.names}


def _field(cls: Any, array: Any) -> Any:
    if array.dtype.names is not None:
        return cls(_fields_of(cls, array), array.shape)
    try:
        return torch.from_numpy(array)
    except ValueError:
        return torch.from_numpy(array.copy())  # torch has no strides that are no whole elements
    except TypeError:
        # No dtype of torch: text, objects, times. A record has a value and not an array.
        return torch.tensor(array) if array.dtype.kind in "biufc" else _non_tensor(array)


def _non_tensor(array: Any) -> NonTensorEntry:
    """One value for each record."""
    if getattr(array, "ndim", 0) == 0:
        return NonTensorData(array.item())
    return NonTensorStack.from_list(array.tolist())


def _columns(td: Any, size: torch.Size) -> dict[str, Any]:
    """Return the entries as arrays that start with `size`, nested ones as dictionaries."""
    import numpy as np

    columns: dict[str, Any] = {}
    for name, value in td._entries.items():
        if isinstance(value, Tensor):
            columns[name] = value.numpy(force=True)
        elif isinstance(value, TensorCollection):
            columns[name] = _columns(value, size)
        else:
            data = bare(value)
            if not isinstance(data, np.ndarray) or data.shape[: len(size)] != tuple(size):
                texts = np.array(data)
                if texts.dtype.kind not in _TEXT_KINDS:
                    texts = np.array(data if isinstance(data, list) else str(data), dtype=str)
                data = np.broadcast_to(texts, tuple(size) + texts.shape[len(size) :])
            columns[name] = data
    return columns


def _dtype(columns: dict[str, Any], ndim: int) -> Any:
    import numpy as np

    fields: list[Any] = []
    for name, column in columns.items():
        if isinstance(column, dict):
            fields.append((name, _dtype(column, ndim)))
            continue
        dtype = column.dtype
        if dtype.kind == "U":
            dtype = f"U{max(_MIN_TEXT, dtype.itemsize // 4)}"
        fields.append((name, dtype, column.shape[ndim:]) if column.ndim > ndim else (name, dtype))
    return np.dtype(fields)


def _fill(array: Any, columns: dict[str, Any]) -> None:
    for name, column in columns.items():
        if isinstance(column, dict):
            _fill(array[name], column)
        else:
            array[name] = column

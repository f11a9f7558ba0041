"""``MemoryMappedTensor``: a tensor whose memory is a file, or memory that processes share.

Key names: :class:`MemoryMappedTensor`, :func:`map_file`.

Invariant: the file of a tensor is at least as long as the tensor says when it is mapped; indexing
keeps the file, operations give plain tensors.
"""

from __future__ import annotations

import os
import secrets
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from tdcompile.errors import StorageError
from tdcompile.tensordict.storage.paths import check_mode, check_size, nbytes_of


class SharedBuffer:
    """Memory without a file that processes share: what ``from_handler`` takes.

    Args:
        storage: the memory.
    """

    __slots__ = ("storage",)

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage


class MemoryMappedTensor(Tensor):
    """A CPU tensor that maps a file, or anonymous memory that processes share.

    Make one with ``from_tensor``, ``from_filename``, ``empty``, ``zeros``, ``ones`` or ``full``.
    ``filename=None`` means anonymous shared memory, which lasts as long as a process uses it.
    Indexing, ``split``, ``chunk`` and ``unbind`` give tensors that map the same file; operations
    give plain tensors. A tensor with a file is pickled as the name of the file and what part of it
    it maps; one without is pickled by value, and sent to another process as it is.

    Args:
        source: a tensor, see :meth:`from_tensor`.

    Example:
        >>> MemoryMappedTensor.from_tensor(torch.arange(3))
        MemoryMappedTensor([0, 1, 2])
    """

    # Operations see a plain tensor. Parameter holds the public handle on "no override".
    __torch_function__ = torch.nn.Parameter.__torch_function__

    _filename: str | None
    _handler: SharedBuffer | None
    _mode: str | None
    _file_id: tuple[int, int] | None = None  # of the file itself: another may take its name
    _clean_version: int  # of a mapping that nobody has written to

    def __new__(cls, source: Any, *, device: Any = None, filename: Any = None) -> Self:
        """Return :meth:`from_tensor` of `source`."""
        if device is not None and torch.device(device).type != "cpu":
            raise ValueError(
                f"expected device='cpu' for memory-mapped tensors, found {device!r}: device must "
                "be cpu, move a copy with .to(device)"
            )
        tensor = source if isinstance(source, Tensor) else torch.as_tensor(source)
        return cls.from_tensor(tensor, filename=filename)

    @classmethod
    def _wrap(
        cls,
        tensor: Tensor,
        filename: str | None,
        handler: SharedBuffer | None,
        mode: str | None = None,
        clean_version: int | None = None,
    ) -> Self:
        result: Any = tensor.as_subclass(cls)
        result._filename, result._handler, result._mode = filename, handler, mode
        result._clean_version = result._version if clean_version is None else clean_version
        return result  # type: ignore[no-any-return]

    # -- making one ----------------------------------------------------------------------------

    @classmethod
    def from_tensor(
        cls,
        input: Any,  # the name in the tensordict package
        *,
        filename: Any = None,
        existsok: bool = False,
        copy_existing: bool = False,
        copy_data: bool = True,
        shape: Any = None,
    ) -> Self:
        """Return a memory-mapped copy of a tensor.

        A memory-mapped tensor comes back as it is if it already maps `filename`, or if both have
        no file.

        Args:
            input: a tensor ``(*F)`` on any device, without gradient.
            filename: the file to write; ``None`` for anonymous shared memory.
            existsok: replace a file that is there.
            copy_existing: copy a tensor that has a file to another one.
            copy_data: otherwise shape and dtype count only, the content is zero.
            shape: a shape that `input` is broadcast to.

        Raises:
            StorageError: if `input` requires a gradient, has another file and ``copy_existing`` is
                false, if `filename` is there and ``existsok`` is false, or is a symlink.
            TypeError: if `input` is no tensor.

        Example:
            >>> mapped = MemoryMappedTensor.from_tensor(torch.ones(()), shape=(2, 2))
            >>> mapped.shape, mapped.is_shared()
            (torch.Size([2, 2]), True)
        """
        if not isinstance(input, Tensor):
            raise TypeError(
                f"expected a tensor, found {type(input).__name__}: convert it with torch.as_tensor"
            )
        if input.requires_grad:
            raise StorageError(
                "expected a tensor that needs no gradient, found tensor.requires_grad: a file "
                "holds no graph; pass tensor.detach()"
            )
        path = None if filename is None else os.path.abspath(filename)
        if isinstance(input, MemoryMappedTensor) and shape is None:
            if path is None and input._filename is None:
                return input  # type: ignore[return-value]
            if path is not None and input._filename == path and input._mode != "r":
                return input  # type: ignore[return-value]
        if (
            path is not None
            and not copy_existing
            and isinstance(input, MemoryMappedTensor)
            and input._filename is not None
            and input._filename != path
        ):
            raise StorageError(
                "A filename was provided but the tensor already has a file associated "
                f"({input._filename}): pass copy_existing=True to copy it to {path}"
            )
        size = input.shape if shape is None else _as_shape(shape)
        return cls._filled(size, input.dtype, path, existsok, input if copy_data else None)

    @classmethod
    def _filled(
        cls,
        size: torch.Size,
        dtype: torch.dtype,
        path: str | None,
        existsok: bool,
        value: Any = None,
    ) -> Self:
        """Make a tensor, with the elements of `value` or zeros."""
        if path is None:
            plain: Any = torch.zeros(size, dtype=dtype, device="cpu")
            plain.share_memory_()
            if value is not None:
                _fill(plain, value)
            return cls._wrap(plain, None, SharedBuffer(plain.untyped_storage()))
        check_target(path, existsok)
        # Written next to it and renamed: a reader of the old file keeps it, a failure leaves it.
        draft = draft_name(path)
        try:
            write_tensor(draft, size, dtype, value)
            os.replace(draft, path)
        finally:
            if os.path.lexists(draft):
                os.unlink(draft)
        return cls.from_filename(path, dtype, size)

    @classmethod
    def from_filename(
        cls,
        filename: Any,
        dtype: torch.dtype,
        shape: Any,
        index: Any = None,
        mode: str | None = None,
    ) -> Self:
        """Map a file of raw elements without header.

        Args:
            filename: the file, at least as long as the tensor.
            dtype: its dtype.
            shape: its shape ``(*F)``.
            index: what to index the result with.
            mode: ``"r"`` maps copy-on-write: writes stay in memory; ``"r+"``: writes reach the
                file; ``None``: ``"r+"`` if the file may be written, else ``"r"``.

        Raises:
            DamagedFileError: if the file is missing or too short.
            StorageError: if `mode` is anything else.
            PermissionError: if ``mode="r+"`` and the file may not be written.
        """
        check_mode(mode)
        path = os.path.abspath(filename)
        size = _as_shape(shape)
        result = cls._wrap(map_file(path, dtype, size, mode), path, None, mode)
        result._file_id = file_id(path)
        return result if index is None else result[index]

    @classmethod
    def from_handler(cls, handler: Any, dtype: torch.dtype, shape: Any, index: Any = None) -> Self:
        """View anonymous shared memory; `handler` is that of another memory-mapped tensor."""
        size = _as_shape(shape)
        plain = torch.empty(0, dtype=dtype).set_(handler.storage, 0, size)  # type: ignore[call-overload]
        result = cls._wrap(plain, None, handler)
        return result if index is None else result[index]

    @classmethod
    def from_storage(
        cls,
        storage: Any,
        *,
        shape: Any = None,
        dtype: torch.dtype | None = None,
        device: Any = None,
        index: Any = None,
        filename: Any = None,
        handler: Any = None,
    ) -> Self:
        """View a storage that is there; nothing is copied.

        Args:
            storage: an untyped or typed storage on the CPU.
            shape: of the result; one dimension by default.
            dtype: of the result.
            device: the CPU, or ``None``.
            index: what to index the result with.
            filename: the file that the storage maps, if it does not say so itself.
            handler: for a storage without a file, what shares it.

        Raises:
            StorageError: if the storage maps another file than `filename`, or is too small.
        """
        if dtype is None:
            dtype = getattr(storage, "dtype", torch.int64)
        untyped = storage.untyped() if hasattr(storage, "untyped") else storage
        own = untyped.filename
        path = None if filename is None else os.path.abspath(filename)
        if own is not None and path is not None and os.path.abspath(own) != path:
            raise StorageError(
                "Providing a storage with an associated filename that differs from the filename "
                f"argument is not permitted: expected {path}, found {own}; leave filename out"
            )
        path = os.path.abspath(own) if own is not None else path
        size = torch.Size([untyped.nbytes() // dtype.itemsize]) if shape is None else None
        size = _as_shape(shape) if size is None else size
        if nbytes_of(size, dtype) > untyped.nbytes():
            raise StorageError(
                f"expected a storage of at least {nbytes_of(size, dtype)} bytes for shape "
                f"{list(size)}, found {untyped.nbytes()} bytes"
            )
        plain = torch.empty(0, dtype=dtype).set_(untyped, 0, size)  # type: ignore[call-overload]
        if handler is None and path is None:
            handler = SharedBuffer(untyped)
        result = cls._wrap(plain, path, handler)
        return result if index is None else result[index]

    @classmethod
    def empty(cls, *args: Any, **kwargs: Any) -> Self:
        """Return a tensor of a shape, ``(2, 3)`` or ``2, 3``, of unspecified values.

        Args:
            *args: the shape; also the keyword ``shape``.
            **kwargs: ``dtype``, ``device`` (the CPU), ``filename``, ``existsok``.

        Raises:
            TypeError: without a shape.
            RuntimeError: for another device.
        """
        return cls._factory(args, kwargs, None)

    @classmethod
    def zeros(cls, *args: Any, **kwargs: Any) -> Self:
        """Return a tensor of zeros; arguments as in :meth:`empty`."""
        return cls._factory(args, kwargs, None)

    @classmethod
    def ones(cls, *args: Any, **kwargs: Any) -> Self:
        """Return a tensor of ones; arguments as in :meth:`empty`."""
        return cls._factory(args, kwargs, 1)

    @classmethod
    def full(cls, *args: Any, fill_value: Any = None, **kwargs: Any) -> Self:
        """Return a tensor filled with a value; arguments as in :meth:`empty`.

        Example:
            >>> MemoryMappedTensor.full(3, fill_value=2, dtype=torch.int64)
            MemoryMappedTensor([2, 2, 2])
        """
        rest = list(args)
        if fill_value is None and len(rest) == 2 and not isinstance(rest[0], int):
            fill_value = rest.pop()
        if fill_value is None:
            raise TypeError("expected the value to fill with, found none: pass fill_value=...")
        return cls._factory(tuple(rest), kwargs, fill_value)

    @classmethod
    def empty_like(cls, input: Tensor, *, filename: Any = None) -> Self:
        """Return a tensor of unspecified values with the shape and dtype of another."""
        return cls._factory((input.shape,), {"dtype": input.dtype, "filename": filename}, None)

    @classmethod
    def zeros_like(cls, input: Tensor, *, filename: Any = None) -> Self:
        """Return a tensor of zeros with the shape and dtype of another."""
        return cls._factory((input.shape,), {"dtype": input.dtype, "filename": filename}, None)

    @classmethod
    def ones_like(cls, input: Tensor, *, filename: Any = None) -> Self:
        """Return a tensor of ones with the shape and dtype of another."""
        return cls._factory((input.shape,), {"dtype": input.dtype, "filename": filename}, 1)

    @classmethod
    def full_like(cls, input: Tensor, fill_value: Any, *, filename: Any = None) -> Self:
        """Return a tensor filled with a value, with the shape and dtype of another."""
        kwargs = {"dtype": input.dtype, "filename": filename}
        return cls._factory((input.shape,), kwargs, fill_value)

    @classmethod
    def _factory(cls, args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> Self:
        shape = kwargs.pop("shape", None)
        dtype, device = kwargs.pop("dtype", None), kwargs.pop("device", None)
        filename, existsok = kwargs.pop("filename", None), kwargs.pop("existsok", False)
        if kwargs or (shape is None) == (len(args) == 0):
            found = f"unknown arguments {sorted(kwargs)}" if kwargs else f"{args!r}"
            raise TypeError(
                f"expected a shape, as ints, as one sequence or as shape=..., found {found}"
            )
        if device is not None and torch.device(device).type != "cpu":
            raise RuntimeError(
                f"expected device='cpu', found {device!r}: Only CPU tensors are supported"
            )
        if shape is None:
            shape = args if isinstance(args[0], int) else args[0]
        size = _as_shape(shape)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        path = None if filename is None else os.path.abspath(filename)
        return cls._filled(size, dtype, path, existsok, value)

    # -- what it is ----------------------------------------------------------------------------

    @property
    def filename(self) -> str:
        """The absolute path of the file.

        Raises:
            StorageError: if the tensor is in anonymous shared memory.
        """
        if self._filename is None:
            raise StorageError(
                "expected a tensor that maps a file, found one in anonymous shared memory: it has "
                "no filename; give it one with MemoryMappedTensor.from_tensor(t, filename=...)"
            )
        return self._filename

    # -- parts of it ---------------------------------------------------------------------------

    def _plain(self) -> Any:
        return self.as_subclass(Tensor)

    def _part(self, tensor: Any) -> Any:
        """Return what maps the same memory as a memory-mapped tensor, anything else as it is."""
        if type(tensor) is not Tensor:
            return tensor
        if tensor.untyped_storage().data_ptr() != self.untyped_storage().data_ptr():
            return tensor
        return self._wrap(tensor, self._filename, self._handler, self._mode, self._clean_version)

    def _parts(self, tensors: Any) -> Any:
        return type(tensors)(self._part(tensor) for tensor in tensors)

    def __getitem__(self, index: Any) -> Any:
        """Index; a view maps the same file, a copy is a plain tensor."""
        return self._part(super().__getitem__(index))

    def __format__(self, spec: str) -> str:
        # As for a plain tensor: an element is formatted as its number.
        return format(self.item() if self.ndim == 0 else str(self), spec)

    # -- copies --------------------------------------------------------------------------------

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a plain tensor: a copy in memory does not write to the file."""
        if id(self) not in memo:
            memo[id(self)] = self.as_subclass(Tensor).clone()
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A copy-on-write mapping that was written to is no longer what the file holds.
        is_private = self.untyped_storage().filename is None
        if self._filename is None or (is_private and self._version != self._clean_version):
            # Only the elements that it has, not all of the memory that it is a part of.
            return _from_value, (self.as_subclass(Tensor).clone(),)
        offset = self.storage_offset()
        return _from_file, (
            self._filename,
            self._mode,
            self.dtype,
            tuple(self.shape),
            self.stride(),
            offset,
        )


def _keeping_the_file(name: str) -> Any:
    function = getattr(Tensor, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            # A graph knows plain tensors.
            return function(self, *args, **kwargs)
        result = function(self.as_subclass(Tensor), *args, **kwargs)
        return self._parts(result) if isinstance(result, tuple | list) else self._part(result)

    method.__name__ = name
    method.__doc__ = f"As ``torch.Tensor.{name}``; what is a view maps the same file."
    return method


# fmt: off
_VIEWS = (
    "as_strided", "chunk", "detach", "diagonal", "expand", "expand_as", "flatten", "hsplit",
    "moveaxis", "movedim", "narrow", "permute", "ravel", "reshape", "reshape_as", "select", "split",
    "squeeze", "swapaxes", "swapdims", "t", "tensor_split", "transpose", "unbind", "unflatten",
    "unfold", "unsqueeze", "view", "view_as",
)
# fmt: on
for _name in _VIEWS:
    setattr(MemoryMappedTensor, _name, _keeping_the_file(_name))


def _from_value(value: Tensor) -> MemoryMappedTensor:
    return MemoryMappedTensor.from_tensor(value)


def _from_file(
    path: str,
    mode: str | None,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
) -> MemoryMappedTensor:
    last = offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    count = 0 if 0 in shape else last + 1
    flat = map_file(path, dtype, torch.Size([count]), mode)
    part = flat.as_strided(shape, stride, offset) if count else flat.new_empty(shape)
    return MemoryMappedTensor._wrap(part, path, None, mode)


def _from_shared(
    part: Tensor, filename: str | None, mode: str | None
) -> MemoryMappedTensor:  # pragma: no cover  # runs in the process that receives
    handler = SharedBuffer(part.untyped_storage()) if filename is None else None
    return MemoryMappedTensor._wrap(part, filename, handler, mode)


def _reduce_for_process(tensor: Any) -> Any:
    """Send anonymous shared memory itself; a mapped file goes by its name, the rest by value."""
    if tensor._filename is None and tensor._handler is not None and tensor.is_shared():
        return _from_shared, (tensor.as_subclass(Tensor), None, tensor._mode)
    return tensor.__reduce_ex__(2)


ForkingPickler.register(MemoryMappedTensor, _reduce_for_process)


# -- files -------------------------------------------------------------------------------------


def _as_shape(shape: Any) -> torch.Size:
    if isinstance(shape, Tensor):
        if shape.ndim > 1:
            raise NotImplementedError(
                "expected one shape, found a tensor of shapes: nested tensors cannot be mapped; "
                "use a lazy stack of tensordicts or a padded tensor"
            )
        shape = shape.tolist()
    return torch.Size((shape,) if isinstance(shape, int) else shape)


def map_file(path: str, dtype: torch.dtype, size: torch.Size, mode: str | None) -> Tensor:
    """Map a file as a plain tensor of contiguous elements.

    Raises:
        DamagedFileError: if it is missing or shorter than that.
        PermissionError: if ``mode="r+"`` and it may not be written.
    """
    nbytes = nbytes_of(size, dtype)
    if nbytes == 0:
        return torch.empty(size, dtype=dtype, device="cpu")
    if is_tracing_fake():
        return torch.empty(size, dtype=dtype)
    check_size(path, nbytes)
    writable = mode != "r" and os.access(path, os.W_OK)
    if mode == "r+" and not writable:
        raise PermissionError(
            f"expected a file that may be written with mode='r+', found {path}: load with mode='r'"
        )
    storage = torch.UntypedStorage.from_file(path, writable, nbytes)
    return torch.empty(0, dtype=dtype).set_(storage, 0, size)  # type: ignore[call-overload,no-any-return]


def file_id(path: str) -> tuple[int, int] | None:
    """Return what tells a file from another one that takes its name later."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def is_tracing_fake() -> bool:
    """Tell whether torch makes fake tensors now, which have no memory to map."""
    return type(torch.empty(0, device="cpu")) is not Tensor


def draft_name(path: str) -> str:
    """Return a name next to `path` to write to before it is renamed."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{secrets.token_hex(4)}.tmp")


def check_target(path: str, existsok: bool) -> None:
    """Raise if a file may not be written: it is there, or is a link to another place."""
    if os.path.islink(path):
        raise StorageError(
            f"expected a plain file or none at {path}, found a symlink: nothing is written through "
            "symlink; remove it first"
        )
    if os.path.lexists(path):
        if not existsok:
            raise StorageError(
                f"The file {path} already exists: pass existsok=True to replace it, or choose "
                "another name"
            )
        if not os.path.isfile(path):
            raise StorageError(f"expected a file or none at {path}, found a folder there")


def write_tensor(path: str, size: torch.Size, dtype: torch.dtype, value: Any = None) -> None:
    """Make a file of the elements of `value`, or of zeros; it must not be there."""
    nbytes = nbytes_of(size, dtype)
    with open(path, "xb") as file:
        file.truncate(nbytes)
    if nbytes and value is not None:
        storage = torch.UntypedStorage.from_file(path, True, nbytes)
        _fill(torch.empty(0, dtype=dtype).set_(storage, 0, size), value)  # type: ignore[call-overload]


def _fill(target: Tensor, value: Any) -> None:
    if isinstance(value, Tensor):
        target.copy_(value.detach())
    else:
        target.fill_(value)


def absolute(path: Any) -> Path:
    """Return an absolute path, links not followed."""
    return Path(os.path.abspath(path))

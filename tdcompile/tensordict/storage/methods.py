"""Files and shared memory, as methods of a tensordict.

Key names: :class:`StorageMixin` (``memmap``, ``memmap_``, ``load_memmap``, ``save``, ``load``,
``share_memory_``, ``consolidate``, ``pack``, ...).

Invariant: what is done is in the other files of the folder, loaded when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from tdcompile.errors import StorageError
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.state import TensorDictState
from tdcompile.tensordict.storage.memory import (
    Memory,
    children_of,
    device_of_memory,
    memory_of,
    tensors_of,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tdcompile.tensordict.storage.memmap_tensor import MemoryMappedTensor


class StorageMixin(TensorDictState):
    """Where the leaves of a tensordict are kept."""

    __slots__ = ()

    if TYPE_CHECKING:
        _memory: Memory | None
        is_locked: Any
        lock_: Any
        unlock_: Any

    # -- files ---------------------------------------------------------------------------------

    def memmap(
        self,
        prefix: Any = None,
        copy_existing: bool = False,
        *,
        num_threads: int = 0,
        return_early: bool = False,
        share_non_tensor: bool = False,
        existsok: bool = True,
        robust_key: bool | None = True,
        archive: bool | None = None,
        compression: Any = None,
        atomic: bool = False,
        allow_pickle: bool = False,
    ) -> Any:
        """Write every leaf to a file and return a tensordict of leaves that map the files.

        A leaf is written to ``<prefix>/<key>.memmap``, a nested tensordict to a folder, and each
        level has a ``meta.json``; the ``tensordict`` package reads the folder, and we read its.
        Files are written under other names and renamed when all are there. The result is locked.

        Args:
            prefix: the folder; a file if it ends with ``.tdz``; ``None`` for the folder that the
                tensordict maps already, or for anonymous shared memory.
            copy_existing: copy leaves that map other files; otherwise that is an error.
            num_threads: write so many files at a time.
            return_early: return a future at once; ``future.result()`` waits.
            share_non_tensor: accepted; non-tensor values are never changed in place, so there is
                nothing to share.
            existsok: replace files that are there.
            robust_key: encode keys in names (``"a/b"`` as ``a%2Fb``); otherwise keys must be names.
            archive: write one zip file; ``None`` decides by the suffix ``.tdz``.
            compression: of an archive: ``"deflate"``, ``"bzip2"``, ``"lzma"``.
            atomic: write a new folder that takes the place of the old one as a whole.
            allow_pickle: save non-tensor values that JSON does not keep by pickle. A value that is
                changed later reaches the file when the tensordict is saved again.

        Returns:
            A new tensordict; for an archive, one of views of a copy-on-write mapping, not locked.

        Raises:
            StorageError: if a leaf maps another file, or a file is there and must not be.
            UnsafeFileError: if a value would have to be pickled, or a link is in the way.

        Example:
            >>> mapped = TensorDict({"a": torch.ones(3)}).memmap()
            >>> mapped.is_memmap(), mapped.is_locked
            (True, True)
        """
        from tdcompile.tensordict.storage.save import save

        return save(
            self,
            prefix,
            copy_existing=copy_existing,
            num_threads=num_threads,
            return_early=return_early,
            existsok=existsok,
            robust_key=robust_key,
            archive=archive,
            compression=compression,
            atomic=atomic,
            allow_pickle=allow_pickle,
        )

    def save(self, prefix: Any = None, copy_existing: bool = False, **kwargs: Any) -> Any:
        """Write the tensordict to files and return a mapped copy; arguments as in :meth:`memmap`.

        Files that are there are replaced.
        """
        return self.memmap(prefix, copy_existing, **{**kwargs, "existsok": True})

    dumps = save

    def memmap_(
        self,
        prefix: Any = None,
        copy_existing: bool = False,
        *,
        num_threads: int = 0,
        return_early: bool = False,
        share_non_tensor: bool = False,
        existsok: bool = True,
        robust_key: bool | None = True,
        atomic: bool = False,
        allow_pickle: bool = False,
    ) -> Any:
        """Write every leaf to a file and put leaves that map the files into this tensordict.

        Arguments as in :meth:`memmap`. The device becomes the CPU, the tensordict is locked. If
        something fails, the tensordict has its old leaves.

        Returns:
            Itself, or a future of it.

        Raises:
            StorageError: as :meth:`memmap`, or if the tensordict is in shared memory.
        """
        from tdcompile.tensordict.storage.save import save

        return save(
            self,
            prefix,
            inplace=True,
            copy_existing=copy_existing,
            num_threads=num_threads,
            return_early=return_early,
            existsok=existsok,
            robust_key=robust_key,
            archive=False,
            atomic=atomic,
            allow_pickle=allow_pickle,
        )

    def memmap_like(
        self,
        prefix: Any = None,
        copy_existing: bool = False,
        *,
        existsok: bool = True,
        num_threads: int = 0,
        return_early: bool = False,
        share_non_tensor: bool = False,
        robust_key: bool | None = True,
        archive: bool | None = None,
        allow_pickle: bool = False,
    ) -> Any:
        """Return a mapped tensordict of zeros with the same keys, shapes and dtypes.

        Use it for a buffer that is filled later. A file that is there (``existsok=True``) is
        mapped as it is, if it is long enough; an archive is always made anew, and writes reach it.
        Arguments as in :meth:`memmap`.

        Example:
            >>> td = TensorDict({"a": torch.ones(3)}, batch_size=[3]).memmap_like()
            >>> td["a"]
            MemoryMappedTensor([0., 0., 0.])
        """
        from tdcompile.tensordict.storage.save import save

        return save(
            self,
            prefix,
            like=True,
            num_threads=num_threads,
            return_early=return_early,
            existsok=existsok,
            robust_key=robust_key,
            archive=archive,
            allow_pickle=allow_pickle,
        )

    @classmethod
    def load_memmap(
        cls,
        prefix: Any,
        device: Any = None,
        non_blocking: bool = False,
        *,
        out: Any = None,
        robust_key: bool | None = True,
        subpath: Any = None,
        mode: str | None = None,
        num_threads: int = 0,
        allow_pickle: bool | None = None,
        verify: bool = True,
    ) -> Any:
        """Load a tensordict that :meth:`memmap` or :meth:`save` wrote; its leaves map the files.

        The result has the class that was saved and is not locked. Sizes are checked against the
        metadata before a file is mapped; nothing is unpickled unless `allow_pickle` says so.

        Args:
            prefix: the folder or the archive.
            device: where the leaves go; ``"meta"`` reads no tensor at all.
            non_blocking: let moves run asynchronously.
            out: a tensordict to put the loaded leaves into; keys that were not saved are removed.
            robust_key: look for files by encoded keys first, then by the bare key.
            subpath: the nested tensordict to load, as a key or as ``"a/b"``.
            mode: ``"r"`` maps copy-on-write; ``"r+"`` maps so that writes reach the files;
                ``None`` is ``"r"`` for an archive, and for a folder ``"r+"`` where it may be
                written.
            num_threads: decompress so many leaves of a compressed archive at a time.
            allow_pickle: unpickle values that were pickled; that may run any code.
            verify: compare the checksums of an archive, which reads all of what is loaded.

        Returns:
            The tensordict, or `out`.

        Raises:
            DamagedFileError: if a file is missing, cut short or altered; nothing is loaded.
            UnsafeFileError: if a value is pickled, or a path leads out of `prefix`.
            StorageError: if `prefix`, `subpath` or `mode` is not one.
        """
        from tdcompile.tensordict.storage.load import load_memmap

        if out is not None and out.device is not None:
            if device is not None and torch.device(device) != out.device:
                raise StorageError(
                    f"expected device to be that of out, {out.device}, found {device!r}"
                )
            device = out.device
        loaded = load_memmap(
            prefix,
            device,
            non_blocking,
            robust_key=robust_key,
            subpath=subpath,
            mode=mode,
            num_threads=num_threads,
            allow_pickle=allow_pickle,
            verify=verify,
        )
        return loaded if out is None else _put_into(out, loaded)

    @classmethod
    def load(cls, prefix: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a saved tensordict; arguments as in :meth:`load_memmap`."""
        return cls.load_memmap(prefix, *args, **kwargs)

    def load_memmap_(
        self,
        prefix: Any,
        robust_key: bool | None = True,
        *,
        allow_pickle: bool | None = None,
        mode: str | None = None,
    ) -> Self:
        """Put the leaves of a saved tensordict into this one, and return it.

        A memory-mapped tensordict maps the new folder then; arguments as in :meth:`load_memmap`.
        """
        _load_into(self, prefix, robust_key, allow_pickle, mode)
        return self

    def load_(self, prefix: Any, *args: Any, **kwargs: Any) -> Self:
        """Put the leaves of a saved tensordict into this one; see :meth:`load_memmap_`."""
        return self.load_memmap_(prefix, *args, **kwargs)

    def memmap_refresh_(self, *, allow_pickle: bool | None = None) -> Self:
        """Load again what is in the folder that this tensordict maps, and return it.

        Raises:
            StorageError: if it maps no folder.
        """
        record = memory_of(self, "memmap")
        if record is None or record.path is None:
            raise StorageError(
                "Cannot refresh a TensorDict that is not memory mapped or has no path associated: "
                "expected one that td.memmap_(prefix) gave"
            )
        _load_into(self, record.path, True, allow_pickle, None)
        return self

    def make_memmap(
        self,
        key: Any,
        shape: Any,
        *,
        dtype: torch.dtype | None = None,
        robust_key: bool | None = True,
    ) -> MemoryMappedTensor:
        """Add a tensor of zeros at `key` of a memory-mapped tensordict, in its folder; return it.

        Args:
            key: absent so far; nested tensordicts are made on the way.
            shape: of the tensor.
            dtype: of the tensor; the default dtype if ``None``.
            robust_key: encode the key in the name of the file.

        Raises:
            StorageError: if the tensordict is not memory-mapped or has the key.
        """
        from tdcompile.tensordict.storage.extend import make_memmap

        return make_memmap(self, key, shape, dtype, robust_key)

    def make_memmap_from_storage(
        self,
        key: Any,
        storage: torch.UntypedStorage,
        shape: Any,
        *,
        dtype: torch.dtype | None = None,
        robust_key: bool | None = True,
    ) -> MemoryMappedTensor:
        """Add a view of a storage at `key` of a memory-mapped tensordict; return it.

        The storage maps the file of the new entry, or the tensordict has no folder: an entry that
        is in memory only would be lost on loading.

        Raises:
            StorageError: if it does not, or as :meth:`make_memmap`.
        """
        from tdcompile.tensordict.storage.extend import make_memmap_from_storage

        return make_memmap_from_storage(self, key, storage, shape, dtype, robust_key)

    def make_memmap_from_tensor(
        self,
        key: Any,
        tensor: Tensor,
        *,
        copy_data: bool = True,
        existsok: bool = True,
        robust_key: bool | None = True,
    ) -> MemoryMappedTensor:
        """Add a copy of a tensor at `key` of a memory-mapped tensordict, in its folder; return it.

        Args:
            key: absent so far; nested tensordicts are made on the way.
            tensor: to copy.
            copy_data: otherwise shape and dtype count only.
            existsok: replace a file that is there.
            robust_key: encode the key in the name of the file.

        Raises:
            StorageError: as :meth:`make_memmap`.
        """
        from tdcompile.tensordict.storage.extend import make_memmap_from_tensor

        return make_memmap_from_tensor(self, key, tensor, copy_data, existsok, robust_key)

    def is_memmap(self) -> bool:
        """Tell whether the tensordict is memory-mapped: locked, with leaves of :meth:`memmap`.

        The result of :meth:`load_memmap` is not, in this sense: a new entry would not be mapped.
        """
        return memory_of(self, "memmap") is not None

    @property
    def saved_path(self) -> Path:
        """The folder of a memory-mapped tensordict; ``None`` in anonymous memory.

        Raises:
            AttributeError: if it is not memory-mapped.
        """
        record = memory_of(self, "memmap")
        if record is None:
            raise AttributeError(
                "expected a memory-mapped tensordict, found one that is not (or was unlocked): it "
                "has no saved_path; write it with td.memmap_(prefix)"
            )
        return record.path  # type: ignore[return-value]

    # -- shared memory -------------------------------------------------------------------------

    def share_memory_(self) -> Self:
        """Move all leaves to memory that processes share, lock the tensordict, and return it.

        Nothing happens on a CUDA device, where memory is shared already.

        Raises:
            StorageError: if the tensordict is memory-mapped.

        Example:
            >>> td = TensorDict({"a": torch.ones(3)}).share_memory_()
            >>> td.is_shared(), td["a"].is_shared(), td.is_locked
            (True, True, True)
        """
        if self.is_memmap():
            raise StorageError(
                "memmap and shared memory are mutually exclusive features: the tensordict is "
                "memory-mapped, which other processes can map too; copy it with td.clone() first"
            )
        if device_of_memory(self) == "cuda":
            return self
        leaves: list[Any] = tensors_of(self)
        for leaf in leaves:
            leaf.share_memory_()
        _mark_all(self, "shared")
        self.lock_()
        return self

    def is_shared(self) -> bool:
        """Tell whether :meth:`share_memory_` was called; on a CUDA device, always."""
        return device_of_memory(self) == "cuda" or memory_of(self, "shared") is not None

    def data_ptr(self, *, storage: bool = False) -> Any:
        """Return the addresses of the leaves as a tensordict of integers, without batch size.

        Args:
            storage: the addresses of the storages, which views share with their base.

        Example:
            >>> td = TensorDict({"a": torch.zeros(4)}, batch_size=[4])
            >>> (td[2:].data_ptr(storage=True) == td.data_ptr(storage=True)).all()
            True
        """
        from tdcompile.tensordict.dense import TensorDict

        entries: dict[str, Any] = {}
        for key, value in children_of(self):
            if isinstance(value, Tensor):
                address = value.untyped_storage().data_ptr() if storage else value.data_ptr()
                entries[key] = torch.tensor(address, dtype=torch.int64)
            elif isinstance(value, TensorCollection):
                entries[key] = value.data_ptr(storage=storage)  # type: ignore[attr-defined]
        return TensorDict._from_entries(entries, torch.Size(()), torch.device("cpu"))

    # -- one block -----------------------------------------------------------------------------

    def consolidate(
        self,
        filename: Any = None,
        *,
        num_threads: int = 0,
        device: Any = None,
        non_blocking: bool = False,
        inplace: bool = False,
        return_early: bool = False,
        use_buffer: bool = False,
        share_memory: bool = False,
        pin_memory: bool = False,
        metadata: bool = False,
    ) -> Any:
        """Copy all leaves into one block of memory and return a tensordict of views of it.

        Moving (:meth:`to`), copying (:meth:`clone`) and pickling it are one copy of the block. The
        leaves of one dtype lie together. The result is locked; unlocking it ends that it is
        consolidated. A tensordict that is what the arguments ask for comes back as it is.

        Args:
            filename: a file for the block; the metadata is written behind it, and writes to the
                leaves reach the file. Read it with :meth:`from_consolidated`.
            num_threads: copy so many leaves at a time.
            device: of the block; by default that of the tensordict.
            non_blocking: let copies between devices run asynchronously.
            inplace: put the views into this tensordict.
            return_early: return a future at once.
            use_buffer: with a file, keep the leaves in shared memory and write the file once.
            share_memory: put the block into memory that processes share.
            pin_memory: put the block into pinned memory.
            metadata: accepted; it is always at hand.

        Returns:
            A new tensordict, itself with ``inplace=True``, or a future.

        Raises:
            StorageError: with a file and a device that is not the CPU, or if an entry cannot be
                in a file.
            NotImplementedError: with ``return_early`` and ``use_buffer`` or ``non_blocking``.

        Example:
            >>> td = TensorDict({"a": torch.ones(2), "n": {"b": torch.zeros(3)}}).consolidate()
            >>> (td.data_ptr(storage=True) == td["a"].untyped_storage().data_ptr()).all()
            True
        """
        from tdcompile.tensordict.storage.consolidated import consolidate

        return consolidate(
            self,
            filename,
            num_threads=num_threads,
            device=device,
            non_blocking=non_blocking,
            inplace=inplace,
            return_early=return_early,
            use_buffer=use_buffer,
            share_memory=share_memory,
            pin_memory=pin_memory,
        )

    @classmethod
    def from_consolidated(cls, filename: Any) -> Any:
        """Return the tensordict of a file that :meth:`consolidate` wrote.

        See :func:`tdcompile.from_consolidated`.
        """
        from tdcompile.tensordict.storage.consolidated import from_consolidated

        return from_consolidated(filename)

    def is_consolidated(self) -> bool:
        """Tell whether the leaves are the views that :meth:`consolidate` made."""
        return memory_of(self, "consolidated") is not None

    @property
    def _consolidated(self) -> dict[str, Any]:
        """The block and the metadata of a consolidated tensordict, as a file would hold them."""
        from tdcompile.tensordict.storage.consolidated import raw_form

        record = memory_of(self, "consolidated")
        if record is None or record.layout is None:
            raise AttributeError("expected a consolidated tensordict: call td.consolidate() first")
        return raw_form(self, record.layout)

    # -- one tensor ----------------------------------------------------------------------------

    def pack(self, dim: int = -1, *, layout: Any = None) -> Any:
        """Return all leaves in one tensor of features ``(*B, F)``, and where each one is.

        A leaf ``(*B, *F)`` takes as many columns as ``*F`` has elements; leaves are in the order of
        their sorted keys. ``layout.unpack(tensor)`` is the reverse.

        Args:
            dim: where the columns go in the result, as in ``torch.stack``.
            layout: an earlier layout to follow; the leaves must fit it.

        Raises:
            TypeError: if there are non-tensor values, or the dtypes differ.
            RuntimeError: if the devices differ.
            IndexError: if there is no such `dim`.
            KeyError, ValueError: if the leaves do not fit `layout`.

        Example:
            >>> td = TensorDict({"p": torch.zeros(5), "v": torch.ones(5, 3)}, batch_size=[5])
            >>> flat, layout = td.pack()
            >>> flat.shape, layout.offsets
            (torch.Size([5, 4]), (0, 1))
        """
        from tdcompile.tensordict.storage.pack import pack

        return pack(self, dim, layout)


def _mark_all(value: Any, kind: str) -> None:
    if isinstance(value, TensorCollection):
        slots: Any = value
        slots._memory = Memory(kind)
        for _, child in children_of(value):
            _mark_all(child, kind)


def _put_into(out: Any, loaded: Any) -> Any:
    """Give `out` the entries of `loaded`, keeping nested tensordicts where both have them."""
    if out.is_locked:
        from tdcompile.tensordict.messages import locked_error

        raise locked_error(())
    _take_entries(out, loaded)
    return out


def _take_entries(out: Any, loaded: Any) -> None:
    if hasattr(out, "tensordicts") or hasattr(loaded, "tensordicts"):
        pairs = zip(out.tensordicts, loaded.tensordicts, strict=True)
        for own, new in pairs:
            _take_entries(own, new)
        return
    entries: dict[str, Any] = {}
    for key, value in loaded._entries.items():
        own = out._entries.get(key)
        if isinstance(own, TensorCollection) and isinstance(value, TensorCollection):
            _take_entries(own, value)
            value = own
        entries[key] = value
    out._entries.clear()
    out._entries.update(entries)
    out._batch_size, out._names = loaded._batch_size, loaded._names


def _load_into(
    td: Any, prefix: Any, robust_key: bool | None, allow_pickle: bool | None, mode: str | None
) -> None:
    from tdcompile.tensordict.storage.load import load_memmap
    from tdcompile.tensordict.storage.memmap_tensor import absolute

    was_mapped = td.is_memmap()
    if td.is_locked and not was_mapped:
        from tdcompile.tensordict.messages import locked_error

        raise locked_error(())
    loaded = load_memmap(
        prefix, td.device, robust_key=robust_key, allow_pickle=allow_pickle, mode=mode
    )
    if was_mapped:
        td.unlock_()
    _take_entries(td, loaded)
    path = absolute(prefix)
    if was_mapped and path.is_dir() and mode != "r":
        td.memmap_(path, robust_key=robust_key, allow_pickle=bool(allow_pickle))

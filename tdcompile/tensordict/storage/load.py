"""Loading a saved tensordict: the metadata is checked, then each file is mapped.

Key names: :func:`load_memmap`, :class:`Loader` (what the rows of ``kinds`` load with).

Invariant: everything is loaded and checked before a tensordict that is there is written to.
"""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

from tdcompile.errors import DamagedFileError, StorageError, UnsafeFileError
from tdcompile.tensordict.keys import unravel_key_to_tuple
from tdcompile.tensordict.storage.archive import Archive, is_memmap_archive
from tdcompile.tensordict.storage.kinds import kind_of_meta
from tdcompile.tensordict.storage.memmap_tensor import absolute, is_tracing_fake
from tdcompile.tensordict.storage.paths import (
    META,
    Folder,
    check_mode,
    encode_key,
    is_component,
    missing_file,
    read_json,
)

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Loader", "load_memmap", "open_source"]


class Loader:
    """What is read, and how.

    Args:
        source: a folder or an archive.
        device: where the leaves go; ``None`` leaves them where they are mapped.
        non_blocking: let moves run asynchronously.
        robust_key: look for files by encoded keys first.
        allow_pickle: unpickle the values that were pickled.
    """

    __slots__ = ("allow_pickle", "device", "non_blocking", "robust_key", "source")

    def __init__(
        self,
        source: Folder | Archive,
        device: torch.device | None = None,
        non_blocking: bool = False,
        robust_key: bool = True,
        allow_pickle: bool = False,
    ) -> None:
        self.source = source
        self.device = device
        self.non_blocking = non_blocking
        self.robust_key = robust_key
        self.allow_pickle = allow_pickle

    def meta(self, parts: tuple[str, ...]) -> dict[str, Any]:
        """Return the metadata of a folder."""
        where = (*parts, META)
        return read_json(self.source.read(where), self.source.describe(where))

    def load(self, parts: tuple[str, ...], batch_size: Any = None) -> Any:
        """Load what is in a folder; `batch_size` is that of the holder."""
        meta = self.meta(parts)
        kind = kind_of_meta(meta, self.source.describe((*parts, META)))
        return kind.load(self, parts, meta, batch_size)

    def tensor(self, parts: tuple[str, ...], dtype: torch.dtype, shape: torch.Size) -> Tensor:
        """Map a tensor, and move it to the device."""
        if self.device is not None and self.device.type == "meta":
            return torch.empty(shape, dtype=dtype, device="meta")
        if shape.numel() == 0 or is_tracing_fake():
            return torch.empty(shape, dtype=dtype, device=self.device)
        result = self.source.tensor(parts, dtype, shape)
        if self.device is None or self.device.type == "cpu":
            return result
        return result.to(self.device, non_blocking=self.non_blocking)

    def unpickle(self, parts: tuple[str, ...]) -> Any:
        """Return a pickled value.

        Raises:
            UnsafeFileError: unless the caller said that pickles may be loaded.
        """
        name = self.source.describe(parts)
        if not self.source.exists(parts):
            raise missing_file(name)
        if not self.allow_pickle:
            raise UnsafeFileError(
                f"expected no pickled value, found one in {name}: unpickling may run any code; "
                "pass allow_pickle=True if you trust who wrote the file"
            )
        try:
            return pickle.loads(self.source.read(parts))
        except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError) as error:
            raise DamagedFileError(
                f"expected a pickled value in {name}, found what does not load: {error}"
            ) from error


def open_source(prefix: Any, mode: str | None = None, verify: bool = True) -> Folder | Archive:
    """Open a saved folder or an archive.

    Raises:
        StorageError: if `prefix` is a file that is no archive.
        DamagedFileError: if there is nothing, or no metadata.
    """
    check_mode(mode)
    path = absolute(prefix)
    if path.is_file():
        if not is_memmap_archive(path):
            raise StorageError(
                f"{path} is a file but not a memory-mapped tensordict archive: expected a zip file "
                f"with {META} in it, or a folder"
            )
        return Archive(path, mode, verify)
    return Folder(path, mode)


def load_memmap(
    prefix: Any,
    device: Any = None,
    non_blocking: bool = False,
    *,
    robust_key: bool | None = True,
    subpath: Any = None,
    mode: str | None = None,
    num_threads: int = 0,
    allow_pickle: bool | None = None,
    verify: bool = True,
) -> Any:
    """Load a saved tensordict, see ``TensorDict.load_memmap``."""
    from tdcompile.tensordict.metadata import as_device

    if not (allow_pickle is None or isinstance(allow_pickle, bool)):
        raise TypeError(f"allow_pickle must be a bool or None, found {allow_pickle!r}")
    source = open_source(prefix, mode, verify)
    try:
        place = None if device is None else as_device(device)
        loader = Loader(source, place, non_blocking, robust_key is not False, bool(allow_pickle))
        parts = _subpath_parts(loader, subpath)
        if isinstance(source, Archive) and num_threads > 1 and _reads_data(place):
            with ThreadPoolExecutor(num_threads) as pool:
                source.inflate(parts, pool)
        return loader.load(parts)
    finally:
        source.close()


def _reads_data(device: torch.device | None) -> bool:
    return (device is None or device.type != "meta") and not is_tracing_fake()


def _subpath_parts(loader: Loader, subpath: Any) -> tuple[str, ...]:
    """Return the folder of a nested tensordict."""
    if subpath is None:
        return ()
    keys = tuple(subpath.split("/")) if isinstance(subpath, str) else unravel_key_to_tuple(subpath)
    parts: tuple[str, ...] = ()
    for key in keys:
        # A tensorclass has its entries one folder further down.
        inner = (*parts, "_tensordict")
        if loader.source.exists((*inner, META)):
            parts = inner
        meta = loader.meta(parts) if loader.source.exists((*parts, META)) else {}
        entry = meta.get(key)
        named = entry.get("_file") if isinstance(entry, dict) else None
        names = [named, encode_key(key), key]
        stem = next(
            (
                name
                for name in names
                if isinstance(name, str)
                and is_component(name)
                and loader.source.exists((*parts, name, META))
            ),
            None,
        )
        if stem is None:
            where = loader.source.describe(parts)
            raise StorageError(
                f"No tensordict found under subpath {subpath!r}: expected a folder with {META} for "
                f"{key!r} in {where}; the saved keys are {[k for k in meta if k[:1] != '_']}"
            )
        parts = (*parts, stem)
    return parts


def same_file(first: str, second: str) -> bool:
    """Tell whether two paths are one file."""
    try:
        return os.path.samefile(first, second)
    except OSError:
        return False

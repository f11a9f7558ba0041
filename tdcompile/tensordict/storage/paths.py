"""Names of files for keys, and reading from a folder without leaving it.

Key names: :func:`encode_key`, :func:`file_stems`, :class:`Folder` (a saved folder to read).

Invariant: a name made here is one component of a path, so it cannot lead out of its folder; a
path that is read is inside the folder after all links were followed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from typing import TYPE_CHECKING, Any

import torch

from tdcompile.errors import DamagedFileError, StorageError, UnsafeFileError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from torch import Tensor

META = "meta.json"
DATA = ".memmap"

DTYPES: dict[str, torch.dtype] = {
    str(value): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype) and not str(value).startswith("torch.q")
}
"""How a dtype is written in metadata -> the dtype; quantised ones need more than a dtype."""

# The characters that some file system refuses, as in the tensordict package.
_ESCAPED = frozenset([chr(code) for code in (*range(32), 127)]) | frozenset(' "%*/:<>?\\|')
# Room for the suffix and for the name of a temporary file.
_MAX_NAME_BYTES = 200
_CHUNK_BYTES = 1 << 20


def encode_key(key: str) -> str:
    """Return the percent-encoded name of a key, one safe component of a path.

    Different keys have different names.

    Example:
        >>> encode_key("a/b c"), encode_key(".."), encode_key("")
        ('a%2Fb%20c', '%2E%2E', '%')
    """
    if key == "":
        return "%"
    if key in (".", ".."):
        return "%2E" * len(key)
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in key)


def is_component(name: str) -> bool:
    """Tell whether `name` is one component of a path on every system, and no step up."""
    return name not in ("", ".", "..") and not any(char in name for char in "/\\\0")


def file_stems(entries: Iterable[tuple[str, bool]], robust_key: bool) -> list[str]:
    """Return the name of each entry's file or folder, without suffix.

    A name that is too long for a file system, or that another entry or the metadata has already,
    is made of a digest instead; it is written down in the metadata.

    Args:
        entries: key, and whether it is a folder.
        robust_key: encode the keys; otherwise they must be names as they are.

    Raises:
        UnsafeFileError: without `robust_key`, if a key is no name of a file.
    """
    taken = {META}
    stems: list[str] = []
    for key, is_folder in entries:
        stem = encode_key(key) if robust_key else key
        if not robust_key and not is_component(key):
            raise UnsafeFileError(
                f"expected keys that are names of files with robust_key=False, found {key!r}: "
                "save with robust_key=True (the default), which encodes them"
            )
        if not _is_usable(stem) or (stem + ("" if is_folder else DATA)) in taken:
            digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
            stem = f"%{digest[:40]}"
        taken.add(stem + ("" if is_folder else DATA))
        stems.append(stem)
    return stems


def _is_usable(stem: str) -> bool:
    try:
        return len(stem.encode()) <= _MAX_NAME_BYTES
    except UnicodeEncodeError:  # a lone surrogate
        return False


def nbytes_of(shape: torch.Size, dtype: torch.dtype) -> int:
    """Return the number of bytes of a contiguous tensor."""
    return shape.numel() * dtype.itemsize


class Folder:
    """A saved folder to read from; :class:`archive.Archive` has the same methods.

    Args:
        root: the folder.
        mode: ``"r"`` maps copy-on-write, ``"r+"`` maps so that writes reach the file, ``None`` is
            ``"r+"`` for the files that may be written and ``"r"`` for the others.
    """

    __slots__ = ("_real_root", "mode", "root")

    def __init__(self, root: Path, mode: str | None = None) -> None:
        self.root = root
        self._real_root = os.path.realpath(root)
        self.mode = mode

    def describe(self, parts: tuple[str, ...]) -> str:
        """Name a file in an error."""
        return str(self.root.joinpath(*parts))

    def path(self, parts: tuple[str, ...]) -> str:
        """Return the path of a file in the folder.

        Raises:
            UnsafeFileError: if it is outside, by its name or by a link.
        """
        for part in parts:
            if not is_component(part):
                raise UnsafeFileError(
                    f"expected the name of a file in {self.root}, found {part!r}: nothing outside "
                    "the folder is read"
                )
        path = os.path.join(self.root, *parts)
        real = os.path.realpath(path)
        if real != self._real_root and not real.startswith(
            os.path.join(self._real_root, "")  # with a separator at the end
        ):
            raise UnsafeFileError(
                f"expected a file inside {self.root}, found that {path} leads through a symlink to "
                f"{real}: nothing outside the folder is read; copy the folder with links followed"
            )
        return path

    def exists(self, parts: tuple[str, ...]) -> bool:
        """Tell whether a file is there."""
        return os.path.isfile(self.path(parts))

    def read(self, parts: tuple[str, ...]) -> bytes:
        """Return the bytes of a file.

        Raises:
            DamagedFileError: if it is missing.
        """
        path = self.path(parts)
        if not os.path.isfile(path):
            raise missing_file(self.describe(parts))
        with open(path, "rb") as file:
            return file.read()

    def tensor(self, parts: tuple[str, ...], dtype: torch.dtype, shape: torch.Size) -> Tensor:
        """Map a file as a tensor.

        Raises:
            DamagedFileError: if the file is missing or shorter than the tensor.
        """
        from tdcompile.tensordict.storage.memmap_tensor import MemoryMappedTensor

        return MemoryMappedTensor.from_filename(self.path(parts), dtype, shape, mode=self.mode)

    def close(self) -> None:
        """Nothing is open between two calls."""


def missing_file(name: str) -> DamagedFileError:
    """Make the error for a file that the metadata names and that is not there."""
    return DamagedFileError(
        f"expected a file at {name}, found none: the saved tensordict is incomplete; "
        "restore the file, nothing was loaded"
    )


def short_file(name: str, expected: int, found: int) -> DamagedFileError:
    """Make the error for a file with fewer bytes than the metadata says."""
    return DamagedFileError(
        f"expected at least {expected} bytes in {name}, found {found}: the file was cut short or "
        "its metadata changed; restore it, nothing was loaded"
    )


def check_size(path: str, nbytes: int) -> None:
    """Raise unless `path` is a regular file of at least `nbytes` bytes.

    Mapping a file that is too short gives other data, makes the file longer or kills the process.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise missing_file(path) from None
    if not stat.S_ISREG(status.st_mode):
        raise DamagedFileError(f"expected a regular file at {path}, found something else there")
    if status.st_size < nbytes:
        raise short_file(path, nbytes, status.st_size)


def read_json(data: bytes, name: str) -> dict[str, Any]:
    """Parse a metadata file.

    Raises:
        DamagedFileError: if it is no JSON object.
    """
    try:
        meta = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(
            f"expected metadata as a JSON object in {name}, found what does not parse: {error}; "
            "restore the file, nothing was loaded"
        ) from None
    if not isinstance(meta, dict):
        raise bad_field(name, "a JSON object", meta)
    return meta


def bad_field(name: str, expected: str, found: Any) -> DamagedFileError:
    """Make the error for metadata that parses and makes no sense."""
    text = repr(found)
    text = text if len(text) <= 80 else text[:77] + "..."
    return DamagedFileError(
        f"expected {expected} in {name}, found {text}: the metadata was altered; restore the file, "
        "nothing was loaded"
    )


def parse_shape(value: Any, name: str) -> torch.Size:
    """Return a shape from metadata."""
    if not isinstance(value, list) or not all(
        type(size) is int and 0 <= size < 1 << 62 for size in value
    ):
        raise bad_field(name, "a shape as a list of sizes", value)
    if math.prod(value) >= 1 << 60:
        raise bad_field(name, "a shape that fits into memory", value)
    return torch.Size(value)


def parse_dtype(value: Any, name: str) -> torch.dtype:
    """Return a dtype from metadata."""
    dtype = DTYPES.get(value) if isinstance(value, str) else None
    if dtype is None:
        raise bad_field(name, "a dtype such as 'torch.float32'", value)
    return dtype


def parse_device(value: Any, name: str) -> torch.device | None:
    """Return a device from metadata."""
    if value is None:
        return None
    try:
        return torch.device(value)
    except (RuntimeError, TypeError):
        raise bad_field(name, "a device such as 'cpu'", value) from None


def parse_names(value: Any, ndim: int, name: str) -> tuple[str | None, ...] | None:
    """Return names of dimensions from metadata; ``None`` if no dimension has one."""
    if value is None:
        return None
    if (
        not isinstance(value, list)
        or len(value) != ndim
        or not all(item is None or isinstance(item, str) for item in value)
    ):
        raise bad_field(name, f"names for {ndim} dimensions", value)
    return tuple(value) if any(item is not None for item in value) else None


def check_mode(mode: Any) -> None:
    """Raise unless `mode` is one of those that files are mapped with."""
    if mode not in (None, "r", "r+"):
        raise StorageError(f"mode must be 'r', 'r+' or None, found {mode!r}")

"""A saved folder as one zip file, whose tensors are mapped without unpacking.

Key names: :class:`Archive` (a zip file to read), :func:`write_archive`, :func:`pack_memmap`,
:func:`unpack_memmap`, :func:`is_memmap_archive`, :func:`refresh_archive_checksums`.

The layout is that of the ``tensordict`` package: the entries are the files of the folder, tensors
are stored without compression at multiples of 64 bytes.

Invariant: a name in the archive never leads out of a folder, and a tensor is read only if the
checksum of its bytes is right. Writing through a mapping makes checksums stale, so opening an
archive for writing sets them to 0, which means "not known"; ``refresh_archive_checksums`` makes
them anew.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tdcompile.errors import DamagedFileError, StorageError, UnsafeFileError
from tdcompile.tensordict.storage.paths import (
    DATA,
    META,
    Folder,
    is_component,
    missing_file,
    nbytes_of,
    short_file,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Executor

    from torch import Tensor

_ALIGNMENT = 64
_PAD_ID = 0x6474  # of the extra field that pads a header; "td"
_CHUNK_BYTES = 1 << 22
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_CRC_IN_LOCAL, _CRC_IN_CENTRAL = 14, 16
_METHODS = {
    "stored": zipfile.ZIP_STORED,
    "deflate": zipfile.ZIP_DEFLATED,
    "deflated": zipfile.ZIP_DEFLATED,
    "bzip2": zipfile.ZIP_BZIP2,
    "lzma": zipfile.ZIP_LZMA,
}


def compression_method(compression: Any) -> int:
    """Return the zip constant for the name of a compression.

    Raises:
        StorageError: if nobody knows the name.
    """
    if compression is None:
        return zipfile.ZIP_STORED
    if isinstance(compression, str) and compression.lower() in _METHODS:
        return _METHODS[compression.lower()]
    if isinstance(compression, int) and compression in _METHODS.values():
        return int(compression)
    raise StorageError(
        f"expected a compression among {sorted(_METHODS)} or a constant of zipfile, found "
        f"{compression!r}"
    )


class Archive:
    """An archive to read from, with the methods of ``paths.Folder``.

    Args:
        path: the zip file.
        mode: ``"r"`` and ``None`` map copy-on-write, ``"r+"`` so that writes reach the file.
        verify: compare the checksum of each tensor that is read.

    Raises:
        DamagedFileError: if it is no zip file that is whole.
        UnsafeFileError: if an entry has a name that leads out, or is a link.
    """

    __slots__ = ("_inflated", "_infos", "_map", "_storage", "_zip", "mode", "path", "verify")

    def __init__(self, path: Path, mode: str | None = None, verify: bool = True) -> None:
        self.path = path
        self.mode = mode
        self.verify = verify
        if mode == "r+" and not os.access(path, os.W_OK):
            raise PermissionError(
                f"expected a file that may be written with mode='r+', found {path}: load with "
                "mode='r'"
            )
        try:
            self._zip = zipfile.ZipFile(path)
        except Exception as error:  # zipfile words damage in many ways
            raise DamagedFileError(
                f"expected a zip archive at {path}, found what is none: {error}; restore the file"
            ) from error
        self._infos: dict[str, zipfile.ZipInfo] = {}
        self._inflated: dict[str, bytes] = {}
        self._map: mmap.mmap | None = None
        self._storage: Any = None
        try:
            for info in self._zip.infolist():
                self._add(info)
        except BaseException:
            self.close()
            raise

    def _add(self, info: zipfile.ZipInfo) -> None:
        name = info.filename
        where = f"{self.path}, entry {name!r}"
        parts = name.rstrip("/").split("/")
        # zipfile cuts a name at a NUL and turns the separators of the system into "/".
        if info.orig_filename != name or not all(is_component(part) for part in parts):
            raise UnsafeFileError(
                f"expected names of files inside the archive, found {where}: nothing was read"
            )
        if (info.external_attr >> 16) & 0o170000 == 0o120000:
            raise UnsafeFileError(f"expected plain files, found a link: {where}; nothing was read")
        if name.endswith("/"):
            return
        if name in self._infos:
            raise DamagedFileError(f"expected each name once, found it twice: {where}")
        self._infos[name] = info

    def describe(self, parts: tuple[str, ...]) -> str:
        """Name an entry in an error."""
        return f"{self.path}, entry {'/'.join(parts)!r}"

    def names(self) -> list[str]:
        """Return the names of all files."""
        return list(self._infos)

    def exists(self, parts: tuple[str, ...]) -> bool:
        """Tell whether a file is there."""
        return "/".join(parts) in self._infos

    def _info(self, parts: tuple[str, ...]) -> zipfile.ZipInfo:
        info = self._infos.get("/".join(parts))
        if info is None:
            raise missing_file(self.describe(parts))
        return info

    def read(self, parts: tuple[str, ...]) -> bytes:
        """Return the bytes of a file; the zip format has a checksum for them.

        Raises:
            DamagedFileError: if the file is missing or its checksum is wrong.
        """
        info = self._info(parts)
        try:
            return self._zip.read(info)
        except Exception as error:  # zipfile, zlib, lzma, bz2: each has its own
            raise self._damaged(info, str(error)) from error

    def _damaged(self, info: zipfile.ZipInfo, why: str) -> DamagedFileError:
        return DamagedFileError(
            f"expected an entry that is whole, found {self.path}, entry {info.filename!r}: {why}; "
            "restore the file, nothing was loaded"
        )

    def inflate(self, parts: tuple[str, ...], pool: Executor) -> None:
        """Decompress the tensors below a folder, several at a time."""
        prefix = "".join(part + "/" for part in parts)
        names = [
            name
            for name, info in self._infos.items()
            if name.startswith(prefix) and name.endswith(DATA) and info.compress_type
        ]
        # One handle each: reads of one ZipFile wait for each other.
        for name, data in zip(names, pool.map(self._read_alone, names), strict=True):
            self._inflated[name] = data

    def _read_alone(self, name: str) -> bytes:
        with zipfile.ZipFile(self.path) as alone:
            try:
                return alone.read(name)
            except Exception as error:
                raise self._damaged(self._infos[name], str(error)) from error

    def tensor(self, parts: tuple[str, ...], dtype: torch.dtype, shape: torch.Size) -> Tensor:
        """View the bytes of a tensor in the mapped archive; copy them if they are compressed.

        Raises:
            DamagedFileError: if the entry is missing, too short or has another checksum.
            StorageError: with ``mode="r+"``, if it cannot be mapped.
        """
        from tdcompile.tensordict.storage.memmap_tensor import MemoryMappedTensor

        info = self._info(parts)
        nbytes = nbytes_of(shape, dtype)
        if info.file_size < nbytes:
            raise short_file(self.describe(parts), nbytes, info.file_size)
        if info.compress_type != zipfile.ZIP_STORED:
            if self.mode == "r+":
                raise StorageError(
                    f"expected an entry to map, found that {self.describe(parts)} is compressed: "
                    "load it with mode='r', or unpack the archive"
                )
            data = bytearray(
                self._inflated.pop(info.filename)
                if info.filename in self._inflated
                else self.read(parts)
            )
            if len(data) < nbytes:
                raise short_file(self.describe(parts), nbytes, len(data))
            flat = torch.frombuffer(data, dtype=dtype, count=shape.numel())
            return flat.reshape(shape)
        start = self._start(info)
        view = self._bytes()
        if start + info.file_size > len(view):
            raise short_file(self.describe(parts), start + info.file_size, len(view))
        if self.verify and info.CRC and _checksum(view, start, info.file_size) != info.CRC:
            raise self._damaged(
                info,
                "its checksum is not that of its bytes; if it was written through mode='r+', run "
                "refresh_archive_checksums, or pass verify=False",
            )
        if start % dtype.itemsize:
            if self.mode == "r+":
                raise StorageError(
                    f"expected an entry to map, found that {self.describe(parts)} is not aligned: "
                    "load it with mode='r', or unpack the archive"
                )
            data = bytearray(view[start : start + nbytes])
            return torch.frombuffer(data, dtype=dtype, count=shape.numel()).reshape(shape)
        if self._storage is None:
            if self.mode == "r+":
                self._forget_checksums()
            shared = self.mode == "r+"
            self._storage = torch.UntypedStorage.from_file(str(self.path), shared, len(view))
        plain = torch.empty(0, dtype=dtype).set_(  # type: ignore[call-overload]
            self._storage, start // dtype.itemsize, shape
        )
        return MemoryMappedTensor._wrap(plain, None, None, self.mode or "r")

    def _bytes(self) -> mmap.mmap:
        if self._map is None:
            with open(self.path, "rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._map

    def _start(self, info: zipfile.ZipInfo) -> int:
        """Return where the bytes of an entry start: behind its own header."""
        view = self._bytes()
        offset = info.header_offset
        if offset < 0 or offset + _LOCAL_HEADER.size > len(view):
            raise self._damaged(info, "its header is beyond the end of the file")
        fields = _LOCAL_HEADER.unpack_from(view, offset)
        if fields[0] != b"PK\x03\x04" or fields[2] & 1:
            raise self._damaged(info, "its header is no header of a plain zip entry")
        start: int = offset + _LOCAL_HEADER.size + fields[9] + fields[10]
        return start

    def _forget_checksums(self) -> None:
        _write_checksums(self.path, self._zip, {n: 0 for n in self._infos if n.endswith(DATA)})

    def close(self) -> None:
        """Close the zip file; what was mapped stays mapped."""
        self._zip.close()
        if self._map is not None:
            self._map.close()


def _checksum(view: mmap.mmap, start: int, size: int) -> int:
    crc = 0
    with memoryview(view) as whole:
        for offset in range(start, start + size, _CHUNK_BYTES):
            crc = zlib.crc32(whole[offset : min(offset + _CHUNK_BYTES, start + size)], crc)
    return crc


def _write_checksums(path: Path, archive: zipfile.ZipFile, checksums: dict[str, int]) -> None:
    """Write the checksums of entries into their two headers, in place."""
    with open(path, "r+b") as file:
        position = archive.start_dir
        for info in archive.filelist:
            file.seek(position)
            header = file.read(46)
            if header[:4] != b"PK\x01\x02":
                raise DamagedFileError(
                    f"expected the directory of the zip archive in {path}, found other bytes"
                )
            lengths = struct.unpack_from("<3H", header, 28)
            if info.filename in checksums:
                packed = struct.pack("<L", checksums[info.filename])
                file.seek(position + _CRC_IN_CENTRAL)
                file.write(packed)
                file.seek(info.header_offset + _CRC_IN_LOCAL)
                file.write(packed)
            position += 46 + sum(lengths)


# -- writing -----------------------------------------------------------------------------------


class ArchiveWriter:
    """Writes entries one after the other, tensors aligned."""

    __slots__ = ("_method", "_zip")

    def __init__(self, file: Any, method: int, level: int | None = None) -> None:
        self._zip = zipfile.ZipFile(file, "w", method, compresslevel=level)
        self._method = method

    def add(self, name: str, write: Callable[[Any], None]) -> None:
        """Add an entry; `write` gets a file to write its bytes to."""
        entry: Any = name
        if not name.endswith(DATA) or self._method == zipfile.ZIP_STORED:
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            if name.endswith(DATA):
                # The header is 30 bytes, the name, our padding, and 20 bytes for 64-bit sizes.
                start = self._zip.start_dir + 30 + len(name.encode()) + 4 + 20
                pad = -start % _ALIGNMENT
                entry.extra = struct.pack("<2H", _PAD_ID, pad) + bytes(pad)
        with self._zip.open(entry, "w", force_zip64=True) as file:
            write(file)

    def close(self) -> None:
        """Write the directory of the archive."""
        self._zip.close()


def write_archive(
    path: Path,
    fill: Callable[[ArchiveWriter], None],
    compression: Any = None,
    level: int | None = None,
) -> None:
    """Write an archive next to `path` and rename it, so that a failure leaves what was there."""
    from tdcompile.tensordict.storage.memmap_tensor import draft_name

    method = compression_method(compression)
    # Links to an archive are followed: the file behind one is replaced.
    target = os.path.realpath(path)
    draft = draft_name(target)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        with open(draft, "xb") as file:
            writer = ArchiveWriter(file, method, level)
            try:
                fill(writer)
            finally:
                writer.close()
        os.replace(draft, target)
    finally:
        if os.path.lexists(draft):
            os.unlink(draft)


def is_memmap_archive(path: Any) -> bool:
    """Tell whether `path` is a zip file with the metadata of a tensordict.

    Example:
        >>> is_memmap_archive("nothing.tdz")
        False
    """
    try:
        if not os.path.isfile(path):
            return False
        with zipfile.ZipFile(path) as archive:
            return META in archive.namelist()
    except Exception:  # zipfile words damage in many ways
        return False


def _open(path: Any, mode: str | None = None) -> Archive:
    if not is_memmap_archive(path):
        raise StorageError(
            f"{path} is not a memory-mapped tensordict archive: expected a zip file with {META} in "
            "it, as td.save('name.tdz') writes"
        )
    return Archive(Path(os.path.abspath(path)), mode)


def folder_files(root: Path) -> list[tuple[str, ...]]:
    """Return the files of a saved folder, metadata first; drafts of other writers left out."""
    folder = Folder(root)
    found: list[tuple[str, ...]] = []
    for here, folders, files in os.walk(root):
        folders.sort()
        for name in sorted(files, key=lambda name: (name != META, name)):
            if name.startswith(".") and name.endswith(".tmp"):
                continue
            parts = (*Path(here).relative_to(root).parts, name)
            folder.path(parts)
            found.append(parts)
        for name in folders:
            folder.path((*Path(here).relative_to(root).parts, name))
    return found


def pack_memmap(
    prefix: Any, archive_path: Any, *, compression: Any = None, compresslevel: int | None = None
) -> Path:
    """Pack a saved folder into one zip archive.

    Args:
        prefix: the folder.
        archive_path: the file to write, outside the folder; replaced if it is there.
        compression: of the tensors: ``"stored"`` (the default), ``"deflate"``, ``"bzip2"``,
            ``"lzma"``; what is compressed is copied on loading, not mapped.
        compresslevel: as in ``zipfile``.

    Returns:
        The path of the archive.

    Raises:
        StorageError: if `prefix` is no saved folder or has the archive in it.
        UnsafeFileError: if a link in the folder leads out of it.
    """
    root, target = Path(os.path.abspath(prefix)), Path(os.path.abspath(archive_path))
    if not (root / META).is_file():
        raise StorageError(
            f"{root} does not look like a memory-mapped tensordict directory: expected {META} in it"
        )
    real_root, real_target = os.path.realpath(root), os.path.realpath(target)
    files = folder_files(root)
    inside = real_target.startswith(os.path.join(real_root, ""))
    if inside or any(_same(root.joinpath(*parts), target) for parts in files):
        raise StorageError(
            f"The archive path {target} must be outside the source directory {root} and must not "
            "alias a source file"
        )

    def fill(writer: ArchiveWriter) -> None:
        for parts in files:
            with open(root.joinpath(*parts), "rb") as source:
                writer.add("/".join(parts), lambda out, s=source: shutil.copyfileobj(s, out))  # type: ignore[misc]

    write_archive(target, fill, compression, compresslevel)
    return target


def _same(first: Path, second: Path) -> bool:
    return second.exists() and os.path.samefile(first, second)


def unpack_memmap(archive_path: Any, prefix: Any) -> Path:
    """Unpack an archive into a folder; all of it is checked before a file is written.

    Args:
        archive_path: the archive.
        prefix: the folder; made if it is not there, files of the same names are replaced.

    Returns:
        The path of the folder.

    Raises:
        StorageError: if there is no archive.
        DamagedFileError: if a file in the archive has another checksum.
        UnsafeFileError: if a name leads out of the folder, or the folder has a link in the way.
    """
    from tdcompile.tensordict.storage.save import write_files

    archive = _open(archive_path)
    root = Path(os.path.abspath(prefix))
    try:
        _check_all(archive)
        names = [tuple(name.split("/")) for name in archive.names()]

        def writer(parts: tuple[str, ...]) -> Callable[[str], None]:
            def write(path: str) -> None:
                with archive._zip.open("/".join(parts)) as source, open(path, "xb") as out:
                    shutil.copyfileobj(source, out)

            return write

        write_files(root, [(parts, writer(parts)) for parts in names], folders=())
    finally:
        archive.close()
    return root


def _check_all(archive: Archive) -> None:
    for name, info in archive._infos.items():
        try:
            with archive._zip.open(info) as file:
                while file.read(_CHUNK_BYTES):
                    pass
        except Exception as error:
            raise archive._damaged(archive._infos[name], str(error)) from error


def refresh_archive_checksums(archive_path: Any) -> Path:
    """Compute the checksums of an archive anew, after writes through ``mode="r+"``.

    Raises:
        StorageError: if there is no archive.
    """
    archive = _open(archive_path)
    try:
        view = archive._bytes()
        checksums: dict[str, int] = {}
        for name, info in archive._infos.items():
            if info.compress_type == zipfile.ZIP_STORED:
                start = archive._start(info)
                if start + info.file_size > len(view):
                    raise short_file(f"{archive.path}, {name}", info.file_size, len(view) - start)
                checksums[name] = _checksum(view, start, info.file_size)
        _write_checksums(archive.path, archive._zip, checksums)
    finally:
        archive.close()
    return archive.path


def iterate_chunks(tensor: Tensor) -> Iterable[memoryview]:
    """Yield the bytes of a tensor in contiguous order, without a copy where it is contiguous."""
    plain = tensor.detach().as_subclass(torch.Tensor).to("cpu")
    plain = plain.resolve_conj().resolve_neg().contiguous().reshape(-1)
    if plain.numel() == 0:
        return
    storage = plain.untyped_storage()
    start = plain.storage_offset() * plain.element_size()
    flat = torch.empty(0, dtype=torch.uint8).set_(  # type: ignore[call-overload]
        storage, start, (plain.numel() * plain.element_size(),)
    )
    yield from _memory(flat)


def _memory(flat: Tensor) -> Iterable[memoryview]:
    import ctypes

    size = flat.numel()
    buffer = (ctypes.c_ubyte * size).from_address(flat.data_ptr())
    whole = memoryview(buffer).cast("B")
    for offset in range(0, size, _CHUNK_BYTES):
        yield whole[offset : offset + _CHUNK_BYTES]

"""Saving a tensordict into a folder or an archive, or into shared memory.

Key names: :func:`save` (what ``memmap``, ``memmap_`` and ``memmap_like`` do), :func:`write_files`,
:class:`TensorDictFuture`.

Invariant: everything that can be checked is checked before the first file is written; files are
written under other names and renamed when all of them are there, metadata last.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tdcompile.errors import StorageError, UnsafeFileError
from tdcompile.tensordict.collection import TensorCollection
from tdcompile.tensordict.storage.archive import (
    Archive,
    ArchiveWriter,
    compression_method,
    iterate_chunks,
    write_archive,
)
from tdcompile.tensordict.storage.kinds import Leaf, Node, SaveOptions, lay_out
from tdcompile.tensordict.storage.memmap_tensor import (
    MemoryMappedTensor,
    absolute,
    check_target,
    draft_name,
    file_id,
    write_tensor,
)
from tdcompile.tensordict.storage.memory import Memory, device_of_memory
from tdcompile.tensordict.storage.paths import META, check_size, nbytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

    Parts = tuple[str, ...]
    Write = Callable[[str], None]

ARCHIVE_SUFFIX = ".tdz"
_CPU = torch.device("cpu")
_PICKLES = ("other.pickle", "pickle.pkl")


class TensorDictFuture:
    """A tensordict that threads are still writing.

    Example:
        >>> future = TensorDict({"a": torch.ones(3)}).memmap(num_threads=2, return_early=True)
        >>> future.result()["a"]
        MemoryMappedTensor([1., 1., 1.])
    """

    __slots__ = ("_finish", "_job", "_result")

    def __init__(self, job: Callable[[], Any], finish: Callable[[Any], Any]) -> None:
        pool = ThreadPoolExecutor(1)
        self._job: Future[Any] | None = pool.submit(job)
        pool.shutdown(wait=False)
        self._finish = finish
        self._result: Any = None

    def result(self) -> Any:
        """Wait for the threads and return the tensordict, the same one each time.

        Raises:
            Exception: what went wrong in a thread; nothing was changed then.
        """
        if self._job is not None:
            self._result = self._finish(self._job.result())
            self._job = None
        return self._result


def save(
    value: Any,
    prefix: Any = None,
    *,
    inplace: bool = False,
    like: bool = False,
    copy_existing: bool = False,
    num_threads: int = 0,
    return_early: bool = False,
    existsok: bool = True,
    robust_key: bool | None = True,
    archive: bool | None = None,
    compression: Any = None,
    atomic: bool = False,
    allow_pickle: bool = False,
) -> Any:
    """Write the leaves of a tensordict of any kind, and return it with leaves that map the files.

    See ``TensorDict.memmap`` for the arguments.

    Args:
        value: the tensordict.
        prefix: where to.
        inplace: put the new leaves into `value`; otherwise the result is a new tensordict.
        like: make files without writing the values.
        copy_existing: copy leaves that map other files.
        num_threads: write so many files at a time.
        return_early: return a :class:`TensorDictFuture`.
        existsok: replace files that are there.
        robust_key: encode keys in names.
        archive: write one zip file.
        compression: of the archive.
        atomic: write a new folder and rename it.
        allow_pickle: pickle values that JSON does not keep.
    """
    if inplace and value.is_shared() and device_of_memory(value) == "cpu":
        raise StorageError(
            "memmap and shared memory are mutually exclusive features: the tensordict is in shared "
            "memory; use memmap(), which makes a copy, or unlock_() it first"
        )
    if archive is None:
        archive = prefix is not None and str(prefix).endswith(ARCHIVE_SUFFIX) and not inplace
    if prefix is None and not archive and not like and value.is_memmap():
        prefix = value.saved_path
    _check_arguments(prefix, archive, compression, atomic, return_early and num_threads > 1)
    root = None if prefix is None else absolute(prefix)
    options = SaveOptions(robust_key is not False, allow_pickle, root is not None)
    node = lay_out(value, options)
    if archive:
        assert root is not None
        return _save_archive(node, root, like, existsok, compression)
    targets = _Targets(root, like, copy_existing, existsok, atomic)
    for leaf in node.leaves():
        targets.add(leaf)
    if inplace and any(isinstance(each.value, torch.nn.Module) for each in node.walk()):
        raise StorageError(
            "Cannot build a memmap TensorDict in-place of a TensorDictParams: its leaves are "
            "parameters of a module; use memmap() or memmap_like(), which make a copy"
        )
    if root is not None:
        files = targets.to_write + [
            ((*each.parts, name), _bytes_writer(data))
            for each in node.walk()
            for name, data in each.files.items()
        ]
        folders = [each.parts for each in node.walk()]
        stale = [
            (*each.parts, name)
            for each in node.walk()
            for name in _PICKLES
            if each.files and name not in each.files
        ]
        check_files(root, files, folders, existsok, atomic)

    def job() -> dict[int, Any]:
        if root is None:
            return targets.make_anonymous(num_threads)
        write_files(root, files, folders, num_threads=num_threads, atomic=atomic, stale=stale)
        return targets.map()

    def finish(tensors: dict[int, Any]) -> Any:
        if not inplace:
            result = rebuild(node, root, tensors)
        else:
            result = _write_back(node, root, tensors)
        return result.lock_()

    if return_early and num_threads > 1:
        return TensorDictFuture(job, finish)
    return finish(job())


def _check_arguments(
    prefix: Any, archive: bool, compression: Any, atomic: bool, return_early: bool
) -> None:
    if archive and prefix is None:
        raise StorageError("A path is required to write a memmap archive: pass prefix")
    if atomic and prefix is None:
        raise StorageError("atomic=True needs a prefix to write the directory to")
    if compression is not None and not archive:
        raise StorageError(
            "compression is only supported when writing a memmap archive: pass archive=True or a "
            f"prefix that ends with {ARCHIVE_SUFFIX!r}"
        )
    compression_method(compression)
    if return_early and (archive or atomic):
        what = "when writing a memmap archive" if archive else "with atomic=True"
        raise NotImplementedError(f"return_early is not supported {what}: leave it out")


class _Targets:
    """What becomes of each leaf: kept, written to a file, or copied to shared memory."""

    __slots__ = ("_atomic", "_copy_existing", "_existsok", "_leaves", "_like", "_root", "to_write")

    def __init__(
        self, root: Path | None, like: bool, copy_existing: bool, existsok: bool, atomic: bool
    ) -> None:
        self._existsok = existsok
        self._atomic = atomic
        self._root = root
        self._like = like
        self._copy_existing = copy_existing or like
        self._leaves: list[tuple[Leaf, Any]] = []  # and the tensor that stays, or None
        self.to_write: list[tuple[Parts, Write]] = []

    def add(self, leaf: Leaf) -> None:
        tensor: Any = leaf.tensor
        kept: Any = None
        root = self._root
        mapped = isinstance(tensor, MemoryMappedTensor)
        if root is None or tensor.numel() == 0:
            if mapped and tensor._filename is None and not self._like:
                kept = tensor
        else:
            path = str(root.joinpath(*leaf.parts))
            if mapped and tensor._filename is not None and tensor._filename != path:
                if not self._copy_existing:
                    raise StorageError(
                        "A filename was provided but the tensor already has a file associated: "
                        f"{tensor._filename}; pass copy_existing=True to copy it to {path}"
                    )
            elif mapped and not self._like and not self._atomic and _is_whole(tensor, path):
                kept = tensor
            if self._like and os.path.isfile(path):
                check_target(path, self._existsok)
                check_size(path, nbytes_of(tensor.shape, tensor.dtype))
            elif kept is None:
                self.to_write.append((leaf.parts, _tensor_writer(tensor, self._like)))
        self._leaves.append((leaf, kept))

    def map(self) -> dict[int, Any]:
        """Return the new tensor of each leaf, by identity of the leaf."""
        assert self._root is not None
        tensors: dict[int, Any] = {}
        for leaf, kept in self._leaves:
            tensor = leaf.tensor
            if kept is not None:
                tensors[id(leaf)] = kept
            elif tensor.numel() == 0:
                tensors[id(leaf)] = MemoryMappedTensor.from_tensor(tensor.detach())
            else:
                path = self._root.joinpath(*leaf.parts)
                tensors[id(leaf)] = MemoryMappedTensor.from_filename(
                    path, tensor.dtype, tensor.shape
                )
        return tensors

    def make_anonymous(self, num_threads: int) -> dict[int, Any]:
        """Return copies of the leaves in shared memory."""

        def copy(item: tuple[Leaf, Any]) -> Any:
            leaf, kept = item
            if kept is not None:
                return kept
            plain = leaf.tensor.detach().as_subclass(torch.Tensor)
            return MemoryMappedTensor.from_tensor(plain, copy_data=not self._like)

        copies = _in_threads(copy, self._leaves, num_threads)
        return {id(leaf): new for (leaf, _), new in zip(self._leaves, copies, strict=True)}


def _is_whole(tensor: MemoryMappedTensor, path: str) -> bool:
    """Tell whether a tensor is all of the very file that is at `path`, so nothing is to write."""
    return (
        tensor._filename == path
        and tensor._file_id is not None
        and tensor._file_id == file_id(path)
        and tensor._mode != "r"
        and tensor.storage_offset() == 0
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.untyped_storage().filename is not None
    )


def _tensor_writer(tensor: Tensor, like: bool) -> Write:
    value = None if like else tensor.detach().as_subclass(torch.Tensor)
    return lambda path: write_tensor(path, tensor.shape, tensor.dtype, value)


def _bytes_writer(data: bytes) -> Write:
    def write(path: str) -> None:
        with open(path, "xb") as file:
            file.write(data)

    return write


def _in_threads(function: Callable[[Any], Any], items: Iterable[Any], num_threads: int) -> Any:
    if num_threads <= 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(num_threads) as pool:
        return list(pool.map(function, items))


# -- the result --------------------------------------------------------------------------------


def rebuild(node: Node, root: Path | None, tensors: dict[int, Any]) -> Any:
    """Return the tensordict of a layout with other leaves, known by what it maps."""
    children = {
        key: tensors[id(child)] if isinstance(child, Leaf) else rebuild(child, root, tensors)
        for key, child in node.children.items()
    }
    result = node.kind.with_children(node.value, children, _CPU)
    mark(result, root, node)
    return result


def mark(value: Any, root: Path | None, node: Node) -> None:
    """Note on a tensordict that it is memory-mapped, and where."""
    if isinstance(value, TensorCollection):
        slots: Any = value
        slots._memory = Memory("memmap", None if root is None else root.joinpath(*node.parts))


def _write_back(node: Node, root: Path | None, tensors: dict[int, Any]) -> Any:
    for each in node.walk():
        for key, child in each.children.items():
            if isinstance(child, Leaf) and tensors[id(child)] is not child.tensor:
                each.kind.set_child(each.value, key, tensors[id(child)])
    for each in node.walk():
        mark(each.value, root, each)
    node.value._change_device(_CPU)
    return node.value


# -- files -------------------------------------------------------------------------------------


def check_files(
    root: Path,
    files: list[tuple[Parts, Write]],
    folders: Iterable[Parts],
    existsok: bool = True,
    atomic: bool = False,
) -> None:
    """Raise if files cannot be written below `root`; nothing is written.

    Raises:
        NotADirectoryError: if `root` is a file.
        UnsafeFileError: if a folder on the way is a link.
        StorageError: if a file is there and ``existsok`` is false, or is a link.
    """
    if os.path.lexists(root) and not os.path.isdir(root):
        raise NotADirectoryError(f"expected a folder or nothing at {root}, found a file there")
    if atomic and os.path.isdir(root):
        names = os.listdir(root)
        if names and not existsok:
            raise StorageError(f"The folder {root} already exists and is not empty")
        if names and META not in names and not _is_class_folder(root):
            raise StorageError(
                f"expected an empty folder or a saved tensordict at {root} to replace, found "
                f"{sorted(names)[:5]}: choose another prefix"
            )
        return
    ways = {parts[:count] for parts in folders for count in range(1, len(parts) + 1)}
    ways |= {parts[:count] for parts, _ in files for count in range(1, len(parts))}
    for parts in sorted(ways):
        path = root.joinpath(*parts)
        if path.is_symlink():
            raise UnsafeFileError(
                f"expected plain folders below {root}, found a link at {path}: cannot write a "
                "TensorDict through symlink; remove it first"
            )
        if os.path.lexists(path) and not path.is_dir():
            raise StorageError(f"expected a folder or nothing at {path}, found a file there")
    for parts, _ in files:
        is_meta = not parts[-1].endswith(".memmap")
        check_target(str(root.joinpath(*parts)), existsok or is_meta)


def _is_class_folder(root: Path) -> bool:
    return (root / "_tensordict" / META).is_file()


def write_files(
    root: Path,
    files: list[tuple[Parts, Write]],
    folders: Iterable[Parts],
    *,
    num_threads: int = 0,
    atomic: bool = False,
    stale: Iterable[Parts] = (),
) -> None:
    """Write files below `root`, under other names first; after a failure none is there.

    Args:
        root: the folder; made if it is not there.
        files: names below it, and what writes a file of a given path, which is not there yet.
        folders: to make as well.
        num_threads: write so many at a time.
        atomic: write all to a new folder that takes the place of `root`.
        stale: files of an earlier save to remove.
    """
    folders = list(folders)
    check_files(root, files, folders, True, atomic)
    if atomic or not os.path.lexists(root):
        _write_new_folder(root, files, folders, num_threads)
        return
    made = _make_folders(root, files, folders)
    drafts = [draft_name(str(root.joinpath(*parts))) for parts, _ in files]
    try:
        jobs = [(write, draft) for (_, write), draft in zip(files, drafts, strict=True)]
        _in_threads(lambda job: job[0](job[1]), jobs, num_threads)
        # Metadata last, that of the root last of all: until then the old metadata stands.
        order = sorted(
            range(len(files)), key=lambda i: (files[i][0][-1] == META, -len(files[i][0]))
        )
        for index in order:
            os.replace(drafts[index], root.joinpath(*files[index][0]))
    except BaseException:
        for draft in drafts:
            with contextlib.suppress(OSError):
                os.unlink(draft)
        for path in reversed(made):
            with contextlib.suppress(OSError):
                os.rmdir(path)
        raise
    for parts in stale:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(root.joinpath(*parts))


def _make_folders(
    root: Path, files: list[tuple[Parts, Write]], folders: Iterable[Parts]
) -> list[Path]:
    """Make the folders that are missing; return them, parents first."""
    wanted = {root}
    for parts in [*folders, *(parts[:-1] for parts, _ in files)]:
        wanted.update(root.joinpath(*parts[:count]) for count in range(len(parts) + 1))
    made: list[Path] = []
    for path in sorted(wanted, key=lambda path: len(path.parts)):
        if not path.is_dir():
            path.mkdir(parents=path == root)
            made.append(path)
    return made


def _write_new_folder(
    root: Path,
    files: list[tuple[Parts, Write]],
    folders: Iterable[Parts],
    num_threads: int,
) -> None:
    # A link to a folder is followed: the folder behind it is replaced.
    target = Path(os.path.realpath(root))
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(draft_name(str(target)))
    old: Path | None = None
    try:
        _make_folders(draft, files, folders)
        jobs = [(write, str(draft.joinpath(*parts))) for parts, write in files]
        _in_threads(lambda job: job[0](job[1]), jobs, num_threads)
        if target.exists():
            shutil.copymode(target, draft)
            old = Path(draft_name(str(target)))
            os.rename(target, old)
        try:
            os.rename(draft, target)
        except BaseException:
            if old is not None:
                os.rename(old, target)
                old = None
            raise
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


# -- archives ----------------------------------------------------------------------------------

_ZEROS = bytes(1 << 20)


def _save_archive(node: Node, path: Path, like: bool, existsok: bool, compression: Any) -> Any:
    if os.path.lexists(path) and not existsok:
        raise StorageError(f"The file {path} already exists: pass existsok=True to replace it")
    if path.is_dir():
        raise StorageError(f"expected a file or nothing at {path}, found a folder there")

    def fill(writer: ArchiveWriter) -> None:
        for each in node.walk():
            for name, data in each.files.items():
                writer.add("/".join((*each.parts, name)), lambda out, d=data: out.write(d))  # type: ignore[misc]
            for child in each.children.values():
                if isinstance(child, Leaf) and child.tensor.numel():
                    writer.add("/".join(child.parts), _entry_writer(child.tensor, like))

    write_archive(path, fill, compression)
    source = Archive(path, "r+" if like else None, verify=False)
    try:
        tensors = {
            id(leaf): source.tensor(leaf.parts, leaf.tensor.dtype, leaf.tensor.shape)
            if leaf.tensor.numel()
            else torch.empty(leaf.tensor.shape, dtype=leaf.tensor.dtype)
            for leaf in node.leaves()
        }
    finally:
        source.close()
    return _rebuild_plain(node, tensors)


def _rebuild_plain(node: Node, tensors: dict[int, Any]) -> Any:
    children = {
        key: tensors[id(child)] if isinstance(child, Leaf) else _rebuild_plain(child, tensors)
        for key, child in node.children.items()
    }
    return node.kind.with_children(node.value, children, _CPU)


def _entry_writer(tensor: Tensor, like: bool) -> Callable[[Any], None]:
    def write(out: Any) -> None:
        if like:
            left = nbytes_of(tensor.shape, tensor.dtype)
            while left:
                left -= out.write(memoryview(_ZEROS)[: min(left, len(_ZEROS))])
            return
        for chunk in iterate_chunks(tensor):
            out.write(chunk)

    return write

"""``map`` and ``map_iter``: a function over chunks of a tensordict, in worker processes.

Key names: :class:`ParallelMixin`.

Invariants: results come in the order of the chunks; with a generator of the same seed they are the
same at each call, whatever the number of workers. Chunks share their memory with the workers (torch
moves the storages to shared memory), so what the function writes in place is seen by the caller.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tdcompile.tensordict.processes.workers import Job, run_in_pool, run_in_workers, write_result
from tdcompile.tensordict.stacking import maybe_dense_stack

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

__all__ = ["ParallelMixin"]

# Each result holds open files as long as it is in shared memory; of so many, copies are kept.
_MANY_CHUNKS = 64


class ParallelMixin:
    """Functions over chunks, in worker processes."""

    __slots__ = ()

    def map(
        self: Any,
        fn: Callable[[Any], Any],
        dim: int = 0,
        num_workers: int | None = None,
        *,
        out: Any = None,
        chunksize: int | None = None,
        num_chunks: int | None = None,
        pool: Any = None,
        generator: torch.Generator | None = None,
        max_tasks_per_child: int | None = None,
        worker_threads: int = 1,
        index_with_generator: bool = False,
        pbar: bool = False,
        mp_start_method: str | None = None,
    ) -> Any:
        """Call `fn` on chunks of the tensordict in worker processes, and join the results.

        Args:
            fn: gets a chunk, a tensordict that is a slice along `dim`; returns a tensordict, a
                tensor or None. Unless processes are forked, it has to be importable by them.
            dim: the batch dimension that is cut.
            num_workers: number of processes; one for each CPU if None.
            out: a tensordict or a tensor that the results are copied into; by the workers
                themselves if it is shared or memory-mapped.
            chunksize: size of a chunk along `dim`; 0 takes single elements, without `dim`.
            num_chunks: number of chunks; as many as there are workers if neither is given.
            pool: a ``multiprocessing.Pool`` to use; `num_workers`, `generator`,
                `max_tasks_per_child`, `worker_threads` and `mp_start_method` then have no effect.
            generator: gives the base seed; torch's global generator if None, as in a
                ``DataLoader``. Chunk ``i`` runs with seed ``base + i`` for torch, numpy and
                ``random``, so results can be reproduced.
            max_tasks_per_child: replace a worker after as many chunks.
            worker_threads: number of torch's threads in a worker.
            index_with_generator: index each chunk when a worker is free instead of cutting at once.
            pbar: show a progress bar, if ``tqdm`` is installed.
            mp_start_method: ``"fork"``, ``"spawn"`` or ``"forkserver"``; torch's default if None.

        Returns:
            `out` if given; otherwise the results concatenated along `dim`, stacked with
            ``chunksize=0`` (lazily, where keys or shapes differ). Chunks for which `fn` returned
            None are left out; None if there are no others.

        Raises:
            ValueError: if both `chunksize` and `num_chunks` are given, or a number is not positive.
            IndexError: if `dim` is out of range.
            WorkerError: if a worker process ends before its time.
            Exception: what `fn` raised, with the worker's traceback as its cause.
        """
        chunks = _Chunks(self, dim, chunksize, num_chunks, num_workers, index_with_generator)
        dim = chunks.dim
        writes_there = out is not None and _is_shared(out)
        tasks = ((chunks.piece(out, n) if writes_there else None, c) for n, c in enumerate(chunks))
        results = _run(
            fn,
            tasks,
            chunks,
            pool,
            generator,
            max_tasks_per_child,
            worker_threads,
            pbar,
            mp_start_method,
            None,
        )
        found = []
        # Closed at once, also where a traceback keeps this frame.
        with contextlib.closing(results):
            for number, result in enumerate(results):
                if result is None:
                    continue
                if out is not None:
                    write_result(chunks.piece(out, number), result)
                else:
                    found.append(result.clone() if len(chunks) > _MANY_CHUNKS else result)
        if out is not None:
            return out
        if not found:
            return None
        if not chunks.is_by_element:
            return torch.cat(found, dim)
        if isinstance(found[0], Tensor):
            return torch.stack(found, dim)
        return maybe_dense_stack(found, dim)

    def map_iter(
        self: Any,
        fn: Callable[[Any], Any],
        dim: int = 0,
        num_workers: int | None = None,
        *,
        shuffle: bool = False,
        chunksize: int | None = None,
        num_chunks: int | None = None,
        pool: Any = None,
        generator: torch.Generator | None = None,
        max_tasks_per_child: int | None = None,
        worker_threads: int = 1,
        index_with_generator: bool = True,
        pbar: bool = False,
        mp_start_method: str | None = None,
    ) -> Iterator[Any]:
        """Call `fn` on chunks in worker processes, and yield the results, in the order of chunks.

        Works ahead by one chunk a worker. The processes end with the loop, also if it is left
        early.

        Args:
            fn: as for :meth:`map`.
            dim: as for :meth:`map`.
            num_workers: as for :meth:`map`.
            shuffle: take the elements along `dim` in a random order, drawn with `generator`; needs
                `index_with_generator`.
            chunksize: as for :meth:`map`.
            num_chunks: as for :meth:`map`.
            pool: as for :meth:`map`.
            generator: as for :meth:`map`.
            max_tasks_per_child: as for :meth:`map`.
            worker_threads: as for :meth:`map`.
            index_with_generator: as for :meth:`map`.
            pbar: as for :meth:`map`.
            mp_start_method: as for :meth:`map`.

        Yields:
            What `fn` returned for each chunk, None included.

        Raises:
            RuntimeError: if `shuffle` is set without `index_with_generator`; as :meth:`map`.
            ValueError, IndexError, WorkerError, Exception: as :meth:`map`.
        """
        if shuffle and not index_with_generator:
            raise RuntimeError(
                "expected index_with_generator=True with shuffle=True: a shuffled chunk is no slice"
            )
        chunks = _Chunks(self, dim, chunksize, num_chunks, num_workers, index_with_generator)
        if shuffle:
            chunks.order = torch.randperm(chunks.length, generator=generator)
        return _run(
            fn,
            ((None, chunk) for chunk in chunks),
            chunks,
            pool,
            generator,
            max_tasks_per_child,
            worker_threads,
            pbar,
            mp_start_method,
            2 * chunks.num_workers,
        )


class _Chunks:
    """The chunks of a tensordict along one dimension; iterates over them, and cuts other things."""

    def __init__(
        self,
        td: Any,
        dim: int,
        chunksize: int | None,
        num_chunks: int | None,
        num_workers: int | None,
        by_index: bool,
    ) -> None:
        if chunksize is not None and num_chunks is not None:
            raise ValueError(
                f"expected either chunksize or num_chunks, but not both; found {chunksize} and "
                f"{num_chunks}"
            )
        self.num_workers = _num_cpus() if num_workers is None else num_workers
        for name, value, least in (
            ("num_workers", self.num_workers, 1),
            ("chunksize", chunksize, 0),
            ("num_chunks", num_chunks, 1),
        ):
            if value is not None and value < least:
                raise ValueError(f"expected {name} to be at least {least}, found {value}")
        self._td = td
        self._by_index = by_index
        self.dim: int = td._batch_dim(dim)
        self.length: int = td.batch_size[self.dim]
        self.order: Tensor | None = None
        self.is_by_element = chunksize == 0
        if self.is_by_element:
            self._step = 1
        elif chunksize is not None:
            self._step = chunksize
        else:
            self._step = max(1, -(-self.length // (num_chunks or self.num_workers)))
        self.num_workers = max(1, min(self.num_workers, len(self)))

    def __len__(self) -> int:
        # Without elements there is still something to say what the result looks like.
        return max(-(-self.length // self._step), 0 if self.is_by_element else 1)

    def __iter__(self) -> Iterator[Any]:
        if self._by_index:
            for number in range(len(self)):
                yield self.piece(self._td, number)
        elif self.is_by_element:
            yield from self._td.unbind(self.dim)
        else:
            yield from self._td.split(self._step, self.dim)

    def piece(self, value: Any, number: int) -> Any:
        """Return chunk `number` of a tensordict or a tensor of our size along the dimension."""
        start = number * self._step
        index: Any
        if self.is_by_element:
            index = start if self.order is None else int(self.order[start])
        elif self.order is None:
            index = slice(start, start + self._step)
        else:
            index = self.order[start : start + self._step]
        return value[(*(slice(None),) * self.dim, index)]


def _num_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _is_shared(out: Any) -> bool:
    """Tell whether what a worker writes to `out` is seen here."""
    if isinstance(out, Tensor):
        return bool(out.is_shared())  # type: ignore[no-untyped-call]
    return bool(out.is_shared() or out.is_memmap())


def _run(
    fn: Any,
    tasks: Any,
    chunks: _Chunks,
    pool: Any,
    generator: Any,
    max_tasks_per_child: int | None,
    worker_threads: int,
    pbar: bool,
    start_method: str | None,
    ahead: int | None,
) -> Generator[Any, None, None]:
    if max_tasks_per_child is not None and max_tasks_per_child < 1:
        raise ValueError(
            f"expected max_tasks_per_child to be positive, found {max_tasks_per_child}"
        )
    if pool is not None:
        results = run_in_pool(pool, Job(fn), tasks)
    else:
        # Leaves room for the number of the chunk.
        seed = int(torch.randint(1 << 62, (), generator=generator))
        job = Job(fn, seed, worker_threads)
        results = run_in_workers(
            job, tasks, chunks.num_workers, start_method, max_tasks_per_child, ahead
        )
    return _with_bar(results, len(chunks)) if pbar else results


def _with_bar(results: Generator[Any, None, None], total: int) -> Generator[Any]:
    try:
        tqdm: Any = importlib.import_module("tqdm").tqdm
    except ImportError:
        tqdm = None
    with contextlib.closing(results):
        yield from results if tqdm is None else tqdm(results, total=total)

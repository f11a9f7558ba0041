"""Worker processes that call one function on many chunks, and give back the results in order.

Key names: :func:`run_in_workers` (processes of our own), :func:`run_in_pool` (a pool of the
caller's), :class:`Job` (what to call, and how).

Invariants: results come in the order of the chunks, whichever worker has them first; a chunk is
made when a worker is free; chunk ``i`` runs with the seed ``base + i``, so that random numbers do
not depend on the number of workers; no worker outlives the loop over the results, however it ends.
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import sys
import traceback
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import torch
from torch import multiprocessing

from tdcompile.errors import WorkerError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

__all__ = ["Job", "run_in_pool", "run_in_workers"]

# A task: where the result goes (or None), and what the function gets.
_Task = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """What the workers do.

    Args:
        function: gets a chunk; what it returns is the result, unless the task has a place for it.
        seed: random generators of chunk ``i`` start from ``seed + i``; None leaves them alone.
        num_threads: threads of torch in a worker; None leaves them alone.
    """

    function: Callable[[Any], Any]
    seed: int | None = None
    num_threads: int | None = None

    def __call__(self, numbered: tuple[int, _Task]) -> Any:
        """Call the function on a chunk."""
        number, (place, chunk) = numbered
        if self.seed is not None:
            _seed_all(self.seed + number)
        result = self.function(chunk)
        if place is None or result is None:
            return result
        write_result(place, result)
        return None


def write_result(place: Any, result: Any) -> None:
    """Copy a result into its place, a tensordict or a tensor."""
    if isinstance(place, torch.Tensor):
        place.copy_(result)
    else:
        place.update_(result)


def _seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % (1 << 32))


def run_in_pool(pool: Any, job: Job, tasks: Iterable[_Task]) -> Generator[Any, None, None]:
    """Yield the results of the tasks in order, from a ``multiprocessing.Pool``."""
    yield from pool.imap(job, enumerate(tasks))


class WorkerTraceback(Exception):
    """Stands behind an exception of a worker, as its cause, and shows the worker's traceback."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{self.text}"


class _Worker:
    """One process, with at most one chunk."""

    __slots__ = ("busy_with", "connection", "num_tasks", "process")

    def __init__(self, context: Any, job: Job) -> None:
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, job), daemon=True)
        try:
            self.process.start()
        finally:
            theirs.close()
        self.busy_with: int | None = None
        self.num_tasks = 0

    def begin(self, number: int, task: _Task) -> None:
        self.busy_with = number
        self.num_tasks += 1
        try:
            self.connection.send((number, task))
        except BrokenPipeError:
            raise self.death() from None
        except Exception as error:
            error.add_note(f"raised while chunk {number} was sent to a worker process")
            raise

    def finish(self) -> tuple[int, Any]:
        """Take in the result; raise what the function raised."""
        try:
            is_good, answer = self.connection.recv()
        except (EOFError, ConnectionResetError):
            raise self.death() from None
        number = self.busy_with
        assert number is not None
        self.busy_with = None
        if is_good:
            return number, answer
        error, text = answer
        if error is None:
            error = WorkerError(f"expected an exception that can be pickled, found:\n{text}")
        error.add_note(f"raised in a worker process, for chunk {number}")
        raise error from WorkerTraceback(text)

    def death(self) -> WorkerError:
        self.process.join(5)
        return WorkerError(
            f"expected a worker process to return the result for chunk {self.busy_with}, found "
            f"that it had ended with exit code {self.process.exitcode}: it was killed, or could "
            'not start (a script needs `if __name__ == "__main__":` around what starts workers)'
        )

    def stop(self) -> None:
        # It has nothing to give that is still wanted.
        if self.process.is_alive():
            self.process.terminate()
        self.connection.close()

    def join(self) -> None:
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def run_in_workers(
    job: Job,
    tasks: Iterable[_Task],
    num_workers: int,
    start_method: str | None,
    max_tasks_per_child: int | None,
    ahead: int | None,
) -> Generator[Any, None, None]:
    """Yield the results of the tasks in order, from processes started for it.

    Args:
        job: what to do with a task.
        tasks: made one at a time, when a worker is free.
        num_workers: how many processes, at least 1.
        start_method: ``"fork"``, ``"spawn"`` or ``"forkserver"``; torch's default if None.
        max_tasks_per_child: replace a worker after as many chunks.
        ahead: how many finished results may wait for their turn; None for any number.

    Raises:
        WorkerError: if a worker ends without a result.
        PicklingError: if the function has to be pickled and cannot be.
        Exception: what the function raised, with the worker's traceback as its cause.
    """
    context = multiprocessing.get_context(start_method)
    if context.get_start_method() != "fork":
        _check_picklable(job.function)
    workers: list[_Worker] = []
    waiting: dict[int, Any] = {}
    turn = 0
    numbered = iter(enumerate(tasks))
    is_over = False
    try:
        while True:
            _harvest(workers, waiting, max_tasks_per_child, block=turn not in waiting)
            while not is_over and (ahead is None or len(waiting) < ahead):
                free = next((worker for worker in workers if worker.busy_with is None), None)
                if free is None and len(workers) >= num_workers:
                    break
                task = next(numbered, None)
                if task is None:
                    is_over = True
                    break
                if free is None:
                    free = _Worker(context, job)
                    workers.append(free)
                free.begin(*task)
            if turn in waiting:
                # The workers are busy while the caller has the result.
                yield waiting.pop(turn)
                turn += 1
            elif is_over and all(worker.busy_with is None for worker in workers):
                return
    finally:
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.join()


def _harvest(
    workers: list[_Worker], waiting: dict[int, Any], max_tasks: int | None, block: bool
) -> None:
    """Take in the results that are ready; wait for one with `block`, if a worker is busy."""
    busy = [worker for worker in workers if worker.busy_with is not None]
    if not busy:
        return
    handles: list[Any] = [worker.connection for worker in busy]
    handles += [worker.process.sentinel for worker in busy]
    ready = set(connection.wait(handles, None if block else 0))
    for worker in busy:
        if worker.connection in ready or worker.process.sentinel in ready:
            number, result = worker.finish()
            waiting[number] = result
            if max_tasks is not None and worker.num_tasks >= max_tasks:
                workers.remove(worker)
                worker.stop()
                worker.join()


def _check_picklable(function: Any) -> None:
    try:
        ForkingPickler.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise pickle.PicklingError(
            f"expected a function that can be pickled, found {function!r} ({error}): define it at "
            'the top level of a module, or use mp_start_method="fork"'
        ) from error


def _work(pipe: Any, job: Job) -> None:
    """Answer tasks until the pipe closes: what a worker process runs."""
    # An interrupt is for the parent, which ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if job.num_threads is not None:
        torch.set_num_threads(job.num_threads)
    while True:
        try:
            pipe.send((True, job(pipe.recv())))
        except EOFError:
            return
        except (KeyboardInterrupt, SystemExit):
            os._exit(1)
        except BaseException as error:
            pipe.send((False, _portable(error)))


def _portable(error: BaseException) -> tuple[BaseException | None, str]:
    """Return an exception as it can be sent, or None, and its traceback."""
    text = "".join(traceback.format_exception(error)).rstrip()
    try:
        copied = pickle.loads(pickle.dumps(error))
    except Exception:
        return None, text
    return (copied if type(copied) is type(error) else None), text

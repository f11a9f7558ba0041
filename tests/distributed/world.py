"""Processes that run functions of the tests together, over gloo on the loopback.

Key names: :class:`World` (a number of ranks that stay alive from test to test), :func:`failure_of`
(what a call raises, as text).

Invariant: a rank that does not answer in time, or that raised, ends the whole world; the next test
gets a new one. Nothing outlives the session.
"""

from __future__ import annotations

import multiprocessing
import pickle
import shutil
import tempfile
import time
import traceback
from datetime import timedelta
from multiprocessing.connection import wait

# One process imports torch, the ranks are forked off it; it has no threads.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "torch.distributed._functional_collectives",
        "torch._dynamo.testing",
        "torch._dynamo.backends.debugging",
        "tdcompile.variables.registry",
    ]
)

TIMEOUT_S = 60


class World:
    """`size` processes in one process group."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._processes = []
        self._connections = []
        self._folder = ""

    def run(self, function, *args, timeout_s: float = TIMEOUT_S):
        """Call ``function(rank, size, *args)`` on each rank; return the results by rank."""
        if not self._processes:
            self._start()
        call = pickle.dumps((function, args))
        for connection in self._connections:
            connection.send_bytes(call)
        answers = {}
        end = time.monotonic() + timeout_s
        while len(answers) < self.size:
            open_ones = [c for c in self._connections if self._connections.index(c) not in answers]
            # A rank that raised leaves the others waiting for it: no use to wait long as well.
            has_failed = any(not answer[0] for answer in answers.values())
            ready = wait(open_ones, 1.0 if has_failed else max(0.0, end - time.monotonic()))
            if not ready:
                break
            for connection in ready:
                try:
                    answer = pickle.loads(connection.recv_bytes())
                except EOFError:
                    answer = (False, "the process ended")
                answers[self._connections.index(connection)] = answer
        failed = {rank: text for rank, (good, text) in answers.items() if not good}
        if failed or len(answers) < self.size:
            silent = [rank for rank in range(self.size) if rank not in answers]
            self.stop()
            texts = "\n".join(f"--- rank {rank}\n{text}" for rank, text in failed.items())
            raise AssertionError(f"ranks without an answer: {silent}\n{texts}")
        return [answers[rank][1] for rank in range(self.size)]

    def _start(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="world-")
        for rank in range(self.size):
            ours, theirs = _context.Pipe()
            process = _context.Process(
                target=_serve, args=(rank, self.size, self._folder, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for connection in self._connections:
            connection.close()
        self._processes, self._connections = [], []
        shutil.rmtree(self._folder, ignore_errors=True)


def _serve(rank, size, folder, connection) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    while True:
        try:
            function, args = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            answer = pickle.dumps((True, function(rank, size, *args)))
        except BaseException:
            answer = pickle.dumps((False, traceback.format_exc()))
        connection.send_bytes(answer)


def failure_of(function) -> str:
    """What a call raises, as text; empty if it does not."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""

"""Processes on this machine, each of which may end at any time without harm to the others.

``ProcessPoolExecutor`` gives up all tasks when one of its processes ends, which is why it does not serve
here.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self, TypeVar

import torch

from blocklp.campaigns.executors import Held, Shared, numbers
from blocklp.errors import ProcessError
from blocklp.options import whole

T = TypeVar("T")

CONTEXT = multiprocessing.get_context("spawn")  # threads of torch and numba do not survive a fork

LEAVING = 5.0
"""Seconds that a process has to end once its connection has."""

MORE_LIKELY = 500
"""Raises a worker's score, by which Linux chooses whom to end where memory runs out: not the campaign."""


class LocalExecutor:
    """Runs tasks in processes of this machine.

    A process whose task ends it (a crash, lack of memory) is replaced, and the task's future gets a
    :class:`blocklp.errors.ProcessError` that says how it ended.  Interrupts are left to the process that
    submits.

    Parameters
    ----------
    workers : int
        Processes at the same time.
    threads : int, optional
        Threads of torch and numba in each; by default the cores of the machine are shared equally.

    Examples
    --------
    >>> from blocklp.campaigns import LocalExecutor
    >>> with LocalExecutor(2) as executor:
    ...     [executor.submit(pow, 2, k).result() for k in range(4)]
    [1, 2, 4, 8]
    """

    def __init__(self, workers: int, threads: int | None = None) -> None:
        self.workers = whole(workers, "workers")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._threads = max(1, cores // workers) if threads is None else whole(threads, "threads")
        self._pool = ThreadPoolExecutor(workers, "blocklp-worker")
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._folder = tempfile.TemporaryDirectory(prefix="blocklp-")

    def submit(self, function: Callable[..., T], /, *arguments: Any) -> Future[T]:
        """Run a function that can be imported as soon as a process is free."""
        return self._pool.submit(self._run, pickle.dumps((function, arguments)))

    def share(self, value: Any) -> Shared:
        """Write data to a file, which every process reads once, and return the reference to it."""
        file = Path(self._folder.name) / f"{next(numbers)}.pickle"
        file.write_bytes(pickle.dumps(value))
        return _Pickled(str(file))

    def share_file(self, path: Path) -> Shared:
        """Return a reference to a file: processes read it where it is."""
        return Held(path.absolute())

    def shutdown(self) -> None:
        """End all processes."""
        with self._lock:
            self._closed = True
            workers, self._all = self._all, set()
        for worker in workers:
            worker.end()
        self._pool.shutdown(cancel_futures=True)
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def _run(self, task: bytes) -> Any:
        """Hand a task to a process, in a thread that waits for the answer."""
        worker = self._free()
        try:
            answer = worker.ask(task)
        except (EOFError, OSError):
            with self._lock:
                self._all.discard(worker)
            raise ProcessError(f"the process of the task {ended(worker.end(LEAVING))}") from None
        with self._lock:
            self._idle.append(worker)
        done, value = pickle.loads(answer)
        if done:
            return value
        raise value

    def _free(self) -> _Worker:
        """Return a process that has no task; there are never more than threads that ask for one."""
        with self._lock:
            if self._closed:
                raise ProcessError("the executor is shut down; make another")
            while self._idle:
                worker = self._idle.pop()
                if worker.alive():
                    return worker
                self._all.discard(worker)
            worker = _Worker(self._threads)
            self._all.add(worker)
            return worker


def ended(code: int | None) -> str:
    """Say how a process ended, by its exit code."""
    if code is not None and code < 0:
        named = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"was ended by {named}" + (", as where memory runs out" if named == "SIGKILL" else "")
    return f"exited with code {code}"


class _Pickled(Shared):
    """Data in a file."""

    def load(self) -> Any:
        return pickle.loads(Path(self.key).read_bytes())


class _Worker:
    """A process that answers one task after the other."""

    def __init__(self, threads: int) -> None:
        self._here, there = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_serve, args=(there, threads), daemon=True)
        self._process.start()
        there.close()  # so that the end of the process ends the connection

    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.is_alive()

    def ask(self, task: bytes) -> bytes:
        """Send a task, and return what :func:`_answer` makes of it."""
        self._here.send_bytes(task)
        return self._here.recv_bytes()

    def end(self, seconds: float = 0.0) -> int | None:
        """End the process unless it ends within some seconds; return its exit code."""
        self._process.join(seconds)
        self._process.kill()
        self._process.join()
        return self._process.exitcode


def _serve(connection: Connection, threads: int) -> None:
    """Answer tasks until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes at once
    torch.set_num_threads(threads)
    os.environ["NUMBA_NUM_THREADS"] = str(threads)
    with suppress(OSError):  # there is no such file but on Linux
        Path("/proc/self/oom_score_adj").write_text(str(MORE_LIKELY))
    with suppress(EOFError, OSError):  # whoever asks has gone
        while True:
            connection.send_bytes(_answer(connection.recv_bytes()))


def _answer(task: bytes) -> bytes:
    try:
        function, arguments = pickle.loads(task)
        return pickle.dumps((True, function(*arguments)))
    except Exception as error:
        error.add_note("".join(traceback.format_exception(error)))
        try:
            written = pickle.dumps((False, error))
            pickle.loads(written)
        except Exception:  # such as one whose class takes other arguments
            return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))
        return written

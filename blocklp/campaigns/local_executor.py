"""Processes on this machine, each of which may end at any time without harm to the others.

``ProcessPoolExecutor`` gives up all tasks when one of its processes ends, which is why it does not serve
here.
"""

from __future__ import annotations

import io
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any, Self, TypeVar

from blocklp.campaigns.executors import Held, Shared, numbers
from blocklp.errors import OptionError, ProcessError

T = TypeVar("T")

LEAVING = 5.0
"""Seconds that a process has to end once its connection has."""


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

    Raises
    ------
    OptionError
        If a number is not positive.

    Examples
    --------
    >>> from blocklp.campaigns import LocalExecutor
    >>> with LocalExecutor(2) as executor:
    ...     [executor.submit(pow, 2, k).result() for k in range(4)]
    [1, 2, 4, 8]
    """

    def __init__(self, workers: int, threads: int | None = None) -> None:
        if workers < 1 or (threads is not None and threads < 1):
            raise OptionError(f"{workers=}, {threads=}; both must be positive")
        self.workers = workers
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._threads = max(1, cores // workers) if threads is None else threads
        self._pool = ThreadPoolExecutor(workers, "blocklp-worker")
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._folder = tempfile.TemporaryDirectory(prefix="blocklp-")

    def submit(self, function: Callable[..., T], /, *arguments: Any) -> Future[T]:
        """Run a function that can be imported as soon as a process is free."""
        return self._pool.submit(self._run, _pickled((function, arguments)))

    def share(self, value: Any) -> Shared:
        """Write data to a file, which every process reads once, and return the reference to it."""
        file = Path(self._folder.name) / f"{next(numbers)}.pickle"
        file.write_bytes(_pickled(value))
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
        except (EOFError, OSError, pickle.UnpicklingError):
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
                worker.end()
            worker = _Worker(self._threads)
            self._all.add(worker)
            return worker


def ended(code: int) -> str:
    """Say how a process ended, by its exit code."""
    if code < 0:
        named = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        why = {"SIGKILL": ", as where memory runs out", "SIGALRM": " at its limit"}.get(named, "")
        return f"was ended by {named}{why}"
    return f"exited with code {code}"


class _Pickler(pickle.Pickler):
    """Refuses what no other process can import."""

    def reducer_override(self, value: Any) -> Any:
        """Leave everything else to pickle."""
        if isinstance(value, FunctionType | type) and value.__module__ == "__main__":
            need = "move it to a module, which worker processes can import"
            raise OptionError(f"{value.__qualname__} is defined in the script that is run; {need}")
        return NotImplemented


def _pickled(value: Any) -> bytes:
    stream = io.BytesIO()
    _Pickler(stream, pickle.HIGHEST_PROTOCOL).dump(value)
    return stream.getvalue()


class _Pickled(Shared):
    """Data in a file."""

    def load(self) -> Any:
        return pickle.loads(Path(self.key).read_bytes())


class _Worker:
    """A process that answers one task after the other (:mod:`blocklp.campaigns.worker`)."""

    def __init__(self, threads: int) -> None:
        command = [sys.executable, "-m", "blocklp.campaigns.worker", str(threads)]
        # An interrupt from the terminal is for this process alone.
        group = 0 if os.name == "posix" else None
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, process_group=group)
        self._send(pickle.dumps(sys.path))

    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def ask(self, task: bytes) -> Any:
        """Send a task; return whether it succeeded, and its value or exception, pickled."""
        assert self._process.stdout is not None
        self._send(task)
        return pickle.load(self._process.stdout)

    def end(self, seconds: float = 0.0) -> int:
        """End the process unless it ends within some seconds; return its exit code."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        self._process.kill()
        code = self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # what could not be sent
                assert stream is not None
                stream.close()
        return code

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        pickle.dump(data, self._process.stdin)
        self._process.stdin.flush()

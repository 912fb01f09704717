"""Tasks on a cluster that Ray runs (https://www.ray.io; the extra ``ray``)."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVar

from blocklp.campaigns.executors import Held, Shared
from blocklp.errors import ProcessError, needed

T = TypeVar("T")

NODES, CRASHES = 5, 1
"""How often a task is begun again whose node has gone, and whose process ended.  A node that goes may look
like an ended process."""

WAITING = 10_000
"""Most tasks that are waited for at the same time, by a thread each."""


class RayExecutor:
    """Runs tasks on the nodes of a Ray cluster, which have the package installed.

    A task whose node is lost is begun again on another node; one whose process ends twice gets a
    :class:`blocklp.errors.ProcessError`.  Shared data go through Ray's object store, once to every node.

    Parameters
    ----------
    address : str
        Of the cluster: ``HOST:PORT``, ``ray://HOST:PORT`` or ``auto``.  A connection that this process has
        already is used.
    options : mapping, optional
        Options of Ray's tasks: resources such as ``{"num_cpus": 2, "num_gpus": 1}``, or ``runtime_env``.
        By default a task has one CPU, and Ray gives torch and numba as many threads; tasks are spread.

    Raises
    ------
    MissingDependencyError
        Ray is not installed.
    ProcessError
        There is no cluster at the address.
    """

    def __init__(self, address: str, options: Mapping[str, Any] | None = None) -> None:
        with needed("a cluster is reached by ray, which is not installed", "ray"):
            import ray
        self._ray, self._ours = ray, not ray.is_initialized()
        if self._ours:
            try:
                ray.init(address=address, log_to_driver=False, logging_level="ERROR", namespace="blocklp")
            except (ConnectionError, RuntimeError, ValueError) as error:
                said = f"no Ray cluster answers at {address!r} ({error})"
                raise ProcessError(f"{said}; start one by `ray start --head`") from error
        # Ray would rather fill one node than look for a free one at once: a tenth of a second a task.
        self._options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", **(options or {})}
        # Retries are counted here: Ray's would begin a task that crashes as often as one whose node has gone.
        self._remote = ray.remote(_called).options(max_retries=0, **self._options)
        self._pool = ThreadPoolExecutor(WAITING, "blocklp-ray")
        self._running: set[Any] = set()
        self._lock, self._closed = threading.Lock(), False

    @property
    def workers(self) -> int:
        """How many tasks the resources of all nodes are enough for, at least one."""
        there = self._ray.cluster_resources()
        wanted = {"CPU": self._options["num_cpus"], "GPU": self._options.get("num_gpus", 0)}
        wanted |= self._options.get("resources", {})
        fitting = [there.get(name, 0) / amount for name, amount in wanted.items() if amount]
        return max(1, int(min(fitting, default=1)))

    def submit(self, function: Callable[..., T], /, *arguments: Any) -> Future[T]:
        """Run a function on some node."""
        return self._pool.submit(self._run, function, arguments)

    def share(self, value: Any) -> Shared:
        """Put data into the object store, and return the reference to them."""
        return _Stored(self._ray.put(value))

    def share_file(self, path: Path) -> Shared:
        """Put a file into the object store; processes that use it write it to a folder of their own.

        A process keeps the last few.  Files beside it do not go with it.  One that is not there is missed by
        the task, which says so.
        """
        if not path.is_file():
            return Held(path)
        return _StoredFile(self._ray.put(path.read_bytes()), path.name)

    def shutdown(self) -> None:
        """End tasks that run, and the connection if it was made here."""
        with self._lock:
            self._closed, running = True, list(self._running)
        for reference in running:
            self._ray.cancel(reference, force=True)
        self._pool.shutdown(cancel_futures=True)
        if self._ours:
            self._ray.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def _run(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Run a task, again if its node is lost; in a thread that waits for the answer."""
        lost = self._ray.exceptions
        nodes = crashes = 0
        while True:
            with self._lock:
                if self._closed:
                    raise ProcessError("the executor is shut down; make another")
                reference = self._remote.remote(function, arguments)
                self._running.add(reference)
            try:
                return self._ray.get(reference)
            except lost.RayTaskError as error:  # the function's own
                raise error.cause from None
            except lost.OutOfMemoryError as error:
                said = "the process of the task was ended, because memory ran out on its node"
                raise ProcessError(said) from error
            except (lost.WorkerCrashedError, lost.NodeDiedError, lost.ObjectLostError) as error:
                crashed = isinstance(error, lost.WorkerCrashedError)
                nodes, crashes = nodes + (not crashed), crashes + crashed
                if crashes > CRASHES:
                    raise ProcessError(f"the process of the task ended, {crashes} times") from error
                if nodes > NODES:
                    raise ProcessError(f"the nodes of the task were lost, {nodes} times") from error
            except lost.TaskCancelledError as error:
                raise ProcessError("the executor was shut down before the task was done") from error
            finally:
                with self._lock:
                    self._running.discard(reference)


def _called(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(*arguments)


class _Stored(Shared):
    """Data in the object store."""

    def __init__(self, reference: Any) -> None:
        super().__init__(reference.hex())
        self._reference = reference

    def load(self) -> Any:
        import ray

        return ray.get(self._reference)


class _Placed:
    """A file in a folder that goes with this object."""

    def __init__(self, name: str, data: bytes) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="blocklp-")
        self.path = Path(self._folder.name) / name
        self.path.write_bytes(data)


class _StoredFile(_Stored):
    """A file in the object store."""

    def __init__(self, reference: Any, name: str) -> None:
        super().__init__(reference)
        self._name = name

    def load(self) -> _Placed:
        """Write the file to a folder of this process."""
        return _Placed(self._name, super().load())

    def get(self) -> Path:
        """Return the place of the file, which is there until the process has used some others."""
        placed: _Placed = super().get()
        return placed.path

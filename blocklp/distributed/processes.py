"""The processes of a solve: their numbers are combined by ``torch.distributed`` with gloo.

A solve makes groups of its own, so that its messages cannot meet those of the caller, and so that a process
that fails can close them: the others then learn of it at once.
"""

from __future__ import annotations

import itertools
import math
import os
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from blocklp.errors import OptionError, ProcessError
from blocklp.options import of_type, shown, whole

NAMING = 5.0
"""Seconds that processes wait for each other to find out which of them failed or stalled."""

PIECE = 2**22
"""Numbers that processes send each other at a time, where nobody needs all of them."""

SUMS = ("fixed", "float")
"""How copies of variables are added up."""

Found = TypeVar("Found")


@dataclass(frozen=True)
class Mesh:
    """The processes of a solve, and how they add up.

    Attributes
    ----------
    group : ProcessGroup, DeviceMesh or True
        A group of ``torch.distributed``, a mesh of one dimension, or True for all processes.
    sums : str
        ``"fixed"`` adds integers: the same bits whatever the number of processes.  ``"float"`` adds floating
        point numbers, in an order that depends on this number.
    timeout : float
        Seconds after which a process that others wait for counts as stalled.
    save : str or path, optional
        A folder for what the solve has come to, on a file system of all processes.  A solve of the same model
        that finds it there goes on from it, on any number of processes.
    save_every : int
        Passes after which it is written again.

    Raises
    ------
    OptionError
        If ``sums`` is another word, ``timeout`` or ``save_every`` is not positive, or ``save`` is no path.
    """

    group: Any = True
    sums: str = "fixed"
    timeout: float = 300.0
    save: str | os.PathLike[str] | None = None
    save_every: int = 500

    def __post_init__(self) -> None:
        if self.sums not in SUMS:
            raise OptionError(f"sums is {shown(self.sums)}; choose one of {', '.join(map(repr, SUMS))}")
        seconds = self.timeout
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            raise OptionError(f"timeout is {shown(seconds)}; give a positive number of seconds")
        of_type(self.save, str | os.PathLike | None, "save of a mesh", "the path of a folder, or None")
        whole(self.save_every, "save_every of a mesh")

    @classmethod
    def of(cls, given: Any) -> Mesh:
        """Return the mesh given, or that of a group, a mesh of devices or True."""
        return given if isinstance(given, Mesh) else cls(given)

    def process_group(self) -> Any:
        """Return the group of ``torch.distributed``.

        Raises
        ------
        ProcessError
            If ``torch.distributed`` is missing or has not been initialised, or the group is not one that
            this process is in.
        OptionError
            If the mesh has several dimensions, or is none.
        """
        if not dist.is_available() or not dist.is_initialized():
            need = 'call torch.distributed.init_process_group("gloo"), or start it by torchrun --distributed'
            raise ProcessError(f"mesh was given, and there is no group of processes; {need}")
        if self.group is True:
            return dist.group.WORLD
        if isinstance(self.group, dist.ProcessGroup):
            if dist.get_rank(self.group) < 0:
                raise ProcessError("this process is not in the group of mesh; solve in those that are")
            return self.group
        if isinstance(self.group, DeviceMesh):
            if self.group.ndim != 1:
                sizes = tuple(self.group.shape)
                raise OptionError(f"mesh has the shape {sizes}; give one dimension of it, as mesh['blocks']")
            return self.group.get_group()
        need = "give a group of torch.distributed, a DeviceMesh, a blocklp.distributed.Mesh, or True"
        raise OptionError(f"mesh is {shown(self.group)}; {need}")


class Processes:
    """The processes of a solve; all of them call each method at the same time.

    Parameters
    ----------
    group : ProcessGroup
        Whose processes take part.
    timeout : float
        Seconds after which a process counts as stalled.

    Attributes
    ----------
    rank, world : int
        Number of this process, and of processes.
    """

    def __init__(self, group: Any, timeout: float) -> None:
        self.rank, self.world, self.timeout = dist.get_rank(group), dist.get_world_size(group), timeout
        # Connections close when nobody holds the group and its calls any more: nobody else may hold them.
        self._groups: tuple[Any, ...] = ()
        self._calls: dict[int, Any] = {}
        self._numbers = itertools.count()
        if self.world == 1:
            return
        if not hasattr(group, "get_group_store"):
            raise ProcessError(f"mesh needs a newer torch than {torch.__version__}; install the present one")
        store = group.get_group_store()
        solve = f"blocklp/{store.add(f'blocklp/solves of {self.rank}', 1)}"
        began = time.monotonic()
        try:
            self._groups = self._group(store, f"{solve}/work", timeout), None
            self._groups = self._groups[0], self._group(store, f"{solve}/watch", timeout + NAMING)
        except RuntimeError as error:
            self.close()
            if time.monotonic() - began < timeout:
                raise ProcessError(
                    "a process left before all had begun the solve; its own error says why"
                ) from error
            who = f"not all of the {self.world} processes began the solve within {timeout:g} s"
            raise ProcessError(f"{who}; every process must call it") from error

    def _group(self, store: Any, name: str, seconds: float) -> Any:
        """A group of these processes, which find each other by a store."""
        own, limit = dist.PrefixStore(name, store), timedelta(seconds=seconds)  # type: ignore[attr-defined]
        own.set_timeout(limit)
        return dist.ProcessGroupGloo(own, self.rank, self.world, limit)

    def close(self) -> None:
        """Leave the groups; processes that still wait for this one learn of it."""
        self._groups = ()
        self._calls.clear()

    def sum(self, values: Tensor) -> Tensor:
        """Add up tensors of one shape, in place."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def begin_sum(self, values: Tensor) -> Callable[[], Tensor]:
        """Begin to add up tensors of one shape, in place; what is returned waits for the sums."""
        if self.world == 1:
            return lambda: values
        finish = self._begun(lambda group: group.allreduce(values, dist.ReduceOp.SUM))

        def waited() -> Tensor:
            finish()
            return values

        return waited

    def greatest(self, values: Tensor) -> Tensor:
        """The entrywise maximum of tensors of one shape without NaN, in place."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def any(self, met: bool) -> bool:
        """Whether a condition is met in any process."""
        return bool(self.greatest(torch.tensor([int(met)])))

    def gather(self, own: Found) -> list[Found]:
        """Gather what every process gives, in their order; objects that can be pickled."""
        if self.world == 1:
            return [own]
        packed = torch.frombuffer(bytearray(pickle.dumps(own)), dtype=torch.uint8)
        size = int(self.greatest(torch.tensor([len(packed)])))
        padded = torch.nn.functional.pad(
            packed, (0, size - len(packed))
        )  # what follows an object is not read
        found = [torch.empty_like(padded) for _ in range(self.world)]
        self._made(lambda group: group.allgather([found], [padded]))
        return [pickle.loads(bytes(one.numpy())) for one in found]

    def from_first(self, own: Found) -> Found:
        """Return what the first process gives."""
        if self.world == 1:
            return own
        packed = torch.frombuffer(bytearray(pickle.dumps(own)), dtype=torch.uint8)
        size = torch.tensor([len(packed)])
        self._made(lambda group: group.broadcast(size, 0))
        if self.rank:
            packed = torch.empty(int(size), dtype=torch.uint8)
        self._made(lambda group: group.broadcast(packed, 0))
        found: Found = pickle.loads(bytes(packed.numpy()))
        return found

    def pieces(self, own: Tensor) -> Iterator[Tensor]:
        """Yield the numbers ``(k,)`` float64 that each process gives, in their order, some at a time."""
        counts = self.gather(len(own))
        for rank, count in enumerate(counts):
            for first in range(0, count, PIECE):
                size = min(PIECE, count - first)
                piece = own[first : first + size] if rank == self.rank else torch.empty(size, dtype=own.dtype)
                if self.world > 1:
                    self._made(partial(_broadcast, piece, rank))
                yield piece

    def agree(self, own: object, what: str) -> None:
        """Refuse to go on where processes state different things.

        Raises
        ------
        ProcessError
            In all processes, if they do.
        """
        stated = self.gather(own)
        others = [rank for rank, other in enumerate(stated) if other != stated[0]]
        if others:
            who = f"process {others[0]}" if len(others) == 1 else f"processes {', '.join(map(str, others))}"
            need = "every process must state the same"
            raise ProcessError(f"{what} of {who} differs from that of process 0; {need}")

    def _reduced(self, values: Tensor, by: Any) -> Tensor:
        if self.world != 1:
            self._made(lambda group: group.allreduce(values, by))
        return values

    def _made(self, call: Callable[[Any], Any]) -> None:
        """Do something together; name the process that fails to."""
        self._begun(call)()

    def _begun(self, call: Callable[[Any], Any]) -> Callable[[], None]:
        """Begin to do something together; what is returned waits for it, and names who fails."""
        if not self._groups:
            raise ProcessError("this process has left the solve, after an error or an interrupt")

        number = next(self._numbers)
        try:
            self._calls[number] = call(self._groups[0])
        except RuntimeError as error:
            raise self._failed(error) from error

        def finish() -> None:
            try:
                self._calls[number].wait()
            except RuntimeError as error:
                raise self._failed(error) from error
            del self._calls[number]

        return finish

    def _failed(self, error: RuntimeError) -> ProcessError:
        """Leave the group after an error of it, and name the process that it came from."""
        error.__traceback__ = None  # whose frames hold the group
        said = str(error).partition("\n")[0]
        return ProcessError(f"{self._missing()}; the others ended too (gloo: {said})")

    def _missing(self) -> str:
        """Say which processes do not answer any more; whoever has not failed asks all others."""
        self._groups = (watch,) = self._groups[1:]  # who waits for this process does not wait longer
        self._calls.clear()
        until = time.monotonic() + NAMING
        others = [rank for rank in range(self.world) if rank != self.rank]
        alive, answers = torch.ones(1, dtype=torch.long), torch.zeros(self.world, 1, dtype=torch.long)
        calls = {rank: self._asked(rank, alive, answers[rank], watch) for rank in others}
        lost = [rank for rank, works in calls.items() if not _answered(works, until)]
        who = f"process {lost[0]}" if len(lost) == 1 else f"processes {', '.join(map(str, lost))}"
        return f"{who if lost else 'a process'} failed, or did not answer within {self.timeout:g} s"

    def _asked(self, rank: int, alive: Tensor, answer: Tensor, group: Any) -> list[Any]:
        """Tell another process that this one is alive, and wait to be told; nothing where it is gone."""
        try:
            return [group.send([alive], rank, 0), group.recv([answer], rank, 0)]
        except RuntimeError:
            return []


def _broadcast(values: Tensor, rank: int, group: Any) -> Any:
    """Send values to all, from the process of a number."""
    options = dist.BroadcastOptions()
    options.rootRank = rank
    return group.broadcast([values], options)


@contextmanager
def taking_part(mesh: Any) -> Iterator[Processes]:
    """The processes of a mesh, until whatever ends this process's part ends that of the others."""
    given = Mesh.of(mesh)
    processes = Processes(given.process_group(), given.timeout)
    try:
        yield processes
    finally:
        processes.close()


def _answered(works: list[Any], until: float) -> bool:
    """Whether messages arrive until the clock of :func:`time.monotonic` says so."""
    try:
        for work in works:
            work.wait(timedelta(seconds=max(until - time.monotonic(), 0.1)))
    except RuntimeError:
        return False
    return bool(works)

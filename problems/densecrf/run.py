"""A run of a method: its clock, its labellings and bounds, and what it tells others."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.engine.records import Event, relative_gap
from blocklp.problems.densecrf.energy import DenseCRF, labelling_energy
from blocklp.problems.densecrf.result import History, Result
from blocklp.status import Status

LOOKS = 8
"""Steps on a device between two looks at what is known there: a look waits for all work before it."""


class Run:
    """The state that a method works with: it calls :meth:`step` after each of its steps and stops once that says so.

    On a CPU every step is looked at, elsewhere one of :data:`LOOKS` and the last, unless a callback or a deadline wants more:
    between two looks the host waits for nothing, and up to so many steps more are made.

    It begins with the labelling of the unaries, not yet evaluated, and the bound that intervals give.

    Attributes
    ----------
    crf : DenseCRF
        The energy, with the deadline.
    start, y : Tensor
        ``(points, labels)``: where to start, and the method's last point, on the simplices; in the precision of the unaries.
    filter_calls : int
        Applications of all kernels so far; methods count their own.
    """

    def __init__(
        self,
        crf: DenseCRF,
        method: str,
        deadline: Deadline | None = None,
        callback: Callable[[Event], object] | None = None,
        tol: float = 0.0,
    ) -> None:
        self.crf = crf if deadline is None else replace(crf, deadline=deadline)
        self.method, self.tol = method, tol
        self._labelling = self._own = crf.unary.argmin(1)
        self.start = self.y = torch.nn.functional.one_hot(self._own, crf.labels).to(crf.unary)
        self.filter_calls = 0
        self.status = Status.PASS_LIMIT
        self._callback = callback
        self._began = time.perf_counter()
        self._energy = torch.full((crf.images,), torch.inf, dtype=torch.float64, device=crf.unary.device)
        self._own_energy = self._energy
        self._bound = crf.interval_bound()
        self._none = torch.zeros_like(self._bound)
        self._sources = ["unary"]
        self._source = torch.zeros(crf.images, dtype=torch.int64, device=crf.unary.device)
        patient = crf.unary.device.type != "cpu" and callback is None and self.crf.deadline.seconds == math.inf
        self._every = LOOKS if patient else 1
        self._unseen = 0
        self._stalled: Callable[[], object] | None = None
        self._trace: list[tuple[Tensor, Tensor, float, int]] = []

    @property
    def unit(self) -> Tensor:
        """The scale of the costs, ``(images,)`` float64: :attr:`DenseCRF.unit`."""
        return self.crf.unit

    def begin(self, y: Tensor, source: str) -> None:
        """Start the method at y ``(points, labels)``, whose labelling is from there."""
        labelling = y.argmax(1)
        self._own, self._own_energy = labelling, self.offer(labelling, source)
        self.start = self.y = y

    def offer(self, labelling: Tensor, source: str) -> Tensor:
        """Keep a labelling ``(points,)`` for the images where it is the best so far; return its energies ``(images,)``."""
        energy = labelling_energy(self.crf, labelling)
        better = energy < self._energy
        if source not in self._sources:
            self._sources.append(source)
        self._labelling = torch.where(self.crf.per_point(better)[:, 0], labelling, self._labelling)
        self._energy = torch.where(better, energy, self._energy)
        self._source = torch.where(better, self._sources.index(source), self._source)
        return energy

    @property
    def best_bound(self) -> Tensor:
        """The best bounds so far: ``(images,)``."""
        return self._bound

    def bounded(self, bound: Tensor) -> None:
        """Keep bounds ``(images,)`` where they are the best so far."""
        self._bound = torch.maximum(self._bound, bound)

    def step(self, y: Tensor, stalled: Callable[[], object] | None = None) -> bool:
        """Note a step: the method's point y ``(points, labels)``, whose labelling is its argmax.

        Parameters
        ----------
        y : Tensor
            ``(points, labels)``.
        stalled : callable, optional
            Tells whether the method is at a fixed point; asked where the step is looked at.

        Returns
        -------
        bool
            Whether to stop: as :meth:`over` says, or at a fixed point.

        Raises
        ------
        TimeLimitError
            If the deadline passes before the labelling is evaluated; the step is not kept then.
        """
        labelling = y.argmax(1)
        if self._every > 1 or not torch.equal(labelling, self._own) or not bool(torch.isfinite(self._own_energy).all()):
            self._own, self._own_energy = labelling, self.offer(labelling, self.method)
        self.y = y
        seconds = time.perf_counter() - self._began
        self._trace.append((self._own_energy, self._bound, seconds, self.filter_calls))
        if self._callback is not None:
            gap = relative_gap(self._energy, self._bound, self._none)
            status = torch.full_like(gap, int(Status.RUNNING)).long()
            self._callback(Event(len(self._trace), seconds, self._bound, self._energy, gap, status))
        self._stalled = stalled
        return self.over()

    @property
    def seen(self) -> bool:
        """Whether the last step was looked at."""
        return self._unseen == 0

    def over(self) -> bool:
        """Whether to stop: time is up, or every image's gap is within the tolerance; what is known of it without waiting."""
        self._unseen += 1
        return self.look() if self._unseen >= self._every else False

    def look(self) -> bool:
        """Whether to stop, as :meth:`over` and :meth:`step` say; the host waits for it where there is something unseen."""
        if not self._unseen:
            return False
        self._unseen = 0
        stalled, self._stalled = self._stalled, None
        if bool((relative_gap(self._energy, self._bound, self._none) <= self.tol).all()):
            self.status = Status.OPTIMAL
        elif self.crf.deadline.over():
            self.status = Status.TIME_LIMIT
        elif stalled is not None and bool(stalled()):
            self.status = Status.STALLED
            return True
        return self.status in (Status.OPTIMAL, Status.TIME_LIMIT)

    def result(self) -> Result:
        """The result so far."""
        none = self._energy.new_empty(0, self.crf.images)
        history = History(
            torch.stack([t[0] for t in self._trace]) if self._trace else none,
            torch.stack([t[1] for t in self._trace]) if self._trace else none,
            torch.tensor([t[2] for t in self._trace], dtype=torch.float64),
            torch.tensor([t[3] for t in self._trace], dtype=torch.int64),
        )
        return Result(
            self.method,
            self._own,
            self._own_energy,
            self._labelling,
            self._energy,
            tuple(self._sources[s] for s in self._source.tolist()),
            self._bound,
            self.y,
            history,
            self.filter_calls,
            time.perf_counter() - self._began,
            self.status,
        )

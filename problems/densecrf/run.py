"""A run of a method: its clock, its labellings and bounds, and what it tells others."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.engine.records import Event, relative_gap
from blocklp.problems.densecrf.energy import DenseCRF
from blocklp.problems.densecrf.result import History, Result
from blocklp.status import Status


class Run:
    """What a method works with: it calls :meth:`step` after each of its steps and stops once that says so.

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
        self._source = ["unary"] * crf.images
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
        energy = self.crf.energy(labelling)
        better = energy < self._energy
        if bool(better.any()):
            chosen = torch.where(self.crf.per_point(better)[:, 0], labelling, self._labelling)
            self._labelling, self._energy = chosen, torch.minimum(energy, self._energy)
            self._source = [source if b else old for b, old in zip(better.tolist(), self._source, strict=True)]
        return energy

    @property
    def best_bound(self) -> Tensor:
        """The best bounds so far: ``(images,)``."""
        return self._bound

    def bounded(self, bound: Tensor) -> None:
        """Keep bounds ``(images,)`` where they are the best so far."""
        self._bound = torch.maximum(self._bound, bound)

    def step(self, y: Tensor) -> bool:
        """Note a step: the method's point y ``(points, labels)``, whose labelling is its argmax.

        Returns
        -------
        bool
            Whether to stop, as :meth:`over` says.

        Raises
        ------
        TimeLimitError
            If the deadline passes before the labelling is evaluated; the step is not kept then.
        """
        labelling = y.argmax(1)
        if not torch.equal(labelling, self._own) or not bool(torch.isfinite(self._own_energy).all()):
            self._own, self._own_energy = labelling, self.offer(labelling, self.method)
        self.y = y
        seconds = time.perf_counter() - self._began
        self._trace.append((self._own_energy, self._bound, seconds, self.filter_calls))
        if self._callback is not None:
            gap = relative_gap(self._energy, self._bound)
            status = torch.full_like(gap, int(Status.RUNNING)).long()
            self._callback(Event(len(self._trace), seconds, self._bound, self._energy, gap, status))
        return self.over()

    def over(self) -> bool:
        """Whether to stop: time is up, or every image's gap is within the tolerance."""
        if bool((relative_gap(self._energy, self._bound) <= self.tol).all()):
            self.status = Status.OPTIMAL
        elif self.crf.deadline.over():
            self.status = Status.TIME_LIMIT
        return self.status in (Status.OPTIMAL, Status.TIME_LIMIT)

    def result(self) -> Result:
        """What is known now."""
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
            tuple(self._source),
            self._bound,
            self.y,
            history,
            self.filter_calls,
            time.perf_counter() - self._began,
            self.status,
        )

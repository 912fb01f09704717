"""A run of a method: its clock, its best labellings and bounds, and what it tells others."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from blocklp.problems.densecrf.energy import DenseCRF
from blocklp.problems.densecrf.result import History, Result
from blocklp.records import Event
from blocklp.status import Status


class Run:
    """What a method works with: it calls :meth:`step` after each of its steps and stops once that says so.

    Attributes
    ----------
    crf : DenseCRF
        The energy.
    start : Tensor
        ``(points, labels)``: where to start, on the simplices; in the precision of the unaries.
    filter_calls : int
        Applications of all kernels so far; methods count their own.
    """

    def __init__(
        self,
        crf: DenseCRF,
        method: str,
        time_limit: float = math.inf,
        callback: Callable[[Event], object] | None = None,
        tol: float = 0.0,
    ) -> None:
        self.crf, self.method, self.tol = crf, method, tol
        self.start = torch.nn.functional.one_hot(crf.unary.argmin(1), crf.labels).to(crf.unary)
        self.y = self.start
        self.filter_calls = 0
        self.status = Status.PASS_LIMIT
        self._callback = callback
        self._began = time.perf_counter()
        self._deadline = self._began + time_limit
        self._energy = torch.full((crf.images,), torch.inf, dtype=torch.float64, device=crf.unary.device)
        self._bound = -self._energy
        self._labelling = crf.unary.argmin(1)
        self._source = ["unary"] * crf.images
        self._trace: list[tuple[Tensor, Tensor, float, int]] = []
        self._last, self._last_energy = self._labelling, self.offer(self._labelling, "unary")
        self.offer(crf.best_constant(), "constant")

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

    def step(self, y: Tensor, labelling: Tensor | None = None) -> bool:
        """Note a step: the method's point y ``(points, labels)``, and a labelling of its own where that is not the argmax.

        Returns
        -------
        bool
            Whether to stop, as :meth:`over` says.
        """
        self.y = y
        labelling = y.argmax(1) if labelling is None else labelling
        if not torch.equal(labelling, self._last):
            self._last, self._last_energy = labelling, self.offer(labelling, self.method)
        seconds = time.perf_counter() - self._began
        self._trace.append((self._last_energy, self._bound, seconds, self.filter_calls))
        if self._callback is not None:
            status = torch.full_like(self._gap, int(Status.RUNNING)).long()
            self._callback(Event(len(self._trace), seconds, self._bound, self._energy, self._gap, status))
        return self.over()

    def over(self) -> bool:
        """Whether to stop: time is up, or every image's gap is within the tolerance."""
        if bool((self._gap <= self.tol).all()):
            self.status = Status.OPTIMAL
        elif time.perf_counter() >= self._deadline:
            self.status = Status.TIME_LIMIT
        return self.status in (Status.OPTIMAL, Status.TIME_LIMIT)

    @property
    def _gap(self) -> Tensor:
        return (self._energy - self._bound) / self._energy.abs().clamp(min=1e-12)

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
            self._labelling,
            tuple(self._source),
            self.y,
            self._energy,
            self._bound,
            history,
            self.filter_calls,
            time.perf_counter() - self._began,
            self.status,
        )

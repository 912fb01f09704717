"""Schedules of one machine."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from blocklp.blocks.contract import BlockType, Constraints
from blocklp.errors import ModelError, ShapeError
from blocklp.options import numbers, whole
from blocklp.oracles.graphs import LARGEST_SYSTEM, masked_arcs
from blocklp.oracles.path import Path


class Schedule(BlockType):
    r"""Jobs that one machine does one after another, by the periods in which they start.

    With a variable for every job j and period t in which it may start, and durations :math:`p_j`,

    .. math:: \Big\{ x \ge 0 : \sum_j \sum_{s = t - p_j + 1}^{t} x_{j,s} \le 1 \text{ for all t} \Big\}.

    That is the hull of its integer points, as the matrix of intervals is totally unimodular:
    pseudo-schedules, in which a job may be done never or several times.  Rows of the model say how often it
    is, as a rule once on all machines together; bounds are then those of time-indexed formulations (van den
    Akker, Hurkens and Savelsbergh 2000, Time-indexed formulations for machine scheduling problems: Column
    generation).

    Minimum: a cheapest path through the periods by dynamic programming (:class:`Path`).

    Parameters
    ----------
    durations : array_like
        ``(jobs,)`` integers, at least 1: periods that each job takes.
    horizon : int
        Number of periods.
    release, due : array_like, optional
        ``(jobs,)`` integers: the period from which on a job may start, and that by the beginning of which it
        must have ended; by default the first, and the end.

    Attributes
    ----------
    job, start : Tensor
        ``(dim,)`` int64: the job and the period of each variable, job after job.

    Raises
    ------
    ShapeError
        If the shapes do not fit together.
    ModelError
        If a number is no integer in its range, or a job fits nowhere.

    Examples
    --------
    >>> import torch
    >>> from blocklp.oracles import Schedule
    >>> kind = Schedule([2, 1], horizon=3)
    >>> list(zip(kind.job.tolist(), kind.start.tolist()))
    [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    >>> point, value = kind.min_oracle(torch.tensor([[[-2.0, -3.0, -1.0, -2.0, -2.0]]], dtype=torch.float64))
    >>> point.tolist(), value.tolist()
    ([[[0.0, 0.0, 1.0, 1.0, 1.0]]], [[-5.0]])
    """

    by_points = True
    block_data = ("excluded",)
    #: ``(batch or 1, blocks, dim)`` bool, or None: mask of the starts that must not be used.
    excluded: Tensor | None = None

    def __init__(self, durations: object, horizon: int, release: object = None, due: object = None) -> None:
        self.horizon = whole(horizon, "Schedule horizon")
        took = _integers(durations, "durations", None)
        jobs = len(took)
        first = np.zeros(jobs, dtype=np.int64) if release is None else _integers(release, "release", jobs)
        last = np.full(jobs, self.horizon) if due is None else _integers(due, "due", jobs)
        last = np.minimum(last, self.horizon) - took
        for wrong, what in (
            (took < 1, "takes no period"),
            (first < 0, "is released before the first period"),
        ):
            if wrong.any():
                raise ModelError(f"Schedule: job {int(np.argmax(wrong))} {what}")
        if (last < first).any():
            j = int(np.argmax(last < first))
            need = "raise the horizon or its due period, or leave the job out"
            raise ModelError(f"Schedule: job {j} takes {took[j]} periods and fits nowhere; {need}")
        starts = [np.arange(a, b + 1) for a, b in zip(first, last, strict=True)]
        self.job = torch.from_numpy(np.repeat(np.arange(jobs), [len(s) for s in starts]))
        self.start = torch.from_numpy(np.concatenate(starts))
        self.end = self.start + torch.from_numpy(took)[self.job]
        self.dim: int = len(self.job)
        idle = torch.arange(self.horizon)
        self.path = Path(torch.cat([self.start, idle]), torch.cat([self.end, idle + 1]), 0, self.horizon)

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Find the cheapest pseudo-schedules."""
        taken, value = self._paths(cost).min_oracle(self._with_idle(cost))
        return taken[..., : self.dim], value

    def value_error(self, cost: Tensor) -> Tensor:
        """Rounding error of the sum along a path through the periods."""
        return self._paths(cost).value_error(self._with_idle(cost))

    def constraints(self) -> Constraints | None:
        """A row for each period, with zero and one as bounds; None for large dense systems."""
        if self.horizon * self.dim > LARGEST_SYSTEM:
            return None
        period = torch.arange(self.horizon)[:, None]
        matrix = ((self.start <= period) & (period < self.end)).double()
        upper = torch.ones(1, 1, self.horizon, dtype=torch.float64)
        above = torch.ones(1, 1, self.dim, dtype=torch.float64)
        return Constraints(matrix[None, None], torch.full_like(upper, -torch.inf), upper, 0 * above, above)

    def restrict(self, lower: Tensor, upper: Tensor) -> Schedule | None:
        """Mask starts by fixings to zero; None for other bounds."""
        excluded = masked_arcs(self.excluded, lower, upper, 1.0)
        return None if excluded is None else self.with_data(excluded=excluded)

    def _paths(self, cost: Tensor) -> Path:
        """The paths through the periods, without what is excluded, where the cost is."""
        path = self.path.to(cost.dtype, cost.device)
        return (
            path if self.excluded is None else path.with_data(excluded=pad(self.excluded, (0, self.horizon)))
        )

    def _with_idle(self, cost: Tensor) -> Tensor:
        """Costs of starts and, zero, of idle periods."""
        return pad(cost, (0, self.horizon))

    def __repr__(self) -> str:
        return f"{self.name}(jobs={int(self.job.max()) + 1}, horizon={self.horizon})"


def _integers(given: object, name: str, count: int | None) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Integers ``(jobs,)``; errors name the first number that is none."""
    values = numbers(given, f"Schedule {name}")
    if values.dim() != 1 or not len(values) or (count is not None and len(values) != count):
        need = "a number for each job" if count is None else f"{count} numbers, one a job"
        raise ShapeError(f"Schedule: {name} has shape {tuple(values.shape)}; give {need}")
    if bool((values != values.round()).any()):
        j = int((values != values.round()).int().argmax())
        raise ModelError(f"Schedule: {name} of job {j} is {float(values[j]):g}; periods are integers")
    return values.long().numpy()

"""The steps of an exact solver: reduce, split into components, eliminate or search each of them, and lift what was found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from blocklp.deadline import Deadline
from blocklp.errors import TimeLimitError
from blocklp.problems.discrete.exact import ExactRun
from blocklp.problems.discrete.integers import Grid
from blocklp.problems.discrete.reduced import Reduced
from blocklp.search.best_first import SearchResult
from blocklp.status import Status

LabelArray = NDArray[Any]


class HasVariables(Protocol):
    """A problem with a number of variables."""

    @property
    def n(self) -> int:
        """That number."""


P = TypeVar("P", bound=HasVariables)


@dataclass
class Bracket:
    """Labels that are known, and a bound on the values of all; a search improves both.

    Attributes
    ----------
    labels : numpy.ndarray, shape (n,)
        The best labels so far.
    bound : float
        No labels have a smaller value.
    run : ExactRun
        Limits; gets the status.
    """

    labels: LabelArray
    bound: float
    run: ExactRun

    def eliminated(self, labels: LabelArray | None, value: Callable[[LabelArray], Any]) -> None:
        """Take what elimination found: a minimiser, or nothing for lack of time.

        Parameters
        ----------
        labels : numpy.ndarray, shape (n,), optional
            The minimiser.
        value : callable
            Gives its value.
        """
        if labels is None:
            self.run.status = Status.TIME_LIMIT
            return
        self.run.nodes += 1
        self.labels, self.bound = labels, float(value(labels))

    def searched(self, labels: LabelArray, value: float, result: SearchResult, grid: Grid) -> None:
        """Take what a branch and bound found: what it pruned is better by less than a step, so by nothing, or what does not matter.

        Parameters
        ----------
        labels : numpy.ndarray, shape (n,)
            The best labels.
        value : float
            Their value.
        result : SearchResult
            How the search ended, and the bound that it proved.
        grid : Grid
            What values can be.
        """
        self.labels = labels
        if result.proven:
            self.bound = max(self.bound, grid.raised(value - grid.tolerance))
        else:
            self.run.status = result.status
            self.bound = min(value, grid.raised(max(self.bound, result.bound - grid.tolerance)))


class Kind(Protocol[P]):
    """What the pipeline has to know of a kind of minimisation problems whose values are whole numbers."""

    def seconds(self, problem: P) -> float:
        """Return how long the reductions take, at least."""

    def least(self, problem: P) -> float:
        """Return a bound that takes no time."""

    def begin(self, problem: P, deadline: Deadline) -> LabelArray:
        """Return labels that are found quickly."""

    def reduce(self, problem: P, run: ExactRun) -> Reduced[P]:
        """Return what reductions leave of a problem."""

    def search(self, part: P, found: Bracket) -> None:
        """Improve labels and bound of a connected problem until they meet; if they do not, the status of the run says why."""


def minimised(kind: Kind[P], problem: P, run: ExactRun) -> Bracket:
    """Minimise, as far as limits let; an interrupt of the reductions is the caller's.

    Parameters
    ----------
    kind : Kind
        What the problem is.
    problem : HasVariables
        The problem.
    run : ExactRun
        Limits; gets the status.
    """
    if not run.deadline.affords(kind.seconds(problem)):
        run.status = Status.TIME_LIMIT
        return Bracket(kind.begin(problem, run.deadline), kind.least(problem), run)
    reduced = kind.reduce(problem, run)
    found = [_component(kind, part, run) for part in reduced.parts]
    bound = max(reduced.constant + sum(own.bound for own in found), reduced.least)
    return Bracket(reduced.lift([own.labels for own in found]), bound, run)


def proved(kind: Kind[P], problem: P, run: ExactRun) -> Bracket:
    """Minimise; after an interrupt of the reductions, labels and bound are those found at once.

    Parameters
    ----------
    kind, problem, run
        As of :func:`minimised`.
    """
    try:
        return minimised(kind, problem, run)
    except KeyboardInterrupt:
        run.status = Status.INTERRUPTED
        return Bracket(kind.begin(problem, run.deadline), kind.least(problem), run)


def _component(kind: Kind[P], part: P, run: ExactRun) -> Bracket:
    found = Bracket(np.zeros(part.n, dtype=np.int64), kind.least(part), run)
    try:
        found.labels = kind.begin(part, run.deadline)
        if not run.over():
            kind.search(part, found)
    except TimeLimitError:
        run.status = Status.TIME_LIMIT
    except KeyboardInterrupt:
        run.status = Status.INTERRUPTED
    return found

"""What exact solvers return, and what they show while they run."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from blocklp.campaigns import Executor, InProcess
from blocklp.deadline import Deadline
from blocklp.kernels import compiled
from blocklp.problems.discrete.integers import Unit
from blocklp.search.best_first import Node, SearchEvent, SearchResult, relative_gap
from blocklp.search.over_workers import Expand, Sharing, branch_and_bound_over
from blocklp.status import Status
from blocklp.tables import SHOWN, Table, Tabled, plural

REASONS = {
    Status.OPTIMAL: "The labelling is optimal.",
    Status.INFEASIBLE: "No labelling respects the hard constraints.",
    Status.TIME_LIMIT: "The time limit was reached; the bound is valid. Raise time_limit=.",
    Status.INTERRUPTED: "Interrupted; the bound is the best so far.",
    Status.STALLED: "The labelling is not proved to be optimal; the bound is valid.",
}

TOO_LARGE = "Coefficients are too large for sums without rounding; divide them, or round them to fewer digits."

Callback = Callable[[SearchEvent], Any]


LOADING = 2.0
"""Seconds that it takes to import numba on a busy machine."""

_rehearsed: set[str] = set()


def affordable_loops(module: str, deadline: Deadline) -> Any:
    """Import a module of compiled loops, unless its import, or a compilation that nobody has done yet, would take too long.

    The module states by ``SECONDS`` how long it takes to compile all of its loops, which ``rehearse()`` does.  None without them.
    """
    if math.isinf(deadline.left()):
        return compiled.loops(module)
    if "numba" not in sys.modules and not deadline.affords(LOADING):
        return None
    found = compiled.loops(module)
    if found is None or module in _rehearsed or compiled.cached(found, torch.float64) or deadline.affords(found.SECONDS):
        return found
    return None


def affordable_rounds(rounds: int, deadline: Deadline, per_second: float, steps: float) -> int:
    """Return how many rounds of compiled loops there is time for.

    Parameters
    ----------
    rounds : int
        Rounds at most.
    deadline : Deadline
        When they must be done.
    per_second : float
        Steps that are made in a second, at least.
    steps : float
        Steps of a round.
    """
    return rounds if math.isinf(deadline.left()) else int(min(rounds, deadline.left() * per_second / max(1.0, steps)))


def rehearsed_loops(module: str, deadline: Deadline) -> Any:
    """Import a module of compiled loops, and compile all of them if nobody has yet.

    None without numba, and where there is no time for that.
    """
    found = affordable_loops(module, deadline)
    if found is None:
        return None
    if module not in _rehearsed and not compiled.cached(found, torch.float64):
        found.rehearse()
        compiled.mark(found, torch.float64)
    _rehearsed.add(module)
    return found


def search_loops(module: str, run: ExactRun) -> Any:
    """Import the compiled loops of a search; without them searches are slower."""
    found = rehearsed_loops(module, run.deadline)
    if found is None:
        run.detail = "It did without compiled loops: they need numba, and once on a machine up to a minute to be compiled."
    return found


def in_units(callback: Callback | None, unit: float) -> Callback | None:
    """Return a callback for searches on integers that stand for ``unit`` each: it gets the values themselves."""
    if callback is None:
        return None
    return lambda event: callback(replace(event, bound=event.bound * unit, incumbent=event.incumbent * unit))


@dataclass(frozen=True)
class ExactSettings:
    """At what sizes exact solvers change their methods, and into what pieces they cut their work.

    Attributes
    ----------
    tables_at_once : float
        Entries of tables up to which a quadratic function is minimised by elimination before anything else is tried.
    tables : float
        Entries up to which one is minimised by elimination at all.
    energy_tables : float
        Entries up to which an energy of more labels is.
    leaf_tables : float
        Entries up to which a node of the search for independent sets is solved by elimination.
    reduced_table : int
        Entries of the tables of an energy that reductions look at, or leave.
    dense : float
        Pairs a variable up to which a quadratic function is searched by tightened relaxations, and above which by convex
        underestimators; three fifths of it for functions of up to 200 variables.
    nodes_below : int
        Nodes that are searched depth first below a node, at most, before its halves get underestimators of their own; fewer where
        they take longer.
    searched_graph : int
        Nodes of a graph below which independent sets are searched depth first, too.
    tree_work : float
        Nodes of such a search times nodes of the graph when a node is bounded; twenty times as many before it is branched on.
    root_passes : int
        Passes of a tightened relaxation at most.
    shrunk : float
        Share of the labels of the root of such a search at which what is left of a node is a problem of its own.
    clock_every : float
        Seconds of depth-first search between two looks at the clock.
    """

    tables_at_once: float = 1e6
    tables: float = 4e8
    energy_tables: float = 5e7
    leaf_tables: float = 2e5
    reduced_table: int = 100_000
    dense: float = 5.0
    nodes_below: int = 20_000
    searched_graph: int = 1000
    tree_work: float = 5e7
    root_passes: int = 30_000
    shrunk: float = 0.7
    clock_every: float = 0.03


DEFAULT = ExactSettings()


@dataclass
class ExactRun:
    """One call: its limits, and what it has spent on all parts of a problem.

    Attributes
    ----------
    deadline : Deadline
        When to stop.
    callback : callable, optional
        Gets a :class:`blocklp.search.SearchEvent` after every batch of nodes; True stops.
    nodes : int
        Nodes bounded so far.
    status : Status
        ``OPTIMAL`` until a part could not be solved.
    detail : str
        What was done without for lack of time.
    executor : Executor, optional
        Whose workers expand nodes; by default this process does.
    settings : ExactSettings
        At what sizes methods change.
    """

    deadline: Deadline
    callback: Callback | None
    nodes: int = 0
    status: Status = Status.OPTIMAL
    detail: str = ""
    executor: Executor | None = None
    settings: ExactSettings = DEFAULT

    def over(self) -> bool:
        """Whether to stop, by an interrupt or the deadline."""
        if self.status is not Status.INTERRUPTED and self.deadline.over():
            self.status = Status.TIME_LIMIT
        return self.status in (Status.INTERRUPTED, Status.TIME_LIMIT)

    def searched(
        self, roots: Iterable[Node], expand: Expand, alone: Sharing, shared: Sharing, step: float, **given: Any
    ) -> SearchResult:
        """Search best first, by the workers if there are some, to labels that no others are better than by a step.

        Parameters
        ----------
        roots, expand
            As in :func:`blocklp.search.branch_and_bound_over`.
        alone, shared : Sharing
            How nodes are expanded by this process, and shared among workers.
        step : float
            How far apart values are at least.
        **given
            Other arguments of that function; without ``log`` an expansion's log has numbers of nodes, which are added up.
        """
        return branch_and_bound_over(
            self.executor or InProcess(),
            roots,
            expand,
            sharing=alone if self.executor is None else shared,
            tol=0.999 * step,
            time_limit=self.deadline,
            **{"callback": self.callback, "log": self._count} | given,
        )

    def _count(self, nodes: int) -> None:
        self.nodes += nodes

    def result(self, labels: Tensor, energy: float, bound: float, unit: Unit, seconds: float) -> ExactResult:
        """Return what was found, and that it is proved unless the status or the bound says otherwise.

        Parameters
        ----------
        labels : Tensor
            ``(n,)``: labels.
        energy, bound : float
            Their value and a bound on that of all.
        unit : Unit
            Of the coefficients.
        seconds : float
            Time taken.
        """
        # Both results are rounded once, with an offset that may be much larger than the step.
        apart = abs(energy - bound)
        if self.status is Status.OPTIMAL and apart >= unit.step > 0 and apart > math.ulp(energy):
            self.status, self.detail = Status.STALLED, TOO_LARGE
        proven = self.status in (Status.OPTIMAL, Status.INFEASIBLE)
        return ExactResult(labels, energy, bound, proven, self.nodes, seconds, self.status, self.detail, unit.floor)


@dataclass(frozen=True, repr=False)
class ExactResult(Tabled):
    """A solution, and whether it is proved to be the best.

    Attributes
    ----------
    labels : Tensor
        ``(n,)`` int8, of a Markov random field int64: labels, or members of the set.
    energy : float
        Value of the labels; of a set, its weight; rounded once.
    bound : float
        No labels have a smaller energy, no set a larger weight, in exact arithmetic.
    proven : bool
        Whether energy and bound agree: but for their last digits if all coefficients are multiples of a common number, in binary or
        in decimals, that their sum is not too large for, and else within two billionths of the sum of all magnitudes (of up to a
        hundred thousand coefficients).
    nodes : int
        Nodes bounded.
    seconds : float
        Time taken.
    status : Status
        ``OPTIMAL``, ``INFEASIBLE``, ``TIME_LIMIT``, ``INTERRUPTED`` or ``STALLED``; ``reason`` is the sentence.
    detail : str
        What the search did without for lack of time, or why the labels are not proved to be the best.
    floor : float
        Magnitude below which energies count as zero, part of the sum of all magnitudes.
    """

    labels: Tensor
    energy: float
    bound: float
    proven: bool
    nodes: int
    seconds: float
    status: Status
    detail: str = ""
    floor: float = 0.0

    def _tables(self) -> tuple[str, list[Table]]:
        title = f"Exact solution in {plural(len(self.labels), 'variable')}, {self.seconds:.3g} s. {self.reason}"
        numbers = (f"{self.energy:.10g}", f"{self.bound:.10g}", f"{self.gap:.2g}", str(self.nodes))
        answer = Table(("status", "energy", "bound", "gap", "nodes"), [("proven" if self.proven else str(self.status), *numbers)], 1)
        rows = [(str(i), str(label)) for i, label in enumerate(self.labels[:SHOWN].tolist())]
        return title, [answer, Table(("variable", "label"), rows, len(self.labels))]

    @property
    def reason(self) -> str:
        """Why the search ended."""
        has_detail = self.status in (Status.TIME_LIMIT, Status.STALLED)
        return f"{REASONS[self.status]} {self.detail}".strip() if has_detail else REASONS[self.status]

    @property
    def gap(self) -> float:
        """``|energy - bound| / max(|energy|, |bound|, floor)``; zero if they are equal, infinite if the energy alone is infinite."""
        return relative_gap(self.energy, self.bound, self.floor)

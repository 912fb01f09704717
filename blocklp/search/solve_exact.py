"""Exact optima of models with integer variables: the front door to :mod:`blocklp.search.integer_search`."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from blocklp.campaigns import Executor, InProcess
from blocklp.deadline import Deadline
from blocklp.errors import ModelError
from blocklp.language.expression import Expression, View
from blocklp.language.row_expression import RowExpression
from blocklp.language.sense import Sense
from blocklp.methods import Method
from blocklp.model import Model
from blocklp.options import flag, hook, of_type, real, whole
from blocklp.results.solution_summary import counted
from blocklp.results.values import Values, evaluated
from blocklp.search.best_first import SearchEvent, SearchResult, relative_gap
from blocklp.search.integer_rest import Rest, serves
from blocklp.search.integer_search import IntegerProgram
from blocklp.search.integer_tree import IntegerTree
from blocklp.search.over_workers import Sharing, branch_and_bound_over
from blocklp.status import Status
from blocklp.tables import Table, Tabled

MEMORY = 2e9
"""Bytes of multipliers of open nodes from which on the search goes deep first."""

PARTS, SHARE = 8, 4
"""Tasks of a round of workers, and the part of a batch that each of them gets at least."""

UNTOUCHED = SearchResult(0, 0, -math.inf, math.inf, 0.0, None, Status.INTERRUPTED, 0, ())
"""The result of instances that an interrupt kept from being searched."""


@dataclass(frozen=True, repr=False)
class ExactSolution(Tabled):
    r"""The best integer points that were found, and bounds on better ones; tensors have the instance first.

    Attributes
    ----------
    primal : Tensor
        ``(batch,)`` float64: value of ``x``, infinite (minus infinity when maximising) where no point was
        found.
    bound : Tensor
        ``(batch,)`` float64: no feasible point is better; as infinite as ``primal`` where there is none.
    gap : Tensor
        ``(batch,)`` float64: ``|primal - bound| / max(|primal|, |bound|, floor)``, with a millionth of
        :math:`\sum_j |c_j| \max(|lo_j|, |hi_j|)` as floor.
    status : tuple of Status
        ``OPTIMAL``, ``INFEASIBLE``, ``TIME_LIMIT``, ``PASS_LIMIT`` (of nodes), ``INTERRUPTED`` or ``STALLED``
        (some relaxation could not be solved accurately enough).
    x : Values
        The points, a mapping by variable, view or name; NaN where none was found.
    nodes : Tensor
        ``(batch,)`` int64: nodes that were bounded.
    seconds : Tensor
        ``(batch,)`` float64.
    """

    primal: Tensor
    bound: Tensor
    gap: Tensor
    status: tuple[Status, ...]
    x: Values
    nodes: Tensor
    seconds: Tensor
    raw_x: Tensor

    def value(self, of: View | Expression | RowExpression | str) -> Tensor:
        """Return the value at ``x`` of variables, an expression or rows, ``(batch, *shape)`` float64."""
        return evaluated(of, self.x, self.raw_x, list(range(len(self.status))))

    __getitem__ = value

    def _tables(self) -> tuple[str, list[Table]]:
        return counted(self, "nodes", self.nodes)


def solve_exact(
    model: Model,
    *,
    tol: float = 1e-6,
    time_limit: float | Deadline = math.inf,
    max_nodes: int | None = None,
    batch: int = 32,
    method: str | Method = "auto",
    executor: Executor | None = None,
    callback: Callable[[SearchEvent], Any] | None = None,
    verbose: bool = False,
) -> ExactSolution:
    """Optimise over the points of a model whose variables declared with ``integer=True`` are integers.

    Branch and bound (:func:`blocklp.search.branch_and_bound_over`) over relaxations of the model, a batch of
    nodes a solve.  Any blocks and rows will do; types that state no constraints need a method that finds
    primal points of theirs.  Where blocks are hulls of integer points that state their rows
    (``Knapsack(..., integer=True)``), their Lagrangean bound fixes variables, and HiGHS solves what is left
    (:mod:`blocklp.search.integer_rest`), to its tolerances.

    Instances are solved one after the other, each with an equal part of the time that is left.

    Parameters
    ----------
    model : Model
        The model; at least one variable is integer.
    tol : float
        Relative gap at which a point is optimal.  Where all costs are integers of integer variables, it is
        optimal in fact.
    time_limit : float or Deadline
        Seconds for everything.
    max_nodes : int, optional
        Most nodes of an instance.
    batch : int
        Most nodes a solve.
    method : str or Method
        For the relaxations, as in :meth:`Solver.solve`.
    executor : Executor, optional
        Whose workers solve the relaxations (:class:`blocklp.campaigns.LocalExecutor`,
        :class:`blocklp.campaigns.RayExecutor`), in rounds of 8 batches; the nodes are the same for any number
        of workers.  What HiGHS solves stays in this process.
    callback : callable, optional
        Gets a :class:`blocklp.search.SearchEvent` in the sense of the model after every solve; True stops the
        instance.
    verbose : bool
        Whether a line on standard error follows the search where that is a terminal or a notebook, and the
        solution is printed there in the end.

    Returns
    -------
    ExactSolution
        The best so far at a limit or an interrupt, with a bound that is valid at any time.

    Raises
    ------
    ModelError
        If the model has no objective, or no integer variable.
    OptionError
        If an option is out of range.

    Examples
    --------
    >>> import torch
    >>> import blocklp as bl
    >>> m = bl.Model()
    >>> x = m.variable("x", 4, lower=0, upper=1, integer=True)
    >>> room = m.add(torch.tensor([5.0, 4, 3, 2]) @ x <= 8)
    >>> m.maximize(torch.tensor([8.0, 5, 4, 3]) @ x)
    >>> found = bl.solve_exact(m)
    >>> found.primal.item(), found.bound.item(), found[x].tolist()
    (12.0, 12.0, [[1.0, 0.0, 1.0, 0.0]])
    """
    of_type(model, Model, "model", "a model", ModelError)
    if model.objective is None:
        raise ModelError("the model has no objective; call minimize() or maximize() first")
    if not any(v.integer for v in model.variables.values()):
        need = "declare some by m.variable(..., integer=True), or use m.solve()"
        raise ModelError(f"no variable is integer; {need}")
    real(tol, "tol", positive=False)
    whole(batch, "batch")
    hook(callback, "callback")
    deadline, sense = Deadline.of(time_limit), Sense(model.maximizing)
    floors = [0.0] * model.batch
    results, points, seconds = [], torch.full((model.batch, model.size), torch.nan, dtype=torch.float64), []
    interrupted = False
    for i in range(model.batch):
        began = time.perf_counter()
        own = deadline if i == model.batch - 1 else deadline.within(deadline.left() / (model.batch - i))
        found, stopped = UNTOUCHED, False
        if not interrupted:
            with _shown(flag(verbose, "verbose")) as line:
                try:
                    program = IntegerProgram(model, i, method, own, tol)
                    floors[i] = program.floor
                    found = _searched(program, max_nodes, batch, executor, _listener(callback, line, sense))
                    stopped = program.stopped
                except KeyboardInterrupt:  # while the instance was stated; searches end with what they know
                    found = UNTOUCHED
        interrupted |= found.status is Status.INTERRUPTED and not stopped  # by Ctrl-C, not by the callback
        results.append(found)
        seconds.append(time.perf_counter() - began)
        if found.point is not None:
            points[i] = found.point
    primal = sense.turn(torch.tensor([r.incumbent for r in results], dtype=torch.float64))
    bound = sense.turn(torch.tensor([r.bound for r in results], dtype=torch.float64))
    gaps = [relative_gap(r.incumbent, r.bound, floor) for r, floor in zip(results, floors, strict=True)]
    made = ExactSolution(
        primal=primal,
        bound=bound,
        gap=torch.tensor(gaps, dtype=torch.float64),
        status=tuple(r.status for r in results),
        x=Values(points, [model]),
        nodes=torch.tensor([r.nodes for r in results]),
        seconds=torch.tensor(seconds, dtype=torch.float64),
        raw_x=points,
    )
    if verbose:
        print(made, file=sys.stderr)
    return made


def _searched(
    program: IntegerProgram,
    max_nodes: int | None,
    batch: int,
    executor: Executor | None,
    listener: Callable[[SearchEvent], Any],
) -> SearchResult:
    """Search one instance, until bound and value are as near as asked."""

    def stops(event: SearchEvent) -> bool:
        program.stopped = bool(listener(event))
        return program.stopped or event.bound >= program.goal()

    if serves(program):
        most = math.inf if max_nodes is None else whole(max_nodes, "max_nodes")
        return Rest(program, listener, most).solve()
    tree = IntegerTree(program)
    # A batch is a task, so that all that is known goes into each.
    sharing = Sharing(batch=batch, parts=1, subtree=batch, memory=MEMORY)
    if executor is not None:
        sharing = replace(sharing, parts=PARTS, least=math.ceil(batch / SHARE))
    found = branch_and_bound_over(
        executor or InProcess(),
        program.root(),
        tree.expand,
        sharing=sharing,
        tol=0.5 * program.unit,
        max_nodes=max_nodes,
        time_limit=program.deadline,
        callback=stops,
        log=tree.learn,
        advice=tree.advice,
    )
    if found.incumbent < math.inf and found.bound >= program.goal():
        # Values are multiples of the unit: none lies between.
        return replace(found, status=Status.OPTIMAL, bound=found.incumbent if program.unit else found.bound)
    return found


def _shown(verbose: bool) -> Any:
    """A progress line, or none."""
    if not verbose:
        return nullcontext()
    from blocklp.progress import SearchProgress  # draws with rich, which takes long to import

    return SearchProgress()


def _listener(
    callback: Callable[[SearchEvent], Any] | None,
    line: Any,
    sense: Sense,
) -> Callable[[SearchEvent], Any]:
    """A callback that gives events in the sense of the model to ``callback`` and to the progress line."""

    def listener(event: SearchEvent) -> Any:
        own = sense.turned(event, "bound", "incumbent")
        if line is not None:
            line(own)
        return None if callback is None else callback(own)

    return listener

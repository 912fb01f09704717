r"""Tightening: blocks that the present solution violates join the warm problem, again and again.

An LP is relaxed by leaving blocks out.  A search looks at a solution and proposes some that would raise the
bound; the best of them are added, and the next solve starts from the multipliers of the last one.  New blocks
start with a share of zero,

.. math:: D(\lambda, 0) = D(\lambda) + \sum_{b \text{ new}} \min_{x_b \in X_b} \langle 0, x_b \rangle
          = D(\lambda),

so that the bound never drops (Sontag et al. 2008, Tightening LP relaxations for MAP using message passing,
where clusters join a dual that goes on).  New blocks may bring new variables without a cost: products of
variables, as in a step of the hierarchy of Sherali and Adams.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from blocklp.blocks.contract import BlockType
from blocklp.deadline import Deadline
from blocklp.engine.records import Event, relative_gap
from blocklp.errors import ModelError, TimeLimitError
from blocklp.language.expression import View
from blocklp.language.statement import Statement
from blocklp.methods import Admm, Method, as_method
from blocklp.model import Model
from blocklp.options import hook, of_type, required_hook, shown, whole
from blocklp.results.solution import Solution
from blocklp.results.solution_summary import summary
from blocklp.results.state import State
from blocklp.status import Status
from blocklp.tables import SHOWN, Table, Tabled, plural

LEAST_MOVE = 0.1
"""How far multipliers are expected to move in a round at least, relative to their size."""

LEAST_RISE = 1e-5
"""Relative increase of the bound in a round below which the next round gets twice the passes."""


@dataclass(frozen=True)
class Clusters:
    """Blocks of one type that a search proposes.

    Attributes
    ----------
    name : str
        Name of the handle that they join; made when the first of them are added.
    type : BlockType
        Their type, without data of single blocks.
    scope : Tensor
        ``(count, dim)`` int64: columns of variables.  Numbers from ``model.size`` on stand for new variables
        between 0 and 1 that cost nothing, the same number for the same one in all clusters that a search
        proposes at once.  Those that are used get the next columns of the model, in the order of the numbers.
    score : Tensor
        ``(count,)``: the largest are added first, those that are not positive never.
    """

    name: str
    type: BlockType
    scope: Tensor
    score: Tensor


Search = Callable[[Solution], Sequence[Clusters]]


@dataclass(frozen=True)
class Budget:
    """Limits of a tightening.

    Attributes
    ----------
    rounds : int
        Most additions of blocks.
    blocks : int
        Most blocks that one of them adds.
    passes : int
        Most oracle passes between two of them; twice as many as before while rounds add nothing or do not
        raise the bound.
    copies : int
        The limit of memory: most copies of variables in blocks that the model may come to, new ones included.
    """

    rounds: int = 30
    blocks: int = 1000
    passes: int = 200
    copies: int = 10_000_000

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            whole(value, f"{name} of a tightening budget", 0 if name == "rounds" else 1)


@dataclass(frozen=True)
class Round:
    """The outcome of one solve of a tightening; ``str(round)`` is one line.

    Attributes
    ----------
    number, added, blocks, copies : int
        Solves before this one, blocks added right before it, all blocks and copies of the model since.
    bound : Tensor
        ``(batch,)``: best bound so far.
    gap : Tensor
        ``(batch,)``: the gap of the LP of this round, not that of an integral point.
    seconds : float
        Time since the start of the tightening.
    """

    number: int
    added: int
    blocks: int
    copies: int
    bound: Tensor
    gap: Tensor
    seconds: float

    def __str__(self) -> str:
        first = [f"{bound:.9g}" for bound in self.bound[:3].tolist()]
        bounds = ", ".join(first) + ", ..." * (len(self.bound) > 3)
        blocks = f"{self.blocks} blocks, {self.added} new"
        return f"round {self.number} | {blocks} | {self.seconds:.1f} s | bound {bounds}"


@dataclass(frozen=True, repr=False)
class Tightened(Tabled):
    """The end of a tightening.

    Attributes
    ----------
    solution : Solution
        Of the last round, with the best bound of all rounds and the multipliers that prove it; ``passes`` and
        ``seconds`` count all rounds.
    rounds : tuple of Round
        One a solve.
    """

    solution: Solution
    rounds: tuple[Round, ...]

    def _tables(self) -> tuple[str, list[Table]]:
        rows = [
            (
                str(r.number),
                str(r.blocks),
                str(r.added),
                f"{r.bound[0].item():.9g}",
                f"{r.gap[0].item():.2g}",
                f"{r.seconds:.3g}",
            )
            for r in self.rounds[-SHOWN:]
        ]
        columns = ("round", "blocks", "new", "bound", "gap of the LP", "seconds")
        title, tables = summary(self.solution, self.solution.relaxation)
        shown = f", the last {SHOWN} of them below" * (len(self.rounds) > SHOWN)
        ended = f"Tightened in {plural(len(self.rounds), 'round')}{shown}. {title}"
        return ended, [*tables, Table(columns, rows, len(rows))]


def tighten(
    model: Model,
    search: Search,
    budget: Budget | None = None,
    *,
    method: str | Method = "auto",
    passes: int = 5000,
    time_limit: float | Deadline = math.inf,
    warm_start: State | Solution | None = None,
    told: Callable[[Round, Solution], Any] | None = None,
    resume: Callable[[State], State] | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float64,
    **options: Any,
) -> Tightened:
    """Solve, add the blocks that a search proposes, and solve again from there.

    The model grows.  It ends when every instance has reached the cutoff, when an optimum of the LP leaves the
    search nothing, or at a limit; the last LP is then solved to ``tol``, as far as the limits allow.

    Parameters
    ----------
    model : Model
        Of any number of instances, which share all blocks.
    search : callable
        Takes the solution of a round to a sequence of :class:`blocklp.search.Clusters`.
    budget : Budget, optional
        Limits on what is added.
    method : str or Method
        As in :meth:`blocklp.Solver.solve`.
    warm_start : State or Solution, optional
        A state, as there, or a solution of this very model by whatever method: it counts as the first solve.
    passes, time_limit
        As there, of all rounds together.
    told : callable, optional
        Gets every :class:`blocklp.search.Round` with its solution, in time for a look at it;
        True ends the work.
    resume : callable, optional
        Takes the multipliers of a round, once blocks were added, to better ones of the model as it is then.
        Rounds then make a single pass, instead of the budget's, from where it got.
    device, dtype
        As in :func:`blocklp.compile`.
    **options
        The other options of :meth:`blocklp.Solver.solve`, such as ``cutoff``.

    Returns
    -------
    Tightened
        The last solution, the rounds, and why they ended.

    Raises
    ------
    OptionError, DeviceError
        An option is wrong, or the device is missing.
    ModelError, ScopeError
        A cluster does not fit the model.
    """
    of_type(model, Model, "model", "a model", ModelError)
    of_type(budget, Budget | None, "budget", "a Budget")
    of_type(warm_start, Solution | State | None, "warm_start", "a state or a solution")
    required_hook(search, "search")
    hook(told, "told")
    hook(resume, "resume")
    whole(passes, "passes")
    deadline, budget = Deadline.of(time_limit), budget or Budget()
    begun = warm_start if isinstance(warm_start, Solution) else None
    if begun is not None and deadline is not time_limit:  # its seconds are part of the limit
        deadline = Deadline(deadline.seconds, began=deadline.began - float(begun.seconds.max()))
    best: Solution | None = None
    rounds: tuple[Round, ...] = ()
    history: tuple[Event, ...] = ()
    weight = torch.full((model.batch,), torch.nan, dtype=torch.float64)
    spent, added, additions, growing = 0, 0, 0, budget.rounds > 0
    least = most = budget.passes if resume is None else 1

    def solved(left: int) -> Solution:
        solver = model.compile(device=device, dtype=dtype)
        chosen, start = method, None if isinstance(warm_start, Solution) else warm_start
        if best is not None:
            start = best.state if resume is None else resume(best.state)
            chosen = as_method(method, solver.decomposition(deadline=deadline))
            if isinstance(chosen, Admm) and chosen.eta is None:
                chosen, start = replace(chosen, hold=True), replace(start, eta=weight.to(start.eta))
        return solver.solve(
            method=chosen,
            passes=max(1, min(left, most) if growing else left),
            time_limit=deadline,
            warm_start=start,
            project=not growing,  # between rounds a bound is wanted, and a point that violates something
            **options,
        )

    while True:
        try:
            solution = begun if best is None and begun is not None else solved(passes - spent)
        except TimeLimitError:  # too late to build the problem anew; the first solve has an answer even so
            assert best is not None
            best = replace(best, status=tuple(Status.TIME_LIMIT for _ in best.status))
            break
        except KeyboardInterrupt:
            if best is None:
                raise
            best = replace(best, status=tuple(Status.INTERRUPTED for _ in best.status))
            break
        history += tuple(replace(e, passes=e.passes + spent) for e in solution.history)
        spent += int(solution.passes.max())
        increased = True
        if best is not None:
            weight = _weight(best.state, solution.state)
            rise = LEAST_RISE * torch.maximum(best.bound.abs(), best.floor)
            increased = bool(((solution.bound - best.bound).abs() > rise).any())
        best = solution if best is None else _no_worse(solution, best)
        sizes, seconds = model.sizes(), deadline.elapsed()
        counts = len(rounds), added, sum(sizes["blocks"].values()), sizes["copies"]
        rounds += (Round(*counts, best.bound, best.gap, seconds),)
        status = set(solution.status)
        try:
            stop = told is not None and told(rounds[-1], best)
            if stop or spent >= passes or deadline.over() or not growing:
                if spent < passes and deadline.over():  # the limit of passes was that of a round
                    late = (Status.TIME_LIMIT if s is Status.PASS_LIMIT else s for s in best.status)
                    best = replace(best, status=tuple(late))
                break
            if status & {Status.INTERRUPTED, Status.TIME_LIMIT}:
                break
            if status <= {Status.CUTOFF, Status.INFEASIBLE, Status.NUMERICAL_ERROR}:
                break
            added = _add(model, search(best), budget.blocks, budget.copies - sizes["copies"])
        except KeyboardInterrupt:
            best = replace(best, status=tuple(Status.INTERRUPTED for _ in best.status))
            break
        if not added and not status & {Status.PASS_LIMIT}:
            break
        most = least if added and increased else 2 * most  # the point is far from the optimum yet
        additions += added > 0
        growing = additions < budget.rounds
    ends = torch.full_like(best.passes, spent), torch.full_like(best.seconds, deadline.elapsed())
    return Tightened(replace(best, passes=ends[0], seconds=ends[1], history=history), rounds)


def _add(model: Statement, proposed: Sequence[Clusters], most: int, room: int) -> int:
    """Add the best clusters, at most ``most`` of them and ``room`` copies; how many there are."""
    if not isinstance(proposed, Sequence) or not all(isinstance(c, Clusters) for c in proposed):
        raise ModelError(f"the search returned {shown(proposed)}; it must return a sequence of Clusters")
    proposed = [c for c in proposed if len(c.scope)]
    for c in proposed:
        if c.scope.dim() != 2 or c.score.shape != c.scope.shape[:1]:
            shapes = f"scope {tuple(c.scope.shape)} and score {tuple(c.score.shape)}"
            raise ModelError(f"clusters {c.name!r}: {shapes} do not fit")
    if not proposed:
        return 0
    proposed = [replace(c, scope=c.scope.cpu(), score=c.score.double().cpu()) for c in proposed]
    score = torch.cat([torch.where(fresh(model, c.name, c.scope), c.score, 0.0) for c in proposed])
    sizes = torch.cat([torch.full((len(c.scope),), c.scope.shape[1]) for c in proposed])
    order = score.argsort(descending=True, stable=True)[:most]
    order = order[(score[order] > 0) & (sizes[order].cumsum(0) <= room)]
    chosen = torch.zeros_like(score, dtype=torch.bool).index_fill(0, order, True)
    parts = torch.split(chosen, [len(c.scope) for c in proposed])
    scopes = [c.scope[mine] for c, mine in zip(proposed, parts, strict=True)]
    known = model.size
    new = torch.unique(torch.cat([s[s >= known] for s in scopes]))
    if len(new):
        model.variable(f"new from {known}", len(new), lower=0, upper=1)
    for c, scope in zip(proposed, scopes, strict=True):
        if len(scope):
            columns = torch.where(scope >= known, known + torch.searchsorted(new, scope), scope)
            view = View(model, c.name, columns)
            if any(b.name == c.name for b in model.blocks):
                model.extend(c.name, view)
            else:
                model.add(c.type, view, name=c.name)
    return len(order)


def fresh(model: Statement, name: str, scope: Tensor) -> Tensor:
    """Mark proposed blocks that a model does not have, whatever the order of variables, nor listed before.

    Parameters
    ----------
    model : Statement
        The model.
    name : str
        The handle of the blocks that it has.
    scope : Tensor
        ``(count, dim)`` int64: the variables of the proposed blocks.

    Returns
    -------
    Tensor
        ``(count,)`` bool.
    """
    known = next((b.scope for b in model.blocks if b.name == name), scope[:0].cpu())
    rows = torch.cat([known, scope.cpu()]).sort(1).values
    _, number = torch.unique(rows, dim=0, return_inverse=True)
    place = torch.arange(len(rows))
    first = torch.full((len(rows),), len(rows)).scatter_reduce_(0, number, place, "amin")
    return (first[number] == place)[len(known) :].to(scope.device)


def _weight(before: State, after: State) -> Tensor:
    r"""The next weight :math:`\sqrt{copies} / 2 |\Delta \lambda|`: a possible primal step over the last dual.

    Residual balancing would make it far too low: a warm start knows multipliers, not points, and its primal
    residual is large for many passes.
    """
    moved, size, copies = torch.zeros_like(after.eta), torch.zeros_like(after.eta), 0
    for name, own in after.duals.items():
        moved = moved + (own - _extended(before.duals.get(name), own)).square().sum((1, 2))
        size = size + own.square().sum((1, 2))
        copies += own[0].numel()
    return math.sqrt(copies) / 2 / torch.maximum(moved.sqrt(), LEAST_MOVE * size.sqrt())


def _extended(earlier: Tensor | None, own: Tensor) -> Tensor:
    """Multipliers of blocks to which others were added, zero for these."""
    if earlier is None:
        return torch.zeros_like(own)
    return torch.nn.functional.pad(earlier, (0, 0, 0, own.shape[1] - earlier.shape[1]))


def _no_worse(solution: Solution, before: Solution) -> Solution:
    """A solution with bound and multipliers of an earlier round where these are better by rounding."""
    sense = solution.solver.sense
    worse = sense.turn(solution.bound) < sense.turn(before.bound)
    if not bool(worse.any()):
        return solution
    bound = torch.where(worse, before.bound, solution.bound)
    earlier, duals = before.state.duals, {}
    for k, own in solution.state.duals.items():
        duals[k] = torch.where(worse[:, None, None], _extended(earlier.get(k), own), own)
    return replace(
        solution,
        bound=bound,
        safe_bound=torch.where(worse, before.safe_bound, solution.safe_bound),
        gap=relative_gap(solution.primal, bound, solution.floor),
        state=replace(solution.state, duals=duals),
    )

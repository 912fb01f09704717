"""Instances put in another order for the loop: what goes down and what comes back is everyone's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.deadline import Deadline
from blocklp.engine.limits import Limits, with_defaults
from blocklp.engine.loop import run
from blocklp.engine.records import Event, Hooks, Start
from blocklp.engine.reductions import SamePattern
from blocklp.general_solvers.solvers import reference
from blocklp.kernels.plan import Plan
from blocklp.kernels.settings import EngineSettings
from blocklp.methods import as_method
from blocklp.oracles import AtMostOne
from blocklp.status import Status

PATTERNS = (
    [(0, 1), (0, 2), (0, 3), (0, 4)],
    [(0, 1), (2, 3), (4, 5), (6, 7)],
    [(0, 1), (1, 2), (2, 3), (3, 0)],
)


def graphs(seed: int, count: int = 6) -> list[bl.Model]:
    """Stars, pairs and rings at random, of costs of very different sizes."""
    draw, models = np.random.default_rng(seed), []
    for kind in draw.permutation([k % 3 for k in range(count)]):
        m = bl.Model()
        x = m.variable("x", 8, lower=0, upper=1)
        m.add(AtMostOne(2), x[np.array(PATTERNS[kind])])
        m.minimize(10.0 ** draw.integers(-2, 4) * draw.normal(size=8) @ x)
        models.append(m)
    return models


def limits(problem: bl.Decomposition, deadline: Deadline, tol: object = 1e-6, passes: int = 200) -> Limits:
    return Limits.of(problem.offset, with_defaults({"tol": tol, "passes": passes, "time_limit": deadline, "check_every": 5}))


@pytest.mark.parametrize("seed", range(8))
def test_instances_without_a_pass_have_bounds_of_their_own(seed: int) -> None:
    """The time is over, or an interrupt comes, before any pass: what is left is what the bounds of variables say."""
    models = graphs(seed)
    truth = torch.cat([reference(m).objective for m in models])
    problem = bl.compile(models).decomposition()
    least = torch.stack([torch.minimum(c, torch.zeros_like(c)).sum() for c in problem.cost])
    over = run(Plan(problem), as_method("prox", problem), torch.float64, limits(problem, Deadline(1e-9)))
    assert bool((over.status == int(Status.TIME_LIMIT)).all()) and not bool(over.passes.any())

    class Interrupted(bl.methods.Polyak):
        def start(self, plan, duals, eta):
            raise KeyboardInterrupt

    stopped = run(Plan(problem), Interrupted(), torch.float64, limits(problem, Deadline()))
    assert bool((stopped.status == int(Status.INTERRUPTED)).all())
    for found in (over, stopped):
        torch.testing.assert_close(found.bound, least, rtol=1e-12, atol=0)
        assert bool((found.bound <= truth).all()) and bool((found.safe_bound <= truth).all())


@pytest.mark.parametrize("seed", range(4))
def test_hooks_see_the_instances_as_the_caller_numbers_them(seed: int) -> None:
    models = graphs(seed)
    problem = bl.compile(models).decomposition()
    truth = torch.cat([reference(m).objective for m in models])
    events: list[Event] = []
    repaired: list[int] = []

    def repair(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """One variable alone satisfies all blocks: the one that is best by the costs of these very instances."""
        repaired.extend(rows.tolist())
        found = torch.zeros_like(x)
        best = problem.cost[rows].argmin(1)
        gains = problem.cost[rows].gather(1, best[:, None])[:, 0] < 0
        found[torch.arange(len(rows)), best] = gains.double()
        return found

    dropped = torch.tensor([k == 3 for k in range(len(models))])
    hooks = Hooks(repair, lambda event: dropped if len(events) == 2 else None, events.append)
    tol = torch.logspace(-6, -1, len(models), dtype=torch.float64)
    found = run(Plan(problem), as_method("prox", problem), torch.float64, limits(problem, Deadline(), tol), hooks=hooks)
    assert set(repaired) == set(range(len(models)))
    single = problem.cost.amin(1).clamp(max=0)
    assert bool((events[0].primal <= single + 1e-9 * single.abs()).all())
    for event in events:
        assert bool((event.bound <= truth + 1e-9 * truth.abs()).all())
        assert bool((event.primal >= truth - 1e-6 * truth.abs()).all())
    for k, status in enumerate(found.status.tolist()):
        if status == int(Status.OPTIMAL):
            assert float((found.primal[k] - truth[k]).abs()) <= (tol[k] + 1e-5) * float(truth[k].abs()) + 1e-9
    assert int(found.status[3]) in (int(Status.INTERRUPTED), int(Status.OPTIMAL))
    assert len(events) < 3 or int(events[2].status[3]) != int(Status.RUNNING)
    alone = torch.stack([(problem.cost[k] * found.x[k]).sum() for k in range(len(models))])
    torch.testing.assert_close(alone, found.primal, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("count", [1, 3, 7])
def test_the_inverse_gives_back_what_was_applied(count: int) -> None:
    problem = bl.compile(graphs(count, count)).decomposition()
    settings = EngineSettings(divided_copies=1)
    lowered = SamePattern.of(Plan(problem, settings=settings))
    assert [row for rows, _ in lowered.parts for row in range(count)[rows]] == list(range(count))
    assert all(part.settings is settings for _, part in lowered.parts)
    costs = torch.cat([part.problem.cost for _, part in lowered.parts])
    start = Start(problem.cost, torch.arange(count), (problem.cost, problem.cost, torch.arange(count)))
    applied = lowered.apply(start)
    assert applied.duals is not None and applied.eta is not None and torch.equal(applied.duals, costs)
    assert torch.equal(problem.cost[applied.eta], costs)
    number = torch.arange(count)
    event = Event(3, 0.5, number.double(), number.double(), number.double(), number)
    there_and_back = lowered.inverse(lowered.apply(event))
    assert torch.equal(there_and_back.bound, event.bound) and there_and_back.passes == 3
    assert lowered.apply(Start()) == Start()

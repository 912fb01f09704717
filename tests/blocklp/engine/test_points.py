"""Points completed and tested in runs of blocks: the same numbers as block by block."""

import pytest
import torch

import blocklp as bl
from blocklp.decomposition.block_runs import RUN, completed
from blocklp.engine.points import violation
from blocklp.kernels.plan import Plan
from blocklp.problems.qpbo.batch import EDGE

NODES, PAIRS = 9000, RUN + 4000


@pytest.fixture(scope="module")
def plan():
    """Edges with data of their own, since bounds fix every third node at 0: more of them than a run has."""
    draw = torch.Generator().manual_seed(0)
    first = torch.randint(0, NODES, (PAIRS,), generator=draw)
    second = (first + torch.randint(1, NODES, (PAIRS,), generator=draw)) % NODES
    model = bl.Model()
    y = model.variable("y", NODES, lower=0, upper=torch.arange(NODES).remainder(3).sign().double())
    z = model.variable("z", PAIRS, lower=0, upper=1)
    model.add(EDGE, [y[torch.stack([first, second], 1)], z])
    model.minimize((torch.randn(NODES, generator=draw).double() * y).sum() + (torch.randn(PAIRS, generator=draw).double() * z).sum())
    solver = model.compile(backend="torch")
    return solver, first, second


def test_points_are_completed_as_formulas_say(plan):
    solver, first, second = plan
    problem = solver.decomposition()
    assert problem.groups[0].blocks > RUN and problem.groups[0].type.tensors()["excluded"].shape[1] == PAIRS
    x = torch.rand(1, NODES + PAIRS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = torch.minimum(x, problem.upper)
    found = completed(problem, x)
    a, b, cost = x[0, first], x[0, second], problem.cost[0, NODES:]
    both = (problem.upper[0, first] > 0) & (problem.upper[0, second] > 0)
    best = torch.where(cost > 0, (a + b - 1).clamp(min=0), torch.minimum(a, b)) * both
    assert torch.equal(found[0, first], a) and torch.equal(found[0, second], b)
    assert torch.equal(found[0, NODES:], best)


@pytest.mark.parametrize("block", [3, RUN - 1, RUN, PAIRS - 1])
def test_the_worst_violation_is_found_in_every_run(plan, block):
    """A product that is a fifth above what its ends allow."""
    solver, first, second = plan
    problem = solver.decomposition()
    x = completed(problem, torch.minimum(torch.full((1, NODES + PAIRS), 0.4, dtype=torch.float64), problem.upper))
    assert violation(Plan(problem), x).tolist() == [0.0]
    x[0, NODES + block] = torch.minimum(x[0, first[block]], x[0, second[block]]) + 0.2
    point = torch.stack([x[0, first[block]], x[0, second[block]], x[0, NODES + block]])[None, None]
    sizes = torch.stack([problem.sizes(x)[0, at] for at in (first[block], second[block], NODES + block)])[None, None]
    (alone,) = problem.groups[0].constraints.relative_violation(point, sizes)[0].tolist()
    assert alone > 0.1 and violation(Plan(problem), x).tolist() == [alone]


def test_the_worst_violation_of_a_bound_is_found(plan):
    problem = plan[0].decomposition()
    x = torch.minimum(torch.full((1, NODES + PAIRS), 0.4, dtype=torch.float64), problem.upper)
    for at in (0, RUN, NODES + PAIRS - 1):
        worse = completed(problem, x)
        worse[0, at] = 3.0
        assert float(violation(Plan(problem), worse)) >= 2 / 3

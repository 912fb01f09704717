"""Rows beside the blocks over processes: the same bits whatever their number, and bounds that hold."""

import numpy as np
import pytest
import torch
from scipy.sparse import random_array

import blocklp as bl
from blocklp.distributed import Mesh
from blocklp.errors import OptionError
from blocklp.general_solvers.solvers import reference
from blocklp.oracles import Cut, Edge, Knapsack, Polytope
from blocklp.problems.lp import model_of_rows
from blocklp.problems.matching import Matching, matching_model
from blocklp.problems.verification import network_bounds
from blocklp.problems.verification.exact import planet_lp
from blocklp.problems.verification.network import Builder

from .processes import alike, together, told


class Asked(Edge):
    """An edge that cannot be asked about no blocks."""

    def prox(self, cost, centre, eta, shared):
        return super().prox(cost, centre, eta + 0 * centre.amax((1, 2), keepdim=True), shared)

    def complete(self, cost, point, shared):
        return super().complete(cost + 0 * point.amax((1, 2), keepdim=True), point, shared)


def few(kind, rows):
    """One block, of which other processes have none, and variables in no block, or in blocks of another type."""
    model = bl.Model()
    x = model.variable("x", 8, lower=0, upper=1)
    if kind == "edge":
        model.add(Asked(), x[torch.tensor([[0, 1, 3]])])
        model.add(Edge(), x[torch.tensor([[1, 2, 4], [0, 2, 5], [0, 1, 6], [1, 2, 7]])])
        model.minimize(torch.linspace(-1, 1, 8, dtype=torch.float64) @ x)
        return model
    if kind == "polytope":
        block = Polytope([[1.0, 2.0, -1.0]], [-np.inf], [1.0], np.zeros(3), np.ones(3))
    else:
        block = Cut([0, 1], [1, 2])  # three nodes and two edges
    model.add(block, x[np.arange(block.dim)[None]])
    if rows:
        model.add_rows(np.ones((1, 8)), x, None, 3.0)
    model.minimize(torch.linspace(-1, 1, 8, dtype=torch.float64) @ x)
    return model


FEW = ("polytope", False), ("polytope", True), ("cut", False), ("cut", True), ("edge", False)


def few_solved():
    """Bounds of one block over processes, with rows beside it and without."""
    solvers = [few(*kind).compile(backend="torch") for kind in FEW]
    return [told(solver.solve(mesh=True, passes=200)) for solver in solvers]


def test_types_are_not_asked_where_a_process_has_none_of_their_blocks():
    answers = together(few_solved, 2)
    for k, (kind, rows) in enumerate(FEW):
        found = alike([answer if isinstance(answer, BaseException) else answer[k] for answer in answers])
        best = float(reference(few(kind, rows)).objective[0])
        assert found["bound"] == pytest.approx(best, rel=1e-3)
        assert found["safe"] <= best


def general(far=5.0):
    """An LP of rows with sides of either kind, whose bounds of variables may be far."""
    random = np.random.default_rng(0)
    model, rows = bl.Model(), random_array((15, 40), density=0.2, rng=random, data_sampler=random.normal).tocsr()
    x = model.variable("x", 40, lower=0, upper=far)
    middle = rows @ random.uniform(0, 2, 40)
    model.add_rows(rows[:10], x, middle[:10] - 1, middle[:10] + 0.5)
    model.add_rows(rows[10:], x, middle[10:], middle[10:])
    model.add_rows(np.ones((1, 40)), x, None, 60.0)
    model.minimize(torch.from_numpy(random.normal(size=40)) @ x + 1.0)
    return model


def matching():
    """Sources of two kinds, and capacities as rows; it maximises."""
    random = np.random.default_rng(1)
    ends = np.repeat(np.arange(20), 4), random.integers(0, 6, 80)
    data = random.uniform(size=80), random.uniform(0.5, 1.5, 80), np.full(6, 2.0)
    return matching_model(Matching(*ends, *data, limit=np.where(np.arange(20) % 3 == 0, 1.0, 1.5)))


def knapsacks():
    """Blocks that share variables, in more than one process, bounds of variables that differ, and rows."""
    random = np.random.default_rng(3)
    model = bl.Model()
    x = model.variable("x", 30, lower=0, upper=torch.from_numpy(random.uniform(0.5, 2, 30)))
    for name, blocks, dim in (("long", 13, 5), ("short", 7, 3)):
        scope = np.stack([random.choice(30, dim, replace=False) for _ in range(blocks)])
        weights = random.uniform(0.1, 1, (blocks, dim))
        model.add(Knapsack(weights, random.uniform(1, 2, blocks), 0.0, 2.0), x[scope], name=name)
    rows = random.normal(size=(4, 30))
    model.add_rows(rows, x, rows.sum(1) / 5 - 0.5, rows.sum(1) / 5 + 0.5)
    model.maximize(torch.from_numpy(random.uniform(-0.2, 1, 30)) @ x)
    return model


def network():
    """The Planet relaxation of a network as rows."""
    made = torch.Generator().manual_seed(0)
    builder, at = Builder((3,)), 0
    for layer, (before, after) in enumerate([(3, 6), (6, 5), (5, 2)]):
        at = builder.relu(at) if layer else at
        weights = torch.randn(after, before, generator=made, dtype=torch.float64)
        at = builder.linear(at, weights, torch.randn(after, generator=made, dtype=torch.float64))
    own = builder.build()
    low, high = torch.full((3,), -0.5, dtype=torch.float64), torch.full((3,), 0.5, dtype=torch.float64)
    found = network_bounds(own, low, high, method="crown").relaxation.bounds
    lp = planet_lp(own, low, high, {relu: (a[0], b[0]) for relu, (a, b) in found.items()}, len(own.ops) - 1)
    return model_of_rows(lp.linear_program(np.array([1.0, -1.0])))


MODELS = {"general": general, "matching": matching, "knapsacks": knapsacks, "network": network}


def solved(kind, sums, backend, options):
    """The solution of a model in this process."""
    return told(MODELS[kind]().compile(backend=backend).solve(mesh=Mesh(sums=sums), **options))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "backend", "worlds"),
    [
        ("general", "torch", (1, 2, 3)),
        ("matching", "numba", (1, 2, 3)),
        ("knapsacks", "torch", (1, 2)),
        ("network", "torch", (1, 2)),
    ],
)
def test_bits_do_not_depend_on_the_number_of_processes(kind, backend, worlds):
    options = {"tol": 0.0, "passes": 60}
    ends = [alike(together(solved, world, kind, "fixed", backend, options)) for world in worlds]
    assert len({answer["hash"] for answer in ends}) == 1
    assert ends[0]["status"] is bl.Status.PASS_LIMIT
    found = [alike(together(solved, 1, kind, "fixed", backend, {"tol": 1e-4}))]
    assert found[0]["status"] is bl.Status.OPTIMAL
    model = MODELS[kind]()
    best, sign = float(reference(model).objective[0]), -1 if model.maximizing else 1
    assert sign * found[0]["bound"] <= sign * best + 1e-9 * abs(best)
    assert sign * found[0]["safe"] <= sign * best
    assert found[0]["bound"] == pytest.approx(best, rel=3e-4)
    # Points satisfy rows to a millionth.
    assert sign * found[0]["primal"] >= sign * best - 1e-4 * abs(best)
    state = {name: torch.from_numpy(own) for name, own in found[0]["state"].items()}
    proved = bl.verify_certificate(model, state)
    assert float(proved.bound[0]) == pytest.approx(found[0]["bound"], rel=1e-9)


def test_floating_point_sums_come_near():
    options = {"tol": 0.0, "passes": 100}
    fixed, found = (alike(together(solved, 2, "general", sums, "torch", options)) for sums in ("fixed", "float"))
    assert found["bound"] == pytest.approx(fixed["bound"], rel=1e-9)


def limited(options, far):
    """A solve whose bounds of variables are far, from a warm start, and what another method says."""
    solver = general(far).compile(backend="torch")
    start = solver.solve(method="pdhg", passes=20)
    found = told(solver.solve(mesh=True, warm_start=start, **options))
    try:
        solver.solve(mesh=True, method="prox")
    except OptionError as error:
        found["refused"] = str(error)
    return found | {"start": float(start.bound[0])}


def test_limits_come_alike_and_bounds_of_warm_starts_stay():
    given = {"tol": 0.0, "passes": 40}
    found = [alike(together(limited, world, given, 1e7)) for world in (1, 2)]
    assert found[0]["hash"] == found[1]["hash"]
    assert found[0]["status"] is bl.Status.PASS_LIMIT
    assert found[0]["start"] <= found[0]["bound"] + 1e-9 * abs(found[0]["start"])
    assert found[0]["bound"] <= float(reference(general(1e7)).objective[0])
    assert "knows blocks only" in found[0]["refused"]
    cut = alike(together(solved, 2, "general", "fixed", "torch", {"tol": 0.0, "cutoff": -1e3}))
    assert cut["status"] is bl.Status.CUTOFF


@pytest.mark.parametrize("seconds", [0.02, 0.6])
def test_time_limits_end_all_processes_alike(seconds):
    options = {"tol": 0.0, "passes": 10**6, "patience": 10**6, "time_limit": seconds}
    answers = together(solved, 2, "knapsacks", "fixed", "torch", options)
    found = alike([answer | {"seconds": 0.0} for answer in answers])
    assert found["status"] is bl.Status.TIME_LIMIT
    assert found["passes"] < 10**6
    assert found["safe"] >= float(reference(knapsacks()).objective[0]) - 1e-9


def test_infeasible_rows_are_proved_so():
    found = alike(together(infeasible, 2))
    assert found["status"] is bl.Status.INFEASIBLE


def infeasible():
    """Rows that contradict each other."""
    model = bl.Model()
    x = model.variable("x", 4, lower=0, upper=1)
    model.add_rows(np.eye(4)[:1] + np.eye(4)[1:2], x, 1.5, None)
    model.add_rows(np.ones((1, 4)), x, None, 1.0)
    model.minimize(x.sum())
    return told(model.compile(backend="torch").solve(mesh=True))

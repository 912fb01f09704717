"""What is certified at the end, which is never above the exact value, and bounds of compiled loops."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

import blocklp as bl
from blocklp.decomposition.problem import Decomposition
from blocklp.decomposition.valid_bounds import box_minimum
from blocklp.engine.best_bound import NEGLIGIBLE, NOTICED, improved_bounds
from blocklp.engine.final_bounds import certified, certify
from blocklp.engine.records import Results
from blocklp.general_solvers.solvers import reference
from blocklp.kernels.plan import Plan
from blocklp.kernels.settings import EngineSettings
from blocklp.language.compiled_models import ModelList
from blocklp.oracles import Edge
from blocklp.solver import Solver

from ..methods.test_admm import qpbo

SHAPES = [(30, 0.2), (12, 0.5), (60, 0.05), (5, 1.0)]
EPS = torch.finfo(torch.float64).eps


@pytest.fixture
def looped(use_backend) -> None:
    """Loops whatever the size."""
    use_backend("numba")


def ragged(seed: int) -> list[bl.Model]:
    """Graphs of several sizes; some variables are in no pair."""
    return [qpbo(seed + k, n, p, k) for k, (n, p) in enumerate(SHAPES)]


def multipliers(problem: Decomposition, seed: int, scale: float) -> torch.Tensor:
    """Any for real blocks, zero for padding."""
    duals = scale * torch.randn(problem.batch, problem.copies, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for group in problem.groups:
        if group.valid is not None:
            group.view(duals).mul_(group.valid[..., None])
    return duals


def exact_value(problem: Decomposition, duals: torch.Tensor, row: int) -> Fraction:
    """The bound that multipliers of edges and boxes prove, in rational arithmetic."""
    own = [Fraction(v) for v in duals[row].tolist()]
    left = [Fraction(v) for v in problem.cost[row].tolist()]
    for v, d in zip(problem.coupling.index[row % len(problem.coupling.index)].tolist(), own, strict=True):
        left[v] -= d
    sides = ([Fraction(v) for v in t[row % len(t)].tolist()] for t in (problem.lower, problem.upper))
    total = Fraction(problem.offset[row].item())
    total += sum((min(r * lo, r * hi) for r, lo, hi in zip(left, *sides, strict=True)), Fraction(0))
    for group in problem.groups:
        for block in range(group.blocks):
            if group.valid is not None and not group.valid[row, block]:
                continue
            cost = [own[group.start + i * group.blocks + block] for i in range(group.dim)]
            if group.dim == 3:
                a, b, p = cost
                total += min(Fraction(0), a, b, a + b + p)
            else:
                assert isinstance(group.type, bl.Box)
                low, high = (Fraction(side[row % len(side), block, 0].item()) for side in (group.type.lower, group.type.upper))
                total += min(cost[0] * low, cost[0] * high)
    return total


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e-9, 1e6, 1e15])
@pytest.mark.parametrize("seed", range(3))
def test_rigorous_bounds_are_below_the_exact_value(seed: int, scale: float) -> None:
    """Of the very multipliers that are returned; and not far below, in units of what is added up."""
    problem = bl.compile(ragged(seed)).decomposition()
    duals, bound, rigorous = certified(problem, multipliers(problem, seed, scale))
    for row in range(problem.batch):
        exact = exact_value(problem, duals, row)
        size = 1 + float(duals[row].abs().sum())
        assert Fraction(rigorous[row].item()) <= exact
        assert float(exact - Fraction(rigorous[row].item())) <= 1e5 * EPS * size
        assert abs(float(exact - Fraction(bound[row].item()))) <= 100 * EPS * size


@pytest.mark.usefixtures("looped")
@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize(
    "best, gap, shares", [(-1e9, torch.inf, True), (-1e9, 1e-6, True), (-1e9, 1e6, False), (-torch.inf, 0.0, True)]
)
def test_residuals_are_shared_where_they_matter(best: float, gap: float, shares: bool, divided: bool) -> None:
    """Only where they cost a noticeable part of the gap; kept are the multipliers as they came, in loops and without."""
    settings = EngineSettings(divided_copies=0 if divided else 10**12)
    problem = bl.compile([qpbo(3)] if divided else ragged(3)).decomposition()
    planned = Plan(problem, settings=settings).settled(torch.float64, 1)
    loaded = planned.laid_out(whole=True)
    assert loaded.tables is not None
    alone, price = problem.spread(problem.counts) == 1, problem.spread(problem.cost)
    duals = torch.where(alone, price, multipliers(problem, 0, 1.0))
    for known in (planned, loaded.begun()):
        bounds, kept = torch.full((problem.batch,), best, dtype=torch.float64), torch.zeros_like(duals)
        bound, improved = improved_bounds(known, duals, (NOTICED, NEGLIGIBLE), bounds + gap, bounds, kept)
        looked = problem.recentred(duals) if shares else duals
        for row in range(problem.batch):
            assert bound[row].item() == pytest.approx(float(exact_value(problem, looked, row)), rel=1e-12)
        shared = [group for group in problem.groups if group.shares]
        assert torch.equal(improved, bound) and all(torch.equal(g.rows(kept)[:, :2], g.rows(duals)[:, :2]) for g in shared)


@pytest.mark.usefixtures("looped")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(2))
def test_bounds_in_loops_stay_below_highs(seed: int, dtype: torch.dtype) -> None:
    models = ragged(10 * seed)
    truth = torch.cat([reference(m).objective for m in models])
    for method in ("admm", bl.methods.Admm(1e-6), bl.methods.Admm(1e6), "prox"):
        for passes in (1, 11, 150):
            found = bl.compile(models, dtype=dtype).solve(method=method, passes=passes, tol=1e-7)
            slack = 1e-9 * truth.abs().clamp(min=1)
            assert bool((found.bound <= truth + slack).all()) and bool((found.safe_bound <= truth + slack).all())
            assert bool((found.primal >= truth - 1e-5 * truth.abs().clamp(min=1)).all())


def test_what_a_method_claims_is_not_the_last_word() -> None:
    """With claims above what the multipliers prove, the better of them and of the shared ones stay."""
    problem = bl.compile(ragged(0)).decomposition()
    results = Results.unsolved(problem, box_minimum(problem))
    results.passes += 1
    results.duals, results.bound[::2] = multipliers(problem, 3, 1.0), torch.inf
    certify([(Plan(problem), slice(0, problem.batch))], results)
    for row, (bound, rigorous) in enumerate(zip(results.bound.tolist(), results.safe_bound.tolist(), strict=True)):
        exact = exact_value(problem, results.duals, row)
        assert Fraction(rigorous) <= exact and abs(float(exact - Fraction(bound))) <= 1e-12 * (1 + abs(bound))


@pytest.mark.usefixtures("looped")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_chunks_give_the_bits_of_one_chunk(dtype: torch.dtype) -> None:
    """Whatever loops know of a chunk (the last variable that is shared, say) differs between chunks, and no number with it."""
    models = [*ragged(0), *ragged(5), qpbo(1, 3, 1.0, 9)]
    found = []
    for most in (10**9, 1000, 1):
        solver = Solver(ModelList(models), torch.device("cpu"), dtype, settings=EngineSettings(looped_copies=most))
        found += [solver.solve(tol=1e-6, passes=150) for _ in range(2)]
        found.append(solver.solve(tol=1e-6, passes=150, warm_start=found[0].state))
    for k, other in enumerate(found):
        like = found[(0, 0, 2)[k % 3]]
        for name in ("bound", "safe_bound", "primal", "passes"):
            assert torch.equal(getattr(like, name), getattr(other, name))
        assert torch.equal(like.state.duals["Edge"], other.state.duals["Edge"])
        for row in range(len(models)):
            assert torch.equal(like.instance(row).raw_x, other.instance(row).raw_x)


@pytest.mark.usefixtures("looped")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("checks", [1, 2, 5])
def test_an_interrupt_leaves_multipliers_that_prove_the_bound(checks: int, dtype: torch.dtype) -> None:
    solver = bl.compile(ragged(3), dtype=dtype)
    seen = []

    def stop(event: bl.Event) -> None:
        seen.append(event)
        if len(seen) == checks:
            raise KeyboardInterrupt

    found = solver.solve(tol=0, callback=stop)
    assert found.status == (bl.Status.INTERRUPTED,) * 4 and len(seen) == checks
    problem = solver.decomposition()
    duals = torch.zeros(problem.batch, problem.copies, dtype=torch.float64)
    for group in problem.groups:
        known = found.state.duals[group.name]
        if group.name == "box":
            known = known.gather(1, problem.coupling.index[:, group.start : group.stop, None])
        group.view(duals).copy_(known if group.valid is None else known * group.valid[..., None])
    for row, (bound, safe) in enumerate(zip(found.bound.tolist(), found.safe_bound.tolist(), strict=True)):
        exact = exact_value(problem, duals, row)
        assert Fraction(safe) <= exact and abs(float(exact - Fraction(bound))) <= 1e-12 * (1 + abs(bound))
    assert bool((found.bound >= torch.stack([e.bound for e in seen]).amax(0) - 1e-12 * found.bound.abs()).all())


def test_a_variable_in_no_pair_keeps_its_bounds(looped: None) -> None:
    """Also where it costs nothing and is fixed."""
    m = bl.Model()
    y, z, w = (
        m.variable(name, n, lower=low, upper=high) for name, n, low, high in (("y", 3, 0, 1), ("z", 2, 0, 1), ("w", 2, 0.25, 0.25))
    )
    m.add(Edge(), [y[[0, 1]], y[[1, 2]], z])
    m.minimize(y.sum() - z.sum() + 0.0 * w.sum())
    found = m.solve(tol=1e-6)
    assert found.x[w].tolist() == [[0.25, 0.25]]
    assert found.primal.item() == pytest.approx(reference(m).objective.item(), abs=1e-6)

"""The methods against the mathematics: errata of the thesis, descent, published figures."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.decomposition.problem import Decomposition
from blocklp.decomposition.row_sums import dot
from blocklp.kernels.plan import Plan
from blocklp.methods import active_set as atoms
from blocklp.oracles import AtMostOne
from blocklp.problems.qpbo import Qubo
from blocklp.problems.qpbo.relaxation import roof_duality_model


def ba(n: int, seed: int) -> Qubo:
    """Weighted independent set as in the thesis, 4.1.7.3."""
    edges = np.array(nx.barabasi_albert_graph(n, 4, seed=seed).edges())
    weights = np.random.default_rng(seed).random(n)
    return Qubo.from_terms(-weights, edges, np.maximum(weights[edges[:, 0]], weights[edges[:, 1]]))


def problem(n: int = 40) -> Decomposition:
    return roof_duality_model(ba(n, 0)).compile().decomposition()


def exact(q: Qubo) -> float:
    """Roof dual by max-flow."""
    thinqpbo = pytest.importorskip("thinqpbo", reason="no wheel of thinqpbo for this Python")
    graph = thinqpbo.QPBODouble(q.n, len(q.edges))
    graph.add_node(q.n)
    for i, a in enumerate(q.linear):
        graph.add_unary_term(i, 0.0, float(a))
    for (i, j), p in zip(q.edges, q.quadratic, strict=True):
        graph.add_pairwise_term(int(i), int(j), 0.0, 0.0, 0.0, float(p))
    graph.solve()
    return float(graph.compute_twice_lower_bound()) / 2


def proximal_objective(p: Decomposition, centre: torch.Tensor, x: torch.Tensor, eta: torch.Tensor) -> torch.Tensor:
    """The function (4.1.6.7) that the proximal methods minimise."""
    spread = p.disagreement(x)
    return dot(centre, x) + dot(spread, spread) / (2 * eta)


def test_the_gradient_of_the_proximal_objective_has_no_extra_factor() -> None:
    p = problem()
    generator = torch.Generator().manual_seed(1)
    centre, x, d = (torch.randn(1, p.copies, generator=generator, dtype=torch.float64) for _ in range(3))
    eta = torch.tensor([0.7], dtype=torch.float64)
    gradient = centre + p.disagreement(x) / eta[:, None]
    h = 1e-5
    slope = (proximal_objective(p, centre, x + h * d, eta) - proximal_objective(p, centre, x - h * d, eta)) / (2 * h)
    assert slope.item() == pytest.approx(dot(gradient, d).item(), rel=1e-8)


def test_disagreement_is_an_orthogonal_projector_and_the_maps_are_adjoint() -> None:
    p = problem()
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randn(1, p.copies, generator=generator, dtype=torch.float64) for _ in range(2))
    primal = torch.randn(1, p.cost.shape[1], generator=generator, dtype=torch.float64)
    assert torch.allclose(p.disagreement(p.disagreement(a)), p.disagreement(a), atol=1e-12)
    assert dot(p.disagreement(a), b).item() == pytest.approx(dot(a, p.disagreement(b)).item(), rel=1e-9)
    assert dot(p.spread(primal), a).item() == pytest.approx(dot(primal, p.collect(a)).item(), rel=1e-9)
    assert torch.allclose(p.to_primal(p.to_dual(primal)), primal)


@pytest.mark.parametrize("method", [bl.methods.ProxBC(0.3, inner=50), bl.methods.ProxFW(0.3, inner=50)])
def test_exact_line_searches_descend_and_do_not_stay_at_zero(method: Any) -> None:
    p = problem()
    state = method.start(Plan(p), p.to_dual(p.cost), None)
    centre, values = state.centre, []
    while torch.equal(state.centre, centre):
        values.append(proximal_objective(p, centre, state.points, state.eta).item())
        state = method.step(Plan(p), state)
    drops = -np.diff(values)
    assert (drops >= -1e-12).all()
    # As printed, with the opposite sign in the step size, nothing would ever move.
    assert values[0] - values[-1] > 0.1


def test_proxfw_takes_the_exact_minimum_on_its_segment() -> None:
    p = problem()
    method = bl.methods.ProxFW(0.3, inner=50)
    state = method.start(Plan(p), p.to_dual(p.cost), None)
    for _ in range(5):
        after = method.step(Plan(p), state)
        vertex, _ = p.min_oracle(after.duals)
        best = proximal_objective(p, state.centre, after.points, state.eta).item()
        for gamma in np.linspace(0, 1, 41):
            x = state.points + gamma * (vertex - state.points)
            assert best <= proximal_objective(p, state.centre, x, state.eta).item() + 1e-12
        state = after


def test_block_steps_descend_on_each_block() -> None:
    p = problem()
    group = p.groups[0]
    duals = p.to_dual(p.cost)
    pieces, weights, _ = atoms.start(group, duals)
    generator = torch.Generator().manual_seed(3)
    weights = torch.rand(weights.shape, generator=generator, dtype=torch.float64)
    weights = weights / weights.sum(1, keepdim=True)
    values = pieces.answer(group, duals, weights, weights).values
    eta = torch.tensor([0.4], dtype=torch.float64)

    def model(w: torch.Tensor) -> torch.Tensor:
        d = w - weights
        return (values * d).sum(1) + (d * pieces.products(d)).sum(1) / (2 * eta)

    one, two = (atoms.pairwise_steps(pieces, weights, values, eta, k) for k in (1, 2))
    for moved in (one, two):
        assert bool((moved >= 0).all()) and torch.allclose(moved.sum(1), torch.ones_like(moved.sum(1)))
    assert bool((model(one) <= 1e-12).all()) and bool((model(two) <= model(one) + 1e-12).all())


def test_the_vertex_cache_keeps_the_point_when_it_drops_atoms() -> None:
    m = bl.Model()
    x = m.variable("x", 9, lower=0, upper=1)
    m.add(AtMostOne(5), x[torch.tensor([[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]])])
    m.minimize(-(x.sum()))
    p = m.compile().decomposition()
    group = p.groups[0]
    generator = torch.Generator().manual_seed(4)
    pieces, weights, _ = atoms.start(group, torch.randn(1, p.copies, generator=generator, dtype=torch.float64))
    for _ in range(40):
        weights = torch.rand(weights.shape, generator=generator, dtype=torch.float64)
        weights = weights / weights.sum(1, keepdim=True)
        before = pieces.combine(weights)
        duals = torch.randn(1, p.copies, generator=generator, dtype=torch.float64)
        answer = pieces.answer(group, duals, weights, weights)
        assert torch.allclose(answer.atoms.combine(answer.weights), before, atol=1e-12)
        assert torch.allclose(answer.weights.sum(1), torch.ones(1, 2, dtype=torch.float64))
        assert torch.allclose(answer.values.amin(1), answer.best, atol=1e-12)
        pieces, weights = answer.atoms, answer.weights


def errors(method: Any, marks: tuple[int, ...], seeds: range) -> dict[int, float]:
    """Mean error of the bound in percent after some passes, weighted independent sets on BA graphs of 1000 nodes."""
    qubos = [ba(1000, s) for s in seeds]
    truth = torch.tensor([exact(q) for q in qubos])
    solver = bl.compile([roof_duality_model(q) for q in qubos])
    history = solver.solve(method=method, passes=max(marks), tol=0, history=True, check_every=10).history
    found = {e.passes: float(((truth - e.bound) / truth.abs()).mean()) * 100 for e in history}
    return {k: found[k] for k in marks}


def test_the_default_method_meets_its_figures_without_tuning() -> None:
    limits = {30: 5.0, 100: 0.7, 300: 0.03, 600: 0.001}
    found = errors("prox", tuple(limits), range(5))
    assert all(0 <= found[k] + 1e-9 and found[k] <= limits[k] for k in limits), found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "printed"),
    [(bl.methods.ProxBC(1.0), {30: 9.87, 250: 1.05, 2000: 0.125}), (bl.methods.ProxFW(1.0), {30: 8.33, 250: 1.42, 2000: 0.160})],
)
def test_the_algorithms_of_the_thesis_meet_its_table(method: Any, printed: dict[int, float]) -> None:
    """Table 4.1, BA-1000; the weight is ours (the thesis's 0.33 misses its figures at 30 passes)."""
    found = errors(method, tuple(printed), range(3))
    assert all(0 <= found[k] + 1e-9 and found[k] <= printed[k] for k in printed), found

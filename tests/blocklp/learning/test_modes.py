"""Modes that need no derivative: each against the formula of its paper, by brute force over vertices."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp.errors import OptionError

from .models import TASKS, Octagon, Task, costs, objective, stated, vertices


def best(table: Tensor, cost: Tensor) -> Tensor:
    """The vertex of least cost, of each row of costs."""
    return table[(cost @ table.T).argmin(-1)]


@pytest.mark.parametrize("name", ["simplex", "path", "matching", "own_apart"])
@pytest.mark.parametrize("envelope", ["lower", "upper", "average"])
def test_blackbox_is_the_formula_by_brute_force(name: str, envelope: str) -> None:
    task, table, tau = TASKS[name](), vertices(name), 0.7
    layer = bl.Layer(task.model, cost=task.price, variables=task.x, mode="lpgd", tau=tau, envelope=envelope)
    given = costs(task, 7).requires_grad_()
    weight = costs(task, 7, seed=1)
    point = layer(given)
    flat, slope = given.detach().flatten(1), weight.flatten(1)
    expected = best(table, flat)
    torch.testing.assert_close(point.flatten(1), expected)
    (weight * point).sum().backward()
    lower = (best(table, flat + tau * slope) - expected) / tau
    upper = (expected - best(table, flat - tau * slope)) / tau
    gradient = {"lower": lower, "upper": upper, "average": (lower + upper) / 2}[envelope]
    assert given.grad is not None and float(gradient.abs().max()) > 0
    torch.testing.assert_close(given.grad.flatten(1), gradient)


def test_a_proximal_term_keeps_the_second_point_near() -> None:
    task, tau, rho = TASKS["matching"](), 2.0, 1.5
    layer = bl.Layer(task.model, cost=task.price, mode="lpgd", tau=tau, rho=rho)
    nearest = bl.Layer(task.model, cost=task.price, mode="prox", rho=rho)
    given, weight = costs(task, 4).requires_grad_(), costs(task, 4, seed=1)
    point = layer(given)
    (weight * point).sum().backward()
    second = nearest(given.detach() + tau * weight, centre=point.detach())
    torch.testing.assert_close(given.grad, (second - point.detach()) / tau, atol=1e-10, rtol=0)


def test_identity_is_the_limit_of_lpgd_where_there_is_room() -> None:
    task = objective(stated(4, lower=-1e6, upper=1e6))
    given = costs(task, 3).requires_grad_()
    weight = -1e-2 * given.detach()  # away from the vertex, into the box
    for mode, settings in (("identity", {}), ("lpgd", {"tau": 1e6, "rho": 1.0})):
        layer = bl.Layer(task.model, cost=task.price, mode=mode, **settings)
        given.grad = None
        (weight * layer(given)).sum().backward()
        expected = -weight if mode == "identity" else -weight - given.detach() / 1e6
        torch.testing.assert_close(given.grad, expected, atol=1e-9, rtol=1e-9)


def test_identity_of_a_maximisation_has_the_other_sign() -> None:
    task = TASKS["knapsack"]()
    layer = bl.Layer(task.model, cost=task.price, mode="identity")
    given, weight = costs(task, 3).requires_grad_(), costs(task, 3, seed=1)
    (weight * layer(given)).sum().backward()
    torch.testing.assert_close(given.grad, weight)


@pytest.mark.parametrize("projection", ["norm", "standard"])
@pytest.mark.parametrize("name", ["simplex", "knapsack"])
def test_identity_through_normalised_costs(name: str, projection: str) -> None:
    """By autograd through the normalisation, and the plain identity after it."""
    task = TASKS[name]()
    layer = bl.Layer(task.model, cost=task.price, mode="identity", projection=projection)
    plain = bl.Layer(task.model, cost=task.price, mode="identity")
    given, weight = costs(task, 4).requires_grad_(), costs(task, 4, seed=1)
    point = layer(given)
    assert torch.equal(point, plain(given))
    (weight * point).sum().backward()
    free = given.detach().requires_grad_()
    moved = free - free.mean(1, keepdim=True) if projection == "standard" else free
    normal = moved / moved.norm(dim=1, keepdim=True)
    sign = 1.0 if task.model.maximizing else -1.0
    (sign * weight * normal).sum().backward()
    torch.testing.assert_close(given.grad, free.grad)
    assert float((given.grad * moved.detach()).sum(1).abs().max()) < 1e-12  # no longer, no shorter


def choice() -> Task:
    """The better of two items, or none: its expectations under noise have formulas."""
    task = stated(2, lower=0.0, upper=1.0)
    return objective(task)


@pytest.mark.parametrize("antithetic", [True, False])
def test_perturbed_estimates_are_unbiased(antithetic: bool) -> None:
    """Means over a box are normal distribution functions: E x = F(-c / s), dE x / dc = -f(c / s) / s."""
    task, sigma, samples = choice(), 0.8, 40_000
    layer = bl.Layer(
        task.model,
        cost=task.price,
        mode="perturbed",
        samples=samples,
        sigma=sigma,
        antithetic=antithetic,
        generator=torch.Generator().manual_seed(0),
    )
    given = torch.tensor([[0.5, -0.3], [0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    normal = torch.distributions.Normal(0.0, 1.0)
    mean = normal.cdf(-given.detach() / sigma)
    point = layer(given)
    error = 5 * 0.5 / math.sqrt(samples)  # five standard errors of a 0/1 variable
    torch.testing.assert_close(point, mean, atol=error, rtol=0)
    weight = torch.tensor([[1.0, 0.0], [0.5, 2.0]], dtype=torch.float64)
    (weight * point).sum().backward()
    slope = -normal.log_prob(given.detach() / sigma).exp() / sigma
    assert given.grad is not None
    noise = 5 * 2.5 / (sigma * math.sqrt(samples))  # |<x, g>| is at most 2.5, Z has variance 1
    torch.testing.assert_close(given.grad, weight * slope, atol=noise, rtol=0)


def test_perturbed_samples_are_one_call_and_repeatable() -> None:
    calls = []

    class Counted(Octagon):
        def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
            calls.append(tuple(cost.shape))
            return super().min_oracle(cost)

    task = stated(3, -4.0, 4.0)
    task.model.add(Counted(), scope=[task.x[[j]] for j in range(3)])
    objective(task)
    given, answers = costs(task, 5), []
    for _ in range(2):
        generator = torch.Generator().manual_seed(3)
        layer = bl.Layer(task.model, cost=task.price, mode="perturbed", samples=6, generator=generator)
        calls.clear()
        answers.append(layer(given))
        assert calls[-1] == (30, 1, 3)
        assert [c for c in calls if c[0] == 30] == [(30, 1, 3)]
    assert torch.equal(*answers)


@pytest.mark.parametrize("mode", ["lpgd", "perturbed", "identity"])
@pytest.mark.parametrize("name", TASKS)
def test_modes_run_on_any_model(name: str, mode: str) -> None:
    task = TASKS[name]()
    settings = {"generator": torch.Generator().manual_seed(0)} if mode == "perturbed" else {}
    layer = bl.Layer(task.model, cost=task.price, variables=task.x, mode=mode, **settings)
    given = costs(task, 3).requires_grad_()
    rows = torch.tensor([3, 1, 2])
    cold = layer(given, rows)
    cold.square().sum().backward()
    assert given.grad is not None and bool(given.grad.isfinite().all())
    warm = layer(given, rows)
    if mode != "perturbed":
        close = 1e-9 if name != "own" else 1e-3  # the engine returns a point within a gap
        torch.testing.assert_close(warm, cold, atol=close, rtol=0)
    low, high = task.x.lower, task.x.upper
    assert bool(((warm >= low - 1e-9) & (warm <= high + 1e-9)).all())


def test_minimisers_reach_the_bound_of_the_engine() -> None:
    for name, make in TASKS.items():
        task = make()
        layer = bl.Layer(task.model, cost=task.price, variables=task.x, mode="identity")
        given = costs(task, 4)
        layer(given)
        assert layer.exactness.gap < 1e-5, name
        task.price.value = given[0]
        structure = layer.structure
        found = structure.minimisers(structure.costs(given.flatten(1)), None, "test")
        solution = task.model.solve(tol=1e-8)
        bound = structure.map.sense.turn(solution.bound)
        value = (structure.costs(given.flatten(1)) * found.x).sum(1)[0] + structure.offset
        torch.testing.assert_close(value, bound, atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", TASKS)
def test_an_instance_has_the_same_bits_whatever_is_beside_it(name: str) -> None:
    task = TASKS[name]()
    layer = bl.Layer(task.model, cost=task.price, variables=task.x, mode="identity")
    given = costs(task, 12)
    assert torch.equal(layer(given), torch.cat([layer(c[None]) for c in given]))


def test_ways_to_minimisers() -> None:
    ways = {}
    for name, make in TASKS.items():
        task = make()
        ways[name] = repr(bl.Layer(task.model, cost=task.price, variables=task.x))
    for name in ("simplex", "knapsack", "path", "own_apart"):
        assert "minimisers by one call of the oracle, nearest points of separate blocks" in ways[name]
    for name in ("rows", "matching", "edges"):
        pytest.importorskip("numba", reason="the simplex method for many costs is compiled")
        assert "minimisers by vertices of the simplex method" in ways[name]
        assert "nearest points by Newton's method in multipliers" in ways[name]
    assert "nearest points by alternating directions" in ways["own"]  # whose type states no constraints
    assert "minimisers by passes of the engine" in ways["own"]


@pytest.mark.parametrize(
    ("mode", "settings", "said"),
    [
        ("spo+", {}, r"blocklp.losses.spo_plus"),
        ("fenchel-young", {}, r"blocklp.losses.fenchel_young"),
        ("blackbox", {}, "mode='lpgd' with rho=0"),
        ("newton", {}, "choose one of 'prox', 'lpgd', 'perturbed', 'identity'"),
        (3, {}, "mode is 3"),
        ("prox", {"tau": 1.0}, "unknown settings 'tau'; mode 'prox' has rho"),
        ("prox", {"rho": 0.0}, "rho is 0.0; it must be a positive number"),
        ("lpgd", {"tau": -1.0}, "tau is -1.0"),
        ("lpgd", {"rho": -1.0}, "rho is -1.0"),
        ("lpgd", {"envelope": "middle"}, "envelope is 'middle'; give one of 'lower'"),
        ("perturbed", {"samples": 3}, "give an even number, or antithetic=False"),
        ("perturbed", {"sigma": math.nan}, "sigma is nan"),
        ("perturbed", {"antithetic": 1}, "antithetic is 1"),
        ("perturbed", {"generator": 1}, "generator is 1; give a torch.Generator"),
        ("identity", {"rho": 1.0}, "mode 'identity' has projection"),
        ("identity", {"projection": "mean"}, "projection is 'mean'; give one of 'none', 'norm', 'standard'"),
    ],
)
def test_wrong_settings_are_named(mode: object, settings: dict[str, object], said: str) -> None:
    task = TASKS["simplex"]()
    with pytest.raises(OptionError, match=said):
        bl.Layer(task.model, cost=task.price, mode=mode, **settings)  # type: ignore[arg-type]

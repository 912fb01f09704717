"""Losses of predicted costs: their inequalities, and gradients against differences and brute force."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp import losses
from blocklp.errors import NonFiniteError, OptionError, ShapeError

from .models import TASKS, Task, costs, vertices


def layer_of(task: Task, mode: str = "identity", **settings: object) -> bl.Layer:
    return bl.Layer(task.model, cost=task.price, variables=task.x, mode=mode, **settings)  # type: ignore[arg-type]


def by_solution(task: Task, cost: Tensor) -> tuple[Tensor, Tensor]:
    """Optima and values of true costs, by solves of the model one by one."""
    points, values = [], []
    for c in cost:
        task.price.value = c
        found = task.model.solve(tol=1e-9)
        points.append(found.x[task.x][0])
        values.append(found.primal[0])
    return torch.stack(points), torch.stack(values)


@pytest.mark.parametrize("name", TASKS)
def test_spo_plus_is_above_the_regret(name: str) -> None:
    task = TASKS[name]()
    layer = layer_of(task)
    for seed in range(5):
        predicted, true = costs(task, 8, seed), costs(task, 8, seed + 100)
        loss = losses.spo_plus(layer, predicted, true, reduction="none")
        lost = losses.regret(layer, predicted, true, normalised=False, reduction="none")
        assert bool((loss >= lost - 1e-5).all()) and bool((lost >= -1e-5).all())
        assert float(lost.max()) > 1e-2
    at_truth = losses.spo_plus(layer, true, true, reduction="none")
    torch.testing.assert_close(at_truth, torch.zeros_like(at_truth), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", TASKS)
def test_the_subgradient_inequality_holds(name: str) -> None:
    task = TASKS[name]()
    layer, true = layer_of(task), costs(task, 6, 9)
    here, there = costs(task, 6, 10).requires_grad_(), costs(task, 6, 11)
    loss = losses.spo_plus(layer, here, true, reduction="none")
    loss.sum().backward()
    assert here.grad is not None
    other = losses.spo_plus(layer, there, true, reduction="none")
    slope = (here.grad * (there - here.detach())).flatten(1).sum(1)
    assert bool((other >= loss + slope - 1e-5).all())


@pytest.mark.parametrize("name", ["simplex", "matching", "path"])
def test_spo_plus_by_brute_force(name: str) -> None:
    task, table = TASKS[name](), vertices(name)
    layer, predicted, true = layer_of(task), costs(task, 6).requires_grad_(), costs(task, 6, 1)
    c, p = true.flatten(1), predicted.detach().flatten(1)
    optimum = table[(c @ table.T).argmin(1)]
    values = (2 * p - c) @ table.T
    expected = -values.amin(1) + 2 * (p * optimum).sum(1) - (c * optimum).sum(1)
    loss = losses.spo_plus(layer, predicted, true, reduction="none")
    torch.testing.assert_close(loss, expected)
    loss.sum().backward()
    assert predicted.grad is not None
    torch.testing.assert_close(predicted.grad.flatten(1), 2 * (optimum - table[values.argmin(1)]))


@pytest.mark.parametrize("name", ["knapsack", "edges", "rows"])
def test_given_optima_give_the_same_loss(name: str) -> None:
    task = TASKS[name]()
    layer, predicted, true = layer_of(task), costs(task, 4), costs(task, 4, 1)
    point, value = by_solution(task, true)
    free = losses.spo_plus(layer, predicted, true, reduction="none")
    for known in ((point, value), (point, None), (None, value)):
        loss = losses.spo_plus(layer, predicted, true, *known, reduction="none")
        torch.testing.assert_close(loss, free, atol=1e-4, rtol=0)
    lost = losses.regret(layer, predicted, true, reduction="none")
    torch.testing.assert_close(losses.regret(layer, predicted, true, value, reduction="none"), lost, atol=1e-4, rtol=0)


def test_known_optima_are_not_solved_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, solves in (("matching", ["spo+"]), ("edges", ["true costs", "spo+"])):
        task, uses = TASKS[name](), []
        layer, predicted, true = layer_of(task), costs(task, 4), costs(task, 4, 1)
        point = layer.exact(true)
        expected = losses.spo_plus(layer, predicted, true)
        minimisers = layer.structure.minimisers
        monkeypatch.setattr(layer.structure, "minimisers", lambda c, r, use, f=minimisers, u=uses: u.append(use) or f(c, r, use))
        torch.testing.assert_close(losses.spo_plus(layer, predicted, true, point), expected)
        assert uses == solves


def test_regret_of_a_choice() -> None:
    task = TASKS["simplex"]()
    layer = layer_of(task)
    true = torch.tensor([[1.0, 2.0, 4.0, 8.0, 9.0], [3.0, 2.0, 4.0, 8.0, 9.0]])
    predicted = torch.tensor([[5.0, 5.0, 1.0, 5.0, 5.0], [5.0, 1.0, 5.0, 5.0, 5.0]])
    lost = losses.regret(layer, predicted, true, normalised=False, reduction="none")
    assert lost.tolist() == [3.0, 0.0] and lost.dtype == torch.float32
    assert losses.regret(layer, predicted, true).item() == pytest.approx(3.0 / (1.0 + 2.0))
    assert losses.regret(layer, predicted, true, reduction="sum", normalised=False).item() == 3.0


@pytest.mark.parametrize("name", ["simplex", "knapsack", "matching", "rows", "own_apart"])
def test_fenchel_young_of_the_proximal_layer(name: str) -> None:
    task = TASKS[name]()
    layer = layer_of(task, "prox", rho=0.6)
    predicted = costs(task, 5).requires_grad_()
    label = layer(costs(task, 5, 1))

    def loss(c: Tensor) -> Tensor:
        return losses.fenchel_young(layer, c, label, reduction="none")

    assert torch.autograd.gradcheck(loss, (predicted,), eps=1e-5, atol=1e-6, rtol=0)
    found = loss(predicted)
    assert bool((found > 1e-3).all())
    found.sum().backward()
    sign = 1.0 if layer.map.sense.maximizing else -1.0
    torch.testing.assert_close(predicted.grad, sign * (layer(predicted.detach()) - label))
    own = losses.fenchel_young(layer, predicted, layer(predicted).detach(), reduction="none")
    torch.testing.assert_close(own, torch.zeros_like(own), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["simplex", "knapsack", "matching"])
def test_fenchel_young_of_the_perturbed_layer(name: str) -> None:
    task, samples = TASKS[name](), 6
    label = layer_of(task)(costs(task, 4, 1))
    predicted = costs(task, 4).requires_grad_()

    def fresh() -> bl.Layer:
        generator = torch.Generator().manual_seed(0)
        return layer_of(task, "perturbed", samples=samples, sigma=0.5, generator=generator)

    def loss(c: Tensor) -> Tensor:
        return losses.fenchel_young(fresh(), c, label, reduction="none")

    assert torch.autograd.gradcheck(loss, (predicted,), eps=1e-6, atol=1e-6, rtol=0)
    loss(predicted).sum().backward()
    sign = 1.0 if fresh().map.sense.maximizing else -1.0
    torch.testing.assert_close(predicted.grad, sign * (fresh()(predicted.detach()) - label))


def test_imitation_and_reductions() -> None:
    task = TASKS["matching"]()
    layer = layer_of(task, "prox")
    predicted, label = costs(task, 3).requires_grad_(), layer_of(task)(costs(task, 3, 1))
    each = losses.imitation(layer, predicted, label, reduction="none")
    torch.testing.assert_close(each, (layer(predicted) - label).square().flatten(1).sum(1))
    torch.testing.assert_close(losses.imitation(layer, predicted, label), each.mean())
    torch.testing.assert_close(losses.imitation(layer, predicted, label, reduction="sum"), each.sum())
    assert torch.autograd.gradcheck(lambda c: losses.imitation(layer, c, label), (predicted,), eps=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["matching", "own"])
def test_losses_are_the_same_from_warm_starts(name: str) -> None:
    task = TASKS[name]()
    layer, rows = layer_of(task), torch.tensor([4, 0, 1])
    predicted, true = costs(task, 3), costs(task, 3, 1)
    cold = losses.spo_plus(layer, predicted, true, reduction="none")
    for _ in range(2):
        warm = losses.spo_plus(layer, predicted, true, index=rows, reduction="none")
        torch.testing.assert_close(warm, cold, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("mode", "settings", "loss"),
    [
        ("identity", {}, "spo_plus"),
        ("identity", {}, "imitation"),
        ("lpgd", {"tau": 5.0}, "imitation"),
        ("prox", {"rho": 1.0}, "imitation"),
        ("prox", {"rho": 1.0}, "fenchel_young"),
        ("perturbed", {"sigma": 0.5}, "imitation"),
        ("perturbed", {"sigma": 0.5}, "fenchel_young"),
    ],
)
def test_training_lowers_the_regret(mode: str, settings: dict[str, float], loss: str) -> None:
    task = TASKS["path"]()
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(100, 3, generator=generator)
    true = features @ torch.randn(3, 7, generator=generator) + 3.0
    own = settings | ({"generator": generator} if mode == "perturbed" else {})
    layer, rows = layer_of(task, mode, **own), torch.arange(100)
    target = true if loss == "spo_plus" else layer_of(task)(true)
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 7)
    first = losses.regret(layer, net(features), true)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    for _ in range(40):
        optimizer.zero_grad()
        getattr(losses, loss)(layer, net(features), target, index=rows).backward()
        optimizer.step()
    assert losses.regret(layer, net(features), true) < 0.5 * first


def test_wrong_inputs_are_named() -> None:
    task = TASKS["matching"]()
    layer, given = layer_of(task), costs(task, 2)
    with pytest.raises(OptionError, match="reduction is 'max'; give one of 'mean'"):
        losses.spo_plus(layer, given, given, reduction="max")
    with pytest.raises(OptionError, match=r"layer is 3; give a blocklp\.Layer"):
        losses.regret(3, given, given)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="true costs have 1 instances, predicted costs 2"):
        losses.regret(layer, given, given[:1])
    with pytest.raises(ShapeError, match=r"solutions have shape \(2, 9\); give \(batch, \*\(3, 3\)\)"):
        losses.spo_plus(layer, given, given, given.flatten(1))
    with pytest.raises(ShapeError, match=r"value has shape \(1,\); give \(2,\)"):
        losses.spo_plus(layer, given, given, None, torch.zeros(1))
    with pytest.raises(NonFiniteError, match=r"cost price\[0, 1\] of instance 1 is nan"):
        wrong = given.clone()
        wrong[1, 0, 1] = torch.nan
        losses.spo_plus(layer, given, wrong)
    with pytest.raises(OptionError, match="Fenchel-Young losses are of mode 'prox' or 'perturbed'"):
        losses.fenchel_young(layer, given, given)
    part = bl.Layer(task.model, cost=task.price, variables=task.x[0], mode="identity")
    with pytest.raises(OptionError, match="multiplies variables that the layer does not return"):
        losses.spo_plus(part, given, given)
    twice = bl.Layer(task.model, cost=task.price, variables=task.x[[0, 0, 1, 2]], mode="prox", rho=1.0)
    with pytest.raises(OptionError, match="solutions would set a variable twice"):
        losses.fenchel_young(twice, given, torch.zeros(2, 4, 3))

"""Layers of every method against the solver's steps: step sizes, skip connection, regularisers of the user and cliques."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from blocklp.errors import OptionError
from blocklp.problems.densecrf import Cliques, DenseCRF, solve_densecrf
from blocklp.problems.densecrf.layers import METHODS, DenseCRFLayer
from blocklp.problems.densecrf.prox_lp import project_to_simplex
from blocklp.problems.densecrf.unrolled import STEPS, StepNumbers

from .test_layers import batch, layer, points


def one_energy(
    module: DenseCRFLayer, images: Tensor, logits: Tensor, cliques: Cliques | None = None
) -> tuple[DenseCRF, Tensor, float]:
    """The energy of a single image, where methods start, and the unit of their rates and penalties."""
    with torch.no_grad():
        field = module.energy(images, logits, cliques)
    return field, (-field.unary).softmax(1), field.unit.item()


def blocks_of_two(points: int, cost: Tensor) -> Cliques:
    """Cliques of two and three neighbours, one cost each, some points in none."""
    member = torch.full((points,), -1)
    member[0:2], member[3:6] = 0, 1
    return Cliques(member, cost)


def test_proximal_gradients_and_admm_of_the_solver() -> None:
    images, logits = batch(1, 3, 6, 5)
    for steps in (1, 2, 5):
        for method, weight in (("prox-grad", 0.7), ("admm", 2.5)):
            module = layer(method=method, steps=steps, regularisation=weight)
            field, start, unit = one_energy(module, images, logits)
            options = {"rate": unit / weight} if method == "prox-grad" else {"penalty": weight / unit}
            found = solve_densecrf(field, method, start=start, steps=steps, **options).y
            with torch.no_grad():
                torch.testing.assert_close(points(module(images, logits)), found, rtol=0, atol=1e-10)


def test_projected_gradients_by_their_formula() -> None:
    """What a step goes towards is the projection: its distance from the point below meets the optimality conditions."""
    images, logits = batch(1, 3)
    module = layer(method="pgd", steps=1, step=0.3, regularisation=1.7, exact=True)
    field, start, _ = one_energy(module, images, logits)
    with torch.no_grad():
        found = (points(module(images, logits)) - 0.7 * start) / 0.3
    apart = found - (start - (field.unary + field.message(start)) / 1.7)
    least = apart.amin(1, keepdim=True)
    used = found > 1e-12
    torch.testing.assert_close(found.sum(1), torch.ones(12, dtype=torch.float64))
    torch.testing.assert_close(torch.where(used, apart - least, 0.0), torch.zeros_like(apart), rtol=0, atol=1e-9)
    assert not bool(used.all())


def test_one_step_size_for_each_step() -> None:
    images, logits = batch(1, 3, 6, 5)
    sizes = [0.9, 0.2, 0.5]
    for method in ("efw", "l2fw", "fw", "pgd"):
        whole = layer(method=method, steps=3, step=sizes)
        assert whole.logit_step is not None and whole.logit_step.shape == (3,)
        field, y, _ = one_energy(whole, images, logits)
        for k, size in enumerate(sizes):  # each step by a layer of one step size, from where the last one ended
            weight = None if whole.log_regularisation is None else torch.tensor(1.0, dtype=torch.float64)
            (y,) = STEPS[method](field, (y,), StepNumbers(k, torch.tensor(size, dtype=torch.float64), weight))
        with torch.no_grad():
            torch.testing.assert_close(points(whole(images, logits)), y, rtol=0, atol=1e-12)
    for method in ("prox-grad", "admm"):  # which have no step sizes, learn a weight a step
        module = layer(method=method, steps=3)
        assert module.logit_step is None and module.log_regularisation is not None and module.log_regularisation.shape == (3,)
        module(images, logits).square().sum().backward()
        grads = module.log_regularisation.grad
        assert grads is not None and bool((grads[: 2 if method == "admm" else 3] != 0).all())
    mixed = layer(method="l2fw", steps=3, step=sizes)
    assert "step=[0.9, 0.2, 0.5], regularisation=1," in repr(mixed)
    assert "step=0.5, " in repr(layer(method="l2fw"))


def test_vanilla_frank_wolfe_goes_to_labellings_and_does_not_teach_the_kernels() -> None:
    """Figure 1c of the text: the gradient of the labels of least cost is zero."""
    images, logits = batch()
    module = layer(method="fw", steps=1, step=1.0)
    marginals = module(images, logits)
    assert bool(((marginals == 0) | (marginals == 1)).all())
    field = module.energy(images, logits)
    start = (-field.unary).softmax(1)
    assert torch.equal(points(marginals).argmax(1), (field.unary + field.message(start)).argmin(1))
    module = layer(method="fw")
    module(images, logits).square().sum().backward()
    assert module.log_weights.grad is None and module.compatibility.grad is None
    assert module.logit_step is not None and module.logit_step.grad is not None and bool(module.logit_step.grad.all())
    assert module.log_unary.grad is not None


@pytest.mark.parametrize("method", [name for name in METHODS if name != "mean-field"])
def test_skip_is_the_mean_with_the_start(method: str) -> None:
    images, logits = batch()
    plain, skipping = layer(method=method), layer(method=method, skip=True)
    torch.testing.assert_close(skipping(images, logits), (plain(images, logits) + logits.softmax(1)) / 2)


@pytest.mark.parametrize("recompute", [True, False])
def test_a_regulariser_of_the_user(recompute: bool) -> None:
    """Sparsemax of twice the scores is l2FW with half the weight; a weight for each label is learned."""
    images, logits = batch(2, 3, 3, 3)

    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.log_factor = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64).log())

        def minimise(self, gradient: Tensor) -> Tensor:
            return project_to_simplex(-self.log_factor.exp() * gradient)

    module = layer(method=Twice(), recompute=recompute)  # type: ignore[arg-type]
    torch.testing.assert_close(module(images, logits), layer(method="l2fw", regularisation=0.5)(images, logits))
    assert "regulariser.log_factor" in dict(module.named_parameters()) and "method='Twice'" in repr(module)
    module(images, logits).square().sum().backward()
    factor = module.regulariser.log_factor  # type: ignore[union-attr]
    values = []
    for width in (1e-6, -1e-6):
        with torch.no_grad():
            factor += width
            values.append(float(module(images, logits).square().sum()))
            factor -= width
    assert factor.grad.item() == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-6)
    with pytest.raises(OptionError, match="Twice has no regularisation"):
        layer(method=Twice(), regularisation=0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", METHODS)
def test_cliques_of_the_solver_and_their_gradients(method: str) -> None:
    images, logits = batch(1, 3, 2, 4)
    logits, cost = logits / 4, torch.tensor([3.0, 2.0], dtype=torch.float64)
    module = layer(method=method, exact=True, steps=2)
    found = points(module(images, logits, blocks_of_two(8, cost)))
    field, start, unit = one_energy(module, images, logits, blocks_of_two(8, cost))
    if method in ("efw", "l2fw"):
        options = {"weight": 1.0, "step": "constant", "size": 0.5, "steps": 2}
        truth = solve_densecrf(field, method, start=start, **options).y  # type: ignore[arg-type]
    elif method == "mean-field":
        truth = solve_densecrf(field, method, steps=2).y
    elif method == "prox-grad":
        truth = solve_densecrf(field, method, start=start, rate=unit, steps=2).y
    elif method == "admm":
        truth = solve_densecrf(field, method, start=start, penalty=1 / unit, steps=2).y
    else:
        truth = None
    if truth is not None:
        torch.testing.assert_close(found, truth, rtol=0, atol=1e-10)
    assert method == "fw" or not torch.allclose(found, points(module(images, logits)), atol=1e-3)

    def forward(logits: Tensor, cost: Tensor) -> Tensor:
        return module(images, logits, blocks_of_two(8, cost))

    torch.autograd.gradcheck(forward, (logits.requires_grad_(), cost.requires_grad_()), fast_mode=True)

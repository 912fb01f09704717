"""Proximal layers of random models over all block types."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.general_solvers.linear_program import export

from ..random_models import random_model
from .models import Task, by_cvxpy

SEEDS = [seed for seed in range(14) if random_model(np.random.default_rng(seed)).batch == 1]
"""Of models of one instance; a third of them is infeasible."""


@pytest.mark.parametrize("seed", SEEDS)
def test_random_models_have_exact_points_and_gradients_or_say_that_they_have_none(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = random_model(rng)
    x, price = model.variables["x"], model.parameter("price", model.size)
    model.minimize((price * x).sum())
    task, given = Task(model, price, x), torch.from_numpy(rng.standard_normal((2, model.size)))
    layer = bl.Layer(model, cost=price, passes=150)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = layer(given)
    program = export(model, values={price: given[0]})
    if not program.linprog().success:
        assert layer.exactness.open == 2 and said
        return
    assert layer.exactness.open == 0 and not said
    np.testing.assert_allclose(found[0].numpy(), by_cvxpy(task, given[0], 1.0, torch.zeros(model.size)), atol=1e-5)
    assert torch.autograd.gradcheck(layer, (given.requires_grad_(),), eps=1e-6, atol=1e-6, rtol=0)

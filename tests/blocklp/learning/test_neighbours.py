"""Layers of cvxpylayers and functions of PyEPO with models of blocklp inside."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.errors import ModelError

GENERATOR = np.random.default_rng(0)
MATRIX = GENERATOR.random((4, 6))


def costs(batch: int) -> torch.Tensor:
    return torch.randn(batch, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


class TestCvxpylayers:
    """Against CVXPY's own answers, instance by instance."""

    @pytest.fixture(autouse=True)
    def package(self) -> None:
        reason = "cvxpylayers is not installed; the extra 'layers' brings it"
        self.layers = pytest.importorskip("cvxpylayers.torch", reason=reason)
        self.cp: Any = pytest.importorskip("cvxpy")
        self.x, self.c = self.cp.Variable(6, bounds=[0, 1], name="x"), self.cp.Parameter(6, name="c")
        self.rows = [MATRIX @ self.x <= 0.4 * MATRIX.sum(1), self.cp.sum(self.x) >= 1]

    def layer(self, objective: Any, rows: Any = None, **settings: Any) -> Any:
        problem = self.cp.Problem(self.cp.Minimize(objective), self.rows if rows is None else rows)
        return self.layers.CvxpyLayer(problem, [self.c], [self.x], solver=bl.learning.cvxpylayers_solver(**settings)), problem

    def test_minimisers_of_linear_programs_are_those_of_cvxpy(self) -> None:
        layer, problem = self.layer(self.c @ self.x + 3)
        (points,) = layer(costs(5))
        for c, point in zip(costs(5), points, strict=True):
            self.c.value = c.numpy()
            problem.solve(solver="HIGHS")
            assert point.numpy() == pytest.approx(self.x.value, abs=1e-6)

    def test_proximal_layers_have_exact_gradients(self) -> None:
        layer, problem = self.layer(self.c @ self.x + 0.25 * self.cp.sum_squares(self.x))
        given = costs(3).requires_grad_()
        (points,) = layer(given)
        self.c.value = costs(3)[0].numpy()
        problem.solve(solver="CLARABEL")
        assert points[0].detach().numpy() == pytest.approx(self.x.value, abs=1e-5)
        assert torch.autograd.gradcheck(lambda c: layer(c)[0], given, eps=1e-5, atol=1e-6)

    def test_what_it_does_not_take_is_refused_by_name(self) -> None:
        with pytest.raises(ModelError, match="only costs may hold any"):
            self.layer(self.cp.sum(self.x), [self.x >= 0, self.x <= self.c])
        with pytest.raises(ModelError, match="cones beside linear rows"):
            self.layer(self.c @ self.x, [self.cp.norm(self.x) <= 1])
        with pytest.raises(ModelError, match=r"no multiple of \|x\|\^2"):
            self.layer(self.c @ self.x + self.cp.sum_squares(self.x[:2]))
        self.x = self.cp.Variable(6, name="x")
        with pytest.raises(ModelError, match="variables 'x' have no finite bounds"):
            self.layer(self.c @ self.x, [self.x >= 0])
        assert self.layer(self.c @ self.x, [self.x >= 0], reach=2.0)[0](costs(2))[0].max() == pytest.approx(2.0)


class TestPyepo:
    """A knapsack of two rows, maximised."""

    @pytest.fixture(autouse=True)
    def package(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.pyepo = pytest.importorskip("pyepo", reason="pyepo is not installed; the extra 'layers' brings it")
            pytest.importorskip("pyepo.func")
        m = bl.Model()
        x, price = m.variable("x", 6, lower=0, upper=1), m.parameter("price", 6)
        m.add(MATRIX[:2] @ x <= 0.4 * MATRIX[:2].sum(1))
        m.maximize(price @ x)
        self.stated = m
        self.model = bl.learning.pyepo_model(m, price)

    def test_labels_and_losses_are_those_of_solves_one_by_one(self) -> None:
        from pyepo.data.dataset import optDataset
        from pyepo.func import SPOPlus

        true = costs(7).abs()
        data = optDataset(self.model, true.numpy(), true.numpy())
        price = next(t.parameter for t in self.stated.objective.terms)  # type: ignore[union-attr]
        alone = []
        for c in true:
            price.value = c
            alone.append(bl.reference(self.stated).objective.item())
        assert data.objs[:, 0].tolist() == pytest.approx(alone, rel=1e-5)
        predicted = (true + 0.3).float().requires_grad_()
        loss = SPOPlus(self.model)(predicted, true.float(), data.sols, data.objs)
        loss.backward()
        assert loss.item() >= 0 and predicted.grad is not None and bool(predicted.grad.any())
        self.model.setObj(true[0].numpy())
        assert self.model.solve()[1] == pytest.approx(alone[0], rel=1e-5)

    def test_cuts_are_refused(self) -> None:
        with pytest.raises(ModelError, match="stated before PyEPO gets it"):
            self.model.addConstr([1.0] * 6, 1.0)

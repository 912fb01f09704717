"""Newton's method in the multipliers of rows, against alternating directions, optimality conditions and differences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp.blocks.box import Box
from blocklp.decomposition.problem import Decomposition
from blocklp.learning.proximal_points import ProximalPoints
from blocklp.learning.row_newton import RowSystem
from blocklp.oracles import AtMostOne, Simplex


def choices(kind: type[Simplex] | type[AtMostOne], side: int) -> bl.Model:
    """Choices by rows and columns of a square."""
    m = bl.Model()
    x = m.variable("x", (side, side), lower=0, upper=1)
    m.add(kind(side), scope=[x[:, j] for j in range(side)], name="by_row")
    m.add(kind(side), scope=[x[j, :] for j in range(side)], name="by_column")
    m.minimize(x.sum())
    return m


def ranges(rows: int, seed: int = 0) -> bl.Model:
    """Rows with one side, with two and with equal ones, of which the last depends on the first two."""
    draw = np.random.default_rng(seed)
    matrix = draw.normal(size=(rows, 12)) * (draw.random((rows, 12)) < 0.5)
    matrix[-1] = matrix[0] + matrix[1]
    middle = matrix @ draw.uniform(-0.5, 0.5, 12)
    lower, upper = middle.copy(), middle.copy()
    upper[::3] += 0.3
    lower[1::3] = -np.inf
    lower[-1] = -np.inf
    m = bl.Model()
    x = m.variable("x", 12, lower=-1, upper=1)
    m.add_rows(matrix, x, lower, upper)
    m.minimize(x.sum())
    return m


MODELS = {
    "assignment": choices(Simplex, 5),
    "matching": choices(AtMostOne, 5),
    "rows": ranges(7),
}


def problem_of(model: bl.Model) -> tuple[Decomposition, RowSystem]:
    problem = model.compile().decomposition()
    system = RowSystem.of(problem)
    assert system is not None
    return problem, system


def targets(problem: Decomposition, count: int, size: float) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    return size * torch.randn(count, problem.cost.shape[1], generator=draw, dtype=torch.float64)


@pytest.mark.parametrize("size", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize("name", MODELS)
def test_points_and_faces_are_those_of_alternating_directions(name: str, size: float) -> None:
    problem, system = problem_of(MODELS[name])
    other = ProximalPoints(problem, 1e-10, 5000)
    other.system = None
    target, direction = targets(problem, 60, size), targets(problem, 60, 1.0)
    x, face, residual, price = system.nearest(target, None, 1e-10, 100)
    found = other.solve(target)
    assert float(residual.max()) < 1e-13 and float(found.residual.max()) < 1e-10
    torch.testing.assert_close(x, found.x, atol=1e-8 * max(size, 1.0), rtol=0)  # which end there
    torch.testing.assert_close(face.along(direction), found.faces.along(direction), atol=1e-8, rtol=0)
    again, _, left, _ = system.nearest(target + 1e-6 * direction, price, 1e-10, 4)  # few steps from near by
    assert float(left.max()) < 1e-10
    cold, *_ = system.nearest(target + 1e-6 * direction, None, 1e-10, 100)
    torch.testing.assert_close(again, cold, atol=1e-9 * max(size, 1.0), rtol=0)


@pytest.mark.parametrize("size", [1e-3, 3.0, 100.0])
@pytest.mark.parametrize("name", MODELS)
def test_points_obey_the_conditions_of_optimality(name: str, size: float) -> None:
    problem, system = problem_of(MODELS[name])
    target = targets(problem, 300, size)
    x, _, _, price = system.nearest(target, None, 1e-10, 100)
    activity = system.activities(x)
    assert bool((x >= system.below).all() and (x <= system.above).all())
    assert bool((activity >= system.lower - 1e-12).all() and (activity <= system.upper + 1e-12).all())
    slope = x - target + price @ system.matrix  # of the Lagrangean: inwards at bounds, and zero between them
    at_below, at_above = x == system.below, x == system.above
    assert float(slope[~at_below].amax()) < 1e-11 and float(slope[~at_above].amin()) > -1e-11
    off_upper, off_lower = activity < system.upper - 1e-9, activity > system.lower + 1e-9
    assert not bool((off_upper & (price > 1e-9)).any() or (off_lower & (price < -1e-9)).any())


@pytest.mark.parametrize("name", MODELS)
def test_directions_are_derivatives(name: str) -> None:
    problem, system = problem_of(MODELS[name])
    target, direction = targets(problem, 40, 2.0), targets(problem, 40, 1.0).flip(0)
    _, face, _, price = system.nearest(target, None, 1e-10, 100)
    step = 1e-7
    ends = [system.nearest(target + s * direction, price, 1e-10, 100)[0] for s in (step, -step)]
    torch.testing.assert_close((ends[0] - ends[1]) / (2 * step), face.along(direction), atol=1e-7, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_directions_from_the_factors_of_steps_are_those_of_new_factors(name: str) -> None:
    problem, system = problem_of(MODELS[name])
    target, direction = targets(problem, 40, 3.0), targets(problem, 40, 1.0)
    _, cold, _, price = system.nearest(target, None, 1e-10, 100)
    moved = target + 0.01 * direction
    moved[::2] = target[::2]
    _, warm, residual, _ = system.nearest(moved, price, 1e-10, 100)
    assert float(residual.max()) < 1e-10
    for face in (cold, warm):
        anew = replace(face, steps=[]).along(direction)
        torch.testing.assert_close(face.along(direction), anew, atol=1e-9, rtol=0)


def test_rows_that_leave_no_point_are_never_called_solved() -> None:
    m = bl.Model()
    x = m.variable("x", 3, lower=0, upper=1)
    m.add(np.ones((1, 3)) @ x == 2.0)
    m.add(np.array([[1.0, 1.0, 0.0]]) @ x <= 0.5)
    m.minimize(x.sum())
    problem, system = problem_of(m)
    _, _, residual, _ = system.nearest(targets(problem, 50, 1.0), None, 1e-10, 100)
    assert float(residual.min()) > 1e-3


def test_boxes_that_share_a_variable_have_no_rows() -> None:
    m = bl.Model()
    x, price = m.variable("x", 3, lower=-4, upper=4), m.parameter("price", 3)
    m.add(Box([-1.0, 0.0], [1.0, 0.5]), scope=[x[[0]], x[[1]]])
    m.add(Box([-0.5, 0.0], [0.2, 0.3]), scope=[x[[1]], x[[2]]])
    m.minimize((price * x).sum())
    given = targets(m.compile().decomposition(values={price: torch.zeros(3)}), 20, 1.0)
    lower, upper = torch.tensor([[-1.0, 0.0, 0.0], [1.0, 0.2, 0.3]], dtype=torch.float64)
    torch.testing.assert_close(bl.Layer(m, cost=price)(given), (-given).clamp(lower, upper), atol=1e-12, rtol=0)


def test_systems_of_many_rows_are_left_to_alternating_directions() -> None:
    problem = choices(Simplex, 30).compile().decomposition()
    assert RowSystem.of(problem) is not None
    assert RowSystem.of(ranges(40).compile().decomposition()) is None

"""Layers with a proximal term: points against a solver of quadratic programs, gradients against differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp.blocks.box import Box
from blocklp.learning.faces import Copies, faces_at
from blocklp.learning.nearest import leave_out, nearest, tangents
from blocklp.oracles import AtMostOne, Knapsack, Path, Simplex

from .models import TASKS, Octagon, Task, by_cvxpy, costs, vertices


def layer_of(task: Task, **options: object) -> bl.Layer:
    return bl.Layer(task.model, cost=task.price, variables=task.x, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["simplex", "knapsack", "path", "rows", "matching", "edges"])
def test_points_are_those_of_a_quadratic_program(name: str) -> None:
    task = TASKS[name]()
    layer, given = layer_of(task, rho=0.7), costs(task, 4)
    found = layer(given)
    size = task.model.size
    for i in range(4):
        x = by_cvxpy(task, given[i], 0.7, torch.zeros(size))
        at = task.x.index.reshape(-1).numpy()
        np.testing.assert_allclose(found[i].reshape(-1).numpy(), x[at], atol=2e-6)
    assert layer.exactness.open == 0 and layer.exactness.gap < 1e-10


def test_points_of_an_oracle_alone_are_nearest_in_the_hull_of_its_vertices() -> None:
    task, given = TASKS["own_apart"](), costs(TASKS["own_apart"](), 5)
    found, table = layer_of(task, rho=0.5)(given).reshape(5, -1), vertices("own_apart")
    slope = given + 0.5 * found  # of the objective: no vertex is lower along it
    least = (slope @ table.T).amin(1)
    torch.testing.assert_close((slope * found).sum(1), least, atol=1e-12, rtol=0)


def test_an_oracle_that_wavers_is_not_called_exact() -> None:
    """Its vertices depend on the costs by more than rounding, so that no point is the nearest one."""

    class Wavering(Octagon):
        def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
            point = super().min_oracle(cost)[0] + 1e-3 * torch.sin(1e4 * cost)
            return point, (cost * point).sum(-1)

    m = bl.Model()
    x = m.variable("x", 3, lower=-4, upper=4)
    price = m.parameter("price", 3)
    m.add(Wavering(), scope=[x[[j]] for j in range(3)])
    m.minimize((price * x).sum())
    layer = bl.Layer(m, cost=price, rho=2.0)
    with pytest.warns(UserWarning, match="ended at a residual"):
        layer(costs(Task(m, price, x), 20))
    assert layer.exactness.open > 0 and layer.exactness.gap > 1e-6


@pytest.mark.parametrize("name", TASKS)
def test_gradients_in_costs_and_centre(name: str) -> None:
    task = TASKS[name]()
    layer = layer_of(task, rho=0.8)
    given = costs(task, 3, seed=3).requires_grad_()
    centre = 0.3 * costs(task, 3, seed=4)
    if name != "edges":  # the variables that the layer returns are those of the parameter
        assert centre.shape[1:] == task.x.shape
    centre = centre.requires_grad_()

    def solved(c: Tensor, x0: Tensor) -> Tensor:
        return layer(c, centre=x0)

    assert torch.autograd.gradcheck(solved, (given, centre), eps=1e-5, atol=1e-6, rtol=0)
    assert layer.exactness.open == 0
    jacobian = torch.autograd.functional.jacobian(lambda c: layer(c).sum(0), given.detach())
    assert float(jacobian.abs().max()) > 0.1  # or nothing was tested


@pytest.mark.parametrize("name", TASKS)
def test_a_batch_is_solved_as_its_instances_are_alone(name: str) -> None:
    task = TASKS[name]()
    layer, given = layer_of(task), costs(task, 6)
    each = torch.cat([layer(c[None]) for c in given])
    torch.testing.assert_close(layer(given), each, atol=1e-14, rtol=0)
    assert layer(given[:0]).shape == (0, *task.x.shape)


@pytest.mark.parametrize("name", TASKS)
def test_warm_starts_change_nothing(name: str) -> None:
    task = TASKS[name]()
    layer, first, second = layer_of(task), costs(task, 6), costs(task, 6, seed=1)
    rows = torch.tensor([7, 2, 0, 3, 9, 4])
    layer(first, index=rows)
    back = torch.tensor([5, 0, 1, 3, 2, 4])
    warm = layer(second[back], rows[back])
    torch.testing.assert_close(warm, layer_of(task)(second[back]), atol=1e-11, rtol=0)
    near = layer(second[back] + 1e-3, rows[back])
    torch.testing.assert_close(near, layer_of(task)(second[back] + 1e-3), atol=1e-11, rtol=0)
    layer.forget()
    torch.testing.assert_close(layer(first, rows), layer_of(task)(first), atol=1e-11, rtol=0)


def test_warm_starts_ask_the_oracle_less_often() -> None:
    calls = []

    class Counted(Octagon):
        def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
            calls.append(len(cost))
            return super().min_oracle(cost)

    m = bl.Model()
    x = m.variable("x", 3, lower=-4, upper=4)
    price = m.parameter("price", 3)
    m.add(Counted(), scope=[x[[j]] for j in range(3)])
    m.minimize((price * x).sum())
    layer, given = bl.Layer(m, cost=price, rho=2.0), costs(Task(m, price, x), 20)
    layer(given, torch.arange(20))
    cold = len(calls)
    calls.clear()
    layer(given + 1e-4, torch.arange(20))
    assert len(calls) <= 3 < cold


def test_nearest_points_far_away_and_faces() -> None:
    kind = Octagon()
    target = torch.cat([3.0 * costs(TASKS["simplex"](), 8), 50.0 * costs(TASKS["simplex"](), 8)])[:, None, :3]
    found = nearest(kind, target)
    assert int((found.weights > 0).sum(-1).max()) in (2, 3)  # on the boundary, and not all at vertices
    point, basis = found.points(), tangents(found)
    vertex, _ = kind.min_oracle(point - target)
    gap = ((point - target) * (point - vertex)).sum(-1)
    assert float(gap.abs().max()) < 1e-11
    along = (basis @ (point - target)[..., None])[..., 0]  # the way to the target is normal to the face
    assert float(along.abs().max()) < 1e-11
    gram = basis @ basis.transpose(-1, -2)
    counts = (found.weights > 0).sum(-1) - 1
    torch.testing.assert_close(gram.diagonal(dim1=-2, dim2=-1).sum(-1), counts.double())


def test_compiled_loops_and_tensor_operations_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(2)
    arcs = np.array([(i, j) for i in range(7) for j in range(i + 1, 7)]).T
    for kind in (Octagon(), Path(*arcs, 0, 6)):
        first = torch.from_numpy(draw.normal(size=(60, 2, kind.dim)))
        second = first + 0.3 * torch.from_numpy(draw.normal(size=first.shape))
        found = []
        for backend in ("auto", "torch"):
            monkeypatch.setenv("BLOCKLP_BACKEND", backend)
            points, projectors = [], []
            own = None
            for target in (first, second):
                own = nearest(kind, target, own)
                basis = tangents(own)
                points.append(own.points())
                rest = leave_out(basis, target)
                torch.testing.assert_close(rest, target - (basis.mT @ (basis @ target[..., None]))[..., 0], atol=1e-12, rtol=0)
                projectors.append(basis.mT @ basis)
            found.append(torch.stack(points))
            found.append(torch.stack(projectors))
        torch.testing.assert_close(found[0], found[2], atol=1e-12, rtol=0)
        torch.testing.assert_close(found[1], found[3], atol=1e-10, rtol=0)
        assert float(found[1].diagonal(dim1=-2, dim2=-1).sum(-1).max()) > 1.5  # faces of two dimensions and more


class Hull(bl.BlockType):
    """The convex hull of points, by its oracle alone."""

    def __init__(self, corners: np.ndarray) -> None:
        self.corners, self.dim = torch.from_numpy(corners), corners.shape[1]

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        value, row = (cost @ self.corners.T.to(cost)).min(-1)
        return self.corners.to(cost)[row], value


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_points_inside_hulls_of_any_proportions_move_with_their_targets(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """Rounding there makes vertices that depend on each other, of weights near zero."""
    monkeypatch.setenv("BLOCKLP_BACKEND", backend)
    for seed in range(200):
        draw = np.random.default_rng(seed)
        dim = int(draw.integers(2, 7))
        corners = draw.normal(size=(int(draw.integers(dim + 2, 15)), dim)) * 10.0 ** draw.uniform(-1, 1, dim)
        target = torch.from_numpy(draw.dirichlet(np.ones(len(corners)), size=1) @ corners)[:, None]
        found = nearest(Hull(corners), target)
        torch.testing.assert_close(found.points(), target, atol=1e-12, rtol=1e-12)
        basis = tangents(found)
        torch.testing.assert_close((basis.mT @ basis)[0, 0], torch.eye(dim, dtype=torch.float64), atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    "kind",
    [
        Box([-1.0, 0.0, 0.5], [1.0, 0.2, 2.0]),
        Simplex(3, mass=1.5),
        AtMostOne(3),
        Knapsack([2.0, -1.0, 0.7], 1.0, -1.0, 1.0, least=-0.5),
    ],
    ids=lambda kind: kind.name,
)
def test_faces_by_constraints_are_those_that_active_vertices_span(kind: bl.BlockType) -> None:
    m = bl.Model()
    x = m.variable("x", 3, lower=-4, upper=4)
    m.add(kind, scope=[x[[j]] for j in range(3)])
    m.minimize(x.sum())
    copies = Copies(m.compile().decomposition())
    group = next(g for g in copies.groups if g.type.name == kind.name)
    draw = torch.Generator().manual_seed(0)
    moved = copies.spread(torch.randn(200, 3, generator=draw, dtype=torch.float64))
    _, faces = faces_at(copies, moved, None)
    assert group.name not in faces.active  # no vertex was asked for
    basis = tangents(nearest(group.type, group.view(moved).contiguous()))
    dimensions = basis.norm(dim=-1).sum(-1).round().unique().tolist()
    assert len(dimensions) > 2  # vertices, edges and more
    direction = torch.randn(200, 1, 3, generator=draw, dtype=torch.float64)
    there = torch.zeros_like(moved)
    group.view(there).copy_(direction)
    along = basis.transpose(-1, -2) @ (basis @ direction[..., None])
    torch.testing.assert_close(group.view(faces.normal(there)), direction - along[..., 0], atol=1e-11, rtol=0)


@pytest.mark.parametrize("rho", [1e-4, 1e-2, 1e2])
@pytest.mark.parametrize("name", TASKS)
def test_centres_far_away_and_deep_inside(name: str, rho: float) -> None:
    task = TASKS[name]()
    layer, given = layer_of(task, rho=rho), costs(task, 40)
    found = layer(given)
    assert layer.exactness.open == 0 and bool(found.isfinite().all())
    if rho < 1e-3 and name in ("simplex", "path", "matching", "own_apart"):  # the vertex of least cost
        table = vertices(name)
        best = table[(given.flatten(1) @ table.T).argmin(1)]
        torch.testing.assert_close(found.flatten(1), best, atol=1e-9, rtol=0)


def test_what_misses_the_tolerance_says_so() -> None:
    task = TASKS["matching"]()
    layer = layer_of(task, rho=0.1, passes=1)
    with pytest.warns(UserWarning, match=r"of 40 instances of a layer ended at a residual"):
        layer(costs(task, 40))
    assert layer.exactness.open > 0 and layer.exactness.gap > 1e-10

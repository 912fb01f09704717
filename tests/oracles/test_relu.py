"""Relaxed ReLU layers against HiGHS, and the conformance suite for single neurons."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

import blocklp as bl
from blocklp.blocks.contract import BlockType
from blocklp.errors import ModelError, NonFiniteError, ShapeError
from blocklp.oracles.relu import ReluAffine, ReluHull
from blocklp.problems.verification import Builder, network_bounds
from blocklp.problems.verification.exact import planet_lp
from blocklp.problems.verification.planet import Planet, Segment
from blocklp.testing.conformance import BlockTypeConformance


class TestReluHull(BlockTypeConformance):
    """Unstable, active and inactive neurons."""

    def block_type(self) -> BlockType:
        return ReluHull([-1.0, 0.5, -2.0], [2.0, 1.5, -0.5])

    def vertices(self) -> np.ndarray:
        corners = [[(-1, 0), (0, 0), (2, 2)], [(0.5, 0.5), (1.5, 1.5), (1.5, 1.5)], [(-2, 0), (-0.5, 0), (-0.5, 0)]]
        return np.array(corners, dtype=float)[None]


def layer(seed: int) -> tuple[ReluAffine, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A block with a value argument of length 3 and a ReLU argument of length 4: matrices and bounds beside it."""
    g = torch.Generator().manual_seed(seed)
    first, second = torch.randn(2, 3, generator=g).double(), torch.randn(2, 4, generator=g).double()
    shift = torch.randn(2, generator=g).double()
    b = Builder((3,))
    relu = b.relu(b.linear(0, torch.randn(4, 3, generator=g)))
    node = b.add(b.linear(0, first, shift), b.linear(relu, second))
    lower = torch.randn(7, generator=g).double() - 1
    upper = lower + 2 * torch.rand(7, generator=g).double()
    block = ReluAffine(Segment.of(b.build(), node), ["value", "relu"], [3, 4], lower, upper)
    return block, np.hstack([first, second]), shift.numpy(), lower.numpy(), upper.numpy()


def test_what_cancels_in_a_layer_does_not_raise_the_bound() -> None:
    """Fixed inputs and weights of 1e9 that cancel: results are far smaller than what they sum."""
    draw = np.random.default_rng(0)
    for _ in range(30):
        weights, at = 1e9 * draw.normal(size=6), draw.normal(size=6)
        weights[5] = -(weights[:5] @ at[:5]) / at[5]
        truth = sum((Fraction(w) * Fraction(v) for w, v in zip(weights.tolist(), at.tolist(), strict=True)), Fraction(0))
        b = Builder((6,))
        node = b.linear(0, torch.tensor(weights)[None])
        m = bl.Model()
        x = m.variable("x", 6, lower=at, upper=at)
        z = m.variable("z", 1, lower=-1, upper=1)
        m.add(ReluAffine(Segment.of(b.build(), node), ["value"], [6], at, at), [x[[i]] for i in range(6)] + [z])
        m.minimize(z.sum())
        solution = m.solve(passes=20)
        assert Fraction(solution.bound.item()) <= truth and Fraction(solution.safe_bound.item()) <= truth


@pytest.mark.parametrize("seed", range(20))
def test_a_layer_against_highs(seed: int) -> None:
    block, matrix, shift, lower, upper = layer(seed)
    cost = torch.randn(1, 1, 9, generator=torch.Generator().manual_seed(seed + 100)).double()
    point, value = block.min_oracle(cost)
    c = cost[0, 0].numpy()
    # Columns: v (7), activation of the last four (4).
    mu = matrix.T @ c[7:]
    rows, right = [], []
    for j in range(4):
        low, high = lower[3 + j], upper[3 + j]
        v, a = np.zeros(11), np.zeros(11)
        v[3 + j], a[7 + j] = 1, 1
        rows += [-a, v - a]
        right += [0.0, 0.0]
        slope = (max(high, 0) - max(low, 0)) / (high - low)
        rows.append(a - slope * v)
        right.append(max(low, 0) - slope * low)
    objective = np.concatenate([c[:7] + np.concatenate([mu[:3], np.zeros(4)]), mu[3:]])
    bounds = [*zip(lower, upper, strict=True)] + [(None, None)] * 4
    truth = linprog(objective, np.array(rows), np.array(right), bounds=bounds).fun + c[7:] @ shift
    assert value.item() == pytest.approx(truth, rel=1e-9, abs=1e-9)
    assert value.item() == pytest.approx(float((cost * point).sum()), rel=1e-9, abs=1e-9)
    x = torch.cat([point[0, 0, :3], point[0, 0, 3:7].clamp(min=0)]).numpy()
    np.testing.assert_allclose(point[0, 0, 7:], matrix @ x + shift, rtol=1e-12)
    narrow = block.to(torch.float32, torch.device("cpu"))
    same = narrow.to(torch.float64, torch.device("cpu"))
    coarse = cost.float()
    error = abs(narrow.min_oracle(coarse)[1].item() - same.min_oracle(coarse.double())[1].item())
    assert error <= narrow.value_error(coarse).item()


def test_layers_solve_in_a_model() -> None:
    block, matrix, shift, lower, upper = layer(3)
    m = bl.Model()
    v = m.variable("v", 7, lower=torch.tensor(lower), upper=torch.tensor(upper))
    z = m.variable("z", 2, lower=-100, upper=100)
    m.add(block, scope=[v.reshape(1, -1), z.reshape(1, -1)])
    m.minimize(z.sum())
    cost = torch.tensor([[[0.0] * 7 + [1.0, 1.0]]], dtype=torch.float64)
    assert m.solve().bound.item() == pytest.approx(block.min_oracle(cost)[1].item(), rel=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_the_rows_of_a_layer_are_the_block(seed: int) -> None:
    """Minima of linear costs over the rows with activations beside are those of the oracle; so is the written LP's."""
    block, _, _, lower, upper = layer(seed)
    cost = torch.randn(1, 1, 9, generator=torch.Generator().manual_seed(seed + 200)).double()
    m = bl.Model()
    v = m.variable("v", 7, lower=torch.tensor(lower), upper=torch.tensor(upper))
    z = m.variable("z", 2, lower=-100, upper=100)
    m.add(block, scope=[v.reshape(1, -1), z.reshape(1, -1)])
    m.minimize((cost[0, 0, :7] * v).sum() + (cost[0, 0, 7:] * z).sum())
    found = bl.reference(m)
    point, value = block.min_oracle(cost)
    assert found.objective.item() == pytest.approx(value.item(), rel=1e-9, abs=1e-9)
    assert found.x["v"].shape == (1, 7) and found.x["z"].shape == (1, 2)
    unstable = int(((torch.tensor(lower) < 0) & (torch.tensor(upper) > 0))[3:].sum())
    assert m.linear_program().A.shape == (9 + 2 * unstable, 9 + unstable)


def test_bounds_of_planet_are_those_of_the_lp() -> None:
    """A network with a skip, a shared activation and a convolution: the model's LP and one written by other code."""
    g = torch.Generator().manual_seed(5)
    b = Builder((1, 3, 3))
    first = b.relu(b.conv(0, torch.randn(2, 1, 2, 2, generator=g), padding=(1, 1, 1, 1)))
    second = b.relu(b.linear(first, torch.randn(5, 32, generator=g)))
    node = b.add(b.linear(second, torch.randn(2, 5, generator=g)), b.linear(first, torch.randn(2, 32, generator=g)))
    network = b.build().to(torch.float64, torch.device("cpu"))
    low, high = -0.3 * torch.ones(1, 3, 3), 0.5 * torch.ones(1, 3, 3)
    found = network_bounds(network, low, high, method="crown")
    cost = torch.tensor([[1.0, 0.0], [0.5, -2.0]]).double()
    wide = torch.full((2, 2), 1e4).double()
    slopes = {r: torch.zeros(2, *network.ops[r].shape).double() for r in network.relus}
    planet = Planet.build(found.relaxation, node, cost, (-wide, wide), slopes)
    bounds = {at: (lo[0], hi[0]) for at, (lo, hi) in found.relaxation.bounds.items()}
    lp = planet_lp(network, low, high, bounds, node)
    truth = [lp.minimise(c).value for c in cost]
    assert bl.reference(planet.model).objective.tolist() == pytest.approx(truth, rel=1e-8)
    assert bool((planet.model.solve(passes=200).bound <= torch.tensor(truth) + 1e-9).all())
    assert bl.reference(found.model(cost)).objective.tolist() == pytest.approx(truth, rel=1e-8)
    assert bl.reference(found.model(cost[1])).objective.tolist() == pytest.approx(truth[1:], rel=1e-8)
    with pytest.raises(ShapeError, match="give 2 numbers"):
        found.model([1.0, 0.0, 0.0])
    with pytest.raises(NonFiniteError, match="cost"):
        found.model([1.0, np.nan])
    with pytest.raises(ModelError, match="2 boxes"):
        network_bounds(network, torch.stack([low, low]), torch.stack([high, high])).model([1.0, 0.0])


def test_wrong_data_is_refused() -> None:
    block, *_ = layer(0)
    with pytest.raises(ShapeError, match="do not fit"):
        ReluAffine(block.affine, ["value"], [3, 4], np.zeros(7), np.ones(7))
    with pytest.raises(ModelError, match="above its upper"):
        ReluAffine(block.affine, ["value", "relu"], [3, 4], np.ones(7), np.zeros(7))
    with pytest.raises(ModelError, match="above its upper"):
        ReluHull([1.0], [0.0])


def planet_bound(first: Tensor, second: Tensor, third: Tensor, shift: Tensor, radius: Tensor) -> Tensor:
    """Least sum of the outputs of a network of two hidden layers and a skip, over a ball of inputs."""
    b = Builder((3,))
    hidden = b.linear(0, first, shift)
    middle = b.add(b.linear(b.relu(hidden), second), b.linear(0, third))
    out = b.linear(b.relu(middle), torch.tensor([[1.0, -1.0]]).double())
    network = b.build()
    centre = torch.tensor([0.3, -0.2, 0.1]).double()
    low, high = (centre - radius)[None], (centre + radius)[None]
    boxes = [(low, high)]
    for weights, bias in (((first,), shift), ((second, third), torch.zeros(2).double())):
        sources = [(boxes[-1][0].clamp(min=0), boxes[-1][1].clamp(min=0)) if len(boxes) > 1 else boxes[0], boxes[0]]
        parts = [(w.clamp(min=0), w.clamp(max=0), *box) for w, box in zip(weights, sources, strict=False)]
        ends = [(lo @ p.T + hi @ n.T, hi @ p.T + lo @ n.T) for p, n, lo, hi in parts]
        boxes.append((sum(e[0] for e in ends) + bias, sum(e[1] for e in ends) + bias))
    m = bl.Model()
    x, z, y = (m.variable(n, lo.shape[1], lower=lo, upper=hi) for n, (lo, hi) in zip("xzy", boxes, strict=True))
    w = m.variable("w", 1, lower=-100, upper=100)
    one = [v.reshape(1, -1) for v in (x, z, y, w)]
    m.add(ReluAffine(Segment.of(network, hidden), ["value"], [3], low[:, None], high[:, None]), [one[0], one[1]])
    sides = (torch.cat(pair, 1)[:, None] for pair in zip(boxes[0], boxes[1], strict=True))
    m.add(ReluAffine(Segment.of(network, middle), ["value", "relu"], [3, 4], *sides), one[:3])
    m.add(ReluAffine(Segment.of(network, out), ["relu"], [2], *(side[:, None] for side in boxes[2])), one[2:])
    m.minimize(w.sum())
    return bl.value(m, tol=1e-10, feasibility_tol=1e-10, passes=6000)


def test_bounds_of_networks_have_gradients_in_weights_and_boxes() -> None:
    """The bound of the relaxation, intermediate bounds by intervals included, along a direction of all data.

    A neuron of the second layer has no cost: its activation is the one that the results leave.
    """
    g = torch.Generator().manual_seed(2)
    shapes = [(4, 3), (2, 4), (2, 3), (4,)]
    given = [torch.randn(*shape, generator=g).double() for shape in shapes] + [torch.tensor(0.4).double()]
    ways = [torch.randn(t.shape, generator=g).double() for t in given]
    slopes = torch.autograd.grad(planet_bound(*(t.requires_grad_() for t in given)).sum(), given)
    assert all(bool(slope.any()) for slope in slopes)
    with torch.no_grad():
        ends = [planet_bound(*(t + step * way for t, way in zip(given, ways, strict=True))).item() for step in (1e-4, -1e-4)]
    along = sum((slope * way).sum().item() for slope, way in zip(slopes, ways, strict=True))
    assert (ends[0] - ends[1]) / 2e-4 == pytest.approx(along, rel=1e-6)

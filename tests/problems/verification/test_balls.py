"""Balls of inputs in the Euclidean norm: bounds, verdicts, attacks and radii."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.errors import FormatError, ModelError, NonFiniteError, OptionError, ShapeError
from blocklp.problems.verification import Ball, Network, Property, certified_radii, digits, robust_accuracy, verify
from blocklp.problems.verification.attack import confirm, find_counterexample
from blocklp.problems.verification.balls import Balls
from blocklp.problems.verification.exact import planet_lp
from blocklp.problems.verification.images import image_ball
from blocklp.problems.verification.network import Builder
from blocklp.problems.verification.proof import check_proof
from blocklp.problems.verification.slopes import SlopeDual
from blocklp.problems.verification.tightener import Tightener
from blocklp.search.parameter_ascent import ascend
from tests.problems.verification_networks import conv, dense, residual


def ball_of(network: Network, seed: int, radius: float = 0.3) -> Ball:
    """A stretched ball, one of whose inputs is fixed."""
    rng = np.random.default_rng(seed)
    axes = radius * rng.uniform(0.3, 1.5, network.inputs)
    axes[0] = 0.0
    return Ball(rng.normal(size=network.inputs), axes)


def points(ball: Ball, count: int, seed: int) -> Tensor:
    """Points of a ball, half of them on its border."""
    draw = np.random.default_rng(seed).normal(size=(count, len(ball.centre)))
    draw *= ball.axes > 0
    draw /= np.sqrt((draw * draw).sum(1, keepdims=True))
    draw[: count // 2] *= np.random.default_rng(seed).random((count // 2, 1))
    return torch.from_numpy(ball.centre + draw * ball.axes)


def boxed(network: Network, ball: Ball, steps: int) -> Tightener:
    lower, upper = (torch.from_numpy(end.copy()).view(1, *network.input_shape) for end in ball.box)
    balls = Balls.stacked([ball], network.input_shape, torch.device("cpu"))
    found = Tightener(network, lower, upper, steps, balls=balls)
    found.run()
    return found


@pytest.mark.parametrize("steps", [1, 10])
@pytest.mark.parametrize("make", [dense, conv, residual])
def test_bounds_hold_in_the_ball_and_are_tighter_than_over_its_box(make: Callable[[int], Network], steps: int) -> None:
    for seed in range(3):
        network = make(seed)
        ball = ball_of(network, seed)
        within = boxed(network, ball, steps)
        plain = Tightener(network, within.lower, within.upper, steps)
        plain.run()
        x = points(ball, 3000, seed).view(-1, *network.input_shape)
        results = network.run(x)
        for relu, (low, high) in within.bounds.items():
            z = results[network.ops[relu].inputs[0]]
            assert bool(((z >= low) & (z <= high)).all())
        out, wide = within.layers[-1], plain.layers[-1]
        assert bool(((results[-1] >= out.lower) & (results[-1] <= out.upper)).all())
        assert float((out.upper - out.lower).sum()) < 0.95 * float((wide.upper - wide.lower).sum())


def test_one_linear_layer_is_bounded_by_the_dual_norm() -> None:
    g = torch.Generator().manual_seed(3)
    weight, bias = torch.randn(4, 5, generator=g), torch.randn(4, generator=g)
    b = Builder((5,), "one")
    b.relu(b.linear(0, weight, bias))
    network = b.build()
    ball = Ball(np.linspace(-1, 1, 5), np.full(5, 0.2))
    (low, high) = next(iter(boxed(network, ball, 1).bounds.values()))
    middle = weight.double() @ torch.tensor(ball.centre.tolist(), dtype=torch.float64) + bias
    length = 0.2 * weight.double().square().sum(1).sqrt()
    unknown = (middle - weight.double().abs().sum(1) * 0.2 < 0) & (middle + weight.double().abs().sum(1) * 0.2 > 0)
    assert bool(unknown.any())  # of the others the sign is known by intervals
    torch.testing.assert_close(low[0][unknown], (middle - length)[unknown], rtol=0, atol=1e-12)
    torch.testing.assert_close(high[0][unknown], (middle + length)[unknown], rtol=0, atol=1e-12)
    assert bool((low[0] <= middle - length).all() and (high[0] >= middle + length).all())


@pytest.mark.parametrize("seed", range(3))
def test_the_dual_is_not_above_what_an_lp_code_finds_with_tangents_of_the_ball(seed: int) -> None:
    """HiGHS minimises over the Planet relaxation and a polytope that lies in the ball: that minimum is no less than any bound."""
    network, node = dense(seed, (3, 6, 5, 2)), len(dense(seed, (3, 6, 5, 2)).ops) - 1
    ball = Ball.of(np.random.default_rng(seed).normal(size=3), 0.4)
    within = boxed(network, ball, 5)
    relaxation = within.relaxation()
    row = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    dual = SlopeDual(relaxation, node, row, list(network.relus), {})
    slopes, _ = dual.named(ascend(dual, dual.start(), 60).parameters)
    bound = float(relaxation.backward(node, row, slopes, charge=True).value)
    bounds = {r: (low[0], high[0]) for r, (low, high) in relaxation.bounds.items()}
    # The box of half axes r / sqrt(n) lies in the ball; so do its pushed copies, scaled to the border.
    inner = 0.4 / math.sqrt(3)
    centre = torch.tensor(ball.centre.tolist(), dtype=torch.float64)
    assert bound <= planet_lp(network, centre - inner, centre + inner, bounds, node).minimise(row[0]).value + 1e-9
    values = network(points(ball, 20000, seed)) @ row[0]
    assert bound <= float(values.min())
    # A verdict about a level below the bound is a proof; one above what samples reach is none.
    low, high = ball.box
    prop = Property.of(low, high, row.numpy(), [bound - 1e-3])
    proved = Property(tuple(type(c)(c.lower, c.upper, c.matrix, c.right, c.strict, ball=ball) for c in prop.clauses))
    assert verify(network, proved, timeout=20).status == "unsat"


@pytest.mark.parametrize("seed", range(4))
def test_verdicts_agree_with_samples(seed: int) -> None:
    network = dense(seed, (3, 6, 5, 2))
    ball = Ball.of(np.random.default_rng(seed).normal(size=3), 0.5)
    label = int(network(torch.tensor(ball.centre.tolist(), dtype=torch.float64)[None]).argmax())
    margins = network(points(ball, 40000, seed)) @ torch.tensor([1.0, -1.0], dtype=torch.float64) * (1 if label == 0 else -1)
    least = float(margins.min())
    row = np.array([[1.0, -1.0]]) * (1 if label == 0 else -1)
    for shift, status in ((-0.02, "unsat"), (0.02, "sat")):
        box = Property.of(*ball.box, row, [least + shift]).clauses[0]
        prop = Property((type(box)(box.lower, box.upper, box.matrix, box.right, box.strict, ball=ball),))
        verdict = verify(network, prop, timeout=20)
        assert verdict.status == status
        if verdict.x is not None:
            assert ball.holds(verdict.x.astype(np.float64))
        else:
            assert 0 < verdict.bound <= 0.02 + 1e-9
        assert status == "unsat" or verify(network, prop, timeout=0.5, attack=False).status in ("unknown", "timed-out")


def test_points_of_the_box_outside_of_the_ball_are_no_counterexamples() -> None:
    b = Builder((2,), "sum")
    b.linear(b.relu(b.linear(0, torch.eye(2), torch.ones(2))), torch.ones(1, 2), torch.zeros(1))
    network = b.build()  # x0 + x1 + 2 near zero: at least 2 - sqrt 2 r in the ball and 2 - 2 r in its box
    ball = Ball.of(np.zeros(2), 0.5)
    box = Property.of(*ball.box, np.ones((1, 1)), [1.2]).clauses[0]
    inside = Property((type(box)(box.lower, box.upper, box.matrix, box.right, box.strict, ball=ball),))
    assert verify(network, Property((box,))).status == "sat"
    assert verify(network, inside).status == "unsat"

    def run(x: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.array([x.sum() + 2], dtype=np.float32)

    corner = np.full(2, -0.45, np.float32)
    assert confirm(run, corner, Property((box,))) and not confirm(run, corner, inside)
    near = Property((type(box)(box.lower, box.upper, box.matrix, np.array([1.31]), box.strict, ball=ball),))
    found = find_counterexample(network, near)
    assert found is not None and ball.holds(found.x.astype(np.float64))


def test_a_ball_holds_no_point_that_rounding_may_have_moved_in() -> None:
    ball = Ball(np.zeros(3), np.array([0.5, 2.0, 0.0]))
    assert ball.holds(np.zeros(3)) and ball.holds(np.array([0.3, 1.5, 0.0]))
    assert not ball.holds(np.array([0.5, 0.0, 0.0])) and not ball.holds(np.array([0.0, 0.0, 1e-300]))
    assert not ball.holds(np.array([0.4, 1.3, 0.0]))
    for given, error in ((([0.0], [-1.0]), ModelError), (([0.0], [1.0, 1.0]), ShapeError), (([np.nan], [1.0]), NonFiniteError)):
        with pytest.raises(error):
            Ball(np.array(given[0]), np.array(given[1]))


def test_robust_accuracy_and_radii_in_the_euclidean_norm() -> None:
    network, images, labels = digits.load()
    images, labels = images[:4], labels[:4]
    wide = robust_accuracy(network, images, labels, 0.3, norm="l2", timeout=1)
    # A ball of that radius holds the box of a radius 8 times as small, and lies in the box of its own.
    inner = robust_accuracy(network, images, labels, 0.3 / 8, timeout=1)
    outer = robust_accuracy(network, images, labels, 0.3, timeout=1)
    for own, small, large in zip(wide.results, inner.results, outer.results, strict=True):
        assert not (own.status == "verified" and small.status == "attacked")
        assert not (own.status == "attacked" and large.status == "verified")
        if own.x is not None:
            assert np.linalg.norm(own.x - images[own.image].numpy().ravel()) <= 0.3
    assert wide.count("verified") > 0 and wide.count("verified") > outer.count("verified")
    radii = certified_radii(network, images[:2], labels[:2], most=1.0, precision=1 / 16, norm="l2", timeout=0.1)
    for radius in radii:
        assert 0 < radius.certified < radius.attacked
        if radius.x is None:
            continue
        change = radius.x.astype(np.float64) - images[radius.image].numpy().ravel()
        assert math.isclose(np.linalg.norm(change), radius.attacked, rel_tol=1e-6)
    with pytest.raises(OptionError, match="norm"):
        robust_accuracy(network, images, labels, 0.3, norm="l1")
    with pytest.raises(OptionError, match="at most 8"):
        certified_radii(network, images, labels, most=9.0, norm="l2")
    ball = Ball.of(images[0].numpy().ravel(), 0.1)
    with pytest.raises(OptionError, match="ball"):
        verify(network, Property.robustness(*ball.box, int(labels[0]), 10, ball=ball), proof=True)


def test_linear_functions_over_a_ball_and_a_box_are_bounded_by_their_minimum() -> None:
    """The minimum by bisection of the multiplier: over the box, the minimiser's distance falls as the multiplier grows."""
    rng, shape = np.random.default_rng(0), (50, 9)
    y, centre, axes = rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4, shape), rng.random(shape), rng.uniform(0.05, 0.6, shape)
    axes[:, 0], y[0], y[1, 1:] = 0.0, 0.0, 0.0
    centre[:, 1], centre[:, 2] = 0.0, 1.0
    lower, upper = np.maximum(centre - axes, 0), np.minimum(centre + axes, 1)
    balls = Balls(torch.from_numpy(centre), torch.from_numpy(axes))
    value, size, x = balls.least(*(torch.from_numpy(t) for t in (y, lower, upper)))

    def at(t: float, k: int) -> tuple[float, float]:
        off = np.clip(-y[k] * axes[k] ** 2 / t, lower[k] - centre[k], upper[k] - centre[k])
        used = float((np.divide(off, axes[k], out=np.zeros(9), where=axes[k] > 0) ** 2).sum())
        return float(y[k] @ (centre[k] + off)), used

    for k in range(len(y)):
        low, high = 1e-12, 1e6
        for _ in range(200):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if at(middle, k)[1] <= 1 else (middle, high)
        truth = at(high, k)[0]  # of a feasible point
        assert float(value[k]) <= truth + 1e-13 * float(size[k])
        assert float(value[k]) >= truth - 1e-6 * (1 + abs(truth)) or at(1e-12, k)[1] <= 1
        # The box alone decides where all its corners lie in the ball.
        plain = float(np.minimum(y[k] * lower[k], y[k] * upper[k]).sum())
        assert max(plain, float(value[k])) >= truth - 1e-6 * (1 + abs(truth))
    assert bool(((x >= torch.from_numpy(lower) - 1e-12) & (x <= torch.from_numpy(upper) + 1e-12)).all())
    small = balls.to(torch.float32).least(*(torch.from_numpy(t).float() for t in (y, lower, upper)))[0]
    assert bool(small.isfinite().all()) and torch.allclose(small.double(), value, rtol=1e-4, atol=1e-4 * float(size.max()))


def test_proofs_about_balls_are_refused() -> None:
    b = Builder((2,), "sum")
    b.linear(b.relu(0), torch.eye(2))
    network, prop = b.build(), Property.of([-2, -2], [2, 2], [[-1.0, -1.0]], [-3.0])
    assert check_proof(network, prop, [{"counterexample": [2.0, 2.0]}])["status"] == "sat"
    (clause,) = prop.clauses
    with_ball = Property((replace(clause, ball=Ball.of([0.0, 0.0], 0.5)),))
    with pytest.raises(FormatError, match="a ball"):
        check_proof(network, with_ball, [{"counterexample": [2.0, 2.0]}])


def test_activations_of_the_inputs_themselves_are_bounded_over_balls() -> None:
    b = Builder((3,), "inputs")
    b.linear(b.relu(0), torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]), torch.tensor([-1.0, 0.0]))
    network = b.build()
    # The largest sum of positive parts in a ball around zero is the radius times the root of three.
    for radius, status in ((0.99 / math.sqrt(3), "unsat"), (1.01 / math.sqrt(3), "sat")):
        prop = Property.robustness([-1] * 3, [1] * 3, 1, 2, ball=Ball.of([0.0] * 3, radius))
        assert verify(network, prop, timeout=30).status == status


def test_balls_around_networks_whose_activations_cancel() -> None:
    b = Builder((2,), "cancelling")
    both = b.relu(b.linear(0, torch.tensor([[1.0, 1.0], [-1.0, -1.0]])))
    b.linear(both, torch.tensor([[1.0, -1.0], [0.0, 0.0]]), torch.tensor([0.0, 0.5]))  # x + y against a half
    network = b.build()
    for radius, status in ((0.35, "unsat"), (0.36, "sat")):  # a half over the root of two
        prop = Property.robustness([-1, -1], [1, 1], 1, 2, ball=Ball.of([0.0, 0.0], radius))
        assert verify(network, prop, timeout=30).status == status


def test_balls_of_images_hold_all_pixels_within_the_distance() -> None:
    rng = np.random.default_rng(8)
    pixels = rng.random((200, 3)).round(3)
    for image, mean, std in zip(pixels, rng.random(200), rng.uniform(0.1, 0.5, 200), strict=True):
        ball = image_ball(torch.from_numpy((image - mean) / std), 1e-3, [mean], [std])
        edge = [(Fraction(p) + Fraction(1e-3) * (k == 0) - Fraction(mean)) / Fraction(std) for k, p in enumerate(image)]
        assert sum(((x - Fraction(c)) / Fraction(a)) ** 2 for x, c, a in zip(edge, ball.centre, ball.axes, strict=True)) <= 1

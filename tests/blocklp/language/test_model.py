"""The modelling language, and every kind of bad input."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp.errors import (
    DeviceError,
    ModelError,
    NonFiniteError,
    OptionError,
    OracleError,
    ScopeError,
    ShapeError,
)
from blocklp.oracles import AtMostOne, Edge, Knapsack, Simplex


def pair_model(batch: int = 1) -> tuple[bl.Model, bl.Variable, bl.Variable]:
    m = bl.Model(batch)
    y = m.variable("y", 3, lower=0, upper=1)
    z = m.variable("z", 2, lower=0, upper=1)
    m.add(Edge(), scope=[y[[0, 1]], y[[1, 2]], z], name="pairs")
    return m, y, z


def test_expressions_evaluate_to_their_coefficients() -> None:
    m, y, z = pair_model(2)
    weights = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    expression = weights @ y - (2 * z).sum() / 4 + 7 + (y[0] - y[2]) - (1 - y[1:].sum())
    cost, offset = expression.evaluate()
    assert torch.allclose(cost, torch.tensor([[2.0, 3.0, 3.0, -0.5, -0.5], [5.0, 6.0, 6.0, -0.5, -0.5]]).double())
    assert offset.tolist() == [6.0, 6.0]


def test_numpy_arrays_on_either_side() -> None:
    m, y, z = pair_model()
    weights = np.array([1.0, 2.0, 3.0])
    left, right = (weights @ y).evaluate()[0], (y @ weights).evaluate()[0]
    assert left.tolist() == right.tolist() == (weights * y).sum().evaluate()[0].tolist() == [[1, 2, 3, 0, 0]]


def test_parameters_change_between_solves() -> None:
    m, y, z = pair_model()
    price = m.parameter("price", 3)
    m.minimize(price @ y + 2 * z.sum())
    solver = m.compile()
    with pytest.raises(ModelError, match=r"price.*no value"):
        solver.solve()
    for weights in ([-1.0, -1.0, -1.0], [1.0, -3.0, 1.0], [5.0, 5.0, 5.0]):
        price.value = weights
        brute = min(
            sum(w * b for w, b in zip(weights, bits, strict=True)) + 2 * (bits[0] * bits[1] + bits[1] * bits[2])
            for bits in np.ndindex(2, 2, 2)
        )
        # A path is a tree, on which the relaxation is tight.
        assert solver.solve(tol=1e-7).bound.item() == pytest.approx(brute, abs=1e-6)


def test_maximising_gives_upper_bounds() -> None:
    m = bl.Model()
    x = m.variable("x", 3, lower=0, upper=1)
    m.add(AtMostOne(3), x)
    m.maximize(torch.tensor([1.0, 3.0, 2.0]) @ x + 10)
    solution = m.solve(tol=1e-9)
    assert solution.bound.item() == pytest.approx(13, abs=1e-7)
    assert solution.bound.item() >= 13 - 1e-9 and solution.safe_bound.item() >= 13
    assert solution.primal.item() <= 13 + 1e-9
    assert solution.status == (bl.Status.OPTIMAL,)


def test_variables_in_no_block_get_their_box() -> None:
    m, y, z = pair_model()
    alone = m.variable("alone", (2, 2), lower=[[-1, -2], [0, 3]], upper=[[1, 2], [0, 4]])
    m.minimize((torch.tensor([[1.0, -1.0], [1.0, 1.0]]) * alone).sum() + y.sum())
    solution = m.solve(tol=1e-9)
    assert solution.bound.item() == pytest.approx(-1 - 2 + 0 + 3)
    assert solution.x[alone].tolist() == [[[-1, 2], [0, 3]]]


def test_scalar_variables_and_scalar_bounds() -> None:
    m, y, z = pair_model(2)
    t = m.variable("t", lower=-1, upper=[2, 3])
    m.minimize(t * torch.tensor([-1.0, 1.0]) + y.sum())
    solver = m.compile()
    assert solver.solve(tol=1e-9).bound.tolist() == pytest.approx([-2, -1])
    assert solver.solve(tol=1e-9, bounds={t: (0, 1), y[1]: (1, 1)}).bound.tolist() == pytest.approx([0, 1])


def test_bounds_that_cut_a_block_are_kept() -> None:
    m = bl.Model()
    x = m.variable("x", 3, lower=0, upper=[0.4, 0.3, 1])
    m.add(AtMostOne(3), x)
    m.minimize(-(x.sum()) - x[0] - x[1])
    assert m.solve(tol=1e-6).bound.item() == pytest.approx(-0.8 - 0.6 - 0.3, abs=1e-5)


def test_a_model_prints_its_parts_and_tells_its_size() -> None:
    m, y, z = pair_model()
    text = str(m)
    assert re.search(r"y\[3\] +0 +1\n", text) and re.search(r"pairs +2 +3 +Edge\(", text)
    assert m.sizes() == {"batch": 1, "variables": 5, "blocks": {"pairs": 2}, "copies": 6, "coupling": {1: 4, 2: 1}, "rows": 0}


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        (lambda m, y, z: m.minimize(torch.tensor([1.0, math.nan, 0.0]) @ y), NonFiniteError, "nan"),
        (lambda m, y, z: m.minimize(math.inf * z.sum()), NonFiniteError, "inf"),
        (lambda m, y, z: m.minimize(torch.ones(4) @ y), ShapeError, r"\(4,\)"),
        (lambda m, y, z: m.minimize(torch.ones(3, 3, 3) @ y), ShapeError, "shape"),
        (lambda m, y, z: m.minimize(y), ShapeError, "sum"),
        (lambda m, y, z: y[5], ScopeError, "out of range"),
        (lambda m, y, z: y[torch.tensor([0.5])], ScopeError, "integers"),
        (lambda m, y, z: m.add(Edge(), [y[[0]], y[[0]], z[[0]]]), ScopeError, "twice"),
        (lambda m, y, z: m.add(Edge(), y[torch.tensor([[0, 1], [1, 2], [2, 0]])]), ScopeError, r"gives 2; the last axis .* x\.T"),
        (lambda m, y, z: m.add(Edge(), y[torch.arange(3).reshape(3, 1)]), ScopeError, r"gives 1; the last axis .* x\.T"),
        (lambda m, y, z: m.add(Edge(), [y[[0, 1]], y[[1]], z[[0]]]), ScopeError, "one entry a block"),
        (lambda m, y, z: m.add(Edge(), y[:2]), ScopeError, "3 variables"),
        (lambda m, y, z: m.add(Edge(), bl.Model().variable("q", 3, lower=0, upper=1)), ScopeError, "another model"),
        (lambda m, y, z: m.add("Edge", y), ModelError, "BlockType"),
        (lambda m, y, z: m.variable("u", 2, lower=0, upper=math.inf), ModelError, "unbounded"),
        (lambda m, y, z: m.variable("u", 2, lower=None, upper=1), ModelError, "unbounded"),
        (lambda m, y, z: m.variable("u", 2, lower=[0, 2], upper=1), ModelError, r"u\[1\] is above"),
        (lambda m, y, z: m.variable("y", 2, lower=0, upper=1), ModelError, "already"),
        (lambda m, y, z: m.variable("u", 0, lower=0, upper=1), ShapeError, "positive"),
        (lambda m, y, z: bl.Model(0), ModelError, "batch"),
        (lambda m, y, z: m.compile(), ModelError, "objective"),
        (lambda m, y, z: y * y, ModelError, "not linear"),
        (lambda m, y, z: m.add(Edge(), [y[[0]], y[[1]], z[[0]]], name="pairs"), ModelError, "already"),
        (lambda m, y, z: m.add(Edge(), [y[[0]], y[[1]], z[[0]]], name="box"), ModelError, "kept"),
        (lambda m, y, z: bl.FiniteVertices([[0, 0], [0, 0]]), ModelError, "repeats"),
        (lambda m, y, z: bl.FiniteVertices([[0, math.nan]]), ModelError, "NaN"),
        (lambda m, y, z: bl.Box([1.0], [0.0]), ModelError, "above"),
    ],
)
def test_bad_statements_raise_at_once(bad: object, error: type[Exception], words: str) -> None:
    m, y, z = pair_model()
    with pytest.raises(error, match=words) as caught:
        bad(m, y, z)  # type: ignore[operator]
    assert isinstance(caught.value, bl.BlocklpError)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "simplex"}, "unknown method 'simplex'; choose auto, prox"),
        ({"passes": 0}, "passes"),
        ({"time_limit": 0}, "time_limit"),
        ({"tol": [1, 2]}, "tol"),
        ({"cutoff": math.nan}, "cutoff"),
        ({"check_every": 1.5}, "check_every"),
        ({"dtype": torch.float16}, "float16"),
    ],
)
def test_bad_options_raise_at_once(options: dict[str, object], words: str) -> None:
    m, y, z = pair_model()
    m.minimize(y.sum())
    with pytest.raises(OptionError, match=words):
        m.solve(**options)


@pytest.mark.parametrize(
    "make", [lambda: bl.methods.Prox(eta=-1.0), lambda: bl.methods.ProxBC(inner=0), lambda: bl.methods.Adam(beta1=1.0)]
)
def test_bad_settings_of_a_method_raise(make: object) -> None:
    with pytest.raises(OptionError):
        make()  # type: ignore[operator]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_missing_cuda_is_named() -> None:
    m, y, z = pair_model()
    m.minimize(y.sum())
    with pytest.raises(DeviceError, match="device='cpu'"):
        m.solve(device="cuda")


class Broken(bl.BlockType):
    dim = 2

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        return self.answer(cost)  # type: ignore[operator,no-any-return]

    def constraints(self) -> bl.Constraints:
        return bl.Constraints.rows([[1.0, 1.0]], [-math.inf], [1.0])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda c: c, "point, value"),
        (lambda c: (c[..., :1], c.sum(-1)), r"returned point .*must return"),
        (lambda c: (c * math.nan, c.sum(-1)), "NaN"),
        (lambda c: (torch.ones_like(c), c.sum(-1)), "violates its own constraints"),
        (lambda c: (torch.zeros_like(c), c.sum(-1) + 1), "not the cost of its point"),
        (lambda c: ((c > 0).to(c) * torch.ones(2), c.clamp(min=0).sum(-1)), "cheaper at another cost"),
    ],
)
def test_wrong_oracles_are_refused_where_they_are_declared(answer: object, words: str) -> None:
    m, y, z = pair_model()
    kind = Broken(answer)
    for _ in range(2):  # what is refused once is refused again
        with pytest.raises(OracleError, match=words):
            m.add(kind, y[:2])


def test_a_type_that_changes_between_models_is_asked_again() -> None:
    """Its points then leave the bounds of the variables, which need a box of their own."""

    class Square(bl.BlockType):
        reach = 1.0

        def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
            point = -self.reach * torch.sign(cost)
            return point, (point * cost).sum(-1)

    class Other(Edge):
        """What a class says of itself does not hold for those below it."""

    assert Edge.stateless and not Other.stateless
    kind = Square()
    for kind.reach in (1.0, 3.0):
        m = bl.Model()
        y = m.variable("y", 3, lower=-1, upper=1)
        m.add(kind, y[[[0, 1], [1, 2]]])
        m.minimize(np.array([1.0, -2.0, 3.0]) @ y)
        assert m.solve(tol=1e-6).bound.item() == pytest.approx(-6)


def test_a_type_that_models_share_is_asked_again_for_other_shapes() -> None:
    """Right for two blocks, wrong for three."""
    kind = Broken(lambda c: (torch.zeros_like(c), c.new_zeros(1, 2)))
    for _ in range(2):
        m = bl.Model()
        y = m.variable("y", 6, lower=0, upper=1)
        m.add(kind, y[[[0, 1], [2, 3]]])
        with pytest.raises(OracleError, match="returned point"):
            m.add(kind, y[[[0, 1], [2, 3], [4, 5]]])


def test_sums_along_an_axis_are_those_of_numpy() -> None:
    m = bl.Model(batch=2)
    x = m.variable("x", (3, 4), lower=0, upper=1)
    cost = np.random.default_rng(0).normal(size=(2, 3, 4))
    m.minimize(x.sum())
    point = np.random.default_rng(1).uniform(size=(2, 12))
    for axis in (0, 1, -1, -2):
        expression = (torch.from_numpy(cost) * x + 2.0).sum(axis)
        total = (cost * point.reshape(2, 3, 4) + 2.0).sum(axis if axis < 0 else axis + 1)
        assert expression.shape == total.shape[1:]
        weight = np.arange(1.0, 1 + expression.shape[0])
        coefficients, constant = (weight * expression).sum().evaluate()
        np.testing.assert_allclose((coefficients.numpy() * point).sum(1) + constant.numpy(), total @ weight)
    with pytest.raises(ShapeError, match="axis 2"):
        x.sum(2)
    with pytest.raises(ModelError, match="parameters"):
        (m.parameter("c", (3, 4)) * x).sum(0)


def test_rows_of_arrays_broadcast_as_numpy_does() -> None:
    draw = np.random.default_rng(2)
    m = bl.Model(batch=2)
    x, y, z = (m.variable(name, (3, 4), lower=0, upper=1) for name in "xyz")
    m.minimize(x.sum())
    points = draw.uniform(size=(2, 36))
    a, b, _ = points.reshape(2, 3, 3, 4).swapaxes(0, 1)
    side, sides = draw.normal(size=(3, 4)), draw.normal(size=(2, 3, 4))
    cases = [
        (x <= side, a - side),
        (x + y <= sides, a + b - sides),
        (x[:, :-1] + y[:, 1:] - x[:, 1:] <= side[:, :1], a[..., :-1] + b[..., 1:] - a[..., 1:] - side[:, :1]),
        (x - 2 * y[:, :1] <= side[0], a - 2 * b[..., :1] - side[0]),
        (x <= y[:1] + 1, a - b[:, :1] - 1),
        (x[0] - y[:, :1] <= 0, a[:, :1] - b[..., :1]),
        (x.sum() <= y, a.sum((1, 2), keepdims=True) - b),
        (np.ones((5, 3)) @ x[:, 1] + 0 <= np.ones(5), a[..., 1].sum(1, keepdims=True) - np.ones(5)),
    ]
    for stated, truth in cases:
        values = points @ stated.matrix.toarray().T
        np.testing.assert_allclose(values - stated.upper.numpy(), truth.reshape(2, -1), atol=1e-12)
    np.testing.assert_array_equal(m.solve().value((x - y[:, :1]).rows()), m.solve().value(x - y[:, :1]))
    for wrong, words in (
        (lambda: x <= np.ones(12), r"shape \(12,\); it must broadcast to \(3, 4\)"),
        (lambda: x <= y[:2], r"rows of shapes \(3, 4\) and \(2, 4\)"),
        (lambda: x + y[:2], r"expressions of shapes \(3, 4\) and \(2, 4\)"),
    ):
        with pytest.raises(ShapeError, match=words):
            wrong()
    with pytest.raises(ModelError, match="compare it with the other side"):
        x.sum() - y


def test_a_solver_takes_up_other_data_of_blocks() -> None:
    """Another capacity between solves, warm started, as if the model had been built with it; for several models too."""
    weights = torch.arange(1.0, 6.0, dtype=torch.float64)

    def model(capacity: float) -> bl.Model:
        m = bl.Model()
        x = m.variable("x", (3, 5), lower=0, upper=1)
        m.add(Simplex(5), x)
        m.add(Knapsack(torch.ones(3), capacity), x.T, name="room")
        m.minimize((weights * x).sum())
        return m

    m, other = model(1.0), model(2.0)
    alone, both = m.compile(), bl.compile([m, other])
    before = alone.solve(tol=1e-8)
    assert before.bound.item() == pytest.approx(6.0)
    m.replace("room", Knapsack(torch.ones(3), [0.5, 1.5, 3.0, 1.0, 1.0]))
    after = alone.solve(tol=1e-8, warm_start=before)
    assert after.bound.item() == pytest.approx(float(bl.reference(m).objective), rel=1e-7) and after.bound != before.bound
    assert both.solve(tol=1e-8).bound.tolist() == pytest.approx([after.bound.item(), 4.0], rel=1e-6)
    with pytest.raises(ModelError, match="'room' differ from the type given in class"):
        m.replace("room", Simplex(3))
    with pytest.raises(ModelError, match="'room' differ from the type given in dim"):
        m.replace("room", Knapsack(torch.ones(4), 1.0))
    with pytest.raises(ShapeError, match="room: weights has leading dimensions"):
        m.replace("room", Knapsack(torch.ones(4, 3), 1.0))
    with pytest.raises(ModelError, match="no blocks named 'rooms'"):
        m.replace("rooms", Simplex(3))
    m.replace("room", Knapsack(torch.ones(3), 1.0))
    m.variable("y", 2, lower=0, upper=1)
    with pytest.raises(ModelError, match="the model was changed since it was compiled"):
        alone.solve()

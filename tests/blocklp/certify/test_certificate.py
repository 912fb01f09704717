import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.certify.certificate import verify_certificate
from blocklp.certify.exact_arithmetic import Exact, rounded_down
from blocklp.errors import ModelError, NonFiniteError, OracleError, ShapeError
from blocklp.general_solvers.solvers import reference
from blocklp.oracles import AtMostOne, Edge, Knapsack, Pairwise, Polytope, Simplex, Triangle


def pairs(rng: np.random.Generator, batch: int = 2, maximize: bool = False, n: int = 8) -> bl.Model:
    m = bl.Model(batch)
    y = m.variable("y", n, lower=0, upper=1)
    i, j = np.triu_indices(n, 1)
    z = m.variable("z", len(i), lower=0, upper=1)
    m.add(Edge(), [y[i], y[j], z], name="pairs")
    objective = rng.standard_normal((batch, n)) @ y + rng.standard_normal((batch, len(i))) @ z + 0.1
    (m.maximize if maximize else m.minimize)(objective)
    return m


def all_types(rng: np.random.Generator, maximize: bool) -> bl.Model:
    m = bl.Model(batch=2)
    x = m.variable("x", 14, lower=np.r_[np.zeros(12), -1, -2], upper=np.r_[np.ones(11), 0.4, 2, 2])
    m.add(Edge(), x[torch.tensor([[0, 1, 2], [2, 3, 4]])])
    m.add(Triangle(), x[:6])
    m.add(Pairwise(2, 2), x[2:10])
    m.add(Simplex(3), x[torch.tensor([[0, 4, 8], [1, 5, 9]])])
    m.add(AtMostOne(3), x[torch.tensor([[3, 10, 11]])])
    m.add(Knapsack(rng.random((2, 2, 4)), rng.random((2, 2)) + 0.5), x[torch.tensor([[8, 9, 10, 11], [0, 3, 6, 11]])])
    m.add(bl.Box([-0.5, 0.0], [1.0, 0.9]), x[12:])
    m.add(Polytope([[1.0, 1.0, 1.0]], [-math.inf], [1.2], [0, 0, -1], [1, 1, 2]), x[10:13])
    (m.maximize if maximize else m.minimize)(rng.standard_normal((2, 14)) @ x)
    return m


@pytest.mark.parametrize("maximize", [False, True])
def test_edges_are_exact(maximize: bool) -> None:
    m = pairs(np.random.default_rng(1), maximize=maximize)
    solution = m.solve(passes=300)
    certificate = verify_certificate(m, solution.state)
    assert certificate.independent and certificate.exact
    assert (certificate.bound - solution.bound).abs().max() < 1e-9
    assert certificate.proves(solution.safe_bound).all()
    excess = (certificate.bound - reference(m).objective) * (-1 if maximize else 1)
    assert excess.max() < 1e-9
    assert not certificate.infeasible.any()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("maximize", [False, True])
def test_all_types(seed: int, maximize: bool) -> None:
    m = all_types(np.random.default_rng(seed), maximize)
    solution = m.solve(passes=40)
    optimum = reference(m)
    certificate = verify_certificate(m, solution.state)
    assert certificate.independent and not certificate.exact
    for row, status in enumerate(optimum.status):
        if status == "optimal":
            assert certificate.bound[row] == pytest.approx(float(solution.bound[row]), abs=1e-7)
            excess = (certificate.bound[row] - optimum.objective[row]) * (-1 if maximize else 1)
            assert excess < 1e-8 and not certificate.infeasible[row]


@pytest.mark.parametrize("maximize", [False, True])
def test_wrong_multipliers_prove_less_and_nothing_false(maximize: bool) -> None:
    rng = np.random.default_rng(2)
    m = pairs(rng, maximize=maximize)
    solution = m.solve(passes=300)
    optimum, sign = reference(m).objective, -1 if maximize else 1
    good = solution.duals["pairs"].numpy()
    for scale in (1e-3, 1.0, 1e6):
        spoiled = good + scale * rng.standard_normal(good.shape)
        certificate = verify_certificate(m, {"pairs": spoiled})
        assert (sign * certificate.bound < sign * solution.bound).all()
        assert not certificate.proves(solution.bound).any()
        assert not certificate.infeasible.any()
    assert not verify_certificate(m, solution.state).proves(optimum + sign * 1e-6).any()


def test_wrong_multipliers_of_all_types_prove_nothing_false() -> None:
    rng = np.random.default_rng(5)
    m = all_types(rng, maximize=False)
    optimum = reference(m).objective
    for scale in (1e-2, 1.0, 100.0):
        made = {b: scale * rng.standard_normal((2, *b.scope.shape)) for b in m.blocks}
        certificate = verify_certificate(m, made)
        assert (certificate.bound <= optimum + 1e-8).all()


def test_value_by_hand() -> None:
    """Multipliers (-1, -1, 5) and residual (-1, 0, 0) on [0, 1]: -1 from the block, -1 from the charge."""
    m = bl.Model()
    x = m.variable("x", 3, lower=0, upper=1)
    handle = m.add(Edge(), x)
    m.minimize(torch.tensor([-2.0, -1.0, 5.0]) @ x + 0.25)
    certificate = verify_certificate(m, {handle: [[[-1.0, -1.0, 5.0]]]})
    assert certificate.bound.tolist() == [-1.75]
    assert "optimum >= -1.75" in repr(certificate) and "exactly" in repr(certificate)
    # Without an entry the multipliers are zero, and the charge pays for all.
    assert verify_certificate(m, {}).bound.tolist() == [-2.75]


def test_rounding_goes_down() -> None:
    """The sum 1 + 2^-60 - 1 + ... is lost in floating point, and its sign decides the claim."""
    m = bl.Model()
    x = m.variable("x", 3, lower=[1, 1, 1], upper=1)
    m.minimize(torch.tensor([1.0, -(2.0**-60), -1.0], dtype=torch.float64) @ x)
    certificate = verify_certificate(m, {})
    assert certificate.bound.item() == -(2.0**-60)
    assert not certificate.proves(0.0).any()


@pytest.mark.parametrize("fixed", [(1, 1), (0, 0), (0.2, 0.6)])
def test_bounds(fixed: tuple[float, float]) -> None:
    m = pairs(np.random.default_rng(3))
    tighter = {m.variables["y"][[0, 3]]: fixed}
    solution = m.solve(passes=300, bounds=tighter)
    certificate = verify_certificate(m, solution.state, bounds=tighter)
    assert (certificate.bound >= solution.bound - 1e-9).all()
    assert (certificate.bound <= reference(m, bounds=tighter).objective + 1e-9).all()


def test_infeasible_by_an_empty_vertex_list() -> None:
    m = pairs(np.random.default_rng(4))
    y, z = m.variables["y"], m.variables["z"]
    certificate = verify_certificate(m, {}, bounds={y[[0, 1]]: (1, 1), z[[0]]: (0, 0)})
    assert certificate.infeasible.all() and certificate.bound.tolist() == [math.inf] * 2
    assert certificate.proves(1e300).all() and "infeasible" in repr(certificate)


@pytest.mark.parametrize("kind", [Simplex, lambda size: bl.FiniteVertices(np.eye(size))])
def test_infeasible_by_multipliers(kind: type[Simplex]) -> None:
    """Exactly one of x1, x2, of x1, x3 and of x2, x3, and a fourth block that wants one of all three."""
    m = bl.Model()
    x = m.variable("x", 3, lower=0, upper=1)
    m.add(kind(2), x[torch.tensor([[0, 1], [0, 2], [1, 2]])], name="two")
    m.add(kind(3), x, name="three")
    m.minimize(x.sum())
    ray = {"two": 10.0 * torch.ones(1, 3, 2), "three": -20.0 * torch.ones(1, 1, 3)}
    assert verify_certificate(m, ray).infeasible.all()
    assert not verify_certificate(m, {}).infeasible.any()
    solution = m.solve(passes=300)
    assert solution.status[0] == bl.Status.INFEASIBLE
    assert verify_certificate(m, solution.state).infeasible.all()


@pytest.mark.parametrize(("kind", "fixing"), [(AtMostOne(3), (1, 1)), (Simplex(3), (0, 0)), (Knapsack([2, 2, 0], 3), (0.8, 1))])
def test_infeasible_by_an_empty_block(kind: bl.BlockType, fixing: tuple[float, float]) -> None:
    """No point of the block lies within the bounds, in the first instance only."""
    m = bl.Model(batch=2)
    x = m.variable("x", 3, lower=0, upper=1)
    m.add(kind, x)
    m.minimize(x.sum())
    lower, upper = (torch.tensor([[side] * 3, [other] * 3]) for side, other in zip(fixing, (0.0, 1.0), strict=True))
    certificate = verify_certificate(m, {}, bounds={x: (lower, upper)})
    assert certificate.infeasible.tolist() == [True, False]


class Secret(bl.BlockType):
    """The unit box, known by its oracle alone."""

    def __init__(self, scale: float = 1.0, error: float | None = None) -> None:
        self.scale, self.error = scale, error

    def min_oracle(self, cost: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        point = (cost < 0).to(cost)
        return point, (cost * point).sum(-1) * (1 if cost.abs().max() < 9 else self.scale)

    def value_error(self, cost: torch.Tensor) -> torch.Tensor | None:
        return None if self.error is None else torch.full(cost.shape[:2], self.error, dtype=cost.dtype)


def test_oracle_of_a_type_without_constraints_is_believed() -> None:
    m = bl.Model()
    x = m.variable("x", 2, lower=-3, upper=3)
    m.add(Secret(error=0.125), x, name="secret")
    m.minimize(x[0] - 2 * x[1])
    certificate = verify_certificate(m, {"secret": [[[1.0, -2.0]]]})
    assert not certificate.independent and not certificate.exact
    assert certificate.bound.tolist() == [-2.125]
    assert "believing" in repr(certificate)


class Hidden(bl.BlockType):
    """A table of vertices that only the oracle knows; ``admits`` is whether it states its rounding error."""

    def __init__(self, table: np.ndarray, admits: bool) -> None:
        self.table, self.admits = torch.tensor(table, dtype=torch.float64), admits

    def min_oracle(self, cost: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        value, row = (cost @ self.table.T).min(-1)
        return self.table[row], value

    def value_error(self, cost: torch.Tensor) -> torch.Tensor | None:
        return (cost.abs() @ self.table.abs().T).amax(-1) * 1e-15 if self.admits else None


@pytest.mark.parametrize(("admits", "maximize"), [(False, True), (True, False)])
def test_believed_oracles_prove_nothing_false(admits: bool, maximize: bool) -> None:
    """All variables are fixed at a vertex that two blocks share: the optimum is a sum of known floats."""
    rng = np.random.default_rng(7)
    for _ in range(20):
        dim = int(rng.integers(2, 6))
        tables = [np.round(rng.random((5, dim)), 2) for _ in range(2)]
        tables[1][0] = at = tables[0][0]
        m = bl.Model()
        x = m.variable("x", dim, lower=at, upper=at)
        for k, table in enumerate(tables):
            m.add(Hidden(table, admits), x, name=f"block{k}")
        cost = rng.standard_normal(dim)
        (m.maximize if maximize else m.minimize)(cost @ x)
        optimum = sum(Fraction(c) * Fraction(v) for c, v in zip(cost.tolist(), at.tolist(), strict=True))
        sign = -1 if maximize else 1
        # Multipliers that make the vertex the best of both blocks, as far as they can, and those of a solve.
        half = torch.as_tensor(cost / 2)[None, None]
        for duals in ({"block0": half, "block1": half}, m.solve(passes=30).state):
            certificate = verify_certificate(m, duals)
            assert not certificate.infeasible.any() and not certificate.independent
            assert sign * Fraction(certificate.bound.item()) <= sign * optimum


def test_believed_oracles_prove_infeasibility_beyond_an_allowance() -> None:
    m = bl.Model()
    x = m.variable("x", 2, lower=0, upper=1)
    m.add(Hidden(np.array([[1.0, 0.0], [0.0, 1.0]]), False), x, name="one")
    m.add(Hidden(np.array([[0.0, 0.0]]), False), x, name="none")
    m.minimize(x.sum())
    for size, proved in ((1.5 + 1e-7, False), (1.5 + 1e-4, True)):
        ray = {"one": size * torch.ones(1, 1, 2), "none": -size * torch.ones(1, 1, 2)}
        total = {k: v + 0.5 for k, v in ray.items()}
        assert verify_certificate(m, total).infeasible.tolist() == [proved]


@pytest.mark.parametrize("power", [-300, -30, -9, 20, 40, 280])
def test_costs_of_any_size_are_proved_as_well(power: int) -> None:
    """Also where each block has costs of a size of its own; nothing but the exponents of the multipliers changes."""
    rng = np.random.default_rng(3)
    m = all_types(rng, maximize=False)
    duals = {b.name: rng.standard_normal((2, *b.scope.shape)) for b in m.blocks}
    plain = verify_certificate(m, duals).bound
    factor = 2.0 ** round(power * math.log2(10))
    cost = m.objective.evaluate()[0]
    m.minimize((factor * cost) @ m.variables["x"])
    scaled = verify_certificate(m, {k: factor * v for k, v in duals.items()}).bound
    assert scaled.numpy() == pytest.approx(factor * plain.numpy(), rel=1e-9, abs=0)


@pytest.mark.parametrize("kind", ["knapsack", "polytope"])
def test_blocks_of_costs_of_different_size_are_proved_each_in_its_own(kind: str) -> None:
    """The tolerances of an LP solver are absolute: blocks of one LP get a unit each."""
    rng = np.random.default_rng(1)
    weights, powers = rng.random((4, 5)), np.array([1e-9, 1e6, 1.0, 1e-3])[:, None]
    capacity = 0.4 * weights.sum(1)
    m = bl.Model()
    x = m.variable("x", (4, 5), lower=0, upper=1)
    if kind == "knapsack":
        m.add(Knapsack(weights, capacity), x, name="one")
    else:
        m.add(Polytope(weights[:, None], np.full((4, 1), -np.inf), capacity[:, None], np.zeros(5), np.ones(5)), x, name="one")
    costs = -rng.random((4, 5)) * powers
    for b in range(4):  # a bound that is good for the largest block alone would hide what others lose
        own = np.where(np.arange(4)[:, None] == b, costs, 1e-3 * costs * powers[b] / powers)
        m.minimize((torch.as_tensor(own) * x).sum())
        value = sum(
            float(Knapsack(w, c).min_oracle(torch.as_tensor(o)[None, None])[1])
            for w, c, o in zip(weights, capacity, own, strict=True)
        )
        assert verify_certificate(m, {"one": own[None]}).bound.item() == pytest.approx(value, rel=1e-9, abs=0)


@pytest.mark.parametrize("seed", range(10))
def test_rows_with_entries_of_very_different_size_lose_nothing(seed: int) -> None:
    """Weights from 1e-6 to 1e6 in one row: most of an item is beyond the capacity, and LP solvers drop entries below 1e-9."""
    rng = np.random.default_rng(seed)
    weights = 10.0 ** rng.uniform(-6, 6, 6)
    capacity = float(np.sort(weights)[:2].sum() * rng.uniform(0.1, 0.9))
    costs = -(10.0 ** rng.uniform(-11, -8, 6))
    m = bl.Model()
    x = m.variable("x", 6, lower=0, upper=1)
    m.add(Knapsack(torch.as_tensor(weights), capacity), x, name="load")
    m.minimize(torch.as_tensor(costs) @ x)
    value = 0.0
    for j in np.argsort(costs / weights):  # the greedy rule is exact in one row
        part = min(1.0, capacity / weights[j])
        value, capacity = value + part * costs[j], capacity - part * weights[j]
    found = verify_certificate(m, {"load": costs[None, None]}).bound.item()
    assert found == pytest.approx(value, rel=1e-6, abs=0)


@pytest.mark.parametrize("reach", [1.0, 1e8, 1e21])
def test_wide_boxes_are_proved_as_well(reach: float) -> None:
    """A capacity in a box of any size, against the greedy optimum."""
    m = bl.Model()
    x = m.variable("x", 3, lower=0, upper=reach)
    m.add(Knapsack([1.0, 2.0, 1.0], 1.5 * reach, upper=reach), x, name="knapsack")
    m.minimize(torch.tensor([-3.0, -4.0, -1.0], dtype=torch.float64) @ x)
    duals = torch.tensor([[[-3.0, -4.0, -1.0]]], dtype=torch.float64)
    assert verify_certificate(m, {"knapsack": duals}).bound.item() == pytest.approx(-4 * reach, rel=1e-12)


def test_refusals() -> None:
    m = bl.Model()
    x = m.variable("x", 2, lower=0, upper=1)
    with pytest.raises(ModelError, match="no objective"):
        verify_certificate(m, {})
    m.add(Secret(math.nan), x, name="secret")
    m.minimize(x.sum())
    with pytest.raises(ModelError, match="no blocks named 'pair'"):
        verify_certificate(m, {"pair": torch.zeros(1, 1, 2)})
    with pytest.raises(ShapeError, match=r"shape \(1, 2\), need \(1, 1, 2\)"):
        verify_certificate(m, {"secret": torch.zeros(1, 2)})
    with pytest.raises(NonFiniteError, match="'secret' hold NaN"):
        verify_certificate(m, {"secret": torch.full((1, 1, 2), math.nan)})
    with pytest.raises(OracleError, match="not finite"):
        verify_certificate(m, {"secret": torch.full((1, 1, 2), -10.0)})


def test_exact_arithmetic_is_that_of_fractions() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((4, 5)) * 10.0 ** rng.integers(-300, 300, (4, 5)) for _ in range(2))
    a[0, 0] = 0.0
    b[1, 1], b[2, 2] = 5e-324, -1.7976931348623157e308
    pairs = [(Fraction(p), Fraction(q)) for p, q in zip(a.ravel().tolist(), b.ravel().tolist(), strict=True)]
    x, y = Exact.of(a), Exact.of(b)
    assert (x + y).total() == sum(p + q for p, q in pairs)
    assert (x - y).total() == sum(p - q for p, q in pairs)
    assert (x * y).total() == sum(p * q for p, q in pairs)
    assert x.minimum(y).total() == sum(min(p, q) for p, q in pairs)
    columns = np.tile(np.arange(5), (4, 1))
    assert x.scatter(columns, 6)[3:4].total() == sum(map(Fraction, a[:, 3].tolist()))
    assert x.sum(0)[2:3].total() == sum(map(Fraction, a[:, 2].tolist()))
    assert Exact.of(np.zeros(3)).total() == 0


def test_rounded_down() -> None:
    assert rounded_down(Fraction(1, 10)) < Fraction(1, 10) < Fraction(math.nextafter(rounded_down(Fraction(1, 10)), 1))
    assert rounded_down(Fraction(0.1)) == 0.1
    assert rounded_down(Fraction(10) ** 400) == 1.7976931348623157e308
    assert rounded_down(-(Fraction(10) ** 400)) == -math.inf


def test_thousands_of_blocks() -> None:
    """5,000 blocks stay exact."""
    m = pairs(np.random.default_rng(6), batch=1, n=101)
    solution = m.solve(passes=30)
    certificate = verify_certificate(m, solution.state)
    assert certificate.exact and certificate.bound.item() == pytest.approx(solution.bound.item(), abs=1e-9)

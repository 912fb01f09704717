"""The nonconvex methods for MRFs: true energies, exact line searches, descent, and rounding that never rises."""

from itertools import product
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

from blocklp.errors import ModelError, NonFiniteError, OptionError, ScopeError, ShapeError
from blocklp.problems.discrete.tightening import Labelled
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.nonconvex import METHODS, Multilinear, minimise
from blocklp.problems.mrf.nonconvex.methods.admm import agreement
from blocklp.problems.mrf.nonconvex.methods.bcd import rounded, turn
from blocklp.problems.mrf.nonconvex.methods.cqp import ConvexQp
from blocklp.problems.mrf.nonconvex.methods.pgd import project
from blocklp.problems.mrf.nonconvex.polynomial import evaluate, minimiser
from blocklp.problems.mrf.readers import read_mrf
from blocklp.problems.mrf.solve import solve_mrf
from blocklp.status import Status

CPU = torch.device("cpu")
RUNS: list[tuple[str, dict[str, Any]]] = [
    ("bcd", {}),
    ("pgd", {}),
    ("fw", {}),
    ("admm", {"decomposition": "cyclic"}),
    ("admm", {"decomposition": "star"}),
    ("admm", {"decomposition": "symmetric"}),
    ("cqp", {"steps": 60}),
]


def test_no_method_is_left_out() -> None:
    assert {name for name, _ in RUNS} == set(METHODS)


def random_mrf(order: int, seed: int, hard: float = 0.0) -> Mrf:
    """Six variables of one to four labels, factors of one to ``order`` variables, a share of their entries infinite."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 5, size=6)
    factors: list[tuple[Any, Any]] = [((i,), rng.normal(size=counts[i])) for i in range(6)]
    for size in range(2, order + 1):
        for _ in range(5):
            scope = rng.choice(6, size=size, replace=False)
            table = rng.normal(size=counts[scope])
            factors.append((scope.tolist(), np.where(rng.random(table.shape) < hard, np.inf, table)))
    return Mrf(counts, factors, constant=0.5)


def all_energies(mrf: Mrf) -> np.ndarray:
    return mrf.energy(np.array(list(product(*map(range, mrf.counts)))))


def random_points(energy: Multilinear, batch: int, seed: int) -> torch.Tensor:
    weights = torch.tensor(np.random.default_rng(seed).exponential(size=(batch, *energy.exists.shape))) * energy.exists
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_the_relaxation_is_the_expected_energy_of_independent_labels(order: int) -> None:
    mrf = random_mrf(order, seed=order)
    energy = Multilinear(mrf, CPU)
    x = random_points(energy, 3, seed=1)
    labellings = torch.tensor(list(product(*map(range, mrf.counts))))
    chances = torch.stack([x[:, i, labellings[:, i]] for i in range(mrf.n)]).prod(0)
    expected = chances @ torch.tensor(mrf.energy(labellings.numpy()))
    torch.testing.assert_close(energy.value(x), expected, rtol=1e-12, atol=1e-12)
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(energy.value(leaf).sum(), leaf)
    # `value` is written by the first positions' derivative, so this compares two computations of each derivative.
    torch.testing.assert_close(energy.gradient(x), slope * energy.exists, rtol=1e-10, atol=1e-10)
    for colour, nodes in enumerate(energy.classes):
        torch.testing.assert_close(energy.gradient(x, colour), energy.gradient(x)[:, nodes])


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_the_polynomial_on_a_segment_is_the_energy_there(order: int) -> None:
    energy = Multilinear(random_mrf(order, seed=10 + order), CPU)
    x, s = random_points(energy, 4, seed=2), random_points(energy, 4, seed=3)
    coefficients = energy.segment(x, s - x)
    assert coefficients.shape == (4, max(2, order) + 1)
    for share in np.linspace(0, 1, 9):
        torch.testing.assert_close(
            evaluate(coefficients, torch.full((4, 1), share, dtype=torch.float64))[:, 0],
            energy.value(x + share * (s - x)),
            rtol=1e-11,
            atol=1e-11,
        )


@pytest.mark.parametrize("degree", [1, 2, 3, 4, 5, 6])
def test_the_line_search_beats_dense_sampling(degree: int) -> None:
    rng = np.random.default_rng(degree)
    roots = rng.uniform(-0.2, 1.2, size=(200, degree))
    derived = np.array([np.polynomial.polynomial.polyfromroots(r[:-1]) for r in roots]) * rng.choice([-1, 1], size=(200, 1))
    integrals = np.array([np.polynomial.polynomial.polyint(d, k=7.0) for d in derived])
    random = rng.normal(size=(200, degree + 1))
    random[::3, -1] = 0.0  # of lower degree
    random[1::3, -1] *= 1e-14
    coefficients = torch.tensor(np.concatenate([integrals, random]))
    found = minimiser(coefficients)
    assert ((found >= 0) & (found <= 1)).all()
    grid = torch.linspace(0, 1, 20001, dtype=torch.float64).expand(len(coefficients), -1)
    sampled = evaluate(coefficients, grid)
    value = evaluate(coefficients, found[:, None])[:, 0]
    assert (value <= sampled.amin(1) + 1e-14 * coefficients.abs().sum(1)).all()
    # Where the least value is at a simple root, the sample is next to it.
    torch.testing.assert_close(value, sampled.amin(1), rtol=0, atol=1e-6)


def test_a_double_root_and_a_constant_need_no_care() -> None:
    # p' = (a - 1/2)^2 never changes sign: least at 0; and the constant polynomial stays where it is.
    coefficients = torch.tensor([[0.0, 0.25, -0.5, 1 / 3], [3.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    assert minimiser(coefficients).tolist() == [0.0, 0.0]
    assert minimiser(-coefficients)[0] == 1.0


@pytest.mark.parametrize(
    ("method", "options", "order"), [(*run, order) for run in RUNS for order in (1, 2, 3, 4) if run[0] != "cqp" or order <= 2]
)
def test_energies_are_true_and_not_below_the_least(method: str, options: dict[str, Any], order: int) -> None:
    mrf = random_mrf(order, seed=100 * order)
    found = minimise(mrf, method, 5, **options)
    least = all_energies(mrf).min()
    assert found.labels.shape == (5, 6)
    np.testing.assert_array_equal(found.energy, mrf.energy(found.labels.numpy()))
    assert found.energy.min() >= least - 1e-12
    # Rounding gains, and ends where no change of one variable does.
    assert (found.energy <= found.value + 1e-9).all()
    for i in range(mrf.n):
        for label in range(mrf.counts[i]):
            changed = found.labels.clone()
            changed[:, i] = label
            assert (mrf.energy(changed.numpy()) >= found.energy.numpy() - 1e-9).all()
    # The points are on the simplices.
    torch.testing.assert_close(found.point.sum(-1), torch.ones(5, 6, dtype=torch.float64))
    assert (found.point >= 0).all()


@pytest.mark.parametrize("method", ["bcd", "pgd", "fw", "cqp"])
@pytest.mark.parametrize("hard", [0.0, 0.2])
def test_descent_never_rises(method: str, hard: float) -> None:
    for order in (2,) if method == "cqp" else (2, 3, 4):
        mrf = random_mrf(order, seed=20 + order, hard=hard)
        energy = Multilinear(mrf, CPU)
        objective = ConvexQp(energy) if method == "cqp" else energy
        start = random_points(energy, 6, seed=4)
        found = minimise(mrf, method, start, steps=60)
        values = torch.cat([objective.value(start)[None], found.history.value])
        assert len(values) > 2
        assert (values.diff(dim=0) <= 1e-10 * values.abs().amax(0)).all()
        torch.testing.assert_close(values[-1], objective.value(found.point), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("order", [2, 3, 4])
def test_rounding_never_raises_the_energy(order: int) -> None:
    mrf = random_mrf(order, seed=30 + order)
    energy = Multilinear(mrf, CPU)
    x = random_points(energy, 50, seed=5)
    first = turn(energy, x)
    assert set(first.unique().tolist()) <= {0.0, 1.0}
    once = torch.tensor(mrf.energy(first.argmax(-1).numpy()))
    labels = torch.tensor(mrf.energy(rounded(energy, x).numpy()))
    assert (once <= energy.value(x) + 1e-12).all()
    assert (labels <= once + 1e-12).all()


def test_rounding_leaves_no_variable_between_labels_that_cost_the_same() -> None:
    cycle = Mrf([2, 2, 2], [(pair, np.eye(2)) for pair in [(0, 1), (1, 2), (0, 2)]])
    energy = Multilinear(cycle, CPU)
    centre = torch.full((1, 3, 2), 0.5, dtype=torch.float64)
    assert energy.gradient(centre).unique().numel() == 1
    found = turn(energy, centre)
    assert set(found.unique().tolist()) == {0.0, 1.0}
    assert energy.value(found).item() == 1.0 < energy.value(centre).item()


def test_rounding_is_the_textbook_loop_in_the_order_of_colours() -> None:
    mrf = random_mrf(3, seed=40)
    energy = Multilinear(mrf, CPU)
    x = random_points(energy, 1, seed=6)
    point = x.clone()
    for i in torch.cat(energy.classes).tolist():
        values = []
        for label in range(mrf.counts[i]):
            trial = point.clone()
            trial[:, i] = torch.nn.functional.one_hot(torch.tensor(label), x.shape[-1])
            values.append(energy.value(trial).item())
        point[:, i] = torch.nn.functional.one_hot(torch.tensor(int(np.argmin(values))), x.shape[-1]).to(point)
    assert torch.equal(turn(energy, x), point)


@pytest.mark.parametrize(("method", "options"), RUNS)
def test_easy_trees_are_solved_from_several_starts(method: str, options: dict[str, Any]) -> None:
    solved = 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        tree = nx.random_labeled_tree(6, seed=seed)
        mrf = Mrf.from_arrays(rng.normal(size=(6, 3)), np.array(tree.edges), 0.5 * rng.normal(size=(5, 3, 3)))
        found = minimise(mrf, method, 10, **options)
        solved += int(found.energy.min() <= all_energies(mrf).min() + 1e-9)
    assert solved >= 3


def test_the_convex_qp_is_convex_and_equals_the_energy_at_labellings() -> None:
    mrf = random_mrf(2, seed=50)
    objective = ConvexQp(Multilinear(mrf, CPU))
    labels = torch.zeros(1, mrf.n, dtype=torch.int64)
    assert objective.value(objective.energy.one_hot(labels)).item() == pytest.approx(mrf.energy(labels.numpy()).item())
    x, y = random_points(objective.energy, 50, seed=7), random_points(objective.energy, 50, seed=8)
    assert (objective.segment(x, y - x)[:, 2] >= -1e-12).all()
    found = minimise(mrf, "cqp", 4, steps=1000)
    # One minimum from all starts, and not above the least energy.
    torch.testing.assert_close(found.history.value[-1], found.history.value[-1][:1].expand(4), rtol=1e-4, atol=1e-4)
    assert found.history.value[-1].max() <= all_energies(mrf).min() + 1e-6


def test_the_diagonal_of_the_convex_qp_is_that_of_the_text() -> None:
    mrf = random_mrf(2, seed=51)
    expected = torch.zeros(mrf.n, int(mrf.counts.max()), dtype=torch.float64)
    for scope, table in mrf.factors:
        if len(scope) == 2:
            for labels in np.ndindex(*table.shape):
                for i, label in zip(scope, labels, strict=True):
                    expected[i, label] += abs(table[labels]) / 2
    torch.testing.assert_close(ConvexQp(Multilinear(mrf, CPU)).diagonal, expected)


def test_admm_takes_the_steps_of_the_text() -> None:
    """(108) to (111) for three copies, with one weight."""
    mrf = random_mrf(3, seed=61)
    energy = Multilinear(mrf, CPU)
    x = random_points(energy, 2, seed=11)
    rho = 0.3 * energy.scale
    first = second = third = x
    y2, y3 = torch.zeros_like(x), torch.zeros_like(x)
    for _ in range(4):
        first = project((rho * second - y2 - energy.costs([first, second, third], 0)) / rho, energy.exists)
        given = rho * first + rho * third + y2 - y3 - energy.costs([first, second, third], 1)
        second = project(given / (2 * rho), energy.exists)
        third = project((rho * second + y3 - energy.costs([first, second, third], 2)) / rho, energy.exists)
        y2, y3 = y2 + rho * (first - second), y3 + rho * (second - third)
    found = minimise(mrf, "admm", x, penalty=0.3, steps=4, tolerance=0.0)
    torch.testing.assert_close(found.point, (first + second + third) / 3)


@pytest.mark.parametrize("decomposition", ["cyclic", "star", "symmetric"])
@pytest.mark.parametrize("order", [2, 3, 4])
def test_admm_copies_agree_in_a_stationary_point(decomposition: str, order: int) -> None:
    mrf = random_mrf(order, seed=60 + order)
    found = minimise(mrf, "admm", 4, decomposition=decomposition, steps=5000, tolerance=1e-16, growth=1.05)
    assert found.status == Status.STALLED
    energy = Multilinear(mrf, CPU)
    slope = energy.gradient(found.point)
    # Proposition 4: <grad E(x), s - x> >= 0 for all s.
    gap = (slope * (found.point - energy.best_labels(slope))).sum((1, 2))
    assert (gap <= 1e-5).all()


def test_agreement_matrices_are_those_of_the_text() -> None:
    assert agreement("cyclic", 3).tolist() == [[1, -1, 0], [-1, 2, -1], [0, -1, 1]]
    assert agreement("star", 3).tolist() == [[2, -1, -1], [-1, 1, 0], [-1, 0, 1]]
    torch.testing.assert_close(agreement("symmetric", 3), torch.eye(3, dtype=torch.float64) - 1 / 3)


def test_projections_are_nearest_points() -> None:
    exists = torch.tensor([[True, True, True], [True, True, False]])
    y = torch.tensor(np.random.default_rng(9).normal(size=(20, 2, 3)))
    found = project(y, exists)
    assert (found[:, 1, 2] == 0).all()
    torch.testing.assert_close(found.sum(-1), torch.ones(20, 2, dtype=torch.float64))
    # Nearest: no direction to a vertex makes an acute angle with what is left.
    left = (y - found) * exists
    best = left.masked_fill(~exists, -torch.inf).amax(-1) - (left * found).sum(-1)
    assert (best <= 1e-12).all()


@pytest.mark.parametrize(("method", "options"), RUNS)
def test_a_start_does_not_depend_on_its_batch(method: str, options: dict[str, Any]) -> None:
    mrf = random_mrf(2, seed=70)
    energy = Multilinear(mrf, CPU)
    x = random_points(energy, 3, seed=10)
    together = minimise(mrf, method, x, **options)
    for k in (0, 2):
        alone = minimise(mrf, method, x[k : k + 1], **options)
        assert torch.equal(alone.labels[0], together.labels[k])
        torch.testing.assert_close(alone.value[0], together.value[k], rtol=1e-6, atol=1e-6)
    again = minimise(mrf, method, x, **options)
    assert torch.equal(again.point, together.point)
    torch.testing.assert_close(
        minimise(mrf, method, 2, **options).point, minimise(mrf, method, 3, **options).point[:2], rtol=1e-6, atol=1e-6
    )


def test_hard_constraints_are_never_reported_as_kept_when_they_are_not() -> None:
    # Three variables, of which any two are equal and two differ: no labelling is feasible.
    same, other = np.array([[0, np.inf], [np.inf, 0]]), np.array([[np.inf, 0], [0, np.inf]])
    impossible = Mrf([2, 2, 2], [((0, 1), same), ((1, 2), same), ((0, 2), other)])
    possible = Mrf([2, 2, 2], [((0, 1), same), ((1, 2), same), ((2,), [0.0, 5.0])])
    for method in METHODS:
        found = minimise(impossible, method, 4)
        assert torch.isinf(found.energy).all() and torch.isfinite(found.history.value).all()
        found = minimise(possible, method, 8)
        assert found.energy.min() == 0.0
        assert found.labels[found.best].tolist() == [0, 0, 0]


@pytest.mark.parametrize("tighten", [False, True])
def test_a_solver_keeps_what_a_method_finds(tighten: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    mrf = random_mrf(2, seed=80)
    least = all_energies(mrf).min()
    monkeypatch.setattr("blocklp.problems.mrf.solve.rounded", lambda relaxation, *_: poor)
    poor = Labelled(torch.zeros(mrf.n, dtype=torch.int64), float(mrf.energy(np.zeros(mrf.n, dtype=int))))
    assert poor.energy > least + 0.1
    for name in ("bcd", "admm"):
        found = solve_mrf(mrf, heuristic=name, tighten=tighten, passes=100)
        assert found.energy == pytest.approx(least) == mrf.energy(found.labels.numpy())
        assert found.bound <= least + 1e-9
    assert solve_mrf(mrf, passes=100).energy == poor.energy


def test_a_method_that_does_not_take_an_instance_is_refused_before_anything_is_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blocklp.problems.mrf.solve.relax_in_time", lambda *_, **__: pytest.fail("it was solved"))
    with pytest.raises(ModelError, match="factors of 3 variables; cqp takes 2 at most"):
        solve_mrf([random_mrf(2, seed=0), random_mrf(3, seed=0)], heuristic="cqp")
    with pytest.raises(OptionError, match="no method 'newton'"):
        solve_mrf(random_mrf(2, seed=0), heuristic="newton")  # type: ignore[arg-type]


def test_labels_and_points_are_starts() -> None:
    mrf = random_mrf(3, seed=80)
    labels = torch.zeros(2, mrf.n, dtype=torch.int64)
    from_labels = minimise(mrf, "bcd", labels)
    from_points = minimise(mrf, "bcd", Multilinear(mrf, CPU).one_hot(labels))
    assert torch.equal(from_labels.labels, from_points.labels)
    assert (from_labels.energy.numpy() <= mrf.energy(labels.numpy())).all()


def test_time_limits_and_interrupts_return_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    mrf = random_mrf(3, seed=90)
    for method in ("bcd", "pgd", "fw", "admm"):
        found = minimise(mrf, method, 3, time_limit=1e-9)
        assert found.status == Status.TIME_LIMIT and len(found.history.value) == 1
        np.testing.assert_array_equal(found.energy, mrf.energy(found.labels.numpy()))

    def interrupted(run: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(METHODS, "bcd", interrupted)
    found = minimise(mrf, "bcd", 3)
    assert found.status == Status.INTERRUPTED
    assert (found.energy <= found.value + 1e-12).all()


def test_bad_input_is_named() -> None:
    mrf = random_mrf(3, seed=91)
    point = torch.full((1, *Multilinear(mrf, CPU).exists.shape), 0.1)
    with pytest.raises(OptionError, match="no method 'icm'; choose one of admm, bcd"):
        minimise(mrf, "icm")
    with pytest.raises(OptionError, match="fw has no option 'rate'; it takes steps, tolerance"):
        minimise(mrf, "fw", rate=1.0)
    with pytest.raises(OptionError, match="time_limit is 0"):
        minimise(mrf, time_limit=0)
    with pytest.raises(OptionError, match="starts is 0"):
        minimise(mrf, starts=0)
    with pytest.raises(OptionError, match="not on the simplices"):
        minimise(mrf, starts=point)
    with pytest.raises(NonFiniteError, match="starts hold"):
        minimise(mrf, starts=point * torch.nan)
    with pytest.raises(ShapeError, match="starts have shape"):
        minimise(mrf, starts=point[:, 1:])
    with pytest.raises(ScopeError, match="label of variable 0"):
        minimise(mrf, starts=torch.full((1, mrf.n), 9))
    with pytest.raises(ModelError, match="factors of 3 variables"):
        minimise(mrf, "cqp")
    with pytest.raises(OptionError, match="decomposition is 'ring'"):
        minimise(mrf, "admm", decomposition="ring")
    for options in ({"growth": 1.0}, {"penalty": 0.0}, {"steps": 0}):
        with pytest.raises(OptionError, match=next(iter(options))):
            minimise(mrf, "admm", **options)


def test_the_tiny_published_cases(shared_qpbo: Path) -> None:
    for path in sorted((shared_qpbo / "mrf" / "tiny").glob("*.uai")):
        mrf = read_mrf(path, log=True)
        least = all_energies(mrf).min()
        for method in ("bcd", "pgd", "fw", "admm"):
            found = minimise(mrf, method, 20)
            assert found.energy.min() == pytest.approx(least), (path.name, method)


@pytest.mark.parametrize("method", METHODS)
def test_a_device_gives_the_same(method: str, device: torch.device) -> None:
    mrf = random_mrf(2, seed=92)
    there, here = minimise(mrf, method, 2, device=device, steps=20), minimise(mrf, method, 2, steps=20)
    torch.testing.assert_close(there.energy.cpu(), here.energy)

import builtins
import itertools
import sys

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.errors import BlocklpError, MissingDependencyError, ModelError, OptionError
from blocklp.general_solvers.solvers import export, reference
from blocklp.oracles import Edge, Knapsack, Simplex

SOLVERS = ["highs", "highs-simplex", "highs-ipm", "highs-pdlp", "gurobi", "cvxpy", "cvxpy-highs"]


def frustrated() -> bl.Model:
    """Three pairs of penalty 4: min -y1 - y2 - y3 + 4 (y1 y2 + y1 y3 + y2 y3) relaxes to -1.5 at y = 1/2, z = 0."""
    m = bl.Model()
    y = m.variable("y", 3, lower=0, upper=1)
    z = m.variable("z", 3, lower=0, upper=1)
    m.add(Edge(), [y[[0, 0, 1]], y[[1, 2, 2]], z])
    m.minimize(4 * z.sum() - y.sum())
    return m


@pytest.mark.parametrize("solver", SOLVERS)
def test_known_optimum(solver: str) -> None:
    answer = reference(frustrated(), solver)
    tolerance = 1e-6 if solver == "highs-pdlp" else 1e-8
    assert answer.status == ("optimal",)
    assert answer.objective.item() == pytest.approx(-1.5, abs=tolerance)
    assert answer.objective.dtype == torch.float64
    assert torch.allclose(answer.x["y"], torch.full((1, 3), 0.5, dtype=torch.float64), atol=1e-5)
    assert answer.x["z"].shape == (1, 3)
    assert answer.seconds > 0


@pytest.mark.parametrize("solver", SOLVERS)
def test_maximise_batch_constant_and_block_data(solver: str) -> None:
    """Knapsacks 2 a + b <= capacity in the unit box: max 3 a + c b + 10, capacity and c by instance."""
    m = bl.Model(batch=2)
    x = m.variable("x", 2, lower=0, upper=1)
    m.add(Knapsack([2.0, 1.0], [[2.0], [1.0]]), x)
    m.maximize(np.array([[3.0, 1.0], [3.0, 2.0]]) @ x + 10)
    both = reference(m, solver)
    assert both.objective.tolist() == pytest.approx([13, 12], abs=1e-5)
    alone = reference(m, solver, instance=1)
    assert alone.objective.tolist() == pytest.approx([12], abs=1e-5)
    assert alone.x["x"].shape == (1, 2)


@pytest.mark.parametrize("solver", SOLVERS)
def test_infeasible_is_a_status(solver: str) -> None:
    """Exactly one of two, and both at least 0.7; in the sense of the model no value is worse."""
    m = bl.Model(batch=2)
    x = m.variable("x", 2, lower=[[0.7, 0.7], [0.1, 0.1]], upper=1)
    m.add(Simplex(2), x)
    m.minimize(x.sum())
    answer = reference(m, solver)
    assert answer.status == ("infeasible", "optimal")
    assert answer.objective.tolist() == pytest.approx([np.inf, 1.0], abs=1e-6)
    assert answer.x["x"][0].isnan().all()
    m.maximize(x.sum())
    assert reference(m, solver).objective[0] == -np.inf


def test_solvers_agree_on_random_models() -> None:
    rng = np.random.default_rng(0)
    m = bl.Model(batch=3)
    y = m.variable("y", 12, lower=0, upper=1)
    i, j = np.triu_indices(12, 1)
    z = m.variable("z", len(i), lower=0, upper=1)
    m.add(Edge(), [y[i], y[j], z])
    m.add(Simplex(4), y.reshape(3, 4))
    m.minimize(rng.standard_normal((3, 12)) @ y + rng.standard_normal((3, len(i))) @ z)
    values = torch.stack([reference(m, s).objective for s in ("highs", "highs-ipm", "gurobi", "cvxpy")])
    assert (values - values[0]).abs().max() < 1e-7


@pytest.mark.parametrize("solver", ["highs", "gurobi", "cvxpy"])
def test_integers_are_integers_if_asked_for(solver: str) -> None:
    """Knapsacks of three items, one of which may be cut: by enumeration, and their LPs are above."""
    draw = np.random.default_rng(0)
    worth, weight, room = draw.integers(3, 20, (4, 3)).astype(float), draw.integers(2, 9, 3).astype(float), 8.0
    m = bl.Model(4)
    x, part = m.variable("x", 3, lower=0, upper=1, integer=True), m.variable("part", 1, lower=0, upper=0.3)
    m.add(weight @ x + 2 * part.sum() <= room)
    m.maximize(worth @ x + part.sum())
    sets = np.array(list(itertools.product((0, 1), repeat=3)))
    left = room - weight @ sets.T
    values = np.where(left >= 0, worth @ sets.T + np.clip(left / 2, 0, 0.3), -np.inf)  # (instances, sets)
    answer, relaxed = reference(m, solver, integers=True), reference(m, solver)
    assert answer.objective.tolist() == pytest.approx(values.max(1), abs=1e-6)
    assert answer.x["x"].numpy() == pytest.approx(sets[values.argmax(1)], abs=1e-6)
    assert (relaxed.objective >= answer.objective - 1e-6).all() and (relaxed.objective > answer.objective + 0.1).any()
    assert bl.solve_exact(m).primal.tolist() == pytest.approx(answer.objective.tolist(), abs=1e-6)


def test_integers_want_an_integer_variable_and_a_solver_for_them() -> None:
    m = frustrated()
    with pytest.raises(ModelError, match="no variable is integer"):
        reference(m, integers=True)
    whole = m.variable("whole", 1, lower=0, upper=1, integer=True)
    m.add(whole.sum() <= 1)
    with pytest.raises(OptionError, match="'highs-ipm' is an algorithm for LPs"):
        reference(m, "highs-ipm", integers=True)
    with pytest.raises(OptionError, match="time_limit"):
        reference(m, time_limit=-1)


@pytest.mark.parametrize("solver", ["highs", "gurobi"])
def test_a_reference_without_time_has_a_status_and_no_value(solver: str) -> None:
    draw = np.random.default_rng(0)
    m = bl.Model()
    x = m.variable("x", 40, lower=0, upper=1, integer=True)
    m.add(draw.integers(1, 100, (30, 40)) @ x <= draw.integers(500, 800, 30))  # a minute of branching
    m.maximize(draw.integers(1, 100, 40) @ x)
    answer = reference(m, solver, integers=True, time_limit=0.01)
    assert answer.status == ("time limit reached",) and answer.objective.isnan().all()


def test_bounds_tighten() -> None:
    m = frustrated()
    fixed = {m.variables["y"][[0]]: (1, 1)}
    assert reference(m, bounds=fixed).objective.item() == pytest.approx(-1)
    assert export(m, bounds=fixed).lower.tolist() == [1, 0, 0, 0, 0, 0]


def test_export() -> None:
    m = frustrated()
    m.maximize(m.variables["y"].sum() + 2)
    program = export(m)
    assert program.maximize and program.offset == 2
    assert program.c.tolist() == [1, 1, 1, 0, 0, 0]
    rows = Edge().constraints()
    assert program.A.shape == (3 * rows.matrix.shape[2], 6)
    # The second block holds y[0], y[2] and z[1].
    second = program.A[rows.matrix.shape[2] : 2 * rows.matrix.shape[2]].toarray()
    assert np.array_equal(second[:, [0, 2, 4]], rows.matrix[0, 0].numpy())
    assert not second[:, [1, 3, 5]].any()
    problem = program.to_cvxpy()
    assert problem.solve() == pytest.approx(5)


def test_model_without_blocks() -> None:
    m = bl.Model()
    x = m.variable("x", 2, lower=-1, upper=[2, 3])
    m.minimize(x[0] - x[1])
    for solver in SOLVERS:
        assert reference(m, solver).objective.item() == pytest.approx(-4, abs=1e-6)


class Silent(bl.BlockType):
    dim = 1

    def min_oracle(self, cost: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        point = (cost < 0).to(cost)
        return point, (cost * point).sum(-1)


def test_refusals() -> None:
    m = bl.Model()
    x = m.variable("x", 2, lower=0, upper=1)
    with pytest.raises(ModelError, match="no objective"):
        reference(m)
    m.add(Silent(), x[:, None], name="mute")
    m.minimize(x.sum())
    with pytest.raises(ModelError, match=r"'mute' state no constraints; give their types a method constraints"):
        reference(m)
    with pytest.raises(OptionError, match="unknown solver 'simplex'"):
        reference(m, "simplex")
    with pytest.raises(IndexError, match="of 1, give 0 to 0"):
        reference(frustrated(), instance=1)
    with pytest.raises(OptionError, match="CVXPY could not solve"):
        reference(frustrated(), "cvxpy-nonsense")


def test_gurobi_licence() -> None:
    m = bl.Model()
    x = m.variable("x", 3000, lower=0, upper=1)
    m.minimize(x.sum())
    with pytest.raises(BlocklpError, match=r"Gurobi refused an LP of 3000 variables and 0 rows.*use solver='highs'"):
        reference(m, "gurobi")


@pytest.mark.parametrize(
    ("solver", "package", "extra"),
    [("highs-ipm", "highspy", "highs"), ("gurobi", "gurobipy", "gurobi"), ("cvxpy", "cvxpy", "cvxpy")],
)
def test_missing_packages(monkeypatch: pytest.MonkeyPatch, solver: str, package: str, extra: str) -> None:
    hide(monkeypatch, package)
    with pytest.raises(MissingDependencyError, match=rf"pip install -e '.\[{extra}\]'"):
        reference(frustrated(), solver)


def test_highs_without_highspy_is_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "highspy")
    m = frustrated()
    assert reference(m).objective.item() == pytest.approx(-1.5, abs=1e-9)
    m.add(Simplex(2), m.variables["y"][[0, 1]])
    m.maximize(m.variables["y"].sum())
    assert reference(m).objective.item() == pytest.approx(2, abs=1e-9)
    everything = {m.variables["y"]: (1, 1)}
    assert reference(m, bounds=everything).status == ("infeasible",)


def hide(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    real = builtins.__import__

    def without(name: str, *args: object, **kwargs: object) -> object:
        if name == package:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, package, raising=False)
    monkeypatch.setattr(builtins, "__import__", without)

"""Models from CVXPY problems, and files from models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

import blocklp as bl
from blocklp.errors import FormatError, ModelError
from blocklp.general_solvers.linear_program import LinearProgram
from blocklp.oracles import Knapsack, Simplex
from blocklp.problems.lp import read_linear_program

cvxpy = pytest.importorskip("cvxpy")
pytest.importorskip("highspy")


def assignment(seed: int, maximize: bool = False) -> tuple[Any, dict[str, Any], np.ndarray]:
    """Items to bins: one-hot rows, knapsacks, and a row that couples them."""
    draw = np.random.default_rng(seed)
    x, t = cvxpy.Variable((6, 3), name="x", bounds=[0, 1]), cvxpy.Variable(name="t")
    size = draw.integers(2, 9, (6, 3)) * 1.0
    once = cvxpy.sum(x, axis=1) == 1
    room = cvxpy.sum(cvxpy.multiply(size, x), axis=0) <= 0.5 * size.sum(0)
    rest = [draw.normal(size=18) @ cvxpy.vec(x, order="C") + t <= 2, t >= 0, t <= 4]
    value = cvxpy.sum(cvxpy.multiply(draw.normal(size=(6, 3)), x)) + 0.3 * t + 5
    objective = cvxpy.Maximize(value) if maximize else cvxpy.Minimize(value)
    return cvxpy.Problem(objective, [once, room, *rest]), {"once": once, "room": room}, size


@pytest.mark.parametrize("tagged", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_values_are_those_of_the_problem(seed: int, tagged: bool) -> None:
    problem, parts, size = assignment(seed, maximize=seed % 2 == 1)
    value = problem.solve(solver=cvxpy.CLARABEL)
    blocks = {parts["once"]: Simplex(3), parts["room"]: Knapsack(size.T, 0.5 * size.sum(0))} if tagged else None
    model = bl.from_cvxpy(problem, blocks)
    names = {"constraint_0", "constraint_1"}
    assert names <= {b.name for b in model.blocks} if tagged else not model.blocks
    assert {r.name for r in model.rows} >= ({"constraint_2"} if tagged else {*names, "constraint_2"})
    assert tuple(model.variables["x"].shape) == (6, 3) and tuple(model.variables["t"].shape) == ()
    assert model.maximizing == (seed % 2 == 1)
    assert bl.reference(model).objective.item() == pytest.approx(value, rel=1e-6)
    found = model.solve(tol=1e-5, passes=20_000)
    assert found.primal.item() == pytest.approx(value, rel=1e-4)
    # In the problem's own layout the point is feasible for it.
    for variable in problem.variables():
        variable.value = np.clip(found.x[variable.name()][0].numpy(), 0, 4 if variable.name() == "t" else 1)
    assert max(np.max(constraint.violation()) for constraint in problem.constraints) <= 1e-4


def test_names_and_parameters() -> None:
    """Variables that CVXPY adds keep its names; parameters have the values that they have."""
    x, p = cvxpy.Variable(3, name="x"), cvxpy.Parameter(3)
    problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.norm1(x - p)), [cvxpy.sum(x) == 1, x >= -2, x <= 2])
    p.value = np.array([1.0, 2.0, 3.0])
    model = bl.from_cvxpy(problem, reach=100.0)
    assert "x" in model.variables and len(model.variables) == 2
    assert bl.reference(model).objective.item() == pytest.approx(problem.solve(solver=cvxpy.CLARABEL), rel=1e-6)


def test_what_does_not_fit_is_refused() -> None:
    problem, parts, size = assignment(0)
    with pytest.raises(ModelError, match=r"constraint_0 have 3 variables.*has 4"):
        bl.from_cvxpy(problem, {parts["once"]: Simplex(4)})
    with pytest.raises(ModelError, match="states other rows than constraint_1"):
        bl.from_cvxpy(problem, {parts["room"]: Knapsack(size.T + 1, 0.5 * size.sum(0))})
    with pytest.raises(ModelError, match="not of the problem"):
        bl.from_cvxpy(problem, {assignment(0)[1]["once"]: Simplex(3)})
    free = cvxpy.Variable(2, name="free")
    with pytest.raises(ModelError, match="'free' have no finite bounds"):
        bl.from_cvxpy(cvxpy.Problem(cvxpy.Minimize(cvxpy.sum(free)), [free[0] - free[1] <= 1]))
    with pytest.raises(ModelError, match="bounds variables more"):
        once = cvxpy.sum(free) == 1
        bl.from_cvxpy(cvxpy.Problem(cvxpy.Minimize(free[0]), [once, free >= -1, free <= 5]), {once: Simplex(2)})
    with pytest.raises(ModelError, match="no linear program"):
        bl.from_cvxpy(cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(free))))
    with pytest.raises(ModelError, match="problem of CVXPY"):
        bl.from_cvxpy(3)


@pytest.mark.parametrize("seed", range(5))
def test_files_hold_the_lp(seed: int, tmp_path: Path) -> None:
    draw = np.random.default_rng(seed)
    matrix = sp.csr_array(draw.normal(size=(5, 7)) * (draw.random((5, 7)) < 0.6))
    kind = draw.integers(0, 4, 5)
    at = draw.normal(size=5)
    lower, upper = np.where(kind == 1, -np.inf, at), np.where(kind == 2, np.inf, at + (kind == 3))
    low = np.where(draw.random(7) < 0.3, -np.inf, -1.0)
    high = np.where(draw.random(7) < 0.3, np.inf, 2.0)
    program = LinearProgram(draw.normal(size=7), matrix, lower, upper, low, high, 1.5, bool(seed % 2))
    path = tmp_path / "file.mps"
    program.to_mps(path)
    back = read_linear_program(path).program
    for name in ("c", "row_lower", "row_upper", "lower", "upper"):
        assert getattr(back, name) == pytest.approx(getattr(program, name), rel=1e-12), name
    assert abs(back.A - program.A).max() <= 1e-12
    assert back.offset == pytest.approx(1.5) and back.maximize == program.maximize


def test_models_are_written_out(tmp_path: Path) -> None:
    m = bl.Model()
    x = m.variable("x", (4, 3), lower=0, upper=1)
    m.add(Simplex(3), scope=x)
    m.add(torch.ones(1, 12, dtype=torch.float64) @ x.reshape(12) <= 9)
    m.maximize((torch.arange(12, dtype=torch.float64).reshape(4, 3) * x).sum() + 2)
    m.linear_program().to_mps(tmp_path / "model.mps")
    found = bl.lp.solve_linear_program(read_linear_program(tmp_path / "model.mps").program, tol=1e-8)
    assert found.primal == pytest.approx(bl.reference(m).objective.item(), rel=1e-7)
    with pytest.raises(FormatError, match=r"written to \.mps"):
        m.linear_program().to_mps(tmp_path / "model.txt")
    with pytest.raises(FormatError, match="does the folder exist"):
        m.linear_program().to_mps(tmp_path / "none" / "model.mps")

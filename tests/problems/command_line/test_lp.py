"""``blocklp lp``: files in, one object out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from blocklp.errors import FormatError
from blocklp.problems.command_line.app import app
from blocklp.problems.lp import read_linear_program

pytest.importorskip("highspy")

# Dantzig's transport of cans: optimum 153.675 (GAMS library, trnsport).
CANS = """Minimize
 cost: 0.225 sn + 0.153 sc + 0.162 st + 0.225 dn + 0.162 dc + 0.126 dt
Subject To
 seattle: sn + sc + st <= 350
 diego: dn + dc + dt <= 600
 newyork: sn + dn >= 325
 chicago: sc + dc >= 300
 topeka: st + dt >= 275
End
"""
FREE = """NAME FREE
ROWS
 N obj
 G one
 E two
COLUMNS
 x obj 1 one 1
 x two 1
 y obj 2 one 1
 y two -1
RHS
 RHS one 3 two 1
BOUNDS
 FR BND x
 FR BND y
ENDATA
"""
SEMI_CONTINUOUS = """NAME SEMI
ROWS
 N obj
 G one
COLUMNS
 x obj 1 one 1
 y obj 1 one 1
RHS
 RHS one 1
BOUNDS
 LO BND x 2
 SC BND x 5
ENDATA
"""


def run(*arguments: str, code: int = 0) -> dict[str, object]:
    result = CliRunner().invoke(app, ["lp", *arguments, "--json"])
    assert result.exit_code == code, result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("options", [(), ("--no-simplex",), ("--no-presolve", "--no-simplex")])
def test_a_known_optimum_in_one_object(options: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "cans.lp.gz"
    path.write_bytes(gzip.compress(CANS.encode()))
    found = run(str(path), "--tol", "1e-6", "--solution", *options)
    assert {"status", "bound", "safe_bound", "primal", "gap", "seconds", "rows", "columns"} <= set(found)
    assert found["status"] == "optimal" and (found["rows"], found["columns"]) == (5, 6)
    assert found["primal"] == pytest.approx(153.675, rel=1e-5)
    assert 153.675 * (1 - 1e-5) <= found["bound"] <= 153.675  # type: ignore[operator]
    assert set(found["x"]) == {"sn", "sc", "st", "dn", "dc", "dt"}  # type: ignore[call-overload]


def test_free_variables(tmp_path: Path) -> None:
    """x + y >= 3 and x - y = 1: x = 2, y = 1, value 4."""
    path = tmp_path / "free.MPS"
    path.write_text(FREE)
    found = run(str(path))
    assert found["status"] == "optimal" and found["primal"] == pytest.approx(4, rel=1e-4)
    assert found["bound"] == pytest.approx(4, rel=1e-4)


def test_what_has_no_optimum_is_said_to_have_none(tmp_path: Path) -> None:
    path = tmp_path / "none.lp"
    path.write_text("Minimize\n x\nSubject To\n a: x + y >= 2\n b: x + y <= 1\nEnd\n")
    assert run(str(path), code=1)["status"] == "infeasible"
    path.write_text("Minimize\n - x\nSubject To\n a: x - y <= 1\nEnd\n")
    assert run(str(path), code=1)["status"] == "unbounded"


@pytest.mark.parametrize("solver", ["highs", "highs-ipm", "gurobi", "cvxpy"])
def test_other_solvers_beside(solver: str, tmp_path: Path) -> None:
    pytest.importorskip("gurobipy" if solver == "gurobi" else "cvxpy")
    path = tmp_path / "cans.lp"
    path.write_text(CANS)
    by = run(str(path), "--reference", solver)["reference"]
    assert by["solver"] == solver and by["status"] == "optimal" and by["seconds"] > 0  # type: ignore[index]
    assert by["value"] == pytest.approx(153.675, rel=1e-7)  # type: ignore[index]
    assert f"{solver}: optimal, 153.67" in CliRunner().invoke(app, ["lp", str(path), "--reference", solver]).stdout
    path.write_text("Minimize\n - x\nSubject To\n a: x - y <= 1\nEnd\n")
    by = run(str(path), "--reference", solver, code=1)["reference"]
    assert "unbounded" in by["status"] and by["value"] is None  # type: ignore[index]
    refused = CliRunner().invoke(app, ["lp", str(path), "--reference", "none"])
    assert refused.exit_code == 2 and "unknown solver 'none'" in refused.stderr


def test_integers_are_relaxed_and_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "whole.lp"
    path.write_text("Maximize\n x\nSubject To\n a: 2 x <= 3\nGeneral\n x\nEnd\n")
    found = run(str(path))
    assert found["integers_relaxed"] == 1 and found["primal"] == pytest.approx(1.5, rel=1e-4)


@pytest.mark.parametrize(
    ("suffix", "text", "value"),
    [
        (".lp", "Minimize\n x + y\nSubject To\n c: x + y >= 1\nBounds\n 2 <= x <= 5\n y >= 0.2\nSemi-continuous\n x\nEnd\n", 1.0),
        (".lp", "Maximize\n -3 x - y\nSubject To\n c: x + y >= 4\nBounds\n 2 <= x <= 5\n y <= 9\nSemi\n x\nEnd\n", -4.0),
        (".mps", SEMI_CONTINUOUS, 1.0),
    ],
)
def test_semi_continuous_variables_may_be_zero(suffix: str, text: str, value: float, tmp_path: Path) -> None:
    """Within their bounds alone the optima are 2.2, -8 and 2."""
    path = tmp_path / f"semi{suffix}"
    path.write_text(text)
    found = run(str(path), "--reference", "highs")
    assert found["status"] == "optimal" and found["integers_relaxed"] == 1
    assert found["primal"] == pytest.approx(value, rel=1e-4) == found["bound"]
    assert found["reference"]["value"] == pytest.approx(value)  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("a.txt", "", "are read from .mps and .lp"),
        ("a.lp", "Minimize\n x ][\n", "cannot read"),
        ("b.lp", "Minimize\n [ x ^ 2 ] / 2\nEnd\n", "quadratic"),
        ("c.lp", "", "no variables"),
        ("c.mps", "NAME\nROWS\n N cost\n G r\nCOLUMNS\nRHS\n RHS r 1.0\nENDATA\n", "no variables"),
    ],
)
def test_wrong_files_are_refused_by_name(name: str, text: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(FormatError, match=word):
        read_linear_program(path)
    result = CliRunner().invoke(app, ["lp", str(path)])
    assert result.exit_code == 2 and name in result.stderr and "Traceback" not in result.stderr

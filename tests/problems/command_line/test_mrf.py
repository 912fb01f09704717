import json

import pytest

from . import running

# Two variables of two labels; the minimum is (1, 0) with energy -8, that without a label 0 of variable 1 is (1, 1) with -5.
PAIR = "MARKOV\n2\n2 2\n2\n1 0\n2 0 1\n2\n0 3\n4\n1 2\n5 2\n"
CYCLE = "MARKOV\n3\n2 2 2\n3\n2 0 1\n2 1 2\n2 0 2\n" + 3 * "4\n-1 0\n0 -1\n"


def run(*arguments, code=0):
    return running.run("mrf", *arguments, code=code)


@pytest.fixture
def pair(tmp_path):
    (tmp_path / "a.uai").write_text(PAIR)
    return tmp_path / "a.uai"


@pytest.mark.parametrize("blocks", ["auto", "edges", "chains", "qubo"])
def test_json(pair, blocks):
    [entry] = json.loads(run(pair, "--log", "--json", "--blocks", blocks, "--tol", "1e-6").stdout)
    assert (entry["n"], entry["pairs"], entry["status"], entry["solution"], entry["energy"]) == (2, 1, "optimal", [1, 0], -8)
    assert entry["bound"] == pytest.approx(-8, abs=1e-4) and "persistency" not in entry


def test_table_and_reference(pair):
    shown = run(pair, "--log", "--reference", "highs").stdout
    assert "a.uai" in shown and "optimal" in shown and "highs LP" in shown and "fixed" not in shown


def test_evidence(pair, tmp_path):
    (tmp_path / "a.evid").write_text("1 1 1")
    [entry] = json.loads(run(pair, "--log", "--json", "--evidence", tmp_path / "a.evid").stdout)
    assert (entry["solution"], entry["energy"]) == ([1, 1], -5)


def test_rounds_of_tightening(tmp_path):
    (tmp_path / "cycle.uai.LG").write_text(CYCLE)
    [loose] = json.loads(run(tmp_path / "cycle.uai.LG", "--json").stdout)
    [tight] = json.loads(run(tmp_path / "cycle.uai.LG", "--json", "--rounds", 3).stdout)
    assert (loose["energy"], tight["energy"]) == (1, 1)
    assert loose["bound"] == pytest.approx(0, abs=1e-3) and tight["bound"] == pytest.approx(1, abs=1e-3)
    for rounds, optimum in ((0, 0), (3, 1)):
        given = "--json", "--rounds", rounds, "--reference", "highs"
        [entry] = json.loads(run(tmp_path / "cycle.uai.LG", *given).stdout)
        assert entry["reference"]["value"] == pytest.approx(optimum, abs=1e-6)


def test_errors_are_one_line(pair):
    found = run(pair, "--format", "wcsp", code=2)
    assert found.stderr.startswith("error: ") and "line 5" in found.stderr


def test_an_exact_proof_that_nothing_is_feasible(tmp_path):
    pytest.importorskip("numba")
    (tmp_path / "a.uai").write_text("MARKOV\n2\n2 2\n3\n1 0\n1 1\n2 0 1\n2\n1 0\n2\n1 0\n4\n0 1\n1 1\n")
    [entry] = json.loads(run(tmp_path / "a.uai", "--exact", "--json").stdout)
    assert (entry["status"], entry["proven"], entry["energy"], entry["bound"], entry["gap"]) == ("infeasible", True, None, None, 0)
    assert entry["solution"] is None
    assert "inf" in run(tmp_path / "a.uai", "--exact").stdout

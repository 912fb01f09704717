"""Commands over the processes of torchrun."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import blocklp as bl
from blocklp.problems.matching import read_matching, write_matching
from blocklp.problems.qpbo import read_qubo, roof_duality_model

from . import running

ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
SPARSE = "6 9\n1 1 -3\n2 2 1\n4 4 2\n5 5 -1\n1 2 4\n2 3 -5\n3 4 2\n1 4 -2\n5 6 3\n"


def run(arguments):
    """What a command prints, and its exit code."""
    mine = {name: value for name, value in os.environ.items() if name not in ALONE} | {"OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=mine, timeout=120)


@pytest.fixture
def path(tmp_path):
    """A file with six nodes and five pairs."""
    file = tmp_path / "six.sparse"
    file.write_text(SPARSE)
    return file


@pytest.fixture
def _alone(monkeypatch):
    """This process as the only one of torchrun."""
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)


@pytest.mark.slow
@pytest.mark.usefixtures("_alone")
def test_the_first_process_prints_one_object(path):
    command = ["-m", "blocklp", "qpbo", str(path), "--distributed", "--json", "--quiet", "--tol", "1e-9"]
    done = run(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {"bound", "primal", "gap", "status", "passes", "seconds", "world", "hash"}
    assert (found["status"], found["world"]) == ("optimal", 2)
    best = float(bl.reference(roof_duality_model(read_qubo(path))).objective[0])
    assert found["bound"] == pytest.approx(best, abs=1e-7)
    assert found["bound"] <= best + 1e-12
    assert json.loads(running.run(*command[2:]).stdout)["hash"] == found["hash"]
    path.write_text("2 1\n1 1 -3\n")  # no pairs
    assert -3.0 - 1e-12 <= json.loads(running.run(*command[2:]).stdout)["bound"] <= -3.0


LP = """Maximize
 obj: 3 x + 2 y + 1.5 z - w
Subject To
 c1: x + y + z <= 4
 c2: x + 3 y - w <= 6
 c3: x - z >= -1
Bounds
 0 <= x <= 3
 w >= 0.5
End
"""


def both(command, status="optimal"):
    """What a command prints over two processes, and that it prints the same hash in one."""
    done = run(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *command])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert json.loads(running.run(*command[2:]).stdout)["hash"] == found["hash"]
    assert (found["status"], found["world"]) == (status, 2)
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("_alone")
def test_linear_programs_have_rows(tmp_path):
    (tmp_path / "four.lp").write_text(LP)
    command = ["-m", "blocklp", "lp", str(tmp_path / "four.lp"), "--distributed", "--json", "--tol", "1e-6"]
    found = both([*command, "--reach", "1e6"], "optimal_within_reach")
    # x = 3 and y + z = 1 at most, of which y is worth more until x + 3 y reaches 6.5.
    assert found["bound"] == pytest.approx(10.5, rel=1e-6)
    assert found["bound"] >= 10.5 - 1e-9
    assert (found["boxed"], found["declared"], found["reach"]) == (True, ["w"], 1e6)


@pytest.mark.slow
@pytest.mark.usefixtures("_alone")
def test_matchings_are_read_and_written_by_parts(tmp_path):
    read_table = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed").read_table
    ends = {"source": [0, 0, 1], "destination": [0, 1, 0], "value": [3.0, 1.0, 2.0]}
    np.savez(tmp_path / "two.npz", **ends, weight=np.ones(3), capacity=np.ones(2))
    command = ["-m", "blocklp", "matching", str(tmp_path / "two.npz"), "--distributed", "--json"]
    found = json.loads(running.run(*command[2:]).stdout)
    assert found["bound"] == pytest.approx(3.0, rel=2e-4)
    assert found["bound"] >= 3.0 - 1e-9
    write_matching(tmp_path / "two", read_matching(tmp_path / "two.npz"))
    command[3] = str(tmp_path / "two")
    assert both([*command, "--output", str(tmp_path / "out")])["hash"] == found["hash"]
    told = read_table(tmp_path / "out" / "shares").to_pydict()  # of the one process that came last
    assert np.dot(told["x"], ends["value"]) == pytest.approx(found["primal"], rel=1e-9)
    assert (told["source"], told["destination"]) == (ends["source"], ends["destination"])
    assert len(read_table(tmp_path / "out" / "prices.parquet")) == 2
    assert "give the name of a folder" in running.refused(*command[2:], "--output", tmp_path / "out.npz")


@pytest.mark.usefixtures("_alone")
def test_what_is_true_within_a_reach_alone_is_not_said_of_the_file(tmp_path):
    path = tmp_path / "far.lp"
    path.write_text("Minimize\n obj: x + 2 y\nSubject To\n a: x + y >= 5000000\nEnd\n")
    command = "lp", path, "--distributed", "--json"
    error = running.refused(*command)
    assert "'x', 'y'" in error and "--reach" in error and "bounds in the file" in error
    found = json.loads(running.run(*command, "--reach", 1e6, code=1).stdout)
    assert (found["status"], found["boxed"]) == ("infeasible_within_reach", True)
    found = json.loads(running.run(*command, "--reach", 1e7).stdout)
    assert (found["status"], found["boxed"]) == ("optimal_within_reach", True)
    assert 5e6 * (1 - 1e-4) <= found["bound"] <= 5e6
    path.write_text("Minimize\n obj: - x\nSubject To\n a: x + y >= 1\nEnd\n")  # unbounded
    assert "'x', 'y'" in running.refused(*command)
    assert "--distributed" in running.refused("lp", path, "--reach", 1e6)


@pytest.mark.usefixtures("_alone")
@pytest.mark.parametrize("rows", ["x >= 3\n b: x + y <= 5", "0 x >= 1\n b: x + y <= 5", "x - y <= 9\nBounds\n 3 <= x <= 1"])
def test_an_infeasible_row_or_bound_is_a_status(tmp_path, rows):
    path = tmp_path / "none.lp"
    bounds = "" if "Bounds" in rows else "\nBounds\n x <= 2"
    path.write_text(f"Minimize\n obj: x\nSubject To\n a: {rows}{bounds}\nEnd\n")
    found = json.loads(running.run("lp", path, "--distributed", "--json", code=1).stdout)
    assert (found["status"], found["bound"], found["hash"], found["boxed"]) == ("infeasible", None, None, False)


def test_without_torchrun_the_command_says_how(path):
    done = run(["-m", "blocklp", "qpbo", str(path), "--distributed"])
    assert done.returncode == 2
    assert "torchrun --nproc-per-node 2 -m blocklp" in done.stderr
    assert "one file" in running.refused("qpbo", path, path, "--distributed")

"""Commands over the processes of torchrun."""

import json
import os
import subprocess
import sys

import pytest

import blocklp as bl
from blocklp.problems.qpbo import read_qubo, roof_duality_model

SPARSE = "6 9\n1 1 -3\n2 2 1\n4 4 2\n5 5 -1\n1 2 4\n2 3 -5\n3 4 2\n1 4 -2\n5 6 3\n"


def run(arguments, **environment):
    """What a command prints, and its exit code."""
    own = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=own, timeout=120)


@pytest.fixture
def path(tmp_path):
    """A file with six nodes and five pairs."""
    file = tmp_path / "six.sparse"
    file.write_text(SPARSE)
    return file


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
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    assert json.loads(run(command, **alone).stdout)["hash"] == found["hash"]
    path.write_text("2 1\n1 1 -3\n")  # no pairs
    assert -3.0 - 1e-12 <= json.loads(run(command, **alone).stdout)["bound"] <= -3.0


def test_without_torchrun_the_command_says_how(path):
    done = run(["-m", "blocklp", "qpbo", str(path), "--distributed"])
    assert done.returncode == 2
    assert "torchrun --nproc-per-node 2 -m blocklp" in done.stderr
    done = run(["-m", "blocklp", "qpbo", str(path), str(path), "--distributed"])
    assert done.returncode == 2
    assert "one file" in done.stderr

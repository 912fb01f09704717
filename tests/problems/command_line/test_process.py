"""The process of a command: what it imports, when it began, and what an interrupt does in each of its phases."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import blocklp as bl
from blocklp.deadline import Deadline
from blocklp.problems.command_line.app import app
from blocklp.problems.command_line.options import METHODS
from blocklp.problems.command_line.process import CLOSING

CYCLE = "9 18\n" + "".join(f"{i} {i} -3\n{min(i, i % 9 + 1)} {max(i, i % 9 + 1)} 2\n" for i in range(1, 10))

# Runs the command line and sends itself an interrupt when a function is first called: "<module>" of a file is its import.
INTERRUPTED = """
import os, signal, sys
file, _, function = sys.argv.pop(1).rpartition(":")
def watch(frame, event, _):
    if event == "call" and frame.f_code.co_name == function and frame.f_code.co_filename.endswith(file):
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)
from blocklp.problems.command_line.main import main
sys.setprofile(watch)
main()
"""

IMPORTED = """
import atexit, sys
from blocklp.problems.command_line.main import main
atexit.register(lambda: print(*{name.partition(".")[0] for name in sys.modules}))
main()
"""


@pytest.fixture
def qubo(tmp_path: Path) -> Path:
    """An odd cycle, whose roof dual leaves a gap: the least energy is that of five nodes, two of which are neighbours, -13."""
    (tmp_path / "a.sparse").write_text(CYCLE)
    return tmp_path / "a.sparse"


def process(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *(str(a) for a in arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("--help",), 0), *(((name, "--help"), 0) for name in ("qpbo", "mrf", "verify", "densecrf")), (("qpob",), 2)],
)
def test_helping_does_not_wait_for_imports(arguments: tuple[str, ...], code: int) -> None:
    ended = process(IMPORTED, *arguments)
    found = ended.stdout.splitlines()[-1].split()
    assert ended.returncode == code
    assert "blocklp" in found and not {"torch", "numpy", "scipy", "networkx", "numba", "matplotlib", "onnx"} & set(found)


def test_the_help_names_the_methods_that_there_are() -> None:
    assert METHODS == tuple(bl.methods.METHODS)


@pytest.mark.parametrize(
    "where",
    ["typer/__init__.py:<module>", "torch/_tensor.py:<module>", "qpbo/readers.py:read_qubo"],
)
def test_an_interrupt_before_there_is_a_bound_is_one_line(qubo: Path, where: str) -> None:
    found = process(INTERRUPTED, where, "qpbo", qubo, "--json")
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "interrupted\n")


def test_an_interrupt_of_the_passes_leaves_a_bracket(qubo: Path) -> None:
    found = process(INTERRUPTED, "blocklp/progress.py:__call__", "qpbo", qubo, "--json")
    assert (found.returncode, found.stderr) == (130, "")
    [entry] = json.loads(found.stdout)
    assert entry["status"] == "interrupted" and entry["bound"] <= -13 <= entry["energy"]


def test_streams_are_apart(tmp_path: Path) -> None:
    (tmp_path / "g.clq").write_text("p edge 3 1\ne 1 2\n")
    found = process("from blocklp.problems.command_line.main import main; main()", "mis", tmp_path / "g.clq", "--json")
    assert json.loads(found.stdout)[0]["weight"] == 2
    assert "complement" in found.stderr and found.returncode == 0


def test_the_time_limit_counts_from_the_start_of_the_process(qubo: Path) -> None:
    found = process("from blocklp.problems.command_line.main import main; main()", "qpbo", qubo, "--json", "--time-limit", "0.1")
    assert (found.returncode, found.stdout) == (2, "") and "the time limit of 0.1 s was reached while reading" in found.stderr


@pytest.mark.parametrize("name", ["qpbo", "mis", "mrf", "verify", "densecrf", "stereo"])
def test_time_limits_count_from_the_start_of_the_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command tells its deadline when the process began, imports included, less what it keeps for its end."""
    seen = list[float | None]()

    class Seen(Exception):
        pass

    def deadline(_: Deadline, seconds: float, *, began: float | None = None) -> None:
        seen.append(began)
        raise Seen

    monkeypatch.setattr(Deadline, "__init__", deadline)
    files = ["a", "b", "--disparities", "4"] if name == "stereo" else ["a", "--unary", "u"] if name == "densecrf" else ["a"]
    limit = "--timeout" if name == "verify" else "--time-limit"
    answer = CliRunner().invoke(app, [name, *files, limit, "50"], obj=123.0)
    assert isinstance(answer.exception, Seen), answer.output
    assert seen == [123.0 - CLOSING]

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from blocklp.problems.command_line.app import app
from blocklp.problems.learnt import FAMILIES, LearntBranching, LearntStart
from blocklp.problems.learnt import families as own


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.mark.slow
def test_a_start_is_trained_and_written(tmp_path, monkeypatch):
    side = {"training": 4, "target": 5}
    draw = {part: lambda seed, n=n: own.roof_duality_model(own.ising(n, seed)) for part, n in side.items()}
    small = own.Family("spins", rounds=3, **draw)
    monkeypatch.setitem(FAMILIES, "ising", small)
    found = run("train", "ising", "--output", tmp_path / "start.safetensors", "--seconds", 1, "--json")
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout)
    assert report["rounds"] == 3 and report["passes"] == 4 and report["family"] == "ising"
    assert "steps" in found.stderr
    start = LearntStart.load(tmp_path / "start.safetensors")
    solver = FAMILIES["ising"].training(0).compile()
    assert solver.solve(warm_start=start(solver)).status[0].name == "OPTIMAL"


@pytest.mark.slow
def test_branching_is_trained_and_used(tmp_path, monkeypatch):
    monkeypatch.setitem(own.BRANCHING, "ba", own.BranchingFamily("sets", lambda seed: own.independent_set(55, seed)))
    file, rule = tmp_path / "f.sparse", tmp_path / "rule.safetensors"
    found = run("train", "ba", "--learn", "branching", "--output", rule, "--seconds", 40, "--quiet")
    assert found.exit_code == 0 and found.stderr == ""
    LearntBranching.load(rule)
    qubo = own.independent_set(55, 1)
    lines = [f"{i + 1} {i + 1} {v:.6f}" for i, v in enumerate(qubo.linear)]
    lines += [f"{i + 1} {j + 1} {v / 2:.6f}" for (i, j), v in zip(qubo.edges, qubo.quadratic, strict=True)]
    file.write_text(f"{qubo.n} {len(lines)}\n" + "\n".join(lines) + "\n")
    answers = [
        json.loads(run("qpbo", file, "--exact", "--json", *more).stdout)[0]
        for more in ((), ("--branching", rule), ("--branching", "strong"))
    ]
    assert answers[1]["energy"] == pytest.approx(answers[0]["energy"], abs=1e-9)
    assert answers[2]["energy"] == pytest.approx(answers[0]["energy"], abs=1e-9)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("train", "er", "--output", "x.npz"), "choose ba, ising, matching"),
        (("train", "er", "--learn", "branching", "--rounds", 3, "--output", "x.npz"), "--rounds is about starts"),
        (("qpbo", "x.sparse", "--branching", "x.npz"), "--branching is about searches"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, word):
    found = run(*arguments)
    assert found.exit_code == 2 and word in " ".join(found.output.split())
    assert np.char.count(found.output, "Traceback") == 0

"""Searches of one query over workers: the verdicts, nodes and proofs of one process."""

from __future__ import annotations

import importlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from blocklp.campaigns import InProcess, LocalExecutor
from blocklp.deadline import Deadline
from blocklp.problems.command_line.app import app
from blocklp.problems.verification import Builder, Network, Property, VerifySettings, verify
from blocklp.problems.verification.proof import check_proof
from blocklp.problems.verification.shared_search import candidates

from ..verification_networks import dense, residual


def above(network: Network, part: float) -> Property:
    """Whether the first output comes above a level, at some part of its spread from the largest of many."""
    x = 2 * torch.rand(4000, *network.input_shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1
    y = network(x)[:, 0]
    level = float(y.max() + part * y.std())
    row = np.zeros((1, network.outputs))
    row[0, 0] = -1.0
    ends = np.ones(network.inputs)
    return Property.of(-ends, ends, row, [-level])


INPUTS, SIGNS = (residual(1), VerifySettings()), (dense(2, (4, 10, 10, 2)), VerifySettings(few_inputs=0))


@pytest.mark.parametrize(("network", "settings", "part"), [(*INPUTS, 0.3), (*SIGNS, 1.0)], ids=["inputs", "signs"])
def test_processes_prove_by_the_same_nodes(
    network: Network, settings: VerifySettings, part: float, two_workers: LocalExecutor
) -> None:
    prop = above(network, part)
    ask = partial(verify, network, prop, timeout=60, proof=True, settings=settings)
    found = [ask(executor=where) for where in (InProcess(), two_workers)]
    assert [v.status for v in found] == ["unsat"] * 2 and found[0].nodes == found[1].nodes > 20
    assert found[0].bound == found[1].bound > 0
    proofs = [json.loads(json.dumps(list(v.proof.steps()))) for v in found if v.proof is not None]
    assert proofs[0] == proofs[1]
    checked = check_proof(network, prop, proofs[1])
    assert checked["status"] == "unsat" and checked["leaves"] > 10


@pytest.mark.parametrize(("network", "settings"), [INPUTS, SIGNS], ids=["inputs", "signs"])
def test_a_counterexample_of_a_worker_ends_the_search(
    network: Network, settings: VerifySettings, two_workers: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    prop = above(network, -0.02)
    # None before the search.
    module = importlib.import_module("blocklp.problems.verification.verify")
    monkeypatch.setattr(module, "find_counterexample", lambda *args, **options: None)
    found = verify(network, prop, timeout=60, proof=True, executor=two_workers, settings=settings)
    assert found.status == "sat" and found.x is not None and found.proof is not None
    assert check_proof(network, prop, found.proof.steps())["status"] == "sat"
    y = network(torch.tensor(found.x).double().view(1, *network.input_shape))[0, 0]
    assert float(y) >= -prop.clauses[0].right[0] - 1e-5


class Counting(InProcess):
    """Stands for processes, and counts tasks."""

    tasks = 0

    def __init__(self, workers: int, threads: int | None = None) -> None:
        del workers, threads

    def submit(self, function: Any, /, *arguments: Any) -> Any:
        """Count and do it here."""
        Counting.tasks += 1
        return super().submit(function, *arguments)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the legacy exporter is the quick one
def test_the_command_takes_workers_for_one_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(2, 20), torch.nn.ReLU(), torch.nn.Linear(20, 1))
    torch.onnx.export(module, (torch.zeros(1, 2),), str(tmp_path / "net.onnx"), dynamo=False)
    top = float(module(2 * torch.rand(4000, 2) - 1).detach().max())
    box = "".join(f"(declare-const X_{i} Real) (assert (>= X_{i} -1)) (assert (<= X_{i} 1))\n" for i in range(2))
    query, proof = tmp_path / "query.vnnlib", tmp_path / "proof.gz"
    query.write_text(f"{box}(declare-const Y_0 Real) (assert (>= Y_0 {top + 0.02}))\n")
    monkeypatch.setattr("blocklp.campaigns.LocalExecutor", Counting)
    asked = ["verify", str(query), "--network", str(tmp_path / "net.onnx"), "--proof", str(proof), "--workers", "2"]
    told = CliRunner().invoke(app, asked)
    assert told.exit_code == 0 and told.stdout == "unsat\n" and Counting.tasks > 0, told.output
    checked = CliRunner().invoke(app, ["check-proof", str(query), str(proof), "--network", str(tmp_path / "net.onnx")])
    assert checked.exit_code == 0 and checked.stdout.startswith("unsat\n"), checked.output


@pytest.mark.parametrize("weight", [1.0, 1e30])
def test_points_are_candidates_by_double_precision(weight: float) -> None:
    """Also where results are hardly, or not at all, numbers of single precision."""
    b = Builder((1,), "line")
    b.linear(0, torch.tensor([[weight]], dtype=torch.float64))
    edge = 1.0 + 1e-9 if weight == 1 else 1e10
    box = np.zeros(1), np.full(1, 4 * edge)
    clause = Property.of(*box, np.ones((1, 1)), np.array([weight * edge])).clauses[0]
    x = torch.tensor([[0.5 * edge], [edge - 1e-12 * edge], [edge + 1e-12 * edge], [3 * edge]], dtype=torch.float64)
    found = candidates(b.build(), [clause], x, Deadline())
    assert [float(point[0]) for point in found] == [float(np.float32(v)) for v in x[:2, 0]]

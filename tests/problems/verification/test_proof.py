"""Proofs about networks: what a search writes down is checked in integers, and nothing else is."""

from __future__ import annotations

import copy
import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from blocklp.errors import FormatError, OptionError
from blocklp.problems.command_line.app import app
from blocklp.problems.verification import Network, Property, VerifySettings, digits, verify
from blocklp.problems.verification.exact import solve_leaf
from blocklp.problems.verification.proof import check_proof
from blocklp.problems.verification.proof_files import read_proof, write_proof

from ..verification_networks import conv, dense, residual

QUERY = """(declare-const X_0 Real)
(declare-const X_1 Real)
(declare-const Y_0 Real)
(assert (>= X_0 -1)) (assert (<= X_0 1)) (assert (>= X_1 -1)) (assert (<= X_1 1))
(assert (>= Y_0 {}))
"""


def steps(network: Network, prop: Property) -> tuple[str, list[dict[str, Any]]]:
    """The verdict, and its proof after a round trip through JSON."""
    verdict = verify(network, prop, timeout=30, proof=True)
    assert verdict.proof is not None, verdict
    return verdict.status, json.loads(json.dumps(list(verdict.proof.steps())))


def above(network: Network, level: float, half: float = 1.0) -> Property:
    """Whether the first output exceeds a level in a box around zero."""
    ends = np.full(network.inputs, half)
    row = np.zeros((1, network.outputs))
    row[0, 0] = -1.0
    return Property.of(-ends, ends, row, [-level])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("build", [dense, conv, residual])
def test_verdicts_have_proofs_that_samples_agree_with(build: Any, seed: int) -> None:
    network = build(seed)
    x = 2 * torch.rand(4000, *network.input_shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1
    top = float(network(x)[:, 0].max())
    spread = float(network(x)[:, 0].std())
    for level in (top + spread / 2, top - spread / 10):
        status, proof = steps(network, above(network, level))
        found = check_proof(network, above(network, level), proof)
        assert found["status"] == status and found["leaves"] >= 1
        assert status == "sat" or level > top


@pytest.mark.parametrize("seed", [0, 2])
def test_margins_that_the_checker_cannot_see_are_not_called_proved(seed: int) -> None:
    """Thresholds next to the exact minimum: of all signs, by an LP each."""
    network = dense(seed, (2, 4, 1))
    ends, [relu] = torch.ones(2, dtype=torch.float64), network.relus
    leaves = ({relu: torch.tensor(on)} for on in itertools.product((True, False), repeat=4))
    every = torch.ones(1, dtype=torch.bool)
    least = min(o.value for on in leaves if (o := solve_leaf(network, -ends, ends, on, relu + 1, every).optimum).status == "optimal")
    for margin in (1e-6, 1e-7, 1e-8, 1e-9):
        prop = Property.of(-ends.numpy(), ends.numpy(), [[1.0]], [least - margin])
        verdict = verify(network, prop, timeout=30, proof=True, settings=VerifySettings(few_inputs=0))
        assert verdict.status == "unsat" or (verdict.status == "unknown" and margin < 1e-6)
        assert verdict.proof is None or check_proof(network, prop, verdict.proof.steps())["status"] == "unsat"


def cases() -> list[tuple[Network, Property, list[dict[str, Any]]]]:
    network, images, labels = digits.load()
    image = images[1]
    low, high = (image - 0.04).clamp(0, 1).flatten(), (image + 0.04).clamp(0, 1).flatten()
    prop = Property.robustness(low, high, int(labels[1]), 10)
    return [(network, prop, steps(network, prop)[1])]


@pytest.mark.parametrize("seed", range(4))
def test_multipliers_of_signs_are_those_of_the_rows_as_they_are_stated(seed: int) -> None:
    """Two rows with right-hand sides of many digits, a mix of which is impossible; no inputs are split."""
    network = dense(seed, (4, 10, 10, 2))
    y = network(2 * torch.rand(4000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1)
    levels = y[int((y / y.std(0)).sum(1).argmax())] + 0.4 * y.std(0)
    prop = Property.of(-np.ones(4), np.ones(4), -np.eye(2), -levels)
    verdict = verify(network, prop, timeout=60, proof=True, settings=VerifySettings(few_inputs=0))
    assert verdict.status == "unsat" and verdict.nodes > 5 and verdict.proof is not None
    found = check_proof(network, prop, json.loads(json.dumps(list(verdict.proof.steps()))))
    assert found["status"] == "unsat" and found["leaves"] > 5


def test_mutated_proofs_are_refused() -> None:
    [(network, prop, proof)] = cases()
    assert check_proof(network, prop, proof)["status"] == "unsat"
    leaves = [i for i, step in enumerate(proof) if "leaf" in step]
    for mutated in (proof[:-1], [*proof, proof[-1]], [s for i, s in enumerate(proof) if i != leaves[0]], []):
        with pytest.raises(FormatError):
            check_proof(network, prop, mutated)
    wider = Property.robustness(prop.clauses[0].lower - 0.3, prop.clauses[0].upper + 0.3, 1, 10)
    with pytest.raises(FormatError):
        check_proof(network, wider, proof)
    changed = 0
    for number, step in enumerate(proof):
        for where in numbers(step):
            other = copy.deepcopy(proof)
            place = other[number]
            for key in where[:-1]:
                place = place[key]
            place[where[-1]] = "x"
            with pytest.raises(FormatError, match=f"step {number + 1}"):
                check_proof(network, prop, other)
            changed += 1
            break
    assert changed >= 1


def numbers(step: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Places of the numbers in a step."""
    pairs = step.items() if isinstance(step, dict) else enumerate(step) if isinstance(step, list) else ()
    inner = [place for key, value in pairs for place in numbers(value, (*at, key))]
    return inner if inner or isinstance(step, dict | list) else [at]


def test_no_mutation_of_numbers_proves_what_is_false() -> None:
    """A query with a counterexample: whatever multipliers say, no proof of another query proves it unsat."""
    network = dense(0)
    x = 2 * torch.rand(4000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1
    top = float(network(x)[:, 0].max())
    _, proof = steps(network, above(network, top + 3.0))
    false = above(network, top - 1e-6)
    draw = np.random.default_rng(0)
    with pytest.raises(FormatError):
        check_proof(network, false, proof)
    for _ in range(60):
        other = copy.deepcopy(proof)
        step = other[draw.integers(len(other))]
        places = [p for p in numbers(step) if p]
        if not places:
            continue
        where = places[draw.integers(len(places))]
        place = step
        for key in where[:-1]:
            place = place[key]
        if isinstance(place[where[-1]], bool | str) or place[where[-1]] is None:
            continue
        place[where[-1]] = type(place[where[-1]])(draw.integers(-70000, 70000))
        with pytest.raises(FormatError):
            check_proof(network, false, other)


def test_files_and_what_they_are_about(tmp_path: Path) -> None:
    network, prop = dense(1), above(dense(1), 100.0)
    _, proof = steps(network, prop)
    path = tmp_path / "proof.gz"
    size = write_proof(path, network, prop, proof)
    assert size == path.stat().st_size and check_proof(network, prop, read_proof(path, network, prop))["status"] == "unsat"
    with pytest.raises(FormatError, match="another network"):
        read_proof(path, dense(2), prop)
    with pytest.raises(FormatError, match="another query"):
        read_proof(path, network, above(network, 101.0))
    lines = gzip.decompress(path.read_bytes()).splitlines()
    path.write_bytes(b"\n".join([lines[0].replace(b'"version":1', b'"version":9'), *lines[1:]]))
    with pytest.raises(FormatError, match="version 9"):
        read_proof(path, network, prop)
    path.write_bytes(b"\n".join(lines[:-1]))
    with pytest.raises(FormatError):
        check_proof(network, prop, read_proof(path, network, prop))
    path.write_bytes(b"{}")
    with pytest.raises(FormatError, match="no proof about a network"):
        read_proof(path, network, prop)


def test_a_proof_in_float32_is_refused() -> None:
    with pytest.raises(OptionError, match="real arithmetic"):
        verify(dense(0).in_float32(), above(dense(0), 100.0), proof=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the legacy exporter is the quick one
def test_the_commands(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    torch.onnx.export(module, (torch.zeros(1, 2),), str(tmp_path / "net.onnx"), dynamo=False)
    top = float(module(2 * torch.rand(4000, 2) - 1).detach().max())
    query, proof = tmp_path / "query.vnnlib", tmp_path / "proof.gz"
    network = ["--network", str(tmp_path / "net.onnx")]
    for level, status in ((top + 0.5, "unsat"), (top - 0.1, "sat")):
        query.write_text(QUERY.format(level))
        told = CliRunner().invoke(app, ["verify", str(query), *network, "--proof", str(proof)])
        assert told.exit_code == 0 and told.stdout.startswith(status), told.output
        checked = CliRunner().invoke(app, ["check-proof", str(query), str(proof), *network])
        assert checked.exit_code == 0 and checked.stdout.startswith(f"{status}\nproved by"), checked.output
        entry = json.loads(CliRunner().invoke(app, ["check-proof", str(query), str(proof), *network, "--json"]).stdout)
        assert entry["status"] == status and entry["leaves"] >= 1
    query.write_text(QUERY.format(top - 0.2))
    refused = CliRunner().invoke(app, ["check-proof", str(query), str(proof), *network])
    assert refused.exit_code == 2 and "another query" in refused.stderr

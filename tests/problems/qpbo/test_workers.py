"""Exact searches and proofs over workers: the nodes, minima and proofs of one process."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from blocklp.campaigns import InProcess
from blocklp.errors import FormatError
from blocklp.problems.command_line.app import app
from blocklp.problems.discrete.exact import ExactSettings
from blocklp.problems.proofs import check_proof, proof_from_log, prove_minimum
from blocklp.problems.qpbo import Qubo, StrongBranching, solve_qpbo_exactly
from blocklp.problems.qpbo import exact as exact_module

pytest.importorskip("numba", reason="dense functions are searched by compiled loops")


BOUNDS_ALONE = ExactSettings(energy_tables=0, leaf_tables=0, reduced_table=0)


def frustrated(seed, n):
    rng = np.random.default_rng(seed)
    pairs = np.array([(i, j) for i in range(n) for j in range(i) if rng.random() < 0.9])
    return Qubo.from_terms(rng.integers(-30, 31, n), pairs, rng.integers(-50, 51, len(pairs)))


def without_labels(found):
    return replace(found, labels=torch.zeros_like(found.labels))


def least(qubo):
    return min(float(energy) for energy in qubo.energy(np.array(list(itertools.product((0, 1), repeat=qubo.n)))))


def odd_clique():
    """Cut far worse than triangle inequalities tell, so that proofs have branches."""
    return Qubo.max_cut(5, [(i, j) for j in range(5) for i in range(j)], 64.0 + np.arange(10) % 4)


@pytest.mark.slow
def test_processes_search_the_same_nodes(monkeypatch, two_workers):
    # So that there is something to search, in small pieces.
    settings = ExactSettings(tables_at_once=0, tables=0, nodes_below=3)
    tightened = replace(settings, dense=100.0, root_passes=20, shrunk=0.0)
    monkeypatch.setattr(exact_module, "_incumbent", lambda part, labels, deadline: np.zeros(part.n, dtype=np.int8))
    relaxed = exact_module.solve_qpbo
    monkeypatch.setattr(exact_module, "solve_qpbo", lambda part, **options: without_labels(relaxed(part, **options)))
    small, lines = frustrated(3, 9), {}
    dense = frustrated(1, 16)
    for qubo, rule, own in ((dense, None, settings), (dense, None, tightened), (small, StrongBranching(), settings)):
        best = least(qubo)
        found = [solve_qpbo_exactly(qubo, branching=rule, executor=where, settings=own) for where in (InProcess(), two_workers)]
        assert [(f.energy, f.bound, f.proven) for f in found] == [(best, best, True)] * 2
        assert found[0].nodes == found[1].nodes > 1 and found[0].labels.equal(found[1].labels)
    clique = odd_clique()
    labels = solve_qpbo_exactly(clique).labels
    for name, where in (("here", InProcess()), ("there", two_workers)):
        lines[name] = []
        prove_minimum(clique, labels, executor=where, log=lines[name].append, settings=BOUNDS_ALONE)
    assert lines["here"] == lines["there"] and len(lines["here"]) > 1
    verdict = check_proof(clique, labels, proof_from_log(reversed(lines["there"])))
    assert verdict.optimal and float(verdict.value) == least(clique)
    assert verdict.leaves == (len(lines["there"]) + 1) / 2


def test_a_log_with_a_step_missing_is_no_proof():
    qubo, lines = odd_clique(), []
    prove_minimum(qubo, solve_qpbo_exactly(qubo).labels, log=lines.append, settings=BOUNDS_ALONE)
    assert len(lines) > 1
    for k in range(len(lines)):
        with pytest.raises(FormatError, match=r"ended|no other"):
            proof_from_log(lines[:k] + lines[k + 1 :])
    with pytest.raises(FormatError, match="no other"):
        proof_from_log([*lines, '[[7], {"parts": []}]'])
    for line in (
        "{}",
        "[1]",
        '[[[0, 0]], "a"]',
        "nothing",
        '[[], {"diagonal": [0.0]}]',
        "[[], {}]",
        '[[], {"branch": 0.5, "cases": []}]',
    ):
        with pytest.raises(FormatError, match=r"not the log|not a step"):
            proof_from_log([line])


def test_the_command_takes_workers_for_one_tree(tmp_path):
    (tmp_path / "a.sparse").write_text("3 4\n1 1 -3\n2 2 1\n3 3 -2\n1 2 1\n")
    shown = CliRunner().invoke(app, ["qpbo", str(tmp_path / "a.sparse"), "--exact", "--workers", "1", "--json"])
    assert shown.exit_code == 0, shown.output
    [entry] = json.loads(shown.stdout)
    assert entry["proven"] and entry["energy"] == -5

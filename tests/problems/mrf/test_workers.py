"""Exact minima of energies over workers: those of brute force, by the nodes of one process."""

import itertools
import json

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("numba", reason="tightened searches bound nodes in compiled loops")

from blocklp.campaigns import InProcess
from blocklp.problems.command_line.app import app
from blocklp.problems.discrete.exact import ExactSettings
from blocklp.problems.mrf import Mrf, solve_mrf_exactly


def random_field(seed, n=9):
    """All pairs of variables of three labels, some with entries that are forbidden."""
    rng = np.random.default_rng(seed)
    pairs = itertools.combinations(range(n), 2)
    return Mrf(np.full(n, 3), [(e, np.where(rng.random((3, 3)) < 0.05, np.inf, rng.integers(-20, 21, (3, 3)))) for e in pairs])


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "n", "shrunk"), [(0, 9, 0.0), (1, 7, 0.6)], ids=["a tree", "with rests"])
def test_processes_search_the_same_nodes(seed, n, shrunk, two_workers):
    # No elimination, and a weak root.
    settings = ExactSettings(energy_tables=0, root_passes=20, shrunk=shrunk)
    field, found = random_field(seed, n), []
    least = float(field.energy(np.array(list(itertools.product(range(3), repeat=n)))).min())
    for where in (InProcess(), two_workers):
        events = []
        found.append(solve_mrf_exactly(field, executor=where, settings=settings, callback=events.append))
        assert (found[-1].energy, found[-1].bound, found[-1].proven) == (least, least, True)
        assert all(event.bound <= least <= event.incumbent for event in events) and events
    assert found[0].nodes == found[1].nodes > 8 and found[0].labels.equal(found[1].labels)


def test_the_command_takes_workers_for_one_tree(tmp_path):
    (tmp_path / "a.uai").write_text("MARKOV\n2\n2 2\n2\n1 0\n2 0 1\n2\n0 3\n4\n1 2\n5 2\n")
    shown = CliRunner().invoke(app, ["mrf", str(tmp_path / "a.uai"), "--log", "--exact", "--workers", "1", "--json"])
    assert shown.exit_code == 0, shown.output
    [entry] = json.loads(shown.stdout)
    assert entry["proven"] and entry["energy"] == -8

"""Exact minima of energies over workers: those of brute force, by the nodes of one process."""

import itertools

import numpy as np
import pytest

pytest.importorskip("numba", reason="tightened searches bound nodes in compiled loops")

from blocklp.campaigns import InProcess, LocalExecutor
from blocklp.problems.discrete.exact import ExactSettings
from blocklp.problems.mrf import Mrf, solve_mrf_exactly


def random_field(seed, n=9):
    """All pairs of variables of three labels, some with entries that are forbidden."""
    rng = np.random.default_rng(seed)
    pairs = itertools.combinations(range(n), 2)
    return Mrf(np.full(n, 3), [(e, np.where(rng.random((3, 3)) < 0.05, np.inf, rng.integers(-20, 21, (3, 3)))) for e in pairs])


def test_processes_search_the_same_nodes():
    found = []
    with LocalExecutor(2, threads=1) as there:
        for seed, shrunk in ((0, 0.0), (1, 0.6)):
            # No elimination and a weak root, so that there is a tree, with rests of its own or without.
            settings = ExactSettings(energy_tables=0, root_passes=20, shrunk=shrunk)
            field = random_field(seed)
            least = float(field.energy(np.array(list(itertools.product(range(3), repeat=9)))).min())
            for where in (None, InProcess(), there):
                events = []
                found.append(solve_mrf_exactly(field, executor=where, settings=settings, callback=events.append))
                assert (found[-1].energy, found[-1].bound, found[-1].proven) == (least, least, True)
                assert all(event.bound <= least <= event.incumbent for event in events) and events
            assert found[-1].nodes == found[-2].nodes > 20 and found[-1].labels.equal(found[-2].labels)

"""Weighted CSPs: costs that add up to the upper bound forbid, as toulbar2 reads them."""

import itertools

import numpy as np
import pytest

import blocklp as bl
from blocklp.errors import ModelError
from blocklp.problems.mrf import Mrf, read_mrf, solve_mrf, solve_mrf_exactly


def write(path, rng):
    """A random file, and its energies by reading the constraints once more: a dictionary of labellings, those of top left out."""
    n = int(rng.integers(1, 5))
    counts, top = rng.integers(1, 4, n).tolist(), int(rng.integers(1, 13))
    text, tables = [], []
    for _ in range(int(rng.integers(1, 6))):
        scope = rng.permutation(n)[: rng.integers(0, min(n, 3) + 1)].tolist()
        every = list(itertools.product(*(range(counts[i]) for i in scope)))
        chosen = [every[k] for k in rng.permutation(len(every))[: rng.integers(0, len(every) + 1)]] if scope else []
        default = int(rng.integers(0, 4))
        table = dict.fromkeys(every, default) | {labels: int(rng.integers(0, 7)) for labels in chosen}
        text.append([len(scope), *scope, default, len(chosen)])
        text += [[*labels, table[labels]] for labels in chosen]
        tables.append((scope, table))
    header = f"random {n} {max(counts)} {len(tables)} {top}\n{' '.join(map(str, counts))}\n"
    path.write_text(header + "".join(" ".join(map(str, line)) + "\n" for line in text))
    energies = {}
    for labels in itertools.product(*map(range, counts)):
        total = sum(table[tuple(labels[i] for i in scope)] for scope, table in tables)
        if total < top:
            energies[labels] = total
    return energies


def test_labellings_that_reach_the_upper_bound_are_forbidden_whichever_costs_add_up_to_it(tmp_path):
    rng, infeasible = np.random.default_rng(5), 0
    for number in range(60):
        path = tmp_path / f"{number}.wcsp"
        energies = write(path, rng)
        mrf = read_mrf(path)
        for labels in itertools.product(*map(range, mrf.counts.tolist())):
            assert mrf.energy(labels) == energies.get(labels, np.inf)
        found, least = solve_mrf_exactly(mrf), min(energies.values(), default=np.inf)
        infeasible += not energies
        assert found.proven and found.energy == found.bound == least and found.gap == 0
        assert found.status is (bl.Status.OPTIMAL if energies else bl.Status.INFEASIBLE)
        if energies:
            assert energies[tuple(found.labels.tolist())] == least
        if number < 12:
            relaxed = solve_mrf(mrf)
            assert relaxed.bound <= least + 1e-6
            assert relaxed.energy == energies.get(tuple(relaxed.labels.tolist()), np.inf)
    assert 10 < infeasible < 50


def test_toulbar2_agrees(tmp_path):
    toulbar2 = pytest.importorskip("pytoulbar2")
    rng = np.random.default_rng(6)
    for number in range(25):
        path = tmp_path / f"{number}.wcsp"
        write(path, rng)
        theirs = toulbar2.CFN()
        try:
            theirs.Read(str(path))
            answer = theirs.Solve()
        except Exception as error:  # how it says that there is no solution at once
            if "ontradiction" not in type(error).__name__ + str(error):
                raise
            answer = None
        ours = solve_mrf_exactly(read_mrf(path))
        assert ours.energy == (np.inf if answer is None else answer[1])


def test_top_of_an_energy_that_is_stated_in_python():
    mrf = Mrf([2, 2], [((0,), [1, 2]), ((1,), [3, 1]), ((0, 1), [[0, 0], [0, 5]])], constant=1, top=3.0)
    assert mrf.energy([[0, 0], [0, 1], [1, 0], [1, 1]]).tolist() == [np.inf] * 4
    assert solve_mrf_exactly(mrf).status is bl.Status.INFEASIBLE
    assert Mrf(mrf.counts, mrf.factors, 1, top=3.5).energy([0, 1]) == 3 and mrf.without_top().energy([0, 1]) == 3
    assert mrf.condition({0: 1}).top == 3.0 and mrf.to_qubo() is None
    with pytest.raises(ModelError, match="top is NaN"):
        Mrf([2], [], top=np.nan)

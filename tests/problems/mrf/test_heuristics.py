import itertools

import numpy as np
import pytest
import torch

from blocklp.deadline import Deadline
from blocklp.errors import ModelError, OptionError, ScopeError
from blocklp.general_solvers.solvers import reference
from blocklp.problems.mrf import Mrf, descend, expand, fuse, solve_mrf_exactly
from blocklp.problems.mrf.path_moves import moved_along_paths
from blocklp.problems.qpbo import Qubo
from blocklp.problems.qpbo.max_flow import roof_dual_labels
from blocklp.problems.qpbo.relaxation import roof_duality_model

from ..random_mrfs import labellings, random_mrf


@pytest.mark.parametrize("seed", range(6))
def test_no_single_change_improves_a_descended_labelling(seed):
    mrf = random_mrf(seed, order=3, hard=0.15)
    starts = labellings(mrf)
    found = descend(mrf, torch.tensor(starts))
    x = found.labels.numpy()
    assert np.array_equal(mrf.energy(x), found.energy.numpy())
    assert (found.energy.numpy() <= mrf.energy(starts)).all()
    for i, count in enumerate(mrf.counts):
        for label in range(count):
            changed = x.copy()
            changed[:, i] = label
            assert (mrf.energy(changed) >= found.energy.numpy()).all()


def test_descent_stops_after_its_rounds():
    mrf = random_mrf(1, n=6, least=2)
    start = torch.zeros(1, mrf.n, dtype=torch.long)
    assert torch.equal(descend(mrf, start, max_rounds=0).labels, start)
    with pytest.raises(OptionError, match="max_rounds"):
        descend(mrf, start, max_rounds=-1)
    with pytest.raises(ScopeError, match="variable 0"):
        descend(mrf, start + 9)


@pytest.mark.parametrize("hard", [0.0, 0.15])
@pytest.mark.parametrize("seed", range(6))
def test_expansions_never_raise_the_energy(seed, hard):
    mrf = random_mrf(seed, n=6, hard=hard)
    for start in labellings(mrf)[::40]:
        assert mrf.energy(expand(mrf, start)) <= mrf.energy(start)


def test_expansions_of_a_potts_model_are_best_possible():
    """No expansion move may improve the result: every move is enumerated; Potts moves are submodular, so that all are found."""
    rng = np.random.default_rng(0)
    edges = [(i, j) for i, j in itertools.combinations(range(7), 2) if rng.random() < 0.5]
    mrf = Mrf.from_arrays(rng.integers(0, 10, (7, 3)), edges, 3.0 * (1 - np.eye(3)))
    x = expand(mrf, np.zeros(7, dtype=int))
    moves = np.array(list(itertools.product((False, True), repeat=7)))
    for alpha in range(3):
        assert mrf.energy(np.where(moves, alpha, x)).min() >= mrf.energy(x)
    assert mrf.energy(expand(mrf, x, time_limit=1e-9)) == mrf.energy(x)


def test_expansions_are_for_pairs():
    with pytest.raises(ModelError, match="3 variables"):
        expand(Mrf([2, 2, 2], [((0, 1, 2), np.zeros((2, 2, 2)))]), np.zeros(3, dtype=int))


@pytest.mark.parametrize("seed", range(20))
def test_flow_labels_what_roof_duality_decides(seed, all_labellings):
    rng = np.random.default_rng(seed)
    qubo = Qubo.from_matrix(rng.integers(-9, 10, (8, 8)) * (rng.random((8, 8)) < 0.3))
    labels = roof_dual_labels(qubo)
    every = all_labellings(8)
    assert (qubo.energy(np.where(labels >= 0, labels, every)) <= qubo.energy(every)).all()
    # A label is decided if every optimum of the LP has it (strong persistency): the other one then costs more.
    model = roof_duality_model(qubo)
    optimum = float(reference(model).objective[0])
    for i in range(8):
        other = (0.5, 0.5) if labels[i] < 0 else (1.0 - labels[i], 1.0 - labels[i])
        value = float(reference(model, bounds={model.variables["y"][i]: other}).objective[0])
        if labels[i] >= 0:
            assert value > optimum + 1e-6
        else:
            assert value == pytest.approx(optimum, abs=1e-6)


@pytest.mark.parametrize("power", [-1060, -600, 40, 1010])
def test_flow_labels_do_not_depend_on_the_scale(power):
    rng = np.random.default_rng(0)
    decided = 0
    for _ in range(20):
        qubo = Qubo.from_matrix(rng.integers(-9, 10, (8, 8)) * (rng.random((8, 8)) < 0.3))
        scaled = Qubo(np.ldexp(qubo.linear, power), qubo.edges, np.ldexp(qubo.quadratic, power))
        labels = roof_dual_labels(qubo)
        decided += int((labels >= 0).sum())
        assert (roof_dual_labels(scaled) == labels).all()
    assert decided > 40


@pytest.mark.parametrize("hard", [0.0, 0.15])
@pytest.mark.parametrize("seed", range(4))
def test_fusions_never_raise_the_energy(seed, hard):
    mrf = random_mrf(seed, n=6, hard=hard)
    every = labellings(mrf)
    others = every[::97]
    for start in every[::40]:
        fused = fuse(mrf, start, others)
        assert mrf.energy(fused) <= mrf.energy(start)
        assert mrf.energy(fused) <= mrf.energy(others).min()


def test_fusions_of_a_potts_chain_take_the_best_parts():
    """On a tree of two labels in the mix the moves are exact: all mixtures of two labellings are enumerated."""
    rng = np.random.default_rng(1)
    mrf = Mrf.from_arrays(rng.random((8, 3)), [(i, i + 1) for i in range(7)], rng.random((3, 3)))
    first, second = rng.integers(0, 3, (2, 8))
    mixtures = np.where(np.array(list(itertools.product((False, True), repeat=8))), second, first)
    assert mrf.energy(fuse(mrf, first, second[None])) == pytest.approx(mrf.energy(mixtures).min())


@pytest.mark.parametrize("seed", range(6))
def test_a_path_of_states_is_relabelled_exactly_while_all_else_stays(seed):
    """One automaton alone gets its optimum from any labelling; beside another one and pairs the energy never rises."""
    rng = np.random.default_rng(seed)

    def automaton(first):
        """Costs of four symbols, and five states behind them."""
        steps = [np.where(rng.random((3, 2, 2)) < 0.3, np.inf, rng.integers(0, 9, (3, 2, 2))) for _ in range(4)]
        words = [((first + k,), rng.integers(0, 9, 3)) for k in range(4)]
        return words + [((first + k, first + 4 + k, first + 5 + k), step) for k, step in enumerate(steps)]

    alone = Mrf([3] * 4 + [2] * 5, automaton(0))
    found = moved_along_paths(alone, rng.integers(0, alone.counts, (3, alone.n)), Deadline())
    assert alone.energy(found) == solve_mrf_exactly(alone).energy
    pairs = [((i, j), rng.integers(0, 9, (3, 3))) for i, j in ((0, 9), (1, 10), (2, 11), (3, 12), (0, 1))]
    both = Mrf(([3] * 4 + [2] * 5) * 2, [*alone.factors, *automaton(9), *pairs])
    starts = rng.integers(0, both.counts, (5, both.n))
    reached = both.energy(moved_along_paths(both, starts, Deadline()))
    assert solve_mrf_exactly(both).energy <= reached <= both.energy(starts).min()

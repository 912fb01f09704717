import itertools

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.errors import OptionError, ScopeError
from blocklp.general_solvers.solvers import reference
from blocklp.oracles import Chain, Joint
from blocklp.problems.mrf import Mrf, cycles, read_mrf, relax, solve_mrf, solve_mrf_exactly, violated_clusters
from blocklp.problems.mrf.chains import edge_chains, state_paths
from blocklp.problems.mrf.polytope import rounded_tables
from blocklp.problems.mrf.rounding import incumbent
from blocklp.problems.mrf.tightening import tightened_local_polytope

from ..random_mrfs import labellings, random_mrf


def lp(mrf, *arguments):
    return float(reference(relax(mrf, *arguments).model).objective[0])


@pytest.mark.parametrize(("order", "hard"), [(2, 0.0), (2, 0.1), (3, 0.0), (3, 0.1)])
@pytest.mark.parametrize("seed", range(3))
def test_bounds_and_labellings_against_enumeration_and_highs(seed, order, hard):
    mrf = random_mrf(seed, order=order, hard=hard, least=2)
    best = mrf.energy(labellings(mrf)).min()
    assert np.isfinite(best)
    optimum = lp(mrf, "edges")
    found = solve_mrf(mrf, tol=1e-5, passes=3000)
    assert optimum <= best + 1e-7
    assert found.bound <= optimum + 1e-9 * max(1, abs(optimum))
    assert found.bound == pytest.approx(optimum, abs=3e-4 * max(1, abs(optimum)))
    assert found.energy == mrf.energy(found.labels.numpy()) >= best


@pytest.mark.parametrize("hard", [0.0, 0.1])
@pytest.mark.parametrize("seed", range(3))
def test_all_decompositions_have_one_optimum(seed, hard):
    mrf = random_mrf(seed, n=6, hard=hard)
    edges = lp(mrf, "edges")
    assert lp(mrf, "chains") == pytest.approx(edges, abs=1e-6)
    found = solve_mrf(mrf, "chains", tol=1e-5, passes=2000)
    assert edges - 1e-3 * max(1, abs(edges)) <= found.bound <= edges + 1e-7
    binary = random_mrf(seed, n=7, least=2, most=2)
    assert lp(binary, "qubo") == pytest.approx(lp(binary, "edges"), abs=1e-6)


def test_a_tree_is_solved_exactly_by_averaging_on_chains():
    rng = np.random.default_rng(5)
    tree = [(0, 1), (1, 2), (2, 3), (3, 4), (1, 5), (5, 6)]
    mrf = Mrf.from_arrays(rng.normal(size=(7, 3)), tree, rng.normal(size=(6, 3, 3)))
    best = mrf.energy(labellings(mrf)).min()
    found = solve_mrf(mrf, "chains", method="min-marginals", tol=1e-7)
    assert (found.energy, found.bound) == (pytest.approx(best), pytest.approx(best, abs=1e-6))


def automata(seed):
    """Two automata of three states that read two labels each, in shuffled numbers, and pairs between what they read."""
    rng = np.random.default_rng(seed)
    place = rng.permutation(14)
    read, states = place[:6].reshape(2, 3), place[6:].reshape(2, 4)
    counts = np.full(14, 2)
    counts[states] = 3
    factors = [((i,), rng.integers(0, 9, 2)) for i in place[:6]]
    for row, word in zip(states, read, strict=True):
        for before, symbol, after in zip(row, word, row[1:], strict=False):
            step = rng.integers(0, 9, (3, 2, 3)).astype(float)
            factors.append(((before, symbol, after), np.where(rng.random(step.shape) < 0.4, np.inf, step)))
    factors += [((i, j), rng.integers(0, 9, (2, 2))) for i in read[0] for j in read[1]]
    return Mrf(counts, factors)


@pytest.mark.parametrize("seed", range(3))
def test_automata_are_one_block_each_and_keep_the_optimum(seed):
    mrf = automata(seed)
    model = relax(mrf).model
    assert sum(len(b.scope) for b in model.blocks if isinstance(b.type, Chain)) == 2
    assert not any(isinstance(b.type, Joint) for b in model.blocks)
    optimum = lp(mrf, "edges")
    assert lp(mrf) == pytest.approx(optimum, abs=1e-6)
    found = solve_mrf(mrf, tol=1e-6)
    best = solve_mrf_exactly(mrf)
    assert optimum - 1e-4 * abs(optimum) <= found.bound <= optimum + 1e-7 <= best.energy + 2e-7
    assert found.energy == mrf.energy(found.labels.numpy()) >= best.energy
    labels = np.stack(np.unravel_index(np.arange(mrf.counts.prod()), mrf.counts), 1)
    assert best.energy == mrf.energy(labels).min()


def test_paths_that_are_there_by_chance_are_left_out():
    """Second differences along rows and columns of a grid: hardly any factor hands a state on."""
    rows = [(6 * i + j, 6 * i + j + 1, 6 * i + j + 2) for i in range(6) for j in range(4)]
    columns = [(6 * i + j, 6 * i + j + 6, 6 * i + j + 12) for i in range(4) for j in range(6)]
    mrf = Mrf([2] * 36, [(scope, np.ones((2, 2, 2))) for scope in rows + columns])
    assert 0 < sum(len(path.links) for path in state_paths(mrf)) < 24
    assert not any(isinstance(blocks.type, Chain) for blocks in relax(mrf).model.blocks)


def test_a_path_reads_each_variable_once_and_leaves_factors_with_others_inside():
    step = np.zeros((2, 2, 2))
    row = [((0, 1, 4), step), ((2, 4, 5), step), ((3, 5, 6), step)]
    assert [path.links for path in state_paths(Mrf([2] * 7, row))] == [[(1, 0, 4), (4, 2, 5), (5, 3, 6)]]
    twice = [*row[:2], ((0, 5, 6), step)]  # variable 0 is read at both ends
    assert [path.links for path in state_paths(Mrf([2] * 7, twice))] == [[(6, 0, 5), (5, 2, 4)]]
    inside = [*row, ((0, 1), np.zeros((2, 2)))]
    assert [path.links for path in state_paths(Mrf([2] * 7, inside))] == [[(4, 2, 5), (5, 3, 6)]]


@pytest.mark.parametrize("seed", range(4))
def test_chains_cover_every_edge_once(seed):
    mrf = random_mrf(seed, n=12, density=0.3)
    chains = edge_chains(mrf)
    pairs = [tuple(sorted(p)) for chain in chains for p in itertools.pairwise(chain)]
    assert sorted(pairs) == [scope for scope, _ in mrf.factors if len(scope) == 2]
    assert all(len(set(chain)) == len(chain) and (len(chain) - 1).bit_count() == 1 for chain in chains)


def test_rows_and_columns_of_a_grid_are_chains():
    lines = [[5 * k + s for s in range(5)] for k in range(5)] + [[k + 5 * s for s in range(5)] for k in range(5)]
    edges = [pair for line in lines for pair in itertools.pairwise(line)]
    assert sorted(edge_chains(Mrf.from_arrays(np.zeros((25, 2)), edges, np.zeros((2, 2))))) == sorted(lines)


@pytest.mark.parametrize("tighten", [False, True])
def test_models_without_a_labelling(tighten):
    """Two of three must differ and all agree: the local polytope does not see it, the cluster does."""
    same, differ = np.where(np.eye(2) > 0, 0, np.inf), np.where(np.eye(2) > 0, np.inf, 0)
    found = solve_mrf(Mrf([2, 2, 2], [((0, 1), same), ((1, 2), same), ((0, 2), differ)]), tighten=tighten)
    assert (found.energy, found.gap) == (np.inf, np.inf)
    assert (found.relaxation.status[0] == bl.Status.INFEASIBLE) == tighten


def test_rounded_tables_fit_their_ends_and_keep_tables_that_fit():
    draw = torch.Generator().manual_seed(0)
    table = torch.rand(4, 3, 5, generator=draw, dtype=torch.float64)
    first, second = (torch.rand(4, k, generator=draw, dtype=torch.float64).softmax(-1) for k in (3, 5))
    fitted = rounded_tables(table, first, second)
    assert (fitted >= 0).all()
    assert torch.allclose(fitted.sum(-1), first) and torch.allclose(fitted.sum(-2), second)
    assert torch.allclose(rounded_tables(fitted, first, second), fitted)


@pytest.mark.parametrize("seed", range(4))
def test_clusters_raise_the_bound_to_at_most_the_minimum(seed):
    mrf = random_mrf(seed, n=5, least=2, density=1.0)
    best = mrf.energy(labellings(mrf)).min()
    triplets = list(itertools.combinations(range(5), 3))
    plain, tight = lp(mrf, "edges"), lp(mrf, "edges", triplets)
    assert plain <= tight + 1e-7 <= best + 2e-7
    assert lp(mrf, "edges", [range(5)]) == pytest.approx(best, abs=1e-6)
    found = solve_mrf(mrf, clusters=triplets, tol=1e-4, passes=2000)
    assert tight - 1e-2 * max(1, abs(tight)) <= found.bound <= tight + 1e-7


def test_the_gain_of_a_cluster_is_what_its_block_adds():
    """A frustrated triangle: the edges alone are worth 0, the cluster 1."""
    differ, same = np.eye(2), 1 - np.eye(2)
    mrf = Mrf([2, 2, 2], [((0, 1), differ), ((1, 2), differ), ((0, 2), differ)])
    relaxation = relax(mrf, "edges")
    solution = relaxation.model.solve(tol=1e-9, passes=1)
    [found] = violated_clusters(relaxation, solution, cycles(mrf), most=5)
    assert found.score.tolist() == [pytest.approx(1)] and found.type.sizes == (2, 2, 2)
    tight = relax(mrf, "edges", [(0, 1, 2)])
    warm = tight.model.solve(warm_start=solution.state, passes=1)
    assert warm.bound.item() >= solution.bound.item() - 1e-12
    assert lp(mrf, "edges") == pytest.approx(0, abs=1e-9) and lp(mrf, "edges", [(0, 1, 2)]) == pytest.approx(1)
    agreeable = Mrf([2, 2, 2], [((0, 1), same), ((1, 2), same), ((0, 2), same)])
    relaxation = relax(agreeable, "edges")
    assert violated_clusters(relaxation, relaxation.model.solve(), cycles(agreeable), most=5) == []


def test_blocks_that_share_variables_are_joined_where_no_cycle_of_pairs_helps():
    """Two triplets want a parity of the same pair, which is no factor, to be two labels that have to agree."""
    parity = np.indices((2, 2, 2)).sum(0) % 2.0
    mrf = Mrf([2] * 4, [((0, 1, 2), parity), ((0, 1, 3), 1 - parity), ((2, 3), 1 - np.eye(2))])
    assert mrf.energy(labellings(mrf)).min() == 1 and cycles(mrf) == []
    assert solve_mrf(mrf).bound == pytest.approx(0, abs=1e-3) and lp(mrf, "edges") == pytest.approx(0, abs=1e-9)
    found = solve_mrf(mrf, tighten=True)
    assert 1 - 1e-3 <= found.bound <= 1 + 1e-9 and found.energy == 1


@pytest.mark.parametrize(("least", "hard", "order"), [(2, 0.0, 2), (3, 0.0, 2), (2, 0.1, 2), (2, 0.0, 3), (1, 0.05, 3)])
@pytest.mark.parametrize("seed", range(3))
def test_tightened_bounds_are_those_of_the_clusters_that_joined(seed, least, hard, order):
    mrf = random_mrf(seed + 10, n=6, least=least, hard=hard, order=order)
    best = mrf.energy(labellings(mrf)).min()
    relaxation = relax(mrf, "edges")
    local = float(reference(relaxation.model).objective[0])
    told = []
    found, labelled = tightened_local_polytope(
        relaxation,
        incumbent(mrf, bl.Deadline()),
        bl.search.Budget(passes=100),
        tol=1e-5,
        passes=300,
        told=lambda r, energy: told.append((r, energy)),
    )
    relaxation.views.learn()
    clusters = [scope for scope in relaxation.views if len(scope) > 2 and scope not in dict(mrf.factors)]
    tight = float(reference(relaxation.model).objective[0])
    assert tight == pytest.approx(lp(mrf, "edges", clusters), abs=1e-6)
    bounds = [float(r.bound[0]) for r in found.rounds]
    assert bounds == sorted(bounds) and [r for r, _ in told] == list(found.rounds)
    assert local - 1e-3 * max(1, abs(local)) <= found.solution.bound.item() <= tight + 1e-7 <= best + 2e-7
    assert labelled.energy == mrf.energy(labelled.labels.numpy()) >= best
    point = relaxation.points.of_labels(labelled.labels[None])
    assert np.isinf(labelled.energy) or found.solution.primal.item() <= labelled.energy + 1e-9
    for blocks in relaxation.model.blocks:
        assert float(blocks.type.constraints().violation(point[:, blocks.scope]).max()) < 1e-9
    solved = solve_mrf(mrf, "edges", tighten=bl.search.Budget(passes=100), tol=1e-5, passes=300)
    assert solved.bound <= best + 1e-7 and solved.energy >= best and solved.rounds


@pytest.mark.parametrize("seed", range(24))
def test_any_model_is_bracketed(seed):
    """Scopes of none to four variables, single labels, forbidden entries, evidence, scales from 1e-3 to 1e6, either precision."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 4, rng.integers(1, 7))
    factors = []
    for _ in range(rng.integers(0, 10)):
        scope = rng.permutation(len(counts))[: rng.choice([0, 1, 2, 2, 2, 3, 4])]
        table = rng.normal(size=counts[scope]) * 10.0 ** rng.integers(-3, 7)
        factors.append((scope.tolist(), np.where(rng.random(table.shape) < 0.1, np.inf, table) if len(scope) and seed % 2 else table))
    mrf = Mrf(counts, factors)
    if seed % 3 == 0:
        mrf = mrf.condition({0: 0})
    best = mrf.energy(labellings(mrf)).min()
    for decomposition, tighten, dtype in (
        ("edges", True, torch.float64),
        ("auto", True, torch.float32),
        ("chains", False, torch.float32),
    ):
        found = solve_mrf(mrf, decomposition, tighten=tighten, dtype=dtype, passes=300)
        assert found.bound <= best + 1e-9 * max(1, abs(best)) and found.relaxation.safe_bound.item() <= best
        assert found.energy == mrf.energy(found.labels.numpy()) >= best
        assert np.isfinite(found.energy) or found.relaxation.status == (bl.Status.INFEASIBLE,) or np.isfinite(best)


def test_binary_models_are_tightened_as_qubos():
    mrf = random_mrf(3, n=8, least=2, most=2)
    best = mrf.energy(labellings(mrf)).min()
    found = solve_mrf(mrf, tighten=True, tol=1e-6)
    assert (found.energy, found.bound) == (best, pytest.approx(best, abs=1e-3))
    assert found.bound <= best + 1e-9 and found.labels.dtype == torch.long
    assert {b.name for b in found.relaxation.solver.models[0].blocks} <= {"Edge", "triangles", "four-cycles", "four-cliques"}


@pytest.mark.parametrize(
    ("name", "cost"), [("example_1", -40), ("frustrated_cycle_3", 1), ("frustrated_cycle_3_sym", 1), ("frustrated_cycle_5", 1)]
)
def test_tiny_instances_of_srmp(shared_qpbo, name, cost):
    mrf = read_mrf(shared_qpbo / "mrf" / "tiny" / f"{name}.uai", log=True)
    answer = (shared_qpbo / "mrf" / "tiny" / f"{name}.srmp_cpp.ans").read_text().split()
    assert float(answer[2]) == cost == mrf.energy(np.array(answer[3:], dtype=int))
    plain = solve_mrf(mrf, tol=1e-6)
    assert plain.energy == cost
    assert plain.bound == pytest.approx(float(answer[1]), abs=1e-4)  # SRMP's bound, that of the local polytope
    tight = solve_mrf(mrf, tighten=bl.search.Budget(rounds=3), tol=1e-6)
    assert tight.bound == pytest.approx(cost, abs=1e-4)
    assert tight.relaxation.status == (bl.Status.OPTIMAL,)


@pytest.mark.parametrize(
    ("file", "bound", "minimum", "found"),
    [
        ("Segmentation_13", 82.669508, 82.6695, True),
        ("DBN_15", -351.401488, -351.4015, True),
        ("Grids_11", -480.898503, -387.8948, False),
        ("CSP_11", 3.226507, 3.6943, False),
        ("ObjectDetection_11", 241.359037, 241.3590, True),
        ("ObjectDetection_14", 237.893665, 237.8937, True),
        ("multilabel/Segmentation_11", 312.759665, 312.7597, True),
        ("multilabel/wcsp_15", 0.0, 276.3102, False),
    ],
)
def test_real_instances(shared_qpbo, file, bound, minimum, found):
    """Bounds of the local polytope and proven minima by other solvers."""
    mrf = read_mrf(shared_qpbo / "mrf" / f"{file}.uai")
    solution = solve_mrf(mrf, passes=2000)
    assert bound - 2e-4 * max(1, abs(bound)) <= solution.bound <= bound + 1e-6 * max(1, abs(bound))
    assert solution.energy >= minimum - 1e-4
    assert solution.energy == pytest.approx(minimum, abs=1e-4) or not found


@pytest.mark.slow
def test_rounds_close_most_of_the_gap_of_a_grid(shared_qpbo):
    mrf = read_mrf(shared_qpbo / "mrf" / "Grids_11.uai")
    local, minimum = -480.898503, -387.8948
    solution = solve_mrf(mrf, tighten=bl.search.Budget(rounds=8), time_limit=30)
    assert (minimum - local) * 0.9 <= solution.bound - local <= minimum + 1e-4 - local


def test_several_instances_keep_their_order_and_interrupts_leave_brackets():
    mrfs = [random_mrf(k, n=4 + k, hard=0.1 * (k % 2)) for k in range(4)]
    for mrf, found in zip(mrfs, solve_mrf(mrfs, tol=1e-5), strict=True):
        assert len(found.labels) == mrf.n
        assert found.bound == pytest.approx(solve_mrf(mrf, tol=1e-5).bound, abs=1e-3)
    for mrf, found in zip(mrfs, solve_mrf(mrfs, callback=lambda event: True), strict=True):
        assert found.bound <= mrf.energy(labellings(mrf)).min() <= found.energy


def test_bad_options_are_refused():
    mrf = random_mrf(0, least=3)
    with pytest.raises(OptionError, match="decomposition"):
        relax(mrf, "trees")
    with pytest.raises(OptionError, match="qubo"):
        relax(mrf, "qubo")
    with pytest.raises(OptionError, match="chains"):
        solve_mrf(mrf, "chains", tighten=True)
    with pytest.raises(OptionError, match="one number for all"):
        solve_mrf(mrf, tighten=True, tol=torch.ones(1))
    for cluster in ((0, 1), (0, 1, 1), (0, 1, 99)):
        with pytest.raises(ScopeError, match="cluster"):
            relax(mrf, "edges", [cluster])


def test_an_interrupt_reaches_instances_with_and_without_hard_constraints():
    hard = Mrf([2, 2, 2], [((0, 1), np.array([[np.inf, 1.0], [1.0, 0.0]])), ((1, 2), np.eye(2)), ((0, 2), np.eye(2))])
    soft = Mrf([3, 3, 3], [(pair, np.eye(3)) for pair in [(0, 1), (1, 2), (0, 2)]])
    events = []

    def interrupt(event: bl.Event) -> None:
        events.append(event)
        raise KeyboardInterrupt

    found = solve_mrf([soft, hard, soft], callback=interrupt, tol=0)
    assert [f.relaxation.status for f in found] == [(bl.Status.INTERRUPTED,)] * 3
    assert len(events) == 1
    assert all(f.bound <= f.energy < np.inf for f in found)


@pytest.mark.parametrize("labels", [8, 20])
def test_many_labels_get_bounds_near_the_lp(labels):
    rng = np.random.default_rng(labels)
    mrf = Mrf([labels] * 4, [((i, j), rng.random((labels, labels))) for j in range(4) for i in range(j)])
    optimum = float(reference(relax(mrf).model).objective[0])
    found = solve_mrf(mrf, passes=400)
    assert 0.9 * optimum <= found.bound <= optimum + 1e-9 and found.bound <= found.energy

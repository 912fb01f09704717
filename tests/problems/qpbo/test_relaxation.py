import numpy as np
import pytest

import blocklp as bl
from blocklp.general_solvers.solvers import reference
from blocklp.problems.qpbo import Qubo, order, read_qubo, roof_duality_model, solve_qpbo

from ..spread_qubos import spread


def random_qubo(seed, n=8, density=0.5):
    rng = np.random.default_rng(seed)
    matrix = rng.integers(-9, 10, (n, n)) * (rng.random((n, n)) < density)
    return Qubo.from_matrix(matrix)


@pytest.mark.parametrize("seed", range(5))
def test_bound_and_labelling_against_brute_force_and_highs(seed, all_labellings):
    qubo = random_qubo(seed)
    found = solve_qpbo(qubo, tol=1e-6)
    lp = float(reference(roof_duality_model(qubo)).objective[0])
    best = qubo.energy(all_labellings(qubo.n)).min()
    assert found.relaxation.status == (bl.Status.OPTIMAL,)
    assert float(found.relaxation.bound[0]) == pytest.approx(lp, rel=2e-6, abs=2e-6)
    assert float(found.relaxation.safe_bound[0]) <= lp + 1e-9 * abs(lp)
    assert found.energy == qubo.energy(found.labels.numpy()) >= best


@pytest.mark.parametrize("count", [1, 15, 16, 17, 200, 4096])
def test_blocks_are_dealt_so_that_neighbours_come_apart(count):
    """Whatever the number, each is given once, and one after the other stays so far apart that 16 additions run side by side."""
    places = order.dealt(count)
    assert sorted(places.tolist()) == list(range(count))
    if count >= 200:
        assert int(places.diff().abs().min()) >= count // 16


def test_pairs_keep_their_order_where_blocks_are_sorted():
    """Several ranges of second ends: products still are those of the pairs, in the order of the pairs."""
    qubo = spread(random_qubo(7, n=20, density=0.3), 2 * order.NEAR)
    model = roof_duality_model(qubo)
    (blocks,) = model.blocks
    assert not bool((blocks.scope[:, 2].diff() == 1).all())
    found = solve_qpbo(qubo, tol=1e-7).relaxation
    assert float(found.bound[0]) == pytest.approx(float(reference(model).objective[0]), rel=1e-6)
    y, z = found.x["y"][0].numpy(), found.x["z"][0].numpy()
    value = float(qubo.linear @ y + qubo.quadratic @ z + qubo.offset)
    first, second = qubo.edges.T
    assert (z <= np.minimum(y[first], y[second]) + 1e-6).all() and (z >= np.maximum(y[first] + y[second] - 1, 0) - 1e-6).all()
    assert value == pytest.approx(float(found.primal[0]), rel=1e-9)


def test_several_instances_keep_their_order_and_those_without_pairs_are_right():
    lonely = Qubo.from_terms([1.0, -2.0, 0.0], np.zeros((0, 2), dtype=int), [], offset=5.0)
    qubos = [random_qubo(1), lonely, random_qubo(2, n=5), random_qubo(3, n=12)]
    together = solve_qpbo(qubos, tol=1e-6)
    for qubo, found in zip(qubos, together, strict=True):
        alone = solve_qpbo(qubo, tol=1e-6)
        assert len(found.labels) == qubo.n
        assert found.energy == alone.energy
        assert float(found.relaxation.bound[0]) == pytest.approx(float(alone.relaxation.bound[0]), rel=2e-6)
    assert (together[1].energy, float(together[1].relaxation.bound[0])) == pytest.approx((3, 3))


@pytest.mark.parametrize(
    ("name", "roof", "energy", "weak"),
    [("bqp50-1", -2098, -2098, 50), ("bqp50-2", -3702, -3702, 50), ("bqp100-1", -10160.5, None, 4)],
)
def test_real_instances(shared_qpbo, name, roof, energy, weak):
    qubo = read_qubo(shared_qpbo / "qubo" / f"{name}.sparse")
    found = solve_qpbo(qubo, tol=1e-6)
    assert float(found.relaxation.bound[0]) == pytest.approx(roof, rel=1e-5)
    assert float(found.relaxation.bound[0]) <= roof + 1e-6
    assert energy is None or found.energy == energy
    assert (found.persistency.weak >= 0).sum() <= weak


def test_solutions_are_short_to_print():
    assert repr(solve_qpbo(Qubo.from_matrix([[-1.0, 2.0], [0.0, -1.0]]))).startswith("QpboSolution(energy=-1, bound=-1")

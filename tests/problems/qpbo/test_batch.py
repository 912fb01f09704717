"""Many QUBOs as arrays: the relaxations are those of the instances, bit for bit."""

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.errors import ShapeError
from blocklp.problems.qpbo import Qubo, QuboBatch, order, roof_duality_batch, roof_duality_model

from ..spread_qubos import spread


def qubos(sizes):
    made = []
    for seed, n in enumerate(sizes):
        draw = np.random.default_rng(seed)
        ends = [(i, j) for j in range(n) for i in range(j) if draw.random() < 0.3]
        made.append(Qubo.from_terms(draw.normal(size=n), ends, draw.normal(size=len(ends)), float(seed)))
    return made


@pytest.mark.parametrize("variables", [0, 2 * order.NEAR], ids=["in one range", "in several ranges"])
@pytest.mark.parametrize("sizes", [[180, 180, 180], [5, 200, 12], [180]])
def test_relaxations_are_those_of_the_instances(sizes, variables):
    """Some have more pairs than are dealt out at a time, and more variables than are close to each other."""
    given = [spread(qubo, variables) for qubo in qubos(sizes)]
    assert max(len(qubo.edges) for qubo in given) > order.DEAL
    here = bl.compile([roof_duality_model(q) for q in given])
    there = roof_duality_batch(QuboBatch.of(given)).compile()
    one, other = here.decomposition(), there.decomposition()
    for name in ("cost", "lower", "upper", "offset", "counts"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert torch.equal(one.coupling.index, other.coupling.index)
    here, there = (solver.solve(passes=60, tol=1e-9) for solver in (here, there))
    assert torch.equal(here.bound, there.bound) and torch.equal(here.raw_x, there.raw_x)


def test_instances_without_pairs():
    alone = [Qubo([-1.0, 2.0], np.zeros((0, 2), dtype=int), []), Qubo([3.0], np.zeros((0, 2), dtype=int), [], 5.0)]
    assert roof_duality_batch(QuboBatch.of(alone)).solve().bound.tolist() == pytest.approx([-1.0, 5.0])
    with pytest.raises(ShapeError, match="edges"):
        roof_duality_batch(QuboBatch(torch.ones(2), torch.tensor([0, 1]), torch.ones(1), torch.tensor([0, 2]), torch.tensor([0, 1])))


def test_arrays_move_together(device):
    there = QuboBatch.of(qubos([6, 8])).to(device)
    assert len(there) == 2
    assert all(t.device.type == device.type for t in (there.linear, there.edges, there.quadratic, there.variables, there.offset))
    assert roof_duality_batch(there).compile().device.type == device.type

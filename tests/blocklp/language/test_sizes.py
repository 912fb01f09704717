"""Models whose blocks of one name differ in size are solved as one batch."""

import pytest
import torch

import blocklp as bl
from blocklp.oracles import AtMostOne, Knapsack, Simplex


def choices(sizes: int, jobs: int, seed: int) -> bl.Model:
    draw = torch.Generator().manual_seed(seed)
    m = bl.Model()
    x = m.variable("x", (jobs, sizes), lower=0, upper=1)
    m.add(Simplex(sizes), x, name="choice")
    weights = torch.rand(sizes, jobs, generator=draw, dtype=torch.float64) + 0.2
    m.add(Knapsack(weights, 0.9 * weights.sum(1) / sizes), x.T, name="room")
    m.add(AtMostOne(2), x[:, :2], name="pair")
    m.minimize((torch.randn(jobs, sizes, generator=draw, dtype=torch.float64) * x).sum())
    return m


MODELS = [choices(3, 6, 0), choices(5, 6, 1), choices(3, 8, 2), choices(4, 5, 3)]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "passes"), [("auto", 600), ("admm", 600), ("prox", 400), ("bundle", 40)])
def test_blocks_of_different_sizes_are_solved_together(method: str, passes: int) -> None:
    solver = bl.compile(MODELS)
    together = solver.solve(method=method, tol=1e-6, passes=passes)
    for i, m in enumerate(MODELS):
        truth = float(bl.reference(m).objective)
        assert float(together.bound[i]) <= truth + 1e-9 and float(together.safe_bound[i]) <= truth
        assert float(together.bound[i]) >= truth - 1e-2 * abs(truth)
        if together.status[i] is bl.Status.OPTIMAL:
            assert float(together.primal[i]) == pytest.approx(truth, rel=1e-5)


def test_an_instance_of_them_is_that_of_its_model() -> None:
    together = bl.compile(MODELS).solve(method="pdhg", tol=1e-6)
    for i, m in enumerate(MODELS):
        mine = together.instance(i)
        assert {name: tuple(duals.shape[1:]) for name, duals in mine.duals.items() if name != "box"} == {
            b.name: tuple(b.scope.shape) for b in m.blocks
        }
        assert mine.x["x"].shape[1:] == m.variables["x"].shape
        again = m.solve(method="pdhg", tol=1e-6, warm_start=mine)
        assert float(again.bound) >= float(mine.bound) - 1e-9 * abs(float(mine.bound))
        proof = bl.verify_certificate(m, mine.state)
        assert float(proof.bound) <= float(bl.reference(m).objective) + 1e-9
    again = bl.compile(MODELS).solve(method="pdhg", tol=1e-6, warm_start=together)
    assert bool((again.bound >= together.bound - 1e-9 * together.bound.abs()).all()) and int(again.passes.max()) < 300


def test_types_of_one_size_that_differ_are_refused() -> None:
    other = bl.Model()
    x = other.variable("x", (6, 3), lower=0, upper=1)
    other.add(AtMostOne(3), x, name="choice")
    other.add(Knapsack(torch.ones(3, 6), 6.0), x.T, name="room")
    other.add(AtMostOne(2), x[:, :2], name="pair")
    other.minimize(x.sum())
    with pytest.raises(bl.BlocklpError, match="blocks 'choice' differ in class"):
        bl.compile([MODELS[1], MODELS[0], other])

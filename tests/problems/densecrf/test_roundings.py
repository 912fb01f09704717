"""Roundings and local search: no energy rises, single points are at their best, draws have their law."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from blocklp.errors import ModelError, OptionError, ShapeError
from blocklp.problems.densecrf import ROUNDINGS, DenseCRF, Kernel, solve_densecrf
from blocklp.problems.densecrf.hst import random_tree
from blocklp.problems.densecrf.local_search import alpha_expansion, block_descent
from blocklp.problems.densecrf.rounding import draw_along_tree, tree_rounding

from .explicit_lp import explicit_lp
from .test_lp_family import LINE, batch, crf, overlapping

MIXED = torch.tensor([[0.4, -1.0, 2.0], [-1.0, -0.7, 0.5], [2.0, 0.5, 0.0]], dtype=torch.float64)


@pytest.mark.parametrize("metric", [None, LINE, MIXED])
@pytest.mark.parametrize("cliques", [False, True])
def test_no_point_can_lower_the_energy_alone(metric: Tensor | None, cliques: bool) -> None:
    field = crf(3, 4, 3, 1, metric=metric, cliques=overlapping(12) if cliques else None)
    for seed in range(2):
        start = torch.randint(3, (12,), generator=torch.Generator().manual_seed(seed))
        found = block_descent(field, start)
        energy = field.energy(found).item()
        assert energy <= field.energy(start).item()
        for point, label in itertools.product(range(12), range(3)):
            other = found.clone()
            other[point] = label
            assert field.energy(other).item() >= energy - 1e-9
        # One block at a time: no step rises.
        values = [field.energy(block_descent(field, start, steps)).item() for steps in range(5)]
        assert all(after <= before for before, after in itertools.pairwise(values))
        moved = alpha_expansion(field, found)
        assert field.energy(moved).item() <= energy


def test_expansions_leave_local_minima() -> None:
    """From the worst of starts, where no point moves alone, they come to the least energy of all labellings."""
    field = crf(3, 4, 2, 4)
    field = DenseCRF(field.unary, tuple(Kernel(k.filter, 10 * k.weight) for k in field.kernels))
    best = explicit_lp(field)  # exact for two labels
    worst = torch.full((12,), 1 - int(field.best_constant()[0]))
    stuck = block_descent(field, worst)
    assert torch.equal(stuck, worst) and field.energy(worst).item() > best + 0.1
    assert field.energy(alpha_expansion(field, worst)).item() == pytest.approx(best)


@pytest.mark.parametrize("name", ROUNDINGS)
def test_images_of_a_batch_are_rounded_alone(name: str) -> None:
    sizes = [(4, 5, 1), (3, 4, 2)]
    both, parts = batch(sizes, LINE), [crf(h, w, seed=s, metric=LINE) for h, w, s in sizes]
    y = torch.rand(32, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = y / y.sum(1, keepdim=True)
    alone = [ROUNDINGS[name](part, rows) for part, rows in zip(parts, y.split([20, 12]), strict=True)]
    assert torch.equal(ROUNDINGS[name](both, y), torch.cat(alone))
    assert bool((both.energy(torch.cat(alone)) <= both.energy(y.argmax(1))).all())


def test_draws_along_trees_have_the_scores_as_probabilities() -> None:
    y = torch.tensor([[0.5, 0.1, 0.2, 0.2], [0.1, 0.6, 0.0, 0.3], [0.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
    line = (torch.arange(4.0)[:, None] - torch.arange(4.0)).abs().double()
    draw, count = torch.Generator().manual_seed(0), torch.zeros(3, 4)
    for _ in range(80):
        count[torch.arange(3), draw_along_tree(y, random_tree(line, draw), draw)] += 1
    torch.testing.assert_close(count.double() / 80, y, rtol=0, atol=0.22)  # four standard deviations
    x = torch.tensor([3, 0, 2])
    assert torch.equal(draw_along_tree(torch.eye(4)[x], random_tree(line, draw), draw), x)


def test_a_solver_offers_the_rounding() -> None:
    field = crf(6, 8, 3, 2)
    plain, rounded = (solve_densecrf(field, "qp-cvx", rounding=name, steps=3, bound_steps=0) for name in ("argmax", "expansion"))
    assert torch.equal(plain.y, rounded.y) and torch.equal(plain.labelling, rounded.labelling)
    own = field.energy(ROUNDINGS["expansion"](field, rounded.y))
    assert rounded.best_energy.item() == min(plain.best_energy.item(), own.item())
    with pytest.raises(OptionError, match="no rounding 'nearest'; choose one of argmax, kleinberg"):
        solve_densecrf(field, rounding="nearest")


@pytest.mark.parametrize("search", [block_descent, alpha_expansion])
def test_what_does_not_fit_is_refused(search: Callable[..., Tensor]) -> None:
    field, x = crf(2, 3), torch.zeros(6, dtype=torch.int64)
    with pytest.raises(ShapeError, match=r"give int64 \(6,\)"):
        search(field, x[:3])
    with pytest.raises(OptionError, match="from 0 to 2"):
        search(field, x + 3)
    with pytest.raises(OptionError, match="is -1"):
        search(field, x, -1)
    with pytest.raises(ModelError, match="no tree is above it"):
        tree_rounding(crf(2, 3, metric=MIXED), torch.full((6, 3), 1 / 3))

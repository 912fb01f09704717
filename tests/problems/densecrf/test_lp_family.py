"""Subgradients, restricted PROX-LP and roundings against explicit LPs, enumeration and the laws of the draws."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from blocklp.errors import ModelError, OptionError, ShapeError
from blocklp.oracles.filters.divide_and_conquer import divide_and_conquer
from blocklp.oracles.filters.gaussian import Gaussian
from blocklp.oracles.filters.permutohedral import Lattice
from blocklp.problems.densecrf import Cliques, DenseCRF, Kernel, Result, image_features, solve_densecrf
from blocklp.problems.densecrf.prox_lp import project_to_simplex, prox_lp
from blocklp.problems.densecrf.prox_lp_variants import absent_labels, fix_others, prox_lp_acc, prox_lp_l, unsure_points
from blocklp.problems.densecrf.rounding import draw_labelling, kleinberg_tardos
from blocklp.problems.densecrf.run import Run
from blocklp.problems.densecrf.sg_lp import sg_lp, sg_lp_l

from .explicit_lp import explicit_lp

LINE = (torch.arange(3.0)[:, None] - torch.arange(3.0)).abs().double()


def picture(height: int, width: int, seed: int) -> Tensor:
    stripes = 100.0 * (torch.arange(width) * 2 // width).expand(height, width)
    return (stripes[:, :, None] + 20 * torch.rand(height, width, 3, generator=torch.Generator().manual_seed(seed))).double()


def crf(
    height: int,
    width: int,
    labels: int = 3,
    seed: int = 0,
    kind: type = Lattice.build,
    metric: Tensor | None = None,
    cliques: Cliques | None = None,
) -> DenseCRF:
    unary = 2 * torch.rand(height * width, labels, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    smooth = Kernel(kind(image_features(height, width, 2.0)), 0.6)
    bilateral = Kernel(kind(image_features(height, width, 4.0, picture(height, width, seed), 30.0)), 1.2, compatibility=metric)
    return DenseCRF(unary, (smooth, bilateral), cliques=cliques)


def go(method: object, field: DenseCRF, start: Tensor | None = None, **options: object) -> Result:
    run = Run(field, "here")
    run.start = (-field.unary).softmax(1) if start is None else start
    method(run, **options)  # type: ignore[operator]
    return run.result()


def some_cliques(points: int) -> Cliques:
    return Cliques(torch.arange(points) * 2 // points - (torch.arange(points) % 5 == 0).long(), torch.tensor([0.7, 0.4]))


def overlapping(points: int) -> Cliques:
    """Two halves, the middle of both, and pairs of ends."""
    member = torch.full((points, 3), -1)
    member[:, 0] = torch.arange(points) * 2 // points
    member[points // 4 : -(points // 4), 2] = 2
    member[[0, -1], 1] = 3
    return Cliques(member, torch.tensor([0.7, 0.4, 1.1, 0.3], dtype=torch.float64))


def test_subgradients_in_the_exact_order() -> None:
    one, two = crf(12, 14, seed=1, metric=LINE), crf(9, 10, seed=2, metric=LINE)
    y = torch.rand(12 * 14, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(1)
    total = torch.zeros_like(y)
    for kernel in one.kernels:
        members, lengths = kernel.cuts(3)
        values = kernel.scale.expand(-1, len(lengths))
        total += (kernel.scale * divide_and_conquer(kernel.filter, y @ members, values) * lengths) @ members.T
    torch.testing.assert_close(one.subgradient(y, None), total, rtol=1e-10, atol=1e-10)
    both = batch([(12, 14, 1), (9, 10, 2)], LINE)
    z = torch.rand(90, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64).softmax(1)
    assert torch.equal(both.subgradient(torch.cat([y, z]), None), torch.cat([one.subgradient(y, None), two.subgradient(z, None)]))


@pytest.mark.parametrize("kind", [Gaussian, Lattice.build])
@pytest.mark.parametrize("cliques", [some_cliques, overlapping])
def test_subgradient_descent_reaches_the_lp(kind: type, cliques: Callable[[int], Cliques]) -> None:
    field = crf(4, 5, 3, 3, kind, cliques=cliques(20))
    truth = explicit_lp(field)
    found = go(sg_lp, field, steps=300)
    assert found.bound.item() <= truth + 1e-9
    assert found.bound.item() == pytest.approx(truth, rel=5e-3)
    assert truth - 1e-9 <= field.linear(found.y).item() <= 1.03 * truth


def test_steps_are_as_printed() -> None:
    """y - (phi + g) / (1 + t), projected: t = 1 and 2, in the exact order and by levels."""
    field = crf(3, 4)
    for levels in (None, 10):
        y = (-field.unary).softmax(1)
        for count in (1, 2):
            y = project_to_simplex(y - (field.unary + field.subgradient(y, levels)) / (1 + count))
            found = go(sg_lp, field, steps=count, step="printed", levels=levels)
            torch.testing.assert_close(found.y, y, rtol=1e-9, atol=1e-12)
    for wrong in ({"step": "short"}, {"levels": 1}, {"steps": 0}):
        with pytest.raises(OptionError):
            go(sg_lp, field, **wrong)


@pytest.mark.parametrize("weight", [1e-3, 0.1, 10.0])
def test_proximal_steps_are_as_printed(weight: float) -> None:
    """2.2.4.10: A alpha moves towards A s by <A alpha - A s, y> / (lambda |A alpha - A s|^2), between 0 and 1; g is -A alpha."""
    field = crf(3, 4)
    scale, start, g = weight / field.unit, (-field.unary).softmax(1), field.subgradient(field.level, 2)

    def primal() -> Tensor:
        return project_to_simplex(start - scale * (field.unary + g))

    for inner in (1, 2, 3):
        y = primal()
        s = field.subgradient(y, 8)
        size = ((s - g) * y).sum() / (scale * (s - g).square().sum())
        g = g + size.clamp(0, 1) * (s - g)
        found = go(prox_lp, field, start, weight=weight, outer=1, inner=inner, levels=8, step="printed")
        torch.testing.assert_close(found.y, primal(), rtol=1e-9, atol=1e-12)
    found = go(prox_lp, field, start, weight=weight, outer=100, step="printed")
    assert found.bound.item() <= explicit_lp(field) + 1e-9
    with pytest.raises(OptionError, match="'face' or 'printed'"):
        go(prox_lp, field, step="best")


def test_subgradients_on_the_labels_of_the_start() -> None:
    """They leave out what the start does not take, with bounds of the whole; with all labels they are those of SG-LP."""
    field = crf(3, 4, 4)
    start = (-5 * field.unary).softmax(1)
    start = torch.where(torch.arange(4) == 2, 1e-4, start)
    start = start / start.sum(1, keepdim=True)
    found, truth = go(sg_lp_l, field, start, steps=40), explicit_lp(field)
    assert not found.y[:, 2].any() and (found.y.sum(1) - 1).abs().max() < 1e-9
    assert found.bound.item() <= truth + 1e-9
    whole, same = go(sg_lp, field, start, steps=5), go(sg_lp_l, field, start, steps=5, least=0.0)
    assert torch.equal(whole.y, same.y) and torch.equal(whole.bound, same.bound)


@pytest.mark.parametrize("metric", [None, LINE])
@pytest.mark.parametrize("seed", range(3))
def test_bounds_hold_for_the_whole_problem(seed: int, metric: Tensor | None) -> None:
    field = crf(2, 4, 3, seed, metric=metric)
    both = DenseCRF(field.unary, field.kernels, cliques=some_cliques(8) if seed else overlapping(8))
    truth, truth_both = explicit_lp(field), explicit_lp(both)
    labellings = torch.tensor(list(itertools.product(range(3), repeat=8)))
    best = min(field.energy(x).item() for x in labellings[::7])
    # Thresholds that leave out labels and fix points that the LP's solution needs.
    for weight in (1e-4, 0.3, 100.0):
        options = {"weight": weight, "levels": 8, "least": 0.7}
        assert go(sg_lp, field, steps=5).bound.item() <= truth + 1e-9
        assert go(sg_lp, field, steps=5, step="printed", levels=8).bound.item() <= truth + 1e-9
        for found in (
            go(prox_lp_l, both, stages=(1, 4), **options),
            go(prox_lp_acc, both, stages=(1, 1, 4), sure=1.1, share=0.5, **options),
            go(prox_lp_acc, both, stages=(0, 0, 4), sure=0.5, share=1.0, **options),
        ):
            assert found.bound.item() <= truth_both + 1e-9
        for found in (
            go(prox_lp_l, field, stages=(1, 4), **options),
            go(prox_lp_l, field, stages=(0, 4), **options),
            go(prox_lp_acc, field, stages=(1, 1, 4), sure=1.1, share=0.5, **options),
            go(prox_lp_acc, field, stages=(0, 0, 4), sure=0.5, share=1.0, **options),
        ):
            assert found.bound.item() <= truth + 1e-9
            assert found.bound.item() <= best + 1e-9


@pytest.mark.parametrize("cliques", [some_cliques, overlapping])
def test_cliques_of_fixed_points(cliques: Callable[[int], Cliques]) -> None:
    """What is left costs the same as the whole but for a constant, and restricted steps reach the LP with the others fixed."""
    field = crf(3, 4, 3, 5, cliques=cliques(12))
    labels = torch.arange(12) // 7
    labels[10] = 0
    points = torch.tensor([3, 4, 5, 8, 11])
    start = (0.9 * torch.nn.functional.one_hot(labels, 3) + 0.1 / 3).double()
    start[points] = torch.tensor([0.4, 0.35, 0.25], dtype=torch.float64)
    part, _, _ = fix_others(field, start, points)
    differences = []
    for x in torch.randint(3, (20, 5), generator=torch.Generator().manual_seed(0)):
        whole = labels.index_copy(0, points, x)
        differences.append(field.energy(whole).item() - part.energy(x).item())
    assert differences == pytest.approx([differences[0]] * 20)
    assert part.cliques is not None and part.cliques.agree is not None and not bool(part.cliques.agree.all())
    fixed = torch.nn.functional.one_hot(labels, 3).double().index_fill(0, points, torch.nan)
    found = go(prox_lp_acc, field, start, stages=(0, 0, 150), weight=1.0, inner=10, sure=0.5, share=1.0)
    assert field.linear(found.y).item() == pytest.approx(explicit_lp(field, fixed), rel=5e-3)
    assert found.bound.item() <= explicit_lp(field) + 1e-9


@pytest.mark.parametrize("metric", [None, LINE])
def test_labels_without_use_are_left_out_at_no_loss(metric: Tensor | None) -> None:
    field = crf(4, 5, 3, 3, metric=metric)
    dear = DenseCRF(field.unary + torch.tensor([0.0, 5.0, 0.0]), field.kernels)
    truth = explicit_lp(dear)
    found = go(prox_lp_l, dear, weight=1.0, stages=(5, 60), inner=20)
    assert bool((found.y[:, 1] == 0).all())
    assert found.bound.item() <= truth + 1e-9
    assert found.bound.item() == pytest.approx(truth, rel=5e-3)
    assert dear.linear(found.y).item() == pytest.approx(truth, rel=5e-3)


def test_labels_that_are_left_out_stay_out() -> None:
    field = crf(4, 5, 3, 1)
    start = torch.tensor([0.5, 0.005, 0.495], dtype=torch.float64).expand(20, 3)
    fixed = torch.full((20, 3), torch.nan, dtype=torch.float64)
    fixed[:, 1] = 0
    truth, whole = explicit_lp(field, fixed), explicit_lp(field)
    assert truth > whole + 0.1
    found = go(prox_lp_l, field, start, stages=(0, 80), inner=20, weight=1.0)
    assert bool((found.y[:, 1] == 0).all())
    assert field.linear(found.y).item() == pytest.approx(truth, rel=5e-3)
    # The bound is that of the whole LP, not of the one without the label.
    assert found.bound.item() <= whole + 1e-9


def test_labels_that_share_cuts_are_not_held() -> None:
    # Labels 2 and 1 cost 1.1, the labels 2 and 0 of the two points alone 2.
    pair = Kernel(Gaussian(torch.zeros(2, 1)), normalise=False, compatibility=LINE)
    field = DenseCRF(torch.tensor([[10.0, 10.0, 0.0], [0.0, 0.1, 10.0]], dtype=torch.float64), (pair,))
    assert explicit_lp(field) == pytest.approx(1.1)
    found = go(prox_lp_l, field, torch.eye(3, dtype=torch.float64)[[2, 0]], stages=(0, 50), weight=1.0)
    assert field.linear(found.y).item() == pytest.approx(2.0)
    assert found.bound.item() <= 1.1 + 1e-9


@pytest.mark.parametrize("metric", [None, LINE])
@pytest.mark.parametrize("kind", [Gaussian, Lattice.build])
def test_fixed_points_are_unaries(kind: type, metric: Tensor | None) -> None:
    field = crf(4, 6, 3, 4, kind, metric)
    points = torch.tensor([2, 3, 8, 9, 15, 20])
    draw = torch.Generator().manual_seed(0)
    y = torch.rand(24, 3, generator=draw, dtype=torch.float64).softmax(1)
    part, g, now = fix_others(field, y, points)
    others = torch.ones(24, dtype=torch.bool).index_fill(0, points, False)
    assert torch.equal(now[others], torch.nn.functional.one_hot(y.argmax(1), 3).double()[others])
    assert torch.equal(now[points], y[points])
    # As functions of the free points' y the two energies differ by a constant.
    differences = []
    for sharp in (0.1, 1.0, 5.0, 50.0):
        free = (sharp * torch.rand(6, 3, generator=draw, dtype=torch.float64)).softmax(1)
        differences.append((field.linear(now.index_copy(0, points, free)) - part.linear(free)).item())
    np.testing.assert_allclose(differences, differences[0], rtol=1e-10)


@pytest.mark.parametrize("metric", [None, LINE])
def test_free_points_reach_their_lp(metric: Tensor | None) -> None:
    field = crf(4, 6, 3, 4, metric=metric)
    start = (-2 * field.unary).softmax(1)
    points = unsure_points(field, start, 0.8, 0.5)
    _, _, fixed = fix_others(field, start, points)
    truth = explicit_lp(field, fixed.index_fill(0, points, torch.nan))
    found = go(prox_lp_acc, field, start, weight=1.0, stages=(0, 0, 80), inner=20, least=0.0, sure=0.8, share=0.5)
    changed = (found.y != fixed).any(1).nonzero()[:, 0]
    assert set(changed.tolist()) <= set(points.tolist())
    assert field.linear(found.y).item() == pytest.approx(truth, rel=3e-3)
    assert field.linear(found.y).item() >= truth - 1e-9


def test_the_least_sure_points_stay_free() -> None:
    field = batch([(4, 5, 1), (6, 3, 2)])
    y = torch.eye(3, dtype=torch.float64)[torch.arange(38) % 3]
    y[[3, 7, 11]] = torch.tensor([0.9, 0.1, 0.0], dtype=torch.float64)
    y[[7]] = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    assert unsure_points(field, y, 0.95, 0.5).tolist() == [3, 7, 11, 20]
    assert unsure_points(field, y, 0.95, 0.1).tolist() == [3, 7, 20]
    assert unsure_points(field, y, 0.8, 0.5).tolist() == [7, 20]
    absent = absent_labels(field, y.index_fill(0, torch.arange(20, 38), 0) + 0.1, 0.3)
    assert not bool(absent[:20].any())
    assert bool((absent[20:] == absent[20]).all())


def batch(sizes: list[tuple[int, int, int]], metric: Tensor | None = None) -> DenseCRF:
    parts = [crf(h, w, 3, seed) for h, w, seed in sizes]
    image = torch.cat([torch.full((p.points,), k) for k, p in enumerate(parts)])
    smooth = torch.cat([image_features(h, w, 2.0) for h, w, _ in sizes])
    bilateral = torch.cat([image_features(h, w, 4.0, picture(h, w, seed), 30.0) for h, w, seed in sizes])
    kernels = (Kernel(Lattice.build(smooth, image), 0.6), Kernel(Lattice.build(bilateral, image), 1.2, compatibility=metric))
    return DenseCRF(torch.cat([p.unary for p in parts]), kernels, image)


def test_images_of_one_batch_are_alone() -> None:
    sizes = [(4, 5, 1), (6, 3, 2)]
    together, parts = batch(sizes), [crf(h, w, 3, seed) for h, w, seed in sizes]
    for method, options in (
        (sg_lp, {"steps": 6}),
        (prox_lp_l, {"least": 0.5}),
        (prox_lp_acc, {"least": 0.4, "sure": 0.9, "share": 0.3}),
    ):
        whole, single = go(method, together, **options), [go(method, p, **options) for p in parts]
        assert torch.equal(whole.y, torch.cat([s.y for s in single]))
        assert torch.equal(whole.bound, torch.cat([s.bound for s in single]))
        assert torch.equal(whole.energy, torch.cat([s.energy for s in single]))
    y = (-together.unary).softmax(1)
    alone = [kleinberg_tardos(p, z, 5, 3) for p, z in zip(parts, y.split(together.sizes), strict=True)]
    assert torch.equal(kleinberg_tardos(together, y, 5, 3), torch.cat(alone))


def test_draws_follow_their_law() -> None:
    # The first label and threshold that one of two points takes: it parts them or not, and then the other draws alone.
    y = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.5, 0.5, 0.0]], dtype=torch.float64)
    count = 40_000
    stacked = torch.cat([draw_labelling(y, torch.Generator().manual_seed(s))[None] for s in range(count // 10)])
    for a, i in itertools.product(range(3), range(3)):
        assert float((stacked[:, a] == i).double().mean()) == pytest.approx(y[a, i].item(), abs=4 * (0.25 / len(stacked)) ** 0.5)
    for a, b in itertools.combinations(range(3), 2):
        low = torch.minimum(y[a], y[b])
        alike = (low + (y[a] - low) * y[b] + (y[b] - low) * y[a]).sum() / torch.maximum(y[a], y[b]).sum()
        found = float((stacked[:, a] == stacked[:, b]).double().mean())
        assert found == pytest.approx(alike.item(), abs=4 * (0.25 / len(stacked)) ** 0.5)


def test_mean_energy_is_within_twice_the_lp() -> None:
    field = crf(3, 4, 3, 5)
    y = go(prox_lp_l, field, weight=1.0, stages=(30, 0), inner=10).y
    y = (y + (-field.unary).softmax(1)) / 2
    draws = [draw_labelling(y, torch.Generator().manual_seed(s)) for s in range(1000)]
    energies = torch.tensor([field.energy(x).item() for x in draws])
    unary = (field.unary * y).sum()
    error = 4 * energies.std() / len(draws) ** 0.5
    assert float(energies.mean() - error) <= float(unary + 2 * (field.linear(y).item() - unary))
    assert float(energies.mean() + error) >= field.linear(y).item()


def test_best_of_the_draws() -> None:
    # All points have the same scores, so every draw is constant, and the best of many is the best constant.
    field = crf(3, 4, 3, 5)
    totals = field.unary.sum(0)
    order = totals.argsort(descending=True)
    y = torch.tensor([0.4, 0.35, 0.25])[order.argsort()].expand(12, 3)
    found = [field.energy(kleinberg_tardos(field, y, n, 7)).item() for n in (0, 3, 30)]
    assert found[0] == pytest.approx(totals.max().item())
    assert found[2] == pytest.approx(totals.min().item())
    assert found == sorted(found, reverse=True)
    x = torch.arange(12) % 3
    assert torch.equal(kleinberg_tardos(field, torch.eye(3)[x], 3), x)


def test_what_does_not_fit_is_refused() -> None:
    field = crf(2, 3)
    y = torch.full((6, 3), 1 / 3)
    with pytest.raises(OptionError, match="steps is 0"):
        go(sg_lp, field, steps=0)
    with pytest.raises(OptionError, match="weight is -1"):
        go(prox_lp_l, field, weight=-1.0)
    with pytest.raises(OptionError, match="problems and steps"):
        go(prox_lp_l, field, stages=(0, 0))
    with pytest.raises(OptionError, match="share 0"):
        go(prox_lp_acc, field, share=0)
    for member, error, match in (
        (torch.tensor([[0, 0], [0, -1]]), ModelError, "twice in one clique"),
        (torch.tensor([[0, 1], [0, -1]]), ModelError, "from 0 to 0"),
        (torch.zeros(2, 1, 1, dtype=torch.int64), ShapeError, "points, most"),
    ):
        with pytest.raises(error, match=match):
            Cliques(member, torch.ones(1))
    with pytest.raises(ShapeError, match=r"agree is torch.bool \(2, 3\); give bool \(1, labels\)"):
        Cliques(torch.zeros(2, dtype=torch.int64), torch.ones(1), torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(ShapeError, match="a column for each of 3 labels"):
        DenseCRF(y[:2], (), None, Cliques(torch.zeros(2, dtype=torch.int64), torch.ones(1), torch.ones(1, 2, dtype=torch.bool)))
    with pytest.raises(ShapeError, match="one row a point"):
        kleinberg_tardos(field, y[:3])
    with pytest.raises(OptionError, match="add up to 1"):
        kleinberg_tardos(field, 2 * y)
    with pytest.raises(OptionError, match="draws is -1"):
        kleinberg_tardos(field, y, -1)


@pytest.mark.parametrize("method", ["prox-lp", "prox-lp-l", "sg-lp", "mean-field", "hst"])
def test_bounds_charge_what_cliques_are_rounded_by(method: str) -> None:
    """A seventh of a million is no single-precision number; the optimum is 0."""
    cliques = Cliques(torch.zeros(7, dtype=torch.int64), torch.tensor([1e6], dtype=torch.float64))
    found = solve_densecrf(DenseCRF(torch.zeros(7, 2), (), cliques=cliques), method)
    assert found.bound.item() <= 0 <= found.energy.item()


@pytest.mark.parametrize("method", ["prox-lp", "mean-field", "dc-neg"])
def test_a_kernel_without_weight_counts_nothing(method: str) -> None:
    unary = torch.rand(40, 3, generator=torch.Generator().manual_seed(0))
    field = DenseCRF(unary, (Kernel(Lattice.build(image_features(5, 8, 2.0)), 0.0),))
    found = solve_densecrf(field, method)
    least = float(unary.double().amin(1).sum())
    assert found.energy.item() == pytest.approx(least) and least - 1e-2 <= found.bound.item() <= least


def test_bounds_have_gradients_in_unaries_weights_and_costs_of_cliques() -> None:
    """Along a direction the explicit LP changes as they say, up to what the bound leaves open."""
    member = torch.tensor([0, 0, 0, -1, 1, 1, 1, 1, 0, 1, 0, -1])
    random, plain = torch.Generator().manual_seed(3), crf(3, 4)

    def field(unary: torch.Tensor, weights: torch.Tensor, cost: torch.Tensor) -> DenseCRF:
        kernels = tuple(replace(k, weight=w) for k, w in zip(plain.kernels, weights.unbind(), strict=True))
        return DenseCRF(unary, kernels, cliques=Cliques(member, cost))

    at = [2 * plain.unary, torch.tensor([0.6, 1.2]).double(), torch.tensor([0.1, 0.05]).double()]
    along = [torch.randn(t.shape, generator=random, dtype=torch.float64) for t in at]
    unary, weights, cost = (t.clone().requires_grad_() for t in at)
    found = solve_densecrf(field(unary, weights, cost), "prox-lp", outer=200)
    slopes = torch.autograd.grad(found.bound.sum(), (unary, weights, cost))
    assert torch.equal(slopes[0], found.y) and found.y.sum(1).tolist() == pytest.approx([1.0] * 12)
    ends = [explicit_lp(field(*(t + step * d for t, d in zip(at, along, strict=True)))) for step in (0.01, 0.0, -0.01)]
    # The value is concave: the slope is between those to both sides, as far as y is a minimiser.
    left_open = float(field(*at).linear(found.y).sum()) - ends[1]
    assert left_open < 1e-3 * abs(ends[1])
    sides = (ends[0] - ends[1]) / 0.01, (ends[1] - ends[2]) / 0.01
    error = 1e-9 + left_open / 0.01
    assert sides[0] - error <= float(sum((s * d).sum() for s, d in zip(slopes, along, strict=True))) <= sides[1] + error
    assert len(found.y.argmax(1).unique()) > 1 and bool((slopes[1] > 0).all()) and bool((slopes[2] > 0).any())
    total = sum(float((t * s).sum()) for t, s in zip(at, slopes, strict=True))
    assert total == pytest.approx(float(field(*at).linear(found.y).sum()))  # the energy is linear in them
    with torch.no_grad():
        assert not solve_densecrf(field(unary, weights, cost), "prox-lp", outer=2).bound.requires_grad
    assert not solve_densecrf(field(unary, weights, cost), "mean-field").bound.requires_grad
    metric = (1 - torch.eye(3)).requires_grad_()
    refused = DenseCRF(unary, (replace(plain.kernels[0], compatibility=metric),))
    with pytest.raises(ModelError, match=r"the compatibility of a kernel requires gradients; .*detach it"):
        solve_densecrf(refused, "prox-lp")

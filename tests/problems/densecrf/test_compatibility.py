"""Label compatibilities: cuts below them and trees above, against enumeration, transport and explicit LPs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from scipy.sparse.csgraph import floyd_warshall
from torch import Tensor

from blocklp.errors import ModelError, OptionError
from blocklp.oracles.filters.gaussian import Gaussian
from blocklp.oracles.filters.permutohedral import Lattice
from blocklp.problems.densecrf import DenseCRF, Kernel, Result, image_features
from blocklp.problems.densecrf.compatibility import Cuts, metric_cuts, potts_cuts
from blocklp.problems.densecrf.hst import hst, random_tree, random_trees, shortest_paths
from blocklp.problems.densecrf.prox_lp import prox_lp
from blocklp.problems.densecrf.run import Run

from .explicit_lp import explicit_lp

KINDS = ["linear", "truncated linear", "truncated quadratic", "metric", "semi-metric"]


def costs(kind: str, labels: int, seed: int = 0) -> Tensor:
    apart = (torch.arange(labels)[:, None] - torch.arange(labels)).abs().double()
    draw = torch.Generator().manual_seed(seed)
    if kind == "linear":
        return apart
    if kind == "truncated linear":
        return apart.clamp(max=max(2, labels // 4))
    if kind == "truncated quadratic":
        return apart.square().clamp(max=max(2, labels // 3) ** 2)
    half = (0.2 + torch.rand(labels, labels, generator=draw, dtype=torch.float64)).triu(1)
    return shortest_paths(half + half.T) if kind == "metric" else half + half.T


def model(kind: str, labels: int, seed: int = 0, shape: tuple[int, int] = (2, 3), filters: type | object = Gaussian) -> DenseCRF:
    draw = torch.Generator().manual_seed(seed)
    unary = 2 * torch.rand(shape[0] * shape[1], labels, generator=draw, dtype=torch.float64)
    one, two = (filters(image_features(*shape, width)) for width in (1.5, 4.0))  # type: ignore[operator]
    mu = costs(kind, labels, seed)
    return DenseCRF(unary, (Kernel(one, 0.4, True, mu / mu.mean()), Kernel(two, 0.2)))


def matrices(field: DenseCRF) -> list[np.ndarray]:
    return [k(torch.eye(field.points, dtype=torch.float64)).numpy() for k in field.kernels]


def energies(field: DenseCRF) -> np.ndarray:
    """Of all labellings, by definition."""
    x = np.array(list(itertools.product(range(field.labels), repeat=field.points)))
    total = field.unary.numpy()[np.arange(field.points), x].sum(1)
    low, high = np.triu_indices(field.points, 1)
    for kernel, matrix in zip(field.kernels, matrices(field), strict=True):
        mu = 1 - np.eye(field.labels) if kernel.compatibility is None else kernel.compatibility.numpy()
        total += (matrix[low, high] * mu[x[:, low], x[:, high]]).sum(1)
    return total


def transport(p: np.ndarray, q: np.ndarray, mu: np.ndarray) -> float:
    """Least cost of moving p to q, the pairwise term of the LP with a marginal for every pair of labels."""
    m = len(p)
    sums = np.concatenate([np.kron(np.eye(m), np.ones(m)), np.kron(np.ones(m), np.eye(m))])
    return float(linprog(mu.reshape(-1), A_eq=sums, b_eq=np.concatenate([p, q]), method="highs").fun)


def solve(field: DenseCRF, method: str, **options: float) -> Result:
    run = Run(field, method)
    {"hst": hst, "prox-lp": prox_lp}[method](run, **options)
    return run.result()


def test_distances_by_definition() -> None:
    cuts = Cuts(torch.tensor([[0.0, 1, 1], [1, 0, 1], [1, 1, 0]]).double(), torch.tensor([1.0, 2, 4]).double())
    assert cuts.distances().tolist() == [[0, 3, 5], [3, 0, 6], [5, 6, 0]]
    assert torch.equal(potts_cuts(4).distances(), 1 - torch.eye(4, dtype=torch.float64))


@pytest.mark.parametrize("labels", [2, 5, 16, 60])
def test_ordered_costs_are_exact_with_few_cuts(labels: int) -> None:
    apart = costs("linear", labels)
    for limit in {1, 2, labels // 3 + 1, labels - 1, 2 * labels}:
        cuts = metric_cuts(apart.clamp(max=limit))
        torch.testing.assert_close(cuts.distances(), apart.clamp(max=limit), rtol=1e-9, atol=0)
        # One for every window of that many labels.
        assert len(cuts.lengths) <= labels + min(limit, labels - 1) - 1
    bent = apart.clamp(max=2) + 0.5 * apart.clamp(max=labels // 2 + 1)
    torch.testing.assert_close(metric_cuts(bent).distances(), bent, rtol=1e-9, atol=0)


@pytest.mark.parametrize("labels", [2, 3, 6, 20, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_cuts_are_nowhere_above(kind: str, labels: int) -> None:
    mu = costs(kind, labels, labels)
    cuts = metric_cuts(mu)
    assert bool((cuts.distances() <= mu).all())
    assert bool((cuts.lengths > 0).all())
    assert len(cuts.lengths) <= max(2 * labels, 16)
    # Not below what the nearest pair of labels gives every pair (Potts), and above it somewhere.
    least = mu[mu > 0].min()
    assert float(cuts.distances().sum()) >= (1 - 1e-9) * float(least) * labels * (labels - 1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("labels", "share"), [(4, 1 - 1e-6), (6, 0.99), (8, 0.95)])
def test_cuts_are_near_to_the_best(labels: int, share: float, seed: int) -> None:
    for kind in ("metric", "semi-metric"):
        mu = costs(kind, labels, seed)
        low, high = np.triu_indices(labels, 1)
        sets = np.array([[k >> i & 1 for i in range(labels)] for k in range(1, 2 ** (labels - 1))])
        parted = (sets[:, low] != sets[:, high]).T.astype(float)
        best = -linprog(-parted.sum(0), parted, mu.numpy()[low, high], method="highs").fun
        found = float(metric_cuts(mu).distances().sum()) / 2
        assert share * best <= found <= best * (1 + 1e-9)


def test_labels_that_cost_nothing_together() -> None:
    assert metric_cuts(torch.zeros(1, 1).double()).distances().tolist() == [[0.0]]
    assert not metric_cuts(torch.zeros(3, 3).double()).distances().any()
    mu = costs("metric", 5)
    mu[1, 3] = mu[3, 1] = 0.0
    found = metric_cuts(mu).distances()
    assert bool((found <= mu).all())
    assert float(found[0, 1]) > 0
    # All labels hang together by pairs that cost nothing, so there is no metric.
    chain = costs("metric", 3)
    chain[0, 1] = chain[1, 0] = chain[1, 2] = chain[2, 1] = 0.0
    assert not metric_cuts(chain).distances().any()
    for bad in (-costs("linear", 3), costs("linear", 3) + torch.eye(3)):
        with pytest.raises(ModelError, match="semi-metric"):
            metric_cuts(bad)


@pytest.mark.parametrize("kind", KINDS)
def test_trees_are_nowhere_below(kind: str) -> None:
    draw = torch.Generator().manual_seed(0)
    for labels in (1, 2, 7, 16):
        mu = costs(kind, labels, 3)
        for r in (2.0, 2.0, 1.2, 3.0, 10.0):
            tree = random_tree(mu, draw, r)
            far = tree.cuts(mu).distances()
            assert bool((far >= mu * (1 - 1e-12)).all())
            # An ultrametric: of three distances the two largest are equal.
            assert bool((far[:, None] <= torch.maximum(far[:, :, None], far[None]) * (1 + 1e-12)).all())
            assert bool((tree.cuts(mu).lengths >= 0).all())
            assert tree.partitions[-1].unique().numel() == labels
            for coarse, fine in itertools.pairwise(tree.partitions):
                assert all(coarse[fine == k].unique().numel() == 1 for k in fine.unique())
            # What the LP makes of the tree's compatibility is the tree.
            torch.testing.assert_close(metric_cuts(far).distances(), far, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["linear", "ring"])
def test_expected_distortion_is_logarithmic(kind: str) -> None:
    labels, count = 64, 200
    mu = costs("linear", labels)
    mu = torch.minimum(mu, labels - mu) if kind == "ring" else mu
    draw = torch.Generator().manual_seed(1)
    ratio = [(random_tree(mu, draw).cuts(mu).distances() / mu).nan_to_num(1.0) for _ in range(count)]
    # Every single tree is bad for some pair (a tree of a ring by labels / 8 at least, Rabinovich & Raz 1998) ...
    assert min(float(r.max()) for r in ratio) >= labels / 8
    # ... but none is bad on average; the theorem's constant is 8 ln 2 for each halving of the radius around a pair.
    assert float(torch.stack(ratio).mean(0).max()) <= 3 * np.log2(labels)
    kept = random_trees(mu, 2, 0)
    again = random_trees(mu, 2, 0)
    assert all(torch.equal(a.partitions, b.partitions) for a, b in zip(kept, again, strict=True))
    sums = torch.stack(ratio).mul(mu).sum((1, 2))
    assert all(float(t.cuts(mu).distances().sum()) <= float(sums.quantile(0.5)) for t in kept)


def test_shortest_paths() -> None:
    mu = costs("semi-metric", 9)
    np.testing.assert_allclose(shortest_paths(mu).numpy(), floyd_warshall(mu.numpy()), rtol=1e-12)


def test_which_lp_it_is() -> None:
    """The sum over cuts is the transport of the two distributions on trees and lines, and at most that elsewhere."""
    draw = np.random.default_rng(0)
    tree = random_tree(costs("metric", 5), torch.Generator().manual_seed(0)).cuts(costs("metric", 5)).distances()
    for name, mu in {"tree": tree, **{kind: costs(kind, 5) for kind in KINDS}}.items():
        members, lengths = (t.numpy() for t in metric_cuts(mu))
        for _ in range(5):
            p, q = draw.dirichlet(np.ones(5), 2)
            cut = float(np.abs((p - q) @ members) @ lengths)
            moved = transport(p, q, mu.numpy())
            assert cut <= moved + 1e-9
            if name in ("tree", "linear"):
                assert cut == pytest.approx(moved, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_subgradient_and_linear_energy(kind: str) -> None:
    field = model(kind, 4)
    low, high = np.triu_indices(field.points, 1)

    def value(y: Tensor) -> float:
        total = float((field.unary * y).sum())
        for kernel, matrix in zip(field.kernels, matrices(field), strict=True):
            members, lengths = kernel.cuts(4)
            apart = ((y[low] - y[high]) @ members).abs() @ lengths
            total += float(torch.from_numpy(matrix[low, high]) @ apart)
        return total

    draw = torch.Generator().manual_seed(0)
    points = [torch.rand(field.points, 4, generator=draw, dtype=torch.float64).softmax(1) for _ in range(4)]
    points += [torch.nn.functional.one_hot(torch.randint(4, (field.points,), generator=draw), 4).double() for _ in range(4)]
    for y in points:
        assert field.linear(y).item() == pytest.approx(value(y), rel=1e-12)
        slope = field.unary + field.subgradient(y)
        assert all(value(z) >= value(y) + float((slope * (z - y)).sum()) - 1e-12 for z in points)
    for y in points[4:]:
        energy = field.energy(y.argmax(1)).item()
        assert value(y) <= energy + 1e-12
        if kind in ("linear", "truncated linear"):
            assert value(y) == pytest.approx(energy, rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_prox_lp_reaches_the_lp(kind: str) -> None:
    field = model(kind, 4)
    truth = explicit_lp(field)
    found = solve(field, "prox-lp", weight=1.0, outer=60, inner=20)
    assert found.bound.item() <= truth + 1e-9
    assert found.bound.item() == pytest.approx(truth, rel=5e-3)
    assert field.linear(found.y).item() == pytest.approx(truth, rel=5e-3)
    assert truth <= energies(field).min() + 1e-9


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_bounds_and_labellings_against_enumeration(kind: str, seed: int) -> None:
    field = model(kind, 4, seed)
    best = energies(field).min()
    for found in (
        solve(field, "prox-lp", weight=1.0),
        solve(field, "hst", seed=seed),
        solve(field, "hst", trees=1, seed=seed, weight=0.1),
        solve(field, "hst", top_down=True, seed=seed),
        solve(field, "hst", seed=seed, r=3.0, solver="subgradient"),
        solve(field, "hst", top_down=True, trees=1, seed=seed, solver="subgradient"),
    ):
        assert found.bound.item() <= best + 1e-9
        assert found.energy.item() >= best - 1e-9
        assert found.energy.item() == pytest.approx(field.energy(found.labelling).item(), rel=1e-12)
        assert torch.isfinite(found.bound).all()
        # The histories are of the true energy too.
        assert float(found.history.energy.min()) >= best - 1e-9
    assert solve(field, "hst", seed=seed, outer=20).best_energy.item() <= best * 1.1


def test_on_a_tree_metric_both_ways_find_the_optimum() -> None:
    """Where the compatibility is itself a tree, wide apart at the root, every tree drawn is that tree."""
    mu = torch.tensor([[0.0, 1, 8, 8], [1, 0, 8, 8], [8, 8, 0, 1], [8, 8, 1, 0]]).double()
    assert all(torch.equal(t.cuts(mu).distances(), mu) for t in random_trees(mu, 4, 0))
    for seed in range(3):
        field = model("metric", 4, seed)
        field = replace(field, kernels=tuple(replace(k, weight=0.05, compatibility=mu) for k in field.kernels))
        best = energies(field).min()
        assert solve(field, "hst", trees=1, outer=30).best_energy.item() == pytest.approx(best, rel=1e-9)
        assert solve(field, "hst", trees=1, outer=30, top_down=True).best_energy.item() <= best * 1.1


def test_top_down_with_potts_is_the_lp() -> None:
    field = model("metric", 4, 1)
    field = replace(field, kernels=tuple(replace(k, compatibility=None) for k in field.kernels))
    one, two = (solve(field, "hst", trees=1, top_down=top_down) for top_down in (False, True))
    torch.testing.assert_close(one.history.energy, two.history.energy)
    assert torch.equal(one.labelling, two.labelling)
    assert one.filter_calls == two.filter_calls


@pytest.mark.parametrize("top_down", [False, True])
def test_images_of_one_batch_are_alone(top_down: bool) -> None:
    shapes = [(4, 5), (3, 6)]
    parts = [model("semi-metric", 4, 0, shape, Lattice.build) for shape in shapes]
    image = torch.cat([torch.full((p.points,), k) for k, p in enumerate(parts)])
    kernels = tuple(
        replace(kernel, filter=Lattice.build(torch.cat([image_features(*shape, width) for shape in shapes]), image))
        for kernel, width in zip(parts[0].kernels, (1.5, 4.0), strict=True)
    )
    together = DenseCRF(torch.cat([p.unary for p in parts]), kernels, image)
    whole = solve(together, "hst", trees=2, top_down=top_down)
    single = [solve(p, "hst", trees=2, top_down=top_down) for p in parts]
    assert torch.equal(whole.labelling, torch.cat([s.labelling for s in single]))
    assert torch.equal(whole.energy, torch.cat([s.energy for s in single]))
    assert torch.equal(whole.bound, torch.cat([s.bound for s in single]))


def test_wrong_input_is_refused() -> None:
    field = model("linear", 3)
    with pytest.raises(OptionError, match="trees is 0"):
        solve(field, "hst", trees=0)
    for wrong in ({"r": 1.0}, {"solver": "simplex"}, {"solver": "subgradient", "outer": 0}):
        with pytest.raises(OptionError):
            solve(field, "hst", **wrong)
    negative = replace(field, kernels=(Kernel(field.kernels[0].filter, compatibility=-costs("linear", 3)),))
    with pytest.raises(ModelError, match="semi-metric"):
        solve(negative, "hst")

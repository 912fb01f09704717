"""Regularised Frank-Wolfe, projected and proximal gradient and ADMM against dense matrices, enumeration and their theorems."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from blocklp.errors import OptionError
from blocklp.oracles.filters.gaussian import Gaussian
from blocklp.oracles.filters.permutohedral import Lattice
from blocklp.problems.densecrf import Cliques, DenseCRF, Kernel, image_features
from blocklp.problems.densecrf.admm import admm
from blocklp.problems.densecrf.mean_field import mean_field
from blocklp.problems.densecrf.projected_gradient import pgd
from blocklp.problems.densecrf.proximal_gradient import prox_grad
from blocklp.problems.densecrf.regularized_fw import STEPS, efw, fw, l2fw, largest_curvature
from blocklp.problems.densecrf.result import Result
from blocklp.problems.densecrf.run import Run
from blocklp.status import Status

from .explicit_lp import clique_points

METHODS = (l2fw, efw, fw, pgd, prox_grad, admm)
LABELS = 3
TRUNCATED = torch.tensor([[0.0, 1, 2], [1, 0, 1], [2, 1, 0]], dtype=torch.float64).clamp(max=1.5)
REPULSIVE = torch.diag(torch.tensor([1.0, 1.5, 0.5], dtype=torch.float64))  # a convex energy, with costs on the diagonal
MIXED = torch.tensor([[0.4, 1, -1], [1, 0, 2], [-1, 2, -0.3]], dtype=torch.float64)


def colours(height: int, width: int, seed: int) -> Tensor:
    return 100 * torch.rand(height, width, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def crf(
    height: int = 2,
    width: int = 4,
    seed: int = 0,
    kind: Callable[[Tensor], Lattice | Gaussian] = Gaussian,
    compatibility: Tensor | None = None,
    weight: float = 0.6,
    cliques: Cliques | None = None,
) -> DenseCRF:
    unary = 2 * torch.rand(height * width, LABELS, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    smooth = Kernel(kind(image_features(height, width, 2.0)), weight)
    features = image_features(height, width, 4.0, colours(height, width, seed), 60.0)
    return DenseCRF(unary, (smooth, Kernel(kind(features), 2 * weight, compatibility=compatibility)), None, cliques)


def regions(points: int, cost: float = 1.5) -> Cliques:
    member = torch.arange(points) * 3 // points - 1
    return Cliques(member, torch.tensor([cost, cost / 2], dtype=torch.float64))


def overlapping(points: int, cost: float = 1.5) -> Cliques:
    """The regions, and one across them."""
    across = torch.where(torch.arange(points) % 2 > 0, 2, -1)
    return Cliques(torch.stack([across, regions(points).member], 1), torch.tensor([cost, cost / 2, cost / 3], dtype=torch.float64))


def play(field: DenseCRF, method: Callable[..., None], start: Tensor | None = None, **options: Any) -> Result:
    """Run a method; rates and penalties are given in costs, as the text has them, and not in the energy's unit."""
    unit = float(field.unit[0])
    if method in (pgd, prox_grad, admm):
        powers = {"rate": unit, "penalty": 1 / unit}
        options = {name: value * powers.get(name, 1) for name, value in options.items()}
    run = Run(field, "method")
    run.offer(field.unary.argmin(1), "unary")
    run.offer(field.best_constant(), "constant")
    run.start = (-field.unary).softmax(1) if start is None else start
    method(run, **options)
    return run.result()


class Dense:
    """The energy with a row for every pair of a point and a label."""

    def __init__(self, field: DenseCRF) -> None:
        n, m = field.unary.shape
        self.shape, self.costs, self.cliques = (n, m), field.unary.numpy().reshape(-1).copy(), field.cliques
        self.pairs = np.zeros((n * m, n * m))
        for kernel in field.kernels:
            table = 1 - np.eye(m) if kernel.compatibility is None else kernel.compatibility.numpy()
            matrix = kernel(torch.eye(n, dtype=torch.float64)).numpy()
            self.pairs += np.kron(matrix, table)
            # A labelling pays nothing for a point's pair with itself.
            self.costs -= np.kron(np.diag(matrix), np.diag(table)) / 2

    def energy(self, y: np.ndarray) -> float:
        total = self.costs @ y + y @ self.pairs @ y / 2
        if self.cliques is not None:
            rows = y.reshape(self.shape)
            for c, cost in enumerate(self.cliques.cost.tolist()):
                total += cost * (1 - rows[clique_points(self.cliques, c).numpy()].prod(0).sum())
        return float(total)

    def gradient(self, y: np.ndarray) -> np.ndarray:
        slope = self.costs + self.pairs @ y
        if self.cliques is not None:
            # The cost is linear in every entry.
            at = [np.where(np.arange(len(y)) == i, v, y) for i in range(len(y)) for v in (1.0, 0.0)]
            quadratic = [self.costs @ z + z @ self.pairs @ z / 2 for z in at]
            rest = np.array([self.energy(z) - q for z, q in zip(at, quadratic, strict=True)])
            slope = slope + rest[0::2] - rest[1::2]
        return slope

    def project(self, v: np.ndarray) -> np.ndarray:
        """The nearest points of the simplices, by bisection of the threshold."""
        rows = v.reshape(self.shape)
        low, high = rows.min(1, keepdims=True) - 1, rows.max(1, keepdims=True)
        for _ in range(100):
            middle = (low + high) / 2
            over = np.clip(rows - middle, 0, None).sum(1, keepdims=True) > 1
            low, high = np.where(over, middle, low), np.where(over, high, middle)
        return np.clip(rows - high, 0, None).reshape(-1)


def regularise(name: str, weight: float, y: np.ndarray) -> float:
    return weight / 2 * float(y @ y) if name == "l2" else weight * float((y * np.log(np.clip(y, 1e-300, None))).sum())


def target(dense: Dense, name: str, weight: float, y: np.ndarray) -> np.ndarray:
    slope = dense.gradient(y)
    if name == "l2":
        return dense.project(-slope / weight)
    rows = np.exp(-(slope.reshape(dense.shape) - slope.reshape(dense.shape).min(1, keepdims=True)) / weight)
    return (rows / rows.sum(1, keepdims=True)).reshape(-1)


def norm(dense: Dense, name: str, weight: float, y: np.ndarray) -> float:
    """The conditional gradient norm (13)."""
    p = target(dense, name, weight, y)
    return float(dense.gradient(y) @ (y - p)) + regularise(name, weight, y) - regularise(name, weight, p)


def flat(y: Tensor) -> np.ndarray:
    return y.numpy().reshape(-1)


VARIANTS = [("l2", l2fw), ("entropy", efw)]
TABLES = {"potts": None, "truncated": TRUNCATED, "repulsive": REPULSIVE, "mixed": MIXED}


@pytest.mark.parametrize("table", TABLES)
def test_the_relaxation_is_the_energy_at_labellings(table: str) -> None:
    field = crf(compatibility=TABLES[table])
    dense = Dense(field)
    for labelling in torch.randint(LABELS, (5, field.points), generator=torch.Generator().manual_seed(0)):
        y = torch.nn.functional.one_hot(labelling, LABELS).double()
        assert dense.energy(flat(y)) == pytest.approx(field.energy(labelling).item(), rel=1e-12)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(("name", "method"), VARIANTS)
@pytest.mark.parametrize("step", STEPS)
def test_steps_by_the_text(name: str, method: Callable[..., None], step: str, table: str) -> None:
    """Algorithm 1 with (11), (12) and (14), in dense matrices."""
    field, weight, size = crf(compatibility=TABLES[table]), 0.7, 0.4
    dense, y = Dense(field), flat((-field.unary).softmax(1))
    lipschitz = largest_curvature(field).item()
    for k in range(4):
        p = target(dense, name, weight, y)
        square, curvature = float((p - y) @ (p - y)), float((p - y) @ dense.pairs @ (p - y))
        assert curvature <= lipschitz * square * (1 + 1e-12)
        gain = norm(dense, name, weight, y) / square + weight / 2
        alpha = {
            "line-search": gain / (curvature / square + weight) if curvature / square + weight > 0 else 1.0,
            "adaptive": gain / (lipschitz + weight),
            "constant": size,
            "length": size / square**0.5,
            "decreasing": 2 / (k + 2),
            "root": 1 / (k + 1) ** 0.5,
        }[step]
        y = y + min(alpha, 1.0) * (p - y)
        found = play(field, method, weight=weight, step=step, size=size, steps=k + 1)
        np.testing.assert_allclose(flat(found.y), y, atol=1e-10)
        assert found.filter_calls == k + 2
        assert found.history.filter_calls.tolist() == list(range(2, k + 3))


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("step", ["line-search", "constant"])
def test_vanilla_frank_wolfe_by_the_text(step: str, table: str) -> None:
    """(7) in dense matrices: towards the labelling of least gradient, by the least energy on the way."""
    field = crf(compatibility=TABLES[table])
    dense, y = Dense(field), flat((-field.unary).softmax(1))
    for k in range(4):
        slope = dense.gradient(y).reshape(dense.shape)
        p = np.eye(LABELS)[slope.argmin(1)].reshape(y.shape)
        gain, curvature = float(slope.reshape(-1) @ (y - p)), float((p - y) @ dense.pairs @ (p - y))
        best = gain / curvature if curvature > gain else 1.0
        y = y + {"line-search": best, "constant": 0.4}[step] * (p - y)
        found = play(field, fw, step=step, size=0.4, steps=k + 1)
        np.testing.assert_allclose(flat(found.y), y, atol=1e-10)
        assert found.filter_calls == k + 2 or (found.status == Status.STALLED and gain < 1e-12)


@pytest.mark.parametrize("table", TABLES)
def test_the_line_search_of_l2fw_is_exact(table: str) -> None:
    field = crf(compatibility=TABLES[table], weight=2.0)
    dense, start = Dense(field), flat((-field.unary).softmax(1))
    p = target(dense, "l2", 0.5, start)
    reached = flat(play(field, l2fw, weight=0.5, steps=1).y)
    values = [dense.energy(y) + regularise("l2", 0.5, y) for y in (start + a * (p - start) for a in np.linspace(0, 1, 1001))]
    assert dense.energy(reached) + regularise("l2", 0.5, reached) <= min(values) + 1e-12
    if table == "repulsive":
        assert 0 < np.argmin(values) < 1000  # not only the ends


@pytest.mark.parametrize("compatibility", [None, TRUNCATED])
@pytest.mark.parametrize("cliques", [None, overlapping(8)])
def test_efw_is_parallel_mean_field(compatibility: Tensor | None, cliques: Cliques | None) -> None:
    field = crf(compatibility=compatibility, cliques=cliques)
    reference = play(field, mean_field, steps=6)
    found = play(field, efw, weight=1.0, step="constant", steps=6)
    torch.testing.assert_close(found.y, reference.y, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.history.energy, reference.history.energy)
    damped = play(field, efw, weight=1.0, step="constant", size=0.75, steps=6)
    torch.testing.assert_close(damped.y, play(field, mean_field, damping=0.25, steps=6).y)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(("name", "method"), VARIANTS)
@pytest.mark.parametrize("clique", [0.0, 1.5, 20.0])
def test_line_search_descends_to_a_stationary_point(name: str, method: Callable[..., None], table: str, clique: float) -> None:
    field = crf(3, 3, 2, compatibility=TABLES[table], weight=1.5, cliques=regions(9, clique) if clique else None)
    dense, values, norms = Dense(field), [], []
    y = (-field.unary).softmax(1)
    for _ in range(12):
        values.append(dense.energy(flat(y)) + regularise(name, 0.3, flat(y)))
        norms.append(norm(dense, name, 0.3, flat(y)))
        y = play(field, method, y, weight=0.3, steps=25).y
    assert all(after <= before + 1e-10 for before, after in itertools.pairwise(values))
    assert values[1] < values[0]
    assert norms[-1] < 1e-4 * norms[0]
    one = play(field, method, weight=0.3, steps=1)  # a single step descends too
    assert dense.energy(flat(one.y)) + regularise(name, 0.3, flat(one.y)) < values[0]


def test_adaptive_steps_never_rise_and_meet_the_rate_of_theorem_1() -> None:
    for cliques in (None, regions(9)):
        field = crf(3, 3, 2, compatibility=REPULSIVE, weight=1.5, cliques=cliques)
        dense, weight = Dense(field), 0.5
        ys = [play(field, efw, weight=weight, step="adaptive", steps=k).y for k in (1, 2, 3, 10, 30)]
        points = [flat((-field.unary).softmax(1)), *(flat(y) for y in ys)]
        values = [dense.energy(y) + regularise("entropy", weight, y) for y in points]
        assert all(after < before for before, after in itertools.pairwise(values))
        # The least norm of steps 0 to 30 is at most (F_0 - F*) / (omega 31), with F* at least F - S where the energy is convex.
        if cliques is None:
            lowest = values[-1] - norm(dense, "entropy", weight, points[-1])
            rate = (values[0] - lowest) * (largest_curvature(field).item() + weight) / weight / 31
            assert min(norm(dense, "entropy", weight, y) for y in points) <= rate


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("compatibility", [None, MIXED])
def test_results_against_enumeration(method: Callable[..., None], seed: int, compatibility: Tensor | None) -> None:
    field = crf(2, 4, seed, compatibility=compatibility)
    dense = Dense(field)
    labellings = (np.eye(LABELS)[list(x)].reshape(-1) for x in itertools.product(range(LABELS), repeat=8))
    best = min(dense.energy(y) for y in labellings)
    found = play(field, method, steps=30)
    assert found.energy.item() == found.history.energy[-1].item()
    assert best - 1e-9 <= found.best_energy.item() <= found.history.energy.min().item() + 1e-12
    if compatibility is None:  # the others have poor local minima
        assert found.best_energy.item() <= best + 0.05 * abs(best)
    torch.testing.assert_close(found.y.sum(1), torch.ones(8, dtype=torch.float64))
    assert float(found.y.min()) >= 0


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("clique", [0.0, 20.0])
def test_projected_gradient_descends_to_a_stationary_point(table: str, clique: float) -> None:
    field = crf(3, 3, 2, compatibility=TABLES[table], weight=1.5, cliques=regions(9, clique) if clique else None)
    dense, y = Dense(field), flat((-field.unary).softmax(1))
    first = y + 0
    p = dense.project(y - 0.5 * dense.gradient(y))
    reached = flat(play(field, pgd, rate=0.5, steps=1).y)
    way = [dense.energy(y + a * (p - y)) for a in np.linspace(0, 1, 501)]
    if not clique:
        assert dense.energy(reached) <= min(way) + 1e-12
    values = [dense.energy(first)]
    for steps in (1, 2, 5, 40, 400):
        y = flat(play(field, pgd, rate=0.5, steps=steps).y)
        values.append(dense.energy(y))
    assert values[1] < values[0]
    assert all(after <= before + 1e-10 for before, after in itertools.pairwise(values))
    assert np.abs(dense.project(y - 0.5 * dense.gradient(y)) - y).max() < 1e-5


def test_proximal_gradient_has_the_rate_of_fista() -> None:
    """Beck & Teboulle 2009, Theorem 4.4: E(y_k) - E* <= 2 |y_0 - y*|^2 / (beta (k + 1)^2) for convex E."""
    field = crf(3, 3, 4, compatibility=REPULSIVE)
    field = DenseCRF(field.unary, field.kernels[1:])
    dense, start = Dense(field), (-field.unary).softmax(1)
    rate = 1 / np.linalg.eigvalsh(dense.pairs).max()
    assert np.linalg.eigvalsh(dense.pairs).min() > -1e-12
    best = flat(play(field, pgd, rate=1.0, steps=4000).y)
    slope = dense.gradient(best).reshape(dense.shape)
    lowest = dense.energy(best) - float((slope * best.reshape(dense.shape)).sum() - slope.min(1).sum())
    assert lowest == pytest.approx(dense.energy(best), abs=1e-8)
    distance = float(((flat(start) - best) ** 2).sum())
    for k in (1, 2, 5, 10, 30, 100):
        y = flat(play(field, prox_grad, rate=rate, steps=k).y)
        assert dense.energy(y) - lowest <= 2 * distance / rate / (k + 1) ** 2


def test_proximal_gradient_by_the_text() -> None:
    for cliques in (None, regions(8)):
        field = crf(compatibility=MIXED, cliques=cliques)
        dense, y, t = Dense(field), flat((-field.unary).softmax(1)), 1.0
        ahead = y
        for k in range(5):
            old, clique_part = y, dense.gradient(y) - dense.costs - dense.pairs @ y
            y = dense.project(ahead - 0.8 * (dense.costs + dense.pairs @ ahead + clique_part))
            t, before = (1 + (1 + 4 * t * t) ** 0.5) / 2, t
            ahead = y + (before - 1) / t * (y - old)
            found = play(field, prox_grad, rate=0.8, steps=k + 1)
            np.testing.assert_allclose(flat(found.y), y, atol=1e-10)
            assert found.filter_calls == k + 1


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("cliques", [None, overlapping(8, 1.0)])
def test_admm_by_the_text_and_stationary(table: str, cliques: Cliques | None) -> None:
    field = crf(compatibility=TABLES[table], cliques=cliques)
    dense = Dense(field)
    x = z = flat((-field.unary).softmax(1))
    multipliers = np.zeros_like(z)
    for k in range(3):
        x = dense.project(z - (dense.gradient(z) / 2 + multipliers) / 0.9)
        found = play(field, admm, penalty=0.9, steps=2 * k + 1)
        np.testing.assert_allclose(flat(found.y), x, atol=1e-10)
        z = dense.project(x - (dense.gradient(x) / 2 - multipliers) / 0.9)
        multipliers = multipliers + 0.9 * (x - z)
        found = play(field, admm, penalty=0.9, steps=2 * k + 2)
        np.testing.assert_allclose(flat(found.y), z, atol=1e-10)
        assert found.filter_calls == 2 * k + 2
    y = flat(play(field, admm, penalty=5.0, steps=2000).y)
    assert np.abs(dense.project(y - dense.gradient(y)) - y).max() < 1e-6


@cache
def batch(dtype: torch.dtype) -> tuple[DenseCRF, list[DenseCRF]]:
    """Two images of unequal size together, and alone."""
    sizes = [(4, 5, 1), (6, 3, 2)]
    parts = [crf(h, w, seed, Lattice.build) for h, w, seed in sizes]
    image = torch.cat([torch.full((p.points,), k) for k, p in enumerate(parts)])
    smooth = torch.cat([image_features(h, w, 2.0) for h, w, _ in sizes])
    bilateral = torch.cat([image_features(h, w, 4.0, colours(h, w, seed), 60.0) for h, w, seed in sizes])
    kernels = (Kernel(Lattice.build(smooth, image), 0.6), Kernel(Lattice.build(bilateral, image), 1.2))
    together = DenseCRF(torch.cat([p.unary for p in parts]).to(dtype), kernels, image)
    return together, [DenseCRF(p.unary.to(dtype), p.kernels) for p in parts]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("method", METHODS)
def test_images_of_one_batch_are_alone(method: Callable[..., None], dtype: torch.dtype) -> None:
    together, parts = batch(dtype)
    # The other rules know nothing of images.
    rules = [{"step": step} for step in ("line-search", "adaptive", "length")] if method in (l2fw, efw, fw) else [{}]
    for option in [rule | {"steps": 4} for rule in rules]:
        whole, single = play(together, method, **option), [play(p, method, **option) for p in parts]
        assert torch.equal(whole.y, torch.cat([s.y for s in single]))
        assert torch.equal(whole.energy, torch.cat([s.energy for s in single]))
        if method is not fw:  # which is stationary in a labelling before that
            assert torch.equal(whole.history.energy, torch.cat([s.history.energy for s in single], 1))
    if method not in (prox_grad, admm, fw):
        # One image is stationary long before the other and must stay.
        option = {"tolerance": 0.5, "steps": 12} | ({} if method is pgd else {"step": "constant", "size": 0.3})
        whole, done = play(together, method, **option), [play(p, method, **option) for p in parts]
        assert len({len(s.history.energy) for s in done}) == 2
        assert torch.equal(whole.y, torch.cat([s.y for s in done]))
        assert whole.status == Status.STALLED


def test_cliques_of_two_images_have_steps_of_their_own() -> None:
    parts = [crf(2, 4, 1, cliques=regions(8, 20.0)), crf(3, 3, 2, cliques=regions(9, 1.0))]
    image = torch.cat([torch.full((p.points,), k) for k, p in enumerate(parts)])
    smooth = torch.cat([image_features(2, 4, 2.0), image_features(3, 3, 2.0)])
    bilateral = torch.cat([image_features(h, w, 4.0, colours(h, w, s), 60.0) for h, w, s in ((2, 4, 1), (3, 3, 2))])
    member = torch.cat([regions(8).member, torch.where(regions(9).member < 0, -1, regions(9).member + 2)])
    cost = torch.tensor([20.0, 10.0, 1.0, 0.5], dtype=torch.float64)
    kernels = (Kernel(Gaussian(smooth, image), 0.6), Kernel(Gaussian(bilateral, image), 1.2))
    together = DenseCRF(torch.cat([p.unary for p in parts]), kernels, image, Cliques(member, cost))
    torch.testing.assert_close(largest_curvature(together), torch.cat([largest_curvature(p) for p in parts]))
    for method, options in ((l2fw, {}), (efw, {"step": "adaptive"}), (pgd, {}), (prox_grad, {})):
        whole = play(together, method, **options)
        torch.testing.assert_close(whole.y, torch.cat([play(p, method, **options).y for p in parts]))


def test_small_weights_come_to_labellings() -> None:
    """Where the weight goes to 0, p is the labelling of vanilla Frank-Wolfe."""
    field = DenseCRF(crf().unary.float(), crf().kernels)
    for method in (l2fw, efw):
        y = play(field, method, weight=1e-12, step="constant", steps=3).y
        assert torch.equal(y, torch.nn.functional.one_hot(y.argmax(1), LABELS).float())


def test_wrong_options_are_refused() -> None:
    field = crf()
    for method, options, match in [
        (l2fw, {"weight": 0.0}, "weight is 0"),
        (efw, {"size": -1.0}, "size is -1"),
        (efw, {"steps": 0}, "steps is 0"),
        (l2fw, {"step": "longest"}, "choose a rule of line-search"),
        (l2fw, {"step": "constant", "size": 1.5}, "constant steps up to 1"),
        (efw, {"tolerance": float("nan")}, "tolerance of 0"),
        (pgd, {"rate": float("inf")}, "rate is inf"),
        (pgd, {"tolerance": -1.0}, "tolerance is -1"),
        (prox_grad, {"rate": 0.0}, "rate is 0"),
        (admm, {"penalty": 0.0}, "penalty is 0"),
    ]:
        with pytest.raises(OptionError, match=match):
            play(field, method, **options)

"""The face of pydensecrf against a plain mean field in numpy on explicit matrices, and enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import blocklp.problems.densecrf.pydensecrf as dcrf
from blocklp.errors import ModelError, NonFiniteError, OptionError, ShapeError
from blocklp.oracles.filters.permutohedral import Lattice
from blocklp.problems.densecrf import solve_densecrf

HEIGHT, WIDTH, LABELS = 5, 7, 3
DRAW = np.random.default_rng(0)
IMAGE = DRAW.integers(0, 256, (HEIGHT, WIDTH, 3)).astype(np.uint8)
UNARY = DRAW.random((LABELS, HEIGHT * WIDTH)).astype(np.float32) * 2
MATRIX = np.array([[0.0, 1.0, 3.0], [1.0, 0.5, 2.0], [3.0, 2.0, -1.0]])


def kernel(features: NDArray[np.float64], symmetric: bool) -> NDArray[np.float64]:
    """The lattice's matrix, column by column."""
    lattice = Lattice.build(torch.from_numpy(features))
    k = lattice.filter(torch.eye(len(features), dtype=torch.float64)).numpy()
    if symmetric:
        norm = 1 / np.sqrt(k.sum(1))
        k = norm[:, None] * k * norm
    return k


def softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    e = np.exp(x - x.max(0))
    return e / e.sum(0)


def mean_field(
    unary: NDArray[np.float64], pairs: list[tuple[NDArray[np.float64], NDArray[np.float64]]], steps: int
) -> NDArray[np.float64]:
    """Algorithm 1 of Kraehenbuehl & Koltun (2011) on explicit matrices K and costs of label pairs."""
    q = softmax(-unary)
    for _ in range(steps):
        q = softmax(-unary - sum(costs @ q @ k for k, costs in pairs))
    return q


def positions() -> NDArray[np.float64]:
    return np.array([[x, y] for y in range(HEIGHT) for x in range(WIDTH)], float)


def features(sxy: float = 4.0, srgb: float = 40.0) -> NDArray[np.float64]:
    return np.concatenate([positions() / sxy, IMAGE.reshape(-1, 3) / srgb], 1)


def field(compat: object = 0.7, normalization: int = dcrf.NORMALIZE_SYMMETRIC) -> dcrf.DenseCRF2D:
    d = dcrf.DenseCRF2D(WIDTH, HEIGHT, LABELS)
    d.setUnaryEnergy(UNARY)
    d.addPairwiseGaussian(sxy=(2, 3), compat=1.5, normalization=normalization)
    d.addPairwiseBilateral(sxy=4, srgb=40, rgbim=IMAGE, compat=compat, normalization=normalization)
    return d


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    ("compat", "costs"),
    [
        (0.7, -0.7 * np.eye(3)),  # up to a number for each pixel, which the softmax does not see
        (-0.7, 0.7 * np.eye(3)),
        (-np.array([0.2, 1.0, 3.0]), -np.diag([0.2, 1.0, 3.0])),
        (MATRIX, MATRIX),
        (np.triu(MATRIX) * 2 - np.diag(np.diag(MATRIX)), MATRIX),
    ],
)
def test_marginals_are_those_of_plain_mean_field(symmetric: bool, compat: object, costs: NDArray[np.float64]) -> None:
    normalization = dcrf.NORMALIZE_SYMMETRIC if symmetric else dcrf.NO_NORMALIZATION
    pairs = [(kernel(positions() / [2, 3], symmetric), -1.5 * np.eye(3)), (kernel(features(), symmetric), costs)]
    d = field(compat, normalization)
    for steps in (0, 1, 5):
        q = d.inference(steps)
        assert q.shape == (LABELS, HEIGHT * WIDTH) and q.dtype == np.float32 and q.flags.c_contiguous
        np.testing.assert_allclose(q, mean_field(UNARY, pairs, steps), atol=3e-5)
    np.testing.assert_array_equal(d.map(5), d.inference(5).argmax(0))


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("compat", "costs"), [(0.7, -0.7 * np.eye(3)), (MATRIX, MATRIX)])
def test_kernels_that_are_normalised_on_one_side(before: bool, compat: object, costs: NDArray[np.float64]) -> None:
    d = field(compat, dcrf.NORMALIZE_BEFORE if before else dcrf.NORMALIZE_AFTER)
    d.addPairwiseGaussian(sxy=5, compat=0.4)  # beside a symmetric one
    pairs = [(kernel(positions() / 5, True), -0.4 * np.eye(3))]
    for where, mu in ((positions() / [2, 3], -1.5 * np.eye(3)), (features(), costs)):
        k = kernel(where, False)
        shares = np.diag(1 / k.sum(1))
        pairs.append((shares @ k if before else k @ shares, mu))
    unary = UNARY.astype(float)
    np.testing.assert_allclose(d.inference(4), mean_field(unary, pairs, 4), atol=2e-5)
    unary[1, :5] = np.inf
    d.setUnaryEnergy(unary)
    found = d.inference(4)
    np.testing.assert_allclose(found, mean_field(unary, pairs, 4), atol=2e-5)
    assert (found[1, :5] == 0).all() and d.map(4).shape == (HEIGHT * WIDTH,)
    marginals, *buffers = d.startInference()
    for _ in range(4):
        d.stepInference(marginals, *buffers)
    np.testing.assert_array_equal(marginals, found)
    with pytest.raises(ModelError, match="belongs to no energy"):
        _ = d.crf
    with pytest.raises(ModelError, match="belongs to no energy"):
        d.klDivergence(found)


@pytest.mark.parametrize("compat", [0.7, -0.7, MATRIX])
def test_infinite_unaries_forbid_labels(compat: object) -> None:
    """Marginals are those of plain mean field with infinities, as pydensecrf computes them; the energy is that of what is left."""
    unary = UNARY.astype(np.float64)
    forbidden = DRAW.random(unary.shape) < 0.4
    forbidden[0] &= ~forbidden.all(0)
    unary[forbidden] = np.inf
    d = field(compat)
    d.setUnaryEnergy(unary)
    costs = np.asarray(compat) if np.ndim(compat) else -np.asarray(compat) * np.eye(3)
    pairs = [(kernel(positions() / [2, 3], True), -1.5 * np.eye(3)), (kernel(features(), True), costs)]
    for steps in (0, 1, 5):
        q = d.inference(steps)
        assert not q[forbidden].any()
        np.testing.assert_allclose(q, mean_field(unary, pairs, steps), atol=3e-5)
    free = field(compat).crf
    for method in ("prox-lp", "qp-cvx") if np.ndim(compat) == 0 and compat == 0.7 else ("qp-cvx",):
        found = solve_densecrf(d.crf, method, time_limit=60)
        assert not forbidden.T[torch.arange(35), found.best_labelling].any()
        # Without the infinities the labelling costs the same.
        assert found.best_energy.item() == pytest.approx(free.energy(found.best_labelling).item(), rel=1e-9)
        for step in range(20):
            allowed = (
                np.array([DRAW.choice(np.flatnonzero(~forbidden[:, a])) for a in range(35)]) if step else found.labelling.numpy()
            )
            assert found.bound.item() <= free.energy(torch.from_numpy(allowed)).item()


def test_an_infinite_unary_by_enumeration() -> None:
    """The bound and the best labelling of what is possible, from all labellings."""
    d = dcrf.DenseCRF(6, 3)
    unary = DRAW.random((3, 6))
    unary[0, 0] = unary[1, 1] = unary[2, 1] = np.inf
    d.setUnaryEnergy(unary)
    d.addPairwiseEnergy(DRAW.random((1, 6)), compat=1.5)
    k = kernel(np.zeros((6, 1)), True) * 0
    for row, _ in enumerate(k):
        one = torch.zeros(6, 1, dtype=torch.float64)
        one[row] = 1
        k[row] = d.crf.kernels[0](one)[:, 0].numpy()
    totals = [
        sum(unary[x[a], a] for a in range(6)) + sum(k[a, b] * (x[a] != x[b]) for a in range(6) for b in range(a))
        for x in itertools.product(range(3), repeat=6)
    ]
    found = solve_densecrf(d.crf, "prox-lp")
    assert found.bound.item() <= min(totals) <= found.best_energy.item() + 1e-5
    assert found.best_energy.item() == pytest.approx(min(totals), rel=0.05)


def test_steps_by_hand_are_inference() -> None:
    d = field()
    q, one, two = d.startInference()
    for _ in range(3):
        d.stepInference(q, one, two)
    np.testing.assert_array_equal(q, d.inference(3))


def test_generic_features_are_those_of_the_image() -> None:
    d = dcrf.DenseCRF(HEIGHT * WIDTH, LABELS)
    d.setUnaryEnergy(UNARY)
    d.addPairwiseEnergy((positions() / [2, 3]).T, compat=1.5, kernel=dcrf.FULL_KERNEL)
    d.addPairwiseEnergy(features().T, compat=0.7, kernel=dcrf.CONST_KERNEL)
    np.testing.assert_allclose(d.inference(4), field().inference(4), atol=1e-6)


def test_any_layout_type_and_read_only_arrays() -> None:
    truth = field().inference(3)
    unary = np.repeat(np.asfortranarray(UNARY.astype(np.float64)), 2, 1)[:, ::2]
    image = np.ascontiguousarray(IMAGE[::-1].transpose(2, 0, 1)).transpose(1, 2, 0)[::-1].astype(np.float64)
    for array in (unary, image):
        array.flags.writeable = False
    d = dcrf.DenseCRF2D(WIDTH, HEIGHT, LABELS)
    d.setUnaryEnergy(unary)
    d.addPairwiseGaussian(np.array([2, 3]), np.float64(1.5))
    d.addPairwiseBilateral((4, 4), (40, 40, 40), image, 0.7)
    np.testing.assert_array_equal(d.inference(3), truth)
    unary = UNARY.copy()
    d.setUnaryEnergy(unary)
    unary[:] = 0  # what was given is not kept
    np.testing.assert_array_equal(d.inference(3), truth)


def test_divergence_by_enumeration() -> None:
    d = dcrf.DenseCRF(3, 2)
    unary = np.array([[0.3, 0.1, 1.0], [0.9, 0.2, 0.0]])
    where = np.array([[0.0, 0.5, 1.2]])
    d.setUnaryEnergy(unary)
    d.addPairwiseEnergy(where, compat=1.3, normalization=dcrf.NO_NORMALIZATION)
    k = kernel(where.T, False)
    q = np.array([[0.2, 0.5, 1.0], [0.8, 0.5, 0.0]])
    truth = 0.0
    for x in itertools.product(range(2), repeat=3):
        chance = np.prod([q[x[a], a] for a in range(3)])
        if chance > 0:
            apart = sum(1.3 * k[a, b] for a in range(3) for b in range(a) if x[a] != x[b])
            truth += chance * (np.log(chance) + sum(unary[x[a], a] for a in range(3)) + apart)
    assert d.klDivergence(q) == pytest.approx(truth, rel=1e-6)


def test_the_energy_is_for_every_method() -> None:
    d = field()
    found = solve_densecrf(d.crf, "prox-lp", outer=2)
    assert found.bound.item() <= found.energy.item() <= d.crf.energy(torch.from_numpy(d.map(25))).item() + 1e-9
    assert d.crf is d.crf
    d.addPairwiseGaussian(1, 1)
    assert len(d.crf.kernels) == 3


def test_costs_of_annotations() -> None:
    labels = np.array([[0, 1], [3, 2]], np.uint8)
    costs = dcrf.unary_from_labels(labels, 3, 0.7)
    assert costs.shape == (3, 4) and costs.dtype == np.float32
    own, other, unsure = -np.log(0.7), -np.log(0.15), np.log(3)
    truth = [[unsure, own, other, other], [unsure, other, other, own], [unsure, other, own, other]]
    np.testing.assert_allclose(costs, truth, rtol=1e-6)
    np.testing.assert_allclose(
        dcrf.unary_from_labels([0, 1], 2, 0.9, zero_unsure=False), -np.log([[0.9, 0.1], [0.1, 0.9]]), rtol=1e-6
    )
    for bad in ([4], [-1], [0.5]):
        with pytest.raises(OptionError, match="whole numbers from 0 to 3"):
            dcrf.unary_from_labels(bad, 3, 0.7)
    with pytest.raises(OptionError, match="between 0 and 1"):
        dcrf.unary_from_labels(labels, 3, 1.0)


def test_costs_of_probabilities() -> None:
    p = np.array([[[0.2, 1.0]], [[0.8, 0.0]]])
    np.testing.assert_allclose(dcrf.unary_from_softmax(p), -np.log([[0.2, 1], [0.8, 1e-5]]), rtol=1e-6)
    np.testing.assert_allclose(dcrf.unary_from_softmax(p, scale=0.5, clip=None), -np.log([[0.35, 0.75], [0.65, 0.25]]), rtol=1e-6)
    np.testing.assert_allclose(dcrf.unary_from_softmax(p, clip=None), [[-np.log(0.2), 0], [-np.log(0.8), np.inf]])
    with pytest.raises(OptionError, match="softmax"):
        dcrf.unary_from_softmax(-p)


def test_features_of_grids_of_any_dimension() -> None:
    volume = DRAW.random((2, 3, 4, 2))
    found = dcrf.create_pairwise_bilateral((1, 2, 4), (0.5, 0.25), volume, chdim=3)
    truth = [[z, y / 2, x / 4, *(volume[z, y, x] / [0.5, 0.25])] for z in range(2) for y in range(3) for x in range(4)]
    np.testing.assert_allclose(found.T, truth, rtol=1e-6)
    np.testing.assert_allclose(
        dcrf.create_pairwise_bilateral((1, 2), 0.5, volume[0, :, :, 0])[2], volume[0, :, :, 0].ravel() * 2, rtol=1e-6
    )
    np.testing.assert_allclose(dcrf.create_pairwise_gaussian((1, 2, 4), (2, 3, 4)), found[:3])
    with pytest.raises(ShapeError, match="sdims"):
        dcrf.create_pairwise_bilateral((1, 2), 1, volume, chdim=3)


def test_wrong_input_is_refused_with_the_mend() -> None:
    d = field()
    with pytest.raises(OptionError, match="no normalization 4; give one of NO_NORMALIZATION, NORMALIZE_BEFORE"):
        d.addPairwiseGaussian(3, 3, normalization=4)
    with pytest.raises(ShapeError, match=r"give u\.T"):
        d.setUnaryEnergy(UNARY.T)
    with pytest.raises(ShapeError, match=r"u\.reshape\(3, -1\)"):
        d.setUnaryEnergy(UNARY.reshape(3, HEIGHT, WIDTH))
    with pytest.raises(ShapeError, match=r"u\.reshape\(-1, 3\)\.T"):
        d.setUnaryEnergy(UNARY.T.reshape(HEIGHT, WIDTH, 3))
    for bad in (np.nan, -np.inf):
        with pytest.raises(NonFiniteError, match="clip"):
            d.setUnaryEnergy(UNARY * bad)
    with pytest.raises(NonFiniteError, match="point 0"):
        d.setUnaryEnergy(np.full_like(UNARY, np.inf))
    with pytest.raises(NonFiniteError, match="too large"):
        d.setUnaryEnergy(UNARY.astype(np.float64) * 1e100)
    with pytest.raises(ShapeError, match="compat"):
        d.addPairwiseGaussian(3, [1.0, 2.0])
    with pytest.raises(ShapeError, match=r"features\.T"):
        d.addPairwiseEnergy(features(), 1)
    with pytest.raises(ShapeError, match="moveaxis"):
        d.addPairwiseBilateral(4, 40, IMAGE.transpose(2, 0, 1), 1)
    with pytest.raises(ShapeError, match="width first"):
        d.addPairwiseBilateral(4, 40, IMAGE.transpose(1, 0, 2), 1)
    with pytest.raises(OptionError, match="255 \\* image"):
        d.addPairwiseBilateral(4, 40, IMAGE / 255, 1)
    with pytest.raises(OptionError, match="sxy"):
        d.addPairwiseGaussian(0, 1)
    with pytest.raises(ShapeError, match="srgb"):
        d.addPairwiseBilateral(4, (1, 2), IMAGE, 1)
    with pytest.raises(ModelError, match="setUnaryEnergy"):
        dcrf.DenseCRF2D(2, 2, 2).inference(1)
    with pytest.raises(OptionError, match="steps"):
        d.inference(-1)
    with pytest.raises(OptionError, match="points"):
        dcrf.DenseCRF(0, 2)


def test_older_names_and_unaries_of_features() -> None:
    labels = DRAW.integers(0, LABELS + 1, (HEIGHT, WIDTH))
    assert np.array_equal(dcrf.compute_unary(labels, LABELS), dcrf.unary_from_labels(labels, LABELS, 0.5))
    chances = softmax(UNARY)
    chances[:, 0] = [0.0, 0.25, 0.75]
    assert np.array_equal(dcrf.softmax_to_unary(chances), dcrf.unary_from_softmax(chances, clip=None))
    assert np.isinf(dcrf.softmax_to_unary(chances)[0, 0])
    assert np.array_equal(dcrf.softmax_to_unary(chances, 0.7), dcrf.unary_from_softmax(chances, 0.7, clip=None))
    weights, about = DRAW.normal(size=(LABELS, 4)), DRAW.normal(size=(4, HEIGHT * WIDTH))
    expected = softmax(-(weights @ about))
    for unary in ((weights, about), (weights @ about,)):
        d = dcrf.DenseCRF2D(WIDTH, HEIGHT, LABELS)
        d.setUnaryEnergy(*unary)
        np.testing.assert_allclose(d.inference(0), expected, rtol=1e-5)
    for given in (dcrf.ConstUnary(weights @ about), dcrf.LogisticUnary(weights, about)):
        d.setUnary(given)
        np.testing.assert_allclose(d.inference(0), expected, rtol=1e-5)
    with pytest.raises(ShapeError, match=r"\(labels, features\)"):
        dcrf.LogisticUnary(weights.T, about)

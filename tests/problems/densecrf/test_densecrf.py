"""Dense CRFs against explicit LPs and enumeration."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from blocklp.errors import ModelError, NonFiniteError, OptionError, ShapeError
from blocklp.oracles.filters.gaussian import Gaussian
from blocklp.oracles.filters.permutohedral import Lattice
from blocklp.problems.densecrf import (
    METHODS,
    Cliques,
    DenseCRF,
    Kernel,
    grid_features,
    image_crf,
    image_features,
    mean_shift_regions,
    readers,
    region_cliques,
    solve_densecrf,
    superpixel_cliques,
)
from blocklp.problems.densecrf.mean_field import mean_field_update
from blocklp.problems.densecrf.prox_lp import project_to_simplex
from blocklp.problems.densecrf.pydensecrf import create_pairwise_gaussian

from .explicit_lp import explicit_lp

MSRC = Path(__file__).parents[4] / "shared" / "data" / "densecrf" / "msrc"


def picture(height: int, width: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    stripes = 100.0 * (torch.arange(width) * 2 // width).expand(height, width)
    return (stripes[:, :, None] + 20 * torch.rand(height, width, 3, generator=draw)).double()


def crf(height: int, width: int, labels: int, seed: int = 0, kind: type = Gaussian, weight: float = 0.6) -> DenseCRF:
    image = picture(height, width, seed)
    unary = 2 * torch.rand(height * width, labels, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    smooth = kind(image_features(height, width, 2.0).double())
    bilateral = kind(image_features(height, width, 4.0, image, 30.0))
    return DenseCRF(unary, (Kernel(smooth, weight), Kernel(bilateral, 2 * weight)))


def dense(field: DenseCRF) -> np.ndarray:
    return sum(k(torch.eye(field.points, dtype=torch.float64)) for k in field.kernels).numpy()


def energy(field: DenseCRF, matrix: np.ndarray, labelling: np.ndarray) -> float:
    apart = labelling[:, None] != labelling
    return float(field.unary.numpy()[np.arange(len(labelling)), labelling].sum() + (matrix * apart).sum() / 2)


@pytest.mark.parametrize("kind", [Gaussian, Lattice.build])
def test_energies_by_definition(kind: type) -> None:
    field = crf(3, 4, 3, kind=kind)
    matrix = dense(field)
    draw = np.random.default_rng(0)
    for _ in range(5):
        labelling = draw.integers(0, 3, 12)
        truth = energy(field, matrix, labelling)
        y = torch.nn.functional.one_hot(torch.tensor(labelling), 3).double()
        assert field.energy(torch.tensor(labelling)).item() == pytest.approx(truth, rel=1e-12)
        assert field.linear(y).item() == pytest.approx(truth, rel=1e-12)
    y = torch.rand(12, 3, dtype=torch.float64).softmax(1)
    apart = (y[:, None] - y[None]).abs().sum(2).numpy()
    assert field.linear(y).item() == pytest.approx(float((field.unary * y).sum() + (matrix * apart).sum() / 4), rel=1e-12)


def test_labels_of_any_form_have_an_energy_or_a_mend() -> None:
    field = crf(3, 4, 3)
    labels = np.arange(12) % 3
    truth = field.energy(torch.tensor(labels)).item()
    for given in (labels, labels.reshape(3, 4), labels.astype(np.uint8), torch.tensor(labels).view(3, 4).int(), labels.tolist()):
        assert field.energy(given).item() == truth
    assert field.energy(np.eye(3)[labels]).item() == pytest.approx(truth)
    for wrong, mend in (
        (labels * 1.0, "give integers"),
        (labels > 0, "give integers"),
        (labels[:5], "one for each of 12 points"),
        (labels + 7, "from 7 to 9; give 0 to 2"),
        (labels - 1, "from -1 to 1; give 0 to 2"),
    ):
        with pytest.raises(ModelError, match=mend):
            field.energy(wrong)
    assert "tensor" not in repr(Cliques(torch.zeros(12, dtype=torch.int64), torch.ones(1)))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_bounds_and_labellings_against_enumeration(seed: int, dtype: torch.dtype) -> None:
    field = crf(2, 4, 3, seed)
    matrix = dense(field)
    best = min(energy(field, matrix, np.array(x)) for x in itertools.product(range(3), repeat=8))
    narrow = DenseCRF(field.unary.to(dtype), field.kernels)
    truth = explicit_lp(field)
    for weight in (1e-6, 0.1, 10.0, 1e6):
        found = solve_densecrf(narrow, "prox-lp", weight=weight, levels=8)
        assert found.bound.item() <= truth + 1e-9
        assert found.energy.item() >= best - 1e-5
    assert solve_densecrf(narrow, "mean-field").energy.item() >= best - 1e-5


@pytest.mark.parametrize("kind", [Gaussian, Lattice.build])
def test_prox_lp_reaches_the_lp(kind: type) -> None:
    field = crf(5, 5, 3, 3, kind)
    truth = explicit_lp(field)
    found = solve_densecrf(field, "prox-lp", weight=1.0, outer=60, inner=20, levels=25)
    assert found.bound.item() <= truth
    assert found.bound.item() == pytest.approx(truth, rel=5e-3)
    assert field.linear(found.y).item() == pytest.approx(truth, rel=5e-3)
    assert found.gap.item() >= 0


def test_never_worse_than_trivial_labellings() -> None:
    for weight in (0.01, 1.0, 50.0):
        field = crf(6, 6, 4, 5, weight=weight)
        for found in (solve_densecrf(field, "mean-field", steps=3, damping=0.5), solve_densecrf(field, "prox-lp", outer=2)):
            trivial = torch.minimum(field.energy(field.unary.argmin(1)), field.energy(field.best_constant()))
            assert found.best_energy.item() <= trivial.item()
            assert found.best_energy.item() == pytest.approx(field.energy(found.best_labelling).item())
    # With so much smoothing nothing is better than one label everywhere.
    assert found.best_energy.item() == pytest.approx(field.energy(field.best_constant()).item())


@pytest.mark.parametrize("method", METHODS)
def test_the_method_s_own_labelling_and_the_best_beside_it(method: str) -> None:
    """Where one label everywhere has least energy, the method's labelling is still what its point says."""
    field = crf(6, 6, 4, 5, Lattice.build, weight=1.0)
    found = solve_densecrf(field, method)
    assert torch.equal(found.labelling, found.y.argmax(1))
    assert found.energy.item() == pytest.approx(field.energy(found.labelling).item(), rel=1e-12)
    assert found.energy.item() == found.history.energy[-1].item()
    assert found.best_energy.item() == pytest.approx(field.energy(found.best_labelling).item(), rel=1e-12)
    constant = field.energy(field.best_constant()).item()
    assert found.best_energy.item() <= min(constant, found.history.energy.min().item())
    assert found.gap.item() >= found.best_gap.item() >= 0
    if method == "mean-field":
        q = (-field.unary).softmax(1)
        for _ in range(5):
            q = mean_field_update(field, q)
        assert torch.equal(found.labelling, q.argmax(1))
        assert found.best_source == ("constant",) and found.energy.item() > constant


def test_images_of_one_batch_are_alone() -> None:
    parts = [crf(4, 5, 3, 1, Lattice.build), crf(6, 3, 3, 2, Lattice.build)]
    sizes = [(4, 5, 1), (6, 3, 2)]
    image = torch.cat([torch.full((p.points,), k) for k, p in enumerate(parts)])
    smooth = torch.cat([image_features(h, w, 2.0) for h, w, _ in sizes])
    bilateral = torch.cat([image_features(h, w, 4.0, picture(h, w, seed), 30.0) for h, w, seed in sizes])
    kernels = (Kernel(Lattice.build(smooth, image), 0.6), Kernel(Lattice.build(bilateral, image), 1.2))
    together = DenseCRF(torch.cat([p.unary for p in parts]), kernels, image)
    for method in ("mean-field", "prox-lp"):
        whole, single = solve_densecrf(together, method), [solve_densecrf(p, method) for p in parts]
        assert torch.equal(whole.labelling, torch.cat([s.labelling for s in single]))
        assert torch.equal(whole.energy, torch.cat([s.energy for s in single]))
        assert torch.equal(whole.bound, torch.cat([s.bound for s in single]))


def test_projection_is_the_nearest_point() -> None:
    y = 2 * torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p = project_to_simplex(y)
    torch.testing.assert_close(p.sum(1), torch.ones(50, dtype=torch.float64))
    assert bool((p >= 0).all())
    # The normal cone: the residual is largest where the projection is positive.
    residual = y - p
    assert float((residual.amax(1) - (residual * p).sum(1)).abs().max()) < 1e-12


def test_wrong_input_is_refused() -> None:
    kernel = Kernel(Gaussian(image_features(2, 2, 1.0)))
    with pytest.raises(ShapeError, match="labels last"):
        DenseCRF(torch.zeros(4, 3, 1), (kernel,))
    with pytest.raises(ShapeError, match="floating-point"):
        DenseCRF(torch.zeros(4, 3, dtype=torch.int64), (kernel,))
    with pytest.raises(NonFiniteError, match="clip"):
        DenseCRF(torch.full((4, 3), torch.inf), (kernel,))
    with pytest.raises(ModelError, match="points"):
        DenseCRF(torch.zeros(5, 3), (kernel,))
    with pytest.raises(ShapeError, match="one int64 number each"):
        DenseCRF(torch.zeros(4, 3), (kernel,), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(OptionError, match="width"):
        image_features(2, 2, 0.0)
    with pytest.raises(OptionError, match="together"):
        image_features(2, 2, 1.0, torch.zeros(2, 2, 3))
    with pytest.raises(ShapeError, match="image has shape"):
        image_features(2, 2, 1.0, torch.zeros(2, 3, 3), 1.0)
    with pytest.raises(OptionError, match="weight"):
        Kernel(kernel.filter, -1.0)
    field = DenseCRF(torch.zeros(4, 3), (kernel,))
    with pytest.raises(OptionError, match="damping"):
        solve_densecrf(field, "mean-field", damping=1.0)
    with pytest.raises(OptionError, match="positive"):
        solve_densecrf(field, "prox-lp", weight=0.0)


@pytest.mark.skipif(not MSRC.exists(), reason="the shared dense CRF data is not there")
@pytest.mark.parametrize(("top", "left"), [(80, 100), (150, 20)])
def test_crops_of_a_real_image_with_two_labels_against_the_minimum_cut(top: int, left: int) -> None:
    """With two labels the LP is a minimum cut, which the QPBO library solves exactly."""
    thinqpbo = pytest.importorskip("thinqpbo")
    whole = readers.read_image(MSRC / "2_14_s.bmp")
    costs = readers.read_unary(MSRC / "2_14_s.c_unary", (whole.shape[0], whole.shape[1]))
    image, unary = (t[top : top + 40, left : left + 40] for t in (whole, costs))
    likely = unary.flatten(0, 1).sum(0).topk(2, largest=False).indices
    field = image_crf(image, unary[:, :, likely].double(), smooth=(3.0, 3.0), bilateral=(80.0, 13.0, 10.0))
    matrix = dense(field)
    cut = thinqpbo.QPBODouble(1600, 1600 * 1599 // 2)
    cut.add_node(1600)
    for a in range(1600):
        cut.add_unary_term(a, *field.unary[a].tolist())
        for b in (a + 1 + np.flatnonzero(matrix[a, a + 1 :])).tolist():
            cut.add_pairwise_term(a, b, 0.0, float(matrix[a, b]), float(matrix[a, b]), 0.0)
    cut.solve()
    truth = field.energy(torch.tensor([cut.get_label(a) for a in range(1600)])).item()
    found = solve_densecrf(field, "prox-lp")
    assert found.bound.item() <= truth + 1e-6 <= found.energy.item() + 2e-6
    assert truth - found.bound.item() <= 0.005 * truth


def test_volumes_have_a_width_for_each_axis() -> None:
    """The energy of a labelling of two volumes by plain sums over pairs, and the features of the face of pydensecrf."""
    draw = torch.Generator().manual_seed(0)
    shapes = [(2, 3, 2), (3, 2, 2)]
    volumes = [100 * torch.rand(*shape, 1, generator=draw, dtype=torch.float64) for shape in shapes]
    unaries = [torch.rand(*shape, 2, generator=draw, dtype=torch.float64) for shape in shapes]
    widths, weights = torch.tensor([1.0, 2.0, 3.0]).double(), (0.7, 0.4)
    crf = image_crf(volumes, unaries, smooth=((1, 2, 3), 0.7), bilateral=(2.0, 50.0, 0.4), normalise=False, exact=True)
    x = torch.randint(2, (24,), generator=draw)
    for k, (volume, unary, own) in enumerate(zip(volumes, unaries, x.split(12), strict=True)):
        places = torch.cartesian_prod(*(torch.arange(n) for n in shapes[k])).double()
        smooth = (-torch.cdist(places / widths, places / widths).square() / 2).exp()
        both = torch.cat([places / 2, volume.reshape(-1, 1) / 50], 1)
        matrix = weights[0] * smooth + weights[1] * (-torch.cdist(both, both).square() / 2).exp()
        apart = (own[:, None] != own).double().triu(1)
        truth = unary.reshape(-1, 2).gather(1, own[:, None]).sum() + (matrix * apart).sum()
        assert crf.energy(x)[k].item() == pytest.approx(truth.item())
    face = create_pairwise_gaussian((1, 2, 3), (2, 3, 2))
    torch.testing.assert_close(grid_features((2, 3, 2), (1, 2, 3)).flip(1), torch.from_numpy(face).T.double(), rtol=0, atol=1e-6)
    assert torch.equal(grid_features((3, 4), 2.0), image_features(3, 4, 2.0))
    assert torch.equal(grid_features((3, 4), np.float32(2)), grid_features((3, 4), np.array([2.0, 2.0])))  # type: ignore[arg-type]
    found = solve_densecrf(image_crf(volumes[0], unaries[0]), "prox-lp", outer=2)
    assert found.bound.item() <= found.energy.item()
    with pytest.raises(ShapeError, match="2 widths for a grid of 3 axes"):
        image_crf(volumes[0], unaries[0], smooth=((1, 2), 0.7))
    with pytest.raises(ShapeError, match="or the same with a depth"):
        image_crf(volumes[0], unaries[0][0])


def test_images_may_be_arrays_and_mistakes_are_named() -> None:
    draw = np.random.default_rng(0)
    picture, unary = draw.integers(0, 256, (4, 5, 3), dtype=np.uint8), draw.random((4, 5, 2))
    crf = image_crf(picture, unary)
    assert repr(crf) == "DenseCRF(20 points, 2 labels, 2 kernels)"
    x = torch.zeros(20, dtype=torch.long)
    same = image_crf([torch.from_numpy(picture)], [torch.from_numpy(unary)])
    assert torch.equal(crf.energy(x), same.energy(x))
    whole = draw.integers(-9, 9, (4, 5, 2))
    assert torch.equal(image_crf(picture, whole).energy(x), image_crf(picture, whole.astype(float)).energy(x))
    with pytest.raises(ShapeError, match=r"unaries are torch\.uint8; give floating-point costs"):
        image_crf(unary, picture)
    with pytest.raises(OptionError, match=r"bilateral is \(20, 13\); give \(sxy, srgb, weight\)"):
        image_crf(picture, unary, bilateral=(20, 13))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"images is .photo\.png.; give an array"):
        image_crf("photo.png", unary)
    with pytest.raises(OptionError, match=r"unaries\[1\] is None; give a numpy array or a tensor"):
        image_crf(picture, [unary, None])  # type: ignore[list-item]
    with pytest.warns(UserWarning, match="no colour is above 1, and srgb is 13"):
        image_crf(picture / 255, unary, bilateral=(20, 13, 3))


def test_regions_are_of_arrays_as_of_tensors() -> None:
    pytest.importorskip("skimage")
    image = picture(12, 16, 0).numpy().astype(np.uint8)
    found = superpixel_cliques(image, count=6)
    assert torch.equal(found.member, superpixel_cliques([torch.from_numpy(image)], count=6).member)
    regions = mean_shift_regions(image, least=5)
    assert torch.equal(regions, mean_shift_regions(torch.from_numpy(image), least=5))
    same = region_cliques(torch.from_numpy(image), regions)
    for images, areas in ((image, regions.numpy()), ([image], [regions]), (torch.from_numpy(image), regions.numpy())):
        cliques = region_cliques(images, areas)
        assert torch.equal(cliques.member, same.member) and torch.equal(cliques.cost, same.cost)
    with pytest.raises(OptionError, match="regions is None; give an array"):
        region_cliques(image, None)  # type: ignore[arg-type]

"""Dense CRFs: energies and bounds against all labellings, labellings that are the method's, layers with and without gradients."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from bench.soak.trial import Draw, claim, trial
from blocklp.errors import BlocklpError
from blocklp.oracles.filters.gaussian import Gaussian
from blocklp.problems.densecrf import METHODS, DenseCRF, DenseCRFLayer, Kernel, solve_densecrf


def random_crf(draw: Draw) -> tuple[DenseCRF, np.ndarray, np.ndarray]:
    """A few points with exact kernels: the energy, its unaries, and costs of pairs ``(points, points, labels, labels)``."""
    points, labels = draw.count(2, 6), draw.count(2, 3)
    unary = draw.random.random((points, labels)) * draw.pick(1.0, 5.0, 1e-4, 1e4)
    pairs, kernels = np.zeros((points, points, labels, labels)), []
    for _ in range(draw.count(1, 2)):
        features = draw.random.normal(size=(points, draw.count(1, 5))) * draw.pick(0.5, 1.0, 2.0)
        weight, normalise = float(draw.random.random()) * draw.pick(0.1, 1.0, 10.0), draw.chance(0.5)
        matrix = np.exp(-0.5 * ((features[:, None] - features[None]) ** 2).sum(-1))
        if normalise:
            scale = 1 / np.sqrt(matrix.sum(1))
            matrix = matrix * scale[:, None] * scale[None]
        compatibility = None
        table = 1 - np.eye(labels)
        if draw.chance(0.4):
            table = draw.random.random((labels, labels))
            table = table + table.T
            np.fill_diagonal(table, 0)
            compatibility = torch.as_tensor(table)
        kernels.append(Kernel(Gaussian(torch.as_tensor(features)), weight, normalise, compatibility))
        pairs += weight * matrix[:, :, None, None] * table
    return DenseCRF(torch.as_tensor(unary), tuple(kernels)), unary, pairs


def all_energies(unary: np.ndarray, pairs: np.ndarray) -> dict[tuple[int, ...], float]:
    """Unaries, and each pair of points once."""
    points, labels = unary.shape
    found = {}
    for x in itertools.product(range(labels), repeat=points):
        own = sum(unary[i, a] for i, a in enumerate(x))
        found[x] = own + sum(pairs[i, j, x[i], x[j]] for i in range(points) for j in range(i))
    return found


@trial("dense CRFs", "Bounds are below the least energy of all labellings, and energies are those of the labellings.", weight=2)
def energies_and_bounds(draw: Draw) -> None:
    crf, unary, pairs = random_crf(draw)
    known = all_energies(unary, pairs)
    x = draw.pick(*known)
    size = float(np.abs(unary).sum() + np.abs(pairs).sum())
    stated = float(crf.energy(torch.tensor(x))[0])
    factor = 2.0 if abs(stated - known[x]) > 1e-9 * size else 1.0  # pairs counted once or in both orders
    known = all_energies(unary, factor * pairs)
    claim(abs(stated - known[x]) <= 1e-9 * size, f"the energy of {x} is {known[x]:.9g}, and {stated:.9g} is stated")
    best, method = min(known.values()), draw.pick(*METHODS)
    try:
        found = solve_densecrf(crf, method, bound_steps=draw.pick(0, 2, 5))
    except BlocklpError:
        return
    bound, own = float(found.bound[0]), known[tuple(found.labelling.tolist())]
    claim(bound <= best + 1e-12 * size, f"{method}: the bound {bound!r} is above the least energy {best!r}: {unary.shape}")
    energy = float(found.energy[0])
    claim(abs(energy - own) <= 1e-6 * size, f"{method}: the labelling has the energy {own:.9g}, and {energy:.9g} is stated")
    least = float(getattr(found, "best_energy", found.energy)[0])
    simple = min(known[(k,) * crf.points] for k in range(crf.labels))
    simple = min(simple, known[tuple(unary.argmin(1).tolist())])
    claim(least <= simple + 1e-6 * size, f"{method}: a constant labelling or the unaries' has {simple:.9g}, the best is {least:.9g}")


@trial("dense CRFs", "The labelling of a method is the method's own, also where a constant one has less energy.")
def own_labellings(draw: Draw) -> None:
    crf, _, _ = random_crf(draw)
    found = solve_densecrf(crf, "mean-field", steps=draw.count(1, 5))
    own = found.y.argmax(1)
    # Labels that a point has as much of as of another may differ.
    clear = found.y.sort(1).values[:, -1] - found.y.sort(1).values[:, -2] > 1e-6 if crf.labels > 1 else own >= 0
    wrong = (own != found.labelling) & clear
    claim(not bool(wrong.any()), f"mean field ends at {own.tolist()}, and its labelling is {found.labelling.tolist()}")


@trial("dense CRFs", "Marginals of a layer do not depend on what needs gradients.", seconds=120)
def layers(draw: Draw) -> None:
    exact = draw.chance(0.2)
    labels, height, width = draw.count(2, 4), draw.count(8, 20 if exact else 100), draw.count(8, 20 if exact else 100)
    torch.manual_seed(int(draw.random.integers(2**31)))
    image, logits = 255 * torch.rand(1, 3, height, width), 3 * torch.randn(1, labels, height, width)
    image = torch.nn.functional.avg_pool2d(image, 5, 1, 2).round()
    layer = DenseCRFLayer(
        labels,
        smooth=(float(1 + 3 * draw.random.random()), 3.0),
        bilateral=(8.0, float(5 + 30 * draw.random.random()), 5.0) if draw.chance(0.7) else None,
        method=draw.pick("mean-field", "efw", "l2fw"),
        exact=exact,
    )
    with torch.no_grad():
        plain = layer(image, logits)
    layer.log_stretch.requires_grad_(draw.chance(0.6))
    image.requires_grad_(draw.chance(0.6))
    logits.requires_grad_(draw.chance(0.5))
    other = layer(image, logits).detach()
    differs = float((plain - other).abs().max())
    claim(differs <= 1e-5, f"marginals differ by {differs:.3g} with gradients of widths, image or logits: {layer}")


@trial("dense CRFs", "What pydensecrf takes is taken: logarithms of zero are clipped, as it does.")
def pydensecrf_face(draw: Draw) -> None:
    from blocklp.problems.densecrf.pydensecrf import DenseCRF2D

    width, height, labels = draw.count(3, 6), draw.count(3, 6), draw.count(2, 4)
    shares = draw.random.random((labels, width * height)) * (draw.random.random((labels, width * height)) < 0.7)
    shares[0] += shares.sum(0) == 0
    with np.errstate(divide="ignore"):
        unary = -np.log(shares / shares.sum(0)).astype(np.float32)
    crf = DenseCRF2D(width, height, labels)
    crf.setUnaryEnergy(unary)
    crf.addPairwiseGaussian(sxy=(2, 2), compat=3)
    q = np.asarray(crf.inference(3))
    claim(np.isfinite(q).all() and np.allclose(q.sum(0), 1, atol=1e-4), "marginals are not distributions")

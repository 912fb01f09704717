r"""Labellings of less energy from labellings: block coordinate descent and expansion moves.

With all others as they are, a point's labels cost its unaries, its pairs and its cliques: what it would gain by its best label is
exact (Besag 1986).  Points that move at the same time lose their pairs' part of that, so that the block of those that gain most is
halved until the energy falls; a single point always lowers it.  The energy never rises, and where the search ends by itself no
point can lower it alone.

An expansion move (Boykov, Veksler & Zabih 2001) lets any set of points take one label.  The best one is a minimum cut with an edge
for each pair of points, too many here: it is looked for by mean field on the two labels of every point and by moving all points,
the better of both lowered by block descent on these labels, and kept if the energy falls.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from blocklp.errors import OptionError, ShapeError
from blocklp.problems.densecrf.energy import DenseCRF, labelling_energy
from blocklp.problems.densecrf.mean_field import mean_field_update

UPDATES = 5
"""Updates of mean field for a move."""


def block_descent(crf: DenseCRF, labelling: Tensor, steps: int = 50) -> Tensor:
    """Lower the energy of a labelling, block by block.

    Parameters
    ----------
    crf : DenseCRF
        The energy.
    labelling : Tensor
        ``(points,)`` int64.
    steps : int
        Blocks that are tried at most, one filter call each; 0 or more.

    Returns
    -------
    Tensor
        ``(points,)`` int64: for no image of more energy than the labelling.

    Raises
    ------
    ShapeError, OptionError
        If the labelling does not fit, or the number of steps is negative.
    TimeLimitError
        If the energy's deadline passes.
    """
    _check(crf, labelling, steps)
    costs, energy = _conditional(crf, labelling)
    # The share of those that gain which moves, for every image.
    share = torch.ones(crf.images, dtype=torch.float64, device=energy.device)
    for _ in range(steps):
        least, best = costs.min(1)
        gain = costs.gather(1, labelling[:, None])[:, 0] - least
        moves = _largest(crf, gain, share)
        if not bool(moves.any()):
            break
        found = torch.where(moves, best, labelling)
        found_costs, found_energy = _conditional(crf, found)
        falls = found_energy < energy
        at = crf.per_point(falls)
        labelling, costs = torch.where(at[:, 0], found, labelling), torch.where(at, found_costs, costs)
        energy = torch.where(falls, found_energy, energy)
        share = torch.where(falls, (2 * share).clamp(max=1), share / 4)
    return labelling


def alpha_expansion(crf: DenseCRF, labelling: Tensor, sweeps: int = 2, steps: int = 10) -> Tensor:
    """Lower the energy of a labelling by expansion moves, label by label.

    Parameters
    ----------
    crf, labelling
        As in :func:`block_descent`, and so is what is returned.
    sweeps : int
        Times that every label is tried at most; 0 or more.
    steps : int
        Those of :func:`block_descent` for a move, after five updates of mean field.

    Raises
    ------
    ShapeError, OptionError
        If the labelling does not fit, or a number is negative.
    TimeLimitError
        If the energy's deadline passes.
    """
    _check(crf, labelling, min(sweeps, steps))
    unit = crf.per_point(crf.unit).to(crf.unary)
    barrier = crf.per_point(crf.barrier).to(crf.unary)
    energy = labelling_energy(crf, labelling)
    for _ in range(sweeps):
        before = energy
        for label in range(crf.labels):
            present = torch.nn.functional.one_hot(labelling, crf.labels).to(crf.unary)
            y = present.clone()
            y[:, label] = 1
            move = replace(crf, unary=crf.unary + barrier * (y == 0))
            y = y / y.sum(1, keepdim=True)
            for _ in range(UPDATES):
                y = mean_field_update(move, y, unit)
            found, all_points = y.argmax(1), torch.full_like(labelling, label)
            better = labelling_energy(crf, all_points) < labelling_energy(crf, found)
            found = block_descent(move, torch.where(crf.per_point(better)[:, 0], all_points, found), steps)
            found_energy = labelling_energy(crf, found)
            falls = found_energy < energy
            labelling = torch.where(crf.per_point(falls)[:, 0], found, labelling)
            energy = torch.where(falls, found_energy, energy)
        if not bool((energy < before).any()):
            break
    return labelling


def _check(crf: DenseCRF, labelling: Tensor, steps: int) -> None:
    """Raise an error if a labelling does not fit or a number of steps is negative."""
    if labelling.shape != (crf.points,) or labelling.dtype != torch.int64:
        raise ShapeError(f"the labelling is {labelling.dtype} {tuple(labelling.shape)}; give int64 ({crf.points},)")
    if bool(((labelling < 0) | (labelling >= crf.labels)).any()):
        raise OptionError(f"a label is not from 0 to {crf.labels - 1}")
    if steps < 0:
        raise OptionError(f"the number of steps or sweeps is {steps}; give 0 or more")


def _conditional(crf: DenseCRF, labelling: Tensor) -> tuple[Tensor, Tensor]:
    """Costs of each label of a point with the others as they are ``(points, labels)``, and energies ``(images,)``, both float64."""
    y = torch.nn.functional.one_hot(labelling, crf.labels).double()
    pairs, unary = crf.message(y) - crf.own(y), crf.unary.double()
    energy, costs = crf.per_image(y * (unary + pairs / 2)), unary + pairs
    if crf.cliques is None:
        return costs, energy
    return costs + crf.cliques.message(y), energy + crf.per_clique(crf.cliques.mean(y))


def _largest(crf: DenseCRF, gain: Tensor, share: Tensor) -> Tensor:
    """The largest gains ``(points,)`` of every image: a share ``(images,)`` of those above rounding, one at least."""
    chosen = []
    for part, of in zip(torch.split(gain, crf.sizes), share.tolist(), strict=True):
        positive = part > 1e-12 * part.abs().max()
        count = max(1, int(of * int(positive.sum())))
        moves = torch.zeros_like(positive)
        moves[part.argsort(descending=True, stable=True)[:count]] = True
        chosen.append(moves & positive)
    return torch.cat(chosen)

"""Energies with and without cliques over superpixels, as in Table 1 and Figure 1 of the text on cliques in dense CRFs."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from bench.registry import Record, case
from blocklp.problems.densecrf import image_crf, solve_densecrf, superpixel_cliques

METHODS = ("mean-field", "qp-cvx", "dc-neg", "prox-lp")
LEVELS = (0.1, 0.5, 0.9)
"""Brightness of the three labels."""


def pictures(quick: bool) -> dict[str, Tensor]:
    """Pictures that ship with scikit-image, ``(height, width, 3)`` uint8."""
    from skimage import data

    every = 12 if quick else 6
    names = ("astronaut",) if quick else ("astronaut", "coffee")
    return {name: torch.from_numpy(getattr(data, name)()[::every, ::every].copy()) for name in names}


def noisy_unary(image: Tensor) -> Tensor:
    """Four times the distance of the noisy brightness from that of every label: ``(height, width, 3)``."""
    noise = torch.randn(image.shape[:2], generator=torch.Generator().manual_seed(0))
    brightness = image.float().mean(2) / 255 + 0.2 * noise
    return torch.stack([(brightness - level).abs() * 4 for level in LEVELS], 2)


@case(
    "densecrf_cliques",
    "Dense CRFs: cliques over superpixels (form of Table 1 of Joy et al.)",
    "Pictures that ship with scikit-image in place of PASCAL's and MSRC's, three labels by noisy brightness, smoothness kernel "
    "(2, weight 1), bilateral kernel (20 / 13, weight 3), P^n-Potts cliques over 100 superpixels. `pairs` is the energy without the "
    "cliques, `with cliques` all of it, for the labelling that a method found on the energy in the column `minimised`; `bound`: no "
    "labelling has less of that energy. `breaks`: superpixels of more than one label.",
)
def run(quick: bool) -> list[Record]:
    records: list[Record] = []
    for name, image in pictures(quick).items():
        pairs = image_crf(image, noisy_unary(image), smooth=(2.0, 1.0), bilateral=(20.0, 13.0, 3.0))
        cliques = superpixel_cliques(image, weight=200.0, count=30 if quick else 100)
        both = dataclasses.replace(pairs, cliques=cliques)
        for energy, crf in (("pairs", pairs), ("with cliques", both)):
            for method in METHODS:
                found = solve_densecrf(crf, method)
                labelling = found.labelling
                records.append(
                    {
                        "picture": name,
                        "minimised": energy,
                        "method": method,
                        "pairs": pairs.energy(labelling).item(),
                        "with cliques": both.energy(labelling).item(),
                        "bound": found.bound.item(),
                        "breaks": broken(labelling, cliques.member, len(cliques.cost)),
                        "filter calls": found.filter_calls,
                    }
                )
    return records


def broken(labelling: Tensor, member: Tensor, count: int) -> int:
    """How many of ``count`` cliques have points of several labels; ``member`` is the clique of every point, -1 for none."""
    inside = member >= 0
    seen = torch.zeros((count, len(LEVELS)), dtype=torch.bool)
    seen[member[inside], labelling[inside]] = True
    return int((seen.sum(1) > 1).sum())

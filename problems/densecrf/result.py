"""What every method for dense CRFs returns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blocklp.problems.densecrf.energy import DenseCRF


@dataclass(frozen=True)
class Result:
    """A labelling, its energy and a bound.

    Attributes
    ----------
    method : str
        How it was computed.
    labelling : Tensor
        ``(points,)`` int64: the best one seen, trivial ones included.
    source : tuple of str
        Where each image's labelling is from: the method, "unary" or "constant".
    y : Tensor
        ``(points, labels)``: the method's own point.
    energy, bound : Tensor
        ``(images,)`` float64: energy of the labelling, and a lower bound on that of every labelling (-inf if the method has none).
    filter_calls : int
        Applications of all kernels.
    seconds : float
        Time spent.
    """

    method: str
    labelling: Tensor
    source: tuple[str, ...]
    y: Tensor
    energy: Tensor
    bound: Tensor
    filter_calls: int
    seconds: float

    @property
    def gap(self) -> Tensor:
        """Distance of energy and bound, relative to the energy: ``(images,)``."""
        return (self.energy - self.bound) / self.energy.abs().clamp(min=1)

    @classmethod
    def of(cls, crf: DenseCRF, method: str, y: Tensor, bound: Tensor | None, filter_calls: int, seconds: float) -> Result:
        """Round a point to its largest entries, and compare with the trivial labellings."""
        candidates = {method: y.argmax(1), "unary": crf.unary.argmin(1), "constant": crf.best_constant()}
        energies = torch.stack([crf.energy(x) for x in candidates.values()])
        best = energies.argmin(0)
        rows = best.expand(crf.points) if crf.image is None else best[crf.image]
        labelling = torch.stack(list(candidates.values())).gather(0, rows[None])[0]
        names = tuple(list(candidates)[k] for k in best.tolist())
        none = torch.full_like(energies[0], -torch.inf)
        energy = energies.amin(0)
        return cls(method, labelling, names, y, energy, none if bound is None else bound, filter_calls, seconds)

    def at_least(self, bound: Tensor) -> Result:
        """The same with a better bound, where it is one."""
        return replace(self, bound=torch.maximum(self.bound, bound))

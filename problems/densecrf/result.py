"""What every method for dense CRFs returns."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from blocklp.engine.records import relative_gap
from blocklp.status import Status
from blocklp.tables import SHOWN, Table, Tabled, plural


@dataclass(frozen=True, eq=False)
class History:
    """What was known after every step.

    Attributes
    ----------
    energy, bound : Tensor
        ``(steps, images)`` float64: of the method's own labelling at that step, and the best bound so far.
    seconds : Tensor
        ``(steps,)`` float64: since the start.
    filter_calls : Tensor
        ``(steps,)`` int64: the method's so far, those for energies not counted.
    """

    energy: Tensor
    bound: Tensor
    seconds: Tensor
    filter_calls: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Result(Tabled):
    """The method's labelling, the best labelling seen, their energies and a bound.

    Attributes
    ----------
    method : str
        The method.
    labelling : Tensor
        ``(points,)`` int64: the method's own, the largest scores of ``y``.
    energy : Tensor
        ``(images,)`` float64: of ``labelling``; infinite if the time did not suffice to evaluate it.
    best_labelling : Tensor
        ``(points,)`` int64: for every image the labelling of least energy among all seen: those of the method's steps, of its start,
        of the unaries, the best constant one and mean field's.
    best_energy : Tensor
        ``(images,)`` float64: of ``best_labelling``.
    best_source : tuple of str
        Where each image's best labelling is from: the method, "start", "unary", "constant", "mean-field" or the rounding.
    bound : Tensor
        ``(images,)`` float64: no labelling has less energy.
    y : Tensor
        ``(points, labels)``: the method's last point.
    history : History
        Energies and bounds by step.
    filter_calls : int
        Applications of all kernels by the method, those for energies not counted.
    seconds : float
        Time spent, simple labellings and energies included.
    status : Status
        PASS_LIMIT after all steps, OPTIMAL if the gap of every best labelling is within the tolerance, STALLED at a fixed point,
        TIME_LIMIT, or INTERRUPTED.
    """

    method: str
    labelling: Tensor
    energy: Tensor
    best_labelling: Tensor
    best_energy: Tensor
    best_source: tuple[str, ...]
    bound: Tensor
    y: Tensor
    history: History
    filter_calls: int
    seconds: float
    status: Status

    def _tables(self) -> tuple[str, list[Table]]:
        numbers = zip(self.energy[:SHOWN], self.best_energy, self.best_source, self.bound, self.best_gap, strict=False)
        rows = [
            (str(i), f"{own.item():.9g}", f"{best.item():.9g}", source, f"{bound.item():.9g}", f"{gap.item():.2g}")
            for i, (own, best, source, bound, gap) in enumerate(numbers)
        ]
        columns = ("image", f"energy of {self.method}", "best energy", "from", "bound", "gap")
        title = f"Labelling of {plural(len(self.energy), 'image')}, {len(self.labelling)} points, {self.status}, {self.seconds:.3g} s"
        return title, [Table(columns, rows, len(self.energy))]

    @property
    def gap(self) -> Tensor:
        """Gap of the method's own labelling, ``(images,)``; see :func:`blocklp.engine.records.relative_gap`."""
        return relative_gap(self.energy, self.bound)

    @property
    def best_gap(self) -> Tensor:
        """Gap of the best labelling, ``(images,)``; see :func:`blocklp.engine.records.relative_gap`."""
        return relative_gap(self.best_energy, self.bound)

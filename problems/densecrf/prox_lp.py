r"""PROX-LP, Algorithm 4 of the thesis: proximal minimisation of the LP relaxation of a dense CRF.

.. math:: \min_{y \in M} \; \phi^\top y + f(y) + \tfrac{1}{2\lambda} |y - y_k|^2, \qquad
          f(y) = \sum_S c_S \sum_{a<b} K_{ab} |y_a(S) - y_b(S)| + \text{cliques}

The dual variables enter only by :math:`g` (the thesis's :math:`-A\alpha`), a convex combination of subgradients of f.  For fixed g
the best y is the projection of :math:`y_k - \lambda (\phi + g)` on the simplex: that is exactly the minimum over the thesis's beta
and gamma (2.2.4.6-7), found by one sort instead of its multiplicative updates, and every y is feasible.  g moves by Frank-Wolfe
steps, and every g gives a lower bound.

The thesis's step (2.2.4.10) is the best one for a y that may move in all directions.  Most points lie on corners of their simplex and
do not move: here the step is the best one for the face that y lies on, also of closed form, and if the slope at its end says that
this was too far, a secant step back.  Where pairs weigh more than unaries that is up to ten times as long.  ``step="printed"`` takes
the thesis's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import OptionError
from blocklp.oracles.filters.ordered import LEVELS
from blocklp.problems.densecrf.energy import DenseCRF
from blocklp.problems.densecrf.run import Run

PART = 2**20
"""Scores that are projected between two looks at a deadline."""
WEIGHT = 0.1
"""The proximal weight in the energy's unit: bounds and labellings are about as good from 0.05 to 0.2."""
STEPS = "face", "printed"
"""Lengths of Frank-Wolfe steps: the best on the face that y lies on, and the best for a y that may move in all directions."""


def prox_lp(run: Run, *, weight: float = WEIGHT, outer: int = 25, inner: int = 2, levels: int = LEVELS, step: str = "face") -> None:
    r"""Minimise the LP relaxation; round its solution.

    Parameters
    ----------
    run : Run
        The run.
    weight : float
        The proximal weight :math:`\lambda`, in the energy's :attr:`~blocklp.problems.densecrf.DenseCRF.unit`.
    outer, inner : int
        Proximal problems, and Frank-Wolfe steps on each (K and T of the algorithm).
    levels : int
        Levels of the ordered filter.
    step : str
        Length of the Frank-Wolfe steps: "face", or "printed" for (2.2.4.10).

    Raises
    ------
    OptionError
        If a number is not positive, or the step is none of these.
    """
    if not 0 < weight < float("inf") or outer < 1 or inner < 1:
        raise OptionError(f"weight is {weight}, outer {outer}, inner {inner}; all must be positive")
    if step not in STEPS:
        raise OptionError(f"step is {step!r}; give 'face' or 'printed'")
    for y in islice(proximal_points(run, run.start, weight, inner, levels, step), outer):
        if run.step(y):
            return


def proximal_points(
    run: Run, y: Tensor, weight: float = WEIGHT, inner: int = 2, levels: int = LEVELS, step: str = "face"
) -> Iterator[Tensor]:
    """Solve one proximal problem after another, for as long as somebody asks; the run keeps bounds.

    Parameters
    ----------
    run : Run
        Counts calls of filters, and keeps bounds.
    y : Tensor
        ``(points, labels)``: the first centre, a point of the simplices.
    weight : float
        Proximal weight, times the unit of the energy.
    inner, levels : int
        Steps on a problem, and levels of the ordered filter.
    step : str
        As in :func:`prox_lp`.

    Yields
    ------
    Tensor
        ``(points, labels)``: the next centre.
    """
    g, note = level_bound(run)
    while True:
        y = proximal_problem(run.crf, y, g, None, weight / run.unit, inner, levels, note, step)
        yield y


def level_bound(run: Run) -> tuple[Tensor, Callable[[Tensor], None]]:
    """Begin with the bound of equal scores, which the run keeps.

    Parameters
    ----------
    run : Run
        The run.

    Returns
    -------
    Tensor
        ``(points, labels)`` float64: the g of equal scores.
    callable
        Takes the g of a later step: it counts a call of filters, and the run keeps its bound.
    """
    crf = run.crf
    g = crf.subgradient(crf.level, 2)
    run.bounded(crf.lower_bound(g, torch.float64))

    def note(g: Tensor) -> None:
        run.filter_calls += 1
        run.bounded(crf.lower_bound(g, crf.unary.dtype))

    return g, note


def proximal_problem(
    crf: DenseCRF,
    centre: Tensor,
    g: Tensor,
    absent: Tensor | None,
    weight: Tensor,
    inner: int,
    levels: int,
    note: Callable[[Tensor], None],
    step: str = "face",
) -> Tensor:
    """Frank-Wolfe steps on the dual of a proximal problem without some labels.

    Parameters
    ----------
    crf : DenseCRF
        The energy.
    centre : Tensor
        ``(points, labels)``: the proximal centre.
    g : Tensor
        ``(points, labels)`` float64: where to start; it is moved in place.
    absent : Tensor or None
        ``(points, labels)`` bool: labels that a point cannot take, the same at all points of an image.
    weight : Tensor
        ``(images,)`` float64: the proximal weights.
    inner, levels, step
        As for :func:`prox_lp`.
    note : callable
        Called with g after every step.

    Returns
    -------
    Tensor
        ``(points, labels)``: the y of the last g.
    """
    phi = crf.unary
    apart = all(k.compatibility is None for k in crf.kernels)
    rate = crf.per_point(weight).to(phi)

    def best(g: Tensor) -> Tensor:
        scores = centre - rate * (phi + g.to(phi))
        return project_to_simplex(scores if absent is None else scores.masked_fill(absent, -torch.inf), crf.deadline)

    y = best(g)
    for _ in range(inner):
        way = crf.subgradient(y, levels) - g
        seen = way if absent is None else way.masked_fill(absent, 0)  # all that y depends on
        if apart:
            way = seen
        slope = crf.per_image(seen * y)
        bent = bend(crf, seen, y) if step == "face" else crf.per_image(seen.square())
        size = (slope / (weight * bent)).nan_to_num(0.0, posinf=1.0).clamp(0, 1)
        if step == "face":
            beyond = crf.per_image(seen * best(g + crf.per_point(size) * way)).clamp(max=0)
            size = size * (slope / (slope - beyond)).nan_to_num(0.0)
        g += crf.per_point(size) * way
        note(g)
        y = best(g)
    return y


def bend(crf: DenseCRF, way: Tensor, y: Tensor) -> Tensor:
    """How much a step of g ``(points, labels)`` moves y per weight, on the face of the simplices that y lies on: ``(images,)``.

    Parameters
    ----------
    crf : DenseCRF
        The energy.
    way, y : Tensor
        ``(points, labels)``: the step, and the points.
    """
    free = y > 0
    moved = way * free
    return crf.per_image(moved.square().sum(1) - moved.sum(1).square() / free.sum(1))


def project_to_simplex(y: Tensor, deadline: Deadline | None = None) -> Tensor:
    """Nearest points of the simplex to the rows of ``y`` (Held, Wolfe & Crowder 1974): ``(points, labels)``.

    Raises
    ------
    TimeLimitError
        If a deadline is given and passes.
    """
    if deadline is None or y.numel() <= PART:
        return _project(y)
    found = []
    for part in torch.split(y, max(1, PART // y.shape[1])):
        deadline.check("projecting on the simplices")
        found.append(_project(part))
    return torch.cat(found)


def _project(y: Tensor) -> Tensor:
    y = y - y.amax(1, keepdim=True)  # large numbers would lose the digits that tell labels apart
    down = y.sort(1, descending=True).values
    over = (down.cumsum(1) - 1) / torch.arange(1, y.shape[1] + 1, dtype=y.dtype, device=y.device)
    kept = (down > over).sum(1, keepdim=True)
    return (y - over.gather(1, kept - 1)).clamp(min=0)

r"""Roof duality: the LP relaxation of a QPBO instance by one block per coupled pair.

.. math:: \min_{y \in [0,1]^n, z} a \cdot y + p \cdot z \quad \text{s.t.} \quad (y_i, y_j, z_{ij}) \in
          \mathrm{conv}\{(0,0,0), (1,0,0), (0,1,0), (1,1,1)\}

(thesis, eq. 4.1.4.3 and 4.1.4.7).  Its optimum is half-integral: every y is 0, 1/2 or 1 (Hammer, Hansen and Simeone 1984).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor

import blocklp as bl
from blocklp.language.offsets import Offsets
from blocklp.problems.discrete.given import check_instances
from blocklp.problems.discrete.tightening import Labelled, Told, tighten_in_turn
from blocklp.problems.discrete.together import before, lenient, solve_batches
from blocklp.problems.qpbo.annealing import WORK, short_search
from blocklp.problems.qpbo.batch import EDGE, QuboBatch, roof_duality_batch
from blocklp.problems.qpbo.heuristics import round_fractional
from blocklp.problems.qpbo.instance import Qubo
from blocklp.problems.qpbo.order import passing_order
from blocklp.problems.qpbo.persistency import Persistency, closing_time, persistency_in_time
from blocklp.problems.qpbo.tightening import tightened_roof_duality
from blocklp.search.best_first import relative_gap
from blocklp.search.tightening import Budget, Round

ALL_WORK = 2e8
"""Steps of the searches for labellings of all instances."""
STATING = "stating the relaxations of quadratic functions"


def roof_duality_model(qubo: Qubo) -> bl.Model:
    """Return the relaxation as a model with variables ``y`` (n,), ``z`` (pairs,) and blocks ``Edge``.

    Primal points are tried as they come and with y rounded to halves, each with the best z.  Products z are in the order of the
    pairs, blocks in one that passes over them like better (:func:`passing_order`).
    """
    model = bl.Model()
    y = model.variable("y", qubo.n, lower=0, upper=1, grid=0.5, integer=True)
    objective = y @ qubo.linear + qubo.offset
    if not len(qubo.edges):
        model.minimize(objective)
        return model
    edges = torch.tensor(qubo.edges)
    z = model.variable("z", len(edges), lower=0, upper=1)
    order = passing_order(edges[:, 1], qubo.n, Offsets.alone(len(edges)))[1]
    model.add(EDGE, scope=[y[edges[order]], z[order]])
    model.minimize(objective + z @ qubo.quadratic)
    return model


@dataclass(frozen=True)
class QpboSolution:
    """A bound, a labelling, and what is proved between them.

    Attributes
    ----------
    relaxation : Solution
        The roof-duality LP, tightened or not: ``bound``, ``safe_bound``, LP gap, status, multipliers.
    labels : Tensor
        ``(n,)`` int8: the best labelling found.
    energy : float
        Its value, an upper bound on the minimum.
    gap : float
        ``|energy - bound| / max(|energy|, |bound|, relaxation.floor)``: how far the labelling can be from the minimum.
    persistency : Persistency
        Labels proved to be in some (``weak``) or in all (``strong``) minimisers; none (-1) where there was no time.
    rounds : tuple of Round
        What tightening came to, one a solve; empty without.
    """

    relaxation: bl.Solution
    labels: Tensor
    energy: float
    gap: float
    persistency: Persistency
    rounds: tuple[Round, ...] = ()

    def __repr__(self) -> str:
        bound, size = float(self.relaxation.bound[0]), len(self.labels)
        return f"QpboSolution(energy={self.energy:.8g}, bound={bound:.8g}, gap={self.gap:.2%}, {size} labels)"


@overload
def solve_qpbo(qubos: Qubo, tighten: bool | Budget = ..., told: Told | None = ..., **options: Any) -> QpboSolution: ...
@overload
def solve_qpbo(
    qubos: Sequence[Qubo], tighten: bool | Budget = ..., told: Told | None = ..., **options: Any
) -> list[QpboSolution]: ...
def solve_qpbo(
    qubos: Qubo | Sequence[Qubo], tighten: bool | Budget = False, told: Told | None = None, **options: Any
) -> QpboSolution | list[QpboSolution]:
    """Bound QPBO instances by roof duality, tightened if asked for, round, and verify persistencies.

    Parameters
    ----------
    qubos : Qubo or sequence of Qubo
        Several instances are solved as one batch (those without pairs as another); one after the other, if they are tightened.
    tighten : bool or Budget
        Whether to add violated triangles, cycles and cliques, round by round, until bound and labelling meet, and how far to go.
    told : callable, optional
        Gets every :class:`blocklp.search.Round` and the energy of the best labelling so far; True ends the instance.
    **options
        Those of :meth:`blocklp.Model.solve`.  Those of passes hold for each instance that is tightened, ``time_limit`` for all of
        them and all that is done.

    Returns
    -------
    QpboSolution or list of QpboSolution
        As ``qubos`` is one instance or several.

    Raises
    ------
    ModelError, OptionError, DeviceError
        An instance is no ``Qubo``, or too large in its coefficients to be tightened, an option is wrong, or the device is missing.
    TimeLimitError
        The time was over before all relaxations were stated.
    """
    if isinstance(qubos, Qubo):
        return solve_qpbo([qubos], tighten, told, **options)[0]
    check_instances(qubos, Qubo)
    deadline = bl.Deadline.of(options.pop("time_limit", math.inf))
    stating = lenient(deadline)
    if stating.over():
        deadline.check(STATING)
    closing = before(deadline, sum(closing_time(qubo.n, len(qubo.edges)) for qubo in qubos))
    if tighten is False:
        solutions = solve_batches(_batches(qubos), time_limit=closing, **options)
        work = min(WORK, ALL_WORK / max(1, len(qubos)))
        bests = [_labelled(qubo, solution, work, deadline) for qubo, solution in zip(qubos, solutions, strict=True)]
        persistencies = persistency_in_time(qubos, [solution.x["y"][0].cpu() for solution in solutions], deadline)
        return [_between(*found) for found in zip(solutions, bests, persistencies, strict=True)]
    models = []
    for qubo in qubos:
        if stating.over():
            deadline.check(STATING)
        models.append(roof_duality_model(qubo))
    budget = None if tighten is True else tighten
    calls = [partial(tightened_roof_duality, model, qubo, budget) for model, qubo in zip(models, qubos, strict=True)]
    found = tighten_in_turn(calls, told=told, time_limit=closing, **options)
    persistencies = persistency_in_time(qubos, [best.labels.cpu().numpy() for _, best in found], deadline)
    return [replace(_between(t.solution, best, p), rounds=t.rounds) for (t, best), p in zip(found, persistencies, strict=True)]


def _batches(qubos: Sequence[Qubo]) -> list[tuple[list[int], bl.ModelBatch]]:
    """The relaxations of instances with pairs, and of those without, and which they are."""
    parts: tuple[list[int], list[int]] = ([], [])
    for number, qubo in enumerate(qubos):
        parts[len(qubo.edges) == 0].append(number)
    return [(own, roof_duality_batch(QuboBatch.of([qubos[i] for i in own]))) for own in parts if own]


def _labelled(qubo: Qubo, relaxation: bl.Solution, work: float, deadline: bl.Deadline) -> Labelled:
    """Round; and where the bound leaves room for a better labelling, search for one."""
    found = round_fractional(qubo, relaxation.x["y"], time_limit=deadline)
    if not float(found.energy[0]) <= float(relaxation.primal[0]) < math.inf:
        found = short_search(qubo, found.y, work=work, time_limit=deadline)
    return Labelled(found.y[0], float(found.energy[0]))


def _between(relaxation: bl.Solution, best: Labelled, persistency: Persistency) -> QpboSolution:
    """What is proved between a bound and a labelling."""
    gap = relative_gap(best.energy, float(relaxation.bound[0]), float(relaxation.floor[0]))
    return QpboSolution(relaxation, best.labels, best.energy, gap, persistency)

r"""Roof duality: the LP relaxation of a QPBO instance by one block per coupled pair.

.. math:: \min_{y \in [0,1]^n, z} a \cdot y + p \cdot z \quad \text{s.t.} \quad (y_i, y_j, z_{ij}) \in
          \mathrm{conv}\{(0,0,0), (1,0,0), (0,1,0), (1,1,1)\}

(thesis, eq. 4.1.4.3 and 4.1.4.7).  Its optimum is half-integral: every y is 0, 1/2 or 1 (Hammer, Hansen and Simeone 1984).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

import blocklp as bl
from blocklp.oracles.products import Edge
from blocklp.problems.qpbo.heuristics import round_fractional
from blocklp.problems.qpbo.instance import Qubo
from blocklp.problems.qpbo.persistency import Persistency, verified_persistency
from blocklp.problems.together import solve_together


def roof_duality_model(qubo: Qubo) -> bl.Model:
    """Return the relaxation as a model with variables ``y`` (n,), ``z`` (pairs,) and blocks ``Edge``.

    Primal points are tried as they come and with y rounded to halves, each with the best z.
    """
    model = bl.Model()
    y = model.variable("y", qubo.n, lower=0, upper=1, grid=0.5)
    linear = torch.tensor(qubo.linear)
    objective = linear @ y + qubo.offset
    if not len(qubo.edges):
        model.minimize(objective)
        return model
    first, second = torch.tensor(qubo.edges).T
    quadratic = torch.tensor(qubo.quadratic)
    z = model.variable("z", len(qubo.edges), lower=0, upper=1)
    model.add(Edge(), scope=[y[first], y[second], z])
    model.minimize(objective + quadratic @ z)
    return model


@dataclass(frozen=True)
class QpboSolution:
    """A bound, a labelling, and what is proved between them.

    Attributes
    ----------
    relaxation : Solution
        The roof-duality LP: ``bound``, ``safe_bound``, LP gap, status, multipliers.
    labels : Tensor
        ``(n,)`` int8: the best labelling found.
    energy : float
        Its value, an upper bound on the minimum.
    gap : float
        ``(energy - bound) / max(1, |energy|, |bound|)``: how far the labelling can be from the minimum.
    persistency : Persistency
        Labels proved to be in some (``weak``) or in all (``strong``) minimisers.
    """

    relaxation: bl.Solution
    labels: Tensor
    energy: float
    gap: float
    persistency: Persistency


@overload
def solve_qpbo(qubos: Qubo, **options: Any) -> QpboSolution: ...
@overload
def solve_qpbo(qubos: Sequence[Qubo], **options: Any) -> list[QpboSolution]: ...
def solve_qpbo(qubos: Qubo | Sequence[Qubo], **options: Any) -> QpboSolution | list[QpboSolution]:
    """Bound QPBO instances by roof duality, round, and verify persistencies.

    Parameters
    ----------
    qubos : Qubo or sequence of Qubo
        Several instances are solved as one batch (those without pairs as another).
    **options
        Those of :meth:`blocklp.Model.solve`.

    Returns
    -------
    QpboSolution or list of QpboSolution
        As ``qubos`` is one instance or several.

    Raises
    ------
    OptionError, DeviceError
        An option is wrong, or the device is missing.
    """
    if isinstance(qubos, Qubo):
        return solve_qpbo([qubos], **options)[0]
    solutions = solve_together([roof_duality_model(qubo) for qubo in qubos], **options)
    return [_finish(qubo, solution) for qubo, solution in zip(qubos, solutions, strict=True)]


def _finish(qubo: Qubo, relaxation: bl.Solution) -> QpboSolution:
    y = relaxation.x["y"]
    rounded = round_fractional(qubo, y)
    energy, bound = float(rounded.energy[0]), float(relaxation.bound[0])
    gap = max(0.0, energy - bound) / max(1.0, abs(energy), abs(bound))
    persistency = verified_persistency(qubo, y[0].cpu().numpy())
    return QpboSolution(relaxation, rounded.y[0], energy, gap, persistency)

"""Loops of ADMM over the copies of a process, compiled for the CPU."""

from __future__ import annotations

from typing import Any

from blocklp.distributed.integer_kernels import LOOP
from blocklp.kernels.compiled import compile


@compile(**LOOP)
def multipliers(place: Any, centre: Any, t: Any, eta: Any, dual: Any) -> None:
    """Write multipliers of some copies.

    Parameters
    ----------
    place, t, dual : array
        ``(k,)``: their variables, iterates, and multipliers, which are written.
    centre : array
        ``(variables,)``: the consensus.
    eta : float
        The proximal weight, of the precision of the iterates.
    """
    for q in range(len(t)):
        dual[q] = (centre[place[q]] - t[q]) / eta


@compile(**LOOP)
def restart(
    place: Any, reflected: Any, mean: Any, relaxation: Any, ratio: Any, points: Any, t: Any, anchor: Any
) -> None:
    """Update iterates for another weight, and set the anchor there (:func:`.admm.admm_restart`).

    Parameters
    ----------
    place, points, t : array
        ``(copies,)``: variables, points, and iterates, which are written.
    reflected, mean : array
        ``(variables,)``: reflected consensus, and means of the points.
    relaxation, ratio : float
        Relaxation of the passes, and the new weight over the present one, of the precision of the iterates.
    anchor : array
        ``(copies,)``, written, or ``(0,)`` for none.
    """
    anchored = len(anchor) > 0
    for q in range(len(t)):
        near, middle = reflected[place[q]], mean[place[q]]
        centre = middle + middle - near
        centre += (middle - centre) * relaxation
        new = near * relaxation + (t[q] - relaxation * points[q])
        new = (new - centre) * ratio + centre
        t[q] = new
        if anchored:
            anchor[q] = new

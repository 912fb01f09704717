"""Simulated annealing of quadratic functions of 0/1 variables, compiled for the CPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from blocklp.kernels.compiled import kernel

SECONDS = 5.0
"""What it takes to compile this loop, on a busy machine."""


@kernel()
def anneal(
    begin: int,
    end: int,
    first: Any,
    degree: Any,
    neighbour: Any,
    coupling: Any,
    hot: Any,
    cold: float,
    sweeps: int,
    labels: Any,
    field: Any,
    found: Any,
) -> None:
    """Sweeps over all variables while the temperature falls evenly: a flip that costs d has the probability exp(-d / temperature).

    Random numbers are those of a linear congruential generator whose state begins at the number of the labelling.

    Parameters
    ----------
    first, degree, neighbour, coupling
        As in :func:`blocklp.problems.qpbo.search_kernels.descend`.
    hot : (labellings,)
        The first temperature of each labelling.
    cold : float
        The last one.
    sweeps : int
        Number of sweeps.
    labels, field : (labellings, n)
        Labels 0 and 1 and their fields, overwritten.
    found : (labellings, n)
        The best labels after a sweep.
    """
    n = labels.shape[1]
    for k in range(begin, end):
        state = np.uint64(3037000493) + np.uint64(k) * np.uint64(11400714819323198485)
        value = best = 0.0
        found[k] = labels[k]
        for sweep in range(sweeps):
            temperature = hot[k] + (cold - hot[k]) * (sweep + 1) / sweeps
            for i in range(n):
                rise = (1.0 - 2.0 * labels[k, i]) * field[k, i]
                if rise > 0.0:
                    if rise > 30.0 * temperature:
                        continue
                    state = state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
                    if np.float64(state >> np.uint64(11)) * 2.0**-53 >= math.exp(-rise / temperature):
                        continue
                change = 1.0 - 2.0 * labels[k, i]
                labels[k, i] += change
                value += rise
                for e in range(first[i], first[i] + degree[i]):
                    field[k, neighbour[e]] += change * coupling[e]
            if value < best:
                best = value
                found[k] = labels[k]


def rehearse() -> None:
    """Compile the loop, for the types of arrays that searches give it."""
    none, one = np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
    spin = np.zeros((1, 1))
    anneal(1, one, one, none, np.zeros(0), np.ones(1), 1.0, 1, spin, spin.copy(), spin.copy())

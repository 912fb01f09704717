"""Quadratic functions of many variables and few pairs."""

import numpy as np

from blocklp.problems.qpbo import Qubo


def spread(qubo: Qubo, variables: int) -> Qubo:
    """The function with so many variables more, between those that it has, which are in no pair and cost nothing."""
    n = qubo.n + variables
    place = np.linspace(0, n - 1, qubo.n).astype(int)
    linear = np.zeros(n)
    linear[place] = qubo.linear
    return Qubo(linear, place[qubo.edges], qubo.quadratic, qubo.offset)

"""Quadratic pseudo-boolean optimisation: instances, readers, verified persistency and primal heuristics."""

from blocklp.problems.qpbo.heuristics import Labellings, one_flip_descent, round_fractional
from blocklp.problems.qpbo.instance import Qubo
from blocklp.problems.qpbo.persistency import Persistency, verified_persistency
from blocklp.problems.qpbo.readers import read_qubo

__all__ = [
    "Labellings",
    "Persistency",
    "Qubo",
    "one_flip_descent",
    "read_qubo",
    "round_fractional",
    "verified_persistency",
]

"""Quadratic pseudo-boolean optimisation: instances, readers, roof duality, persistency and primal heuristics."""

from blocklp.problems.qpbo.clusters import violated_cycles
from blocklp.problems.qpbo.exact import solve_qpbo_exactly
from blocklp.problems.qpbo.heuristics import Labellings, one_flip_descent, round_fractional, tabu_search
from blocklp.problems.qpbo.instance import Qubo
from blocklp.problems.qpbo.nodes import node_persistency
from blocklp.problems.qpbo.persistency import Persistency, verified_persistency
from blocklp.problems.qpbo.readers import read_qubo
from blocklp.problems.qpbo.relaxation import QpboSolution, roof_duality_model, solve_qpbo

__all__ = [
    "Labellings",
    "Persistency",
    "QpboSolution",
    "Qubo",
    "node_persistency",
    "one_flip_descent",
    "read_qubo",
    "roof_duality_model",
    "round_fractional",
    "solve_qpbo",
    "solve_qpbo_exactly",
    "tabu_search",
    "verified_persistency",
    "violated_cycles",
]

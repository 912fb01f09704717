"""Maximum-weight independent set: graphs, readers, clique relaxations and primal heuristics."""

from blocklp.problems.mis.cliques import edge_clique_cover, heavy_cliques
from blocklp.problems.mis.exact import solve_mis_exactly
from blocklp.problems.mis.heuristics import (
    IndependentSets,
    greedy_independent_set,
    round_independent_set,
    swap_descent,
)
from blocklp.problems.mis.instance import WeightedGraph
from blocklp.problems.mis.readers import read_graph
from blocklp.problems.mis.relaxation import MisSolution, clique_model, solve_mis

__all__ = [
    "IndependentSets",
    "MisSolution",
    "WeightedGraph",
    "clique_model",
    "edge_clique_cover",
    "greedy_independent_set",
    "heavy_cliques",
    "read_graph",
    "round_independent_set",
    "solve_mis",
    "solve_mis_exactly",
    "swap_descent",
]

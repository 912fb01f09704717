"""Maximum-weight independent set: graphs, readers, clique covers and primal heuristics."""

from blocklp.problems.mis.cliques import edge_clique_cover
from blocklp.problems.mis.heuristics import (
    IndependentSets,
    greedy_independent_set,
    round_independent_set,
    swap_descent,
)
from blocklp.problems.mis.instance import WeightedGraph
from blocklp.problems.mis.readers import read_graph

__all__ = [
    "IndependentSets",
    "WeightedGraph",
    "edge_clique_cover",
    "greedy_independent_set",
    "read_graph",
    "round_independent_set",
    "swap_descent",
]

"""Maximum-weight independent set: graphs, readers, clique relaxations and primal heuristics."""

from typing import TYPE_CHECKING

from blocklp.lazy import publish

if TYPE_CHECKING:
    from blocklp.problems.mis.cliques import edge_clique_cover as edge_clique_cover
    from blocklp.problems.mis.cliques import heavy_cliques as heavy_cliques
    from blocklp.problems.mis.cliques import violated_cliques as violated_cliques
    from blocklp.problems.mis.exact import solve_mis_exactly as solve_mis_exactly
    from blocklp.problems.mis.heuristics import IndependentSets as IndependentSets
    from blocklp.problems.mis.heuristics import greedy_independent_set as greedy_independent_set
    from blocklp.problems.mis.heuristics import round_independent_set as round_independent_set
    from blocklp.problems.mis.heuristics import swap_descent as swap_descent
    from blocklp.problems.mis.heuristics import tabu_swaps as tabu_swaps
    from blocklp.problems.mis.instance import WeightedGraph as WeightedGraph
    from blocklp.problems.mis.readers import read_graph as read_graph
    from blocklp.problems.mis.relaxation import MisSolution as MisSolution
    from blocklp.problems.mis.relaxation import clique_model as clique_model
    from blocklp.problems.mis.relaxation import solve_mis as solve_mis
else:
    publish(
        __name__,
        {
            "blocklp.problems.mis.cliques": ["edge_clique_cover", "heavy_cliques", "violated_cliques"],
            "blocklp.problems.mis.exact": ["solve_mis_exactly"],
            "blocklp.problems.mis.heuristics": [
                "IndependentSets",
                "greedy_independent_set",
                "round_independent_set",
                "swap_descent",
                "tabu_swaps",
            ],
            "blocklp.problems.mis.instance": ["WeightedGraph"],
            "blocklp.problems.mis.readers": ["read_graph"],
            "blocklp.problems.mis.relaxation": ["MisSolution", "clique_model", "solve_mis"],
        },
    )

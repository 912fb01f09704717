"""Branch and bound, bounds of its nodes, tightening, and ascent on functions of few parameters."""

from typing import TYPE_CHECKING

from blocklp.lazy import publish

if TYPE_CHECKING:
    from blocklp.search.best_first import Expansion as Expansion
    from blocklp.search.best_first import Node as Node
    from blocklp.search.best_first import SearchEvent as SearchEvent
    from blocklp.search.best_first import SearchResult as SearchResult
    from blocklp.search.best_first import branch_and_bound as branch_and_bound
    from blocklp.search.linear_node_bounds import LinearNodeBounds as LinearNodeBounds
    from blocklp.search.linear_node_bounds import StrongBranchingBounds as StrongBranchingBounds
    from blocklp.search.nodes import NodeBounds as NodeBounds
    from blocklp.search.over_workers import Sharing as Sharing
    from blocklp.search.over_workers import branch_and_bound_over as branch_and_bound_over
    from blocklp.search.parameter_ascent import Ascended as Ascended
    from blocklp.search.parameter_ascent import Objective as Objective
    from blocklp.search.parameter_ascent import ascend as ascend
    from blocklp.search.solve_exact import ExactSolution as ExactSolution
    from blocklp.search.tightening import Budget as Budget
    from blocklp.search.tightening import Clusters as Clusters
    from blocklp.search.tightening import Round as Round
    from blocklp.search.tightening import Tightened as Tightened
else:
    publish(
        __name__,
        {
            "blocklp.search.best_first": [
                "Expansion",
                "Node",
                "SearchEvent",
                "SearchResult",
                "branch_and_bound",
            ],
            "blocklp.search.linear_node_bounds": ["LinearNodeBounds", "StrongBranchingBounds"],
            "blocklp.search.nodes": ["NodeBounds"],
            "blocklp.search.over_workers": ["Sharing", "branch_and_bound_over"],
            "blocklp.search.parameter_ascent": ["Ascended", "Objective", "ascend"],
            "blocklp.search.solve_exact": ["ExactSolution"],
            "blocklp.search.tightening": ["Budget", "Clusters", "Round", "Tightened"],
        },
    )

"""Matching and allocation: sources that take shares of edges to destinations with capacities."""

from typing import TYPE_CHECKING

from blocklp.lazy import publish

if TYPE_CHECKING:
    from blocklp.problems.matching.instance import Matching as Matching
    from blocklp.problems.matching.instance import SourceBudget as SourceBudget
    from blocklp.problems.matching.readers import read_matching as read_matching
    from blocklp.problems.matching.readers import write_matching as write_matching
    from blocklp.problems.matching.solve import MatchingSolution as MatchingSolution
    from blocklp.problems.matching.solve import matching_model as matching_model
    from blocklp.problems.matching.solve import solve_matching as solve_matching
else:
    publish(
        __name__,
        {
            "blocklp.problems.matching.instance": ["SourceBudget", "Matching"],
            "blocklp.problems.matching.readers": ["read_matching", "write_matching"],
            "blocklp.problems.matching.solve": ["MatchingSolution", "matching_model", "solve_matching"],
        },
    )

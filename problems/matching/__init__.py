"""Matching and allocation: sources that take shares of edges to destinations with capacities."""

from typing import TYPE_CHECKING

from blocklp.lazy import publish

if TYPE_CHECKING:
    from blocklp.problems.matching.instance import Matching as Matching
    from blocklp.problems.matching.instance import SourceBudget as SourceBudget
    from blocklp.problems.matching.readers import read_matching as read_matching
    from blocklp.problems.matching.readers import write_matching as write_matching
    from blocklp.problems.matching.shards import MatchingPart as MatchingPart
    from blocklp.problems.matching.shards import matching_shard as matching_shard
    from blocklp.problems.matching.shards import part_of as part_of
    from blocklp.problems.matching.shards import read_matching_part as read_matching_part
    from blocklp.problems.matching.shards import write_shares as write_shares
    from blocklp.problems.matching.solve import MatchingSolution as MatchingSolution
    from blocklp.problems.matching.solve import matching_model as matching_model
    from blocklp.problems.matching.solve import solve_matching as solve_matching
else:
    publish(
        __name__,
        {
            "blocklp.problems.matching.instance": ["SourceBudget", "Matching"],
            "blocklp.problems.matching.readers": ["read_matching", "write_matching"],
            "blocklp.problems.matching.shards": ["MatchingPart", "matching_shard", "part_of", "read_matching_part", "write_shares"],
            "blocklp.problems.matching.solve": ["MatchingSolution", "matching_model", "solve_matching"],
        },
    )

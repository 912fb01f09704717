"""Quadratic pseudo-boolean optimisation: instances, readers, roof duality, persistency and primal heuristics."""

from typing import TYPE_CHECKING

from blocklp.lazy import publish

if TYPE_CHECKING:
    from blocklp.problems.qpbo.annealing import anneal as anneal
    from blocklp.problems.qpbo.batch import QuboBatch as QuboBatch
    from blocklp.problems.qpbo.batch import roof_duality_batch as roof_duality_batch
    from blocklp.problems.qpbo.clusters import violated_cycles as violated_cycles
    from blocklp.problems.qpbo.exact import solve_qpbo_exactly as solve_qpbo_exactly
    from blocklp.problems.qpbo.heuristics import Labellings as Labellings
    from blocklp.problems.qpbo.heuristics import one_flip_descent as one_flip_descent
    from blocklp.problems.qpbo.heuristics import round_fractional as round_fractional
    from blocklp.problems.qpbo.heuristics import tabu_search as tabu_search
    from blocklp.problems.qpbo.instance import Qubo as Qubo
    from blocklp.problems.qpbo.node_search import StrongBranching as StrongBranching
    from blocklp.problems.qpbo.nodes import node_persistency as node_persistency
    from blocklp.problems.qpbo.persistency import Persistency as Persistency
    from blocklp.problems.qpbo.persistency import verified_persistency as verified_persistency
    from blocklp.problems.qpbo.readers import read_qubo as read_qubo
    from blocklp.problems.qpbo.relaxation import QpboSolution as QpboSolution
    from blocklp.problems.qpbo.relaxation import roof_duality_model as roof_duality_model
    from blocklp.problems.qpbo.relaxation import solve_qpbo as solve_qpbo
    from blocklp.problems.qpbo.shards import roof_duality_shard as roof_duality_shard
    from blocklp.problems.qpbo.shards import shard_of as shard_of
else:
    publish(
        __name__,
        {
            "blocklp.problems.qpbo.annealing": ["anneal"],
            "blocklp.problems.qpbo.batch": ["QuboBatch", "roof_duality_batch"],
            "blocklp.problems.qpbo.clusters": ["violated_cycles"],
            "blocklp.problems.qpbo.exact": ["solve_qpbo_exactly"],
            "blocklp.problems.qpbo.heuristics": ["Labellings", "one_flip_descent", "round_fractional", "tabu_search"],
            "blocklp.problems.qpbo.instance": ["Qubo"],
            "blocklp.problems.qpbo.node_search": ["StrongBranching"],
            "blocklp.problems.qpbo.nodes": ["node_persistency"],
            "blocklp.problems.qpbo.persistency": ["Persistency", "verified_persistency"],
            "blocklp.problems.qpbo.readers": ["read_qubo"],
            "blocklp.problems.qpbo.relaxation": ["QpboSolution", "roof_duality_model", "solve_qpbo"],
            "blocklp.problems.qpbo.shards": ["roof_duality_shard", "shard_of"],
        },
    )

"""Markov random fields: discrete energies of any order, readers, LP relaxations and primal heuristics."""

from typing import TYPE_CHECKING

from blocklp.lazy import publish

if TYPE_CHECKING:
    from blocklp.problems.mrf.cycles import cycles as cycles
    from blocklp.problems.mrf.exact import solve_mrf_exactly as solve_mrf_exactly
    from blocklp.problems.mrf.heuristics import Labelling as Labelling
    from blocklp.problems.mrf.heuristics import descend as descend
    from blocklp.problems.mrf.heuristics import expand as expand
    from blocklp.problems.mrf.heuristics import fuse as fuse
    from blocklp.problems.mrf.instance import FactorGroup as FactorGroup
    from blocklp.problems.mrf.instance import Mrf as Mrf
    from blocklp.problems.mrf.readers import read_evidence as read_evidence
    from blocklp.problems.mrf.readers import read_labelling as read_labelling
    from blocklp.problems.mrf.readers import read_mrf as read_mrf
    from blocklp.problems.mrf.relaxation import MrfRelaxation as MrfRelaxation
    from blocklp.problems.mrf.relaxation import relax as relax
    from blocklp.problems.mrf.solve import MrfSolution as MrfSolution
    from blocklp.problems.mrf.solve import solve_mrf as solve_mrf
    from blocklp.problems.mrf.tightening import violated_clusters as violated_clusters
else:
    publish(
        __name__,
        {
            "blocklp.problems.mrf.exact": ["solve_mrf_exactly"],
            "blocklp.problems.mrf.heuristics": ["Labelling", "descend", "expand", "fuse"],
            "blocklp.problems.mrf.instance": ["FactorGroup", "Mrf"],
            "blocklp.problems.mrf.readers": ["read_evidence", "read_labelling", "read_mrf"],
            "blocklp.problems.mrf.relaxation": ["MrfRelaxation", "relax"],
            "blocklp.problems.mrf.solve": ["MrfSolution", "solve_mrf"],
            "blocklp.problems.mrf.cycles": ["cycles"],
            "blocklp.problems.mrf.tightening": ["violated_clusters"],
        },
    )

"""Markov random fields: discrete energies of any order, readers, LP relaxations and primal heuristics."""

from blocklp.problems.mrf.exact import solve_mrf_exactly
from blocklp.problems.mrf.heuristics import Labelling, descend, expand, fuse
from blocklp.problems.mrf.instance import FactorGroup, Mrf
from blocklp.problems.mrf.readers import read_evidence, read_labelling, read_mrf
from blocklp.problems.mrf.relaxation import Relaxation, relax
from blocklp.problems.mrf.solve import MrfSolution, solve_mrf
from blocklp.problems.mrf.tightening import cycles, violated_clusters

__all__ = [
    "FactorGroup",
    "Labelling",
    "Mrf",
    "MrfSolution",
    "Relaxation",
    "cycles",
    "descend",
    "expand",
    "fuse",
    "read_evidence",
    "read_labelling",
    "read_mrf",
    "relax",
    "solve_mrf",
    "solve_mrf_exactly",
    "violated_clusters",
]

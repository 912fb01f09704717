"""Block types: exact min-oracles over small polytopes."""

from blocklp.box import Box
from blocklp.oracles.chain import Chain
from blocklp.oracles.choice import AtMostOne, Simplex
from blocklp.oracles.joint import Joint
from blocklp.oracles.knapsack import Knapsack
from blocklp.oracles.pairwise import Pairwise
from blocklp.oracles.polytope import Polytope
from blocklp.oracles.products import Edge, FourClique, FourCycle, Triangle

__all__ = [
    "AtMostOne",
    "Box",
    "Chain",
    "Edge",
    "FourClique",
    "FourCycle",
    "Joint",
    "Knapsack",
    "Pairwise",
    "Polytope",
    "Simplex",
    "Triangle",
]

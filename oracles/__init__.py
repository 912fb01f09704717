"""Block types: exact min-oracles over small polytopes."""

from blocklp.box import Box
from blocklp.oracles.choice import AtMostOne, Simplex
from blocklp.oracles.knapsack import Knapsack
from blocklp.oracles.pairwise import Pairwise
from blocklp.oracles.polytope import Polytope
from blocklp.oracles.products import Edge, FourCycle, Triangle

__all__ = ["AtMostOne", "Box", "Edge", "FourCycle", "Knapsack", "Pairwise", "Polytope", "Simplex", "Triangle"]

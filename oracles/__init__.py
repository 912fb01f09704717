"""Block types: exact min-oracles over small polytopes."""

from typing import TYPE_CHECKING

from blocklp.lazy import publish

if TYPE_CHECKING:
    from blocklp.blocks.box import Box as Box
    from blocklp.oracles.arborescence import Arborescence as Arborescence
    from blocklp.oracles.boolean_quadric import Edge as Edge
    from blocklp.oracles.boolean_quadric import FourClique as FourClique
    from blocklp.oracles.boolean_quadric import FourCycle as FourCycle
    from blocklp.oracles.boolean_quadric import Triangle as Triangle
    from blocklp.oracles.chain import Chain as Chain
    from blocklp.oracles.cut import Cut as Cut
    from blocklp.oracles.integer_knapsack import IntegerKnapsack as IntegerKnapsack
    from blocklp.oracles.joint import Joint as Joint
    from blocklp.oracles.knapsack import Knapsack as Knapsack
    from blocklp.oracles.pairwise import Pairwise as Pairwise
    from blocklp.oracles.path import Path as Path
    from blocklp.oracles.polytope import Polytope as Polytope
    from blocklp.oracles.resource_path import ResourcePath as ResourcePath
    from blocklp.oracles.schedule import Schedule as Schedule
    from blocklp.oracles.simplex import AtMostOne as AtMostOne
    from blocklp.oracles.simplex import Simplex as Simplex
    from blocklp.oracles.transport import Transport as Transport
    from blocklp.oracles.tree import Tree as Tree
else:
    publish(
        __name__,
        {
            "blocklp.blocks.box": ["Box"],
            "blocklp.oracles.arborescence": ["Arborescence"],
            "blocklp.oracles.chain": ["Chain"],
            "blocklp.oracles.simplex": ["AtMostOne", "Simplex"],
            "blocklp.oracles.cut": ["Cut"],
            "blocklp.oracles.joint": ["Joint"],
            "blocklp.oracles.integer_knapsack": ["IntegerKnapsack"],
            "blocklp.oracles.knapsack": ["Knapsack"],
            "blocklp.oracles.pairwise": ["Pairwise"],
            "blocklp.oracles.path": ["Path"],
            "blocklp.oracles.polytope": ["Polytope"],
            "blocklp.oracles.resource_path": ["ResourcePath"],
            "blocklp.oracles.schedule": ["Schedule"],
            "blocklp.oracles.boolean_quadric": ["Edge", "FourClique", "FourCycle", "Triangle"],
            "blocklp.oracles.transport": ["Transport"],
            "blocklp.oracles.tree": ["Tree"],
        },
    )

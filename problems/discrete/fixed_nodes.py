"""Nodes of searches over :class:`blocklp.Nodes`: fixings of 0/1 variables, and multipliers."""

from __future__ import annotations

from torch import Tensor

from blocklp.search.best_first import Node
from blocklp.search.nodes import NodeBounds


def fixed_node(bound: float, depth: int, fixings: Tensor, multipliers: Tensor) -> Node:
    """Return a node, with the size of its state.

    Parameters
    ----------
    bound : float
        That of the node.
    depth : int
        Its depth.
    fixings, multipliers : Tensor
        Its state, a row of each.
    """
    return Node(bound, depth, (fixings, multipliers), multipliers.nbytes + fixings.nbytes)


def both_sides(found: NodeBounds, k: int, column: int, bound: float, depth: int) -> list[Node]:
    """Return the children of a node by one variable more, at 0 and at 1.

    Parameters
    ----------
    found : NodeBounds
        Bounds of some nodes.
    k, column : int
        Which of them, and the variable.
    bound, depth : float, int
        Those of the node.
    """
    children, multipliers = [], found.multipliers[k : k + 1]
    for value, side in ((0, found.if_zero), (1, found.if_one)):
        fixings = found.fixings[k : k + 1].clone()
        fixings[0, column] = value
        children.append(fixed_node(max(bound, float(side[k, column])), depth + 1, fixings, multipliers))
    return children

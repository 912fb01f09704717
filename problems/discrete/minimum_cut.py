"""Minimum cuts with whole capacities, by which roof duality is solved and persistency is proved."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from blocklp.problems.discrete.adjacency import sparse_graph
from blocklp.problems.qpbo.arrays import IntArray


def minimum_cut(nodes: int, tails: IntArray, heads: IntArray, capacities: IntArray) -> tuple[int, NDArray[np.bool_]]:
    """Return the value of a maximum flow, and which nodes its residual graph reaches from the source.

    Parameters
    ----------
    nodes : int
        Number of nodes; the last two are source and sink.
    tails, heads : numpy.ndarray, shape (arcs,), int64
        Arcs; capacities of those that are named twice are added up.
    capacities : numpy.ndarray, shape (arcs,), int64
        Whole numbers that fit into int32, as the flow must.
    """
    source = nodes - 2
    graph = sparse_graph(capacities.astype(np.int32), tails, heads, nodes)
    flow = maximum_flow(graph, source, nodes - 1)
    # The flow matrix is antisymmetric, so this difference is the residual graph with its backward arcs.
    residual = graph - flow.flow
    residual.eliminate_zeros()
    reached = np.zeros(nodes, dtype=bool)
    reached[breadth_first_order(residual, source, return_predecessors=False)] = True
    return int(flow.flow_value), reached

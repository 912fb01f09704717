"""Decomposition of the edges of a pairwise model into chains."""

from __future__ import annotations

from blocklp.problems.mrf.instance import Mrf


def edge_chains(mrf: Mrf) -> list[list[int]]:
    """Cover every pair factor once by paths of 1, 2, 4, 8, .. edges.

    Paths are taken greedily, straight on where the numbers of variables go straight on (the rows and columns of a numbered grid), and
    cut into powers of two, so that few kinds of blocks arise.

    Parameters
    ----------
    mrf : Mrf

    Returns
    -------
    list of list of int
        The variables of each path in their order.
    """
    left: dict[int, set[int]] = {i: set() for i in range(mrf.n)}
    for scope, _ in mrf.factors:
        if len(scope) == 2:
            left[scope[0]].add(scope[1])
            left[scope[1]].add(scope[0])
    chains: list[list[int]] = []
    for start in range(mrf.n):
        while left[start]:
            path = [start]
            step = 0  # leads nowhere ahead, since a path does not come back
            while ahead := left[path[-1]] - set(path):
                following = path[-1] + step
                if following not in ahead:
                    if len(path) > 2 and 2 * path[-2] == path[-1] + path[-3]:
                        break  # the end of a row
                    following = min(ahead)
                left[path[-1]].discard(following)
                left[following].discard(path[-1])
                step = following - path[-1]
                path.append(following)
            chains += _powers(path)
    return chains


def _powers(path: list[int]) -> list[list[int]]:
    """Cut a path into pieces of powers of two of edges, the longest first."""
    pieces, first = [], 0
    while first < len(path) - 1:
        edges = 1 << (len(path) - 1 - first).bit_length() - 1
        pieces.append(path[first : first + edges + 1])
        first += edges
    return pieces

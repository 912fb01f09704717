r"""Search for clusters that raise the bound of a solved relaxation.

With the multipliers at hand every edge block e has the values :math:`b_e(x_e)`, and the bound is the sum of their minima (and of
other blocks).  If a cluster c takes over those of its edges, the bound grows by

.. math:: d(c) = \min_{x_c} \sum_{e \subset c} b_e(x_e) - \sum_{e \subset c} \min_{x_e} b_e(x_e) \ge 0

(D. Sontag, T. Meltzer, A. Globerson, T. Jaakkola and Y. Weiss, Tightening LP relaxations for MAP using message passing, UAI 2008).
Candidates are the chordless cycles of the graph of pair factors.
"""

from __future__ import annotations

import itertools
from collections import defaultdict

import networkx
import numpy as np
import torch
from torch import Tensor

import blocklp as bl
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.relaxation import Relaxation, Scope
from blocklp.problems.qpbo.arrays import FloatArray, IntArray

MOST_CANDIDATES = 200_000
"""Cycles looked at, shorter ones first."""

LARGEST_CLUSTER = 1024
"""Joint labels of a cluster at most."""

CHUNK = 4_000_000
"""Joint labels scored at a time."""


def cycles(mrf: Mrf, longest: int = 4) -> list[Scope]:
    """List chordless cycles of the graph of pair factors as sets of variables, the shortest first.

    Parameters
    ----------
    mrf : Mrf
    longest : int
        Variables of a cycle at most; if there are none, cycles of up to twice as many are taken.
    """
    graph = networkx.Graph([scope for scope, _ in mrf.factors if len(scope) == 2])
    for bound in (longest, 2 * longest):
        found = itertools.islice(networkx.chordless_cycles(graph, length_bound=bound), MOST_CANDIDATES)
        small = {tuple(sorted(c)) for c in found if len(c) > 2 and np.prod(mrf.counts[c].astype(float)) <= LARGEST_CLUSTER}
        if small:
            return sorted(small, key=lambda c: (len(c), c))
    return []


def edge_values(relaxation: Relaxation, solution: bl.Solution) -> dict[Scope, Tensor]:
    """Values :math:`b_e` of the edge blocks by their variables, each of the shape of its table."""
    values: dict[Scope, Tensor] = {}
    for blocks in relaxation.model.blocks:
        scopes = relaxation.members.get(blocks.name, [])
        if scopes and len(scopes[0]) == 2:
            shape = tuple(relaxation.mrf.counts[list(scopes[0])].tolist())
            costs = solution.duals[blocks][0].cpu()
            first, second, pair = torch.split(costs, [shape[0], shape[1], shape[0] * shape[1]], -1)
            sums = first[:, :, None] + second[:, None, :] + pair.reshape(-1, *shape)
            upper = torch.stack([relaxation.upper(scope) for scope in scopes]).reshape(-1, *shape)
            values |= zip(scopes, sums.masked_fill(upper == 0, torch.inf), strict=True)
    return values


def scores(mrf: Mrf, values: dict[Scope, Tensor], clusters: list[Scope]) -> FloatArray:
    """Gain :math:`d(c)` of each cluster: ``(clusters,)``."""
    found = np.zeros(len(clusters))
    kinds: dict[tuple[tuple[int, ...], tuple[Scope, ...]], list[int]] = defaultdict(list)
    for k, scope in enumerate(clusters):
        pairs = [p for p in itertools.combinations(range(len(scope)), 2) if (scope[p[0]], scope[p[1]]) in values]
        kinds[tuple(mrf.counts[list(scope)].tolist()), tuple(pairs)].append(k)
    for (shape, some), members in kinds.items():
        step = max(1, CHUNK // int(np.prod(shape)))
        for begin in range(0, len(members), step):
            part = members[begin : begin + step]
            joint, least = torch.zeros(len(part), *shape, dtype=torch.float64), torch.zeros(len(part), dtype=torch.float64)
            for a, b in some:
                tables = torch.stack([values[clusters[k][a], clusters[k][b]] for k in part])
                least += tables.amin((1, 2))
                joint += tables.reshape(len(part), *(size if axis in (a, b) else 1 for axis, size in enumerate(shape)))
            found[part] = (joint.flatten(1).amin(1) - least).numpy()
    return found


def violated_clusters(
    relaxation: Relaxation, solution: bl.Solution, candidates: list[Scope], most: int, least: float = 1e-6
) -> list[Scope]:
    """Return the candidates of largest gain, the best first.

    Parameters
    ----------
    relaxation : Relaxation
        Of the decomposition ``"edges"``.
    solution : Solution
        Of its model.
    candidates : list of tuple of int
        Such as :func:`cycles`.
    most : int
        Number of clusters at most.
    least : float
        Least gain, relative to the size of the bound.
    """
    gains = scores(relaxation.mrf, edge_values(relaxation, solution), candidates)
    enough = least * max(1.0, abs(float(solution.bound[0])))
    order: IntArray = np.argsort(-gains, kind="stable")
    return [candidates[k] for k in order[:most].tolist() if gains[k] > enough]

"""Neighbour lists on a device, and which nodes may move at the same time: what descents of labellings and sets have in common.

Also graphs as SciPy's routines take them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.sparse import csr_array
from torch import Tensor

from blocklp.errors import NonFiniteError, ShapeError
from blocklp.problems.qpbo.arrays import IntArray

NOISE = 1e-12
"""A gain below this share of the coefficients that made it is rounding noise, and following it might go in circles."""


@dataclass(frozen=True)
class Adjacency:
    """Neighbour lists on one device: those of node i are ``first[i] .. first[i] + degree[i] - 1``.

    Parameters
    ----------
    first, degree : Tensor, shape (n,), int64
    neighbour : Tensor, shape (2 m,), int64
    edge : Tensor, shape (2 m,), int64
        The edge to that neighbour.
    owner : Tensor, shape (2 m,), int64
        The node whose neighbour it is.
    rank : Tensor, shape (n,), int64
        A scattered permutation of 0 .. n-1 that orders equals.
    """

    first: Tensor
    degree: Tensor
    neighbour: Tensor
    edge: Tensor
    owner: Tensor
    rank: Tensor

    @classmethod
    def build(cls, n: int, edges: IntArray, device: torch.device) -> Adjacency:
        """Build the neighbour lists of a graph.

        Parameters
        ----------
        n : int
            Number of nodes.
        edges : ndarray
            ``(m, 2)`` int64.
        device : torch.device
            Where the lists are.
        """
        near = np.concatenate([edges[:, 0], edges[:, 1]])
        order = np.argsort(near, kind="stable")
        degree = np.bincount(near, minlength=n)
        # Multiplication by an odd constant modulo 2^32 is one-to-one and scatters neighbouring indices.
        scattered = np.arange(n, dtype=np.uint64) * np.uint64(2654435761) % np.uint64(2**32)
        parts = (
            np.cumsum(degree) - degree,
            degree,
            np.concatenate([edges[:, 1], edges[:, 0]])[order],
            order % max(1, len(edges)),
            near[order],
            np.argsort(np.argsort(scattered)),
        )
        return cls(*(torch.tensor(part, device=device) for part in parts))

    def expand(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """List all neighbours of nodes.

        Parameters
        ----------
        nodes : Tensor, shape (k,), int64

        Returns
        -------
        position : Tensor, shape (total,), int64
            Which of the given nodes each neighbour belongs to.
        entry : Tensor, shape (total,), int64
            Its index into ``neighbour`` and ``edge``.
        """
        count = self.degree[nodes]
        end = count.cumsum(0)
        position = torch.repeat_interleave(torch.arange(len(nodes), device=nodes.device), count)
        entry = torch.arange(len(position), device=nodes.device) + (self.first[nodes] - end + count)[position]
        return position, entry

    def winners(self, priority: Tensor, eligible: Tensor) -> Tensor:
        """Mark the eligible nodes that come before all of their eligible neighbours; no two of them are adjacent.

        Parameters
        ----------
        priority : Tensor, shape (batch, n), float64
            The larger comes first; equals are ordered by ``rank``.
        eligible : Tensor, shape (batch, n), bool

        Returns
        -------
        Tensor, shape (batch, n), bool
        """
        n = priority.shape[1]
        key = torch.where(eligible, priority, -torch.inf).view(-1)
        flat = eligible.view(-1).nonzero().squeeze(1)
        node = flat % n
        position, entry = self.expand(node)
        rival = self.neighbour[entry]
        mine, theirs = key[flat][position], key[(flat - node)[position] + rival]
        # Only the few equals need the second comparison.
        beaten = theirs > mine
        equal = (theirs == mine).nonzero().squeeze(1)
        beaten[equal] = self.rank[rival[equal]] > self.rank[node[position[equal]]]
        result = eligible.clone()
        result.view(-1)[flat[position[beaten]]] = False
        return result


def sparse_graph(values: ArrayLike, tails: IntArray, heads: IntArray, nodes: int) -> csr_array:
    """Return arcs as a matrix ``(nodes, nodes)`` for :mod:`scipy.sparse.csgraph`.

    Nodes are numbered in int32: releases of SciPy before 1.17 take no others in some of these routines.

    Parameters
    ----------
    values : array_like, shape (arcs,)
        Lengths or capacities, in any dtype; those of arcs that are named twice are added up, and zeros are no arcs.
    tails, heads : numpy.ndarray, shape (arcs,), integers
        Ends of the arcs.
    nodes : int
        Number of nodes.
    """
    return csr_array((values, (tails.astype(np.int32), heads.astype(np.int32))), shape=(nodes, nodes))


def check_points(y: Tensor, n: int, name: str) -> None:
    """Refuse a tensor that is not finite or not of shape (batch, n).

    Parameters
    ----------
    y : Tensor
        Given as ``(batch, n)``.
    n : int
        Number of variables.
    name : str
        Its name, for messages.

    Raises
    ------
    ShapeError, NonFiniteError
        Naming the shape or the first entry that is not finite.
    """
    if y.ndim != 2 or y.shape[1] != n:
        raise ShapeError(f"{name} has shape {tuple(y.shape)}; give (batch, {n})")
    finite = torch.isfinite(y)
    if not finite.all():
        element, node = (~finite).nonzero()[0].tolist()
        raise NonFiniteError(f"{name}[{element}, {node}] is {y[element, node].item()}; every entry must be finite")

r"""An energy as a multilinear function of label weights.

With a point of the simplex :math:`x_i` for each variable, the continuous relaxation is

.. math:: E(x) = \sum_f \sum_{l} \theta_f(l) \prod_{i \in f} x_i(l_i),

which is tight: it is linear in each :math:`x_i`, so that some labelling attains its minimum.  With a copy of x for each position of
a variable in its factors it is :math:`F(x^1, \dots, x^D)`, linear in each copy: (10) and (20) of D. K. Le-Huu and N. Paragios,
Continuous relaxation of MAP inference: a nonconvex perspective, CVPR 2018.
"""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from blocklp.problems.discrete.adjacency import NOISE
from blocklp.problems.mrf.heuristics import softened
from blocklp.problems.mrf.instance import FactorGroup, Mrf


class Facing:
    """A group of factors seen from one position of their variables.

    Attributes
    ----------
    scopes : Tensor, shape (factors, order)
    axes : list of int
        Positions, this one first.
    shape : tuple of int
        Label counts of the positions in the order of ``axes``.
    tables : Tensor, shape (factors, entries)
        Flat, in the order of ``axes``.
    first : list of int
        The factors whose variable here has colour c are ``first[c] .. first[c + 1] - 1``.
    """

    def __init__(self, group: FactorGroup, position: int, colour: np.ndarray, device: torch.device) -> None:
        own = colour[group.scopes[:, position]]
        order = np.argsort(own, kind="stable")
        self.axes = [position, *(axis for axis in range(group.order) if axis != position)]
        self.shape = tuple(group.shape[axis] for axis in self.axes)
        tables = group.tables[order].transpose(0, *(axis + 1 for axis in self.axes))
        self.scopes = torch.tensor(group.scopes[order], device=device)
        self.tables = torch.tensor(tables.reshape(len(order), -1), device=device)
        self.first = np.searchsorted(own[order], np.arange(int(colour.max()) + 2)).tolist()

    def rows(self, colour: int | None) -> slice:
        """The factors of a colour, or all."""
        return slice(None) if colour is None else slice(self.first[colour], self.first[colour + 1])


class Multilinear:
    """The energy at points of the simplices, in float64 on one device.

    Infinite entries are replaced by :func:`~blocklp.problems.mrf.heuristics.softened`, so that a labelling that violates a hard
    constraint costs more than any that does not.

    Attributes
    ----------
    mrf : Mrf
        The energy.
    degree : int
        Largest number of variables of a factor, at least 2.
    exists : Tensor, shape (n, most labels), bool
        Whether there is such a label.
    classes : list of Tensor
        Variables by colour; no factor has two of one colour.
    noise : Tensor, shape (n,), float64
        Differences of costs below this are rounding.
    scale : float
        How much the finite costs of a variable differ, in the mean, over all its factors; 1 if they do not.
    """

    def __init__(self, mrf: Mrf, device: torch.device) -> None:
        self.mrf, self.device, self.degree = mrf, device, max(2, mrf.order)
        graph = nx.empty_graph(mrf.n)
        graph.add_edges_from(mrf.edges.tolist())
        found = nx.greedy_color(graph)
        colour = np.array([found[i] for i in range(mrf.n)])
        self.exists = (torch.arange(int(mrf.counts.max()))[None] < torch.tensor(mrf.counts)[:, None]).to(device)
        self.classes = [torch.tensor(np.flatnonzero(colour == c), device=device) for c in range(int(colour.max()) + 1)]
        self._slot = torch.zeros(mrf.n, dtype=torch.int64, device=device)
        for nodes in self.classes:
            self._slot[nodes] = torch.arange(len(nodes), device=device)
        self._facings: list[list[Facing]] = [[] for _ in range(self.degree)]
        self.noise = torch.zeros(mrf.n, dtype=torch.float64, device=device)
        spreads = [
            group.order * float(np.ptp(t[np.isfinite(t)])) for group in mrf.groups for t in group.tables if np.isfinite(t).any()
        ]
        self.scale = sum(spreads) / mrf.n or 1.0
        for group in softened(mrf):
            largest = NOISE * np.abs(group.tables).reshape(len(group.tables), -1).max(1)
            for position in range(group.order):
                self._facings[position].append(Facing(group, position, colour, device))
                self.noise.index_add_(0, torch.tensor(group.scopes[:, position], device=device), torch.tensor(largest, device=device))

    def costs(self, copies: Sequence[Tensor], position: int, colour: int | None = None) -> Tensor:
        r"""The derivative by one copy, :math:`\partial F / \partial x^d`: (32).

        Parameters
        ----------
        copies : sequence of Tensor, each (batch, n, most labels)
            One for each position; that of ``position`` does not matter.
        position : int
            From 0.
        colour : int, optional
            Only for the variables of this colour.

        Returns
        -------
        Tensor, shape (batch, n or variables of the colour, most labels)
            0 where there is no such label.
        """
        size = self.mrf.n if colour is None else len(self.classes[colour])
        result = copies[0].new_zeros(len(copies[0]), size, self.exists.shape[1])
        for facing in self._facings[position]:
            rows = facing.rows(colour)
            scopes, table = facing.scopes[rows], facing.tables[rows]
            for axis, count in reversed(list(zip(facing.axes, facing.shape, strict=True))[1:]):
                table = contract(table, copies[axis][:, scopes[:, axis], :count])
            variable = scopes[:, position] if colour is None else self._slot[scopes[:, position]]
            # A view of the labels in use: the sum goes into the result.
            result[..., : facing.shape[0]].index_add_(1, variable, table.expand(len(result), -1, -1))
        return result

    def gradient(self, x: Tensor, colour: int | None = None) -> Tensor:
        """Costs of all labels at points ``(batch, n, most labels)``, of the same shape: (14)."""
        return torch.stack([self.costs([x] * self.degree, d, colour) for d in range(self.degree)]).sum(0)

    def value(self, x: Tensor) -> Tensor:
        """E at points ``(batch, n, most labels)``: ``(batch,)``."""
        # Every factor has a first position, so no other copy has more to pay.
        return self.mrf.constant + (self.costs([x] * self.degree, 0) * x).sum((1, 2))

    def segment(self, x: Tensor, direction: Tensor) -> Tensor:
        r"""Coefficients of :math:`p(\alpha) = E(x + \alpha r)`, constant first: ``(batch, degree + 1)``.

        By expansion of the products, where the text solves a system with values at random points (B.1): so no digits cancel.
        """
        result = x.new_zeros(len(x), self.degree + 1)
        result[:, 0] = self.mrf.constant
        for facing in self._facings[0]:
            terms: list[Tensor] = [facing.tables]
            for axis, count in reversed(list(zip(facing.axes, facing.shape, strict=True))):
                here, along = (z[:, facing.scopes[:, axis], :count] for z in (x, direction))
                stay, go = [contract(t, here) for t in terms], [contract(t, along) for t in terms]
                terms = [stay[0], *(a + b for a, b in zip(stay[1:], go[:-1], strict=True)), go[-1]]
            for power, term in enumerate(terms):
                result[:, power] += term.sum((1, 2))
        return result

    def one_hot(self, labels: Tensor) -> Tensor:
        """Labellings ``(batch, n)`` as points ``(batch, n, most labels)``."""
        return torch.nn.functional.one_hot(labels, self.exists.shape[1]).to(torch.float64)

    def best_labels(self, costs: Tensor) -> Tensor:
        """The vertex that minimises a linear cost ``(batch, n, most labels)``, of the same shape; the first on ties."""
        return self.one_hot(costs.masked_fill(~self.exists, torch.inf).argmin(-1))

    def spread(self, costs: Tensor) -> Tensor:
        """Differences of the largest and the least cost of a variable: ``(batch, n)``."""
        return costs.masked_fill(~self.exists, -torch.inf).amax(-1) - costs.masked_fill(~self.exists, torch.inf).amin(-1)


def contract(table: Tensor, weights: Tensor) -> Tensor:
    """Sum out the last axis of tables ``([batch,] factors, entries)`` with weights ``(batch, factors, labels)``."""
    labels = weights.shape[-1]
    cut = table.reshape(*table.shape[:-1], table.shape[-1] // labels, labels)
    return torch.einsum("fel,bfl->bfe" if cut.ndim == 3 else "bfel,bfl->bfe", cut, weights)

"""Leaves of proofs from the multipliers of solved relaxations."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import blocklp as bl
from blocklp.problems.mrf.relaxation import MrfRelaxation
from blocklp.problems.proofs.function import Scope
from blocklp.problems.proofs.steps import Decomposition, Parts
from blocklp.problems.qpbo.clusters import Pairs
from blocklp.problems.qpbo.instance import Qubo


@dataclass(frozen=True)
class Columns:
    """Which entries of which tables the variables of a model stand for.

    Attributes
    ----------
    sizes : tuple of int
        Numbers of labels of the variables of the function.
    scopes : list of tuple of int
        Tables.
    table, entry : numpy.ndarray, shape (variables of the model,), int64
        Number of the table, and position in it, the last variable's label fastest.
    hard : numpy.ndarray, shape (variables of the model,), bool
        Whether the entry is infinite.
    """

    sizes: tuple[int, ...]
    scopes: Sequence[Scope]
    table: NDArray[np.int64]
    entry: NDArray[np.int64]
    hard: NDArray[np.bool_]

    @classmethod
    def of_labels(cls, relaxation: MrfRelaxation) -> Columns:
        """Those of the relaxation of an energy, clusters included."""
        relaxation.views.learn()
        size = relaxation.model.size
        table, entry = np.full(size, -1), np.zeros(size, dtype=np.int64)
        scopes: list[Scope] = []
        for shape, (nodes, first) in relaxation.views.tables.items():
            length = math.prod(shape)
            columns = first.numpy()[:, None] + np.arange(length)
            table[columns] = len(scopes) + np.arange(len(columns))[:, None]
            entry[columns] = np.arange(length)
            scopes += map(tuple, nodes.tolist())
        hard = (relaxation.views.upper == 0).numpy()
        return cls(tuple(relaxation.mrf.counts.tolist()), scopes, table, entry, hard)

    @classmethod
    def of_products(cls, qubo: Qubo, solution: bl.Solution) -> Columns:
        """Those of the relaxation of a quadratic function: variables, and products of two."""
        pairs = Pairs.of(qubo, solution)
        model = solution.solver.models[0]
        assert isinstance(model, bl.Model)
        table, entry = np.full(model.size, -1), np.ones(model.size, dtype=np.int64)
        table[: qubo.n] = np.arange(qubo.n)
        table[pairs.column.numpy()] = qubo.n + np.arange(len(pairs.key))
        entry[qubo.n :] = 3
        scopes: list[Scope] = [*((i,) for i in range(qubo.n)), *map(tuple, pairs.ends.tolist())]
        return cls((2,) * qubo.n, scopes, table, entry, np.zeros(model.size, dtype=np.bool_))

    def leaf(self, solution: bl.Solution, variables: Sequence[int]) -> Decomposition:
        """Return the decomposition that the blocks of a solution are.

        Parameters
        ----------
        solution : Solution
            Of the model.
        variables : sequence of int
            What the variables are called in the proof.
        """
        model = solution.solver.models[0]
        assert isinstance(model, bl.Model)
        names, parts = np.array(variables), []
        for blocks in model.blocks:
            scope = blocks.scope.numpy()
            duals = np.where(self.hard[scope], np.nan, solution.duals[blocks][0].double().cpu().numpy())
            kinds: dict[_Kind, list[int]] = defaultdict(list)
            members = []
            for row, columns in enumerate(scope):
                kind, own = self._kind(columns)
                kinds[kind].append(row)
                members.append(own)
            for kind, rows in kinds.items():
                tables = kind.tables(duals[rows], self.entry[scope[rows[0]]])
                parts.append(Parts(names[[members[row] for row in rows]], tables))
        return Decomposition(tuple(parts))

    def _kind(self, columns: NDArray[np.int64]) -> tuple[_Kind, list[int]]:
        """What blocks must have in common to be parts of one group, and the variables of a block."""
        numbers = self.table[columns].tolist()
        tables = list(dict.fromkeys(numbers))
        variables = list(dict.fromkeys(v for t in tables for v in self.scopes[t]))
        places = {v: k for k, v in enumerate(variables)}
        axes = tuple(tuple(places[v] for v in self.scopes[t]) for t in tables)
        owners = {t: k for k, t in enumerate(tables)}
        sizes = tuple(self.sizes[v] for v in variables)
        return _Kind(sizes, axes, tuple(owners[t] for t in numbers), self.entry[columns].tobytes()), variables


@dataclass(frozen=True)
class _Kind:
    """Label counts of the variables of a block, positions of its tables, whose each column is, and which entry."""

    sizes: tuple[int, ...]
    axes: tuple[Scope, ...]
    owners: tuple[int, ...]
    entries: bytes

    def tables(self, duals: NDArray[np.float64], entries: NDArray[np.int64]) -> tuple[tuple[Scope, NDArray[np.float64]], ...]:
        """Tables of multipliers ``(blocks, columns)`` of these entries; those that are zero are left out."""
        found = []
        for k, axes in enumerate(self.axes):
            columns = np.flatnonzero(np.array(self.owners) == k)
            shape = tuple(self.sizes[position] for position in axes)
            values = np.zeros((len(duals), math.prod(shape)))
            values[:, entries[columns]] = duals[:, columns]
            if values.any():
                found.append((axes, values.reshape(len(duals), *shape)))
        return tuple(found)

"""Functions of a sum, of a maximum or of the path of an automaton over many variables, as tables.

Where all joint labels are few, such a function is one table.  Otherwise it is a chain: an auxiliary variable
between two variables holds what has to be known of those before, and a table on it, the variable and the next
one says what becomes of it (Allouche et al., Tractability-preserving transformations of global cost
functions, Artificial Intelligence 238, 2016).  States of the same future are one, so that a clause or an
at-most-one constraint of any length has two states, and the LP relaxation of a chain alone is exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from blocklp.errors import FormatError
from blocklp.problems.mrf.cost_networks.cost_network import LARGEST_TABLE, Cost, CostNetwork
from blocklp.problems.mrf.words import MOST_VARIABLES
from blocklp.problems.qpbo.arrays import FloatArray, IntArray

STATES = 2_000_000
"""States of all positions of a chain, each with all labels, at most."""


def joint_labels(sizes: Sequence[int]) -> IntArray:
    """Return all joint labels, the last variable fastest: ``(entries, variables)``."""
    return np.indices(tuple(sizes)).reshape(len(sizes), -1).T


@dataclass(frozen=True)
class Tabulated:
    """A function that is given by its values only.

    Attributes
    ----------
    name : str
        For messages.
    scope : list of int
    evaluate : callable
        Takes joint labels ``(entries, variables)``, returns costs ``(entries,)``.
    """

    name: str
    scope: list[int]
    evaluate: Callable[[IntArray], FloatArray]

    def add(self, network: CostNetwork) -> None:
        """Add it as a table.

        Raises
        ------
        FormatError
            It has too many entries.
        """
        entries = network.entries(self.scope)
        if entries > LARGEST_TABLE:
            raise FormatError(
                f"{network.allowance.path}: {self.name} on {len(self.scope)} variables has {entries} joint labels, and is read as a "
                f"table of at most {LARGEST_TABLE}; state it by smaller functions"
            )
        network.take(self.scope, self.name)
        sizes = network.sizes(self.scope)
        network.add(self.scope, np.asarray(self.evaluate(joint_labels(sizes)), dtype=np.float64).reshape(sizes))


@dataclass(frozen=True)
class Counted:
    """``cost(sum of weights[k][label of scope[k]])``, or of their maximum.

    Attributes
    ----------
    name : str
        For messages.
    scope : list of int
    weights : list of ndarray
        A whole number for each label of each variable.
    cost : callable
        The cost of a total, a whole number or infinite.
    combine : ufunc
        ``np.add`` or ``np.maximum``; weights of a maximum are not negative.
    """

    name: str
    scope: list[int]
    weights: list[IntArray]
    cost: Callable[[int], Cost]
    combine: np.ufunc = np.add

    def add(self, network: CostNetwork) -> None:
        """Add it as a table, as pairs if it says that at most one of some labels is taken, or as a chain.

        Raises
        ------
        FormatError
            Tables or states are too many.
        """
        # Variables without influence would only make tables larger.
        kept = [k for k, w in enumerate(self.weights) if w.any()]
        if len(kept) < len(self.scope):
            left = Counted(self.name, [self.scope[k] for k in kept], [self.weights[k] for k in kept], self.cost, self.combine)
            return left.add(network)
        if not self.scope:
            return network.add([], np.array(self.cost(0)))
        if len(self.scope) <= MOST_VARIABLES and network.entries(self.scope) <= network.whole_table:
            network.take(self.scope, self.name)
            return network.add(self.scope, self.priced(self.totals()))
        if self.at_most_one():
            taken = [np.where(w == 1, np.inf, 0.0) for w in self.weights]
            for i, j in itertools.combinations(range(len(self.scope)), 2):
                pair = [self.scope[i], self.scope[j]]
                network.take(pair, self.name)
                network.add(pair, np.minimum.outer(taken[i], taken[j]))
            return None
        return self.chain(network)

    def totals(self) -> IntArray:
        """Return the total of all joint labels, one axis a variable."""
        total = np.zeros((), dtype=np.int64)
        for w in self.weights:
            total = self.combine(total[..., None], w)
        return total

    def priced(self, totals: IntArray) -> FloatArray:
        """Return the costs of totals."""
        values, where = np.unique(totals, return_inverse=True)
        return np.array([self.cost(int(v)) for v in values], dtype=np.float64)[where.reshape(totals.shape)]

    def at_most_one(self) -> bool:
        """Whether the function forbids two labels of weight 1, and nothing else."""
        if self.combine is not np.add or any(((w != 0) & (w != 1)).any() for w in self.weights):
            return False
        costs = [self.cost(total) for total in range(len(self.scope) + 1)]
        return costs[:2] == [0.0, 0.0] and all(cost == math.inf for cost in costs[2:])

    def layers(self, network: CostNetwork) -> list[IntArray]:
        """Return the totals that can have come up before each position, and at the end."""
        found, size = [np.zeros(1, dtype=np.int64)], 0
        for w in self.weights:
            network.allowance.check()
            found.append(np.unique(self.combine.outer(found[-1], w)))
            size += found[-1].size * w.size
            if size > STATES:
                raise FormatError(
                    f"{network.allowance.path}: {self.name} on {len(self.scope)} variables has more than {STATES} partial sums; "
                    "divide its coefficients by a common factor, or split it"
                )
        return found

    def chain(self, network: CostNetwork) -> None:
        """Add it as a chain of auxiliary variables, whose states are classes of totals with the same future."""
        layers = self.layers(network)
        costs = self.priced(layers[-1])
        # Class -1 can only end in infinite costs.
        ends, classes = np.unique(costs[np.isfinite(costs)], return_inverse=True)
        last = np.full(len(costs), -1)
        last[np.isfinite(costs)] = classes
        steps: list[IntArray] = []
        for k in range(len(self.scope) - 1, -1, -1):
            after = last[np.searchsorted(layers[k + 1], self.combine.outer(layers[k], self.weights[k]))]
            alive = (after >= 0).any(axis=1)
            rows, inverse = np.unique(after[alive], axis=0, return_inverse=True)
            last = np.full(len(layers[k]), -1)
            last[alive] = inverse.reshape(-1)
            steps.insert(0, rows)
        if not len(steps[0]):
            network.add(self.scope[:1], np.full(network.counts[self.scope[0]], np.inf))
            return
        state: int | None = None
        for k, (i, rows) in enumerate(zip(self.scope, steps, strict=True)):
            final = k + 1 == len(steps)
            # Costs of the last step, or whether a state follows: (states, labels, states after).
            reached = len(ends) if final else len(steps[k + 1])
            what = f"{self.name}, of {len(rows)} and {reached} partial sums,"
            network.allowance.take(24 * rows.size * (1 if final else reached), what)
            if final:
                table = np.where(rows >= 0, ends[np.maximum(rows, 0)], np.inf)
            else:
                table = np.where(rows[..., None] == np.arange(reached), 0.0, np.inf)
            after_state = None if final or reached == 1 else network.auxiliary(reached)
            scope = [v for v in (state, i, after_state) if v is not None]
            network.add(scope, table.reshape([network.counts[v] for v in scope]))
            state = after_state


@dataclass(frozen=True)
class Automaton:
    """The least cost of a path of an automaton that reads the labels of the variables in turn.

    Attributes
    ----------
    name : str
        For messages.
    scope : list of int
    starts, ends : ndarray, shape (states,)
        Costs of beginning and of ending in a state.
    steps : list of ndarray, shape (states, labels, states)
        Costs of going on, for each variable.
    """

    name: str
    scope: list[int]
    starts: FloatArray
    ends: FloatArray
    steps: list[FloatArray]

    def add(self, network: CostNetwork) -> None:
        """Add it as a table or as a chain.

        Raises
        ------
        FormatError
            Tables are too large.
        """
        if len(self.scope) <= MOST_VARIABLES and network.entries(self.scope) <= network.whole_table:
            network.take(self.scope, self.name)
            costs = self.starts
            for step in self.steps:
                costs = (costs[..., :, None, None] + step).min(axis=-3)
            network.add(self.scope, (costs + self.ends).min(axis=-1))
            return
        states = [network.auxiliary(len(self.starts)) for _ in range(len(self.scope) + 1)]
        network.add(states[:1], self.starts)
        network.add(states[-1:], self.ends)
        for k, (i, step) in enumerate(zip(self.scope, self.steps, strict=True)):
            scope = [states[k], i, states[k + 1]]
            network.take(scope, self.name)
            network.add(scope, step)


Piece = Tabulated | Counted | Automaton
"""A part of a global cost function."""

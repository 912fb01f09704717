"""Cost functions of toulbar2 that automata, grammars, trees or arithmetic define, by their parameters in ``.wcsp`` files.

``wregular``
    ``states (state c)* (state c)* (state value state c)*``: the least cost of a path from a start to an end.
``sregular``, ``sregulardp``
    ``var|edit c states (state)* (state)* (state value state)*``: c for each variable to change until the
    automaton accepts, or with ``edit`` for each value to change, to drop and to insert (toulbar2 1.4 does
    without insertions behind the last variable, and may find more).
``sgrammar``, ``sgrammardp``
    ``var|weight c symbols values start`` and rules: ``0 A v``, ``1 A B C``, and with a cost at the end ``2 A
    v c``, ``3 A B C c``.  With ``var`` c for each variable to change until the grammar derives the word,
    otherwise the least sum of the rules' costs.
``MST``, ``smstdp``
    Each variable is the parent of its position in a spanning tree, the root its own.
``>=``, ``>``, ``<=``, ``<``, ``=`` on two variables
    ``constant delta``: x is compared with y + constant; what is missing is paid, more than delta is
    forbidden.
``disj``, ``sdisj`` on two variables
    ``a b c``: c unless x >= y + b or y >= x + a.  ``a b xmax ymax cx cy``: that, as a constraint unless x =
    xmax, which costs cx, or y = ymax.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.sparse.csgraph import shortest_path

from blocklp.problems.discrete.adjacency import sparse_graph
from blocklp.problems.mrf.cost_networks.cost_network import Cost
from blocklp.problems.mrf.cost_networks.counting import Automaton, Piece, Tabulated
from blocklp.problems.mrf.cost_networks.global_functions import Parameters
from blocklp.problems.mrf.words import EXACT
from blocklp.problems.qpbo.arrays import FloatArray, IntArray

MOST_STATES = 10**4
"""States of an automaton, or symbols of a grammar."""


def regular(p: Parameters) -> list[Piece]:
    """Return the least cost of a path of an automaton, weighted or with costs of changes."""
    weighted, edit = p.name == "wregular", False
    if not weighted:
        edit = p.choice("the metric", *(("var",) if p.name == "sregulardp" else ("var", "edit"))) == "edit"
    change = 0.0 if weighted else p.cost()
    states = p.integer("the number of states", 1, MOST_STATES)

    def state() -> int:
        return p.integer("a state", 0, states - 1)

    def cost() -> Cost:
        return p.cost("a cost", -EXACT) if weighted else 0.0

    edges: list[FloatArray] = []
    for what in ("starts", "ends"):
        costs = np.full(states, np.inf)
        for _ in range(p.number(what)):
            at = state()
            costs[at] = min(costs[at], cost())
        edges.append(costs)
    transitions = [(state(), p.value(), state(), cost()) for _ in range(p.number("transitions"))]
    p.network.allowance.take(3 * 8 * states**2 * sum(p.sizes), f"the tables of {p.here}")
    steps = []
    for size in p.sizes:
        step = np.full((states, size, states), np.inf)
        for before, value, after, price in transitions:
            if not weighted:
                step[before, :, after] = np.minimum(step[before, :, after], change)
            if value < size:
                step[before, value, after] = min(step[before, value, after], price)
        steps.append(step)
    starts, ends = edges
    if edit:
        inserting = _inserting(transitions, states, change)
        same = np.arange(states)
        for step in steps:
            step[same, :, same] = np.minimum(step[same, :, same], change)
        steps = [np.stack([(row[:, None, None] + step).min(axis=0) for row in inserting]) for step in steps]
        ends = (inserting + ends).min(axis=1)
    return [Automaton(p.here, p.scope, starts, ends, steps)]


def _inserting(transitions: list[tuple[int, int, int, Cost]], states: int, change: Cost) -> FloatArray:
    """Costs of the values that are inserted on the way from each state to each, ``(states, states)``."""
    before, after = np.array([(t[0], t[2]) for t in transitions], dtype=np.int64).reshape(-1, 2).T
    values = shortest_path(sparse_graph(np.ones(len(before)), before, after, states), unweighted=True)
    there = np.isfinite(values) & (values > 0)
    values[there] *= change
    return np.asarray(values)


def grammar(p: Parameters) -> list[Piece]:
    """Return the least cost of a derivation in Chomsky normal form."""
    changes = p.choice("the metric", "var", "weight") == "var"
    base = p.cost()
    symbols = p.integer("the number of symbols", 1, MOST_STATES)
    p.integer("the number of values", 1)
    start = p.integer("the start symbol", 0, symbols - 1)
    leaves: list[tuple[int, int, Cost]] = []
    rules: list[tuple[int, int, int, Cost]] = []

    def symbol() -> int:
        return p.integer("a symbol", 0, symbols - 1)

    for _ in range(p.number("rules")):
        kind = p.integer("the kind of a rule", 0, 3)
        own = symbol()
        if kind % 2:
            left, right = symbol(), symbol()
            rules.append((own, left, right, p.cost() if kind == 3 else 0.0))
        else:
            value = p.value()
            leaves.append((own, value, p.cost() if kind == 2 else 0.0))

    def evaluate(labels: IntArray) -> FloatArray:
        n = labels.shape[1]
        best: dict[tuple[int, int], FloatArray] = {}
        for i in range(n):
            best[i, i + 1] = np.full((symbols, len(labels)), np.inf)
            for own, value, price in leaves:
                other = base if changes else math.inf
                best[i, i + 1][own] = np.minimum(best[i, i + 1][own], np.where(labels[:, i] == value, price, other))
        for length in range(2, n + 1):
            for i in range(n - length + 1):
                found = np.full((symbols, len(labels)), np.inf)
                for middle in range(i + 1, i + length):
                    for own, left, right, price in rules:
                        found[own] = np.minimum(found[own], best[i, middle][left] + best[middle, i + length][right] + price)
                best[i, i + length] = found
        return best[0, n][start] if n else np.zeros(len(labels))

    return [Tabulated(p.here, p.scope, evaluate)]


def spanning_tree(p: Parameters) -> list[Piece]:
    """Return the constraint that the values are the parents of a spanning tree."""

    def evaluate(labels: IntArray) -> FloatArray:
        n = labels.shape[1]
        inside = (labels < n).all(axis=1)
        above = np.minimum(labels, n - 1)
        roots = (above == np.arange(n)).sum(axis=1)
        for _ in range(max(n - 1, 0).bit_length()):
            above = np.take_along_axis(above, above, axis=1)
        one = (above == above[:, :1]).all(axis=1)
        return np.where(inside & (roots == 1) & one, 0.0, np.inf)

    return [Tabulated(p.here, p.scope, evaluate)]


def comparison(p: Parameters) -> list[Piece]:
    """Return a soft comparison of two variables with a constant."""
    constant, most = p.integer("the constant"), p.integer("the tolerance")

    def evaluate(labels: IntArray) -> FloatArray:
        x, y = labels.T
        above, below = y + constant - x, x - constant - y
        gap = {
            ">=": above,
            ">": above + 1,
            "<=": below,
            "<": below + 1,
            "=": np.abs(above),
        }[p.name]
        return np.where(gap <= 0, 0.0, np.where((gap <= most) & (gap < p.barrier), gap, np.inf))

    return [Tabulated(p.here, p.scope, evaluate)]


def disjunction(p: Parameters) -> list[Piece]:
    """Return the cost of two activities that overlap."""
    after_x, after_y = p.integer("a duration"), p.integer("a duration")
    if p.name == "disj":
        cost = p.cost()
        return [Tabulated(p.here, p.scope, lambda labels: np.where(apart(labels, after_x, after_y), 0.0, cost))]
    last = np.array([p.integer("the last value", 0), p.integer("the last value", 0)])
    costs = np.array([p.cost(), p.cost()])

    def evaluate(labels: IntArray) -> FloatArray:
        out = labels == last
        fine = (labels <= last).all(axis=1) & (out.any(axis=1) | apart(labels, after_x, after_y))
        return np.where(fine, np.where(out, costs, 0.0).sum(axis=1), np.inf)

    return [Tabulated(p.here, p.scope, evaluate)]


def apart(labels: IntArray, after_x: int, after_y: int) -> IntArray:
    """Whether two activities do not overlap: x begins ``after_x`` after y, or y begins ``after_y`` after x.

    Parameters
    ----------
    labels : ndarray
        ``(labellings, 2)`` int64: when x and y begin.
    after_x, after_y : int
        Durations.

    Returns
    -------
    ndarray
        ``(labellings,)`` bool.
    """
    x, y = labels.T
    return np.asarray((x >= y + after_y) | (y >= x + after_x))


ARITHMETIC: dict[str, Callable[[Parameters], list[Piece]]] = {
    **dict.fromkeys((">=", ">", "<=", "<", "="), comparison),
    "disj": disjunction,
    "sdisj": disjunction,
}
"""Functions of two variables whose costs are differences of labels, or go with them."""

LANGUAGES: dict[str, Callable[[Parameters], list[Piece]]] = {
    **dict.fromkeys(("wregular", "sregular", "sregulardp"), regular),
    **dict.fromkeys(("sgrammar", "sgrammardp"), grammar),
    **dict.fromkeys(("MST", "smstdp"), spanning_tree),
}
"""Functions by what a word of labels is."""

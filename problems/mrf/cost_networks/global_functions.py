"""Global cost functions of toulbar2 by their names, from their parameters in the order of ``.wcsp`` files.

``(..)*`` is a number and so many of them, ``c`` a cost, ``v`` a value, ``x`` a variable of the file:

====================================== ==================================================================================
``salldiff``, ``salldiffdp``           ``var|dec|decbi c``: c for each variable to change, or for each pair of equal ones
``salldiffkp``, ``alldiff``            ``hard c``; ``(v)*``, values that may be taken more than once
``walldiff``, ``walldifferent``        ``hard|lin|quad c``
``sgcc``, ``sgccdp``, ``sgcckp``       ``var|dec|wdec|hard c (v least most)*``, after ``wdec`` with costs of shortage and excess;
                                       c for each variable to change (``sgcc var``), or for each one too few or too many
``wgcc``, ``gcc``                      ``hard|lin|quad c (v least most)*``; ``(v least most)*``
``ssame``, ``wsame``, ``wsamegcc``     ``c n n x.. x..``; ``hard|lin|quad c``; the same and ``(v least most)*``
``samong``, ``samongdp``, ``wamong``   ``var c least most (v)*``; ``hard|lin|quad c (v)* least most``
``wvaramong``                          ``hard c (v)*``: the last variable counts the others
``wsum``, ``wvarsum``                  ``hard|lin|quad c comparator side``; without a side, which is the last variable
``woverlap``                           ``hard|lin|quad c comparator side``: pairs of equal values that are not 0
``knapsack``, ``-p``, ``-v``           ``least`` and weights: of label 1; ``(v weight)*`` for each variable; ``(x v weight)*``
``knapsackc``                          that of ``knapsackp``, and ``((x v)*)*``: lists of labels of which at most one is taken
``clique``                             ``most`` and ``(v)*`` for each variable
``wdiverse``, ``wh-``, ``wtdiverse``   ``distance`` and a value for each variable
``max``, ``smaxdp``                    ``c (x v c)*``: the largest cost of all labels taken
====================================== ==================================================================================

Automata, grammars, trees and nested networks are in :mod:`blocklp.problems.mrf.cost_networks.languages`.

Source: the documentation of the format ``.cfn`` at toulbar2.github.io; J. H. M. Lee and K. L. Leung,
Consistency techniques for flow-based projection-safe global cost functions, Journal of Artificial
Intelligence Research 43 (2012).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from blocklp.problems.mrf.cost_networks.cost_network import Cost, CostNetwork
from blocklp.problems.mrf.cost_networks.counting import Counted, Piece, Tabulated
from blocklp.problems.mrf.words import EXACT, Words
from blocklp.problems.qpbo.arrays import FloatArray, IntArray

FARTHEST = 10**15
"""Coefficients and sides of linear functions at most, so that their sums are whole."""

COMPARATORS: dict[str, Callable[[int, int], int]] = {
    "==": lambda total, side: abs(total - side),
    "!=": lambda total, side: int(total == side),
    "<=": lambda total, side: max(0, total - side),
    "<": lambda total, side: max(0, total - side + 1),
    ">=": lambda total, side: max(0, side - total),
    ">": lambda total, side: max(0, side - total + 1),
}
"""By how much a total violates a comparison with a side."""


@dataclass
class Parameters:
    """The words after the name of a function.

    Attributes
    ----------
    name : str
    words : Words
        At its first parameter.
    scope : list of int
    network : CostNetwork
    barrier : float
        Costs of this value or more cannot be paid.
    """

    name: str
    words: Words
    scope: list[int]
    network: CostNetwork
    barrier: float

    @property
    def sizes(self) -> list[int]:
        """Numbers of labels."""
        return self.network.sizes(self.scope)

    @property
    def here(self) -> str:
        """File, line and name, for messages of what is built later."""
        return f"{self.name} of line {self.words.lines[max(self.words.at - 1, 0)]}"

    def integer(self, what: str, least: int = -FARTHEST, most: int = FARTHEST) -> int:
        """Return the next whole number.

        Parameters
        ----------
        what : str
            Its name, for messages.
        least, most : int
            The range, both ends included.

        Raises
        ------
        FormatError
            If the next word is no whole number in it, or there is none.
        """
        return self.words.integer(f"{what} of {self.name}", least, most)

    def cost(self, what: str = "the cost", least: int = 0) -> Cost:
        """Return the next cost; infinite if it cannot be paid."""
        if self.words.at < len(self.words.texts) and self.words.texts[self.words.at] == "inf":
            self.words.take(1, what)
            return math.inf
        value = self.words.integer(f"{what} of {self.name}", least)
        if value >= self.barrier:
            return math.inf
        if abs(value) > EXACT:
            problem = f"costs above {EXACT} are rounded in float64; divide all of them by a constant"
            raise self.words.error(self.words.at - 1, problem)
        return float(value)

    def choice(self, what: str, *allowed: str) -> str:
        """Return the next word, one of those allowed."""
        word = self.words.word(f"{what} of {self.name}")
        if word not in allowed:
            raise self.words.error(self.words.at - 1, f"{what} of {self.name} is one of {', '.join(allowed)}")
        return word

    def number(self, what: str) -> int:
        """Return the next count of things that follow."""
        return self.integer(f"the number of {what}", 0)

    def value(self) -> int:
        """Return the next value; one that no variable has is none's."""
        return self.integer("a value", 0)

    def values(self) -> list[int]:
        """Return a counted list of values."""
        return [self.value() for _ in range(self.number("values"))]

    def variable(self) -> int:
        """Return the position in the scope of the next variable, which is named by its number in the file."""
        variable = self.integer("a variable", 0)
        if variable not in self.scope:
            raise self.words.error(self.words.at - 1, f"this variable is not in the scope of {self.name}; add it there")
        return self.scope.index(variable)

    def bounds(self) -> list[tuple[int, int, int]]:
        """Return a counted list of values with their least and largest numbers."""
        count = self.number("bounds")
        return [(self.value(), self.integer("a lower bound", 0), self.integer("an upper bound", 0)) for _ in range(count)]

    def metric(self) -> Callable[[int], Cost]:
        """Return the cost of a violation: its metric and the cost of one."""
        kind = self.choice("the metric", "hard", "lin", "var", "dec", "quad")
        return scaled(self.cost(), kind)

    def taking(self, values: Iterable[int], sign: int = 1, variables: Iterable[int] | None = None) -> list[IntArray]:
        """Return the weights of a sum that counts the variables with one of some values.

        Parameters
        ----------
        values : iterable of int
            The values that count.
        sign : int
            What each counts as.
        variables : iterable of int, optional
            Positions in the scope of the variables that are counted; all by default.

        Returns
        -------
        list of ndarray
            Of each variable of the scope ``(labels,)`` int64.
        """
        chosen = list(values)
        counting = range(len(self.scope)) if variables is None else list(variables)
        return [
            sign * np.isin(np.arange(size), chosen).astype(np.int64) if k in counting else np.zeros(size, dtype=np.int64)
            for k, size in enumerate(self.sizes)
        ]

    def counted(self, weights: list[IntArray], cost: Callable[[int], Cost]) -> Counted:
        """Return a function of a weighted sum of this scope."""
        return Counted(self.here, self.scope, weights, cost)

    def within(self, value: int, least: int, most: float, cost: Callable[[int], Cost]) -> Counted:
        """Return the cost of how often a value is taken, if that should be ``least .. most`` times.

        Parameters
        ----------
        value : int
            The value.
        least, most : int and float
            How often it should be taken; ``most`` may be infinite.
        cost : callable
            Takes the number of times too few or too many.
        """
        return self.counted(self.taking([value]), lambda n: cost(int(max(0, least - n, n - most))))

    def all_values(self) -> range:
        """Return all values of the scope."""
        return range(max(self.sizes, default=0))


def scaled(cost: Cost, kind: str = "lin") -> Callable[[int], Cost]:
    """Return the cost of a gap, 0 at 0: the same for all (``hard``), proportional to it, or to its square (``quad``)."""
    power = {"hard": 0, "quad": 2}.get(kind, 1)
    return lambda gap: cost * gap**power if gap else 0.0


def all_different(p: Parameters) -> list[Piece]:
    """Return a soft or hard all-different: how often each value is taken."""
    if p.name == "alldiff":
        excepted = p.values()
        _no_changes(p)
        return [p.within(v, 0, 1, scaled(math.inf)) for v in p.all_values() if v not in excepted]
    if p.name.startswith("walldiff"):
        cost = p.metric()
        return [p.within(v, 0, 1, cost) for v in p.all_values()]
    kind, price = p.choice("the metric", "var", "dec", "decbi", "hard"), p.cost()
    each = scaled(math.inf if p.name == "salldiffkp" else price)
    if kind in ("var", "hard"):
        # All variables with a value but one have to change.
        return [p.within(v, 0, 1, each) for v in p.all_values()]
    return [p.counted(p.taking([v]), lambda n: each(n * (n - 1) // 2)) for v in p.all_values()]


def _no_changes(p: Parameters) -> None:
    """Refuse costs that a propagation has moved, which may follow on the same line."""
    same_line = p.words.at < len(p.words.texts) and p.words.lines[p.words.at] == p.words.lines[p.words.at - 1]
    if same_line and p.number("changed costs"):
        raise p.words.error(p.words.at - 1, f"changed costs (deltacosts) of {p.name} are not read; leave them out")


def cardinality(p: Parameters) -> list[Piece]:
    """Return a soft or hard global cardinality constraint: how often some values are taken."""
    if p.name == "gcc":
        bounds = p.bounds()
        _no_changes(p)
        return [p.within(*bound, scaled(math.inf)) for bound in bounds]
    if p.name == "wgcc":
        cost = p.metric()
        return [p.within(*bound, cost) for bound in p.bounds()]
    kind, base = p.choice("the metric", "var", "dec", "wdec", "hard"), p.cost()
    base = math.inf if p.name == "sgcckp" else base
    if kind == "wdec":
        count = p.number("bounds")
        return [_weighed(p) for _ in range(count)]
    bounds, each = p.bounds(), scaled(base)
    if kind != "var" or base == math.inf or p.name == "sgccdp":
        # toulbar2 adds up functions of one value each for sgccdp, whatever its metric is called.
        return [p.within(*bound, each) for bound in bounds]
    own = np.array(bounds, dtype=np.int64).reshape(-1, 3)

    def evaluate(labels: IntArray) -> FloatArray:
        n = (labels[:, :, None] == own[:, 0]).sum(axis=1)
        short, long = np.maximum(own[:, 1] - n, 0).sum(axis=1), np.maximum(n - own[:, 2], 0).sum(axis=1)
        return np.asarray(base * np.maximum(short, long), dtype=np.float64)

    return [Tabulated(p.here, p.scope, evaluate)]


def _weighed(p: Parameters) -> Counted:
    value, least, most = p.value(), p.integer("a lower bound", 0), p.integer("an upper bound", 0)
    short, long = scaled(p.cost("the cost of shortage")), scaled(p.cost("the cost of excess"))
    return p.counted(p.taking([value]), lambda n: short(max(0, least - n)) + long(max(0, n - most)))


def permutation(p: Parameters) -> list[Piece]:
    """Return the constraint that two lists of variables take the same values equally often."""
    if p.name == "ssame":
        each = scaled(p.cost())
        sizes = [p.number("variables of a list") for _ in range(2)]
        left, right = ([p.variable() for _ in range(size)] for size in sizes)
        cost = lambda n: each(max(0, n))  # noqa: E731 - one of each two differences is a change
    else:
        each = p.metric()
        half = len(p.scope) // 2
        if len(p.scope) % 2:
            raise p.words.error(p.words.at - 1, f"{p.name} needs an even number of variables; correct its scope")
        left, right = list(range(half)), list(range(half, 2 * half))
        cost = lambda n: each(abs(n))  # noqa: E731
    pieces: list[Piece] = [
        p.counted([a + b for a, b in zip(p.taking([v], 1, left), p.taking([v], -1, right), strict=True)], cost)
        for v in p.all_values()
    ]
    for value, least, most in p.bounds() if p.name == "wsamegcc" else []:
        for side in (left, right):
            weights = p.taking([value], 1, side)
            pieces.append(p.counted(weights, lambda n, least=least, most=most: each(max(0, least - n, n - most))))  # type: ignore[misc]
    return pieces


def among(p: Parameters) -> list[Piece]:
    """Return the cost of how many variables take one of some values."""
    if p.name == "wvaramong":
        p.choice("the metric", "hard")
        cost, values = scaled(p.cost(), "hard"), p.values()
        last = len(p.scope) - 1
        weights = p.taking(values, 1, range(last))
        weights[last] = -np.arange(p.sizes[last])
        return [p.counted(weights, cost)]
    if p.name == "wamong":
        cost, values = p.metric(), p.values()
        least, most = p.integer("the lower bound", 0), p.integer("the upper bound", 0)
    else:
        p.choice("the metric", "var")
        cost = scaled(p.cost())
        least, most = p.integer("the lower bound", 0), p.integer("the upper bound", 0)
        values = p.values()
    return [p.counted(p.taking(values), lambda n: cost(max(0, least - n, n - most)))]


def weighted_sum(p: Parameters) -> list[Piece]:
    """Return the cost of a sum of labels that is compared with a number or with the last variable."""
    cost = p.metric()
    gap = COMPARATORS[p.choice("the comparator", *COMPARATORS)]
    weights = [np.arange(size) for size in p.sizes]
    if p.name == "wvarsum":
        weights[-1] = -weights[-1]
        return [p.counted(weights, lambda total: cost(gap(total, 0)))]
    side = p.integer("the right-hand side")
    return [p.counted(weights, lambda total: cost(gap(total, side)))]


def overlap(p: Parameters) -> list[Piece]:
    """Return the cost of how many pairs of two lists of variables are equal and not 0."""
    cost = p.metric()
    gap = COMPARATORS[p.choice("the comparator", *COMPARATORS)]
    side, half = p.integer("the right-hand side"), len(p.scope) // 2

    def evaluate(labels: IntArray) -> FloatArray:
        first, second = labels[:, :half], labels[:, half : 2 * half]
        costs = np.array([cost(gap(n, side)) for n in range(half + 1)])
        return np.asarray(costs[((first == second) & (first != 0)).sum(axis=1)])

    return [Tabulated(p.here, p.scope, evaluate)]


def knapsack(p: Parameters) -> list[Piece]:
    """Return a linear constraint: weights of the labels taken add up to at least a number; and conflicts of labels."""
    least = p.integer("the capacity")
    weights = [np.zeros(size, dtype=np.int64) for size in p.sizes]
    if p.name == "knapsackv":
        entries = [(p.variable(), p.value(), p.integer("a weight")) for _ in range(p.number("weights"))]
    elif p.name in ("knapsackp", "knapsackc"):
        entries = [(k, p.value(), p.integer("a weight")) for k in range(len(p.scope)) for _ in range(p.number("weights"))]
    else:
        entries = [(k, 1, p.integer("a weight")) for k in range(len(p.scope))]
    for k, value, weight in entries:
        if value < weights[k].size:
            weights[k][value] += weight
    pieces: list[Piece] = [p.counted(weights, lambda total: 0.0 if total >= least else math.inf)]
    for _ in range(p.number("at-most-one constraints") if p.name == "knapsackc" else 0):
        taken = [np.zeros(size, dtype=np.int64) for size in p.sizes]
        for k, value in [(p.variable(), p.value()) for _ in range(p.number("labels"))]:
            if value < taken[k].size:
                taken[k][value] = 1
        pieces.append(p.counted(taken, lambda n: 0.0 if n <= 1 else math.inf))
    return pieces


def clique(p: Parameters) -> list[Piece]:
    """Return the constraint that at most some number of variables take one of their own values."""
    most = p.integer("the right-hand side", 0)
    weights = [np.isin(np.arange(size), p.values()).astype(np.int64) for size in p.sizes]
    return [p.counted(weights, lambda n: 0.0 if n <= most else math.inf)]


def diverse(p: Parameters) -> list[Piece]:
    """Return the constraint that a labelling differs from a given one in at least some number of variables."""
    distance = p.integer("the distance", 0)
    weights = [(np.arange(size) != p.value()).astype(np.int64) for size in p.sizes]
    return [p.counted(weights, lambda n: 0.0 if n >= distance else math.inf)]


def maximum(p: Parameters) -> list[Piece]:
    """Return the largest cost of the labels taken."""
    usual = p.cost("the default cost")
    given = [(p.variable(), p.value(), p.cost()) for _ in range(p.number("costs"))]
    costs = [np.full(size, usual) for size in p.sizes]
    for k, value, cost in given:
        if value < costs[k].size:
            costs[k][value] = cost
    # Infinite costs are the last of all, and weights are whole.
    kinds = np.unique(np.concatenate(costs)) if costs else np.zeros(1)
    weights = [np.searchsorted(kinds, own) for own in costs]
    return [Counted(p.here, p.scope, weights, lambda kind: float(kinds[kind]), np.maximum)]


FUNCTIONS: dict[str, Callable[[Parameters], list[Piece]]] = {
    **dict.fromkeys(("alldiff", "salldiff", "salldiffdp", "salldiffkp", "walldiff", "walldifferent"), all_different),
    **dict.fromkeys(("gcc", "sgcc", "sgccdp", "sgcckp", "wgcc"), cardinality),
    **dict.fromkeys(("ssame", "wsame", "wsamegcc"), permutation),
    **dict.fromkeys(("samong", "samongdp", "wamong", "wvaramong"), among),
    **dict.fromkeys(("wsum", "wvarsum"), weighted_sum),
    **dict.fromkeys(("wdiverse", "whdiverse", "wtdiverse"), diverse),
    **dict.fromkeys(("knapsack", "knapsackc", "knapsackp", "knapsackv"), knapsack),
    **dict.fromkeys(("max", "smaxdp"), maximum),
    "clique": clique,
    "woverlap": overlap,
}
"""Global cost functions by name."""

r"""Proofs of minima that can be checked without the solver: a tree of fixings, with multipliers at its leaves.

At a leaf the function of the free variables is :math:`\sum a_i y_i + \sum p_{ij} y_i y_j + k`.  For any multipliers
:math:`(\alpha, \beta, \zeta)` of its pairs

.. math:: k + \sum_{ij} \min(0, \alpha_{ij}, \beta_{ij}, \alpha_{ij} + \beta_{ij} + \zeta_{ij})
          + \sum_{ij} \min(0, p_{ij} - \zeta_{ij})
          + \sum_i \min\Bigl(0, a_i - \sum_{j > i} \alpha_{ij} - \sum_{j < i} \beta_{ji}\Bigr)

is a lower bound, which :func:`check_proof` evaluates in rational numbers.  A branch covers what it splits, because a variable is
0 or 1.

Nothing here knows how proofs are found (:func:`blocklp.problems.qpbo.proving.prove_minimum` is one way), and nothing is rounded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from blocklp.errors import FormatError, ShapeError
from blocklp.problems.qpbo.instance import Qubo


@dataclass(frozen=True)
class Leaf:
    """A part of the labellings that multipliers bound.

    Attributes
    ----------
    multipliers : tuple of (float, float, float)
        For each pair of free variables, in the order of ``Qubo.edges``; none at all are zeros.
    """

    multipliers: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True)
class Branch:
    """A part that is split by a variable: where it is 0, and where it is 1."""

    variable: int
    zero: Branch | Leaf
    one: Branch | Leaf


@dataclass(frozen=True)
class ProofVerdict:
    """What a proof proves.

    Attributes
    ----------
    energy, bound : Fraction
        The exact value of the labels, and the least of the exact bounds of the leaves, raised to the next value that is possible.
    leaves : int
        Number of leaves.
    """

    energy: Fraction
    bound: Fraction
    leaves: int

    @property
    def optimal(self) -> bool:
        """Whether the labels are proved to be a minimiser."""
        return self.bound >= self.energy


def check_proof(qubo: Qubo, labels: ArrayLike, proof: Branch | Leaf) -> ProofVerdict:
    """Evaluate a proof in rational numbers, trusting nothing that it says.

    For a heaviest independent set the function is ``graph.to_qubo()``, whose minimum is minus its weight, and the labels are its
    members: no set weighs more than minus the verdict's bound.  That the members are independent is for ``graph.independent`` to say.

    Parameters
    ----------
    qubo : Qubo
        The function.
    labels : array_like, shape (n,)
        The labels that are claimed to be a minimiser.
    proof : Branch or Leaf
        The tree.

    Raises
    ------
    FormatError
        The proof does not fit the function: a variable that does not exist or is fixed already, the wrong number of multipliers, or
        ones that are not finite.
    ShapeError
        The labels are not 0 or 1, one for each variable.
    """
    checker = Rational(qubo)
    energy = checker.energy(labels)
    fixed = [-1] * qubo.n
    least, leaves = None, 0
    # A stack of work instead of calls: forged trees may be deep.
    work: list[tuple[str, Any]] = [("visit", proof)]
    while work:
        kind, item = work.pop()
        if kind == "set":
            fixed[item[0]] = item[1]
        elif isinstance(item, Leaf):
            value = checker.leaf(fixed, item)
            least, leaves = value if least is None else min(least, value), leaves + 1
        elif isinstance(item, Branch):
            v = item.variable
            if type(v) is not int or not 0 <= v < qubo.n or fixed[v] >= 0:
                raise FormatError(f"the proof branches on variable {v}, which does not exist or is fixed there already")
            work += [("set", (v, -1)), ("visit", item.one), ("set", (v, 1)), ("visit", item.zero), ("set", (v, 0))]
        else:
            raise FormatError(f"the proof holds {item!r}; it is made of Branch and Leaf")
    assert least is not None
    bound = checker.raised(least)
    return ProofVerdict(energy, bound, leaves)


class Rational:
    """A function with rational coefficients.

    Parameters
    ----------
    qubo : Qubo
        The function.

    Attributes
    ----------
    spacing : Fraction
        All values are the offset plus multiples of this; zero if there is one value only.
    """

    def __init__(self, qubo: Qubo) -> None:
        given = [Fraction(c) for c in (qubo.offset, *qubo.linear.tolist(), *qubo.quadratic.tolist())]
        # Integers over a common denominator: faster than fractions of their own.
        self._common = math.lcm(*(c.denominator for c in given))
        self._offset, *whole = (int(c * self._common) for c in given)
        self._linear = whole[: qubo.n]
        self._pairs = [(a, b, p) for (a, b), p in zip(qubo.edges.tolist(), whole[qubo.n :], strict=True)]
        self.spacing = Fraction(math.gcd(*whole), self._common)

    def energy(self, labels: ArrayLike) -> Fraction:
        """Value of labels, shape (n,)."""
        given = np.asarray(labels)
        if given.shape != (len(self._linear),) or not np.isin(given, (0, 1)).all():
            raise ShapeError(f"labels must be {len(self._linear)} numbers, 0 or 1")
        y = given.astype(int).tolist()
        alone = sum(c for c, v in zip(self._linear, y, strict=True) if v)
        return Fraction(self._offset + alone + sum(p for a, b, p in self._pairs if y[a] and y[b]), self._common)

    def raised(self, bound: Fraction) -> Fraction:
        """The least possible value that is not below a bound."""
        if not self.spacing:
            return bound
        offset = Fraction(self._offset, self._common)
        return offset + math.ceil((bound - offset) / self.spacing) * self.spacing

    def leaf(self, fixed: list[int], leaf: Leaf) -> Fraction:
        """The formula of the module's text, where -1 is free.

        Raises
        ------
        FormatError
            The multipliers do not fit.
        """
        total: int | Fraction = self._offset + sum(c for c, f in zip(self._linear, fixed, strict=True) if f == 1)
        residual: list[int | Fraction] = [c if f < 0 else 0 for c, f in zip(self._linear, fixed, strict=True)]
        zero, free = Fraction(0), []
        for a, b, p in self._pairs:
            if fixed[a] < 0 and fixed[b] < 0:
                free.append((a, b, p))
            elif fixed[a] != 0 and fixed[b] != 0:
                if fixed[a] == 1 == fixed[b]:
                    total += p
                else:
                    residual[a if fixed[a] < 0 else b] += p
        if len(leaf.multipliers) != len(free) and leaf.multipliers:
            raise FormatError(f"a leaf has multipliers of {len(leaf.multipliers)} pairs; {len(free)} are free there")
        for (a, b, p), given in zip(free, leaf.multipliers or ((0.0, 0.0, 0.0),) * len(free), strict=True):
            try:
                first, second, product = (self._common * Fraction(number) for number in given)
            except (TypeError, ValueError, OverflowError):
                raise FormatError(f"a leaf has the multipliers {given}; give three finite numbers a pair") from None
            total += min(zero, first, second, first + second + product) + min(zero, p - product)
            residual[a] -= first
            residual[b] -= second
        return (Fraction(total) + sum((r for r in residual if r < 0), zero)) / self._common


def log_line(fixings: tuple[tuple[int, int], ...], found: int | Leaf) -> str:
    """Return a line of the log of a search: the fixings of a node in their order, and its leaf or the variable that splits it."""
    item = found if isinstance(found, int) else [list(m) for m in found.multipliers]
    return json.dumps([[list(pair) for pair in fixings], item])


def proof_from_log(lines: Iterable[str]) -> Branch | Leaf:
    """Put the proof together that the log of a search holds, whose lines may come in any order.

    Raises
    ------
    FormatError
        A line is none of a log, or parts are missing: the search did not end, or the log is not whole.
    """
    found: dict[tuple[tuple[int, int], ...], int | Leaf] = {}
    try:
        for line in lines:
            fixings, item = json.loads(line)
            leaf = item if type(item) is int else Leaf(tuple((float(a), float(b), float(c)) for a, b, c in item))
            found[tuple((int(v), int(x)) for v, x in fixings)] = leaf
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise FormatError(f"not the log of a proof: {error}") from error
    built: dict[tuple[tuple[int, int], ...], Branch | Leaf] = {}
    for fixings in sorted(found, key=len, reverse=True):
        item = found[fixings]
        if isinstance(item, Leaf):
            built[fixings] = item
            continue
        try:
            built[fixings] = Branch(item, *(built.pop((*fixings, (item, value))) for value in (0, 1)))
        except KeyError as error:
            raise FormatError(f"the log lacks the part where variables have the values {error}; has the search ended?") from None
    if list(built) != [()]:
        raise FormatError("the log lacks the root, or has parts that belong to no other; has the search ended?")
    return built[()]

r"""Proofs of minima that can be checked without the solver: a tree of fixings, with multipliers at its leaves.

At a leaf the function of the free variables is :math:`\sum a_i y_i + \sum p_{ij} y_i y_j + k`.  For any multipliers
:math:`(\alpha, \beta, \zeta)` of its pairs

.. math:: k + \sum_{ij} \min(0, \alpha_{ij}, \beta_{ij}, \alpha_{ij} + \beta_{ij} + \zeta_{ij})
          + \sum_{ij} \min(0, p_{ij} - \zeta_{ij})
          + \sum_i \min\Bigl(0, a_i - \sum_{j > i} \alpha_{ij} - \sum_{j < i} \beta_{ji}\Bigr)

is a lower bound, which :func:`check_proof` evaluates in rational numbers.

Another kind of leaf bounds the same function in spins :math:`s = 2 y - 1` with :math:`s_0 = 1`, where it is :math:`s^\top C s + k`.
For any u, and prices :math:`\gamma_t \ge 0` of triangle inequalities
:math:`1 + a s_i s_j + b s_i s_k + a b\, s_j s_k \ge 0` with :math:`a, b \in \{-1, 1\}`, which all spins satisfy,

.. math:: k + \sum_i u_i - \sum_t \gamma_t - \sum_i d_i, \qquad
          Z = C - \sum_t \gamma_t T_t - \mathrm{Diag}(u), \qquad
          d_i = \max\Bigl(0, \sum_{j \ne i} |E_{ij}| - E_{ii}\Bigr), \quad E = Z - R R^\top

is a lower bound for any matrix R: Z with d added to its diagonal is :math:`R R^\top` plus a matrix with a dominant diagonal.  R comes
from a Cholesky factorisation in floating point, rounded to integers; all else is calculated in integers.

A branch covers what it splits, because a variable is 0 or 1.

Nothing here knows how proofs are found (:func:`blocklp.problems.qpbo.proving.prove_minimum` is one way), and nothing is rounded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from blocklp.errors import FormatError, ShapeError
from blocklp.problems.qpbo.instance import Qubo

DIGITS = 50
"""Bits of coefficients and of factors of semidefinite leaves."""


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
class SemidefiniteLeaf:
    """A part of the labellings that a positive semidefinite matrix bounds.

    Attributes
    ----------
    diagonal : tuple of float
        Multipliers of the squares of spins: of the constant one, then of the free variables in their order.
    triangles : tuple of (int, int, int, int, int, float)
        Nodes i < j < k, where 0 is the constant and free variables count from 1; the signs a and b; and the price of each.
    """

    diagonal: tuple[float, ...]
    triangles: tuple[tuple[int, int, int, int, int, float], ...]


@dataclass(frozen=True)
class Branch:
    """A part that is split by a variable: where it is 0, and where it is 1."""

    variable: int
    zero: Proof
    one: Proof


Proof: TypeAlias = Branch | Leaf | SemidefiniteLeaf
"""A tree."""


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


def check_proof(qubo: Qubo, labels: ArrayLike, proof: Proof) -> ProofVerdict:
    """Evaluate a proof in rational numbers, trusting nothing that it says.

    For a heaviest independent set the function is ``graph.to_qubo()``, whose minimum is minus its weight, and the labels are its
    members: no set weighs more than minus the verdict's bound.  That the members are independent is for ``graph.independent`` to say.

    Parameters
    ----------
    qubo : Qubo
        The function.
    labels : array_like, shape (n,)
        The labels that are claimed to be a minimiser.
    proof : Branch, Leaf or SemidefiniteLeaf
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
        elif isinstance(item, Leaf | SemidefiniteLeaf):
            value = checker.leaf(fixed, item) if isinstance(item, Leaf) else checker.semidefinite(fixed, item)
            least, leaves = value if least is None else min(least, value), leaves + 1
        elif isinstance(item, Branch):
            v = item.variable
            if type(v) is not int or not 0 <= v < qubo.n or fixed[v] >= 0:
                raise FormatError(f"the proof branches on variable {v}, which does not exist or is fixed there already")
            work += [("set", (v, -1)), ("visit", item.one), ("set", (v, 1)), ("visit", item.zero), ("set", (v, 0))]
        else:
            raise FormatError(f"the proof holds {item!r}; it is made of Branch, Leaf and SemidefiniteLeaf")
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
        total, residual, free = self._restricted(fixed)
        zero = Fraction(0)
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

    def _restricted(self, fixed: list[int]) -> tuple[int | Fraction, list[int | Fraction], list[tuple[int, int, int]]]:
        """The constant, the linear coefficients and the pairs that fixings leave."""
        total: int | Fraction = self._offset + sum(c for c, f in zip(self._linear, fixed, strict=True) if f == 1)
        residual: list[int | Fraction] = [c if f < 0 else 0 for c, f in zip(self._linear, fixed, strict=True)]
        free = []
        for a, b, p in self._pairs:
            if fixed[a] < 0 and fixed[b] < 0:
                free.append((a, b, p))
            elif fixed[a] != 0 and fixed[b] != 0:
                if fixed[a] == 1 == fixed[b]:
                    total += p
                else:
                    residual[a if fixed[a] < 0 else b] += p
        return total, residual, free

    def semidefinite(self, fixed: list[int], leaf: SemidefiniteLeaf) -> Fraction:
        """The second formula of the module's text, where -1 is free.

        Raises
        ------
        FormatError
            The multipliers do not fit.
        """
        total, residual, free = self._restricted(fixed)
        place = {v: k for k, v in enumerate((v for v, f in enumerate(fixed) if f < 0), 1)}
        n = len(place) + 1
        # Eight times the function has whole coefficients in spins; those of the proof are rounded to a grid below them.
        matrix = np.zeros((n, n), dtype=object)
        for a, b, p in free:
            i, j = place[a], place[b]
            for first, second in ((i, j), (0, i), (0, j)):
                matrix[first, second] += p
                matrix[second, first] += p
        for v, i in place.items():
            matrix[0, i] += 2 * residual[v]
            matrix[i, 0] += 2 * residual[v]
        constant = 8 * total + 4 * sum(residual[v] for v in place) + 2 * sum(p for _, _, p in free)
        grid = 1 << max(0, DIGITS - int(abs(matrix).max()).bit_length())
        unit = 8 * self._common * grid
        matrix = matrix * grid
        if len(leaf.diagonal) != n:
            raise FormatError(f"a leaf has multipliers of {len(leaf.diagonal)} squares; {n} spins are there")
        bound = constant * grid
        try:
            for i, number in enumerate(leaf.diagonal):
                whole = math.floor(Fraction(number) * unit)
                matrix[i, i] -= whole
                bound += whole
            for i, j, k, a, b, price in leaf.triangles:
                half = math.floor(Fraction(price) * unit / 2)
                if any(type(v) is not int for v in (i, j, k, a, b)) or not 0 <= i < j < k < n or {a, b} - {-1, 1} or half < 0:
                    raise ValueError
                for first, second, sign in ((i, j, a), (i, k, b), (j, k, a * b)):
                    matrix[first, second] -= half * sign
                    matrix[second, first] -= half * sign
                bound -= 2 * half
        except (TypeError, ValueError, OverflowError):
            what = "finite squares, and triangles of three nodes in order, two signs and a price that is not negative"
            raise FormatError(f"a leaf has multipliers that do not fit; give {what}") from None
        return Fraction(bound - _missing(matrix), unit)


def _missing(matrix: Any) -> int:
    """What the diagonal of a symmetric matrix of integers lacks at most, in sum, to be positive semidefinite."""
    factor, shift = np.zeros(matrix.shape), 0
    try:
        near = matrix.astype(np.float64)
        # The factorisation is a guess, whose residual is exact.
        factor = np.linalg.cholesky(near + 1e-14 * len(near) * np.eye(len(near)) * abs(near).max())
        shift = max(0, DIGITS - math.frexp(float(abs(factor).max()))[1])
    except (np.linalg.LinAlgError, OverflowError):
        pass  # then nothing but its own diagonal can prove it
    whole = np.vectorize(int, otypes=[object])(np.rint(np.ldexp(factor, shift)))
    residual = matrix * (1 << 2 * shift) - whole.dot(whole.T)
    diagonal = residual.diagonal()
    lacking = np.maximum(0, abs(residual).sum(1) - abs(diagonal) - diagonal)
    return sum(-(-int(d) // (1 << 2 * shift)) for d in lacking)


def log_line(fixings: tuple[tuple[int, int], ...], found: int | Leaf | SemidefiniteLeaf) -> str:
    """Return a line of the log of a search: the fixings of a node in their order, and its leaf or the variable that splits it."""
    item: Any = found
    if isinstance(found, Leaf):
        item = [list(m) for m in found.multipliers]
    elif isinstance(found, SemidefiniteLeaf):
        item = {"diagonal": list(found.diagonal), "triangles": [list(t) for t in found.triangles]}
    return json.dumps([[list(pair) for pair in fixings], item])


def _item(item: Any) -> int | Leaf | SemidefiniteLeaf:
    """What a line says of its node."""
    if type(item) is int:
        return item
    if isinstance(item, dict):
        triangles = ((int(i), int(j), int(k), int(a), int(b), float(price)) for i, j, k, a, b, price in item["triangles"])
        return SemidefiniteLeaf(tuple(map(float, item["diagonal"])), tuple(triangles))
    return Leaf(tuple((float(a), float(b), float(c)) for a, b, c in item))


def proof_from_log(lines: Iterable[str]) -> Proof:
    """Put the proof together that the log of a search holds, whose lines may come in any order.

    Raises
    ------
    FormatError
        A line is none of a log, or parts are missing: the search did not end, or the log is not whole.
    """
    found: dict[tuple[tuple[int, int], ...], int | Leaf | SemidefiniteLeaf] = {}
    try:
        for line in lines:
            fixings, item = json.loads(line)
            found[tuple((int(v), int(x)) for v, x in fixings)] = _item(item)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise FormatError(f"not the log of a proof: {error}") from error
    built: dict[tuple[tuple[int, int], ...], Proof] = {}
    for fixings in sorted(found, key=len, reverse=True):
        item = found[fixings]
        if not isinstance(item, int):
            built[fixings] = item
            continue
        try:
            built[fixings] = Branch(item, *(built.pop((*fixings, (item, value))) for value in (0, 1)))
        except KeyError as error:
            raise FormatError(f"the log lacks the part where variables have the values {error}; has the search ended?") from None
    if list(built) != [()]:
        raise FormatError("the log lacks the root, or has parts that belong to no other; has the search ended?")
    return built[()]

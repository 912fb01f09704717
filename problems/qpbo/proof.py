r"""Proofs of minima that can be checked without the solver: a tree of fixings, with multipliers at its leaves.

At a leaf the function of the free variables is :math:`\sum a_i y_i + \sum p_{ij} y_i y_j + k`.  For any multipliers
:math:`(\alpha, \beta, \zeta)` of its pairs

.. math:: k + \sum_{ij} \min(0, \alpha_{ij}, \beta_{ij}, \alpha_{ij} + \beta_{ij} + \zeta_{ij})
          + \sum_{ij} \min(0, p_{ij} - \zeta_{ij})
          + \sum_i \min\Bigl(0, a_i - \sum_{j > i} \alpha_{ij} - \sum_{j < i} \beta_{ji}\Bigr)

is a lower bound, which :func:`check_proof` evaluates in rational numbers.  A branch covers what it splits, because a variable is
0 or 1.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from blocklp.errors import FormatError, OptionError, ShapeError
from blocklp.problems.qpbo.arrays import FloatArray
from blocklp.problems.qpbo.instance import Qubo
from blocklp.problems.qpbo.presolve import LabelArray, fold
from blocklp.problems.qpbo.relaxation import roof_duality_model

PASSES = 200


@dataclass(frozen=True)
class Leaf:
    """A part of the labellings that multipliers bound.

    Attributes
    ----------
    multipliers : tuple of (float, float, float)
        For each pair of free variables, in the order of ``Qubo.edges``.
    """

    multipliers: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True)
class Branch:
    """A part that is split by a variable: where it is 0, and where it is 1."""

    variable: int
    zero: Branch | Leaf
    one: Branch | Leaf


@dataclass(frozen=True)
class Verdict:
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


def prove_minimum(qubo: Qubo, labels: ArrayLike, max_leaves: int = 2000) -> Branch | Leaf:
    """Build a proof that labels are a minimiser, by roof duality in a tree; for small functions, or those that it is tight for.

    Parameters
    ----------
    qubo : Qubo
        The function.
    labels : array_like, shape (n,)
        A minimiser, as from :func:`blocklp.problems.qpbo.solve_qpbo_exactly`.
    max_leaves : int
        Leaves at most.

    Returns
    -------
    Branch or Leaf
        For :func:`check_proof`, which alone says whether it succeeded: with coefficients that are not multiples of a common number,
        parts within rounding of the minimum are split until nothing is free.

    Raises
    ------
    OptionError
        More leaves are needed.
    """
    checker = _Checker(qubo)
    goal = checker.energy(labels) - checker.spacing
    built = 0

    def grow(fixed: LabelArray) -> Branch | Leaf:
        nonlocal built
        leaf, y = _bounded(qubo, fixed, float(goal))
        value = checker.leaf(fixed.tolist(), leaf)
        if value > goal or (fixed >= 0).all():
            built += 1
            if built > max_leaves:
                raise OptionError(f"the proof needs more than {max_leaves} leaves; raise max_leaves, or prove a smaller instance")
            return leaf
        # The strongest of the undecided variables.
        size = np.bincount(qubo.edges.ravel(), np.repeat(np.abs(qubo.quadratic), 2), qubo.n) + np.abs(qubo.linear)
        variable = int(np.where(fixed < 0, size * (1 + 4 * y * (1 - y)), -1).argmax())
        parts = []
        for label in (0, 1):
            below = fixed.copy()
            below[variable] = label
            parts.append(grow(below))
        return Branch(variable, *parts)

    return grow(np.full(qubo.n, -1, dtype=np.int8))


def _bounded(qubo: Qubo, fixed: LabelArray, goal: float) -> tuple[Leaf, FloatArray]:
    """Multipliers of roof duality, and its point."""
    point = np.where(fixed < 0, 0.5, fixed)
    rest, free, _ = fold(qubo, fixed)
    if rest is None or not len(rest.edges):
        return Leaf(()), point
    solution = roof_duality_model(rest).solve(tol=1e-6, passes=PASSES)
    duals = next(d for d in solution.state.duals.values() if d.shape[2] == 3)
    point[free] = solution.x["y"][0].numpy()
    return Leaf(tuple((float(a), float(b), float(c)) for a, b, c in duals[0].tolist())), point


def check_proof(qubo: Qubo, labels: ArrayLike, proof: Branch | Leaf) -> Verdict:
    """Evaluate a proof in rational numbers, trusting nothing that it says.

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
    checker = _Checker(qubo)
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
            if not (isinstance(v, int) and 0 <= v < qubo.n) or fixed[v] >= 0:
                raise FormatError(f"the proof branches on variable {v}, which does not exist or is fixed there already")
            work += [("set", (v, -1)), ("visit", item.one), ("set", (v, 1)), ("visit", item.zero), ("set", (v, 0))]
        else:
            raise FormatError(f"the proof holds {item!r}; it is made of Branch and Leaf")
    assert least is not None
    bound = checker.raised(least)
    return Verdict(energy, bound, leaves)


class _Checker:
    """Rational coefficients of a function, and the spacing of its values."""

    def __init__(self, qubo: Qubo) -> None:
        self.offset = Fraction(qubo.offset)
        self.linear = [Fraction(c) for c in qubo.linear.tolist()]
        self.pairs = [(a, b, Fraction(p)) for (a, b), p in zip(qubo.edges.tolist(), qubo.quadratic.tolist(), strict=True)]
        numbers = [c for c in (*self.linear, *(p for _, _, p in self.pairs)) if c]
        common = math.lcm(*(c.denominator for c in numbers))
        self.spacing = Fraction(math.gcd(*(int(c * common) for c in numbers)), common)

    def energy(self, labels: ArrayLike) -> Fraction:
        given = np.asarray(labels)
        if given.shape != (len(self.linear),) or not np.isin(given, (0, 1)).all():
            raise ShapeError(f"labels must be {len(self.linear)} numbers, 0 or 1")
        y = given.astype(int).tolist()
        alone = sum((c for c, v in zip(self.linear, y, strict=True) if v), self.offset)
        return alone + sum((p for a, b, p in self.pairs if y[a] and y[b]), Fraction(0))

    def raised(self, bound: Fraction) -> Fraction:
        """The least possible value that is not below a bound."""
        return self.offset + math.ceil((bound - self.offset) / self.spacing) * self.spacing if self.spacing else bound

    def leaf(self, fixed: list[int], leaf: Leaf) -> Fraction:
        """The formula of the module's text."""
        total = self.offset + sum((c for c, f in zip(self.linear, fixed, strict=True) if f == 1), Fraction(0))
        residual = [c if f < 0 else Fraction(0) for c, f in zip(self.linear, fixed, strict=True)]
        free = []
        for a, b, p in self.pairs:
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
            if len(given) != 3 or not all(math.isfinite(x) for x in given):
                raise FormatError(f"a leaf has the multipliers {given}; give three finite numbers a pair")
            first, second, product = map(Fraction, given)
            total += min(Fraction(0), first, second, first + second + product) + min(Fraction(0), p - product)
            residual[a] -= first
            residual[b] -= second
        return total + sum((min(Fraction(0), r) for r in residual), Fraction(0))


def proof_to_json(proof: Branch | Leaf) -> str:
    """Write a proof as JSON: ``[variable, zero, one]`` or ``{"multipliers": [...]}``; numbers are exact."""

    def plain(node: Branch | Leaf) -> Any:
        if isinstance(node, Leaf):
            return {"multipliers": [list(m) for m in node.multipliers]}
        return [node.variable, plain(node.zero), plain(node.one)]

    return json.dumps(plain(proof))


def proof_from_json(text: str) -> Branch | Leaf:
    """Read what :func:`proof_to_json` wrote.

    Raises
    ------
    FormatError
        The text is not such a proof.
    """

    def built(data: Any) -> Branch | Leaf:
        if isinstance(data, dict):
            return Leaf(tuple((float(a), float(b), float(c)) for a, b, c in data["multipliers"]))
        variable, zero, one = data
        return Branch(int(variable), built(zero), built(one))

    try:
        return built(json.loads(text))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise FormatError(f"not a proof: {error}") from error

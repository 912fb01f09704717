"""The optimum of a linear program as a fraction: HiGHS finds a basis, rational arithmetic proves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import highspy
import numpy as np
from scipy.sparse import csr_array

from bench.soak.trial import Skipped
from blocklp.general_solvers.small_lp import quiet_highs

Row = dict[int, Fraction]


@dataclass
class Program:
    """Minimise ``cost . x + offset`` subject to rows ``(coefficients, least, most)`` and finite bounds; None for no side."""

    cost: list[Fraction] = field(default_factory=list)
    lower: list[Fraction] = field(default_factory=list)
    upper: list[Fraction] = field(default_factory=list)
    rows: list[tuple[Row, Fraction | None, Fraction | None]] = field(default_factory=list)
    offset: Fraction = Fraction(0)

    def column(self, cost: Fraction, lower: Fraction, upper: Fraction) -> int:
        """Add a variable, return its number."""
        self.cost.append(cost)
        self.lower.append(lower)
        self.upper.append(upper)
        return len(self.cost) - 1

    def row(self, entries: Mapping[int, Fraction], least: Fraction | None, most: Fraction | None) -> None:
        """Add a row."""
        self.rows.append(({j: v for j, v in entries.items() if v}, least, most))

    def value(self, x: list[Fraction]) -> Fraction:
        """The objective of a point."""
        return self.offset + sum((c * v for c, v in zip(self.cost, x, strict=True)), Fraction(0))

    def feasible(self, x: list[Fraction]) -> bool:
        """Whether a point satisfies everything, exactly."""
        if any(not low <= v <= high for low, v, high in zip(self.lower, x, self.upper, strict=True)):
            return False
        for entries, least, most in self.rows:
            activity = sum((v * x[j] for j, v in entries.items()), Fraction(0))
            if (least is not None and activity < least) or (most is not None and activity > most):
                return False
        return True

    def dual_value(self, y: Mapping[int, Fraction]) -> Fraction | None:
        """What multipliers of rows prove, or None if one is of a sign that its row has no side for."""
        reduced, total = list(self.cost), self.offset
        for i, v in y.items():
            entries, least, most = self.rows[i]
            side = least if v > 0 else most
            if not v:
                continue
            if side is None:
                return None
            total += v * side
            for j, a in entries.items():
                reduced[j] -= v * a
        return total + sum((r * (low if r > 0 else high) for r, low, high in zip(reduced, self.lower, self.upper, strict=True)))


@dataclass(frozen=True)
class Truth:
    """What is known of a program.

    Attributes
    ----------
    least, most : Fraction
        The optimum is between them; equal, as a rule.
    x : list of Fraction
        A feasible point whose value is ``most``.
    """

    least: Fraction
    most: Fraction
    x: list[Fraction]


def solve(program: Program) -> Truth | None:
    """Return the optimum, or None where HiGHS says that there is no feasible point.

    Raises
    ------
    Skipped
        If the basis that HiGHS ends with is not feasible in exact arithmetic.
    """
    basis = _basis(program)
    if basis is None:
        return None
    columns, rows = basis
    basic = [j for j, side in enumerate(columns) if side == 0]
    tight = [i for i, side in enumerate(rows) if side]
    x = [Fraction(0)] * len(columns)
    for j, side in enumerate(columns):
        x[j] = program.upper[j] if side > 0 else program.lower[j]
    place = {j: k for k, j in enumerate(basic)}
    system: list[tuple[Row, Fraction]] = []
    transposed: list[Row] = [{} for _ in basic]
    for k, i in enumerate(tight):
        entries, least, most = program.rows[i]
        right = most if rows[i] > 0 else least
        right = right if right is not None else least if least is not None else most
        assert right is not None
        right -= sum((v * x[j] for j, v in entries.items() if j not in place), Fraction(0))
        own = {place[j]: v for j, v in entries.items() if j in place}
        system.append((own, right))
        for j, v in own.items():
            transposed[j][k] = v
    if len(system) != len(basic):
        raise Skipped("HiGHS left no basis")
    inside = linear_solve(system)
    duals = linear_solve([(row, program.cost[j]) for row, j in zip(transposed, basic, strict=True)])
    if inside is None or duals is None:
        raise Skipped("the basis of HiGHS is singular in exact arithmetic")
    for j, k in place.items():
        x[j] = inside[k]
    if not program.feasible(x):
        raise Skipped("the basis of HiGHS is not feasible in exact arithmetic")
    # A multiplier of the wrong sign for a side that is not there is left out: the rest proves a bound all the same.
    proven = {i: y for i, y in zip(tight, duals, strict=True) if program.rows[i][1 if y > 0 else 2] is not None}
    least = program.dual_value(proven)
    assert least is not None
    return Truth(least, program.value(x), x)


def linear_solve(system: list[tuple[Row, Fraction]]) -> list[Fraction] | None:
    """Solve a square system by elimination, sparse rows first; None if it is singular."""
    rows = [(dict(entries), right) for entries, right in system]
    done: list[tuple[int, Row, Fraction]] = []
    while rows:
        rows.sort(key=lambda row: len(row[0]), reverse=True)
        entries, right = rows.pop()
        if not entries:
            return None
        pivot = min(entries, key=lambda j: (abs(entries[j]) != 1, sum(j in other for other, _ in rows)))
        head = entries.pop(pivot)
        entries = {j: v / head for j, v in entries.items()}
        right /= head
        done.append((pivot, entries, right))
        for k, (other, side) in enumerate(rows):
            factor = other.pop(pivot, None)
            if factor is None:
                continue
            for j, v in entries.items():
                rest = other.get(j, Fraction(0)) - factor * v
                if rest:
                    other[j] = rest
                else:
                    other.pop(j, None)
            rows[k] = other, side - factor * right
    x = [Fraction(0)] * len(system)
    for pivot, entries, right in reversed(done):
        x[pivot] = right - sum((v * x[j] for j, v in entries.items()), Fraction(0))
    return x


def _basis(program: Program) -> tuple[list[int], list[int]] | None:
    """Sides of columns and rows in an optimal basis, -1 below, 1 above, 0 for basic; None if infeasible.

    HiGHS gets variables from 0 to 1, and rows and costs whose largest entry is 1: its tolerances are absolute.
    """
    widths = [high - low if high > low else Fraction(1) for low, high in zip(program.lower, program.upper, strict=True)]
    fixed = [float(high > low) for low, high in zip(program.lower, program.upper, strict=True)]
    costs = [c * w for c, w in zip(program.cost, widths, strict=True)]
    largest = max(map(abs, costs), default=Fraction(1)) or Fraction(1)
    starts, columns, values, below, above = [0], [], [], [], []
    for entries, least, most in program.rows:
        own = {j: v * widths[j] for j, v in entries.items()}
        size = max(map(abs, own.values()), default=Fraction(1))
        shift = sum((v * program.lower[j] for j, v in entries.items()), Fraction(0))
        columns += list(own)
        values += [float(v / size) for v in own.values()]
        starts.append(len(columns))
        below.append(-np.inf if least is None else float((least - shift) / size))
        above.append(np.inf if most is None else float((most - shift) / size))
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(costs), len(program.rows)
    lp.col_cost_ = np.array([float(c / largest) for c in costs])
    lp.col_lower_, lp.col_upper_ = np.zeros(len(costs)), np.array(fixed)
    lp.row_lower_, lp.row_upper_ = np.array(below), np.array(above)
    matrix = csr_array((values, columns, starts), shape=(len(program.rows), len(costs)))
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = matrix.indptr, matrix.indices, matrix.data
    solver = quiet_highs()
    tight = dict.fromkeys(("primal_feasibility_tolerance", "dual_feasibility_tolerance"), 1e-10)
    for key, value in {"presolve": "off", "solver": "simplex", **tight}.items():
        solver.setOptionValue(key, value)
    solver.passModel(lp)
    solver.run()
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return None
    if status != highspy.HighsModelStatus.kOptimal:
        raise Skipped(f"HiGHS ended with {status}")
    found, side = solver.getBasis(), highspy.HighsBasisStatus
    kinds = {side.kBasic: 0, side.kUpper: 1}
    return [kinds.get(s, -1) for s in found.col_status], [kinds.get(s, -1) for s in found.row_status]

"""Properties of networks: what would be a counterexample, in disjunctive normal form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from blocklp.errors import ModelError, NonFiniteError, OptionError, ShapeError
from blocklp.problems.qpbo.arrays import FloatArray, as_finite, first_true
from blocklp.problems.verification.balls import Ball

BoolArray = NDArray[np.bool_]
Kind = TypeVar("Kind", np.float64, np.bool_)


class Row(NamedTuple):
    """``sum_j terms[j] y[j] <= right``, or ``<`` if it is strict, in rational numbers."""

    terms: Mapping[int, Fraction]
    right: Fraction
    strict: bool

    def holds_at(self, y: FloatArray, tolerance: Fraction = Fraction(0)) -> bool:
        """Whether finite numbers satisfy the row, its right-hand side relaxed by a tolerance; exact."""
        over = sum((value * Fraction(float(y[j])) for j, value in self.terms.items()), -self.right - tolerance)
        return over < 0 or (over == 0 and not self.strict)


@dataclass(frozen=True, eq=False)
class Clause:
    """One way to a counterexample: x in the box ``[lower, upper]`` and ``matrix @ y <= right``.

    Build clauses with ``Property.of``, ``Property.robustness`` or ``read_property``, which check them; their arrays are
    read-only.  Clauses over the same box share the objects ``lower`` and ``upper``, so that callers can group by identity.

    Parameters
    ----------
    lower, upper : numpy.ndarray, shape (inputs,), float64
        The closed box.
    matrix : numpy.ndarray, shape (rows, outputs), float64
        Coefficients, at least one row.
    right : numpy.ndarray, shape (rows,), float64
        Right-hand sides.
    strict : numpy.ndarray, shape (rows,), bool
        Rows that must hold with ``<``.
    inside : tuple of numpy.ndarray, optional
        The least and the greatest float64 numbers, ``(inputs,)`` each, that the clause is stated for, where ``lower`` and
        ``upper`` are decimals rounded outwards: what is proved is proved of the rounded box, while a counterexample must lie
        in the stated one.  An input of which no float64 number is in the stated interval has them the wrong way round.
    stated : tuple of Row, optional
        The rows as they are stated, where ``matrix`` and ``right`` are rounded.
    ball : Ball, optional
        Where x is, too; clauses over the same ball share the object.
    """

    lower: FloatArray
    upper: FloatArray
    matrix: FloatArray
    right: FloatArray
    strict: BoolArray
    inside: tuple[FloatArray, FloatArray] | None = None
    stated: tuple[Row, ...] | None = None
    ball: Ball | None = None

    @property
    def box(self) -> tuple[FloatArray, FloatArray]:
        """The least and the greatest float64 numbers of a counterexample."""
        return (self.lower, self.upper) if self.inside is None else self.inside

    def rows(self) -> tuple[Row, ...]:
        """Return the rows as they are stated."""
        if self.stated is not None:
            return self.stated
        return tuple(
            Row({int(j): Fraction(float(row[j])) for j in np.flatnonzero(row)}, Fraction(float(right)), bool(strict))
            for row, right, strict in zip(self.matrix, self.right, self.strict, strict=True)
        )

    def holds_at(self, y: FloatArray, tolerance: float = 0.0) -> bool:
        """Whether finite outputs satisfy all rows as they are stated, right-hand sides relaxed by a tolerance; exact."""
        with np.errstate(over="ignore", invalid="ignore"):
            size = np.abs(self.matrix) @ np.abs(y) + np.abs(self.right) + tolerance
            clear = self.matrix @ y - self.right - tolerance > 1e-14 * len(y) * size + 1e-290
        # Rational numbers are slow, and few of many clauses are near.
        return not clear.any() and all(row.holds_at(y, Fraction(tolerance)) for row in self.rows())


@dataclass(frozen=True, eq=False)
class Property:
    """Counterexamples as a disjunction of clauses; the property *holds* iff no clause can be satisfied.

    Parameters
    ----------
    clauses : tuple of Clause
        At least one, all over the same inputs and outputs.
    name : str
        Name of the property.
    element_type : str
        ``"real"``, or the element type that a VNN-LIB 2 file declares for the input, in lower case.
    network : str
        Name of the network in a VNN-LIB 2 file.

    Raises
    ------
    ModelError
        There is no clause.
    ShapeError
        A clause has no row, or its arrays do not fit each other or those of the first clause.
    """

    clauses: tuple[Clause, ...]
    name: str = ""
    element_type: str = "real"
    network: str = "N"

    def __post_init__(self) -> None:
        if not self.clauses:
            raise ModelError("a property needs at least one clause; without one it holds trivially")
        inputs, outputs = self.clauses[0].lower.shape, self.clauses[0].matrix.shape[-1]
        for number, clause in enumerate(self.clauses):
            rows = len(clause.right)
            if clause.ball is not None and clause.ball.centre.shape != inputs:
                raise ShapeError(f"clause {number} has a ball of {len(clause.ball.centre)} inputs and a box of {self.inputs}")
            fits = clause.matrix.shape == (rows, outputs) and clause.strict.shape == clause.right.shape == (rows,)
            if not (fits and clause.lower.shape == clause.upper.shape == inputs == (self.inputs,) and rows and outputs):
                raise ShapeError(
                    f"clause {number} has a box of shapes {clause.lower.shape} and {clause.upper.shape}, a matrix of "
                    f"{clause.matrix.shape}, right sides of {clause.right.shape} and strict of {clause.strict.shape}; "
                    f"give ({self.inputs},) twice, (rows, {outputs}) and (rows,) twice, with at least one row"
                )

    @property
    def inputs(self) -> int:
        """Number of network inputs."""
        return len(self.clauses[0].lower)

    @property
    def outputs(self) -> int:
        """Number of network outputs."""
        return len(self.clauses[0].matrix[0])

    @classmethod
    def of(
        cls, lower: ArrayLike, upper: ArrayLike, matrix: ArrayLike, right: ArrayLike, strict: ArrayLike = False, name: str = ""
    ) -> Property:
        """State one clause: a counterexample has x in ``[lower, upper]`` and ``matrix @ y <= right``.

        Parameters
        ----------
        lower, upper : array_like or Tensor, shape (inputs,)
            The box.
        matrix : array_like or Tensor, shape (rows, outputs)
            Coefficients.
        right : array_like or Tensor, shape (rows,)
            Right-hand sides.
        strict : array_like or Tensor of bool, shape (rows,) or ()
            Rows that must hold with ``<``.
        name : str
            Name of the property.

        Raises
        ------
        NonFiniteError
            A number is NaN or infinite.
        ShapeError
            An array has the wrong shape.
        ModelError
            The box is empty.
        """
        low, high = _box(lower, upper)
        rows = np.asarray(matrix, dtype=np.float64).copy()
        if rows.ndim != 2 or rows.size == 0:
            raise ShapeError(f"matrix has shape {rows.shape}; give (rows, outputs) with at least one of each")
        if not np.isfinite(rows).all():
            row, output = np.argwhere(~np.isfinite(rows))[0].tolist()
            raise NonFiniteError(f"matrix[{row}, {output}] is {rows[row, output]}; every entry must be finite")
        sides = as_finite(right, "right")
        marks = np.asarray(strict, dtype=np.bool_)
        if sides.shape != rows.shape[:1] or marks.shape not in ((), sides.shape):
            raise ShapeError(
                f"right has shape {sides.shape} and strict {marks.shape}; give one entry to each of the {len(rows)} rows of matrix"
            )
        return cls((Clause(low, high, frozen(rows), sides, frozen(np.broadcast_to(marks, sides.shape).copy())),), name)

    @classmethod
    def robustness(
        cls, lower: ArrayLike, upper: ArrayLike, label: int, classes: int, name: str = "", ball: Ball | None = None
    ) -> Property:
        """State that every x in the box, and in the ball if there is one, has the class ``label``, with a margin over each other.

        A counterexample has ``y[label] <= y[j]`` for some other class j: ``classes - 1`` clauses that share one box.

        Parameters
        ----------
        lower, upper : array_like or Tensor, shape (inputs,)
            The box.
        label : int
            The right class.
        classes : int
            Number of outputs, at least 2.
        name : str
            Name of the property.
        ball : Ball, optional
            Over the same inputs.

        Raises
        ------
        NonFiniteError, ShapeError, ModelError
            The box has an entry that is not finite, has the wrong shape or is empty; or ``label`` is no class.
        """
        if classes < 2 or not 0 <= label < classes:
            raise ModelError(f"label is {label} of {classes} classes; give at least two classes and a label from 0")
        low, high = _box(lower, upper)
        zero, plain = frozen(np.zeros(1)), frozen(np.zeros(1, dtype=np.bool_))
        identity = np.eye(classes)
        rivals = (other for other in range(classes) if other != label)
        rows = (frozen((identity[label] - identity[other])[None]) for other in rivals)
        return cls(tuple(Clause(low, high, row, zero, plain, ball=ball) for row in rows), name)

    def violated(self, x: ArrayLike, y: ArrayLike, tolerance: float = 0.0) -> int | None:
        """Return the number of the first clause that a point satisfies as it is stated, or None.

        Rows are evaluated in rational numbers: without a tolerance the answer is exact.

        Parameters
        ----------
        x : array_like, ``inputs`` entries in any shape
            Network input.
        y : array_like, ``outputs`` entries in any shape
            What the network makes of it.
        tolerance : float
            What each bound of the box and each right-hand side is relaxed by, at least 0; balls are not.

        Raises
        ------
        ShapeError
            The number of entries is wrong.
        NonFiniteError
            An entry is NaN or infinite.
        OptionError
            The tolerance is negative or not finite.
        """
        if not 0 <= tolerance < math.inf:
            raise OptionError(f"tolerance is {tolerance}; give a finite number of at least 0")
        point, value = as_finite(np.ravel(x), "x"), as_finite(np.ravel(y), "y")
        if point.size != self.inputs or value.size != self.outputs:
            raise ShapeError(f"x and y have {point.size} and {value.size} entries; give {self.inputs} and {self.outputs}")
        box: tuple[FloatArray, FloatArray] | None = None
        inside = False
        for number, clause in enumerate(self.clauses):
            if box is None or clause.box[0] is not box[0] or clause.box[1] is not box[1]:
                box = clause.box
                inside = bool(np.all((box[0] - tolerance <= point) & (point <= box[1] + tolerance)))
            if inside and (clause.ball is None or clause.ball.holds(point)) and clause.holds_at(value, tolerance):
                return number
        return None

    def holds_at(self, x: ArrayLike, y: ArrayLike, tolerance: float = 0.0) -> bool:
        """Return whether a point satisfies no clause; errors are those of ``violated``.

        Parameters
        ----------
        x, y, tolerance
            As in ``violated``.
        """
        return self.violated(x, y, tolerance) is None


def frozen(array: NDArray[Kind]) -> NDArray[Kind]:
    """Make an array read-only and return it."""
    array.setflags(write=False)
    return array


def _box(lower: ArrayLike, upper: ArrayLike) -> tuple[FloatArray, FloatArray]:
    low, high = as_finite(lower, "lower"), as_finite(upper, "upper")
    if low.shape != high.shape or low.size == 0:
        raise ShapeError(f"lower has shape {low.shape} and upper {high.shape}; give two vectors with one entry to each input")
    if (bad := first_true(low > high)) is not None:
        raise ModelError(f"the box is empty: lower[{bad}] is {low[bad]}, above upper[{bad}], which is {high[bad]}; mend one")
    return low, high

"""Properties of networks: what would be a counterexample, in disjunctive normal form."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from blocklp.errors import ModelError, NonFiniteError, OptionError, ShapeError
from blocklp.options import named, of_type, shown
from blocklp.problems.qpbo.arrays import FloatArray, as_finite, as_real, first_true
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

    Arrays become read-only ones; those that are already are kept as they are, so that clauses over the same box share the
    objects ``lower`` and ``upper`` and callers can group by identity.

    Parameters
    ----------
    lower, upper : array_like or Tensor, shape (inputs,)
        The closed box; float64.
    matrix : array_like or Tensor, shape (rows, outputs)
        Coefficients, at least one row; float64.
    right : array_like or Tensor, shape (rows,)
        Right-hand sides; float64.
    strict : array_like or Tensor of bool, shape (rows,) or ()
        Rows that must hold with ``<``; bool, ``(rows,)``.
    inside : tuple of numpy.ndarray, optional
        The least and the greatest float64 numbers, ``(inputs,)`` each, that the clause is stated for, where ``lower`` and
        ``upper`` are decimals rounded outwards: what is proved is proved of the rounded box, while a counterexample must lie
        in the stated one.  An input of which no float64 number is in the stated interval has them the wrong way round.
    stated : tuple of Row, optional
        The rows as they are stated, where ``matrix`` and ``right`` are rounded.
    ball : Ball, optional
        Where x is, too; clauses over the same ball share the object.

    Raises
    ------
    NonFiniteError
        A number is NaN or infinite.
    ShapeError
        An array has the wrong shape, or the ball other inputs.
    ModelError
        The box is empty, or an array holds no real numbers.
    OptionError
        ``ball`` is none.
    """

    lower: FloatArray
    upper: FloatArray
    matrix: FloatArray
    right: FloatArray
    strict: BoolArray
    inside: tuple[FloatArray, FloatArray] | None = None
    stated: tuple[Row, ...] | None = None
    ball: Ball | None = None

    def __post_init__(self) -> None:
        low, high = _finite(self.lower, "lower", "(inputs,)"), _finite(self.upper, "upper", "(inputs,)")
        if low.shape != high.shape:
            raise ShapeError(f"lower has shape {low.shape} and upper {high.shape}; give two vectors with one entry to each input")
        if (bad := first_true(low > high)) is not None:
            raise ModelError(f"the box is empty: lower[{bad}] is {low[bad]}, above upper[{bad}], which is {high[bad]}; mend one")
        matrix, right = _finite(self.matrix, "matrix", "(rows, outputs)"), _finite(self.right, "right", "(rows,)")
        marks = np.asarray(self.strict, dtype=np.bool_)
        if right.shape != matrix.shape[:1] or marks.shape not in ((), right.shape):
            raise ShapeError(
                f"right has shape {right.shape} and strict {marks.shape}; give one entry to each of the {len(matrix)} rows of matrix"
            )
        if self.ball is not None:
            of_type(self.ball, Ball, "ball", "a Ball, or None")
            if self.ball.centre.shape != low.shape:
                raise ShapeError(f"the ball has {len(self.ball.centre)} inputs and the box {len(low)}; give both the same ones")
        if marks.shape != right.shape or marks.flags.writeable:
            marks = frozen(np.broadcast_to(marks, right.shape).copy())
        for name, array in (("lower", low), ("upper", high), ("matrix", matrix), ("right", right), ("strict", marks)):
            object.__setattr__(self, name, array)

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

    Those of two properties together are ``Property(one.clauses + other.clauses)``.

    Parameters
    ----------
    clauses : sequence of Clause
        At least one, all over the same inputs and outputs; kept as a tuple.
    name : str
        Name of the property.
    element_type : str
        ``"real"``, or the element type that a VNN-LIB 2 file declares for the input, in lower case.
    network : str
        Name of the network in a VNN-LIB 2 file.

    Raises
    ------
    ModelError
        There is no clause, or something that is none.
    ShapeError
        A clause is over other inputs or outputs than the first.
    """

    clauses: tuple[Clause, ...]
    name: str = ""
    element_type: str = "real"
    network: str = "N"

    def __post_init__(self) -> None:
        of_type(self.clauses, list | tuple, "clauses", "a tuple of Clause, such as the clauses of a property", ModelError)
        object.__setattr__(self, "clauses", tuple(self.clauses))
        if not self.clauses:
            raise ModelError("a property needs at least one clause; without one it holds trivially")
        for number, clause in enumerate(self.clauses):
            need = "a Clause; of a Property give its clauses, one.clauses + other.clauses for two"
            of_type(clause, Clause, f"clauses[{number}]", need, ModelError)
            found = len(clause.lower), clause.matrix.shape[1]
            if found != (self.inputs, self.outputs):
                raise ShapeError(
                    f"clause {number} has {found[0]} inputs and {found[1]} outputs, and clause 0 {self.inputs} and {self.outputs}; "
                    "state a property of one network"
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
        given: Any = lower, upper, matrix, right, strict
        return cls((Clause(*given),), name)

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
        try:
            own, count = operator.index(label), operator.index(classes)
        except TypeError:
            raise ModelError(f"label is {shown(label)} of {shown(classes)} classes; give whole numbers") from None
        if count < 2 or not 0 <= own < count:
            raise ModelError(f"label is {own} of {count} classes; give at least two classes and a label from 0")
        low, high = _finite(lower, "lower", "(inputs,)"), _finite(upper, "upper", "(inputs,)")
        zero, plain = frozen(np.zeros(1)), frozen(np.zeros(1, dtype=np.bool_))
        identity = np.eye(count)
        rivals = (other for other in range(count) if other != own)
        rows = (frozen((identity[own] - identity[other])[None]) for other in rivals)
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
        point, value = (as_finite(as_real(detached(part), name).ravel(), name) for part, name in ((x, "x"), (y, "y")))
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


def detached(values: Any) -> Any:
    """Return what users give as numbers without gradients, which nothing carries on from there; tensors in lists too."""
    if isinstance(values, list | tuple):
        return [detached(part) for part in values]
    return values.detach() if isinstance(values, Tensor) else values


def _finite(values: Any, name: str, form: str) -> FloatArray:
    """Return finite numbers as a read-only array of a form, "(inputs,)" or "(rows, outputs)": the same one if it is such."""
    array = as_real(detached(values), name)
    if array.ndim != len(form.split()) or not array.size:
        raise ShapeError(f"{name} has shape {array.shape}; give {form} with at least one of each")
    if not np.isfinite(array).all():
        where = np.argwhere(~np.isfinite(array))[0]
        raise NonFiniteError(f"{named(name, where.tolist())} is {array[tuple(where)]}; every entry must be finite")
    return array if array is values and not array.flags.writeable else frozen(array.copy())

"""Linear forms, one a row, and what their comparisons state: constraints that couple blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array, issparse
from torch import Tensor

from blocklp.errors import ModelError, NonFiniteError, ShapeError
from blocklp.expression import Compared, Expression, View, coefficients, of_instances
from blocklp.options import numbers, shown
from blocklp.row_constraint import RowConstraint

if TYPE_CHECKING:
    from blocklp.model import Model


class RowExpression(Compared):
    r"""Rows :math:`A x + d`: what ``matrix @ x`` is.

    Attributes
    ----------
    matrix : coo_array
        ``(rows, variables of the model)`` float64.
    constant : Tensor
        ``(batch or 1, rows)`` float64.
    """

    __array_ufunc__ = None

    def __init__(self, model: Model, matrix: coo_array, constant: Tensor) -> None:
        self.model, self.matrix, self.constant = model, matrix, constant

    @classmethod
    def product(cls, matrix: object, view: View, what: str = "rows") -> RowExpression:
        """A matrix ``(rows, n)``, dense or sparse, times ``n`` variables.

        Raises
        ------
        ModelError, ShapeError, NonFiniteError
            If it is no finite matrix of real numbers, or of another width.
        """
        sparse = _sparse(matrix, what)
        if view.index.dim() != 1 or sparse.shape[1] != len(view.index):
            raise ShapeError(f"a matrix {sparse.shape} times {view!r}: it takes {sparse.shape[1]} variables in a row")
        columns = view.index.numpy()[sparse.coords[1]]
        bad: NDArray[np.int64] = np.flatnonzero(~np.isfinite(sparse.data))
        if len(bad):
            row, entry = int(sparse.coords[0][bad[0]]), view.model.entry(int(columns[bad[0]]))
            raise NonFiniteError(
                f"the matrix of {what} holds {sparse.data[bad[0]]} in row {row} at {entry}; every entry must be finite"
            )
        made = coo_array((sparse.data, (sparse.coords[0], columns)), shape=(sparse.shape[0], view.model.size))
        return cls(view.model, made, torch.zeros(1, sparse.shape[0], dtype=torch.float64))

    @classmethod
    def of(cls, expression: Expression) -> RowExpression:
        """The entries of an expression, one a row.

        Raises
        ------
        ModelError
            If it holds parameters, or coefficients that differ by instance.
        """
        rows, columns, entries = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)]
        count = max(1, int(np.prod(expression.shape)))
        for term in expression.terms:
            if term.parameter is not None:
                raise ModelError(f"a row holds parameter {term.parameter.name!r}; rows take numbers, and costs take parameters")
            if len(term.factor) > 1:
                raise ModelError(
                    f"coefficients of a row differ by instance; instances share the rows, and may differ in their sides (a dense "
                    f"({expression.model.batch}, n) times variables is one cost for each instance: make it sparse, or use add_rows())"
                )
            index = term.index.reshape(-1).numpy()
            entries.append(term.factor.expand(1, *term.index.shape).reshape(-1).numpy())
            columns.append(index)
            rows.append(np.arange(len(index)) if expression.shape else np.zeros(len(index), np.int64))
        parts = (np.concatenate(p) for p in (entries, rows, columns))
        data, row, column = parts
        matrix = coo_array((data, (row, column)), shape=(count, expression.model.size))
        return cls(expression.model, matrix, expression.constant.reshape(len(expression.constant), -1))

    @property
    def shape(self) -> tuple[int, ...]:
        """One entry a row."""
        return (self.matrix.shape[0],)

    def _other(self, other: object) -> RowExpression:
        if isinstance(other, View):
            other = other.expression()
        if isinstance(other, Expression):
            other = RowExpression.of(other)
        if isinstance(other, RowExpression):
            if other.model is not self.model:
                raise ModelError("the rows mix variables of two models; build both parts from one model")
            if other.shape != self.shape:
                raise ShapeError(f"cannot combine {self.shape[0]} rows with {other.shape[0]}; give one for each")
            return other
        empty = coo_array((self.shape[0], self.model.size))
        return RowExpression(self.model, empty, _sides(other, self.shape[0], self.model.batch, "the constant of rows"))

    def __add__(self, other: object) -> RowExpression:
        added, width = self._other(other), self.model.size
        parts = [coo_array((m.data, m.coords), shape=(self.shape[0], width)) for m in (self.matrix, added.matrix)]
        return RowExpression(self.model, coo_array(parts[0] + parts[1]), self.constant + added.constant)

    __radd__ = __add__

    def __neg__(self) -> RowExpression:
        return RowExpression(self.model, coo_array(-self.matrix), -self.constant)

    def __sub__(self, other: object) -> RowExpression:
        return self + -self._other(other)

    def __rsub__(self, other: object) -> RowExpression:
        return -self + other

    def __mul__(self, other: object) -> RowExpression:
        factor = _sides(other, self.shape[0], 1, "the factor of rows")
        scaled = coo_array((self.matrix.data * factor[0].numpy()[self.matrix.coords[0]], self.matrix.coords), shape=self.matrix.shape)
        return RowExpression(self.model, scaled, self.constant * factor)

    __rmul__ = __mul__

    @property
    def width(self) -> int:
        """One past the last variable that the rows hold."""
        return int(self.matrix.coords[1].max(initial=-1)) + 1

    def at(self, x: Tensor, instances: Sequence[int]) -> Tensor:
        """Values at points ``(k, variables)`` of some instances of the model: ``(k, rows)``."""
        return activities(self.matrix, x) + of_instances(self.constant, instances).to(x)

    def __repr__(self) -> str:
        return f"{self.shape[0]} rows with {self.matrix.nnz} entries"


def activities(matrix: coo_array, x: Tensor) -> Tensor:
    """A x at points ``(k, variables)``, which may have more variables than the matrix: ``(k, rows)``."""
    points = x[:, : matrix.shape[1]].cpu().numpy()
    return torch.from_numpy(np.ascontiguousarray((matrix @ points.T).T)).to(x.device)


def compared(left: object, right: object, below: bool, above: bool) -> RowConstraint:
    """What a comparison of variables, an expression or rows with anything states: sides above, below or both."""
    if isinstance(right, RowExpression) and not isinstance(left, RowExpression):
        return compared(right, left, above, below)
    expression = left.expression() if isinstance(left, View) else left
    rows = RowExpression.of(expression) if isinstance(expression, Expression) else expression
    assert isinstance(rows, RowExpression)
    moved = rows - right
    side, none = -moved.constant, torch.full_like(moved.constant, torch.inf)
    return RowConstraint(rows.model, moved.matrix, side if below else -none, side if above else none)


def constraint(model: Model, matrix: object, view: View, lower: object, upper: object, what: str) -> RowConstraint:
    """Rows with two sides, either of which may be infinite or None.

    Raises
    ------
    ModelError, ShapeError, NonFiniteError
        If the parts do not fit together, or hold NaN.
    """
    rows = RowExpression.product(matrix, view, what)
    count = rows.shape[0]
    low, high = (
        torch.full((1, count), none, dtype=torch.float64) if side is None else _sides(side, count, model.batch, name, infinite=True)
        for side, none, name in (
            (lower, -torch.inf, f"the lower sides of {what}"),
            (upper, torch.inf, f"the upper sides of {what}"),
        )
    )
    return RowConstraint(model, rows.matrix, low, high)


def _sides(value: object, count: int, batch: int, what: str, infinite: bool = False) -> Tensor:
    """One number a row, ``(batch or 1, rows)`` float64."""
    data = numbers(value, what)
    if not infinite:
        return coefficients(data.reshape(1) if data.dim() == 0 and count == 1 else data, (count,), batch, what)
    if bool(data.isnan().any()):
        where = f" at row {int(data.isnan().nonzero()[0][-1])}" if data.dim() else ""
        raise NonFiniteError(f"{what} hold NaN{where}; give numbers, and infinities for none")
    if data.dim() > 2 or (data.dim() == 2 and data.shape[0] not in (1, batch)) or (data.dim() and data.shape[-1] not in (1, count)):
        raise ShapeError(f"{what} have shape {tuple(data.shape)}; give ({count},) or (batch={batch}, {count})")
    return data.expand(data.shape[0] if data.dim() == 2 else 1, count).clone()


def _sparse(matrix: Any, what: str) -> coo_array:
    """A matrix of anything."""
    if issparse(matrix):
        found = coo_array(matrix)
    elif isinstance(matrix, Tensor) and matrix.layout is not torch.strided:
        entries = matrix.to_sparse_coo().coalesce().cpu()  # type: ignore[no-untyped-call]
        row, column = entries.indices().numpy()
        found = coo_array((numbers(entries.values(), f"the matrix of {what}").numpy(), (row, column)), shape=tuple(matrix.shape))
    else:
        found = coo_array(numbers(matrix, f"the matrix of {what}").numpy())
    if found.ndim != 2:
        raise ShapeError(f"the matrix of {what} has shape {found.shape}; give (rows, variables)")
    if np.iscomplexobj(found.data):
        raise ModelError(f"the matrix of {what} holds complex numbers: {shown(matrix)}")
    found = coo_array(found.astype(np.float64))
    found.sum_duplicates()
    return found

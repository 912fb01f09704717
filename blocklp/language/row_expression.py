"""Linear forms, one a row, and constraints that couple blocks, as their comparisons state them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy  # whose parts are imported where they are used
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.errors import ModelError, NonFiniteError, ShapeError
from blocklp.language.coefficients import broadcast, coefficients, common_shape, of_instances
from blocklp.language.row_constraint import Compared, RowConstraint
from blocklp.language.space import Space
from blocklp.options import numbers, shown, with_gradients, without_gradients

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]


class RowExpression(Compared):
    r"""Rows :math:`A x + d`, such as ``matrix @ x``, in an array of some shape.

    Attributes
    ----------
    matrix : scipy.sparse.coo_array
        ``(rows, variables of the model)`` float64: a row for each entry of the array, in row-major order.
    constant : Tensor
        ``(batch or 1, *shape)`` float64.
    """

    __array_ufunc__ = None

    def __init__(self, model: Space, matrix: scipy.sparse.coo_array, constant: Tensor) -> None:
        self.model, self.matrix, self.constant = model, matrix, constant

    @classmethod
    def product(
        cls,
        matrix: object,
        model: Space,
        index: Tensor,
        variables: str,
        what: str = "rows",
    ) -> RowExpression:
        """Multiply a matrix with variables.

        Parameters
        ----------
        matrix : array_like or sparse matrix
            ``(rows, n)``.
        model : Space
            The model of the variables.
        index : Tensor
            ``(n,)`` int64: their columns.
        variables, what : str
            The names of these and of the rows in messages.

        Returns
        -------
        RowExpression
            A row for each row of the matrix.

        Raises
        ------
        ModelError, ShapeError, NonFiniteError
            If it is no finite matrix of real numbers, or of another width.
        """
        sparse = _sparse(matrix, what)
        if index.dim() != 1 or sparse.shape[1] != len(index):
            need = f"it takes {sparse.shape[1]} variables in a row, such as one column of an array"
            raise ShapeError(f"a matrix {sparse.shape} times {variables}: {need}")
        columns = index.numpy()[sparse.coords[1]]
        bad: NDArray[np.int64] = np.flatnonzero(~np.isfinite(sparse.data))
        if len(bad):
            row, entry = int(sparse.coords[0][bad[0]]), model.entry(int(columns[bad[0]]))
            where = f"holds {sparse.data[bad[0]]} in row {row} at {entry}"
            raise NonFiniteError(f"the matrix of {what} {where}; every entry must be finite")
        none = torch.zeros(1, sparse.shape[0], dtype=torch.float64)
        return cls.of(model, sparse.data, sparse.coords[0], columns, none)

    @classmethod
    def of(cls, model: Space, entry: Array, row: Numbers, column: Numbers, constant: Tensor) -> RowExpression:
        """Make rows of entries.

        Parameters
        ----------
        model : Space
            The model of the variables.
        entry, row, column : ndarray
            ``(entries,)`` float64, int64 and int64: the matrix.
        constant : Tensor
            ``(batch or 1, *shape)`` float64.

        Returns
        -------
        RowExpression
            The rows, in the variables of the model.
        """
        size = constant.shape[1:].numel(), model.size
        return cls(model, scipy.sparse.coo_array((entry, (row, column)), shape=size), constant)

    def rows(self) -> RowExpression:
        """Return the rows themselves."""
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return tuple(self.constant.shape[1:])

    def broadcast_to(self, shape: tuple[int, ...]) -> RowExpression:
        """Return the rows repeated by the rules of numpy.

        Raises
        ------
        ShapeError
            If they do not fit.
        """
        if shape == self.shape:
            return self
        constant = broadcast(self.constant, shape, len(self.constant), "rows")
        numbered = np.arange(self.matrix.shape[0]).reshape(self.shape)
        repeated = self.matrix.tocsr()[np.broadcast_to(numbered, shape).ravel()]
        return RowExpression(self.model, scipy.sparse.coo_array(repeated), constant)

    def _with(self, other: object) -> tuple[RowExpression, RowExpression]:
        """Both in one shape."""
        if isinstance(other, Compared):
            other = other.rows()
            assert isinstance(other, RowExpression)
            if other.model is not self.model:
                raise ModelError("the rows mix variables of two models; build both parts from one model")
            shape = common_shape(self.shape, other.shape, "rows")
            return self.broadcast_to(shape), other.broadcast_to(shape)
        empty = scipy.sparse.coo_array((self.matrix.shape[0], self.model.size))
        constant = _sides(other, self.shape, self.model.batch, "the constant of rows")
        return self, RowExpression(self.model, empty, constant)

    def __add__(self, other: object) -> RowExpression:
        own, added = self._with(other)
        size = own.matrix.shape[0], self.model.size
        first, second = (
            scipy.sparse.coo_array((m.data, m.coords), shape=size) for m in (own.matrix, added.matrix)
        )
        return RowExpression(
            self.model, scipy.sparse.coo_array(first + second), own.constant + added.constant
        )

    __radd__ = __add__

    def __neg__(self) -> RowExpression:
        return RowExpression(self.model, scipy.sparse.coo_array(-self.matrix), -self.constant)

    def __sub__(self, other: object) -> RowExpression:
        return -(-self + other)

    def __rsub__(self, other: object) -> RowExpression:
        return -self + other

    def __mul__(self, other: object) -> RowExpression:
        without_gradients(other, "the factor of rows")
        factor = _sides(other, self.shape, 1, "the factor of rows")
        entries = self.matrix.data * factor[0].flatten().numpy()[self.matrix.coords[0]]
        scaled = scipy.sparse.coo_array((entries, self.matrix.coords), shape=self.matrix.shape)
        return RowExpression(self.model, scaled, self.constant * factor)

    __rmul__ = __mul__

    @property
    def width(self) -> int:
        """One past the last variable that the rows hold."""
        return int(self.matrix.coords[1].max(initial=-1)) + 1

    def at(self, x: Tensor, instances: Sequence[int]) -> Tensor:
        """Values at points ``(k, variables)`` of some instances of the model: ``(k, *shape)``."""
        values = activities(self.matrix, x).reshape(len(x), *self.shape)
        return values + of_instances(self.constant, instances).to(x)

    def _compared(self, other: object, below: bool, above: bool) -> RowConstraint:
        """State the comparison with numbers or rows: sides below, above or both."""
        difference = self - other
        side = -difference.constant.flatten(1)
        none = torch.full_like(side, torch.inf)
        return RowConstraint(self.model, difference.matrix, side if below else -none, side if above else none)

    def __repr__(self) -> str:
        return f"{self.matrix.shape[0]} rows with {self.matrix.nnz} entries"


def activities(matrix: scipy.sparse.coo_array, x: Tensor) -> Tensor:
    """A x at points ``(k, variables)``, which may have more variables than the matrix: ``(k, rows)``."""
    points = x[:, : matrix.shape[1]].cpu().numpy()
    return torch.from_numpy(np.ascontiguousarray((matrix @ points.T).T)).to(x.device)


def constraint(rows: RowExpression, lower: object, upper: object, what: str) -> RowConstraint:
    """State two sides of rows, either of which may be infinite or None.

    Parameters
    ----------
    rows : RowExpression
        Rows without constants.
    lower, upper : array_like or None
        A number, ``(rows,)`` or ``(batch, rows)``.
    what : str
        The name of the rows in messages.

    Returns
    -------
    RowConstraint
        The rows with sides ``(batch or 1, rows)`` float64.

    Raises
    ------
    ModelError, ShapeError, NonFiniteError
        If the parts do not fit together, or hold NaN.
    """
    batch = rows.model.batch
    lower, upper = -torch.inf if lower is None else lower, torch.inf if upper is None else upper
    low = _sides(lower, rows.shape, batch, f"the lower side of {what}", infinite=True)
    high = _sides(upper, rows.shape, batch, f"the upper side of {what}", infinite=True)
    return RowConstraint(rows.model, rows.matrix, low, high)


def _sides(value: object, shape: tuple[int, ...], batch: int, what: str, infinite: bool = False) -> Tensor:
    """One number a row, ``(batch or 1, *shape)`` float64, with its gradients."""
    data = with_gradients(value, what)
    if not infinite:
        return coefficients(data, shape, batch, what)
    if bool(data.isnan().any()):
        where = f" at row {int(data.isnan().nonzero()[0][-1])}" if data.dim() else ""
        raise NonFiniteError(f"{what} holds NaN{where}; give numbers, and infinities for none")
    return broadcast(data, shape, batch, what).clone()


def _sparse(matrix: Any, what: str) -> scipy.sparse.coo_array:
    """A matrix of anything."""
    if scipy.sparse.issparse(matrix):
        found = scipy.sparse.coo_array(matrix)
    elif isinstance(matrix, Tensor) and matrix.layout is not torch.strided:
        entries = matrix.to_sparse_coo().coalesce().cpu()  # type: ignore[no-untyped-call]
        row, column = entries.indices().numpy()
        values = numbers(entries.values(), f"the matrix of {what}").numpy()
        found = scipy.sparse.coo_array((values, (row, column)), shape=tuple(matrix.shape))
    else:
        found = scipy.sparse.coo_array(numbers(matrix, f"the matrix of {what}").numpy())
    if found.ndim != 2:
        raise ShapeError(f"the matrix of {what} has shape {found.shape}; give (rows, variables)")
    if np.iscomplexobj(found.data):
        raise ModelError(f"the matrix of {what} holds complex numbers: {shown(matrix)}")
    found = scipy.sparse.coo_array(found.astype(np.float64))
    found.sum_duplicates()
    return found

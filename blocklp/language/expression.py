"""Variables, views of them, parameters and linear expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from blocklp.errors import ModelError, NonFiniteError, ShapeError
from blocklp.language.coefficients import (
    all_finite,
    broadcast,
    coefficients,
    common_shape,
    constant,
    inner,
    laid_out,
    of_instances,
)
from blocklp.language.indexing import indexed, is_matrix
from blocklp.language.row_constraint import Compared, RowConstraint
from blocklp.language.space import Space
from blocklp.options import numbers, shown, with_gradients, without_gradients

if TYPE_CHECKING:
    from blocklp.language.row_expression import RowExpression


class Parameter:
    """A cost that may change between solves: set ``value`` and solve again.

    Parameters
    ----------
    name : str
        Shown in messages.
    shape : tuple of int
        Shape of one instance.
    """

    __array_ufunc__ = None

    def __init__(self, name: str, shape: tuple[int, ...], batch: int) -> None:
        self.name, self.shape, self._batch = name, shape, batch
        self._value: Tensor | None = None

    @property
    def value(self) -> Tensor:
        """Numbers ``(batch or 1, *shape)`` float64; a copy of what is set, ``shape`` or ``(batch, *shape)``.

        They keep the gradients of what is set, which ``solution.bound`` then has (:func:`blocklp.value`).

        Raises
        ------
        ModelError
            If it is read before it is set, or set to what holds no real numbers.
        ShapeError
            If it is set to another shape.
        """
        if self._value is None:
            need = f"set {self.name}.value = tensor before solving"
            raise ModelError(f"parameter {self.name!r} has no value; {need}")
        return self._value

    @value.setter
    def value(self, value: object) -> None:
        self._value = coefficients(value, self.shape, self._batch, f"parameter {self.name!r}")

    def read(self, value: object) -> Tensor:
        """Another value, checked like the one that is set, with its gradients."""
        what = f"parameter {self.name!r}"
        return laid_out(with_gradients(value, what), self.shape, self._batch, what)

    def __mul__(self, other: object) -> Expression:
        if not isinstance(other, View | Expression):
            wrong = f"multiplies variables only, not {shown(other)}; scale the variable or the value"
            raise ModelError(f"parameter {self.name!r} {wrong}")
        return other * self

    __rmul__ = __mul__

    def __matmul__(self, other: object) -> Expression:
        return (self * other).sum()

    __rmatmul__ = __matmul__

    def __repr__(self) -> str:
        return f"parameter {self.name}{list(self.shape)}" + ", no value yet" * (self._value is None)


Values = Mapping[Parameter, Tensor]
"""Values to use instead of those that are set."""


@dataclass(frozen=True)
class Term:
    """``factor * parameter * x[columns]``, entry by entry."""

    columns: Tensor | range  # shape of the expression, int64; successive ones take no memory
    factor: Tensor  # (batch or 1, *shape)
    parameter: Parameter | None

    @property
    def index(self) -> Tensor:
        """The columns as a tensor, int64."""
        own = self.columns
        return torch.arange(own.start, own.stop) if isinstance(own, range) else own

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the entries."""
        return (len(self.columns),) if isinstance(self.columns, range) else tuple(self.columns.shape)

    def flat(self) -> Term:
        """The term, without a parameter, with its entries in one row."""
        columns = self.columns if isinstance(self.columns, range) else self.columns.reshape(-1)
        lead = len(self.factor)
        return Term(columns, self.factor.expand(lead, *self.shape).reshape(lead, -1), None)

    def coefficient(self, values: Values) -> Tensor:
        """Return the numbers, with the value given for the parameter or its present one."""
        if self.parameter is None:
            return self.factor
        given = values.get(self.parameter)
        return self.factor * (self.parameter.value if given is None else self.parameter.read(given))


class Entries(Compared):
    """Entries of variables, or of linear forms in them."""

    def _compared(self, other: object, below: bool, above: bool) -> RowConstraint:
        if _is_rows(other):
            return other._compared(self, above, below)
        rows: RowExpression = self.rows()
        return rows._compared(other, below, above)


class Expression(Entries):
    """A linear expression with a shape: entry-wise sums of terms plus a constant."""

    __array_ufunc__ = None  # numpy arrays on the left defer to our operators

    def __init__(
        self,
        model: Space,
        shape: tuple[int, ...],
        terms: tuple[Term, ...],
        constant: Tensor,
    ) -> None:
        self.model, self.shape, self.terms, self.constant = model, shape, terms, constant

    def broadcast_to(self, shape: tuple[int, ...]) -> Expression:
        """Return the entries repeated by the rules of numpy.

        Raises
        ------
        ModelError
            If the expression holds parameters, or is a sum over many entries: neither has entries to repeat.
        """
        if shape == self.shape:
            return self
        if any(t.parameter is not None or t.shape != self.shape for t in self.terms):
            held = f"an expression of shape {self.shape} that holds parameters or sums over all entries"
            raise ModelError(f"{held} does not broadcast to {shape}; compare it with the other side instead")
        terms = (
            Term(t.index.expand(shape), broadcast(t.factor, shape, len(t.factor), ""), None)
            for t in self.terms
        )
        return Expression(
            self.model, shape, tuple(terms), broadcast(self.constant, shape, len(self.constant), "")
        )

    def _with(self, other: object) -> tuple[Expression, Expression]:
        """Both in one shape."""
        if isinstance(other, View):
            other = other.expression()
        if isinstance(other, Expression):
            if other.model is not self.model:
                mixed = "the expression mixes variables of two models"
                raise ModelError(f"{mixed}; build both parts from one model")
            shape = common_shape(self.shape, other.shape, "expressions")
            return self.broadcast_to(shape), other.broadcast_to(shape)
        constant = coefficients(other, self.shape, self.model.batch, "constant")
        return self, Expression(self.model, self.shape, (), constant)

    def __add__(self, other: object) -> Expression:
        if _is_rows(other):
            return NotImplemented
        own, added = self._with(other)
        return Expression(self.model, own.shape, own.terms + added.terms, own.constant + added.constant)

    __radd__ = __add__

    def __neg__(self) -> Expression:
        return self * -1.0

    def __sub__(self, other: object) -> Expression:
        if _is_rows(other):
            return NotImplemented
        return -(-self + other)

    def __rsub__(self, other: object) -> Expression:
        return -self + other

    def __mul__(self, other: object) -> Expression:
        if isinstance(other, Expression | View):
            instead = "multiply by numbers, tensors or parameters"
            raise ModelError(f"a product of two variables is not linear; {instead}")
        if isinstance(other, Parameter):
            if other.shape != self.shape:
                shapes = f"has shape {other.shape}, the expression {self.shape}"
                raise ShapeError(f"parameter {other.name!r} {shapes}; they must agree")
            if any(t.parameter is not None for t in self.terms) or bool(self.constant.any()):
                raise ModelError("a parameter multiplies plain variables only; multiply before adding")
            terms = tuple(Term(t.columns, t.factor, other) for t in self.terms)
            return Expression(self.model, self.shape, terms, self.constant)
        factor = coefficients(other, self.shape, self.model.batch, "coefficient")
        terms = tuple(Term(t.columns, t.factor * factor, t.parameter) for t in self.terms)
        return Expression(self.model, self.shape, terms, self.constant * factor)

    __rmul__ = __mul__

    def __truediv__(self, other: object) -> Expression:
        return self * (1.0 / numbers(other, "divisor"))

    def __matmul__(self, other: object) -> Expression:
        return (self * inner(other, self.shape)).sum()

    __rmatmul__ = __matmul__

    def rows(self) -> RowExpression:
        """Return the entries as rows.

        Raises
        ------
        ModelError
            If it holds parameters, or coefficients that differ by instance.
        """
        from blocklp.language.row_expression import RowExpression  # scipy takes long to import

        row, column, entry = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)]
        for term in self.terms:
            if term.parameter is not None:
                held = f"a row holds parameter {term.parameter.name!r}"
                raise ModelError(f"{held}; rows take numbers, and costs take parameters")
            without_gradients(term.factor, "an entry of a row")
            if len(term.factor) > 1:
                raise ModelError(
                    f"coefficients of a row differ by instance; instances share the rows, and may differ in "
                    f"their sides (a dense ({self.model.batch}, n) times variables is one cost for each "
                    f"instance: make it sparse, or use add_rows())"
                )
            index = term.index.reshape(-1).numpy()
            entry.append(term.factor.expand(1, *term.shape).reshape(-1).numpy())
            column.append(index)
            row.append(np.arange(len(index)) if self.shape else np.zeros(len(index), np.int64))
        constant = self.constant.reshape(len(self.constant), *(self.shape or (1,)))
        entries, rows, columns = np.concatenate(entry), np.concatenate(row), np.concatenate(column)
        return RowExpression.of(self.model, entries, rows, columns, constant)

    def sum(self, axis: int | None = None) -> Expression:
        """Sum of all entries, an expression of shape ``()``, or along an axis, which the shape then lacks.

        Raises
        ------
        ShapeError
            If there is no such axis.
        ModelError
            If the expression holds parameters, which are summed over all entries only.
        """
        if axis is not None:
            return self._sum_along(axis)
        terms = []
        for t in self.terms:
            if t.parameter is not None:
                terms.append(t)  # the parameter keeps its shape
            else:
                terms.append(t.flat())
        return Expression(self.model, (), tuple(terms), self.constant.reshape(len(self.constant), -1).sum(1))

    def _sum_along(self, axis: object) -> Expression:
        rank = len(self.shape)
        if isinstance(axis, bool) or not isinstance(axis, int) or not -rank <= axis < rank:
            raise ShapeError(f"an expression of shape {self.shape} has no axis {shown(axis)}")
        axis = axis - rank if axis >= 0 else axis
        if any(t.parameter is not None for t in self.terms):
            held = "the expression holds parameters, which are summed over all entries only"
            raise ModelError(f"{held}; leave the axis out")
        full = ((t.index, t.factor.expand(-1, *t.shape)) for t in self.terms)
        pairs = (zip(index.unbind(axis), factor.unbind(axis), strict=True) for index, factor in full)
        parts = [Term(index, factor, None) for pair in pairs for index, factor in pair]
        constant = self.constant.sum(axis)
        return Expression(self.model, tuple(constant.shape[1:]), tuple(parts), constant)

    def evaluate(self, values: Values | None = None) -> tuple[Tensor, Tensor]:
        """Coefficients ``(batch, variables)`` and constant ``(batch,)`` of a scalar expression.

        ``values`` of parameters replace those that are set.

        Raises
        ------
        NonFiniteError
            If they leave the range of float64.
        """
        batch, n = self.model.batch, self.model.size
        cost = torch.zeros(batch, n, dtype=torch.float64)
        for t in self.terms:
            own = t.coefficient(values or {}).expand(batch, *t.shape).reshape(batch, -1)
            cost.scatter_add_(1, t.index.reshape(1, -1).expand(batch, -1), own)
        if not (all_finite(cost) and all_finite(self.constant)):
            why = "products or sums of its coefficients are not finite"
            raise NonFiniteError(f"the objective overflows: {why}; scale the costs down")
        return cost, self.constant.expand(batch).clone()

    @property
    def width(self) -> int:
        """One past the last variable that it holds."""
        return max((int(t.index.max()) + 1 for t in self.terms), default=0)

    def at(self, x: Tensor, instances: Sequence[int]) -> Tensor:
        """Values ``(k, *shape)`` at points ``(k, variables)`` of some instances, with parameters as set."""
        total = of_instances(self.constant.detach(), instances).to(x).expand(len(x), *self.shape).clone()
        for t in self.terms:
            part = of_instances(t.coefficient({}).detach(), instances).to(x) * x[:, t.index.to(x.device)]
            total += part if self.shape else part.reshape(len(x), -1).sum(1)
        return total

    def __repr__(self) -> str:
        used = torch.zeros(self.model.size, dtype=torch.bool)
        for t in self.terms:
            used[t.index.reshape(-1)] = True
        names = [v.name for v in self.model.variables.values() if bool(used[v.columns].any())]
        prices = dict.fromkeys(t.parameter.name for t in self.terms if t.parameter is not None)
        with_prices = f" with parameters {', '.join(prices)}" if prices else ""
        entries = f"{int(used.sum())} entries of {', '.join(names) or 'no variable'}"
        return f"linear expression {list(self.shape)} in {entries}{with_prices}"


class View(Entries):
    """Entries of a variable, as an array: index it, add it, use it as a scope."""

    __array_ufunc__ = None

    index: Tensor

    def __init__(self, model: Space, name: str, index: Tensor) -> None:
        self.model, self.name, self.index = model, name, index

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the entries."""
        return tuple(self.index.shape)

    @property
    def _columns(self) -> Tensor | range:
        """Which variables the entries are."""
        return self.index

    def __len__(self) -> int:
        return len(self.index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """One object, not an array of entries: numpy and scipy then leave products to :meth:`__rmatmul__`."""
        alone = np.empty((), dtype=object)
        alone[()] = self
        return alone

    def __getitem__(self, key: Any) -> View:
        return View(self.model, f"{self.name}[...]", indexed(self.index, key, self.name))

    def rows(self) -> RowExpression:
        """Return the entries as rows."""
        return self.expression().rows()

    def expression(self) -> Expression:
        """Return the entries as a linear expression."""
        return self._times(constant(self.shape, 1.0))

    def _times(self, factor: Tensor) -> Expression:
        term = Term(self._columns, factor, None)
        return Expression(self.model, self.shape, (term,), constant(self.shape))

    def sum(self, axis: int | None = None) -> Expression:
        """Sum of all entries, or along an axis: see :meth:`Expression.sum`."""
        return self.expression().sum(axis)

    @property
    def T(self) -> View:
        """Return the entries of a matrix, transposed."""
        return View(self.model, self.name, self.index.T)

    def reshape(self, *shape: int) -> View:
        """Return the same entries in another shape."""
        try:
            return View(self.model, self.name, self.index.reshape(*shape))
        except (TypeError, RuntimeError) as error:
            must = "the number of entries must agree"
            raise ShapeError(f"{self.name} of shape {self.shape} has no shape {shape}; {must}") from error

    def __add__(self, other: object) -> Expression:
        return self.expression() + other

    __radd__ = __add__

    def __sub__(self, other: object) -> Expression:
        return self.expression() - other

    def __rsub__(self, other: object) -> Expression:
        return -self.expression() + other

    def __neg__(self) -> Expression:
        return -self.expression()

    def __mul__(self, other: object) -> Expression:
        if isinstance(other, Expression | View | Parameter):
            return self.expression() * other
        factor = coefficients(other, self.shape, self.model.batch, f"coefficient of {self.name}")
        return self._times(factor)

    __rmul__ = __mul__

    def __truediv__(self, other: object) -> Expression:
        return self.expression() / other

    def __matmul__(self, other: object) -> Expression:
        return (self * inner(other, self.shape)).sum()

    def __rmatmul__(self, other: Any) -> Any:
        """Costs times variables, or rows: a matrix, unless it is a row of costs for each instance."""
        if is_matrix(other, self.model.batch, len(self.index)):
            from blocklp.language.row_expression import RowExpression

            return RowExpression.product(other, self.model, self.index, repr(self))
        return self @ other

    def __repr__(self) -> str:
        return f"{self.name}{list(self.shape)}" if self.shape else self.model.entry(int(self.index))


def _is_rows(value: object) -> TypeGuard[RowExpression]:
    """Whether it is what a matrix times variables gives, which adds expressions to itself."""
    return isinstance(value, Compared) and not isinstance(value, Entries)

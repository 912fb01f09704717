r"""How a parameter of an objective and the variables asked for lie in an instance's row of variables.

With the values p of the parameter, the costs of the minimisation are :math:`\pm(c_0 + J p)`: J has the factor
of every term of the objective that the parameter is in.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from blocklp.errors import OptionError, ShapeError
from blocklp.language.expression import Expression, Parameter, View
from blocklp.language.sense import Sense
from blocklp.options import of_type, shown
from blocklp.solver import Solver


class _Positions:
    """Places in rows of a batch; those that follow each other are copied in one piece.

    Parameters
    ----------
    index : Tensor
        ``(places,)`` int64; a place may come several times.
    size : int
        Length of the rows.
    """

    def __init__(self, index: Tensor, size: int) -> None:
        self.index, self.size = index, size
        first = int(index[0]) if len(index) else 0
        follow = torch.arange(first, first + len(index), device=index.device)
        self.run = slice(first, first + len(index)) if torch.equal(index, follow) else None

    def taken(self, rows: Tensor) -> Tensor:
        """What is there: ``(batch, size) -> (batch, places)``."""
        return rows[:, self.index] if self.run is None else rows[:, self.run].clone()

    def placed(self, values: Tensor) -> Tensor:
        """Rows with the sums of what is put at each place: ``(batch, places) -> (batch, size)``."""
        if self.run is not None:
            return torch.nn.functional.pad(values, (self.run.start, self.size - self.run.stop))
        none = values.new_zeros(len(values), self.size)
        return none.scatter_add(1, self.index.expand(len(values), -1), values)


@dataclass(frozen=True)
class CostMap:
    """The parameter, the variables, and the matrix J.

    Attributes
    ----------
    parameter : Parameter
        What is predicted.
    shape, out_shape : tuple of int
        Of the parameter, and of the variables asked for.
    entry, column, factor : Tensor
        ``(terms,)`` int64, int64 and float64: entries of the parameter, the variables that they multiply, and
        by what.
    out : Tensor
        ``(outputs,)`` int64: the variables asked for, row by row.
    size : int
        Number of variables of an instance.
    sense : Sense
        Of the model.
    """

    parameter: Parameter
    shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    entry: Tensor
    column: Tensor
    factor: Tensor
    out: Tensor
    size: int
    sense: Sense

    @classmethod
    def of(cls, solver: Solver, parameter: Parameter, variables: View | None) -> CostMap:
        """Look a parameter and variables up in the model of a solver.

        Parameters
        ----------
        solver : Solver
            Of the model.
        parameter : Parameter
            The parameter in the objective whose values are predicted.
        variables : View or None
            The variables that a layer returns; None for those that the parameter is multiplied by.

        Returns
        -------
        CostMap
            From values of the parameter to costs, and back.

        Raises
        ------
        OptionError
            If the objective does not hold the parameter, or the variables are those of another model.
        """
        model = solver.models[0]
        objective = model.objective
        assert isinstance(objective, Expression)
        of_type(parameter, Parameter, "cost", "the parameter of the objective whose values are predicted")
        terms = [t for t in objective.terms if t.parameter is parameter]
        if not terms:
            names = {t.parameter.name for t in objective.terms if t.parameter is not None}
            has = (
                f"it holds {', '.join(sorted(names))}"
                if names
                else "it holds none: multiply variables by one"
            )
            raise OptionError(f"cost is {shown(parameter)}, which the objective does not hold; {has}")
        if variables is None:
            if len(terms) > 1:
                need = "say which variables the layer returns, by variables="
                raise OptionError(f"{shown(parameter)} is in {len(terms)} terms of the objective; {need}")
            index = terms[0].index
        else:
            of_type(variables, View, "variables", "a variable of the model, or entries of one")
            if variables.model is not model:
                need = "give variables of the model that the layer is of"
                raise OptionError(f"variables are {shown(variables)}, of another model; {need}")
            index = variables.index
        device = solver.device
        flat = [t.index.reshape(-1) for t in terms]
        factors = [t.factor.expand(1, *t.index.shape).reshape(-1) for t in terms]
        entries = [torch.arange(len(own)) for own in flat]
        return cls(
            parameter=parameter,
            shape=parameter.shape,
            out_shape=tuple(index.shape),
            entry=torch.cat(entries).to(device),
            column=torch.cat(flat).to(device),
            factor=torch.cat(factors).to(device),
            out=index.reshape(-1).to(device),
            size=model.size,
            sense=solver.sense,
        )

    @property
    def entries(self) -> int:
        """Number of entries of the parameter."""
        return torch.Size(self.shape).numel()

    @cached_property
    def _repeats(self) -> bool:
        return bool((torch.bincount(self.out) > 1).any())

    @cached_property
    def _entries(self) -> _Positions:
        return _Positions(self.entry, self.entries)

    @cached_property
    def _columns(self) -> _Positions:
        return _Positions(self.column, self.size)

    @cached_property
    def _outputs(self) -> _Positions:
        return _Positions(self.out, self.size)

    def rows(self, values: Tensor, what: str) -> Tensor:
        """Values ``(batch, *shape)`` of the parameter as ``(batch, entries)``.

        Raises
        ------
        ShapeError
            If they have another shape.
        """
        return _as_rows(values, self.shape, what, f"of {self.parameter.name!r}")

    def points(self, values: Tensor, what: str) -> Tensor:
        """Values ``(batch, *out_shape)`` of the variables as ``(batch, outputs)``.

        Raises
        ------
        ShapeError
            If they have another shape.
        OptionError
            If the layer returns a variable twice, which may then have two values.
        """
        if self._repeats:
            need = "name each of them once in variables="
            raise OptionError(f"{what} would set a variable twice, since the layer returns it twice; {need}")
        return _as_rows(values, self.out_shape, what, "of the variables")

    def costs(self, fixed: Tensor, values: Tensor) -> Tensor:
        """Costs of the minimisation, with the ``fixed`` ones: ``(batch, entries) -> (batch, variables)``."""
        return fixed + self.sense.turn(self._columns.placed(self.factor * self._entries.taken(values)))

    def adjoint(self, gradient: Tensor) -> Tensor:
        """From gradients in costs of the minimisation ``(batch, variables)`` to ``(batch, entries)``."""
        return self._entries.placed(self._columns.taken(self.sense.turn(gradient)) * self.factor)

    def taken(self, x: Tensor) -> Tensor:
        """The variables asked for, of points ``(batch, variables)``: ``(batch, outputs)``."""
        return self._outputs.taken(x)

    def placed(self, values: Tensor) -> Tensor:
        """The adjoint of :meth:`taken`: ``(batch, outputs) -> (batch, variables)``."""
        return self._outputs.placed(values)

    def complete(self) -> Tensor:
        """Where the variables that the parameter multiplies are among those asked for: ``(terms,)`` int64.

        Raises
        ------
        OptionError
            If one is not, so that its cost at a label is not known.
        """
        place = torch.full((self.size,), -1, dtype=torch.long, device=self.out.device)
        place[self.out] = torch.arange(len(self.out), device=self.out.device)
        found = place[self.column]
        if bool((found < 0).any()):
            need = "give all of them to the layer, as variables="
            raise OptionError(
                f"{self.parameter.name!r} multiplies variables that the layer does not return; {need}"
            )
        return found

    def products(self, values: Tensor, points: Tensor) -> Tensor:
        """Value that the parameter adds to the objective, in the sense of the model.

        Parameters
        ----------
        values : Tensor
            ``(batch, entries)``: of the parameter.
        points : Tensor
            ``(batch, outputs)``: of the variables asked for.

        Returns
        -------
        Tensor
            ``(batch,)``.
        """
        return (values[:, self.entry] * self.factor * points[:, self.complete()]).sum(1)


def _as_rows(values: Tensor, shape: tuple[int, ...], what: str, of: str) -> Tensor:
    """Values ``(batch, *shape)`` as ``(batch, n)``."""
    if values.dim() != len(shape) + 1 or tuple(values.shape[1:]) != shape:
        need = f"give (batch, *{shape}), the shape {of}"
        raise ShapeError(f"{what} have shape {tuple(values.shape)}; {need}")
    return values.flatten(1) if shape else values[:, None]

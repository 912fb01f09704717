"""The variables and parameters that a model declares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral

import numpy as np
import torch
from torch import Tensor

from blocklp.errors import ModelError, NonFiniteError
from blocklp.language.coefficients import coefficients
from blocklp.language.expression import Parameter
from blocklp.language.shard import Shard
from blocklp.language.variable import Variable
from blocklp.options import flag, lengths, named, numbers, real, shown, text


class Declared:
    """The variables of a model, one after the other.

    Parameters
    ----------
    batch : int
        Number of instances.
    """

    def __init__(self, batch: int = 1) -> None:
        if isinstance(batch, bool) or not isinstance(batch, Integral) or batch < 1:
            raise ModelError(f"batch is {shown(batch)}; it is the number of instances, an integer from 1 on")
        self.batch: int = int(batch)
        self.size: int = 0
        self.variables: dict[str, Variable] = {}
        self.part: Shard | None = None
        self.private: set[str] = set()

    def variable(
        self,
        name: str,
        shape: int | Sequence[int] = (),
        *,
        lower: object,
        upper: object,
        grid: float = 0.0,
        integer: bool = False,
        private: bool = False,
    ) -> Variable:
        """Declare an array of variables.

        Parameters
        ----------
        name : str
            Unique in the model.
        shape : int or sequence of int
            Shape of one instance's array; ``()`` for a scalar.
        lower, upper : array_like
            Finite bounds that broadcast to ``shape`` or ``(batch, *shape)``.
        grid : float
            Where optima are known to lie at multiples of a number, as those of roof duality do at halves:
            primal points are also tried with these variables rounded to it. 0 for no such number.
        integer : bool
            Whether only integers count. :func:`blocklp.solve_exact` keeps to that; all other solves bound the
            relaxation without it, whose bound holds for integers too.
        private : bool
            Whether the variables are of this process alone, in a model of which processes state parts
            (:meth:`blocklp.Model.shard`): in other processes the array has other entries, in any number.

        Returns
        -------
        Variable
            The array, as which it is indexed, added and used as a scope.

        Raises
        ------
        ModelError
            If the name is taken, a bound is infinite, NaN or no number, a lower bound is above its upper
            bound, or variables are private in a model that one process states whole.
        ShapeError
            If the shape is none, or a bound does not fit it.
        OptionError
            If ``grid`` is no such number.
        """
        if text(name, "the name of a variable") in self.variables:
            raise ModelError(f"the model already has a variable {name!r}; choose another name")
        shape = lengths(shape, f"variable {name!r}")
        low, high = (self._bound(v, shape, name, side) for v, side in ((lower, "lower"), (upper, "upper")))
        if bool((low > high).any()):
            i, *where = (low > high).nonzero()[0].tolist()
            least, most = (float(side[(i % len(side), *where)]) for side in (low, high))
            where_else = f" in instance {i}" * (len(low) > 1 or len(high) > 1)
            wrong = f"the lower bound {least:g} of {named(name, where)} is above its upper bound {most:g}"
            raise ModelError(f"variable {name!r}: {wrong}{where_else}")
        step = real(grid, f"grid of variable {name!r}", positive=False)
        columns = slice(self.size, self.size + math.prod(shape))
        whole = flag(integer, f"integer of variable {name!r}")
        if flag(private, f"private of variable {name!r}"):
            if self.part is None:
                need = "make the model by Model.shard(rank, world)"
                raise ModelError(
                    f"variable {name!r} is private, and one process states the whole model; {need}"
                )
            self.private.add(name)
        made = Variable(self, name, columns, low, high, step, whole)
        self.variables[name] = made
        self.size = made.columns.stop
        return made

    def _bound(self, value: object, shape: tuple[int, ...], name: str, side: str) -> Tensor:
        try:
            if value is not None:
                return coefficients(value, shape, self.batch, f"{side} bound of {name!r}")
            where = ""
        except NonFiniteError:
            data = numbers(value, side)
            bad = (~torch.isfinite(data)).nonzero()[0].tolist()
            where = f" at {named(name, bad[-len(shape) :])}" if shape and data.dim() >= len(shape) else ""
        raise ModelError(
            f"variable {name!r} is unbounded: its {side} bound holds None, NaN or an infinity{where}; "
            f"certified bounds need finite variable bounds, give the tightest that you know"
        )

    def parameter(self, name: str, shape: int | Sequence[int] = ()) -> Parameter:
        """Declare a cost that may change between solves; multiply it with a variable of the same shape.

        Raises
        ------
        ModelError, ShapeError
            If the name or the shape is none.
        """
        name = text(name, "the name of a parameter")
        return Parameter(name, lengths(shape, f"parameter {name!r}"), self.batch)

    def entry(self, column: int) -> str:
        """Return the name of the variable in a column of an instance's row, as ``x[2, 1]``."""
        of = next(v for v in self.variables.values() if column < v.columns.stop)
        return named(of.name, np.unravel_index(column - of.columns.start, of.shape))

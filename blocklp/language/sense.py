"""The reduction of a maximisation to a minimisation: the objective and all that follows is negated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from torch import Tensor

Value = TypeVar("Value", float, Tensor, dict[str, Tensor])
Record = TypeVar("Record")


@dataclass(frozen=True)
class Sense:
    """Whether a model maximises; the engine minimises.

    Negation is its own inverse: the same functions take costs, cutoffs and warm starts to the engine, and
    bounds, values, multipliers and events back to the model.

    Attributes
    ----------
    maximizing : bool
        Whether values change their signs on the way.
    """

    maximizing: bool

    def __str__(self) -> str:
        return "maximize" if self.maximizing else "minimize"

    def turn(self, value: Value) -> Value:
        """A number or tensor, or a dict of tensors, in the other sense; itself where the model minimises.

        Parameters
        ----------
        value : float, Tensor or dict of Tensor
            A cost, bound, value of the objective, multiplier or price.

        Returns
        -------
        float, Tensor or dict of Tensor
            Of the same type and shape, negated where the model maximises.
        """
        if not self.maximizing:
            return value
        return {name: -own for name, own in value.items()} if isinstance(value, dict) else -value

    def turned(self, record: Record, *fields: str) -> Record:
        """A record whose ``fields`` are in the other sense; itself where the model minimises.

        Parameters
        ----------
        record : dataclass
            An event, results, a state or bounds of nodes.
        *fields : str
            The fields that hold costs, bounds, values of the objective, multipliers or prices.

        Returns
        -------
        dataclass
            A copy; the other fields are the given record's own.
        """
        if not self.maximizing:
            return record
        changes = {field: self.turn(getattr(record, field)) for field in fields}
        return replace(record, **changes)  # type: ignore[type-var]

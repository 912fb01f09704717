"""The variables of a model, for expressions and constraints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Space(Protocol):
    """A model as its expressions see it.

    Attributes
    ----------
    batch, size : int
        Numbers of instances, and of variables of an instance.
    variables : mapping of str to Variable
        The variables by name, in the order of their columns.
    """

    batch: int
    size: int

    @property
    def variables(self) -> Mapping[str, Any]:
        """Return the variables by name."""
        ...

    def entry(self, column: int) -> str:
        """Return the name of the variable in a column of an instance's row, as ``x[2, 1]``."""
        ...

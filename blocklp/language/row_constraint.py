"""Constraints that couple blocks, as :meth:`blocklp.Model.add` takes them.

They are in a file of their own since that of the rows imports scipy, which takes long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from blocklp.errors import ModelError
from blocklp.language.space import Space

if TYPE_CHECKING:
    from scipy.sparse import coo_array


@dataclass(frozen=True, eq=False)
class RowConstraint:
    r"""Rows with their sides, :math:`l \le A x \le u`, for :meth:`Model.add`.

    Attributes
    ----------
    model : Space
        The model of the variables.
    matrix : coo_array
        ``(rows, variables of the model)``.
    lower, upper : Tensor
        ``(batch or 1, rows)`` float64, infinite for none.
    """

    model: Space
    matrix: coo_array
    lower: Tensor
    upper: Tensor

    def __bool__(self) -> bool:
        need = "give it to add(), and state l <= A x <= u by add_rows()"
        raise ModelError(f"a constraint is neither true nor false; {need}")

    def __repr__(self) -> str:
        return f"constraint of {self.matrix.shape[0]} rows with {self.matrix.nnz} entries"


class Compared:
    """Comparisons with numbers or linear forms that state rows, for :meth:`blocklp.Model.add`."""

    __hash__ = object.__hash__  # a comparison states a row and says not whether two objects are equal

    def __le__(self, other: object) -> RowConstraint:
        return self._compared(other, below=False, above=True)

    def __ge__(self, other: object) -> RowConstraint:
        return self._compared(other, below=True, above=False)

    def __eq__(self, other: object) -> RowConstraint:  # type: ignore[override]
        return self._compared(other, below=True, above=True)

    def rows(self) -> Any:
        """Return the linear forms, one a row: a :class:`blocklp.language.row_expression.RowExpression`."""
        raise NotImplementedError

    def _compared(self, other: object, below: bool, above: bool) -> RowConstraint:
        raise NotImplementedError

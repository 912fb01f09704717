"""Constraints that couple blocks, as :meth:`blocklp.Model.add` takes them: apart from the rows, since scipy takes long to import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from blocklp.errors import ModelError

if TYPE_CHECKING:
    from scipy.sparse import coo_array

    from blocklp.model import Model


@dataclass(frozen=True, eq=False)
class RowConstraint:
    r"""Rows with their sides, :math:`l \le A x \le u`: what :meth:`Model.add` takes.

    Attributes
    ----------
    model : Model
        The model of the variables.
    matrix : coo_array
        ``(rows, variables of the model)``.
    lower, upper : Tensor
        ``(batch or 1, rows)`` float64, infinite for none.
    """

    model: Model
    matrix: coo_array
    lower: Tensor
    upper: Tensor

    def __bool__(self) -> bool:
        raise ModelError("a constraint is neither true nor false; give it to add(), and state l <= A x <= u by add_rows()")

    def __repr__(self) -> str:
        return f"constraint of {self.matrix.shape[0]} rows with {self.matrix.nnz} entries"

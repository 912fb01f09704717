"""Handles that a model returns for added blocks and rows: the keys of solutions and states."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from blocklp.blocks.contract import BlockType
from blocklp.decomposition.incidence import Linear
from blocklp.language.row_constraint import RowConstraint

ROWS = "rows"
"""Name of the prices of all rows beside the blocks, in states and multipliers."""


def name_of_size(name: str, size: int) -> str:
    """Name of the group of those blocks of a name that have so many variables, where they differ in it."""
    return f"{name}[{size}]"


@dataclass(frozen=True, eq=False)
class Blocks:
    """The handle of added blocks: key of ``Solution.duals``.

    Attributes
    ----------
    name : str
        Unique in the model.
    type : BlockType
        Their type.
    scope : Tensor
        ``(blocks, dim)`` int64: the variables of each block, as columns of an instance's row.
    given : BlockType or None
        The type as it was given where its data require gradients, which those of ``type`` never do.
    """

    name: str
    type: BlockType
    scope: Tensor
    maps: tuple[Linear, Linear] | None = None
    given: BlockType | None = None

    def __repr__(self) -> str:
        return f"{self.name}: {self.scope.shape[0]} x {self.type!r}"


@dataclass(frozen=True, eq=False)
class Rows:
    """The handle of added rows.

    Attributes
    ----------
    name : str
        Unique in the model; key of :meth:`Solution.price` and :meth:`Solution.slack`.
    constraint : RowConstraint
        The rows, and their sides.
    given : RowConstraint or None
        The rows as they were given where sides require gradients, which those of ``constraint`` never do.
    """

    name: str
    constraint: RowConstraint
    given: RowConstraint | None = None

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self.constraint.matrix.shape[0])

    def __repr__(self) -> str:
        return f"{self.name}: {self.count} rows, {self.constraint.matrix.nnz} entries"

r"""Step sizes of methods that pass over the rows of all blocks: two diagonals, and the norm between them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.blocks.contract import Rows, pick
from blocklp.deadline import Deadline
from blocklp.decomposition.lanczos import largest_singular_value
from blocklp.decomposition.problem import Decomposition
from blocklp.kernels.program import Program


@dataclass(frozen=True)
class StepSizes:
    r"""The diagonals T and :math:`\Sigma`: inverse absolute column and row sums of A, over a norm.

    (Pock and Chambolle 2011, eq. 10 with alpha = 1.)  Both are over the norm of
    :math:`\Sigma^{1/2} A T^{1/2}`, which is at most 1 then and, where entries have either sign, often a half.

    Attributes
    ----------
    row, length : Tensor
        ``(batch, rows)``: the diagonal of Sigma, and its inverse.
    column : Tensor
        ``(batch, variables)``: the diagonal of T.
    norm : Tensor
        ``(batch,)``.
    size : Tensor
        ``(batch,)`` float64: squared length of :attr:`Program.reach`, over inverse column sums.
    """

    row: Tensor
    length: Tensor
    column: Tensor
    norm: Tensor
    size: Tensor

    @classmethod
    def of(cls, program: Program, problem: Decomposition, deadline: Deadline) -> StepSizes:
        """Estimate the norm of the rows, by some products with them.

        Parameters
        ----------
        program : Program
            The rows.
        problem : Decomposition
            The problem of this program.
        deadline : Deadline
            Checked before every product.

        Returns
        -------
        StepSizes
            Of all instances.

        Raises
        ------
        TimeLimitError
            If the deadline is over.
        """
        sums, used = (program.row_sums, program.column_sums), program.used
        # Without entries any step is as good.
        row, column = (torch.where(t > 0, 1 / t, torch.ones_like(t)) for t in sums)
        # Squares may be beyond single precision.
        reach = program.reach.double()
        size = problem.totals.over_variables_in_order(reach / column.double() * reach)
        steps = row, column, used, program.column_sums > 0
        if len(program.entries) == 1 and all(bool((t == t[:1]).all()) for t in steps):  # one norm for all
            first, count = slice(0, 1), len(row)
            alone, alike = program.select(first), problem.select(first)
            norm = _norm(alone, alike, row[first], column[first], deadline).expand(count)
        else:
            norm = _norm(program, problem, row, column, deadline)
        row, column = row / norm[:, None], column / norm[:, None]
        return cls(row, 1 / row, column, norm, size)

    def weight(self, problem: Decomposition) -> Tensor:
        """Primal weight ``(batch,)``: the size of the points over that of the cost."""
        cost = problem.cost.double()
        own = problem.totals.over_variables_in_order(cost * self.column.double() * cost) * self.norm.double()
        weight = (self.size / own).sqrt().to(self.row)
        return torch.where(torch.isfinite(weight) & (weight > 0), weight, torch.ones_like(weight))

    def select(self, rows: Rows) -> StepSizes:
        """Return the step sizes of some instances."""
        return StepSizes(*(pick(t, rows) for t in (self.row, self.length, self.column, self.norm, self.size)))


def _norm(
    program: Program, problem: Decomposition, row: Tensor, column: Tensor, deadline: Deadline
) -> Tensor:
    """The norm ``(batch,)`` of the rows that are used, scaled by the roots of two diagonals."""
    root, across = column.sqrt(), row * program.used

    def gram(v: Tensor) -> Tensor:
        reached = program.activity(problem, root * v)
        return root * problem.collect(program.adjoint(problem, across * reached))

    met = (program.column_sums > 0).to(root)
    return largest_singular_value(gram, met, problem.totals, deadline).clamp(max=1)

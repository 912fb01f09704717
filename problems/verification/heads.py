"""Softmax as the last layer: what the outputs are made of, and which properties speak of what it is applied to alike.

A softmax is increasing in the differences of its arguments: ``y_i <= y_j`` where ``x_i <= x_j``, for two outputs of one
normalisation.  A log-softmax keeps the differences themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from blocklp.errors import ModelError
from blocklp.problems.verification.properties import Property, Row


@dataclass(frozen=True, eq=False)
class Softmax:
    """A softmax, or its logarithm, of what the last operation of a network gives.

    Attributes
    ----------
    groups : Tensor
        ``(outputs,)`` int64: which outputs are normalised together.
    logarithm : bool
        Whether its logarithm is taken.
    name : str
        What errors call it.
    """

    groups: Tensor
    logarithm: bool
    name: str

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs ``(batch, outputs)`` for results ``(batch, outputs)`` of the last operation."""
        groups = self.groups.to(x.device)
        count = int(groups.max()) + 1
        index = groups.expand_as(x)
        most = x.new_full((len(x), count), -torch.inf).scatter_reduce(1, index, x, "amax")
        below = x - most[:, groups]
        total = x.new_zeros(len(x), count).index_add(1, groups, below.exp())[:, groups]
        return below - total.log() if self.logarithm else below.exp() / total

    def check(self, prop: Property) -> None:
        """Refuse a property whose rows do not say the same of the outputs and of what the softmax is applied to.

        Raises
        ------
        ModelError
            A row is no comparison of two outputs or, for a logarithm, no difference of outputs.
        """
        groups = self.groups.tolist()
        for number, clause in enumerate(prop.clauses):
            for row in clause.rows():
                if not self._compares(row, groups):
                    wanted = "differences" if self.logarithm else "two outputs without a constant"
                    raise ModelError(
                        f"clause {number} of {prop.name or 'the property'} states more of the outputs of {self.name} than an order: "
                        f"rows that compare {wanted} are supported; state the property of the network without its last layer"
                    )

    def _compares(self, row: Row, groups: list[int]) -> bool:
        if not self.logarithm:
            pair = list(row.terms.items())
            return len(pair) == 2 and row.right == 0 and pair[0][1] == -pair[1][1] and groups[pair[0][0]] == groups[pair[1][0]]
        sums: dict[int, Fraction] = {}
        for output, value in row.terms.items():
            sums[groups[output]] = sums.get(groups[output], Fraction(0)) + value
        return not any(sums.values())

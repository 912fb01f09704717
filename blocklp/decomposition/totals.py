"""Sums and maxima over the blocks, or the variables, of each instance: what decisions are made of.

A process that holds an instance whole adds up what it holds.  Where processes hold parts of an instance, they
combine theirs (:mod:`blocklp.distributed.totals`), and all get the same numbers: every process must then ask
for the same ones in the same order.
"""

from __future__ import annotations

from torch import Tensor

from blocklp.decomposition.row_sums import in_order


class Totals:
    """Sums and maxima of instances that one process holds whole.

    Attributes
    ----------
    whole : bool
        Whether this process holds its instances whole.
    """

    whole = True

    def over_blocks(self, terms: Tensor) -> Tensor:
        """Sum of numbers of the blocks: ``(batch, k) -> (batch,)``."""
        return terms.sum(-1)

    def over_blocks_in_order(self, terms: Tensor) -> Tensor:
        """Sum of numbers of the blocks as loops add (:func:`in_order`): ``(batch, ...) -> (batch,)``."""
        return in_order(terms)

    def over_variables(self, terms: Tensor) -> Tensor:
        """Sum of numbers of the variables: ``(batch, variables) -> (batch,)``."""
        return terms.sum(-1)

    def over_variables_in_order(self, terms: Tensor) -> Tensor:
        """Sum of numbers of the variables as loops add (:func:`in_order`)."""
        return in_order(terms)

    def greatest(self, values: Tensor) -> Tensor:
        """The largest of the values ``(batch,)`` that the parts of each instance have."""
        return values

    def everywhere(self, met: Tensor) -> Tensor:
        """Whether all parts of each instance meet a condition: ``(batch,)`` bool."""
        return met

    def blocks(self, own: int) -> int:
        """Number of blocks of an instance, of which this process holds ``own``."""
        return own

    def variables(self, own: int) -> int:
        """Number of variables of an instance, of which this process holds ``own``."""
        return own


WHOLE = Totals()
"""Of all instances that one process holds whole."""

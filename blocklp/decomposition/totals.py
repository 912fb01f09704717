"""Sums and maxima over the blocks, or the variables, of each instance: what decisions are made of.

A process that holds an instance whole adds up what it holds.  Where processes hold parts of an instance, they
combine theirs (:mod:`blocklp.distributed.totals`), and all get the same numbers: every process must then ask
for the same ones in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
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

    def of_program_in_order(
        self, variables: Sequence[Tensor], rows: Sequence[Tensor], kinds: tuple[int, int]
    ) -> list[Tensor]:
        """Several sums of numbers of the variables, and of the rows, as loops add (:func:`in_order`).

        Parameters
        ----------
        variables, rows : sequence of Tensor
            ``(batch, variables)`` and ``(batch, rows)`` each.
        kinds : tuple of int
            How many rows the blocks of an instance have in all of its parts (:meth:`rows`), and how many are
            beside the blocks: these come last, and all parts have them.

        Returns
        -------
        list of Tensor
            ``(batch,)`` each: of variables, then of rows.
        """
        return [in_order(terms) for terms in (*variables, *rows)]

    def numbers(self, like: Tensor) -> Tensor:
        """The numbers in the instance of the variables of ``like`` ``(batch, variables)``: int64."""
        return torch.arange(like.shape[1], device=like.device)

    def greatest(self, values: Tensor) -> Tensor:
        """The largest of the values that the parts of each instance have, entry by entry."""
        return values

    def everywhere(self, met: Tensor) -> Tensor:
        """Whether all parts of each instance meet a condition, entry by entry: bool."""
        return met

    def blocks(self, own: int) -> int:
        """Number of blocks of an instance, of which this process holds ``own``."""
        return own

    def variables(self, own: int) -> int:
        """Number of variables of an instance, of which this process holds ``own``."""
        return own

    def rows(self, own: int) -> int:
        """Number of rows of the blocks of an instance, of which this process holds ``own``.

        All parts of an instance must be asked at once.
        """
        return own


WHOLE = Totals()
"""Of all instances that one process holds whole."""

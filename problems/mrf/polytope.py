"""Tables of pairs made to fit the marginals of their ends."""

from __future__ import annotations

from torch import Tensor


def rounded_tables(table: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Round tables to the transport polytopes of their ends.

    Rows and columns that weigh too much are scaled down, and what is missing is spread by its own product.  The change is at most
    twice what the margins were off (J. Altschuler, J. Weed and P. Rigollet, Near-linear time approximation algorithms for optimal
    transport via Sinkhorn iteration, NIPS 2017, Algorithm 2).

    Parameters
    ----------
    table : Tensor
        ``(..., n, m)``, not negative.
    first, second : Tensor
        ``(..., n)`` and ``(..., m)``, not negative, of equal sums.

    Returns
    -------
    Tensor
        ``(..., n, m)`` with row sums ``first`` and column sums ``second``.
    """
    table = table * (first / table.sum(-1).clamp(min=1e-30)).clamp(max=1)[..., None]
    table = table * (second / table.sum(-2).clamp(min=1e-30)).clamp(max=1)[..., None, :]
    rows, columns = (first - table.sum(-1)).clamp(min=0), (second - table.sum(-2)).clamp(min=0)
    return table + rows[..., :, None] * columns[..., None, :] / rows.sum(-1).clamp(min=1e-30)[..., None, None]

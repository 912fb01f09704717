"""The largest singular value of a matrix that is known by its products, by Lanczos steps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.decomposition.totals import Totals

STEPS, MARGIN = 16, 1.02
"""Steps that find the largest singular value, and what the estimate may lack."""


def largest_singular_value(
    gram: Callable[[Tensor], Tensor], met: Tensor, totals: Totals, deadline: Deadline
) -> Tensor:
    r"""The norm of a matrix B, a little too large as a rule.

    Parameters
    ----------
    gram : callable
        :math:`v \mapsto B^\top B v`, ``(batch, variables) -> (batch, variables)``.
    met : Tensor
        ``(batch, variables)``: 1 for columns of B that are not zero, else 0; in the precision of the
        products.
    totals : Totals
        Sums over variables.
    deadline : Deadline
        Checked before every step.

    Returns
    -------
    Tensor
        ``(batch,)``, in that precision; 1 where they are not finite, or all zero.

    Raises
    ------
    TimeLimitError
        If the deadline is over.
    """
    # Any start will do that is the same for an instance in every batch.
    number, add = totals.numbers(met) + 1, totals.over_variables_in_order
    v = (number * 0.618034).frac().add(0.5).to(met) * met
    before, off = torch.zeros_like(v), torch.zeros_like(v[:, 0])
    table = torch.zeros(len(v), STEPS, STEPS, dtype=torch.float64, device=v.device)
    v = v / add(v * v).sqrt()[:, None]
    for k in range(STEPS):
        deadline.check("estimating the norm of the rows")
        w = gram(v)
        on = add(v * w)
        w = w - on[:, None] * v - off[:, None] * before
        off = add(w * w).sqrt()
        table[:, k, k] = on
        if k + 1 < STEPS:
            table[:, k, k + 1] = table[:, k + 1, k] = off
        before, v = v, torch.where(off[:, None] > 0, w / off[:, None], torch.zeros_like(w))
    finite = torch.isfinite(table).flatten(1).all(1)
    largest = torch.linalg.eigvalsh(table.nan_to_num(0.0, 0.0, 0.0))[:, -1].clamp(min=0)
    norm = (largest.sqrt() * MARGIN).to(met)
    return torch.where(finite & (norm > 0), norm, torch.ones_like(norm))

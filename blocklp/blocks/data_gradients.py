"""Data of blocks that require gradients: whether something carries these on."""

from __future__ import annotations

import torch

from blocklp.blocks.capabilities import HasValueAt, constraints_of, supports
from blocklp.blocks.contract import BlockType, Constraints
from blocklp.errors import ModelError


def refuse_without_gradients(kind: BlockType, batch: int, blocks: int, dim: int) -> None:
    """Refuse a type whose data require gradients that nothing carries on.

    Parameters
    ----------
    kind : BlockType
        The type; attributes that require gradients are the data.
    batch, blocks, dim : int
        Instances, blocks and variables of a block.

    Raises
    ------
    ModelError
        If neither the type's constraints nor the points of its oracle carry gradients of its data.
    """
    if supports(kind, HasValueAt):
        return
    one = torch.ones(batch, blocks, dim, dtype=torch.float64)
    with torch.enable_grad():
        rows = constraints_of(kind)
        if (rows is not None and carries(rows)) or kind.min_oracle(one)[0].requires_grad:
            return
    names = ", ".join(kind.carried())
    raise ModelError(
        f"{kind.name}: {names} requires gradients, and neither its constraints() nor the points of its "
        f"min_oracle() carry them; calculate one of the two by operations of torch, or detach() the data"
    )


def carries(rows: Constraints) -> bool:
    """Whether some of the numbers of a system require gradients."""
    parts = (rows.matrix, rows.lower, rows.upper, rows.below, rows.above)
    return any(part is not None and part.requires_grad for part in parts)

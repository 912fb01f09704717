"""What checks of block types have in common: how they refuse, and the scale of differences."""

from __future__ import annotations

from torch import Tensor

from blocklp.blocks.contract import BlockType
from blocklp.errors import OracleError

CHEAPER = (
    "returned a point that is cheaper at another cost than the minimum there; minimise over the whole block"
)
"""What is said of an oracle that does not minimise."""


def size(cost: Tensor, point: Tensor) -> Tensor:
    """Magnitude against which differences of values are judged: ``(batch, blocks)``."""
    return (cost.abs() * (1 + point.abs())).sum(-1).double()


def refuse(kind: BlockType, bad: Tensor, complaint: str) -> None:
    """Raise if any block is bad, naming the first.

    Parameters
    ----------
    kind : BlockType
        The type.
    bad : Tensor
        ``(batch, blocks)`` bool.
    complaint : str
        Continues the name of the block in the message.

    Raises
    ------
    OracleError
        If any block is bad.
    """
    if bool(bad.any()):
        i, b = bad.nonzero()[0].tolist()
        raise OracleError(f"{kind.name}: block {b} of instance {i} {complaint}")

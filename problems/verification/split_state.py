"""The state of a node of branch and bound over signs and intervals of activations."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from blocklp.problems.verification.proving import Part

PACKED = ("signs", "cuts", "slopes", "betas", "ends")
"""The tensors of a node."""


@dataclass(frozen=True)
class SplitState:
    """A node.

    Attributes
    ----------
    spec : int
        Which specification it belongs to.
    signs : Tensor
        ``(unstable,)`` int8: 1 on, -1 off, 0 free; 1 for smooth activations that were cut.
    cuts : Tensor
        ``(2, smooth)`` float64: lower and upper bounds of the pre-activations of smooth ones.
    slopes, betas : Tensor
        ``(unstable,)`` float32: multipliers of the dual.
    ends : Tensor
        Its part of the input box, and bounds of first layers: :class:`ClippedBoxes`.
    candidates : tuple of int
        Free neurons worth a split, the most promising first.
    part : Part, optional
        Its part of the proof that is written.
    """

    spec: int
    signs: Tensor
    cuts: Tensor
    slopes: Tensor
    betas: Tensor
    ends: Tensor
    candidates: tuple[int, ...]
    part: Part | None = None

    @property
    def bytes(self) -> int:
        """Size."""
        return sum(t.numel() * t.element_size() for t in (self.signs, self.cuts, self.slopes, self.betas, self.ends))

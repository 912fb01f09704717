"""A minimiser as a module of a network."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from blocklp.declarative.derivatives import Function
from blocklp.declarative.node import Equality, argmin


class ArgminLayer(torch.nn.Module):
    """The node :func:`argmin` as a layer: it takes the parameters x of a batch and returns the minimisers y.

    Parameters
    ----------
    f : callable
        ``f(*parameters, y) -> (batch,)``; a ``torch.nn.Module`` (in float64) is learned with the rest.
    start : Tensor
        ``(n,)``: where every instance starts.
    equality : pair of Tensor, optional
        A and b, as of :func:`argmin`.
    inequality : callable, optional
        ``c(*parameters, y) -> (batch, m)``.
    t : float
        Infinite for the minimisers themselves, or that of the barrier.

    Examples
    --------
    >>> f = lambda x, y: (y - x).square().sum(1) + (1 + y.square()).sqrt().sum(1)
    >>> shrink = ArgminLayer(f, torch.zeros(2))
    >>> x = torch.tensor([[3.0, 0.0], [1.0, -1.0]], requires_grad=True)
    >>> shrink(x).sum().backward()
    >>> x.grad.shape
    torch.Size([2, 2])
    """

    start: Tensor

    def __init__(
        self,
        f: Function,
        start: Tensor,
        equality: Equality | None = None,
        inequality: Function | None = None,
        t: float = math.inf,
    ) -> None:
        super().__init__()
        self.f, self.equality, self.inequality, self.t = f, equality, inequality, t
        self.register_buffer("start", start.detach())

    def forward(self, *parameters: Tensor) -> Tensor:
        """Return ``(batch, n)`` float64 for parameters whose first dimension is the batch."""
        start = self.start.expand(len(parameters[0]), -1)
        return argmin(
            self.f, *parameters, start=start, equality=self.equality, inequality=self.inequality, t=self.t
        )

r"""Bounds of every neuron, layer by layer.

Layer by layer (thesis, 4.1.4), the unstable neurons of a layer get the LP over everything before it, both signs as one
batch; the tightened bounds enter the LPs of the next layer.  Iterates are float32; what is kept is evaluated in float64 with
all rounding charged, so the bounds hold for the real-valued function of the network's float32 weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from blocklp.ascent import ascend
from blocklp.bounds import rounding
from blocklp.problems.verification.network import Add, Affine, Input, Network, Relu
from blocklp.problems.verification.relaxation import Pair, Relaxation
from blocklp.problems.verification.slopes import SlopeDual
from blocklp.problems.verification.windows import window_sizes, windowed

CHUNK = 1_500_000
"""Activations of all LPs of a chunk together: its tensors should stay near the cache."""


@dataclass(frozen=True)
class LayerBounds:
    """Bounds of the result of one operation.

    Attributes
    ----------
    name : str
        The ReLU whose pre-activations these are, or "output".
    lower, upper : Tensor
        ``(*shape,)`` float64, valid.
    gap : Tensor or None
        ``(2, *shape)``: distance of lower and upper bound from a feasible value of their LP, where asked for; 0 for neurons
        whose interval bounds were enough to know their sign.
    seconds : float
        Time spent on the layer.
    """

    name: str
    lower: Tensor
    upper: Tensor
    gap: Tensor | None
    seconds: float

    @property
    def active(self) -> int:
        """Neurons that are never below zero."""
        return int((self.lower >= 0).sum())

    @property
    def inactive(self) -> int:
        """Neurons that are never above zero."""
        return int(((self.upper <= 0) & (self.lower < 0)).sum())

    @property
    def unstable(self) -> int:
        """Neurons of unknown sign."""
        return int(((self.lower < 0) & (self.upper > 0)).sum())


def intervals(network: Network, lower: Tensor, upper: Tensor, bounds: Mapping[int, Pair], to: int) -> list[Pair]:
    """Interval bounds of all results up to position ``to``, float64, rounded outwards.

    ``bounds`` of earlier ReLUs cut their results; everything has a leading batch dimension.
    """
    found: list[Pair] = []
    for at, op in enumerate(network.ops[: to + 1]):
        if isinstance(op, Input):
            found.append((lower, upper))
            continue
        low, high = found[op.inputs[0]]
        if isinstance(op, Relu):
            if at in bounds:
                low, high = torch.maximum(low, bounds[at][0]), torch.minimum(high, bounds[at][1])
            found.append((low.clamp(min=0), high.clamp(min=0)))
        elif isinstance(op, Add):
            other = found[op.inputs[1]]
            size = torch.maximum(low.abs(), high.abs()) + torch.maximum(other[0].abs(), other[1].abs())
            found.append(_outwards(low + other[0], high + other[1], size, 2))
        else:
            assert isinstance(op, Affine)
            absolute = op.absolute()
            centre, radius = op((low + high) / 2), absolute.linear((high - low) / 2)
            size = absolute(torch.maximum(low.abs(), high.abs()))
            found.append(_outwards(centre - radius, centre + radius, size, 2 * op.terms + 8))
    return found


def _outwards(low: Tensor, high: Tensor, size: Tensor, terms: int) -> Pair:
    error = rounding(terms, low.dtype) * size
    return low - error, high + error


@dataclass
class Tightener:
    """Works through the layers of one network and box.

    Parameters
    ----------
    network : Network
        In float64.
    lower, upper : Tensor
        ``(*input_shape,)`` float64.
    steps : int
        Evaluations of every LP; 1 is CROWN.
    gap : bool
        Find primal points too.
    deadline : float
        On the clock of :func:`time.perf_counter`; past it layers keep their interval bounds.
    output : bool
        Whether to bound the outputs too.
    """

    network: Network
    lower: Tensor
    upper: Tensor
    steps: int
    gap: bool = False
    deadline: float = float("inf")
    output: bool = True
    bounds: dict[int, Pair] = field(default_factory=dict)
    layers: list[LayerBounds] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fast = self.network.to(torch.float32, self.network.device)

    def run(self, progress: Callable[[LayerBounds], None] | None = None) -> None:
        """Bound all layers and the output."""
        ops = self.network.ops
        for relu in (*self.network.relus, *((len(ops),) if self.output else ())):
            began = time.perf_counter()
            node = ops[relu].inputs[0] if relu < len(ops) else relu - 1
            if relu == len(ops) and isinstance(ops[-1], Relu):
                low, high = (b.clamp(min=0) for b in self.bounds[relu - 1])
                gap = None
            else:
                low, high = intervals(self.network, self.lower[None], self.upper[None], self.bounds, node)[node]
                low, high, gap = self._tighten(node, low, high, everything=relu == len(ops))
            if relu < len(ops):
                self.bounds[relu] = (low, high)
            name = ops[relu].name if relu < len(ops) else "output"
            layer = LayerBounds(name, low[0], high[0], gap, time.perf_counter() - began)
            self.layers.append(layer)
            if progress is not None:
                progress(layer)

    def relaxation(self) -> Relaxation:
        """The relaxation with all bounds so far, float64, a batch of 1."""
        return Relaxation(self.network, self.lower[None], self.upper[None], dict(self.bounds))

    def _tighten(self, node: int, low: Tensor, high: Tensor, everything: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        relus = [r for r in self.network.relus if r in self.network.ancestors(node)[:-1]]
        flat_low, flat_high = low.flatten().clone(), high.flatten().clone()
        gap = flat_low.new_zeros(2, len(flat_low)) if self.gap else None
        wanted = torch.ones_like(flat_low, dtype=torch.bool) if everything else (flat_low < 0) & (flat_high > 0)
        neurons = wanted.nonzero()[:, 0]
        if len(neurons) and relus:  # without a ReLU before them intervals are exact
            sizes = window_sizes(self.network, node)
            size = sum(
                op.shape[0] * s[0] * s[1] if s is not None else int(torch.tensor(op.shape).prod())
                for op, s in zip(self.network.ops[:node], sizes or [None] * node, strict=False)
            )
            for chunk in neurons.split(max(1, CHUNK // (2 * size))):
                if time.perf_counter() >= self.deadline:
                    break
                found = self._chunk(node, relus, chunk, sizes, everything)
                flat_low[chunk] = torch.maximum(flat_low[chunk], found[0])
                flat_high[chunk] = torch.minimum(flat_high[chunk], -found[1])
                if gap is not None:
                    gap[:, chunk] = found[2:]
        shape = low.shape
        return flat_low.view(shape), flat_high.view(shape), None if gap is None else gap.view(2, *shape[1:])

    def _chunk(self, node: int, relus: list[int], neurons: Tensor, sizes: list[tuple[int, int]] | None, everything: bool) -> Tensor:
        """Lower bounds of some results and of their negatives ``(2, k)``, with distances to primal values ``(4, k)``."""
        exact = self.relaxation()
        both = neurons.repeat(2)
        if sizes is None:
            cost = exact.lower.new_zeros(len(both), *self.network.ops[node].shape)
            index = both
        else:
            exact, index = windowed(exact, node, both, sizes)
            cost = exact.lower.new_zeros(len(both), self.network.ops[node].shape[0], 1, 1)
        sign = torch.ones(2, len(neurons), dtype=cost.dtype, device=cost.device)
        sign[1] = -1
        cost.view(len(both), -1)[torch.arange(len(both), device=cost.device), index] = sign.flatten()
        fast = exact.to(torch.float32)
        dual = SlopeDual(fast, node, cost.float(), relus, {}, averaged=self.gap)
        done = None if everything or self.gap else (lambda value: value > 0)
        reached = ascend(dual, dual.start(), self.steps, done, lambda: time.perf_counter() >= self.deadline)
        slopes = {r: s.double() for r, s in zip(relus, reached.parameters, strict=True)}
        value = exact.backward(node, cost, slopes, charge=True).value
        if not self.gap:
            return value.view(2, -1)
        precise = SlopeDual(exact, node, cost, relus, {}, x=dual.x.double() if dual.x is not None else None)
        precise.trace = exact.backward(node, cost, slopes)
        return torch.cat([value.view(2, -1), (precise.primal() - value).view(2, -1)])

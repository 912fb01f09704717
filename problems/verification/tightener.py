"""Works through the layers of a network: interval bounds, and then LPs of the unstable neurons of all boxes as one batch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import NonFiniteError, TimeLimitError
from blocklp.methods import Admm, Prox, ProxBC, ProxFW
from blocklp.problems.verification.balls import Balls, picked
from blocklp.problems.verification.exact import exact_bounds
from blocklp.problems.verification.network import Network
from blocklp.problems.verification.operations import Add, Affine, Input, Relu, SmoothActivation, activated, float_error
from blocklp.problems.verification.planet import Planet
from blocklp.problems.verification.proving import Part, needed, stated
from blocklp.problems.verification.relaxation import Pair, Relaxation, undecided
from blocklp.problems.verification.slopes import SlopeDual, out_of_time
from blocklp.problems.verification.windows import uncut, window_sizes, windowed
from blocklp.rounding import rounding
from blocklp.search.parameter_ascent import ascend

CHUNK, BATCH = 500_000, 1_500_000
"""Activations of all LPs of a chunk together, and of all nodes of a batch: tensors should stay near the cache."""


ENGINE = ("admm", "prox", "proxbc", "proxfw", "polyak", "supergradient", "adam")
"""Methods of the engine that need nothing but the min-oracles of layers."""

WEIGHTED = {"admm": Admm(30.0), "prox": Prox(30.0), "proxbc": ProxBC(100.0), "proxfw": ProxFW(100.0)}
"""Proximal weights for networks, on the scale of the thesis's 100 (4.1.7.2); the engine's rule starts far from them."""


@dataclass(frozen=True, repr=False)
class LayerBounds:
    """Bounds of the result of one operation.

    Attributes
    ----------
    name : str
        The ReLU whose pre-activations these are, or "output".
    lower, upper : Tensor
        ``(*shape,)`` float64, valid; of several boxes ``(boxes, *shape)``.
    gap : Tensor or None
        ``(2, *shape)`` or ``(2, boxes, *shape)``: distance of lower and upper bound from a feasible value of their LP, where
        asked for; 0 for neurons
        whose interval bounds were enough to know their sign.
    seconds : float
        Time spent on the layer.
    """

    name: str
    lower: Tensor
    upper: Tensor
    gap: Tensor | None
    seconds: float

    def __repr__(self) -> str:
        return f"LayerBounds({self.name!r}: {tuple(self.lower.shape)} bounds, {self.unstable} unstable)"

    def box(self, number: int) -> LayerBounds:
        """Return the bounds of one of several boxes."""
        return replace(
            self, lower=self.lower[number], upper=self.upper[number], gap=None if self.gap is None else self.gap[:, number]
        )

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


def intervals(
    network: Network,
    lower: Tensor,
    upper: Tensor,
    bounds: Mapping[int, Pair],
    to: int,
    found: list[Pair] | None = None,
    deadline: Deadline | None = None,
) -> list[Pair]:
    """Interval bounds of all results up to a position, float64, rounded outwards; infinite where float64 is left.

    Parameters
    ----------
    network : Network
        The network.
    lower, upper : Tensor
        ``(batch, ...)`` float64: bounds of its input.
    bounds : mapping
        Bounds ``(batch, ...)`` of the results before earlier ReLUs, by position: they cut the results.
    to : int
        The last position.
    found : list, optional
        Bounds of the first results, which is extended.
    deadline : Deadline, optional
        When to give up.

    Raises
    ------
    TimeLimitError
        At the deadline.
    """
    found = [] if found is None else found
    for at, op in enumerate(network.ops[len(found) : to + 1], len(found)):
        if isinstance(op, Input):
            found.append((lower, upper))
            continue
        low, high = found[op.inputs[0]]
        if deadline is not None:
            op.ask(deadline, low)
        if isinstance(op, (Relu, SmoothActivation)):
            if at in bounds:
                high = torch.minimum(high, bounds[at][1])
                # Around a window neurons are fixed to zero, whatever their pre-activation would be.
                low = torch.maximum(low, bounds[at][0]).minimum(high)
            found.append(activated(op, low, high))
        elif isinstance(op, Add):
            other = found[op.inputs[1]]
            size = torch.maximum(low.abs(), high.abs()) + torch.maximum(other[0].abs(), other[1].abs())
            found.append(_outwards(low + other[0], high + other[1], size, 2, float_error(op, size, network.unit)))
        else:
            assert isinstance(op, Affine)
            absolute = op.absolute()
            centre, radius = op((low + high) / 2), absolute.linear((high - low) / 2)
            size = absolute(torch.maximum(low.abs(), high.abs()) + torch.finfo(low.dtype).tiny)  # for what underflows
            terms, error = 2 * op.terms + 8, float_error(op, size, network.unit)
            found.append(_outwards(centre - radius, centre + radius, size, terms, error))
    return found


def _outwards(low: Tensor, high: Tensor, size: Tensor, terms: int, more: Tensor | None) -> Pair:
    error = rounding(terms, low.dtype) * size + terms * torch.finfo(low.dtype).tiny
    if more is not None:
        error = error + more
    return (low - error).nan_to_num(-torch.inf, -torch.inf, -torch.inf), (high + error).nan_to_num(torch.inf, torch.inf, torch.inf)


@dataclass
class Tightener:
    """Works through the layers of one network over some boxes.

    Parameters
    ----------
    network : Network
        In float64.
    lower, upper : Tensor
        ``(boxes, *input_shape)`` float64; the methods of the engine and "exact" take one box.
    steps : int
        Evaluations of every LP; 1 is CROWN.
    gap : bool
        Find primal points too.
    deadline : Deadline
        Past it layers keep their interval bounds.
    output : bool
        Whether to bound the outputs too.
    signs : mapping
        Position of a ReLU to ``(1 or boxes, *shape)``: 1 for neurons known to be on, -1 for those known to be off, 0 for others.
    method, solver : str
        See :func:`network_bounds`.
    known : mapping
        Bounds of activations that hold already.
    part : Part, optional
        Where the multipliers of all bounds are written down, of "slopes" and one box.
    balls : Balls, optional
        Inputs are in these, too, with "interval", "crown" and "slopes"; bounds are then not those of interval arithmetic alone
        in the first layer either.
    """

    network: Network
    lower: Tensor
    upper: Tensor
    steps: int
    gap: bool = False
    deadline: Deadline = field(default_factory=Deadline)
    output: bool = True
    signs: Mapping[int, Tensor] = field(default_factory=dict)
    method: str = "slopes"
    solver: str = "highs"
    known: Mapping[int, Pair] = field(default_factory=dict)
    part: Part | None = None
    balls: Balls | None = None
    bounds: dict[int, Pair] = field(default_factory=dict)
    layers: list[LayerBounds] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.empty = False
        self._intervals: list[Pair] = []

    def run(self, progress: Callable[[LayerBounds], None] | None = None) -> None:
        """Bound all layers and the output; ``empty`` becomes true if the signs contradict each other."""
        ops = self.network.ops
        for relu in (*self.network.activations, *((len(ops),) if self.output else ())):
            began = time.perf_counter()
            node = ops[relu].inputs[0] if relu < len(ops) else relu - 1
            last = ops[-1]
            if relu == len(ops) and isinstance(last, (Relu, SmoothActivation)):
                low, high = activated(last, *self.bounds[relu - 1])
                gap = None
            else:
                low, high = intervals(self.network, self.lower, self.upper, self.bounds, node, self._intervals)[node]
                if relu in self.known:
                    low, high = torch.maximum(low, self.known[relu][0]), torch.minimum(high, self.known[relu][1])
                low, high, gap = self._tighten(relu, node, low, high, everything=relu == len(ops))
            if relu in self.signs:
                low = torch.where(self.signs[relu] > 0, low.clamp(min=0), low)
                high = torch.where(self.signs[relu] < 0, high.clamp(max=0), high)
            if bool((low > high).any()):
                self.empty = True
                if self.part is not None:
                    self.part.empty(relu, int((low > high).flatten().nonzero()[0]))
                return
            if relu < len(ops):
                self.bounds[relu] = (low, high)
            name = ops[relu].name if relu < len(ops) else "output"
            layer = LayerBounds(name, low, high, gap, time.perf_counter() - began)
            self.layers.append(layer)
            if progress is not None:
                progress(layer)

    def relaxation(self) -> Relaxation:
        """The relaxation with all bounds so far, float64, one instance a box."""
        return Relaxation(self.network, self.lower, self.upper, dict(self.bounds), self.deadline, self.balls)

    def _tighten(self, relu: int, node: int, low: Tensor, high: Tensor, everything: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        relus = [r for r in self.network.activations if r in self.network.ancestors(node)[:-1]]
        flat_low, flat_high = low.flatten(1).clone(), high.flatten(1).clone()
        gap = flat_low.new_zeros(2, *flat_low.shape) if self.gap else None
        wanted = torch.ones_like(flat_low, dtype=torch.bool) if everything else undecided(self.network, relu, flat_low, flat_high)
        boxes, neurons = wanted.nonzero().unbind(1)
        # Without an activation before them intervals are exact over boxes; of activations themselves they are as good as LPs.
        direct = isinstance(self.network.ops[node], (Relu, SmoothActivation))
        if len(neurons) and (relus or self.balls is not None) and self.method != "interval" and not direct:
            # In the engine's model a neuron has a value, so that one outside the image cannot be zero whatever its value.
            sizes = None if self.method in ENGINE else window_sizes(self.network, node)
            shapes = [op.shape for op in self.network.ops[:node]]
            if sizes is not None:
                shapes = [(shape[0], *window) for shape, window in zip(shapes, sizes, strict=False)]
            size = sum(math.prod(shape) for shape in shapes)
            exact, most = self.relaxation(), max(1, CHUNK // (2 * max(1, size)))
            for box, chunk in zip(torch.split(boxes, most), torch.split(neurons, most), strict=True):
                try:
                    found = self._chunk(exact, node, relu, relus, box, chunk, sizes, everything)
                except (TimeLimitError, NonFiniteError):  # an LP code takes no numbers that are not finite
                    break
                # What an LP code gave up is NaN.
                flat_low[box, chunk] = torch.fmax(flat_low[box, chunk], found[0])
                flat_high[box, chunk] = torch.fmin(flat_high[box, chunk], -found[1])
                if gap is not None:
                    gap[:, box, chunk] = found[2:]
        shape = low.shape
        return flat_low.view(shape), flat_high.view(shape), None if gap is None else gap.view(2, *shape)

    def _chunk(
        self,
        exact: Relaxation,
        node: int,
        relu: int,
        relus: list[int],
        boxes: Tensor,
        neurons: Tensor,
        sizes: list[tuple[int, int]] | None,
        everything: bool,
    ) -> Tensor:
        """Lower bounds of some results and of their negatives ``(2, k)``, with distances to primal values ``(4, k)``."""
        if self.method == "exact":
            known = {r: (low[0], high[0]) for r, (low, high) in exact.bounds.items()}
            given = (self.network, self.lower[0], self.upper[0], known, node, neurons.tolist())
            lows, highs = exact_bounds(*given, solver=self.solver, time_limit=self.deadline)
            ends = [torch.as_tensor(lows), -torch.as_tensor(highs)]
            return torch.stack(ends + [torch.zeros(len(neurons))] * (2 * self.gap)).to(self.lower.device)
        both, boxes = neurons.repeat(2), boxes.repeat(2)
        if sizes is None:
            cost = exact.lower.new_zeros(len(both), *self.network.ops[node].shape)
            fixed = {r: picked(self.signs[r], boxes) for r in relus if r in self.signs}
            index, signs = both, {r: sign.expand(len(both), *sign.shape[1:]) for r, sign in fixed.items()}
            exact = exact.select(boxes)
        else:
            exact, index, signs = windowed(exact, node, boxes, both, sizes, self.signs)
            cost = exact.lower.new_zeros(len(both), self.network.ops[node].shape[0], 1, 1)
        sign = torch.ones(2, len(neurons), dtype=cost.dtype, device=cost.device)
        sign[1] = -1
        cost.view(len(both), -1)[torch.arange(len(both), device=cost.device), index] = sign.flatten()
        # Hidden layers by CROWN's slopes; the engine's methods start from them.
        plain = not relus or self.method in ENGINE or (self.method == "alpha-crown" and not everything) or self.steps == 1
        if plain and not self.gap and not signs:
            dual = SlopeDual(exact, node, cost, relus, {})
            slopes, betas = dual.named(dual.start())
        else:
            scaled = {r: sign.float() for r, sign in signs.items()}
            dual = SlopeDual(exact.to(torch.float32), node, cost.float(), relus, scaled, averaged=self.gap)
            whole = everything or self.gap or isinstance(self.network.ops[relu], SmoothActivation)
            done = None if whole else (lambda value: value > 0)
            reached = ascend(dual, dual.start(), 1 if plain else self.steps, done, out_of_time(self.deadline))
            slopes, betas = dual.named([p.double() for p in reached.parameters])
        if self.part is not None:
            slopes = {r: stated(s) for r, s in slopes.items()}
        trace = exact.backward(node, cost, slopes, betas, charge=True)
        value = trace.value
        if self.part is not None:
            found = [self.relaxation().start(relus, 1), {}]
            if self.steps > 1 or signs:
                found = [needed(exact, trace, slopes), betas]
                found = found if sizes is None else [uncut(self.network, node, both, sizes, some) for some in found]
            self.part.improve(relu, neurons, *found)
        if self.method in ENGINE:
            box = intervals(exact.network, exact.lower, exact.upper, exact.bounds, node)[node]
            # A model holds finite numbers; where those of the network are not, CROWN's bounds are the answer.
            if bool(torch.isfinite(torch.stack([value.min(), *(end.abs().max() for end in box)])).all()) and not self.deadline.over():
                # Models are stated on the CPU.
                host = cost.cpu(), (box[0].cpu(), box[1].cpu()), {relu: slope.cpu() for relu, slope in slopes.items()}
                planet = Planet.build(exact.to(torch.float64, "cpu"), node, *host)
                solved = planet.model.solve(
                    device=self.lower.device,
                    method=WEIGHTED.get(self.method, self.method),
                    passes=self.steps,
                    warm_start=planet.start,
                    time_limit=max(self.deadline.left(), 1e-3),
                    cutoff=None if everything else 0.0,
                )
                value = torch.fmax(value, solved.safe_bound)
        if not self.gap:
            return value.view(2, -1)
        precise = SlopeDual(exact, node, cost, relus, {}, x=dual.x.double() if dual.x is not None else None)
        precise.trace = exact.backward(node, cost, slopes)
        return torch.cat([value.view(2, -1), (precise.primal() - value).nan_to_num(torch.inf, torch.inf).view(2, -1)])

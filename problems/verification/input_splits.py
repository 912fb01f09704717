"""Branch and bound over the input box, for networks of few inputs.

A node is a box.  All layers of all boxes of a batch are bounded forwards, by affine forms, and neurons of unknown sign by one
backward pass a layer (CROWN), in float64 with rounding charged; the input that moves the linear bounds most is halved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.problems.verification.affine_forms import AffineForms
from blocklp.problems.verification.network import Network
from blocklp.problems.verification.operations import Affine, Input
from blocklp.problems.verification.proving import COARSE, TIE, Part, needed, stated, stated_mix, within
from blocklp.problems.verification.relaxation import Pair, Relaxation, Trace, undecided
from blocklp.problems.verification.slopes import MixedDual, SlopeDual, out_of_time
from blocklp.problems.verification.tightener import BATCH, intervals
from blocklp.rounding import rounding
from blocklp.search.best_first import Expansion, Node
from blocklp.search.parameter_ascent import ascend

STEPS = 12
"""Evaluations of the most promising row of a box."""

MOST_NODES = 2048
"""Boxes of a batch, which are also worked on one by one."""

MOST_WORK = 20_000
"""Activations of all backward passes of a box for one layer, at most: where more neurons are of unknown sign they keep their
intervals, and halving the box is the cheaper way to fewer.
On a two-level lattice of 4,092 ReLUs that makes some 50 boxes a second, and ten times the work 8."""


@dataclass(frozen=True)
class InputBox:
    """A part of the input box of a specification: ``spec``, ``lower`` and ``upper`` ``(*input_shape,)``, input to halve.

    ``part`` is its part of the proof that is written, if one is.
    """

    spec: int
    lower: Tensor
    upper: Tensor
    widest: int
    part: Part | None = None

    @property
    def bytes(self) -> int:
        """Size."""
        return 2 * self.lower.numel() * self.lower.element_size()


@dataclass(frozen=True)
class AffineForm:
    """Lower bounds ``weight @ x + constant`` of pre-activations, ``(neurons, inputs)`` and ``(neurons,)`` float64.

    They hold at every point of the box that they were made for: a backward pass charges for the rounding at any of its points.
    """

    weight: Tensor
    constant: Tensor

    def least(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Least values in boxes within that box: ``(batch, neurons)``; the constant pays for the rounding of these sums."""
        middle, radius = ((upper + lower) / 2).flatten(1), ((upper - lower) / 2).flatten(1)
        return middle @ self.weight.T - radius @ self.weight.abs().T + self.constant


class InputSplits:
    """Bounds boxes for specifications "some row of ``rows[spec]`` is above ``right[spec]``".

    Parameters
    ----------
    network : Network
        Float64.
    rows, right : list of Tensor
        ``(rows, outputs)`` and ``(rows,)`` float64 for each specification.
    inspect : callable
        Gets points ``(k, *input_shape)``; raises if one of them is a counterexample.
    deadline : Deadline
        When every method raises a ``TimeLimitError``.
    parts : list of Part, optional
        Where proofs of the specifications are written down.
    """

    def __init__(
        self,
        network: Network,
        rows: list[Tensor],
        right: list[Tensor],
        inspect: Callable[[Tensor], None],
        deadline: Deadline,
        parts: list[Part] | None = None,
    ) -> None:
        self.parts, self.coarse = parts, 0.0 if parts is None else COARSE
        # The rows are the last layer here, so that the rounding of mixes of them is charged like that of any other layer.
        self.network = network.followed_by(torch.cat(rows), -torch.cat(right))
        spec = torch.tensor([k for k, own in enumerate(right) for _ in own])
        self.owned = (spec == torch.arange(len(rows))[:, None]).to(network.device)
        self.inspect, self.deadline = inspect, deadline
        # A proof has bounds that its checker makes again, all of them backwards.
        self.forwards = parts is None and network.activations == network.relus
        total = sum(torch.Size(network.ops[r].shape).numel() for r in network.activations) + network.inputs
        affine = [isinstance(op, (Affine, Input)) for op in network.ops]
        self.first = [r for r in network.activations if all(affine[a] for a in network.ancestors(r)[:-1])]
        self.forms: dict[int, tuple[AffineForm, AffineForm]] = {}
        self.rows_at_once = max(1, BATCH // total)
        self.batch = max(1, min(BATCH // (16 * total), MOST_NODES))

    def roots(self, boxes: list[tuple[int, Tensor, Tensor]]) -> Expansion:
        """Bound the boxes ``(spec, lower, upper)`` to begin with."""
        specs, lower, upper = zip(*boxes, strict=True)
        whole = torch.stack(lower).amin(0, keepdim=True), torch.stack(upper).amax(0, keepdim=True)
        for relu in () if self.forwards else self.first:
            # Behind one operation intervals are exact; several lose how the results of one depend on each other.
            if len(self.network.ancestors(relu)) > 3:
                self.forms[relu] = self._affine_form(relu, whole, 1.0), self._affine_form(relu, whole, -1.0)
        parts = [None if self.parts is None else self.parts[spec] for spec in specs]
        return self._bounded(list(specs), torch.stack(lower), torch.stack(upper), [0] * len(boxes), parts)

    def expand(self, nodes: list[Node]) -> Expansion:
        """Halve every box and bound the halves."""
        boxes: list[InputBox] = [n.state for n in nodes]
        split = [b for b in boxes if b.widest >= 0]
        unresolved = [n for n in nodes if n.state.widest < 0]
        if not split:
            return Expansion(unresolved=unresolved)
        lower = torch.stack([b.lower for b in split]).flatten(1).repeat(2, 1)
        upper = torch.stack([b.upper for b in split]).flatten(1).repeat(2, 1)
        row, at = torch.arange(len(split), device=lower.device), torch.tensor([b.widest for b in split], device=lower.device)
        middle = lower[row, at] / 2 + upper[row, at] / 2
        upper[row, at] = middle
        lower[row + len(split), at] = middle
        shape = (-1, *self.network.input_shape)
        depths = [n.depth + 1 for n in nodes if n.state.widest >= 0] * 2
        parts: list[Part | None] = [None] * (2 * len(split))
        if self.parts is not None:
            pairs = [b.part.split(0, b.widest, float(m)) for b, m in zip(split, middle, strict=True) if b.part is not None]
            parts = [pair[side] for side in (1, 0) for pair in pairs]  # the lower halves first
        found = self._bounded([b.spec for b in split] * 2, lower.view(shape), upper.view(shape), depths, parts)
        return Expansion(found.children, unresolved=unresolved)

    def _bounded(self, specs: list[int], lower: Tensor, upper: Tensor, depths: list[int], parts: Sequence[Part | None]) -> Expansion:
        bounds, later, forms = self._layers(lower, upper)
        nodes: dict[int, Node] = {}
        if forms is not None:
            low, _ = forms.at(len(self.network.ops) - 1, bounds.__getitem__).ends()
            best = low.masked_fill(~self.owned[specs], -torch.inf).amax(1).tolist()
            nodes = {k: Node(bound, depths[k]) for k, bound in enumerate(best) if bound > 0}
        left = [k for k in range(len(specs)) if k not in nodes]
        if left:
            relaxation = Relaxation(self.network, lower, upper, bounds, self.deadline).select(torch.tensor(left, device=lower.device))
            own = self._rows(relaxation, [specs[k] for k in left], [depths[k] for k in left], [parts[k] for k in left], later)
            nodes |= zip(left, own, strict=True)
        return Expansion([nodes[k] for k in range(len(specs))])

    def _layers(self, lower: Tensor, upper: Tensor) -> tuple[dict[int, Pair], list[int], AffineForms | None]:
        """Bounds of the pre-activations of all layers; the ReLUs where they are better than intervals; affine forms."""
        network, bounds = self.network, dict[int, Pair]()
        ops = network.ops
        before = network.ancestors(len(ops) - 1)
        found: list[Pair] = []
        later: list[int] = []
        forms = AffineForms(network, lower, upper, self.deadline) if self.forwards else None
        for relu in (r for r in network.activations if r in before):
            node = ops[relu].inputs[0]
            low, high = intervals(network, lower, upper, bounds, node, found, self.deadline)[node]
            if forms is not None:
                below, above = forms.at(node, bounds.__getitem__).ends()
                low, high = torch.maximum(low, below), torch.minimum(high, above)
            relus = [r for r in network.activations if r in network.ancestors(node)]
            if relu in self.forms:
                later.append(relu)
                below, above = (form.least(lower, upper).view(low.shape) for form in self.forms[relu])
                # Who checks a proof improves the bounds of neurons of unknown sign, all of them, and no others.
                chosen = torch.ones_like(low, dtype=torch.bool) if self.parts is None else (low < 0) & (high > 0)
                low = torch.where(chosen, torch.maximum(low, below), low)
                high = torch.where(chosen, torch.minimum(high, -above), high)
            elif relus:
                later.append(relu)
                whole = Relaxation(network, lower, upper, dict(bounds), self.deadline)
                # Of ReLUs only those of unknown sign, box by box: in small boxes they are few.
                unknown = undecided(network, relu, low, high).flatten(1)
                if self.parts is None:
                    passed = sum(math.prod(ops[r].shape) for r in relus) + network.inputs
                    unknown &= (unknown.sum(1) * passed <= MOST_WORK)[:, None]
                owner, neuron = unknown.nonzero().T
                flat_low, flat_high = low.flatten(1).clone(), high.flatten(1).clone()
                for part in torch.split(torch.arange(len(owner), device=low.device), self.rows_at_once) if len(owner) else ():
                    o, n = owner[part], neuron[part]
                    cost = low.new_zeros(2 * len(part), flat_low.shape[1])
                    row = torch.arange(len(part), device=low.device)
                    cost[row, n], cost[row + len(part), n] = 1.0, -1.0
                    relaxation = whole.select(o.repeat(2))
                    start = relaxation.start(relus, len(cost))
                    cost = cost.view(-1, *ops[node].shape)
                    value = relaxation.backward(node, cost, start, charge=True).value
                    flat_low[o, n] = torch.maximum(flat_low[o, n], value[: len(part)])
                    flat_high[o, n] = torch.minimum(flat_high[o, n], -value[len(part) :])
                low, high = flat_low.view(low.shape), flat_high.view(high.shape)
            bounds[relu] = (low, high)
        return bounds, later, forms

    def _rows(
        self, relaxation: Relaxation, specs: list[int], depths: list[int], parts: Sequence[Part | None], later: list[int]
    ) -> list[Node]:
        """Nodes of boxes by their specifications' rows: backward passes with the bounds of all layers."""
        whole, lower, upper, bounds = relaxation, relaxation.lower, relaxation.upper, relaxation.bounds
        output, count = len(self.network.ops) - 1, len(specs)
        better: dict[int, tuple[Tensor, dict[int, Tensor]]] = {}
        relus = list(bounds)
        # Specifications may have different numbers of rows: every row of every box is an instance.
        owned = self.owned[specs]
        owner, row = owned.nonzero().T
        cost = torch.eye(owned.shape[1], dtype=lower.dtype, device=lower.device)[row]
        relaxation = whole.select(owner)
        trace = relaxation.backward(output, cost, relaxation.start(relus, len(owner)), charge=True, coarse=self.coarse)
        value = trace.value
        best = value.new_full((count,), -torch.inf).scatter_reduce_(0, owner, value, "amax")
        empty = torch.stack([(low > high).flatten(1).any(1) for low, high in bounds.values()]).any(0) if bounds else None
        if empty is not None:
            best = best.masked_fill(empty, torch.inf)
        first = (value == best[owner]).nonzero()[:, 0]
        pick = torch.zeros_like(best, dtype=torch.long).scatter_(0, owner[first], first)
        open_ = (best <= 0).nonzero()[:, 0]
        if len(open_) and relus:
            # The most promising row of every open box, with better slopes, and mixed with others: a mix with weights of at
            # least zero that is above zero has a row that is.
            near = relaxation.select(pick[open_])
            dual = SlopeDual(near.to(torch.float32), output, cost[pick[open_]].float(), relus, {})
            mixed = MixedDual(dual, owned[open_])
            reached = ascend(mixed, [*dual.start(), dual.cost], STEPS, late=out_of_time(self.deadline))
            *shares, mix = (p.double() for p in reached.parameters)
            slopes, _ = dual.named(shares)
            if self.parts is not None:
                slopes, mix = {r: stated(s) for r, s in slopes.items()}, stated_mix(mix)
            else:
                mix = within(mix)
            improved = near.backward(output, mix, slopes, charge=True, coarse=self.coarse)
            best[open_] = torch.maximum(best[open_], improved.value)
            if self.parts is not None:
                matter = needed(near, improved, slopes)
                better = {number: (mix[k], {r: s[k] for r, s in matter.items()}) for k, number in enumerate(open_.tolist())}
        if self.parts is not None:
            starts = whole.start(relus, count)
            tied = {r: ((low + high).abs() <= TIE * (high - low)).flatten(1).any(1).tolist() for r, (low, high) in bounds.items()}
            for k in (best > 0).nonzero()[:, 0].tolist():
                part, ties = parts[k], {r: s[k] for r, s in starts.items() if tied[r][k]}
                assert part is not None
                part.improve_all(later, ties)
                weights, slopes_ = better.get(k, (cost[pick[k]], ties))
                part.close(weights[owned[k]], slopes_, {})
                for relu, (low, high) in bounds.items() if empty is not None and bool(empty[k]) else ():
                    if bool((low > high)[k].any()):
                        part.empty(relu, int((low > high)[k].flatten().nonzero()[0]))
        width = (upper - lower).flatten(1)
        influence = self._sensitivity(trace, relaxation)[pick] * width
        # An input that cannot be halved any more in float64 has no influence; ties go to the widest.
        middle = (lower / 2 + upper / 2).flatten(1)
        divisible = (middle > lower.flatten(1)) & (middle < upper.flatten(1))
        influence = (influence.nan_to_num(0.0) + 1e-9 * width).masked_fill(~divisible, -1.0)
        widest = torch.where(divisible.any(1), influence.argmax(1), -torch.ones_like(pick))
        open_ = (best <= 0).nonzero()[:, 0]
        if len(open_):
            corner = torch.where(trace.cost[pick] > 0, lower, upper)[open_]
            self.inspect(torch.cat([corner, middle.view_as(lower)[open_]]))
        children = []
        for k, (bound, longest) in enumerate(zip(*torch.stack([best, widest.to(best)]).tolist(), strict=True)):
            state = InputBox(specs[k], lower[k].clone(), upper[k].clone(), int(longest), parts[k]) if bound <= 0 else None
            children.append(Node(bound, depths[k], state, 0 if state is None else state.bytes))
        return children

    def _affine_form(self, relu: int, box: Pair, sign: float) -> AffineForm:
        """The pre-activations of a first ReLU, times 1 or -1, from below in a box ``(1, *input_shape)`` each."""
        node = self.network.ops[relu].inputs[0]
        shape = self.network.ops[node].shape
        relaxation = Relaxation(self.network, *box, {}, self.deadline)
        units = sign * torch.eye(math.prod(shape), dtype=box[0].dtype, device=box[0].device)
        traces = [relaxation.backward(node, own.view(-1, *shape), {}, charge=True) for own in torch.split(units, self.rows_at_once)]
        weight = torch.cat([t.cost.flatten(1) for t in traces])
        low, high = (end.flatten(1) for end in box)
        value = torch.cat([t.value for t in traces]) - torch.minimum(weight * low, weight * high).sum(1)
        size = value.abs() + 2 * (weight.abs() @ torch.maximum(low.abs(), high.abs())[0])
        slack = rounding(4 * (len(low[0]) + 4), low.dtype) * size + torch.finfo(low.dtype).tiny
        return AffineForm(weight, value - slack)

    def _sensitivity(self, trace: Trace, relaxation: Relaxation) -> Tensor:
        """How strongly the bound depends on every input through first-layer neurons, ``(batch, inputs)``.

        Magnitudes are summed, because the linear bound's own coefficients cancel where different neurons pull in different
        directions; an input that only seems not to matter would never be split.
        """
        total = torch.zeros_like(trace.cost)
        for relu in self.first:
            mu = trace.activation.get(relu)
            if mu is None:
                continue
            # What a box gains from a split is that its relaxations shrink: most where the upper line is used.
            if relu in relaxation.curves:
                spread = relaxation.curves[relu].span(trace.upper[relu]) + 0.05 * trace.slope[relu].abs()
                at, y = relu, mu.abs() * spread
            else:
                slope, open_ = relaxation.lines[relu][0], relaxation.open[relu]
                at, y = relu, open_ * (mu.clamp(max=0).abs() + 0.2 * mu.clamp(min=0)) + 0.05 * mu.abs() * (slope > 0)
            while at != 0:
                op = self.network.ops[at]
                y = op.absolute().adjoint(y) if isinstance(op, Affine) else y
                at = op.inputs[0]
            total += y
        return (total + trace.cost.abs()).flatten(1)

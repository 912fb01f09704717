"""Bounds of hidden neurons over the counterexamples of a clause alone (Kotha et al., NeurIPS 2023).

At a counterexample no row of its clause is above zero.  Nonnegative multiples of the rows, added to what is minimised, leave a valid
bound over these points, whatever they are: integer programs know it as bound tightening by optimality.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blocklp.problems.verification.relaxation import Pair, Relaxation
from blocklp.problems.verification.relu_splits import ReluSplits
from blocklp.problems.verification.slopes import SlopeDual, out_of_time
from blocklp.problems.verification.split_state import SplitState
from blocklp.search.parameter_ascent import ascend


@dataclass
class ConstrainedDual:
    """The dual of ``min <cost, pre-activations>`` over the points where some rows are at most zero.

    Its parameters are those of ``dual``, whose cost they set, and after these multiples ``(batch, rows)`` of the rows in units of
    ``unit``; rows whose unit is zero do not count.
    """

    dual: SlopeDual
    relu: int
    cost: Tensor
    unit: Tensor

    def evaluate(self, parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """One backward and one forward pass."""
        dual = self.dual
        dual.cost, dual.also = parameters[-1] * self.unit, {dual.relaxation.network.ops[self.relu].inputs[0]: self.cost}
        value, gradients = dual.evaluate(parameters[:-1])
        return value + (self.cost * dual.found[self.relu]).flatten(1).sum(1), [*gradients, dual.found[dual.node] * self.unit]

    def project(self, parameters: Sequence[Tensor]) -> None:
        """Multiples to at least zero."""
        self.dual.project(parameters[:-1])
        parameters[-1].clamp_(min=0).mul_(self.unit > 0)

    def select(self, rows: Tensor) -> ConstrainedDual:
        """Return the dual of some instances."""
        return ConstrainedDual(self.dual.select(rows), self.relu, self.cost.index_select(0, rows), self.unit.index_select(0, rows))


def bounds_at_counterexamples(
    splits: ReluSplits, state: SplitState, signs: Mapping[int, Tensor], steps: int
) -> Mapping[int, Pair] | None:
    """Bound the neurons of a region anew where the rows of a clause are at most ``splits.margin``.

    Parameters
    ----------
    splits : ReluSplits
        The bounds of a region that holds this one, and the rows.
    state : SplitState
        A node of the clause there, whose slopes are the start.
    signs : mapping
        Position of a ReLU to ``(1, *shape)``: the signs of this region.
    steps : int
        Evaluations of every bound.

    Returns
    -------
    mapping or None
        Bounds by ReLU, float64; or None if the region holds no counterexample.
    """
    bounds = {}
    for relu, (low, high) in splits.exact.bounds.items():
        sign = signs[relu]
        bounds[relu] = torch.where(sign > 0, low.clamp(min=0), low), torch.where(sign < 0, high.clamp(max=0), high)
    region = replace(splits.exact, bounds=bounds)
    known = {relu: line for relu, (line, _) in region.lines.items()}
    slopes = {relu: torch.where(region.open[relu], s, known[relu]) for relu, s in splits.dense(state.slopes[None]).items()}
    for relu in splits.relus:
        low, high = (end.clone() for end in region.bounds[relu])
        neurons = region.open[relu].flatten().nonzero()[:, 0]
        for chunk in torch.split(neurons, max(1, splits.batch // 2)) if len(neurons) else ():
            found = _bounded(splits, region, slopes, splits.owned[state.spec], signs, relu, chunk, steps)
            low.view(-1)[chunk] = torch.fmax(low.view(-1)[chunk], found[0])
            high.view(-1)[chunk] = torch.fmin(high.view(-1)[chunk], -found[1])
        if bool((low > high).any()):
            return None
        region = replace(region, bounds={**region.bounds, relu: (low, high)})
    return region.bounds


def _bounded(
    splits: ReluSplits,
    region: Relaxation,
    slopes: Mapping[int, Tensor],
    owned: Tensor,
    signs: Mapping[int, Tensor],
    relu: int,
    neurons: Tensor,
    steps: int,
) -> Tensor:
    """Lower bounds of the arguments of some neurons of a layer, and of their negatives: ``(2, k)``."""
    low, high = region.bounds[relu]
    count, both = 2 * len(neurons), neurons.repeat(2)
    cost = low.new_zeros(count, *low.shape[1:])
    ends = torch.ones(2, len(neurons), dtype=low.dtype, device=low.device)
    ends[1] = -1
    cost.view(count, -1)[torch.arange(count, device=low.device), both] = ends.flatten()
    # A row that takes about as much as the neuron's interval is wide for a change of one.
    unit = (high - low).view(-1)[both, None].float() * owned
    start = {r: s.expand(count, *s.shape[1:]) for r, s in slopes.items()}
    fixed = {r: s.expand(count, *s.shape[1:]) for r, s in signs.items()}
    if (loops := splits.loops(count, steps)) is not None:
        own, given = splits.packed(fixed).to(torch.int8), splits.packed(start)
        none, target = torch.zeros_like(unit), (relu, both, ends.flatten())
        found = loops.over(region).ascend(none, own, given, torch.zeros_like(given), steps, 0.0, region.deadline, unit, target)
        free = {r: t.expand(count, *t.shape[1:]) for r, t in splits.dense(torch.ones_like(own[:1])).items()}
        best = {r: torch.where(free[r] > 0, s, start[r]) for r, s in splits.dense(found[1]).items()}
        betas = {r: beta * splits.scales[r] for r, beta in splits.dense(found[2]).items()}
        multiples = found[3]
    else:
        split = {r: s.float() * splits.scales[r] for r, s in fixed.items()}
        dual = SlopeDual(region.to(torch.float32), splits.node, unit, splits.relus, split)
        parameters = [
            *(start[r].float() for r in splits.relus),
            *(torch.zeros_like(s) for s in split.values()),
            torch.zeros_like(unit),
        ]
        whole = ConstrainedDual(dual, relu, cost.float(), unit)
        *reached, multiples = ascend(whole, parameters, steps, lambda value: value > 0, out_of_time(region.deadline)).parameters
        best, betas = dual.named([p.double() for p in reached])
    weight = multiples.double() * unit.double()
    also = {region.network.ops[relu].inputs[0]: cost}
    trace = region.backward(splits.node, weight, best, betas, charge=True, also=also)
    return (trace.value - weight.sum(1) * splits.margin * (1 + 1e-9)).view(2, -1)

"""Branch and bound over signs of ReLUs and intervals of other activations: nodes, their bounds, and where to split.

A node fixes the signs of some unstable neurons, and has cut the intervals of some smooth ones.  Its bound is the dual of the
relaxation with these, started from the slopes and multipliers of its parent; all nodes of a batch are one tensor computation,
whatever their depths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from blocklp.problems.verification.clipped_boxes import ClippedBoxes
from blocklp.problems.verification.conjunctions import Conjunctions, RowBounds
from blocklp.problems.verification.curve_slopes import MIDDLE
from blocklp.problems.verification.interval_cuts import IntervalCuts
from blocklp.problems.verification.proving import COARSE, Part, needed, stated, stated_mix, within
from blocklp.problems.verification.relaxation import Relaxation, Trace
from blocklp.problems.verification.sign_leaves import bound_leaf
from blocklp.problems.verification.slope_loops import Effort, SlopeLoops, seconds_of_pass
from blocklp.problems.verification.slopes import SHARES, MixedDual, SlopeDual, out_of_time
from blocklp.problems.verification.split_state import PACKED, SplitState
from blocklp.problems.verification.tightener import BATCH
from blocklp.search.best_first import Expansion, Node
from blocklp.search.parameter_ascent import ascend

CANDIDATES = 4
"""Neurons of a node whose two children are bounded before one of them is chosen (filtered smart branching, De Palma 2021)."""

ROUNDS = 2
"""How often the box of an open node is clipped and bounded again with the same multipliers: one backward pass each."""

ON_DEVICE = 16_000_000
"""Activations of all nodes of a batch on a device other than the CPU, whose launches should be worth their while."""

MOST_NODES = 2048
"""Nodes of a batch, which are also worked on one by one."""


class ReluSplits:
    """Bounds nodes for the question whether some row has ``<row, output> - right > 0`` at every point of a box.

    The rows are the last layer of the network here, and a specification is a mix of its results with weights of at least zero.
    Where a mix is above zero some row is, and the rounding of mixing is charged like that of any other layer.

    Parameters
    ----------
    relaxation : Relaxation
        Float64, a batch of 1, with valid bounds of all activations; every method raises a ``TimeLimitError`` at its deadline.
    rows : Tensor
        ``(rows, outputs)`` float64.
    right : Tensor
        ``(rows,)`` float64.
    steps : int
        Evaluations of a node.
    inspect : callable
        Gets points ``(k, *input_shape)`` that minimise the linear bounds of open nodes; raises if one of them is a counterexample.
    signs : mapping, optional
        Position of a ReLU to ``(1, *shape)``: signs that all nodes share.
    part : Part, optional
        Where a proof is written down, with the bounds of the relaxation.
    effort : Effort, optional
        What was spent on ascents before.
    """

    def __init__(
        self,
        relaxation: Relaxation,
        rows: Tensor,
        right: Tensor,
        steps: int,
        inspect: Callable[[Tensor], None],
        signs: Mapping[int, Tensor] | None = None,
        part: Part | None = None,
        effort: Effort | None = None,
    ) -> None:
        self.part, self.coarse = part, 0.0 if part is None else COARSE
        self.exact = replace(relaxation, network=relaxation.network.followed_by(rows, -right))
        self.fast = self.exact.to(torch.float32)
        self.node = len(self.exact.network.ops) - 1
        before = self.exact.network.ancestors(self.node)
        self.relus = [r for r in relaxation.network.activations if r in before]
        device, none = rows.device, torch.zeros((), dtype=torch.int8, device=rows.device)
        fixed = {r: (signs or {}).get(r, none).expand(relaxation.open[r].shape).flatten() for r in self.relus}
        self.free = {r: (relaxation.open[r].flatten() | (fixed[r] != 0)).nonzero()[:, 0] for r in self.relus}
        self.fixed = torch.cat([fixed[r][self.free[r]] for r in self.relus]).to(torch.int8)
        self.cuts = IntervalCuts(relaxation, self.free)
        self.boxes = ClippedBoxes(relaxation, self.free, part is None and relaxation.balls is None)
        self.steps, self.inspect, self.deadline = steps, inspect, relaxation.deadline
        self.margin = 1e-5 * (1 + float(right.abs().max()))  # what float32 must be above zero by
        self.mixes, self.owned = (torch.eye(len(rows), dtype=kind, device=device) for kind in (torch.float64, torch.bool))
        self.conjunctions = Conjunctions(self.boxes, self.owned, self.margin)
        # Multipliers of splits are of the size of what the next layers charge for an activation.
        trace = self.fast.backward(self.node, self.mixes.float(), self.fast.start(self.relus, len(rows)))
        self.scales = {r: _scale(trace.activation[r]) for r in self.relus}
        self.total = sum(len(f) for f in self.free.values())
        neurons = sum(relaxation.bounds[r][0].numel() for r in self.relus) + relaxation.lower.numel()
        self.effort = effort or Effort()
        self.batch = max(1, min((BATCH if device.type == "cpu" else ON_DEVICE) // (2 * neurons), MOST_NODES))

    def roots(self, owner: Sequence[int], steps: int, clauses: Sequence[int] = ()) -> list[Node]:
        """One node a clause: from now on specification k is the best mix found of the rows that clause k owns.

        Parameters
        ----------
        owner : sequence of int
            The clause of every row: 0, 1 and so on.
        steps : int
            Evaluations of every row, and of the mixes.
        clauses : sequence of int
            The numbers that clauses have in a proof.
        """
        self.owned = (torch.tensor(owner) == torch.arange(max(owner) + 1)[:, None]).to(self.mixes.device)
        rows, late = self.mixes.float(), out_of_time(self.deadline)
        dual = SlopeDual(self.fast, self.node, rows, self.relus, {})
        if len(self.owned) < len(rows):
            reached = ascend(dual, dual.start(), steps, late=late)
            best = reached.value.masked_fill(~self.owned, -torch.inf).argmax(1)
            mixed = MixedDual(SlopeDual(self.fast, self.node, rows[best], self.relus, {}), self.owned)
            found = ascend(mixed, [p[best] for p in (*reached.parameters, rows)], steps, late=late).parameters
            self.mixes, steps = found.pop().double(), 0
        else:
            found, self.mixes = dual.start(), self.mixes[torch.tensor(owner).argsort()]
        self.mixes = within(self.mixes) if self.part is None else stated_mix(self.mixes)
        self.conjunctions = Conjunctions(self.boxes, self.owned, self.margin)
        packed = self.packed(dual.named(found)[0])
        signs = self.fixed.to(packed.device).repeat(len(packed), 1)
        parts = [None] * len(packed) if self.part is None else self.part.by_clause(clauses)
        cuts, ends = (own.root.repeat(len(packed), 1, 1) for own in (self.cuts, self.boxes))
        given = signs, cuts, packed, torch.zeros_like(packed), ends
        return self._bounded(list(range(len(packed))), *given, depths=[0] * len(packed), parts=parts, steps=steps + self.steps)

    def halves(self, nodes: Sequence[Node]) -> list[tuple[dict[int, Tensor], Part | None]]:
        """Signs of both halves of the region of these root nodes of one clause, split where it costs their bounds most; their proofs.

        Neurons of the first half of the layers come first, since their splits tighten the bounds of later layers.
        """
        states = [n.state for n in nodes]
        specs = torch.tensor([s.spec for s in states], device=self.mixes.device)
        packed = [torch.stack([getattr(s, name) for s in states]) for name in PACKED]
        dual, start = self.dual(self.exact, specs, *packed)
        named = dual.named(start)
        scores = self._scores(dual, dual.relaxation.backward(self.node, dual.cost, *named), named[0])
        early = sum(len(self.free[r]) for r in self.relus[: len(self.relus) // 2])
        scores = scores.masked_fill(packed[0] != 0, 0.0).sum(0)
        if bool((scores[:early] > 0).any()):
            scores[early:] = 0
        if float(scores.max()) <= 0:
            return []
        neuron, part = int(scores.argmax()), states[0].part
        parts = [None, None] if part is None else part.split(*self._place(neuron), anew=True)
        found = []
        for sign, own in zip((1, -1), parts, strict=True):
            signs = self.fixed[None].clone()
            signs[0, neuron] = sign
            found.append((self.dense(signs), own))
        return found

    def loops(self, instances: int, steps: int) -> SlopeLoops | None:
        """Compiled loops for so many evaluations, where the network suits them and they are ready.

        Parameters
        ----------
        instances, steps : int
            How many instances are to be evaluated, and how often.
        """
        seconds = instances * (2 * steps - 1) * seconds_of_pass(self.exact.network, self.node)
        if self.boxes.on or not self.effort.spend(seconds, self.deadline):
            return None
        return self._loops

    @cached_property
    def _loops(self) -> SlopeLoops | None:
        return SlopeLoops.of(self.exact, self.node, self.free, self.scales)

    def _alone(self, state: SplitState) -> tuple[SlopeDual, list[Tensor]]:
        """The dual of one node, in float64, and its parameters."""
        return self.dual(self.exact, self._there([state.spec]), *(getattr(state, name)[None] for name in PACKED))

    def _place(self, neuron: int) -> tuple[int, int]:
        """Position of the ReLU of one of all free neurons, and its number before that."""
        for r in self.relus:
            if neuron < len(self.free[r]):
                break
            neuron -= len(self.free[r])
        return r, int(self.free[r][neuron])

    def dense(self, packed: Tensor) -> dict[int, Tensor]:
        """Numbers of the free neurons, ``(batch, neurons)``, as ``(batch, *shape)`` float64 by ReLU, zero for others."""
        found, first = {}, 0
        for r in self.relus:
            free, shape = self.free[r], self.exact.bounds[r][0].shape[1:]
            flat = packed.new_zeros(len(packed), math.prod(shape), dtype=torch.float64)
            flat[:, free] = packed[:, first : first + len(free)].double()
            found[r] = flat.view(-1, *shape)
            first += len(free)
        return found

    def expand(self, nodes: list[Node]) -> Expansion:
        """Split every node on its best candidate and bound the children."""
        leaves = [n for n in nodes if not len(n.state.candidates)]
        nodes = [n for n in nodes if len(n.state.candidates)]
        settled = [bound_leaf(self, n, *self._alone(n.state)) for n in leaves]
        unresolved = [n for n in settled if n.bound <= 0]
        children = [n for n in settled if n.bound > 0]
        if not nodes:
            return Expansion(children, unresolved=unresolved)
        states = [n.state for n in nodes]
        chosen, count = self._choose(nodes), len(states)
        third = self.cuts.jumping(chosen)
        owners = [*range(count), *range(count), *third.tolist()]
        specs = [states[k].spec for k in owners]
        packed = [torch.stack([getattr(states[k], name) for k in owners]) for name in PACKED]
        self.cuts.split([p[2 * count :] for p in packed[:4]], chosen[third], 0)
        places = [self._place(c) for c in chosen.tolist()] if self.boxes.on else []
        for side, sign in enumerate((1, -1)):
            own = [p[side * count : (side + 1) * count] for p in packed]
            self.cuts.split(own[:4], chosen, sign)
            if places:
                own[4].copy_(self.boxes.split(own[4], [r for r, _ in places], [n for _, n in places], sign))
        parts: list[Part | None] = [None] * len(specs)
        if self.part is not None:
            pairs = [s.part.split(*self._place(int(c))) for s, c in zip(states, chosen.flatten(), strict=True) if s.part is not None]
            parts = [pair[side] for side in (0, 1) for pair in pairs]
        children += self._bounded(specs, *packed, depths=[nodes[k].depth + 1 for k in owners], parts=parts, steps=self.steps)
        return Expansion(children, unresolved=unresolved)

    def _choose(self, nodes: Sequence[Node]) -> Tensor:
        """The neurons to split: by bounds of their children or, where these are level, by what follows from the signs."""
        states = [n.state for n in nodes]
        level = [k for k, n in enumerate(nodes) if n.bound > -self.margin] if self.conjunctions.on else []
        chosen = self._filtered(states)
        if level:
            specs = self._there([states[k].spec for k in level])
            signs, cuts, _, _, ends = (torch.stack([getattr(states[k], name) for k in level]) for name in PACKED)
            best, there = self.conjunctions.choose(self._row_bounds(specs, cuts), ends, signs)
            rows = self._there(level)
            chosen[rows] = torch.where(there, best, chosen[rows])
        return chosen

    def _filtered(self, states: Sequence[SplitState]) -> Tensor:
        """Bound both children of every candidate by one evaluation each; the best is where their mean is best.

        The worse child's bound in place of the mean took 1.4 to 1.9 times as many nodes on oval21, more than the scores alone.
        """
        most = max(len(s.candidates) for s in states)
        # A node with fewer candidates repeats its last one.
        candidates = self._there([[*s.candidates, *s.candidates[-1:] * (most - len(s.candidates))] for s in states])
        if most == 1:
            return candidates[:, 0]
        count = len(states)
        specs = self._there([s.spec for s in states for _ in range(2 * most)])
        packed = [torch.stack([getattr(s, name) for s in states]).repeat_interleave(2 * most, 0) for name in PACKED]
        for half, sign in enumerate((1, -1)):
            self.cuts.split([p[half::2] for p in packed[:4]], candidates.flatten(), sign)
        values = []
        for part in torch.split(torch.arange(len(specs), device=specs.device), 2 * self.batch):
            signs, cuts, slopes, betas, ends = (p[part] for p in packed)
            if (loops := self.loops(len(part), 1)) is not None:
                costs = self.mixes[specs[part]]
                values.append(loops.ascend(costs, signs, slopes, betas, 1, math.inf, self.deadline)[0])
                continue
            dual, start = self.dual(self.fast, specs[part], signs, cuts, slopes, betas, ends)
            slopes_, betas_ = dual.named(start)
            trace = dual.relaxation.backward(self.node, dual.cost, slopes_, betas_)
            values.append(trace.value.nan_to_num(-torch.inf))
        both = torch.cat(values).view(count, most, 2).clamp(max=0)
        return candidates.gather(1, both.mean(2).argmax(1, keepdim=True))[:, 0]

    def _ascended(
        self, steps: int, specs: Tensor, signs: Tensor, cuts: Tensor, slopes: Tensor, betas: Tensor, ends: Tensor
    ) -> list[Tensor]:
        """Slopes, and multipliers of splits in their scales, ``(nodes, neurons)`` each, after an ascent from those given."""
        if (loops := self.loops(len(specs), steps)) is not None:
            return list(loops.ascend(self.mixes[specs], signs, slopes, betas, steps, self.margin, self.deadline)[1:3])
        dual, start = self.dual(self.fast, specs, signs, cuts, slopes, betas, ends)
        reached = ascend(dual, start, steps, lambda value: value > self.margin, out_of_time(self.deadline)).parameters
        found, multipliers = dual.named(reached)[0], dict(zip(self.relus, reached[len(self.relus) :], strict=True))
        return [self.packed(found), self.packed(multipliers)]

    def packed(self, tensors: Mapping[int, Tensor]) -> Tensor:
        """Entries of free neurons, one after the other: ``(batch, *shape)`` by position to ``(batch, neurons)``."""
        return torch.cat([tensors[r].flatten(1)[:, self.free[r]] for r in self.relus], 1)

    def dual(
        self, whole: Relaxation, specs: Tensor, signs: Tensor, cuts: Tensor, slopes: Tensor, betas: Tensor, ends: Tensor
    ) -> tuple[SlopeDual, list[Tensor]]:
        """The dual of some nodes and their multipliers as its parameters.

        Parameters
        ----------
        whole : Relaxation
            Of the root, in the precision of the dual.
        specs : Tensor
            ``(nodes,)``: numbers of the specifications.
        signs, cuts, slopes, betas, ends : Tensor
            As nodes have them (:class:`SplitState`), one behind the other.
        """
        bounds, split, start_slopes, start_betas, first, first_cut = {}, {}, [], [], 0, 0
        dtype = whole.lower.dtype
        for r in self.relus:
            free = self.free[r]
            part = slice(first, first + len(free))
            first += len(free)
            sign = signs[:, part]
            low, high = (b.flatten(1).repeat(len(signs), 1) for b in whole.bounds[r])
            shape = (len(signs), *whole.bounds[r][0].shape[1:])
            if (clipped := self.boxes.bounds(r, ends)) is not None:
                low, high = torch.maximum(low, clipped[0].to(dtype)), torch.minimum(high, clipped[1].to(dtype))
            if r not in self.cuts.curves:
                low[:, free] = torch.where(sign > 0, low[:, free].clamp(min=0), low[:, free])
                high[:, free] = torch.where(sign < 0, high[:, free].clamp(max=0), high[:, free])
                slope = (low >= 0).to(dtype)
                slope[:, free] = torch.where(sign == 0, slopes[:, part].to(dtype), (sign > 0).to(dtype))
            else:
                low[:, free], high[:, free] = cuts[:, :, first_cut : first_cut + len(free)].to(dtype).unbind(1)
                first_cut += len(free)
                slope = torch.full_like(low, MIDDLE * SHARES)
                slope[:, free] = slopes[:, part].to(dtype) * SHARES
            bounds[r] = (low.view(shape), high.view(shape))
            start_slopes.append(slope.view(shape))
            beta, dense = torch.zeros_like(low), torch.zeros_like(low)
            beta[:, free] = betas[:, part].to(dtype).masked_fill(sign == 0, 0.0)
            dense[:, free] = sign.to(dtype) * self.scales[r]
            split[r] = dense.view(shape)
            start_betas.append(beta.view(shape))
        lower, upper = (end.to(dtype) for end in self.boxes.box(ends))
        relaxation = replace(whole, bounds=bounds, lower=lower, upper=upper)
        relaxation.__dict__["noise"] = whole.noise  # that of the root is larger
        return SlopeDual(relaxation, self.node, self.mixes[specs].to(dtype), self.relus, split), start_slopes + start_betas

    def _there(self, numbers: list[int] | list[list[int]]) -> Tensor:
        """Integers where the network lies; nobody waits for it."""
        return torch.tensor(numbers, dtype=torch.int64).to(self.mixes.device, non_blocking=True)

    def _bounded(self, owners: list[int], *packed: Tensor, depths: list[int], parts: Sequence[Part | None], steps: int) -> list[Node]:
        """Bound nodes, pick candidates for their next split, and look at what their minimisers do in the network."""
        specs, (signs, cuts, slopes, betas, ends) = self._there(owners), packed
        signs, empty = self.boxes.implied(ends, signs)
        empty |= self.cuts.propagate(cuts)
        pack = self._ascended(steps, specs, signs, cuts, slopes, betas, ends)
        given = pack[0] if self.part is None else stated(pack[0])
        precise, slopes_, betas_, trace = self._precise(specs, signs, cuts, given, pack[1], ends)
        # Points above the margin were clipped off the boxes of children: of these no more is claimed.
        most = self.margin if self.boxes.on else math.inf
        values = trace.value.masked_fill(empty, torch.inf).tolist()
        bounds = [min(value, most) if depth else value for value, depth in zip(values, depths, strict=True)]
        matter = {} if self.part is None else needed(precise.relaxation, trace, slopes_)
        open_ = [k for k, bound in enumerate(bounds) if not bound > 0]
        candidates: dict[int, tuple[int, ...]] = {}
        if open_:
            rows = self._there(open_)
            self.inspect(precise.relaxation.minimiser(trace)[rows])
            if not self.boxes.on:
                scores = self._scores(precise, trace, slopes_)[rows]
            else:
                # What is left of the box is bounded again with the same multipliers.
                cost, value, closed = trace.cost[rows], trace.value[rows], torch.zeros_like(empty[rows])
                if self.conjunctions.on:
                    own, known = ends[rows], signs[rows]
                    closed = self.conjunctions.propagate(self._row_bounds(specs[rows], cuts[rows]), own, known)
                    ends[rows], signs[rows] = own, known
                for _ in range(ROUNDS):
                    ends[rows] = self.boxes.clip(ends[rows], cost.flatten(1), value - self.margin, within=True)
                    signs[rows], hopeless = self.boxes.implied(ends[rows], signs[rows])
                    precise, slopes_, _, trace = self._precise(specs[rows], *(t[rows] for t in (signs, cuts, *pack, ends)))
                    cost, value = trace.cost, trace.value
                for k, v in zip(open_, trace.value.masked_fill(hopeless | closed, torch.inf).tolist(), strict=True):
                    bounds[k] = max(bounds[k], min(v, most))
                scores = self._scores(precise, trace, slopes_)
            scores = scores.masked_fill(self.cuts.done(signs[rows], cuts[rows]), -1.0)
            top = scores.topk(min(CANDIDATES, self.total), 1)
            # All that the host has to know of them at once; neurons are few enough for floating-point numbers.
            best, score = torch.stack([top.indices.double(), top.values.double()]).tolist()
            for at, neurons, worth in zip(open_, best, score, strict=True):
                candidates[at] = tuple(int(n) for n, s in zip(neurons, worth, strict=True) if s >= 0)
        nodes = []
        for k, (spec, bound, depth, part) in enumerate(zip(owners, bounds, depths, parts, strict=True)):
            if bound > 0:
                nodes.append(Node(bound, depth))
                if part is not None:
                    mine = ({r: t[k] for r, t in some.items()} for some in (matter, betas_))
                    part.close(self.mixes[spec][self.owned[spec]], *mine)
            else:
                state = SplitState(
                    spec,
                    signs[k].clone(),
                    cuts[k].clone(),
                    pack[0][k].clone(),
                    pack[1][k].clone(),
                    ends[k].clone(),
                    candidates[k],
                    part,
                )
                nodes.append(Node(bound, depth, state, state.bytes))
        return nodes

    def _row_bounds(self, specs: Tensor, cuts: Tensor) -> RowBounds:
        """Bounds of the rows of nodes, with CROWN's slopes in float64 and all rounding charged."""

        def bounds(at: Tensor, ends: Tensor, signs: Tensor) -> tuple[Tensor, Tensor]:
            rows = self.conjunctions.rows[specs[at]]
            copies = torch.arange(len(at), device=at.device).repeat_interleave(rows.shape[1])
            free = torch.zeros(len(copies), self.total, dtype=torch.float32, device=at.device)
            dual, _ = self.dual(self.exact, specs[at][copies], signs[copies], cuts[at][copies], free, free, ends[copies])
            dual.relaxation.__dict__["magnitudes"] = self.exact.magnitudes
            cost = torch.eye(self.owned.shape[1], dtype=torch.float64, device=at.device)[rows.flatten()]
            trace = dual.relaxation.backward(self.node, cost, dual.named(dual.start())[0], charge=True)
            return trace.cost.flatten(1).view(*rows.shape, -1), trace.value.view(rows.shape)

        return bounds

    def _precise(self, specs: Tensor, *packed: Tensor) -> tuple[SlopeDual, dict[int, Tensor], dict[int, Tensor], Trace]:
        """Bounds of nodes in float64, with all rounding charged; their dual and its multipliers."""
        dual, start = self.dual(self.exact, specs, *packed)
        slopes, betas = dual.named(start)
        dual.relaxation.__dict__["magnitudes"] = self.exact.magnitudes  # those of the root are larger
        return dual, slopes, betas, dual.relaxation.backward(self.node, dual.cost, slopes, betas, charge=True, coarse=self.coarse)

    def _scores(self, dual: SlopeDual, trace: Trace, slopes: dict[int, Tensor]) -> Tensor:
        """How far the relaxation of a neuron is from the function at the minimiser, and how much a ReLU's upper line costs."""
        found = dual.relaxation.forward(self.node, trace)
        parts = []
        for r in self.relus:
            z, mu = found[r], trace.activation[r]
            if (curve := self.cuts.curves.get(r)) is not None:
                z = torch.maximum(torch.minimum(z, dual.relaxation.bounds[r][1]), dual.relaxation.bounds[r][0])
                off = mu * (curve.value(z) - torch.addcmul(trace.shift[r], trace.slope[r], z))
                parts.append(off.clamp(min=0).flatten(1)[:, self.free[r]])
                continue
            shift = dual.relaxation.lines[r][1]
            exact = z.clamp(min=0)
            above = (mu * (exact - slopes[r] * z)).clamp(min=0)
            below = mu.clamp(max=0).neg() * shift
            parts.append(torch.where(mu > 0, above, below).flatten(1)[:, self.free[r]])
        return torch.cat(parts, 1).nan_to_num(0.0)


def _scale(multipliers: Tensor) -> float:
    mean = float(multipliers.abs().mean())
    return max(mean, 1e-12) if math.isfinite(mean) else 1.0

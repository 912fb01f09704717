r"""Passes over min-marginals whose steps a small network chooses.

A round asks all blocks for their min-marginals m, as :class:`blocklp.methods.MinMarginals` does, and moves the multipliers by

.. math:: \Delta = (1/2 + a) \, (\mathrm{mean}(m) - m) + b \, \Delta_{\mathrm{before}} + 0.3 \, s \, d,
          \qquad \lambda \leftarrow \lambda + \Delta - \mathrm{mean}(\Delta),

with means over the copies of each variable, and s the size of the first multipliers.  The numbers a, b and d of a copy come from
one network for all copies of all blocks, of some eight hundred weights.  It sees the copy, means over the other copies in its block
and over the copies of its variable, and a few numbers that it remembers of each copy from round to round: two levels of messages on
the graph of blocks and variables, a round.  So it serves any number of variables and blocks in any order; and as all that it sees is
divided by s, costs in other units give the same multipliers in these.

Abbas and Swoboda (DOGE-Train, AAAI 2024) learn such passes for a sequential method and with a graph network that is larger by far.
Multipliers that sum to the cost prove a bound whoever chose them, so nothing here can break one.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from blocklp.decomposition.problem import Decomposition
from blocklp.errors import OptionError

FEATURES = 10
"""What the network sees of a copy beside what it remembers."""
LONG = 32
"""Rounds after which the number of the round is 1 to the network."""
STEP, FREE = 0.5, 0.3
"""Weight of a step without a network, and of the part that no min-marginal bounds."""
LARGEST = 30.0
"""Longest step of a multiplier, in units of the first multipliers: what lies farther away was not learnt."""


class LearntPasses(nn.Module):
    """The network, and the rounds that it steers.

    Parameters
    ----------
    memory : int
        Numbers that it remembers of every copy.
    hidden : int
        Width of its only hidden layer.
    """

    def __init__(self, memory: int = 6, hidden: int = 20) -> None:
        super().__init__()
        self.memory, self.hidden = memory, hidden
        self.inner = nn.Linear(FEATURES + 3 * memory, hidden)
        self.outer = nn.Linear(hidden, memory + 3)
        with torch.no_grad():  # the first steps of training are near those of averaged min-marginals
            self.outer.weight.mul_(0.3)
            self.outer.bias.zero_()

    def steps(self, graph: CopyGraph, rounds: int) -> Iterator[Tensor]:
        """Make rounds; yield the multipliers after each.

        Parameters
        ----------
        graph : CopyGraph
            The problem.
        rounds : int
            How many.

        Yields
        ------
        Tensor
            ``(batch, copies)`` float64; prices of rows stay zero.
        """
        problem, duals, size = graph.problem, graph.first, graph.size[:, None]
        move = torch.zeros_like(duals)
        memory = torch.zeros(len(duals), self.memory, duals.shape[1], dtype=self.inner.weight.dtype, device=duals.device)
        copies = graph.copies.log().to(memory)
        shared = torch.tensor([1, 1, 0, 0] + [1] * self.memory, device=duals.device)
        for number in range(rounds):
            marginals = graph.marginals(duals)
            average = graph.mean(marginals)
            seen = torch.stack([duals, marginals, average, move], 1) / size[:, None]
            seen = seen.to(memory).asinh()
            time = torch.full_like(copies, number / LONG)
            beside = graph.in_block(torch.cat([seen[:, :2], seen[:, :2], memory], 1), shared)
            parts = [seen, beside[:, :4], torch.stack([copies, time], 1), memory, beside[:, 4:], graph.of_variable(memory)]
            found = _dense(self.outer, nn.functional.silu(_dense(self.inner, torch.cat(parts, 1))))
            memory = 0.5 * memory + found[:, : self.memory].tanh()
            own, momentum, free = found[:, self.memory :].to(duals).unbind(1)
            move = (STEP + own) * (average - marginals) + momentum * move + FREE * size * free
            move = move * graph.free
            move = move - graph.mean(move)
            move = torch.maximum(torch.minimum(move, LARGEST * size), -LARGEST * size)
            duals = problem.recentred(duals + move)
            yield duals


class CopyGraph:
    """Copies, blocks and variables of a problem, as a network passes messages between them.

    Parameters
    ----------
    problem : Decomposition
        The problem, in float64.

    Attributes
    ----------
    first : Tensor
        ``(batch, copies)`` float64: costs shared equally among the copies, the first multipliers.
    free : Tensor
        ``(batch, copies)``: 1 for copies that take part, 0 for all others.
    size : Tensor
        ``(batch,)`` float64: mean magnitude of the first multipliers of copies that take part, 1 where all of these are zero.
    copies : Tensor
        ``(batch, copies)``: how many copies the variable of each copy has.

    Raises
    ------
    OptionError
        If no type of blocks that share variables has min-marginals.
    """

    def __init__(self, problem: Decomposition) -> None:
        self.problem = problem
        self.first = duals = problem.to_dual(problem.cost)
        # A copy takes part where its variable has others, and its type has min-marginals.
        self.free = torch.zeros_like(duals)
        for group in problem.groups:
            ask = group.min_marginals if group.shares else None
            found = None if ask is None else ask(group.view(duals))
            if found is not None:
                part = found.isfinite() * group.coupled
                group.view(self.free).copy_(part if group.valid is None else part * group.valid[..., None])
        if not bool(self.free.any()):
            types = ", ".join(sorted({g.type.name for g in problem.groups if g.shares})) or "no type"
            raise OptionError(f"a learnt start needs min-marginals of blocks that share variables, and {types} states none")
        self.taking = problem.collect(self.free).clamp(min=1)
        # Each copy's block, and which copies count among those that are their block's own, and among those that others share.
        self.block = torch.zeros(problem.copies, dtype=torch.int64, device=duals.device)
        self.counted = torch.zeros(2, problem.copies, dtype=torch.bool, device=duals.device)
        before = 0
        for group in problem.groups:
            place = slice(group.start, group.stop)
            self.block[place] = torch.arange(before, before + group.blocks, device=duals.device).repeat(group.dim)
            coupled = group.coupled.repeat_interleave(group.blocks) > 0
            self.counted[:, place] = torch.stack([~coupled, coupled])
            before += group.blocks
        size = (duals.abs() * self.free).sum(1) / self.free.sum(1).clamp(min=1)
        self.size = torch.where(size > 0, size, torch.ones_like(size))
        self.copies = self._beside(problem.coupling.spread(problem.counts.expand(len(duals), -1)), 1.0)

    def marginals(self, duals: Tensor) -> Tensor:
        """Min-marginals ``(batch, copies)``, zero where there are none."""
        found = torch.zeros_like(duals)
        for group in self.problem.groups:
            if group.shares and group.min_marginals is not None and (own := group.min_marginals(group.view(duals))) is not None:
                part = torch.zeros_like(duals)
                group.view(part).copy_(torch.where(own.isfinite(), own, 0.0))
                found = found + part
        return found

    def point(self, duals: Tensor, temperature: Tensor) -> Tensor:
        """Means of the blocks' points at a temperature ``(batch,)``, of oracles' answers where types have no soft minimum.

        Parameters
        ----------
        duals : Tensor
            ``(batch, copies)``: multipliers.
        temperature : Tensor
            ``(batch,)``, positive.

        Returns
        -------
        Tensor
            ``(batch, variables)``.
        """
        points = torch.zeros_like(duals)
        for group in self.problem.groups:
            cost = group.view(duals)
            soft = None if group.soft_min is None else group.soft_min(cost, temperature[:, None, None])
            own = group.min_oracle(cost)[0] if soft is None else soft[0]
            group.view(points).copy_(own if group.valid is None else own * group.valid[..., None])
        return self.problem.mean(points)

    def mean(self, values: Tensor) -> Tensor:
        """Means over the copies of each variable that take part, where these are ``(batch, copies)``."""
        return self.problem.spread(self.problem.collect(values * self.free) / self.taking) * self.free

    def of_variable(self, values: Tensor) -> Tensor:
        """Means over all copies of each variable ``(batch, channels, copies)``."""
        rows = torch.arange(len(values), device=values.device).repeat_interleave(values.shape[1])
        coupling, counts = self.problem.coupling.select(rows), self.problem.counts.expand(len(values), -1)[rows]
        flat = values[..., : self.problem.in_blocks].flatten(0, 1)
        means = coupling.spread(coupling.collect(flat) / counts.to(flat))
        return self._beside(means.view(*values.shape[:2], -1))

    def in_block(self, values: Tensor, shared: Tensor) -> Tensor:
        """Means over the coordinates of each block that others share, or over those that are its own.

        Parameters
        ----------
        values : Tensor
            ``(batch, channels, copies)``.
        shared : Tensor
            ``(channels,)`` int64: 1 for the former, 0 for the latter.

        Returns
        -------
        Tensor
            ``(batch, channels, copies)``: for each copy of a block that of the block, zero where there are no such coordinates.
        """
        weight = self.counted[shared].to(values)
        block, blocks = self.block.expand_as(values), int(self.block.max()) + 1
        sums = values.new_zeros(*values.shape[:2], blocks).scatter_add(2, block, values * weight)
        counts = weight.new_zeros(len(weight), blocks).scatter_add(1, self.block.expand_as(weight), weight)
        return (sums / counts.clamp(min=1)).gather(2, block)

    def _beside(self, copies: Tensor, value: float = 0.0) -> Tensor:
        """Values of copies ``(..., in_blocks)`` with one for the price of each row, ``(..., copies)``."""
        return nn.functional.pad(copies, (0, self.problem.copies - self.problem.in_blocks), value=value)


def _dense(layer: nn.Linear, values: Tensor) -> Tensor:
    """A layer on ``(batch, channels, copies)``."""
    return layer.weight @ values + layer.bias[:, None]

"""The state of a solve as a value: multipliers by blocks, proximal weights, and where a primal-dual method was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.decomposition import Decomposition, Group
from blocklp.errors import ShapeError
from blocklp.methods.base import Memory
from blocklp.model import BOX
from blocklp.program import by_groups, stated_rows


@dataclass(frozen=True)
class Saddle:
    """Where a primal-dual method was.

    Attributes
    ----------
    x : Tensor
        ``(batch, variables)`` float64: its point, feasible in the limit.
    rows : dict of str to Tensor
        Name of blocks to duals of their rows ``(batch, blocks, rows)``, float64, in the order of :meth:`BlockType.constraints`.
    weight : Tensor
        ``(batch,)`` float64: its primal weight.
    """

    x: Tensor
    rows: dict[str, Tensor]
    weight: Tensor

    def select(self, instances: Tensor) -> Saddle:
        """Those of some instances ``(k,)``."""
        rows = {k: v.index_select(0, instances) for k, v in self.rows.items()}
        return Saddle(self.x.index_select(0, instances), rows, self.weight.index_select(0, instances))


@dataclass(frozen=True)
class State:
    """What a later solve starts from.

    The next model may differ in costs and bounds, and may have more blocks: blocks without an entry start with a share of
    zero, so that its first bound is not below the last one.

    Attributes
    ----------
    duals : dict of str to Tensor
        Name of blocks to multipliers ``(batch, blocks, dim)``, float64; those of ``"box"``, the blocks of single variables that no
        other block bounds, by variable, ``(batch, variables, 1)``, zero where there is none.
    eta : Tensor
        ``(batch,)`` float64: proximal weights, NaN where unknown.
    saddle : Saddle or None
        Where :class:`blocklp.Pdhg` was, which it cannot read off the multipliers; other methods leave and need none.
    """

    duals: dict[str, Tensor]
    eta: Tensor
    saddle: Saddle | None = None

    @property
    def batch(self) -> int:
        """Number of instances."""
        return len(self.eta)

    def select(self, instances: Sequence[int] | Tensor) -> State:
        """Return the state of some instances; an instance may be taken several times (children of a node)."""
        rows = torch.as_tensor(instances, device=self.eta.device)
        rows = rows.nonzero()[:, 0] if rows.dtype == torch.bool else rows.long()
        saddle = None if self.saddle is None else self.saddle.select(rows)
        return State({k: v.index_select(0, rows) for k, v in self.duals.items()}, self.eta.index_select(0, rows), saddle)

    def repeat(self, times: int) -> State:
        """Return every instance ``times`` times in a row."""
        return self.select(torch.arange(self.batch).repeat_interleave(times))

    @staticmethod
    def concatenate(states: Sequence[State]) -> State:
        """Join the instances of several states of one model; a saddle only where all have one, of one shape.

        Raises
        ------
        ShapeError
            If they have different blocks.
        """
        if not states or any(s.duals.keys() != states[0].duals.keys() for s in states):
            raise ShapeError("states to concatenate need the same blocks; concatenate states of one model")
        duals = {k: torch.cat([s.duals[k] for s in states]) for k in states[0].duals}
        saddles, saddle = [s.saddle for s in states if s.saddle is not None], None
        shapes = [(s.x.shape[1], {k: v.shape[1:] for k, v in s.rows.items()}) for s in saddles]
        if len(saddles) == len(states) and all(shape == shapes[0] for shape in shapes):
            rows = {k: torch.cat([s.rows[k] for s in saddles]) for k in saddles[0].rows}
            saddle = Saddle(torch.cat([s.x for s in saddles]), rows, torch.cat([s.weight for s in saddles]))
        return State(duals, torch.cat([s.eta for s in states]), saddle)


def take(problem: Decomposition, duals: Tensor, eta: Tensor, memory: Memory | None = None, sign: float = 1.0) -> State:
    """Cut a row of copies, and of duals of rows, which get a sign, into the state of its groups."""
    parts = {g.name: g.view(duals) for g in problem.groups}
    for group in problem.groups:
        if group.name == BOX:
            own = parts[BOX] if group.alive is None else parts[BOX] * group.alive[..., None]
            parts[BOX] = torch.zeros_like(problem.cost)[..., None].scatter_add_(1, _boxed(problem, group), own)
    if memory is None:
        return State(parts, eta)
    x, y, weight = memory
    rows = {
        g.name: sign * own.transpose(1, 2)
        for g, own in by_groups(problem, y, list(map(stated_rows, problem.groups)))
        if g.name != BOX
    }
    return State(parts, eta, Saddle(x, rows, weight))


def memory_of(problem: Decomposition, state: State, sign: float = 1.0) -> Memory | None:
    """Lay out where a primal-dual method was: x, NaN where not known, duals of rows with a sign, zero there, and the weight."""
    if (saddle := state.saddle) is None or not problem.testable:
        return None
    x = torch.full_like(problem.cost, torch.nan)
    width = min(x.shape[1], saddle.x.shape[1])
    x[:, :width] = saddle.x[:, :width].to(x)
    counts = list(map(stated_rows, problem.groups))
    y = x.new_zeros(len(x), sum(n * g.blocks for n, g in zip(counts, problem.groups, strict=True)))
    for group, own in by_groups(problem, y, counts):
        known = saddle.rows.get(group.name)
        if known is not None and known.shape[2] == own.shape[1] and known.shape[1] <= group.blocks:
            own[:, :, : known.shape[1]] = sign * known.transpose(1, 2).to(y)
    return x, y, saddle.weight.to(x)


def fill(problem: Decomposition, state: State) -> Tensor:
    """Lay a state out as copies ``(batch, copies)``; what it does not hold is zero.

    Raises
    ------
    ShapeError
        If the batch or the shape of a group does not fit.
    """
    if state.batch != problem.batch:
        raise ShapeError(
            f"the warm start has {state.batch} instances, the problem {problem.batch}; use state.select, repeat or concatenate"
        )
    duals = torch.zeros(problem.batch, problem.copies, dtype=problem.cost.dtype, device=problem.cost.device)
    for group in problem.groups:
        known = state.duals.get(group.name)
        if known is None:
            continue
        if group.name == BOX and known.shape[1] <= problem.cost.shape[1]:
            # Other variables may be boxed now: what one that is not had goes to its blocks with the residual.
            known = torch.nn.functional.pad(known, (0, 0, 0, problem.cost.shape[1] - known.shape[1]))
            known = known.gather(1, _boxed(problem, group))
        if known.shape[2] != group.dim or known.shape[1] > group.blocks:
            raise ShapeError(
                f"the warm start holds {tuple(known.shape[1:])} multipliers for {group.name!r}, the model has "
                f"{(group.blocks, group.dim)}; blocks may be added, not removed"
            )
        group.view(duals)[:, : known.shape[1]].copy_(known)
        if group.alive is not None:  # padding has no multipliers
            group.view(duals).mul_(group.alive[..., None])
    return duals


def _boxed(problem: Decomposition, group: Group) -> Tensor:
    """The variables of the box: ``(batch, blocks, 1)`` int64."""
    return problem.coupling.index[:, group.start : group.stop, None].expand(problem.batch, -1, -1)

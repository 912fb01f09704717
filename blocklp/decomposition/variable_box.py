"""Bounds of variables for methods on rows: those of the model, tightened by those that blocks state."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.blocks.contract import Rows, pick
from blocklp.decomposition.problem import Decomposition, Group


@dataclass(frozen=True)
class VariableBox:
    """The bounds of the variables, tightened by those that blocks state (:attr:`Constraints.below`).

    Attributes
    ----------
    lower, upper : Tensor
        ``(batch, variables)``.
    holds_lower, holds_upper : Tensor or None
        ``(batch, copies)``: where a block cuts the bounds of the variable, the part of its reduced cost that
        each copy gets, which only blocks with that bound get; -1 elsewhere.  None where no block cuts any.
    as_rows : dict
        Groups to the positions ``(k,)`` of a block whose bounds are rows: where bounds contradict each other,
        and all with structured scopes.
    """

    lower: Tensor
    upper: Tensor
    holds_lower: Tensor | None
    holds_upper: Tensor | None
    as_rows: dict[str, Tensor]

    @classmethod
    def of(cls, problem: Decomposition) -> VariableBox:
        """Cut the bounds of the variables."""
        given = problem.lower.expand_as(problem.cost), problem.upper.expand_as(problem.cost)
        bounded = [g for g in problem.groups if (c := g.constraints) is not None and c.below is not None]
        every = {g.name: torch.arange(g.dim) for g in bounded}
        rows = {g.name: every[g.name] for g in bounded if (g.start, g.stop) in problem.coupling.maps}
        copies = cls._stated(problem, bounded, rows)
        index = problem.coupling.index.expand_as(copies[0])
        lower, upper = cls._cut(problem, given, copies)
        if _anywhere(problem, lower > upper):
            # Rows then prove infeasibility, at positions where any block has such a variable.
            crossed = (lower > upper).gather(1, index)
            met = {g.name: g.rows(crossed).any(2).any(0) for g in bounded}
            met = {name: ~problem.totals.everywhere(~own) for name, own in met.items()}
            places = {name: own.nonzero()[:, 0].cpu() for name, own in met.items()}
            rows = {name: found for g in bounded if len(found := rows.get(name := g.name, places[name]))}
            copies = cls._stated(problem, bounded, rows)
            lower, upper = cls._cut(problem, given, copies)
        cuts = lower > given[0], upper < given[1]
        if not _anywhere(problem, cuts[0] | cuts[1]):
            return cls(*given, None, None, rows)
        holds = []
        for own, side, cut in zip(copies, (lower, upper), cuts, strict=True):
            spread, collect = problem.coupling.spread, problem.coupling.collect
            equal = (own == spread(side)).to(own)
            parts = torch.where(spread(cut.to(own)) > 0, equal / spread(collect(equal)), -1.0)
            holds.append(torch.nn.functional.pad(parts, (0, problem.copies - problem.in_blocks)))
        return cls(lower, upper, holds[0], holds[1], rows)

    @staticmethod
    def _stated(problem: Decomposition, bounded: list[Group], rows: dict[str, Tensor]) -> list[Tensor]:
        """Bounds that blocks state, lower and upper ``(batch, copies)``, infinite where they are rows."""
        ends = -torch.inf, torch.inf
        copies = [problem.cost.new_full((problem.batch, problem.in_blocks), end) for end in ends]
        for group in bounded:
            stated = group.constraints
            if stated is None or stated.below is None or stated.above is None:
                continue
            for side, own, none in zip(copies, (stated.below, stated.above), ends, strict=True):
                room = group.rows(side)
                mine = own.to(side).transpose(1, 2).expand_as(room)
                room.copy_(mine if group.valid is None else torch.where(group.valid[:, None] > 0, mine, room))
                if group.name in rows:
                    room[:, rows[group.name].to(room.device)] = none
        return copies

    @staticmethod
    def _cut(
        problem: Decomposition,
        given: tuple[Tensor, Tensor],
        copies: list[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Bounds of the variables with those of their copies, ``(batch, variables)`` both."""
        greatest = problem.coupling.greatest
        return greatest(given[0], copies[0]), -greatest(-given[1], -copies[1])

    def clip(self, x: Tensor) -> Tensor:
        """Move points ``(batch, variables)`` into the box."""
        return torch.minimum(torch.maximum(x, self.lower), self.upper)

    def select(self, rows: Rows) -> VariableBox:
        """Return the box of some instances."""
        tensors = (self.lower, self.upper, self.holds_lower, self.holds_upper)
        lower, upper, *holds = (t if t is None else pick(t, rows) for t in tensors)
        assert lower is not None and upper is not None
        return VariableBox(lower, upper, holds[0], holds[1], self.as_rows)


def _anywhere(problem: Decomposition, met: Tensor) -> bool:
    """Whether a mask ``(batch, variables)`` holds something, in any part of the instances."""
    return not bool(problem.totals.everywhere(~met.any()))

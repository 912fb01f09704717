"""What a solve returns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from blocklp.errors import ModelError
from blocklp.expression import Variable, View
from blocklp.model import Blocks
from blocklp.records import Event, Results
from blocklp.state import State
from blocklp.status import Status

if TYPE_CHECKING:
    from blocklp.solver import Solver


class Values:
    """Primal values by variable or view: ``x[y]`` is ``(batch, *shape)``."""

    def __init__(self, x: Tensor, variables: dict[str, Variable]) -> None:
        self._x, self._variables = x, variables

    def __getitem__(self, key: View | str) -> Tensor:
        view = self._variables[key] if isinstance(key, str) else key
        return self._x[:, view.index.to(self._x.device)]


class Multipliers:
    """Multipliers by handle of blocks: ``duals[pairs]`` is ``(batch, blocks, dim)``."""

    def __init__(self, state: State) -> None:
        self._state = state

    def __getitem__(self, key: Blocks | str) -> Tensor:
        return self._state.duals[key if isinstance(key, str) else key.name]


@dataclass(frozen=True)
class Solution:
    """Bounds, primal points and certificate of every instance.

    All tensors have the instance first.  When maximising, ``bound`` and ``safe_bound`` are upper bounds.

    Attributes
    ----------
    bound : Tensor
        ``(batch,)`` float64: best bound, evaluated in float64 and corrected for the residual of the multipliers.
    safe_bound : Tensor
        ``(batch,)`` float64: the bound of the returned multipliers with all rounding errors charged; infinite (no
        statement) if a block type states no ``value_error``.
    primal : Tensor
        ``(batch,)`` float64: best value of a primal point that satisfies all blocks within ``feasibility_tol``; infinite
        if none was found.
    gap : Tensor
        ``(batch,)``: ``|primal - bound| / max(|primal|, |bound|, floor)``.
    floor : Tensor
        ``(batch,)`` float64: what the gap is relative to at least, in the units of the objective; a thousandth of what its
        terms add up to without their signs (:func:`blocklp.checks.floor`), so that no scale of costs is better than another.
    status : tuple of Status
        Why each instance ended.
    x : Values
        Primal point, ``x[y]`` is ``(batch, *shape)``; if ``primal`` is infinite, the mean of the last copies.
    state : State
        Multipliers and proximal weights to start from; ``duals`` shows the multipliers by blocks.
    passes, seconds : Tensor
        ``(batch,)``: oracle passes and time until each instance left.
    history : tuple of Event
        The events, if they were asked for.
    """

    bound: Tensor
    safe_bound: Tensor
    primal: Tensor
    gap: Tensor
    floor: Tensor
    status: tuple[Status, ...]
    x: Values
    state: State
    passes: Tensor
    seconds: Tensor
    history: tuple[Event, ...]
    solver: Solver
    raw_x: Tensor

    @property
    def duals(self) -> Multipliers:
        """The multipliers by handle of blocks."""
        return Multipliers(self.state)

    @property
    def message(self) -> str:
        """The sentence of the status, for a single instance."""
        if len(self.status) > 1:
            raise ModelError("message speaks of one instance; use solution.status[i].message")
        return self.status[0].message

    def instance(self, i: int) -> Solution:
        """Return the solution of one instance; of its own model, where several models were compiled together."""
        names = ("bound", "safe_bound", "primal", "gap", "floor", "passes", "seconds")
        picks = {name: getattr(self, name)[i : i + 1] for name in names}
        model, _ = self.solver.owner(i)
        raw = self.raw_x[i : i + 1, : model.size]
        return replace(
            self,
            **picks,
            status=(self.status[i],),
            raw_x=raw,
            x=Values(raw, model.variables),
            state=self.solver.own_state(self.state.select([i]), i),
            history=(),
        )

    def __repr__(self) -> str:
        lines = [f"Solution of {len(self.status)} instance{'s' * (len(self.status) > 1)}"]
        for i in range(min(len(self.status), 5)):
            lines.append(
                f"  [{i}] {self.status[i].name.lower()}: bound {float(self.bound[i]):.9g}, primal {float(self.primal[i]):.9g}, "
                f"gap {float(self.gap[i]):.2g}, {int(self.passes[i])} passes, {float(self.seconds[i]):.3g} s"
            )
        if len(self.status) > 5:
            lines.append(f"  ... {len(self.status) - 5} more")
        return "\n".join(lines)


def solution(results: Results, state: State, solver: Solver) -> Solution:
    """Give the engine's results the sense of the model."""
    sign = -1.0 if solver.maximizing else 1.0

    def event(e: Event) -> Event:
        return Event(e.passes, e.seconds, sign * e.bound, sign * e.primal, e.gap, e.status)

    return Solution(
        bound=sign * results.bound,
        safe_bound=sign * results.safe_bound,
        primal=sign * results.primal,
        gap=results.gap(),
        floor=results.floor,
        status=tuple(map(Status, results.status.tolist())),
        x=Values(results.x, solver.models[0].variables),
        state=state,
        passes=results.passes,
        seconds=results.seconds,
        history=tuple(event(e) for e in results.history),
        solver=solver,
        raw_x=results.x,
    )

"""What a solve returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from blocklp.errors import ModelError, UnknownNameError
from blocklp.expression import View
from blocklp.listening import signed
from blocklp.model import Blocks, Model
from blocklp.options import instance_number, shown
from blocklp.records import Event, Results
from blocklp.state import State
from blocklp.status import Status

if TYPE_CHECKING:
    from blocklp.raw import RawSolution
    from blocklp.solver import Solver

HOOK_FAILED = " None of the repair hook's points satisfied all blocks within feasibility_tol."


class Values(Mapping[str, Tensor]):
    """Primal values by variable, view or name: ``x[y]`` is ``(batch, *shape)``, a copy."""

    def __init__(self, x: Tensor, models: Sequence[Model]) -> None:
        self._x, self._models = x, models
        self._variables = dict(models[0].variables)  # a model may get more of them

    def __getitem__(self, key: View | str) -> Tensor:
        view = self._variables.get(key) if isinstance(key, str) else key
        mine = isinstance(view, View) and any(view.model is m for m in self._models)
        if view is None or not mine or bool((view.index >= self._x.shape[1]).any()):
            names = ", ".join(map(repr, self._variables))
            raise UnknownNameError(f"the solution has no values of {shown(key)}; its variables are {names}")
        columns = [v.columns for v in self._variables.values()]
        if any([v.columns for v in m.variables.values()][: len(columns)] != columns for m in self._models[1:]):
            raise ModelError("the models of this batch have variables of different sizes; ask one by solution.instance(i).x")
        return self._x[:, view.index.to(self._x.device)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)

    def __repr__(self) -> str:
        found = [f"{v.name}{list(v.shape)}" for v in self._variables.values()]
        return f"values of {len(self._x)} instance{'s' * (len(self._x) != 1)}: {', '.join(found)}"


class Multipliers(Mapping[str, Tensor]):
    """Multipliers by handle or name of blocks: ``duals[pairs]`` is ``(batch, blocks, dim)``, the tensor of the state."""

    def __init__(self, state: State) -> None:
        self._state = state

    def __getitem__(self, key: Blocks | str) -> Tensor:
        name = key.name if isinstance(key, Blocks) else key
        if not isinstance(name, str) or name not in self._state.duals:
            raise UnknownNameError(f"the solution has no multipliers for {shown(key)}; it has {', '.join(map(repr, self))}")
        return self._state.duals[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._state.duals)

    def __len__(self) -> int:
        return len(self._state.duals)

    def __repr__(self) -> str:
        return repr(self._state).replace("State", "multipliers", 1)


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
        Primal point, a mapping: ``x[y]`` is ``(batch, *shape)``, by variable, view or name; if ``primal`` is infinite, the mean of
        the last copies.  For models of different sizes ask ``instance(i).x``.
    state : State
        Multipliers and proximal weights to start from; ``duals`` shows the multipliers by blocks.
    hook_failed : Tensor
        ``(batch,)`` bool: a repair hook was asked and none of its points satisfied all blocks.
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
    hook_failed: Tensor
    numbers: range

    @property
    def duals(self) -> Multipliers:
        """The multipliers, a mapping by handle or name of blocks; those of ``"box"`` belong to variables."""
        return Multipliers(self.state)

    @property
    def message(self) -> str:
        """The sentence of the status, for a single instance, and whether its repair hook was of any use."""
        if len(self.status) > 1:
            raise ModelError("message speaks of one instance; use solution.instance(i).message")
        return self.status[0].message + HOOK_FAILED * bool(self.hook_failed[0])

    def instance(self, i: int) -> Solution:
        """Return the solution of one instance; of its own model, where several models were compiled together.

        Parameters
        ----------
        i : int
            Its number; negative ones count from the end, as in lists.

        Raises
        ------
        InstanceError
            If there is none.
        """
        i = instance_number(i, len(self.status))
        names = ("bound", "safe_bound", "primal", "gap", "floor", "passes", "seconds", "hook_failed")
        number = self.numbers[i]
        model, _ = self.solver.owner(number)
        raw = self.raw_x[i : i + 1, : model.size]
        return replace(
            self,
            **{name: getattr(self, name)[i : i + 1] for name in names},
            status=(self.status[i],),
            raw_x=raw,
            x=Values(raw, [model]),
            state=self.solver.own_state(self.state.select([i]), number),
            history=(),
            numbers=self.numbers[i : i + 1],
        )

    def __repr__(self) -> str:
        return summary(self)


def summary(found: Solution | RawSolution) -> str:
    """A line for each of the first instances."""
    count = len(found.status)
    lines = [f"{type(found).__name__} of {count} instance{'s' * (count != 1)}"]
    for i in range(min(count, 5)):
        lines.append(
            f"  [{i}] {found.status[i]}: bound {float(found.bound[i]):.9g}, primal {float(found.primal[i]):.9g}, "
            f"gap {float(found.gap[i]):.2g}, {int(found.passes[i])} passes, {float(found.seconds[i]):.3g} s"
        )
    return "\n".join(lines + [f"  ... {count - 5} more"] * (count > 5))


def solution(results: Results, state: State, solver: Solver) -> Solution:
    """Give the engine's results the sense of the model."""
    sign = -1.0 if solver.maximizing else 1.0

    return Solution(
        bound=sign * results.bound,
        safe_bound=sign * results.safe_bound,
        primal=sign * results.primal,
        gap=results.gap(),
        floor=results.floor,
        status=tuple(map(Status, results.status.tolist())),
        x=Values(results.x, solver.models),
        state=state,
        passes=results.passes,
        seconds=results.seconds,
        history=tuple(signed(e, sign) for e in results.history),
        solver=solver,
        raw_x=results.x,
        hook_failed=solver.hooked() & ~results.repaired & (results.passes > 1),
        numbers=range(len(results.bound)),
    )

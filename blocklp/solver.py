"""From models to a decomposition that can be solved again and again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from blocklp import state as states
from blocklp.assembly import Bounds, assemble, costs
from blocklp.block import difference
from blocklp.deadline import Deadline
from blocklp.decomposition import Decomposition
from blocklp.engine import Repair, run
from blocklp.errors import DeviceError, ModelError, OptionError
from blocklp.expression import Expression, Values
from blocklp.methods import Method, as_method
from blocklp.model import BOX, Blocks, Model
from blocklp.records import Event, Limits
from blocklp.solution import Solution, solution
from blocklp.state import Saddle, State


def compile(models: Model | Sequence[Model], *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float64) -> Solver:
    """Fix the shapes of a model, or of several models to be solved as one batch.

    Parameters
    ----------
    models : Model or sequence of Model
        Several models need the same variables (by name) and the same kinds of blocks (by name), in any sizes.
    device : str or torch.device
        Where to solve.
    dtype : torch.dtype
        ``float64`` or ``float32``: precision of the iterates.  Bounds are float64 in either case.

    Raises
    ------
    ModelError, OptionError, DeviceError
        If a model has no objective, the models do not fit together, or the device is missing.
    """
    return Solver([models] if isinstance(models, Model) else list(models), torch.device(device), dtype)


class Solver:
    """A compiled problem; :meth:`solve` may be called with new costs (parameters), bounds and warm starts."""

    def __init__(self, models: list[Model], device: torch.device, dtype: torch.dtype) -> None:
        if not models:
            raise ModelError("compile() needs at least one model")
        if device.type == "cuda" and not torch.cuda.is_available():
            raise DeviceError("device 'cuda' was asked for and no CUDA device is available; use device='cpu'")
        if dtype not in (torch.float32, torch.float64):
            raise OptionError(f"dtype {dtype} is not supported; use torch.float64 or torch.float32")
        first = models[0]
        for m in models:
            if m.objective is None:
                raise ModelError("the model has no objective; call minimize() or maximize() first")
            if not m.size:
                raise ModelError("the model has no variables; declare at least one")
            if m.maximizing != first.maximizing or [b.name for b in m.blocks] != [b.name for b in first.blocks]:
                raise ModelError("models compiled together need the same sense and the same names of blocks, in one order")
            if list(m.variables) != list(first.variables):
                raise ModelError("models compiled together need the same variables by name, in one order")
            for a, b in zip(m.blocks, first.blocks, strict=True):
                if (what := difference(a.type, b.type)) or a.scope.shape[1] != b.scope.shape[1]:
                    raise ModelError(
                        f"blocks {a.name!r} differ in {what or 'size'} between models compiled together; a type may differ in its "
                        f"block_data only: give the others another name of blocks, or compile them alone"
                    )
                if len(models) > 1 and a.maps is not None:
                    raise ModelError(f"blocks {a.name!r} have maps of their own; models with such blocks compile alone")
        self.models, self.device, self.dtype = models, device, dtype
        self.maximizing = first.maximizing
        self.batch = sum(m.batch for m in models)
        self._structure: Decomposition | None = None
        self._fixed: tuple[list[Expression], Tensor, Tensor] | None = None
        self._sizes = [_size(m) for m in models]

    def owner(self, instance: int) -> tuple[Model, int]:
        """Return the model of an instance and the instance's number in it."""
        for m in self.models:
            if instance < m.batch:
                return m, instance
            instance -= m.batch
        raise IndexError(f"instance {instance} is out of range of a batch of {self.batch}")

    def own_state(self, state: State, instance: int) -> State:
        """Cut the padding of a ragged batch off an instance's state."""
        model, _ = self.owner(instance)
        blocks = {b.name: len(b.scope) for b in model.blocks} | {BOX: model.size}

        def cut(values: dict[str, Tensor]) -> dict[str, Tensor]:
            return {k: v[:, : blocks[k]] if k in blocks else v for k, v in values.items()}

        saddle = state.saddle and Saddle(state.saddle.x[:, : model.size], cut(state.saddle.rows), state.saddle.weight)
        return State(cut(state.duals), state.eta, saddle)

    def solve(
        self,
        *,
        method: str | Method = "auto",
        tol: float | Tensor = 1e-4,
        cutoff: float | Tensor | None = None,
        passes: int = 5000,
        time_limit: float | Deadline = math.inf,
        bounds: Bounds | None = None,
        warm_start: State | None = None,
        callback: Callable[[Event], Any] | None = None,
        history: bool = False,
        check_every: int | None = None,
        feasibility_tol: float = 1e-6,
        patience: int = 1000,
        mend: bool = True,
    ) -> Solution:
        """Solve all instances; return the best so far at a limit or an interrupt.

        Parameters
        ----------
        method : str or Method
            ``"auto"`` (default) chooses by what the block types can do; or a name in :data:`blocklp.METHODS`, or an instance with
            settings.
        tol : float or Tensor
            Relative gap at which an instance is optimal; ``(batch,)`` for one each.
        cutoff : float or Tensor, optional
            Stop an instance once its bound reaches this value (from below; from above when maximising).
        passes : int
            Most oracle passes, bound evaluations included.
        time_limit : float or Deadline
            Seconds for everything that this call does, or what is left of a deadline.
        bounds : mapping, optional
            ``{variable or view: (lower, upper)}`` to tighten for this solve, each ``shape`` or ``(batch, *shape)``;
            fixings are equal bounds.
        warm_start : State, optional
            ``solution.state`` of a related solve.
        callback : callable, optional
            Gets an :class:`Event` at every check; True, or a mask ``(batch,)``, stops.
        history : bool
            Keep the events in ``solution.history``.
        check_every : int, optional
            Passes between checks of status, primal point and time; by default the method's cadence (ten, with ``pdhg`` fifty),
            later a tenth of those made.
        feasibility_tol : float
            Largest violation of a block, relative to the magnitude of the point, in a primal point.
        patience : int
            Passes without progress after which an instance is stalled.
        mend : bool
            Whether a point that is almost feasible is projected; without, primal points come later, and checks are cheaper.

        Raises
        ------
        OptionError
            If an option is out of range or unknown.
        """
        deadline = Deadline.of(time_limit)
        problem = self.decomposition(bounds)
        ascent = as_method(method, problem)
        sign = -1.0 if self.maximizing else 1.0
        limits = Limits.of(
            problem.offset,
            tol=tol,
            cutoff=math.inf if cutoff is None else sign * torch.as_tensor(cutoff, dtype=torch.float64),
            passes=passes,
            deadline=deadline,
            check_every=check_every,
            feasibility_tol=feasibility_tol,
            patience=patience,
            mend=mend,
        )
        if warm_start is None:
            duals, eta, memory = None, None, None
        else:
            duals = states.fill(problem, State({k: sign * v.to(problem.cost) for k, v in warm_start.duals.items()}, warm_start.eta))
            memory = states.memory_of(problem, warm_start, sign)
            known = warm_start.eta.to(self.device, self.dtype)
            eta = known if bool(torch.isfinite(known).all()) else None

        def told(event: Event) -> Any:
            assert callback is not None
            return callback(Event(event.passes, event.seconds, sign * event.bound, sign * event.primal, event.gap, event.status))

        log: list[Event] = []
        results = run(
            problem,
            ascent,
            self.dtype,
            limits,
            duals,
            eta,
            self._repair(),
            told if callback is not None else None,
            log.append if history else None,
            memory,
        )
        results.history = log
        duals = results.duals if sign > 0 else results.duals.neg_()
        return solution(results, states.take(problem, duals, results.eta, results.memory, sign), self)

    def decomposition(self, bounds: Bounds | None = None, values: Values | None = None) -> Decomposition:
        """Decompose the problem with the parameters' present values, or other ones, and tighter bounds, if given, in float64."""
        if [_size(m) for m in self.models] != self._sizes:
            raise ModelError("the model has got variables or blocks since it was compiled; compile it again")
        width = max(m.size for m in self.models) + (len(self.models) > 1)
        shape = self._structure
        if bounds is not None or shape is None:
            shape = assemble(self.models, bounds or {}, width, self.device)
            if bounds is None:
                self._structure = shape
        cost, offset = self._objective(width, values)
        return replace(shape, cost=cost, offset=offset)

    def _objective(self, width: int, values: Values | None) -> tuple[Tensor, Tensor]:
        """Costs ``(batch, width)`` and constants ``(batch,)`` for minimisation; those without parameters are evaluated once."""
        expressions = [m.objective for m in self.models if m.objective is not None]
        if self._fixed is not None and all(a is b for a, b in zip(expressions, self._fixed[0], strict=True)):
            return self._fixed[1].clone(), self._fixed[2].clone()
        sign = -1.0 if self.maximizing else 1.0
        cost, offset = ((sign * part).to(self.device) for part in costs(expressions, width, values))
        if all(t.parameter is None for e in expressions for t in e.terms):
            self._fixed = expressions, cost.clone(), offset.clone()
        return cost, offset

    def _repair(self) -> Repair | None:
        """Wrap the models' repair hooks: apply each to its instances."""
        if any(m.repair is None for m in self.models):
            return None
        first = torch.tensor([0, *(m.batch for m in self.models)]).cumsum(0)

        def repair(x: Tensor, rows: Tensor) -> Tensor:
            fixed = x.clone()
            for m, start in zip(self.models, first.tolist(), strict=False):
                mine = ((rows >= start) & (rows < start + m.batch)).nonzero()[:, 0]
                if len(mine):
                    assert m.repair is not None
                    parts = {k: x[mine][:, v.index.to(x.device)] for k, v in m.variables.items()}
                    answer = m.repair(parts)
                    for k, v in m.variables.items():
                        if k not in answer or answer[k].shape != parts[k].shape:
                            raise ModelError(f"the repair hook must return {k!r} with shape {tuple(parts[k].shape)}")
                        fixed[mine[:, None], v.index.reshape(1, -1).to(x.device)] = answer[k].to(x).reshape(len(mine), -1)
            return fixed

        return repair


def _size(model: Model) -> tuple[int, list[Blocks]]:
    """What tells that a model has grown: number of variables and handles of blocks, which are not changed but replaced."""
    return model.size, list(model.blocks)

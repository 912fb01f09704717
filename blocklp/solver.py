"""From models to a decomposition that can be solved again and again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor

from blocklp.blocks.box import BOX
from blocklp.blocks.type_difference import difference
from blocklp.deadline import Deadline
from blocklp.decomposition.problem import Decomposition
from blocklp.engine.limits import LimitOptions, Limits, with_defaults
from blocklp.engine.loop import run
from blocklp.engine.records import Event, Hooks, Repair, Start
from blocklp.errors import InstanceError, ModelError, TimeLimitError
from blocklp.kernels.backend import Backend
from blocklp.kernels.plan import Plan
from blocklp.kernels.settings import EngineSettings
from blocklp.language.expression import Expression, Values
from blocklp.language.handles import ROWS, Blocks, name_of_size
from blocklp.language.lowering import assemble, costs, unblocked
from blocklp.language.sense import Sense
from blocklp.language.statement import Statement
from blocklp.language.variable_bounds import Bounds
from blocklp.listening import listening
from blocklp.methods import Method, as_method
from blocklp.options import (
    flag,
    known_backend,
    known_device,
    numbers,
    of_type,
    shown,
    without_gradients,
    working_precision,
)
from blocklp.results import warm_start as starts
from blocklp.results.solution import Solution, solution
from blocklp.results.state import Saddle, State
from blocklp.tables import as_html, listed, plural


def compile(
    models: Statement | Sequence[Statement],
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float64,
    backend: str = "auto",
) -> Solver:
    """Fix the shapes of a model, or of several models to be solved as one batch.

    Parameters
    ----------
    models : Model or sequence of Model
        Several models need the same variables (by name) and the same kinds of blocks (by name), in any sizes.
    device : str or torch.device
        Where to solve.
    dtype : torch.dtype
        ``float64`` or ``float32``: precision of the iterates.  Bounds are float64 in either case.
    backend : str
        ``"torch"``, ``"numba"`` (loops compiled for the CPU) or ``"auto"``, which takes loops where they pay
        within one solve (:mod:`blocklp.kernels.backend`): give ``"numba"`` where small problems are solved
        again and again.  Bounds are valid with either; iterates differ in their last digits.

    Returns
    -------
    Solver
        The compiled problem, of all instances of all models.

    Raises
    ------
    ModelError, OptionError, DeviceError, MissingDependencyError
        If a model has no objective, the models do not fit together, the device is missing, or the backend is
        unknown or not for the device.
    """
    several = list(models) if isinstance(models, Sequence) else []
    given = [models] if isinstance(models, Statement) else several
    if not given or not all(isinstance(m, Statement) for m in given):
        raise ModelError(f"compile() needs a model or a sequence of at least one, got {shown(models)}")
    where = known_device(device)
    return Solver(given, where, working_precision(dtype), known_backend(backend, where))


class Solver:
    """A compiled problem; :meth:`solve` may be called with new costs, bounds and warm starts.

    New costs are those of parameters, or of an objective that took the place of another one.  A model whose
    sense, variables, bounds of variables, blocks or block data were changed is compiled again: until then
    :meth:`solve` refuses.

    ``backend`` is the one that was asked for, and after a solve the one that ran it. ``settings`` say how
    work is divided on the machine at hand (:class:`blocklp.kernels.settings.EngineSettings`).
    """

    def __init__(
        self,
        models: list[Statement],
        device: torch.device,
        dtype: torch.dtype,
        backend: str = "auto",
        settings: EngineSettings | None = None,
    ) -> None:
        first = models[0]
        for m in models:
            if m.objective is None:
                raise ModelError("the model has no objective; call minimize() or maximize() first")
            if not m.size:
                raise ModelError("the model has no variables; declare at least one")
            names = [b.name for b in m.blocks]
            if m.maximizing != first.maximizing or names != [b.name for b in first.blocks]:
                need = "the same sense and the same names of blocks, in one order"
                raise ModelError(f"models compiled together need {need}")
            if list(m.variables) != list(first.variables):
                raise ModelError("models compiled together need the same variables by name, in one order")
        if len(models) > 1 and any(m.rows for m in models):
            need = "instances that share the rows are a batch of one model"
            raise ModelError(f"models with rows compile alone; {need}")
        for b in (b for m in models for b in m.blocks if len(models) > 1 and b.maps is not None):
            need = "models with such blocks compile alone"
            raise ModelError(f"blocks {b.name!r} have maps of their own; {need}")
        _check_types(models)
        self.models, self.device, self.dtype = models, device, dtype
        self.backend, self._asked = backend, Backend(backend)
        self._settings = settings or EngineSettings()
        self.sense = Sense(first.maximizing)
        self.batch = sum(m.batch for m in models)
        self._structure: Plan | None = None
        self._fixed: tuple[list[Expression], Tensor, Tensor] | None = None
        self._built, self._blocks = [_built(m) for m in models], [_blocks(m) for m in models]
        self._width = max(m.size for m in models) + (len(models) > 1)

    def __repr__(self) -> str:
        first = self.models[0]
        several = f" of {len(self.models)} models" if len(self.models) > 1 else ""
        count, size = plural(self.batch, "instance"), plural(max(m.size for m in self.models), "variable")
        blocks = f"blocks {listed(b.name for b in first.blocks) or 'none'}"
        rows = f", rows {listed(r.name for r in first.rows)}" if first.rows else ""
        where = f"{self.dtype} on {self.device}, backend {self.backend}"
        return f"Solver of {count}{several}, {self.sense}, {size}, {blocks}{rows}, {where}"

    def _repr_html_(self) -> str:
        return as_html(repr(self), [])

    def owner(self, instance: int) -> tuple[Statement, int]:
        """Return the model of an instance and the instance's number in it."""
        for m in self.models:
            if instance < m.batch:
                return m, instance
            instance -= m.batch
        raise InstanceError(f"instance {instance} is out of range of a batch of {self.batch}")

    def hooked(self) -> Tensor:
        """Which instances have a repair hook: ``(batch,)`` bool."""
        hooks = torch.tensor([m.repair is not None for m in self.models])
        hooks = hooks.repeat_interleave(torch.tensor([m.batch for m in self.models]))
        return hooks.to(self.device, non_blocking=True)

    def own_state(self, state: State, instance: int) -> State:
        """Cut the padding of a ragged batch off an instance's state."""
        model, _ = self.owner(instance)
        blocks = {b.name: (b.name, len(b.scope)) for b in model.blocks} | {BOX: (BOX, model.size)}
        blocks[ROWS] = (ROWS, sum(r.count for r in model.rows))
        blocks |= {name_of_size(b.name, b.scope.shape[1]): (b.name, len(b.scope)) for b in model.blocks}

        def cut(values: dict[str, Tensor]) -> dict[str, Tensor]:
            return {blocks[k][0]: v[:, : blocks[k][1]] for k, v in values.items() if k in blocks}

        saddle = state.saddle
        if saddle is not None:
            saddle = Saddle(saddle.x[:, : model.size], cut(saddle.rows), saddle.weight)
        return State(cut(state.duals), state.eta, saddle, state.rows)

    def solve(
        self,
        *,
        method: str | Method = "auto",
        bounds: Bounds | None = None,
        warm_start: State | Solution | None = None,
        callback: Callable[[Event], Any] | None = None,
        verbose: bool = False,
        history: bool = False,
        **limits: Unpack[LimitOptions],
    ) -> Solution:
        """Solve all instances; return the best so far at a limit or an interrupt.

        Parameters
        ----------
        method : str or Method
            ``"auto"`` (default) chooses by what the block types can do; or a name in
            :data:`blocklp.methods.METHODS`, or an instance with settings.
        bounds : mapping, optional
            To tighten for this solve: ``{variable, view or name: (lower, upper)}``, each ``shape`` or
            ``(batch, *shape)``; a number or tensor in the place of the tuple fixes at this value.
        warm_start : State or Solution, optional
            A related solution, or its ``state``; it is copied.
        callback : callable, optional
            Gets an :class:`Event` at every check; True, or a mask ``(batch,)`` bool, stops.
        verbose : bool
            Whether a line on standard error follows the solve where that is a terminal or a notebook, see
            :class:`blocklp.Progress`, and the solution is printed there in the end.
        history : bool
            Keep the events in ``solution.history``.
        tol : float or Tensor
            Relative gap at which an instance is optimal, 1e-4 by default, not negative; ``(batch,)`` for one
            each.
        cutoff : float or Tensor, optional
            Stop an instance once its bound reaches this value (from below; from above when maximising).
        passes : int
            Most oracle passes, bound evaluations included; 5000 by default.
        time_limit : float or Deadline
            Seconds (none by default) for everything that this call does, or what is left of a deadline.
            Where they do not suffice to build the problem, the bound is that of the variables' bounds alone.
        check_every : int, optional
            Passes between checks of status, primal point and time; by default the method's cadence (ten, with
            ``pdhg`` fifty), later a tenth of those made.
        feasibility_tol : float
            Largest violation of a block, relative to the magnitude of the point, in a primal point; 1e-6 by
            default.
        patience : int
            Passes without progress after which an instance is stalled; 1000 by default.
        project : bool
            Whether (the default) a point that is almost feasible is projected; without, primal points come
            later, and checks are cheaper.

        Returns
        -------
        Solution
            Bounds ``(batch,)``, primal points and multipliers, in the sense of the model.

        Raises
        ------
        OptionError
            If an option is of another type, out of range or unknown, or a callback answers what is no mask.
        ModelError, ShapeError, NonFiniteError
            If bounds or the warm start do not fit, hold NaN, or require gradients; if the model was changed
            since it was compiled, but for its costs; if a repair hook does not return what it must.
        """
        options = with_defaults(limits)
        deadline, built = Deadline.of(options["time_limit"]), True
        try:
            plan = self._planned(bounds, None, deadline)
        except TimeLimitError:
            built, given = False, {} if bounds is None else bounds
            problem = unblocked(self.models, given, self._width, self.device)
            plan = self._priced(Plan(problem, backend=self._asked, settings=self._settings), None)
        problem = plan.problem
        ascent = as_method(method, problem)
        checked = Limits.of(problem.offset, options)
        if options["cutoff"] is not None:
            checked = self.sense.turned(checked, "cutoff")
        duals, eta, memory = None, None, None
        start = None if warm_start is None else starts.state_of(warm_start, "warm_start")
        if start is not None and built:
            start = start if len(self.models) > 1 else starts.fitted(start, self.models[0])
            for name, own in start.duals.items():
                without_gradients(own, f"the warm start of {name!r}")
            start = start.turned(self.sense)
            duals, memory = starts.fill(problem, start), starts.memory_of(problem, start)
            eta = starts.weights_of(start, self.device, self.dtype)
        log: list[Event] = []
        record = log.append if flag(history, "history") else None
        repair = self._repair()
        with listening(callback, verbose, self.batch, self.sense) as listener:
            begin, hooks = Start(duals, eta, memory), Hooks(repair, listener, record)
            results = run(plan, ascent, self.dtype, checked, begin, hooks)
        results.history, self.backend = log, results.backend
        names = {r.name: r.count for r in self.models[0].rows}
        state = starts.take(problem, results.duals, results.eta, names, results.memory).turned(self.sense)
        if not built and names:  # the bound is that of the box, which prices of zero prove
            state.duals[ROWS] = results.duals.new_zeros(self.batch, sum(names.values()), 1)
        found = solution(results, state, self, problem.cost, problem.offset)
        if verbose:
            print(found, file=sys.stderr)
        return found

    def decomposition(
        self,
        bounds: Bounds | None = None,
        values: Values | None = None,
        deadline: Deadline | None = None,
    ) -> Decomposition:
        """Decompose the problem, in float64.

        Parameters
        ----------
        bounds : mapping, optional
            Tighter bounds, as in :meth:`solve`.
        values : mapping, optional
            Parameters to values, instead of their present ones.
        deadline : Deadline, optional
            When to give up.

        Returns
        -------
        Decomposition
            The problem of all instances, in the sense of minimisation.

        Raises
        ------
        ModelError
            If the model was changed since it was compiled, but for its costs.
        TimeLimitError
            If the deadline is over.
        """
        return self._planned(bounds, values, deadline or Deadline()).problem

    def _planned(self, bounds: Bounds | None, values: Values | None, deadline: Deadline) -> Plan:
        """The plan of a solve; what it writes out serves later ones, too."""
        blocks = [_blocks(m) for m in self.models]
        same = [_built(m) for m in self.models] == self._built
        if not same or not all(map(_same_places, blocks, self._blocks)):
            raise ModelError(
                "the model was changed since it was compiled, in its sense, variables, bounds or blocks; "
                "compile it again, or give tighter bounds as bounds="
            )
        if blocks != self._blocks:
            _check_types(self.models)
            self._structure, self._blocks = None, blocks
        plan = self._structure
        if bounds is not None or plan is None:
            given = {} if bounds is None else bounds
            problem = assemble(self.models, given, self._width, self.device, deadline)
            plan = Plan(problem, backend=self._asked, settings=self._settings)
            if bounds is None:
                self._structure = plan
        return self._priced(plan, values)

    def _priced(self, plan: Plan, values: Values | None) -> Plan:
        """A plan with the costs of the objective."""
        cost, offset = self._objective(self._width, values)
        return replace(plan, problem=replace(plan.problem, cost=cost, offset=offset))

    def _objective(self, width: int, values: Values | None) -> tuple[Tensor, Tensor]:
        """Costs ``(batch, width)`` and constants ``(batch,)`` for minimisation.

        Objectives without parameters are evaluated once.
        """
        expressions = [m.objective for m in self.models if m.objective is not None]
        if self._fixed is not None:
            before, cost, offset = self._fixed
            if all(a is b for a, b in zip(expressions, before, strict=True)):
                return cost.clone(), offset.clone()
        cost, offset = (self.sense.turn(part).to(self.device) for part in costs(expressions, width, values))
        if all(t.parameter is None for e in expressions for t in e.terms):
            self._fixed = expressions, cost.clone(), offset.clone()
        return cost, offset

    def _repair(self) -> Repair | None:
        """Wrap the models' repair hooks: apply each to its instances; those of models without one get NaN."""
        if all(m.repair is None for m in self.models):
            return None
        first = torch.tensor([0, *(m.batch for m in self.models)]).cumsum(0)

        def repair(x: Tensor, rows: Tensor) -> Tensor:
            fixed = torch.full_like(x, torch.nan)
            for m, start in zip(self.models, first.tolist(), strict=False):
                mine = ((rows >= start) & (rows < start + m.batch)).nonzero()[:, 0]
                if len(mine) and m.repair is not None:
                    parts = {k: x[mine][:, v.index.to(x.device)] for k, v in m.variables.items()}
                    shapes = {k: tuple(part.shape) for k, part in parts.items()}
                    for k, value in _repaired(m.repair(parts), shapes).items():
                        at = m.variables[k].index.reshape(1, -1).to(x.device)
                        fixed[mine[:, None], at] = value.to(x).reshape(len(mine), -1)
            return fixed

        return repair


def _repaired(answer: object, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Check the answer of a repair hook: a tensor of a known shape for every variable.

    Raises
    ------
    ModelError
        If it is anything else.
    """
    must = "the repair hook must return a dict of tensors, one for each variable: " + ", ".join(
        f"{k!r} {s}" for k, s in shapes.items()
    )
    of_type(answer, Mapping, "what the repair hook returned", must, ModelError)
    assert isinstance(answer, Mapping)
    if answer.keys() != shapes.keys():
        raise ModelError(f"{must}; it returned {', '.join(map(repr, answer)) or 'none'}")
    found = {}
    for name, shape in shapes.items():
        with torch.no_grad():
            found[name] = numbers(answer[name], f"{name!r} of the repair hook")
        if found[name].shape != shape:
            raise ModelError(f"{must}; its {name!r} has shape {tuple(found[name].shape)}")
    return found


def _check_types(models: Sequence[Statement]) -> None:
    """Refuse blocks of one name and size that differ in more than their data."""
    for same in zip(*(m.blocks for m in models), strict=True):
        for a in same:
            b = next(other for other in same if other.scope.shape[1] == a.scope.shape[1])
            if what := difference(a.type, b.type):
                raise ModelError(
                    f"blocks {a.name!r} differ in {what} between models compiled together; a type may differ "
                    f"in its block_data only: give the others another name of blocks, or compile them alone"
                )


def _same_places(now: Sequence[tuple[Blocks, list[int]]], before: Sequence[tuple[Blocks, list[int]]]) -> bool:
    """Whether handles differ at most in types, as :meth:`Model.replace` does, and no data was written to."""
    return len(now) == len(before) and all(
        a.name == b.name and a.scope is b.scope and a.maps is b.maps and (a is not b or written == earlier)
        for (a, written), (b, earlier) in zip(now, before, strict=True)
    )


def _blocks(model: Statement) -> list[tuple[Blocks, list[int]]]:
    """The handles, which are not changed but replaced, and how often their data were written to."""
    return [(b, _writes([b.scope, *b.type.tensors().values()])) for b in model.blocks]


def _writes(data: Sequence[Tensor]) -> list[int]:
    return [0 if t.is_inference() else t._version for t in data]


def _built(model: Statement) -> tuple[Any, ...]:
    """The parts of a model, beside its blocks, whose change makes it another one than was compiled."""
    bounds = [t for v in model.variables.values() for t in (v.lower, v.upper)]
    return model.batch, model.size, model.maximizing, list(model.rows), _writes(bounds)

"""From models to a decomposition that can be solved again and again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.decomposition.problem import Decomposition
from blocklp.engine.division import within_memory
from blocklp.engine.limits import LimitOptions, Limits, with_defaults
from blocklp.engine.loop import run
from blocklp.engine.records import Event, Hooks, Start
from blocklp.errors import ModelError, OptionError, TimeLimitError
from blocklp.gradients.envelope import (
    LagrangianPart,
    differentiable,
    of_blocks,
    of_bounds,
    of_objective,
    of_rows,
)
from blocklp.kernels.backend import Backend
from blocklp.kernels.plan import Plan
from blocklp.kernels.settings import EngineSettings
from blocklp.language.batch_statement import BatchStatement
from blocklp.language.compiled_models import BatchModels, CompiledModels, ModelList
from blocklp.language.expression import Values
from blocklp.language.handles import ROWS
from blocklp.language.sense import Sense
from blocklp.language.statement import Statement
from blocklp.language.variable_bounds import Bounds
from blocklp.listening import listening
from blocklp.methods import Method, as_method
from blocklp.options import (
    flag,
    known_backend,
    known_device,
    of_type,
    shown,
    without_gradients,
    working_precision,
)
from blocklp.results import warm_start as starts
from blocklp.results.solution import Solution, solution
from blocklp.results.state import Saddle, State
from blocklp.tables import as_html, listed, plural

if TYPE_CHECKING:
    from blocklp.distributed.solve import SharedSolve

OVER = 1e-9
"""Seconds of a time limit that is over."""


def compile(
    models: Statement | Sequence[Statement],
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype = torch.float64,
    backend: str = "auto",
) -> Solver:
    """Fix the shapes of a model, or of several models to be solved as one batch.

    Parameters
    ----------
    models : Model, sequence of Model or ModelBatch
        Several models need the same variables (by name) and the same kinds of blocks (by name), in any sizes.
    device : str or torch.device, optional
        Where to solve: by default on the CPU, and a :class:`blocklp.ModelBatch` where its arrays are.
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
    if isinstance(models, BatchStatement):
        given: CompiledModels = BatchModels(models)
        device = device or models.device
    else:
        several = list(models) if isinstance(models, Sequence) else []
        listed = [models] if isinstance(models, Statement) else several
        if not listed or not all(isinstance(m, Statement) for m in listed):
            raise ModelError(f"compile() needs a model or a sequence of at least one, got {shown(models)}")
        given = ModelList(listed)
    where = known_device("cpu" if device is None else device)
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
        models: CompiledModels,
        device: torch.device,
        dtype: torch.dtype,
        backend: str = "auto",
        settings: EngineSettings | None = None,
    ) -> None:
        self._stated, self.models = models, models.models
        self.device, self.dtype = device, dtype
        self.backend, self._asked = backend, Backend(backend)
        self._settings = settings or EngineSettings()
        self.sense = Sense(models.maximizing)
        self.batch, self._width = models.batch, models.width
        self._structure: Plan | None = None
        self._fixed: tuple[list[object], Tensor, Tensor] | None = None

    def __repr__(self) -> str:
        first, many = self.models[0], len(self.models) > 1
        several = f" of {len(self.models)} models" if many else ""
        count, size = plural(self.batch, "instance"), plural(self._width - many, "variable")
        blocks = f"blocks {listed(b.name for b in first.blocks) or 'none'}"
        rows = f", rows {listed(r.name for r in first.rows)}" if first.rows else ""
        where = f"{self.dtype} on {self.device}, backend {self.backend}"
        return f"Solver of {count}{several}, {self.sense}, {size}, {blocks}{rows}, {where}"

    def _repr_html_(self) -> str:
        return as_html(repr(self), [])

    def owner(self, instance: int) -> tuple[Statement, int]:
        """Return the model of an instance and the instance's number in it."""
        return self._stated.owner(instance)

    def part(self, instance: int) -> tuple[Sequence[Statement], int]:
        """Return a sequence of the model of an instance alone, and how many variables it has."""
        return self._stated.part(instance)

    def hooked(self) -> Tensor:
        """Which instances have a repair hook: ``(batch,)`` bool."""
        return self._stated.hooked().to(self.device, non_blocking=True)

    def own_state(self, state: State, instance: int) -> State:
        """Cut the padding of a ragged batch off an instance's state."""
        blocks, size = self._stated.counts(instance), self._stated.part(instance)[1]

        def cut(values: dict[str, Tensor]) -> dict[str, Tensor]:
            return {blocks[k][0]: v[:, : blocks[k][1]] for k, v in values.items() if k in blocks}

        saddle = state.saddle
        if saddle is not None:
            saddle = Saddle(saddle.x[:, :size], cut(saddle.rows), saddle.weight)
        return State(cut(state.duals), state.eta, saddle, state.rows)

    def solve(
        self,
        *,
        method: str | Method = "auto",
        bounds: Bounds | None = None,
        values: Values | None = None,
        warm_start: State | Solution | None = None,
        callback: Callable[[Event], Any] | None = None,
        verbose: bool = False,
        history: bool = False,
        mesh: Any = None,
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
        values : mapping, optional
            Parameters to values ``shape`` or ``(batch, *shape)`` to use instead of those that are set.
        warm_start : State or Solution, optional
            A related solution, or its ``state``; it is copied.
        callback : callable, optional
            Gets an :class:`Event` at every check; True, or a mask ``(batch,)`` bool, stops.
        verbose : bool
            Whether a line on standard error follows the solve where that is a terminal or a notebook, see
            :class:`blocklp.Progress`, and the solution is printed there in the end.
        history : bool
            Keep the events in ``solution.history``.
        mesh : ProcessGroup, DeviceMesh, blocklp.distributed.Mesh or True, optional
            Share the blocks of one instance among the processes of a group of ``torch.distributed``, all of
            which make this call with the same model and options, and get the same solution
            (docs/distributed.md).
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
            Bounds ``(batch,)``, primal points and multipliers, in the sense of the model. Where costs, bounds
            of variables, sides of rows or block data require gradients, ``bound`` has them
            (:func:`blocklp.value`).

        Raises
        ------
        OptionError
            If an option is of another type, out of range or unknown, or a callback answers what is no mask.
        DeviceError
            If an instance does not fit the device's memory; batches are divided.
        ModelError, ShapeError, NonFiniteError
            If bounds or the warm start do not fit or hold NaN, or the warm start requires gradients; if the
            model was changed since it was compiled, but for its costs; if a repair hook does not return what
            it must.
        ProcessError
            With ``mesh``, if there is no group of processes, or one of them failed, stalled, or stated
            another model.
        """
        given = method, bounds, values, warm_start, callback, verbose, history, limits
        if mesh is None:
            return self._solve(None, *given)
        from blocklp.distributed.solve import sharing

        with sharing(mesh, self._stated.shard) as shared:
            return self._solve(shared, *given)

    def _solve(
        self,
        shared: SharedSolve | None,
        method: str | Method,
        bounds: Bounds | None,
        values: Values | None,
        warm_start: State | Solution | None,
        callback: Callable[[Event], Any] | None,
        verbose: bool,
        history: bool,
        limits: LimitOptions,
    ) -> Solution:
        """See :meth:`solve`; with processes that share the blocks, or None."""
        of_type(values, Mapping | None, "values", "a mapping of parameters to values, or None")
        options = with_defaults(limits)
        deadline, built = Deadline.of(options["time_limit"]), True
        cost, offset = self._objective(values)
        if shared is None:
            self._refuse_part()
        try:
            plan = self._planned(bounds, deadline)
        except TimeLimitError:
            built = False
        if shared is not None and not (built := shared.all(built)):
            if shared.stated is not None:  # no process knows all bounds of variables
                raise TimeLimitError("no time was left to build the parts of the model; give more")
            options["time_limit"] = Deadline(OVER)
        if not built:
            given = {} if bounds is None else bounds
            problem = self._stated.unblocked(given, self.device)
            plan = Plan(problem, backend=self._asked, settings=self._settings)
        plan = replace(plan, problem=replace(plan.problem, cost=cost.detach(), offset=offset.detach()))
        freed = False
        if shared is not None and built:
            plan = shared.boxed(plan)
            if freed := shared.stated is not None and bool(self._stated.objectives()):
                cost = cost[:, :0].clone()  # the solve has its own, and the objective says it again
        problem = plan.problem
        if shared is not None and method == "auto":
            method = shared.method(problem)
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
        repair = self._stated.repair()
        if shared is not None:
            callback, verbose = shared.heard(callback, verbose)
        with listening(callback, verbose, self.batch, self.sense) as listener:
            begin, hooks = Start(duals, eta, memory), Hooks(repair, listener, record)
            solved = run if shared is None or not built else shared.run
            results = solved(plan, ascent, self.dtype, checked, begin, hooks)
        results.history, self.backend = log, results.backend
        if freed:
            cost = self._objective(values)[0]
        problem = replace(problem, cost=cost.detach())
        names = {r.name: r.count for r in self._stated.rows}
        state = starts.take(problem, results.duals, results.eta, names, results.memory)
        offset_here, rows = problem.offset, self._stated.rows
        if shared is not None and shared.stated is not None:
            state = shared.stated.joined(state)
            offset_here = offset_here + shared.stated.objective_of_others(problem, results.x)
            rows = shared.stated.rows_of_all(results.x)
        if not built and names:  # the bound is that of the box, which prices of zero prove
            state.duals[ROWS] = results.duals.new_zeros(self.batch, sum(names.values()), 1)
        turned = state.turned(self.sense)
        found = solution(results, turned, self, rows, problem.cost, offset_here)
        if torch.is_grad_enabled():
            parts = self._lagrangian(cost, offset, {} if bounds is None else bounds, results.x, state)
            found = replace(found, bound=self.sense.turn(differentiable(results.bound, parts)))
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
            Parameters to values, instead of their present ones; the costs then carry gradients.
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
        self._refuse_part()
        cost, offset = self._objective(values)
        if not values:
            cost, offset = cost.detach(), offset.detach()
        return replace(self._planned(bounds, deadline or Deadline()).problem, cost=cost, offset=offset)

    def _refuse_part(self) -> None:
        """Refuse a part of a model, of which other processes state others, where all of it is needed."""
        if (model := self._stated.shard) is not None and model.part is not None:
            model.part.refuse_alone()

    def _lagrangian(
        self, cost: Tensor, offset: Tensor, bounds: Bounds, x: Tensor, state: State
    ) -> list[LagrangianPart]:
        """The parts of the Lagrangian at a point and multipliers that hold what requires gradients."""
        parts = [*of_objective(cost, offset, x)]
        if (sides := self._stated.bounds_with_gradients(bounds)) is not None:
            lower, upper = (side.to(self.device) for side in sides)
            parts += of_bounds(lower, upper, state)
        for first, model in self._stated.with_gradients():
            own = slice(first, first + model.batch)
            alone = self.own_state(state.select(list(range(own.start, own.stop))), first)
            parts += of_rows(model.rows, alone)
            parts += of_blocks(model, alone, x[own, : model.size], own, self.batch)
        return parts

    def _planned(self, bounds: Bounds | None, deadline: Deadline) -> Plan:
        """The plan of a solve; what it writes out serves later ones, too."""
        if self._stated.replaced():
            self._structure = None
        plan = self._structure
        if bounds is not None or plan is None:
            given = {} if bounds is None else bounds
            with within_memory(self.device):
                problem = self._stated.assembled(given, self.device, deadline)
            plan = Plan(problem, backend=self._asked, settings=self._settings)
            if bounds is None and self._stated.shard is None:  # a part is stated where memory is short
                self._structure = plan
        return plan

    def _objective(self, values: Values | None) -> tuple[Tensor, Tensor]:
        """Costs ``(batch, width)`` and constants ``(batch,)`` for minimisation, with their gradients.

        Objectives without parameters are evaluated once.
        """
        if values:
            self._refuse_unknown(values)
        now = self._stated.objectives()
        if self._fixed is not None and now:
            before, cost, offset = self._fixed
            if all(a is b for a, b in zip(now, before, strict=True)):
                return cost.clone(), offset.clone()
        cost, offset = (self.sense.turn(part).to(self.device) for part in self._stated.costs(values))
        if now and self._stated.shard is None:
            self._fixed = now, cost.clone(), offset.clone()
        return cost, offset

    def _refuse_unknown(self, values: Values) -> None:
        """Refuse values of what the objective does not hold."""
        objectives = [m.objective for m in self.models if m.objective is not None]
        used = {t.parameter for objective in objectives for t in objective.terms}
        if unknown := [shown(p) for p in values if p not in used]:
            need = "give parameters that it uses"
            raise OptionError(f"values holds {', '.join(unknown)}, which the objective does not; {need}")

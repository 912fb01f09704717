"""A solve over processes: each iterates on its own blocks, and all make the same decisions.

Every number that decides anything is a sum or a maximum over all processes
(:class:`blocklp.distributed.totals.SharedTotals`), and so is the clock
(:class:`blocklp.distributed.agreed_deadline.AgreedDeadline`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from blocklp.decomposition.problem import Decomposition
from blocklp.distributed.agreed_deadline import AgreedDeadline
from blocklp.distributed.checkpoints import Checkpoints
from blocklp.distributed.hashing import problem_hash
from blocklp.distributed.heap import little_kept
from blocklp.distributed.processes import Mesh, Processes, taking_part
from blocklp.distributed.sharding import InstancePart, sharded
from blocklp.distributed.stated_parts import StatedPart, outline
from blocklp.engine.limits import Limits
from blocklp.engine.loop import run_settled
from blocklp.engine.records import Event, Hooks, Repair, Results, Start
from blocklp.errors import ModelError, OptionError
from blocklp.kernels.backend import Backend
from blocklp.kernels.plan import Plan
from blocklp.language.statement import Statement
from blocklp.methods import Admm, Method, Pdhg
from blocklp.methods.consensus import has_prox

ALL = 2**62
"""Copies of a chunk: instances are not divided any further."""


@dataclass
class SharedSolve:
    """A solve whose blocks processes share.

    Attributes
    ----------
    processes : Processes
        Who takes part.
    mesh : Mesh
        How they add up, and what they save.
    stated : StatedPart or None
        The part of the model that this process states; None where every process states the whole model.
    whole : Plan or None
        The plan of all that this process states of a part, until :meth:`run` begins.
    """

    processes: Processes
    mesh: Mesh
    stated: StatedPart | None = None
    whole: Plan | None = field(default=None, init=False)

    @property
    def fixed(self) -> bool:
        """Whether copies are added as integers."""
        return self.mesh.sums == "fixed"

    def all(self, met: bool) -> bool:
        """Whether a condition is met in all processes."""
        return not self.processes.any(not met)

    def method(self, problem: Decomposition) -> str:
        """The method that "auto" stands for: PDHG where there are rows, or blocks without proximal points."""
        closed = not _indexed(problem) or self.all(not _open(problem))
        return "admm" if problem.rows is None and closed else "pdhg"

    def boxed(self, plan: Plan) -> Plan:
        """The plan of the blocks of this process, where it states a part (:meth:`StatedPart.boxed`).

        Nobody but :meth:`run` gets the bounds of its variables, so that their memory is free while passes are
        made.
        """
        if self.stated is None or not _indexed(plan.problem):
            return plan
        form = self.stated.form(plan.problem)
        self.processes.agree(form, "a size of blocks, or what bounds cut off of blocks")
        self.whole = replace(plan, problem=self.stated.boxed(plan.problem))
        return replace(plan, problem=outline(self.whole.problem))

    def heard(
        self, callback: Callable[[Event], Any] | None, verbose: bool
    ) -> tuple[Callable[[Event], Any] | None, bool]:
        """Who is told about checks: the callback and the terminal of the first process."""
        return (callback, verbose) if self.processes.rank == 0 else (None, False)

    def run(
        self,
        plan: Plan,
        method: Method,
        dtype: torch.dtype,
        limits: Limits,
        start: Start,
        hooks: Hooks,
    ) -> Results:
        """Solve an instance over processes, all of which state it whole, or each its part of it.

        Parameters
        ----------
        plan : Plan
            The problem as this process states it, in float64, and the backend asked for; of a part what
            :meth:`boxed` returned.
        method, dtype, limits, start, hooks
            As in :func:`blocklp.engine.loop.run`; a callback is called in the first process alone.

        Returns
        -------
        Results
            The same in every process, of all that it states.

        Raises
        ------
        ProcessError
            In all processes, if one of them states another problem or other options, or fails.
        ModelError, OptionError
            If the problem or the method is not one that processes can share.
        """
        processes, plan, self.whole = self.processes, self.whole or plan, None
        problem = plan.problem
        saving = self.mesh.save is not None, self.mesh.save_every
        options = limits.passes, limits.patience, limits.check_every, limits.feasibility_tol, saving
        observed = hooks.record is not None, hooks.repair is not None
        stated = method, dtype, self.fixed, limits.tol.tolist(), limits.cutoff.tolist(), options, observed
        common = None if self.stated is None else self.stated.common
        alike = start.duals if common is None else None
        own_hash = problem_hash(problem, (stated, start.duals is None), (alike, start.eta), common)
        processes.agree(own_hash, "the model, the warm start or an option")
        _refuse(problem, method)
        deadline = AgreedDeadline(limits.deadline, processes)
        limits = replace(limits, deadline=deadline, project=False)
        backend = _common(plan.settled(dtype, method.usual, method.knows_rows).backend, processes)
        if "numba" in backend.builds_on:
            importlib.import_module("blocklp.distributed.numba_sums")
        by_rows = isinstance(method, Pdhg) and self.stated is not None
        columns = self.stated.columns() if self.stated is not None and by_rows else None
        part = sharded(problem, processes, self.fixed, backend, common, columns)
        _refuse_part(part.problem, processes, method)
        kept = None
        if self.mesh.save is not None:
            asked = problem, (method, dtype, self.fixed)
            kept = Checkpoints.of(self.mesh, processes, part, self.stated, asked)
        settings = replace(plan.settings, cached_copies=ALL, looped_copies=ALL)
        own = Plan(part.problem, deadline, backend, settings)
        duals = None if start.duals is None else part.cut(start.duals)
        weights = method.weights(1)
        eta = start.eta if weights is None else weights.to(dtype)
        repair = None if hooks.repair is None else _repaired(hooks.repair, part, processes)
        begin, hooks = Start(duals, eta), Hooks(repair, _agreed(hooks, processes), hooks.record)
        if kept is not None:
            begin, hooks = replace(begin, snapshot=kept.find()), replace(hooks, save=kept.save)
        del plan, problem  # of whose tensors a part has its own
        with little_kept(own.problem):
            results = run_settled(own, method, dtype, limits, begin, hooks)
        x, seconds = _points(results.x, part, processes), processes.from_first(results.seconds)
        duals = part.placed(results.duals)
        if self.stated is None:
            processes.sum(duals[:, : part.in_blocks].view(torch.int64))
        return replace(results, x=x, duals=duals, seconds=seconds, memory=None, remembered={})


@contextmanager
def sharing(mesh: Any, shard: Statement | None) -> Iterator[SharedSolve]:
    """Take part in a solve; whatever ends this process's part of it ends that of the others.

    Parameters
    ----------
    mesh : Mesh, ProcessGroup, DeviceMesh or True
        Who takes part.
    shard : Statement or None
        The model, where every process states a part of it.
    """
    with taking_part(mesh) as processes:
        stated = None if shard is None else StatedPart.of(shard, processes)
        yield SharedSolve(processes, Mesh.of(mesh), stated)


ONLY = "mesh shares the blocks of one instance among processes"


def _indexed(problem: Decomposition) -> bool:
    """Whether it is one instance whose blocks have their scopes by index."""
    return problem.batch == 1 and not problem.coupling.maps


def _refuse(problem: Decomposition, method: Method) -> None:
    """Refuse what processes cannot share.

    Raises
    ------
    ModelError, OptionError
        If the model has structured scopes or several instances, or the method is one that processes cannot
        share.
    """
    if problem.cost.device.type != "cpu":
        raise OptionError(f"{ONLY}, on CPUs; the model was compiled for {problem.cost.device}")
    if problem.batch > 1:
        raise ModelError(f"{ONLY}, and there are {problem.batch} instances; solve them one by one")
    if problem.coupling.maps:
        raise ModelError(f"{ONLY}, and blocks have structured scopes; give them by index")
    if not isinstance(method, Admm | Pdhg):
        what = f"method {type(method).__name__} does not do so"
        raise OptionError(f"{ONLY} by ADMM or PDHG; {what}, choose 'auto', 'admm' or 'pdhg'")


def _refuse_part(problem: Decomposition, processes: Processes, method: Method) -> None:
    """Refuse blocks that processes cannot share.

    Raises
    ------
    ModelError
        If ADMM needs proximal points that a type does not have, or a process has got no blocks.
    """
    if processes.any(not problem.in_blocks):
        blocks, many = problem.totals.blocks(0), processes.world
        raise ModelError(f"{ONLY}, and of {blocks} blocks one of {many} processes has none; take fewer")
    if isinstance(method, Admm) and processes.any(bool(found := _open(problem))):
        who = next(filter(None, processes.gather(found)))
        raise ModelError(f"{ONLY}, and {who}; choose method='auto' or 'pdhg', or solve it without mesh")


def _open(problem: Decomposition) -> str:
    """What has no proximal point in closed form, or nothing."""
    nothing = problem.cost.new_zeros(1, 1).expand(1, problem.in_blocks)
    for group in problem.groups:
        if not has_prox(group, nothing):
            shared = f"where {group.name!r} shares it"
            return f"{group.type.name} has no proximal point in closed form {shared}"
    return ""


def _common(own: Backend, processes: Processes) -> Backend:
    """The backend that serves in all processes, with the loops that are there in all of them."""
    found = processes.gather((own.name, own.modules))
    modules = frozenset.intersection(*(there for _, there in found))
    names = {name for name, _ in found}
    return Backend("torch") if len(names) > 1 or not modules else Backend(own.name, modules)


def _agreed(hooks: Hooks, processes: Processes) -> Callable[[Event], Any] | None:
    """A callback that gives all processes the answer of that of the first one; None where there is none."""
    if not processes.from_first(hooks.callback is not None):
        return None

    def called(event: Event) -> bool | Tensor | None:
        answer = None
        if processes.rank == 0 and hooks.callback is not None:
            answer = hooks.callback(event)
        return processes.from_first(answer)

    return called


def _repaired(repair: Repair, part: InstancePart, processes: Processes) -> Repair:
    """A hook that has that of the first process repair whole points."""

    def called(x: Tensor, rows: Tensor) -> Tensor:
        whole = _points(x, part, processes)
        if processes.rank == 0:
            whole = repair(whole, rows)
        return processes.from_first(whole)[:, part.variables]

    return called


def _points(own: Tensor, part: InstancePart, processes: Processes) -> Tensor:
    """Points of all variables that this process states: integers add up to the bits of each number."""
    x, common = own.new_zeros(1, len(part.common)), part.common
    x[:, part.variables[part.owned]] = own[:, part.owned]
    x[:, common] = processes.sum(x[:, common].view(torch.int64)).view(torch.float64)
    return x

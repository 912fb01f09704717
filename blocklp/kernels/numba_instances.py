"""Operations on blocks with a proximal point of one block, in loops that numba compiles for the CPU.

Where one type alone shares variables its loops take whole instances, passes and checks; elsewhere they take
one group after the other (:mod:`blocklp.kernels.instances`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.blocks.contract import Rows
from blocklp.decomposition.problem import Decomposition
from blocklp.decomposition.valid_bounds import CANCELLED, ROUNDED
from blocklp.kernels.compiled import tiles
from blocklp.kernels.instance_tables import last_of, shared_variables
from blocklp.kernels.instances import (
    InstanceLoops,
    checks_in_loops,
    loops_of,
    only_one,
    pass_over,
)
from blocklp.kernels.operations import implements, lays_out
from blocklp.kernels.plan import Plan
from blocklp.kernels.program import MOST_PARTS


@dataclass(frozen=True)
class Loops:
    """Compiled loops of a problem.

    Attributes
    ----------
    passes : tuple
        A pass over each group's blocks, called with the group; None where tensor operations do it.
    number : int or None
        Number of the one group that shares variables, where loops take whole instances.
    in_place : bool
        Whether checks take whole instances too.
    divided : tuple or None
        Parts in which large instances are summed, and one past the last variable that these share.
    instances : InstanceLoops or None
        The loops over whole instances, once :meth:`filled` has made their tables.
    """

    passes: tuple[Callable[..., None] | None, ...]
    number: int | None = None
    in_place: bool = False
    divided: tuple[int, int] | None = None
    instances: InstanceLoops | None = None

    @property
    def whole(self) -> bool:
        """Whether passes take whole instances."""
        return self.instances is not None

    def filled(self, plan: Plan) -> Loops:
        """Loops with tables of the instances of a plan, where they take whole instances."""
        if self.number is None:
            return self
        module = plan.backend.loops(str(loops_of(plan.problem.groups[self.number])))
        assert module is not None
        return replace(self, instances=InstanceLoops.of(plan.problem, self.number, module, self.divided))

    def select(self, rows: Rows) -> Loops:
        """Loops over some instances."""
        return self if self.instances is None else replace(self, instances=self.instances.select(rows))

    def with_active(self, active: Tensor) -> Loops:
        """Loops in which instances at positions ``active`` ``(k,)`` are active, all others frozen."""
        assert self.instances is not None
        return replace(self, instances=replace(self.instances, active=active))


@lays_out("numba")
def loops(plan: Plan, whole: bool) -> Loops | None:
    """The loops of the groups whose types have some; None where no group has."""
    problem = plan.problem
    if problem.cost.device.type != "cpu" or problem.coupling.maps or problem.rows is not None:
        return None
    found = [loops_of(group) for group in problem.groups]
    modules = [None if name is None else plan.backend.loops(name) for name in found]
    if not any(modules):
        return None
    pairs = zip(problem.groups, modules, strict=True)
    names = sorted({group.type.name for group, module in pairs if module is not None})
    logging.getLogger("blocklp").info("compiled passes over blocks of type %s", ", ".join(names))
    passes = tuple(None if module is None else pass_over(module) for module in modules)
    number = only_one(problem) if whole else None
    if number is None or modules[number] is None:
        return Loops(passes)
    _ = problem.coupling.places  # once for all chunks, and for solves to come
    divided = _divided(problem, number, plan.settings.divided_copies)
    return Loops(passes, number, checks_in_loops(problem.groups[number]), divided)


def _divided(problem: Decomposition, number: int, least: int) -> tuple[int, int] | None:
    """Parts of a large instance, as many as its blocks outweigh, and one past the last shared variable."""
    if problem.copies < least:
        return None
    group = problem.groups[number]
    (used,) = last_of(shared_variables(problem, group))
    return max(2, min(MOST_PARTS, group.blocks // (2 * max(used, 1)))), used


def _of(plan: Plan) -> Loops:
    """The loops of a plan."""
    assert isinstance(plan.tables, Loops)
    return plan.tables


def _whole(plan: Plan, *_: Any) -> bool:
    """Whether loops take whole instances."""
    return isinstance(plan.tables, Loops) and plan.tables.whole


def _checked(plan: Plan, *_: Any) -> bool:
    """Whether loops check whole instances."""
    return _whole(plan) and _of(plan).in_place


def _instances(plan: Plan) -> InstanceLoops:
    """The loops of a plan over whole instances."""
    found = _of(plan).instances
    assert found is not None
    return found


@implements("admm_first_means", "numba", _whole)
def _admm_first_means(plan: Plan, duals: Tensor, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """See :func:`blocklp.methods.admm.admm_first_means`."""
    return _instances(plan).first_means(plan.problem, duals, points)


@implements("admm_first_iterates", "numba", _whole)
def _admm_first_iterates(
    plan: Plan, eta: Tensor, relaxation: float, mean: Tensor, duals: Tensor, points: Tensor
) -> Tensor:
    """See :func:`blocklp.methods.admm.admm_first_iterates`."""
    return _instances(plan).first_iterates(plan.problem, eta, relaxation, mean, duals, points)


@implements("admm_passes", "numba", _whole)
def _admm_passes(plan: Plan, state: Any, relaxation: float, repeats: int, most: int) -> tuple[Any, int]:
    """See :func:`blocklp.methods.admm.admm_passes`; keeps the means of points, and not the points."""
    anchors, consensus = (state.anchor, state.age, state.ready), (state.reflected, state.mean)
    given = most, state.eta, consensus, relaxation, anchors, (state.iterate, state.duals)
    primal, dual = _instances(plan).passes(plan.problem, *given)
    age, ready = state.age.numpy(), state.ready.numpy()  # arrays take a third of the time
    age += most - ready
    ready[:] = False
    done = state.passes + most
    return state.changed(passes=done, primal_residual=primal, dual_residual=dual, finished=True), most


def _passes_over(plan: Plan, state: Any, number: int, *_: Any) -> bool:
    """Whether there are loops over a group."""
    return isinstance(plan.tables, Loops) and plan.tables.passes[number] is not None


@implements("admm_block_points", "numba", _passes_over)
def _admm_block_points(
    plan: Plan, state: Any, number: int, relaxation: float, repeats: int
) -> tuple[Any, Any]:
    """See :func:`blocklp.methods.admm.admm_block_points`."""
    tile_points(plan, state, number, relaxation, np.arange(tiles(plan.problem.groups[number].blocks)))
    return state.atoms[number], state.weights[number]


def tile_points(plan: Plan, state: Any, number: int, relaxation: float, order: NDArray[np.int64]) -> None:
    """Do what :func:`blocklp.methods.admm.admm_block_points` does for some tiles of a group.

    Parameters
    ----------
    plan, state, number, relaxation
        As there.
    order : array
        ``(k,)`` int64: the tiles.
    """
    problem, run = plan.problem, _of(plan).passes[number]
    assert run is not None
    steps = state.eta, state.reflected, relaxation, (state.anchor, state.age, state.ready)
    written = state.iterate, state.duals, state.points
    run(problem.groups[number], order, problem.coupling.places, *steps, *written)


def _settles(plan: Plan, state: Any, method: Any) -> bool:
    """Whether loops know the rule of the weight."""
    return _whole(plan) and method.rule(state) is not None


@implements("admm_settled", "numba", _settles)
def _admm_settled(plan: Plan, state: Any, method: Any) -> Any:
    """See :func:`blocklp.methods.admm.admm_settled`."""
    anchored, plain = state.anchor.shape[1] > 0, state.passes < method.plain
    anchor = state.anchor if anchored or plain else torch.empty_like(state.iterate)
    found = _instances(plan).settled(plan.problem, state, method, plain, anchor)
    return state.changed(anchor=anchor, **found)


@implements("admm_restart", "numba", _whole)
def _admm_restart(
    plan: Plan, state: Any, relaxation: float, due: Tensor, ratio: Tensor, anchor: Tensor
) -> None:
    """See :func:`blocklp.methods.admm.admm_restart`."""
    iterates, weights = (state.iterate, state.duals), (state.eta, ratio)
    given = weights, (state.reflected, state.mean), relaxation, anchor, iterates
    _instances(plan).restart(plan.problem, due, *given)


@implements("improved_bounds", "numba", _checked)
def _improved_bounds(
    plan: Plan, duals: Tensor, limits: tuple[float, float], primal: Tensor, best: Tensor, best_duals: Tensor
) -> tuple[Tensor, Tensor]:
    """See :func:`blocklp.engine.best_bound.improved_bounds`."""
    best = best.clone()
    return _instances(plan).bounds(plan.problem, duals, limits, primal, (best, best_duals)), best


@implements("offer_mean", "numba", _checked)
def _offer_mean(
    plan: Plan, mean: Tensor, limits: tuple[float, float], bound: Tensor, primal: Tensor, x: Tensor
) -> None:
    """See :func:`blocklp.engine.points.offer_mean`."""
    _instances(plan).completed(plan.problem, limits, mean, bound, (primal, x))


@implements("finish_points", "numba", _checked)
def _finish_points(plan: Plan, rows: Tensor, x: Tensor) -> None:
    """See :func:`blocklp.engine.points.finish_points`."""
    _instances(plan).finished(plan.problem, rows, x)


def _recorded(plan: Plan, *given: Any) -> bool:
    """Whether loops pack records too: where no point might be projected."""
    return _checked(plan) and given[4] is None


@implements("status_record", "numba", _recorded)
def _status_record(
    plan: Plan, bound: Tensor, value: Tensor, primal: Tensor, x: Tensor, worst: Tensor | None, eta: Tensor
) -> Tensor:
    """See :func:`blocklp.engine.status_record.status_record`."""
    given = bound, value, primal, eta
    return _instances(plan).recorded(plan.problem, (CANCELLED, ROUNDED), given, x)

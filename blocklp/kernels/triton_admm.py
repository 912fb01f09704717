"""Operations of :class:`blocklp.methods.Admm` by Triton: passes of whole instances, or over one group.

A small instance is one program, which makes all passes between two looks at the weight in one launch; a large
one takes two launches a pass, blocks and then variables.  Both give the same bits, so that what is beside an
instance in its batch may decide which serves.  Nothing here waits for the device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from blocklp.decomposition.problem import Decomposition
from blocklp.kernels import triton_admm_kernels as kernels
from blocklp.kernels import triton_admm_start_kernels as start_kernels
from blocklp.kernels.operations import implements
from blocklp.kernels.plan import Plan
from blocklp.kernels.triton_launch import LANES, launch, programs
from blocklp.kernels.triton_source import data_arguments
from blocklp.kernels.triton_tables import CopyTables, GroupTable, TritonTables

Arguments = tuple[Any, ...]


def _tables(plan: Plan) -> TritonTables:
    """The tables of a plan."""
    assert isinstance(plan.tables, TritonTables)
    return plan.tables


def _whole(plan: Plan, *_: Any) -> bool:
    """Whether kernels take whole instances."""
    return isinstance(plan.tables, TritonTables) and plan.tables.sums is not None


def _row(values: Tensor) -> int:
    """Entries from one instance to the next, 0 where all have the same."""
    return values.stride(0) if len(values) > 1 else 0


def _group(problem: Decomposition, own: GroupTable) -> Arguments:
    """A group as kernels take it (:mod:`blocklp.kernels.triton_admm_phases`)."""
    group = problem.groups[own.number]
    places = own.places, _row(own.places), own.filled, _row(own.filled)
    return group.start, group.blocks, *places, *data_arguments(group.type)


def _sums(sums: CopyTables) -> Arguments:
    """The sums as kernels take them."""
    pairs = [(t, _row(t)) for t in (sums.order, sums.ends, sums.listed, sums.hubs)]
    first = (part for pair in pairs[:3] for part in pair)
    return *first, sums.listed.shape[1], *pairs[3], sums.hubs.shape[1] - 1


def _units(sums: CopyTables) -> int:
    """Programs that add up the copies of an instance."""
    return programs(sums.listed.shape[1]) + sums.hubs.shape[1] - 1


def _state(
    plan: Plan, t: Tensor, point: Tensor, dual: Tensor, anchor: Tensor, target: Tensor, mean: Tensor
) -> Arguments:
    """Iterates as kernels take them; without an anchor any other tensor stands for it."""
    lengths = dual.shape[1], plan.problem.cost.shape[1]
    assert all(values.is_contiguous() for values in (t, point, dual, anchor, target, mean))
    return t, point, dual, anchor if anchor.shape[1] else t, target, mean, *lengths


def _of(plan: Plan, state: Any, anchor: Tensor | None = None) -> Arguments:
    """The iterates of a state."""
    given = state.iterate, state.points, state.duals, state.anchor if anchor is None else anchor
    return _state(plan, *given, state.reflected, state.mean)


@implements("admm_first_means", "triton", _whole)
def _admm_first_means(plan: Plan, duals: Tensor, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """See :func:`blocklp.methods.admm.admm_first_means`."""
    problem, tables = plan.problem, _tables(plan)
    assert tables.sums is not None and tables.active is not None
    mean, active, counts = torch.zeros_like(problem.cost), tables.active, problem.counts
    state, sums = _state(plan, points, points, duals, points, mean, mean), _sums(tables.sums)
    launch(start_kernels.first_means, (_units(tables.sums) * len(active),), active, sums, state, LANES=LANES)
    groups = tuple(_group(problem, own) for own in tables.groups)
    slots, first = 2 * sum(programs(group[1]) for group in groups), 0
    parts = duals.new_empty(problem.batch, slots, dtype=torch.float64)
    for own, group in zip(tables.groups, groups, strict=True):
        tiles, constants = programs(group[1]), {"COUPLED": own.functions.coupled, "LANES": LANES}
        order = active, group, state, counts, _row(counts), parts, first, slots
        launch(start_kernels.first_squares, (tiles * len(active),), *order, **constants)
        first += tiles
    found = torch.zeros(2, problem.batch, dtype=torch.float64, device=duals.device)
    residual, size = found[0], found[1]
    rest = groups, parts, slots, (residual, size)
    launch(start_kernels.first_totals, (len(active),), active, *rest, GROUPS=len(groups), LANES=LANES)
    return mean, residual, size


@implements("admm_first_iterates", "triton", _whole)
def _admm_first_iterates(
    plan: Plan, eta: Tensor, relaxation: float, mean: Tensor, duals: Tensor, points: Tensor
) -> Tensor:
    """See :func:`blocklp.methods.admm.admm_first_iterates`."""
    problem, tables, found = plan.problem, _tables(plan), torch.zeros_like(duals)
    assert tables.active is not None
    state = _state(plan, found, points, duals, found, mean, mean)
    for own in tables.groups:
        group = _group(problem, own)
        constants = {"COUPLED": own.functions.coupled, "RELAXATION": relaxation, "LANES": LANES}
        grid = (programs(group[1]) * len(tables.active),)
        launch(start_kernels.first_iterates, grid, tables.active, group, state, eta, **constants)
    return found


def _together(plan: Plan, tables: TritonTables) -> bool:
    """Whether an instance is a program of its own."""
    assert tables.active is not None and tables.sums is not None
    tiles = sum(programs(plan.problem.groups[own.number].blocks) for own in tables.groups)
    tiles += _units(tables.sums)
    few = tiles <= plan.settings.launched_tiles and tiles * len(tables.active) <= plan.settings.busy_tiles
    return tiles <= plan.settings.cached_tiles or few


@implements("admm_passes", "triton", _whole)
def _admm_passes(plan: Plan, state: Any, relaxation: float, repeats: int, most: int) -> tuple[Any, int]:
    """See :func:`blocklp.methods.admm.admm_passes`; in between reflections stand in the place of points."""
    problem, tables, eta = plan.problem, _tables(plan), state.eta
    cost = problem.cost.contiguous()
    assert tables.sums is not None and tables.active is not None
    groups, sums = tuple(_group(problem, own) for own in tables.groups), _sums(tables.sums)
    blocks = tuple(_block(own) for own in tables.groups)
    given, active, anchored = _of(plan, state), tables.active, state.anchor.shape[1] > 0
    weights = eta, state.age, state.ready
    slots = sum(programs(group[1]) for group in groups) + programs(sums[6])
    parts = eta.new_empty(problem.batch, slots, dtype=torch.float64)
    squares = torch.empty_like(state.primal_residual), torch.empty_like(state.dual_residual)
    found = *squares, torch.empty_like(state.age), torch.empty_like(state.ready)
    common = {"ANCHORED": anchored, "RELAXATION": relaxation, "LANES": LANES}
    if _together(plan, tables):
        shared = groups, sums, given, cost, weights, parts, slots, found, most
        launch(kernels.leap, (len(active),), active, *shared, BLOCKS=blocks, **common)
    else:
        for n in range(most):
            last = int(n == most - 1)
            _block_pass(active, groups, blocks, given, weights, n, last, common)
            grid = (_units(tables.sums) * len(active),)
            launch(kernels.variable_pass, grid, active, sums, given, cost, eta, last, LANES=LANES)
        coupled, measured = tuple(block[2] for block in blocks), (groups, sums, given, eta, parts, slots)
        launch(kernels.measure, (slots * len(active),), active, *measured, COUPLED=coupled, LANES=LANES)
        rest = groups, weights, parts, slots, found, most
        launch(kernels.finish, (len(active),), active, *rest, GROUPS=len(groups), LANES=LANES)
    names = "primal_residual", "dual_residual", "age", "ready"
    changes = dict(zip(names, found, strict=True))
    return replace(state, passes=state.passes + most, finished=True, **changes), most


def _block(own: GroupTable) -> Arguments:
    """What kernels know of a group when they are compiled."""
    functions = own.functions
    return functions.prox_block, functions.dim, functions.coupled, functions.unrolled


def _block_pass(
    active: Tensor,
    groups: Arguments,
    blocks: Arguments,
    state: Arguments,
    weights: Arguments,
    n: int,
    last: int,
    common: dict[str, Any],
) -> None:
    """A pass over the blocks of some groups."""
    units = sum(programs(group[1]) for group in groups)
    order = active, groups, units, state, weights, n, last
    launch(kernels.block_pass, (units * len(active),), *order, BLOCKS=blocks, **common)


def _serves_group(plan: Plan, state: Any, number: int, *_: Any) -> bool:
    """Whether kernels serve a group."""
    return isinstance(plan.tables, TritonTables) and plan.tables.group(number) is not None


@implements("admm_block_points", "triton", _serves_group)
def _admm_block_points(
    plan: Plan, state: Any, number: int, relaxation: float, repeats: int
) -> tuple[Any, Any]:
    """See :func:`blocklp.methods.admm.admm_block_points`."""
    tables = _tables(plan)
    own = tables.group(number)
    assert own is not None and tables.active is not None
    weights, anchored = (state.eta, state.age, state.ready), state.anchor.shape[1] > 0
    common = {"ANCHORED": anchored, "RELAXATION": relaxation, "LANES": LANES}
    groups, blocks = (_group(plan.problem, own),), (_block(own),)
    _block_pass(tables.active, groups, blocks, _of(plan, state), weights, 0, 1, common)
    return state.atoms[number], state.weights[number]


@implements("admm_restart", "triton", _whole)
def _admm_restart(
    plan: Plan, state: Any, relaxation: float, due: Tensor, ratio: Tensor, anchor: Tensor
) -> None:
    """See :func:`blocklp.methods.admm.admm_restart`."""
    tables, given = _tables(plan), _of(plan, state)
    assert tables.active is not None
    constants = {"PLAIN": not anchor.shape[1], "RELAXATION": relaxation, "LANES": LANES}
    for own in tables.groups:
        group = _group(plan.problem, own)
        order = tables.active, group, given, due, ratio, anchor if anchor.shape[1] else state.iterate
        grid = (programs(group[1]) * len(tables.active),)
        launch(kernels.restart, grid, *order, COUPLED=own.functions.coupled, **constants)


def _settles(plan: Plan, state: Any, method: Any) -> bool:
    """Whether kernels know the rule of the weight."""
    return _whole(plan) and method.rule(state) is not None


@implements("admm_settled", "triton", _settles)
def _admm_settled(plan: Plan, state: Any, method: Any) -> Any:
    """See :func:`blocklp.methods.admm.admm_settled`."""
    tables, plain = _tables(plan), state.passes < method.plain
    assert tables.active is not None
    anchored = state.anchor.shape[1] > 0
    anchor = state.anchor if anchored or plain else torch.zeros_like(state.iterate)  # padding stays zero
    weights = state.eta, state.age
    looks = state.first, state.primal_residual, state.dual_residual, state.origin, state.last
    names = "eta", "ready", "age", "origin", "last"  # of frozen instances anything
    found = tuple(torch.empty_like(getattr(state, name)) for name in names)
    roots = method.balance.roots(state.passes)
    oldest = method.oldest(state)
    constants = {"RULE": method.rule(state), "ANCHORED": anchored, "PLAIN": plain, "LANES": LANES}
    for k, own in enumerate(tables.groups):
        group = _group(plan.problem, own)
        order = tables.active, group, _of(plan, state, anchor), weights, looks, found
        rest = anchor if anchor.shape[1] else state.iterate, roots, oldest
        constants |= {"COUPLED": own.functions.coupled, "WRITES": k == 0}
        grid = (programs(group[1]) * len(tables.active),)
        relaxation = method.anchored if anchored else method.relaxation
        launch(kernels.settle, grid, *order, *rest, **constants, RELAXATION=relaxation)
    return replace(state, anchor=anchor, **dict(zip(names, found, strict=True)))

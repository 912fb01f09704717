"""Sums and updates of copies in loops that numba compiles for the CPU; imported where these serve a solve."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from blocklp.distributed import integer_kernels as loops
from blocklp.distributed import update_kernels as updates
from blocklp.distributed.shared_coupling import SharedCoupling, fit
from blocklp.distributed.totals import room, scale
from blocklp.kernels.numba_instances import Loops, tile_points
from blocklp.kernels.operations import implements


@implements("largest_shared", "numba")
def _largest_shared(coupling: Any, copies: Tensor) -> Tensor:
    """See :func:`blocklp.distributed.shared_coupling.largest_shared`."""
    target = coupling.target.numpy()
    most = [loops.largest_of_shared(row, target) for row in copies.numpy()]
    return torch.tensor(most, dtype=torch.float64)


@implements("integer_copies", "numba")
def _integer_copies(
    coupling: Any, copies: Tensor, iterate: Tensor | None, scale: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """See :func:`blocklp.distributed.shared_coupling.integer_copies`."""
    sums = torch.zeros(len(copies), len(coupling.several), dtype=torch.long)
    total = copies.new_zeros(len(copies), coupling.variables)
    target = coupling.target.numpy()
    taken = copies[:, :0] if iterate is None else iterate
    rows = zip(copies.numpy(), taken.numpy(), scale.tolist(), sums.numpy(), total.numpy(), strict=True)
    most = [loops.add_copies(row, less, target, unit, own, found) for row, less, unit, own, found in rows]
    return sums, total, torch.tensor(most, dtype=torch.float64)


@implements("largest_magnitude", "numba")
def _largest_magnitude(totals: Any, terms: Tensor) -> Tensor:
    """See :func:`blocklp.distributed.totals.largest_magnitude`."""
    return torch.tensor([loops.largest_term(row) for row in terms.numpy()], dtype=torch.float64)


@implements("integer_terms", "numba")
def _integer_terms(totals: Any, terms: Tensor, scale: Tensor, finer: int) -> Tensor:
    """See :func:`blocklp.distributed.totals.integer_terms`."""
    rows = zip(terms.numpy(), scale.tolist(), strict=True)
    return torch.tensor([loops.add_terms(row, unit, 2.0**finer) for row, unit in rows]).T.contiguous()


@implements("integer_activity", "numba")
def _integer_activity(rows: Any, x: Tensor, scale: Tensor, twice: bool) -> tuple[Tensor, Tensor]:
    """See :func:`blocklp.distributed.shared_rows.integer_activity`."""
    sums = torch.zeros(len(x), 1 + twice, rows.count, dtype=torch.long)
    limit = 2.0 ** room(rows.longest)
    given = zip(x.numpy(), scale.expand(len(x), -1).numpy(), sums.numpy(), strict=True)
    over = [loops.add_entries(rows.in_loops, point, unit, limit, limit, own) for point, unit, own in given]
    return sums, torch.tensor(over)


def _shared(plan: Any, *_: Any) -> bool:
    """Whether processes share the blocks, of which each has a thread of its own."""
    return isinstance(plan.problem.coupling, SharedCoupling)


def _overlaps(plan: Any, *_: Any) -> bool:
    """Whether messages can be under way while a process is at blocks of its own, which loops go over."""
    coupling = plan.problem.coupling
    if not _shared(plan) or coupling.turns is None or coupling.power("reflections") is None:
        return False
    loops = plan.tables.passes if isinstance(plan.tables, Loops) else [None] * len(plan.problem.groups)
    return all(
        run is not None or not group.shares for run, group in zip(loops, plan.problem.groups, strict=True)
    )


@implements("admm_reflections", "numba", _overlaps)
def _admm_reflections(plan: Any, state: Any, relaxation: float, repeats: int) -> tuple[Tensor, Any, Any]:
    """See :func:`blocklp.methods.admm.admm_reflections`.

    Sums of variables that other processes have, too, are sent before the blocks of no such variable are done.
    Whether all fit their units is agreed upon after these.
    """
    problem, coupling = plan.problem, plan.problem.coupling
    power = coupling.power("reflections")
    sums = torch.zeros(1, len(coupling.several), dtype=torch.long)
    total, most, (unit,) = torch.zeros_like(problem.cost), 0.0, scale(power).tolist()
    copies = state.points[0].numpy(), state.iterate[0].numpy(), coupling.target.numpy()
    for turn in range(2):
        for n, group in enumerate(problem.groups):
            order = coupling.turns[n][turn].numpy()
            if group.shares:
                tile_points(plan, state, n, relaxation, order)
            layout = group.start, group.blocks, group.dim
            most = max(most, loops.add_tiles(order, layout, *copies, unit, sums[0].numpy(), total[0].numpy()))
        if turn == 0:
            sent = coupling.exchange(sums, sums[:, :0])
    marks = coupling.marks("reflections", torch.tensor([most], dtype=torch.float64))
    agreed = coupling.processes.begin_sum(marks)
    coupling.placed(sums, total, scale(-power), sent)
    if not fit(agreed()):
        total, _ = coupling.in_new_units("reflections", state.points, state.iterate)
    return total, state.atoms, state.weights


@implements("admm_multipliers", "numba", _shared)
def _admm_multipliers(plan: Any, state: Any, group: Any, centre: Tensor) -> None:
    """See :func:`blocklp.methods.consensus.admm_multipliers`."""
    places, eta = plan.problem.coupling.places[0].numpy(), state.eta.numpy()[0]
    for (first, last), coupled in zip(group.spans, group.pattern, strict=True):
        if coupled:
            own = state.iterate[0, first:last].numpy(), eta, state.duals[0, first:last].numpy()
            updates.multipliers(places[first:last], centre[0].numpy(), *own)


@implements("admm_restart", "numba", _shared)
def _admm_restart(
    plan: Any, state: Any, relaxation: float, due: Tensor, ratio: Tensor, anchor: Tensor
) -> None:
    """See :func:`blocklp.methods.admm.admm_restart`."""
    if bool(due[0]):
        kind = ratio.numpy().dtype.type
        consensus = state.reflected[0].numpy(), state.mean[0].numpy()
        own = state.points[0].numpy(), state.iterate[0].numpy(), anchor[0].numpy()
        places = plan.problem.coupling.places[0].numpy()
        updates.restart(places, *consensus, kind(relaxation), ratio.numpy()[0], *own)

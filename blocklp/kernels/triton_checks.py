"""Checks of whole instances in Triton: what the kernels are given, and when a launch takes all phases."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from blocklp.blocks.contract import Rows, pick
from blocklp.decomposition.problem import Decomposition
from blocklp.kernels.instance_tables import Best, InstanceTables
from blocklp.kernels.triton_bounds import CHUNK, bounds
from blocklp.kernels.triton_bounds import TOTALS as OF_BOUNDS
from blocklp.kernels.triton_launch import LANES, launch, programs
from blocklp.kernels.triton_points import TOTALS as OF_POINTS
from blocklp.kernels.triton_points import completed, finished, recorded
from blocklp.kernels.triton_source import BlockFunctions, data_arguments

TILES = LANES * CHUNK.value
"""Blocks or variables of a chunk, whose sums are kept."""

INDICES = torch.int16, torch.int32, torch.int64
"""Integers of index tables."""

WHOLE = 4 * TILES
"""Blocks up to which one program takes all phases of an instance."""


@dataclass(frozen=True)
class CheckTables(InstanceTables):
    """Tables of instances whose blocks evaluate multipliers and complete points by functions of one block.

    Attributes
    ----------
    functions : BlockFunctions
        Those of the type, for its coordinates in registers.
    places : Tensor
        ``(batch or 1, copies)``: variables of the copies.
    order, begins : Tensor
        ``(batch or 1, copies)`` and ``(batch or 1, variables + 1)``: copies sorted by variable, and where
        those of each begin.
    """

    functions: BlockFunctions
    places: Tensor
    order: Tensor
    begins: Tensor

    @classmethod
    def of(cls, problem: Decomposition, group: int, functions: BlockFunctions) -> CheckTables:
        """Lay out the tables of a problem's instances.

        Parameters
        ----------
        problem, group
            As in :meth:`laid_out`.
        functions : BlockFunctions
            Those of its type.
        """
        kind = index_dtype(problem)
        places, order, begins = (t.to(kind) for t in (problem.coupling.index, *problem.coupling.by_variable))
        own = cls.laid_out(problem, group, functions=functions, places=places, order=order, begins=begins)
        return replace(own, narrow=own.narrow.contiguous(), largest=own.largest.contiguous())

    def select(self, rows: Rows) -> CheckTables:
        """Return the tables of some instances, all of them active."""
        own = {name: getattr(self, name) for name in ("places", "order", "begins")}
        own = {name: pick(t, rows) if len(t) > 1 else t for name, t in own.items()}
        return replace(super().select(rows), **own)

    def bounds(
        self, problem: Decomposition, duals: Tensor, limits: tuple[float, float], primal: Tensor, kept: Best
    ) -> Tensor:
        """Evaluate multipliers and keep the best (:func:`blocklp.engine.best_bound.improved_bounds`).

        Parameters
        ----------
        problem, duals, limits, primal, kept
            As in :meth:`blocklp.kernels.instances.InstanceLoops.bounds`.

        Returns
        -------
        Tensor
            ``(batch,)`` float64: the bounds; of frozen instances anything.
        """
        group, bound, used = problem.groups[self.group], torch.empty_like(kept[0]), max(1, self.used)
        most, phases = self._phases(group.blocks, used)
        count = len(self.active)
        share, totals = bound.new_empty(count, used), bound.new_empty(count, OF_BOUNDS, most)
        constants = {"LIMITS": limits, **self._constants(self.functions.min_block)}
        variables = problem.cost, problem.counts, problem.lower, problem.upper, self.met
        others, written = (primal, self.rest, self.largest), (bound, *kept)
        layout, strides, sizes = self._layout(problem, self.used)
        for phase, parts in phases:
            given = layout, strides, sizes, duals, variables, (share, totals), others, written
            rest = *data_arguments(group.type), most, parts
            launch(bounds, (parts * count,), *given, *rest, PHASE=phase, **constants)
        return bound

    def completed(
        self, problem: Decomposition, limits: tuple[float, float], mean: Tensor, bound: Tensor, kept: Best
    ) -> None:
        """Complete means of copies, and keep better points (:func:`blocklp.engine.points.offer_mean`).

        Parameters
        ----------
        problem, limits, mean, bound, kept
            As in :meth:`blocklp.kernels.instances.InstanceLoops.completed`.
        """
        group, ends, points = problem.groups[self.group], max(1, self.ends), 1 if problem.grid is None else 2
        most, phases = self._phases(group.blocks, ends)
        count = len(self.active)
        found, totals = bound.new_empty(count, points, ends), bound.new_empty(count, OF_POINTS, most)
        constants = {"POINTS": points, "LIMITS": limits, **self._constants(self.functions.complete_block)}
        box = problem.lower, problem.upper, problem.lower if problem.grid is None else problem.grid
        variables = mean, problem.cost, *box, self.met, self.private
        instances = problem.offset, bound, self.narrow
        layout, strides, sizes = self._layout(problem, self.ends)
        for phase, parts in phases:
            given = layout, strides, sizes, variables, instances, (found, totals), kept
            rest = *data_arguments(group.type), most, parts
            launch(completed, (parts * count,), *given, *rest, PHASE=phase, **constants)

    def finished(self, problem: Decomposition, rows: Tensor, x: Tensor) -> None:
        """Write the coordinates that no other block shares into points.

        Parameters
        ----------
        problem, rows, x
            As in :meth:`blocklp.kernels.instances.InstanceLoops.finished`.
        """
        group = problem.groups[self.group]
        constants = self._constants(self.functions.complete_block)
        grid, layout = (programs(group.blocks) * len(rows),), self._layout(problem, self.ends)
        if group.type.private_coordinates:
            launch(finished, grid, *layout, rows, problem.cost, x, *data_arguments(group.type), **constants)

    def recorded(
        self, problem: Decomposition, bound: Tensor, value: Tensor, primal: Tensor, x: Tensor, eta: Tensor
    ) -> Tensor:
        """Pack the status of active instances (:func:`blocklp.engine.status_record.status_record`).

        Parameters
        ----------
        problem : Decomposition
            The problem in float64.
        bound, value, primal, eta : Tensor
            ``(batch,)``, value and eta of any precision.
        x : Tensor
            ``(batch, variables)`` float64.

        Returns
        -------
        Tensor
            ``(6, batch)`` float64; of frozen instances anything.
        """
        packed, numbers = bound.new_empty(6, len(bound)), (bound, primal, value, eta)
        rest = problem.cost_terms, x, packed, *x.shape
        launch(recorded, (len(self.active),), self.active, numbers, *rest, BLOCK=LANES)
        return packed

    def _phases(self, blocks: int, variables: int) -> tuple[int, list[tuple[int, int]]]:
        """The most chunks of an instance, and the phases to launch with their programs an instance."""
        most = max(-(-blocks // TILES), -(-variables // TILES), 1)
        return most, [(-1, 1)] if is_small(max(blocks, variables)) else [(phase, most) for phase in range(3)]

    def _constants(self, function: Any) -> dict[str, Any]:
        """What kernels are compiled for, with a function of one block."""
        return {"FUNCTION": (function, self.functions.dim, self.functions.coupled), "BLOCK": LANES}

    def _layout(self, problem: Decomposition, last: int) -> tuple[Any, Any, Any]:
        """Layout, strides and sizes as kernels take them, for variables before the last one."""
        group = problem.groups[self.group]
        layout = self.places, self.order, self.begins, self.filled
        grid = problem.lower if problem.grid is None else problem.grid
        shared = *layout, problem.counts, problem.lower, problem.upper, self.met, self.private, grid
        strides = tuple(t.stride(0) if len(t) > 1 else 0 for t in shared)
        sizes = problem.cost.shape[1], problem.copies, group.start, group.blocks, last
        return (self.active, *layout), strides, sizes


def is_small(size: int) -> bool:
    """Whether one program takes all blocks, or all variables, of an instance that has so many."""
    return bool(size <= WHOLE)


def index_dtype(problem: Decomposition) -> torch.dtype:
    """The smallest integers that number variables and copies of an instance: passes read most of these."""
    most = max(problem.coupling.variables, problem.copies)
    return next(kind for kind in INDICES if most < torch.iinfo(kind).max)

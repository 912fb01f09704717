"""Compiled loops over whole instances in which blocks of one type share variables, and others are bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.blocks.capabilities import HasCompleteBlock, HasIntervals, HasMinBlock, supports
from blocklp.blocks.contract import Rows
from blocklp.decomposition.problem import Decomposition, Group
from blocklp.kernels.block_source import loop_data, module_of
from blocklp.kernels.compiled import TURNS, arrays, tiles
from blocklp.kernels.instance_arrays import Arrays
from blocklp.kernels.instance_tables import Best, InstanceTables, valid_blocks

_NO_TURNS, _NO_TOTALS = np.zeros(0, np.int64), np.zeros((0, 8))
_WHOLE_BOUND = _NO_TURNS, np.zeros((0, 3, 0)), _NO_TOTALS
_WHOLE_POINT = _NO_TURNS, np.zeros((0, 0)), _NO_TOTALS
"""Phase barrier, room and totals where instances are not divided."""

Anchors = tuple[Tensor, Tensor, Tensor]
"""Anchors ``(batch, copies)`` or ``(batch, 0)``, their ages ``(batch,)`` int64, and instances whose iterate
is up to date ``(batch,)`` bool."""


@dataclass(frozen=True)
class InstanceLoops(InstanceTables):
    """Loops over whole instances, and tables of these.

    Attributes
    ----------
    module : ModuleType
        The loops (:mod:`blocklp.kernels.block_source`).
    parts : int
        Parts of an instance with sums of their own, whatever the number of threads.
    known : dict
        What loops read of these instances, by the precision of their problem.
    """

    module: ModuleType
    parts: int
    known: dict[torch.dtype, Arrays] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, problem: Decomposition, group: int, module: ModuleType, divided: tuple[int, int] | None
    ) -> InstanceLoops:
        """Lay out the tables of a problem's instances.

        Parameters
        ----------
        problem, group
            As in :meth:`laid_out`.
        module : ModuleType
            Its loops.
        divided : tuple or None
            Parts of an instance, and one past the last variable that these share, of all instances.
        """
        parts, used = divided or (1, None)
        return cls.laid_out(problem, group, used, module=module, parts=parts).priced(problem)

    def select(self, rows: Rows) -> Self:
        """Return the loops over some instances, all of them active."""
        return replace(super().select(rows), known={})

    def first_means(
        self, problem: Decomposition, duals: Tensor, points: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Means of the first points, and squared residuals (:meth:`blocklp.methods.Admm.start`).

        Parameters
        ----------
        problem : Decomposition
            The problem in the working precision.
        duals, points : Tensor
            ``(batch, copies)``: first multipliers and points.

        Returns
        -------
        mean, residual, size : Tensor
            ``(batch, variables)``: the means, of variables that the blocks share. ``(batch,)`` float64:
            squared lengths of the points less these, and of the multipliers of variables with several copies.
        """
        mean, residual = torch.zeros_like(problem.cost), torch.zeros_like(self.rest)
        size, own = torch.zeros_like(residual), self._arrays(problem)
        table = own.layout, self.used, own.variables[1]
        self.module.first_means(problem.batch, *table, duals, points, mean, (residual, size))
        return mean, residual, size

    def first_iterates(
        self,
        problem: Decomposition,
        eta: Tensor,
        relaxation: float,
        mean: Tensor,
        duals: Tensor,
        points: Tensor,
    ) -> Tensor:
        """The first Douglas-Rachford iterates ``(batch, copies)``; zero where nothing is shared.

        Parameters
        ----------
        problem, relaxation
            As in :meth:`passes`.
        eta : Tensor
            ``(batch,)``: proximal weights.
        mean, duals, points : Tensor
            As in :meth:`first_means`.
        """
        found = torch.zeros_like(duals)
        given = eta, relaxation, mean, duals, points, found
        self.module.first_iterates(problem.batch, self._arrays(problem).layout, *given)
        return found

    def passes(
        self,
        problem: Decomposition,
        count: int,
        eta: Tensor,
        consensus: tuple[Tensor, Tensor],
        relaxation: float,
        anchors: Anchors,
        iterates: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Make several passes of ADMM over active instances.

        Parameters
        ----------
        problem : Decomposition
            The problem in the working precision.
        count : int
            How many.
        eta : Tensor
            ``(batch,)``: proximal weights.
        consensus : tuple of Tensor
            ``(batch, variables)``: reflected consensus, and means of the points, written.
        relaxation : float
            Relaxation of the passes.
        anchors : tuple of Tensor
            See :data:`Anchors`.
        iterates : tuple of Tensor
            ``(batch, copies)``: Douglas-Rachford iterates and multipliers, written.

        Returns
        -------
        primal, dual : Tensor
            ``(batch,)`` float64: squared residuals; of frozen instances 1.
        """
        own, batch = self._arrays(problem), problem.batch
        variables = (*own.variables, *consensus)
        rest = (count, own.layout, self.used, variables, eta, relaxation, anchors, *iterates)
        if batch > 1 or self.parts == 1:
            primal, dual = residuals = np.ones(batch), np.ones(batch)
            self.module.passes(len(self.active), self.parts, self.active, *rest, residuals, own.data)
            return torch.from_numpy(primal), torch.from_numpy(dual)
        chains = min(2, problem.groups[self.group].dim - problem.groups[self.group].type.private_coordinates)
        sums, totals = eta.new_empty(self.parts, 2 * chains, self.used), self.rest.new_empty(self.parts, 8)
        self.module.divided(self.parts, (_new_turns(), sums, totals), *rest, own.data)
        in_order = totals[:, :2].cumsum(0)[-1, :, None]  # as a batch adds them
        return in_order[0], in_order[1]

    def settled(
        self, problem: Decomposition, state: Any, method: Any, plain: bool, anchor: Tensor
    ) -> dict[str, Tensor]:
        """Look at weights and anchors, and restart (:func:`blocklp.methods.admm.admm_settled`).

        Parameters
        ----------
        problem : Decomposition
            The problem in the working precision.
        state, method : AdmmState, Admm
            As there.
        plain : bool
            Whether there will be no anchor.
        anchor : Tensor
            ``(batch, copies)``, written, or ``(batch, 0)``.

        Returns
        -------
        dict of str to Tensor
            Attributes of the state ``(batch,)``, those of frozen instances as they were.
        """
        names = "eta", "ready", "age", "origin", "last"
        eta, ready, age, origin, last = (getattr(state, name).numpy() for name in names)
        found = eta.copy(), ready.copy(), age.copy(), origin.copy(), last.copy()
        residuals = state.primal_residual, state.dual_residual
        # The last bits of roots differ between torch and numba.
        root = method.balance.rooted(*residuals, state.passes)
        weights, ages = (eta, state.first, root), (age, method.oldest(state))
        rule = (*method.rule(state), state.anchor.shape[1] > 0, plain)
        own, consensus = self._arrays(problem), (state.reflected, state.mean)
        written = found, consensus, method.relaxed(state), anchor, state.iterate, state.duals
        rest = own.layout, weights, (*residuals, origin, last), ages, rule, *written, own.data
        self.module.settle(len(self.active) * self._runs(problem), self.active, *rest)
        return dict(zip(names, map(torch.from_numpy, found), strict=True))

    def restart(
        self,
        problem: Decomposition,
        due: Tensor,
        eta: tuple[Tensor, Tensor],
        consensus: tuple[Tensor, Tensor],
        relaxation: float,
        anchor: Tensor,
        iterates: tuple[Tensor, Tensor],
    ) -> None:
        """Update iterates for other weights (:func:`blocklp.methods.admm.admm_restart`).

        Parameters
        ----------
        problem, consensus, relaxation, iterates
            As in :meth:`passes`; the Douglas-Rachford iterates are written.
        due : Tensor
            ``(batch,)`` bool: the instances.
        eta : tuple of Tensor
            ``(batch,)``: proximal weights, and new weights over these.
        anchor : Tensor
            ``(batch, copies)``, written, or ``(batch, 0)``.
        """
        active, own = self.active.numpy(), self._arrays(problem)
        rows = active[due.numpy()[active]]
        rest = (eta, consensus, relaxation, anchor, *iterates, own.data)
        self.module.restart(len(rows) * self._runs(problem), rows, own.layout, *rest)

    def _runs(self, problem: Decomposition) -> int:
        """Runs of blocks of an instance, which are the units of a restart."""
        return -(-problem.groups[self.group].blocks // int(self.module.RUN))

    def bounds(
        self, problem: Decomposition, duals: Tensor, limits: tuple[float, float], primal: Tensor, kept: Best
    ) -> Tensor:
        """Evaluate multipliers and keep the best (:func:`blocklp.engine.best_bound.improve`).

        Parameters
        ----------
        problem : Decomposition
            The problem in float64.
        duals : Tensor
            ``(batch, copies)``: multipliers, of any precision.
        limits : tuple of float
            Relative improvement that counts, and part of the gap that does not.
        primal : Tensor
            ``(batch,)`` float64: values of the best points.
        kept : Best
            Best bounds and their multipliers.

        Returns
        -------
        Tensor
            ``(batch,)`` float64: the bounds.
        """
        bound, own = kept[0].clone(), self._arrays(problem)
        units, shared = len(self.active), _WHOLE_BOUND
        if len(self.rest) == 1 and self.parts > 1:
            sums, totals = np.empty((self.parts, 3, self.used)), np.empty((self.parts, 8))
            units, shared = self.parts, (_new_turns(), sums, totals)
        table = (own.layout, self.used, own.masks[0], own.variables, own.box[:2], own.others)
        rest = (duals, limits, primal, (bound, *kept), own.data)
        self.module.bounds(units, shared, self.parts, self.active, *table, *rest)
        return bound

    def completed(
        self, problem: Decomposition, limits: tuple[float, float], mean: Tensor, bound: Tensor, kept: Best
    ) -> None:
        """Complete means of copies, and keep better points (:func:`blocklp.engine.points.offer_mean`).

        Parameters
        ----------
        problem : Decomposition
            The problem in float64.
        limits : tuple of float
            Relative improvement that counts, and violation that a point may have.
        mean : Tensor
            ``(batch, variables)``: means of the copies, of any precision.
        bound : Tensor
            ``(batch,)`` float64: the best bounds.
        kept : Best
            Best values and points.
        """
        units, shared, own = len(self.active), _WHOLE_POINT, self._arrays(problem)
        if len(self.rest) == 1 and self.parts > 1:
            found, totals = np.empty((2, self.ends)), np.empty((self.parts, 8))
            units, shared = self.parts, (_new_turns(), found, totals)
        table = (own.layout, self.ends, own.masks, own.costs, own.box)
        rest = (limits, mean, (bound, own.size), *kept, own.data)
        self.module.completed(units, shared, self.parts, self.active, *table, *rest)

    def finished(self, problem: Decomposition, rows: Tensor, x: Tensor) -> None:
        """Write the coordinates that no other block shares into points.

        Parameters
        ----------
        problem : Decomposition
            The problem in float64.
        rows : Tensor
            ``(k,)`` int64: the instances.
        x : Tensor
            ``(batch, variables)`` float64: points of all instances, written.
        """
        group, own = problem.groups[self.group], self._arrays(problem)
        if group.type.private_coordinates:
            units = len(rows) * tiles(group.blocks)
            self.module.finished(units, rows, own.layout, own.variables[0], x, own.data)

    def recorded(
        self,
        problem: Decomposition,
        parts: tuple[float, float],
        given: tuple[Tensor, Tensor, Tensor, Tensor],
        x: Tensor,
    ) -> Tensor:
        """Pack the status of active instances (:func:`blocklp.engine.status_record.status_record`).

        Parameters
        ----------
        problem : Decomposition
            The problem in float64.
        parts : tuple of float
            Of the sizes of costs, of which ``floor`` is made.
        given : tuple of Tensor
            ``(batch,)``: bounds, values of multipliers, values of points, and weights.
        x : Tensor
            ``(batch, variables)`` float64: the points.

        Returns
        -------
        Tensor
            ``(6, batch)`` float64; zero for frozen instances.
        """
        out = np.zeros((6, len(self.rest)))
        self.module.recorded(len(self.active), self.active, problem.cost_terms, parts, given, x, out)
        return torch.from_numpy(out)

    def _arrays(self, problem: Decomposition) -> Arrays:
        """What loops read of a problem, converted once."""
        found = self.known.get(problem.cost.dtype)
        if found is not None and found.problem is problem:
            return found
        group, counts = problem.groups[self.group], problem.counts
        layout = problem.coupling.places, group.start, group.blocks, self.filled
        grid = torch.zeros_like(counts) if problem.grid is None else problem.grid
        variables, costs = (problem.cost, counts), (problem.cost, problem.offset)
        box, masks = (problem.lower, problem.upper, grid), (self.met, self.private, self.narrow)
        rest = masks, (self.largest, self.rest), self.size, loop_data(group.type)
        found = Arrays(problem, *arrays((layout, variables, costs, box, *rest)))
        self.known[problem.cost.dtype] = found
        return found


def _new_turns() -> NDArray[np.int64]:
    """The state of a phase barrier."""
    return np.zeros(TURNS, np.int64)


def pass_over(module: ModuleType) -> Callable[..., None]:
    """A pass of ADMM over tiles of one group, among others that share variables, by the loops of its type."""

    def passed(group: Group, order: NDArray[np.int64], places: Tensor, eta: Tensor, *rest: Any) -> None:
        target, relaxation, anchors, iterates, duals, points = rest
        layout, units = (places, group.start, group.blocks, group.filled), len(eta) * len(order)
        state = (iterates, duals, points, loop_data(group.type))
        module.pass_over_blocks(units, order, layout, eta, target, relaxation, anchors, *state)

    return passed


def loops_of(group: Group) -> str | None:
    """The module of its type's loops, where the coordinates are coupled for which there are some."""
    coupled = group.dim - group.type.private_coordinates
    pattern = (True,) * coupled + (False,) * (group.dim - coupled)
    return module_of(group.type, group.dim) if coupled and group.pattern == pattern else None


def checks_in_loops(group: Group) -> bool:
    """Whether loops evaluate multipliers and complete points of a group too."""
    return supports(group.type, HasMinBlock) and supports(group.type, HasCompleteBlock)


def only_one(problem: Decomposition) -> int | None:
    """The number of the only group that shares variables, if loops may run over whole instances."""
    if problem.rows is not None or problem.coupling.maps:
        return None
    sharing = [n for n, group in enumerate(problem.groups) if group.shares]
    others = (group for group in problem.groups if not group.shares)
    if len(sharing) != 1 or not all(_bounds_only(problem, group) for group in others):
        return None
    group = problem.groups[sharing[0]]
    serves = checks_in_loops(group) or (not group.type.private_coordinates and group.constraints is not None)
    return sharing[0] if serves and loops_of(group) is not None else None


def _bounds_only(problem: Decomposition, group: Group) -> bool:
    """Whether a group is nothing but the bounds of its variables."""
    if not supports(group.type, HasIntervals):
        return False
    valid = valid_blocks(group)[:, None]
    sides = zip(group.type.intervals(), (problem.lower, problem.upper), strict=True)
    same = [a.transpose(1, 2) == group.rows(problem.spread(b.expand(problem.batch, -1))) for a, b in sides]
    return all(bool((s | ~valid).all()) for s in same)

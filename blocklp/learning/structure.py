"""One model, solved for many costs at a time: what a layer keeps between calls."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.decomposition.problem import Decomposition, Group
from blocklp.language.expression import Parameter
from blocklp.learning.argmin import Argmin, Minimisers, argmin_of
from blocklp.learning.cost_map import CostMap
from blocklp.learning.memory import Memory
from blocklp.learning.nearest import ActiveVertices
from blocklp.learning.proximal_points import ProximalAnswer, ProximalPoints, ProximalStart
from blocklp.solver import Solver

SMALL = 1e-6
"""Part of the largest terms of an objective that counts where a minimiser has hardly any."""


@dataclass(frozen=True)
class Exactness:
    """How exact the last solve of a layer was.

    Attributes
    ----------
    gap : float
        Largest relative difference between the cost of a minimiser and its bound; of nearest points, largest
        distance by which a block moves its copy, relative to what it is given.
    open : int
        Instances that did not reach the tolerance.
    """

    gap: float = 0.0
    open: int = 0


class Structure:
    """The model of a layer, and what was found for rows of the data set.

    Parameters
    ----------
    solver : Solver
        Of one model of one instance.
    map : CostMap
        Where the parameter and the variables are.
    tol : float
        Relative gap for minimisers that the engine finds.
    passes : int
        Most passes of the engine.
    proximal_tol : float
        Residual of nearest points.
    """

    def __init__(self, solver: Solver, map: CostMap, tol: float, passes: int, proximal_tol: float) -> None:
        self.solver, self.map, self.tol, self.passes = solver, map, tol, passes
        self.proximal_tol = proximal_tol
        self.memories: dict[str, Memory] = {}
        self.exactness = Exactness()
        self.groups: tuple[Group, ...] = ()
        self.fixed = self.offset = torch.zeros(0)
        self._argmin: Argmin | None = None
        self._proximal: ProximalPoints | None = None
        self.problem = self.refreshed()

    @torch.inference_mode(mode=False)  # what is kept serves training, too
    def refreshed(self) -> Decomposition:
        """The problem with the present data of blocks and other parameters; what is derived follows.

        Raises
        ------
        ModelError
            If the model was changed otherwise, so that another layer is needed.
        """
        problem = self.solver.decomposition(values=self._zero())
        if len(self.groups) != len(problem.groups) or any(
            a is not b for a, b in zip(self.groups, problem.groups, strict=True)
        ):
            self._argmin = self._proximal = None
            self.groups = problem.groups
            self.memories.clear()
        self.fixed, self.offset, self.problem = problem.cost, problem.offset, problem
        return problem

    def _zero(self) -> dict[Parameter, Tensor]:
        """The predicted parameter at zero, which need not have a value."""
        return {self.map.parameter: torch.zeros(self.map.shape, dtype=torch.float64)}

    @property
    def argmin(self) -> Argmin:
        """How minimisers are found, chosen once."""
        if self._argmin is None:
            self._argmin = argmin_of(self.solver, self.problem, self._zero(), self.tol, self.passes)
        return self._argmin

    @property
    def proximal(self) -> ProximalPoints:
        """How nearest points are found."""
        if self._proximal is None:
            self._proximal = ProximalPoints(self.problem, self.proximal_tol, self.passes)
        return self._proximal

    def costs(self, values: Tensor) -> Tensor:
        """Costs of the minimisation: ``(batch, entries) -> (batch, variables)``."""
        return self.map.costs(self.fixed, values)

    def adjoint(self, gradient: Tensor) -> Tensor:
        """From gradients in these costs to gradients in the values."""
        return self.map.adjoint(gradient)

    def minimise(self, cost: Tensor, rows: Tensor | None, use: str) -> Tensor:
        """Minimisers of costs, as :meth:`minimisers`.

        Parameters
        ----------
        cost, rows, use
            As in :meth:`blocklp.learning.modes.SolvableModel.minimise`.

        Returns
        -------
        Tensor
            ``(batch, variables)`` float64.
        """
        return self.minimisers(cost, rows, use).x

    @torch.inference_mode(mode=False)
    def minimisers(self, cost: Tensor, rows: Tensor | None, use: str) -> Minimisers:
        """Minimise many costs.

        Parameters
        ----------
        cost : Tensor
            ``(batch, variables)`` float64, of the minimisation.
        rows : Tensor or None
            ``(batch,)`` int64: rows of the data set, to start from their last solve.
        use : str
            For what, since the same rows may be solved for several costs in a step.

        Returns
        -------
        Minimisers
            Points and bounds.
        """
        if not len(cost):
            return Minimisers(torch.zeros_like(cost), cost.new_zeros(0), {})
        found = self.argmin.solve(cost, self._started(rows, use))
        if rows is not None and found.start:
            self._memory(use).put(rows, found.start)
        value = (cost * found.x).sum(1)
        terms = (cost * found.x).abs().sum(1) + SMALL * (cost.abs() * self.problem.reach).sum(1)
        gap = (value - found.bound) / terms.clamp(min=torch.finfo(torch.float64).tiny)
        self._note(gap, max(self.tol, 1e-6), "gap")
        return found

    @torch.inference_mode(mode=False)
    def nearest(self, target: Tensor, rows: Tensor | None, use: str) -> ProximalAnswer:
        """Find nearest points.

        Parameters
        ----------
        target : Tensor
            ``(batch, variables)`` float64.
        rows : Tensor or None
            ``(batch,)`` int64: rows of the data set, to start from their last solve.
        use : str
            As in :meth:`minimisers`.

        Returns
        -------
        ProximalAnswer
            Points, faces, and how exact they are.
        """
        known = self._started(rows, use)
        start = None
        if known is not None:
            names = [name[9:] for name in known if name.startswith("vertices ")]
            active = {n: ActiveVertices(known[f"vertices {n}"], known[f"weights {n}"]) for n in names}
            start = ProximalStart(known["points"], known["duals"], known["penalty"], active)
        found = self.proximal.solve(target, start)
        if rows is not None:
            began = found.start
            kept = {"points": began.points, "duals": began.duals, "penalty": began.penalty}
            for name, own in began.active.items():
                kept |= {f"vertices {name}": own.vertices, f"weights {name}": own.weights}
            self._memory(use).put(rows, kept)
        self._note(found.residual, self.proximal_tol, "residual")
        return found

    def _memory(self, use: str) -> Memory:
        return self.memories.setdefault(use, Memory())

    def _started(self, rows: Tensor | None, use: str) -> dict[str, Tensor] | None:
        return None if rows is None else self._memory(use).take(rows)

    def _note(self, gap: Tensor, most: float, what: str) -> None:
        """Say how exact a solve was, and warn where it was not."""
        open_ = int((~(gap <= most)).sum())
        self.exactness = Exactness(float(gap.max()) if len(gap) else 0.0, open_)
        if open_:
            warnings.warn(
                f"{open_} of {len(gap)} instances of a layer ended at a {what} of up to "
                f"{self.exactness.gap:.1e}, above {most:.1e}: their points and gradients are less exact; "
                f"see layer.exactness",
                UserWarning,
                stacklevel=2,
            )

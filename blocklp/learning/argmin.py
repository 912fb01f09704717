"""Minimisers of many costs over one model in one call, by the cheapest way that is exact enough."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from blocklp.blocks.nonnegative_costs import NonnegativeCosts
from blocklp.decomposition.problem import Decomposition
from blocklp.engine.limits import Limits, with_defaults
from blocklp.engine.loop import run
from blocklp.engine.records import Start
from blocklp.errors import ModelError
from blocklp.general_solvers.linear_program import export, without_single_entries
from blocklp.kernels import compiled
from blocklp.kernels.backend import Backend
from blocklp.kernels.plan import Plan
from blocklp.language.expression import Values
from blocklp.language.statement import Statement
from blocklp.methods import as_method
from blocklp.model import Model
from blocklp.search.linear_nodes import KERNELS, LinearNodes
from blocklp.solver import Solver
from blocklp.status import Status

PIVOTS = 10_000
"""Most pivots of an instance by the simplex method; what is not optimal then goes to the engine."""

SIMPLEX_ENTRIES = 4_000_000
"""Rows times variables up to which the simplex method is asked."""


@dataclass
class Minimisers:
    """What a call found; the instance comes first.

    Attributes
    ----------
    x : Tensor
        ``(batch, variables)`` float64.
    bound : Tensor
        ``(batch,)``: no point has a lower cost.
    start : dict of str to Tensor
        For a later call with other costs.
    """

    x: Tensor
    bound: Tensor
    start: dict[str, Tensor]


class Argmin(Protocol):
    """One way."""

    def solve(self, cost: Tensor, start: dict[str, Tensor] | None) -> Minimisers:
        """Minimise costs ``(batch, variables)`` float64, from what an earlier call returned."""


class OneOracleCall:
    """Blocks that share no variable, without rows: each is asked once, which is exact.

    Parameters
    ----------
    problem : Decomposition
        Of one instance.
    """

    def __init__(self, problem: Decomposition) -> None:
        self.problem = problem

    def __repr__(self) -> str:
        return "one call of the oracle"

    @staticmethod
    def serves(problem: Decomposition) -> bool:
        """Whether the blocks are separate, and their oracles take any costs."""
        wrapped = any(isinstance(g.type, NonnegativeCosts) for g in problem.groups)
        apart = problem.rows is None and not problem.coupling.maps and bool((problem.counts <= 1).all())
        return apart and not wrapped

    def solve(self, cost: Tensor, start: dict[str, Tensor] | None) -> Minimisers:
        """Ask every block once."""
        points, value = self.problem.min_oracle(self.problem.coupling.spread(cost))
        index = self.problem.coupling.index.expand(len(cost), -1)
        return Minimisers(torch.zeros_like(cost).scatter_(1, index, points), value, {})


class EnginePasses:
    """Any blocks and rows: one run of the engine for all costs, to a tolerance.

    Parameters
    ----------
    solver : Solver
        Of one model of one instance.
    problem : Decomposition
        Of the instance.
    tol : float
        Relative gap at which an instance counts as optimal.
    passes : int
        Most passes.
    """

    def __init__(self, solver: Solver, problem: Decomposition, tol: float, passes: int) -> None:
        self.solver, self.problem = solver, problem
        self.method = as_method("auto", problem)
        self.tol, self.passes = tol, passes
        self.plan: Plan | None = None

    def __repr__(self) -> str:
        return f"passes of the engine by {type(self.method).__name__} to a gap of {self.tol:g}"

    def solve(self, cost: Tensor, start: dict[str, Tensor] | None) -> Minimisers:
        """Run the engine, from multipliers of an earlier run where there are some."""
        batch = len(cost)
        if self.plan is None or self.plan.problem.batch != batch:
            every = torch.zeros(batch, dtype=torch.long, device=cost.device)
            self.plan = Plan(self.problem.select(every), backend=Backend(self.solver.backend))
        plan = replace(self.plan, problem=replace(self.plan.problem, cost=cost))
        options = with_defaults({"tol": self.tol, "passes": self.passes})
        limits = Limits.of(torch.zeros(batch), options)
        began = Start()
        if start is not None:
            eta = start["eta"]
            warm = (start["x"], start["y"], start["weight"]) if "x" in start else None
            began = Start(start["duals"], eta if bool((eta > 0).all()) else None, warm)
        found = run(plan, self.method, torch.float64, limits, began)
        kept = {"duals": found.duals, "eta": found.eta.nan_to_num(0.0)}
        if found.memory is not None:
            x, y, weight = found.memory
            kept |= {"x": x, "y": y, "weight": weight}
        bound = found.bound.masked_fill(found.primal.isinf(), -torch.inf)  # no feasible point
        return Minimisers(found.x, bound, kept)


class SimplexNodes:
    """Rows, of the model or stated by its blocks: vertices by the simplex method, all costs in one call.

    Parameters
    ----------
    nodes : LinearNodes
        Of the model.
    rest : EnginePasses
        Takes instances that the simplex method leaves open.
    """

    def __init__(self, nodes: LinearNodes, rest: EnginePasses) -> None:
        self.nodes, self.rest = nodes, rest

    def __repr__(self) -> str:
        return "vertices of the simplex method"

    @classmethod
    def of(
        cls, solver: Solver, problem: Decomposition, values: Values, rest: EnginePasses
    ) -> SimplexNodes | None:
        """Choose vertices where all blocks state their constraints, and the LP is not too large.

        Parameters
        ----------
        solver : Solver
            The compiled model.
        problem : Decomposition
            Its problem at ``values``, in the sense of minimisation.
        values : mapping
            Values of parameters in the objective.
        rest : EnginePasses
            Takes instances that the simplex method leaves open.

        Returns
        -------
        SimplexNodes or None
            None for devices, batches of models, large LPs, and blocks that state no constraints.
        """
        model: Statement = solver.models[0]
        if solver.device.type != "cpu" or not isinstance(model, Model) or problem.coupling.maps:
            return None
        if not problem.testable or compiled.in_time(KERNELS, torch.float64) is None:
            return None
        program = without_single_entries(export(model, values=values))
        program = replace(program, c=problem.cost[0].numpy(), offset=0.0, maximize=False)
        if program.A.shape[0] * program.A.shape[1] > SIMPLEX_ENTRIES:
            return None
        try:
            nodes = LinearNodes(program)
        except ModelError:
            return None
        return None if nodes.first is None else cls(nodes, rest)

    def solve(self, cost: Tensor, start: dict[str, Tensor] | None) -> Minimisers:
        """Pivot from the vertices of an earlier call where there are some."""
        basis = None if start is None else start["basis"]
        found = self.nodes.solve(cost=cost, basis=basis, pivots=PIVOTS)
        x, bound = found.x, found.bound
        open_ = (found.status != int(Status.OPTIMAL)).nonzero()[:, 0]
        if len(open_):
            rest = self.rest.solve(cost[open_], None)
            x[open_], bound[open_] = rest.x, rest.bound
        return Minimisers(x, bound, {"basis": found.basis})


def argmin_of(solver: Solver, problem: Decomposition, values: Values, tol: float, passes: int) -> Argmin:
    """Choose the way for the structure of a model.

    Parameters
    ----------
    solver : Solver
        Of one model of one instance.
    problem : Decomposition
        Of the instance; its costs are those that are not predicted.
    values : mapping
        Parameters to values with which the objective can be evaluated.
    tol : float
        Relative gap at which an instance that the engine solves counts as optimal.
    passes : int
        Most passes of the engine.

    Returns
    -------
    Argmin
        One call of the oracle, the simplex method, or passes of the engine.
    """
    if OneOracleCall.serves(problem):
        return OneOracleCall(problem)
    rest = EnginePasses(solver, problem, tol, passes)
    return SimplexNodes.of(solver, problem, values, rest) or rest

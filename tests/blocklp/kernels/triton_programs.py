"""Models with rows, and what runs Triton's operations on them and the definitions."""

from __future__ import annotations

import importlib
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import blocklp as bl
from blocklp.kernels.backend import Backend, known
from blocklp.kernels.operations import IMPLEMENTATIONS, OPERATIONS
from blocklp.kernels.plan import Plan
from blocklp.kernels.row_tables import LONG
from blocklp.kernels.settings import EngineSettings
from blocklp.methods.pdhg import Pdhg, PdhgState
from blocklp.oracles import Edge, Knapsack, Simplex

EXACT = {torch.float64: {"rtol": 1e-12, "atol": 1e-12}, torch.float32: {"rtol": 1e-5, "atol": 1e-5}}
"""How far an operation may be from its definition."""

REAL = list(EXACT)


def small(draw: np.random.Generator, batch: int = 2) -> bl.Model:
    """Two groups, one with entries of its own, rows beside them on one side or both, and one of a single entry."""
    m = bl.Model(batch)
    x = m.variable("x", (4, 3), lower=0, upper=1)
    m.add(Simplex(3), x)
    m.add(Knapsack(draw.integers(1, 9, (3, 4)), 10.0), x.T)
    m.add(draw.uniform(-1, 1, (3, 12)) @ x.reshape(-1) <= 0.5)
    m.add(draw.uniform(0, 1, (1, 12)) @ x.reshape(-1) >= 0.5)
    m.add(2 * x[0, 0] + 0 * x[0, 1] <= 1.5)
    m.minimize((draw.normal(size=(batch, 4, 3)) * x).sum())
    return m


def graph(draw: np.random.Generator, nodes: int, degree: int = 2) -> bl.Model:
    """Edges of a graph, as roof duality has them."""
    ends = np.array([(i, (i + step) % nodes) for i in range(nodes) for step in range(1, degree + 1)])
    m = bl.Model()
    y, z = m.variable("y", nodes, lower=0, upper=1), m.variable("z", len(ends), lower=0, upper=1)
    m.add(Edge(), [y[ends[:, 0]], y[ends[:, 1]], z])
    m.minimize((draw.normal(size=nodes) * y).sum() + (draw.normal(size=len(ends)) * z).sum())
    return m


def long(draw: np.random.Generator) -> bl.Model:
    """A row and a variable of more terms than a thread adds up, beside short ones."""
    count = LONG + 6
    m = bl.Model(2)
    x = m.variable("x", count + 1, lower=0, upper=1)
    m.add(Knapsack(draw.integers(0, 9, (1, count)), 40.0), x[None, :count])
    m.add(np.hstack([np.eye(count), draw.uniform(0.1, 1, (count, 1))]) @ x <= 1.2)
    m.minimize((draw.normal(size=(2, count + 1)) * x).sum())
    return m


def plan_of(*models: bl.Model, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Plan:
    """A plan of definitions, whose program is written."""
    given = models[0] if len(models) == 1 else list(models)
    problem = bl.compile(given, backend="torch", device=device).decomposition()
    plan = Plan(problem.to(dtype))
    assert plan.program.backend.name == "auto"
    return plan


def in_triton(plan: Plan, dealt: str = "whole") -> Plan:
    """The plan, with Triton's operations: one program makes all passes of an instance, or each tile is a program of its own."""
    programs = {kind: replace(own, backend=Backend("triton")) for kind, own in plan.programs.items()}
    tiles = {"whole": 10**9, "tiles": 0}[dealt]
    settings = EngineSettings(cached_row_tiles=tiles, launched_tiles=tiles)
    return replace(plan, backend=Backend("triton"), programs=programs, settings=settings)


def copied(state: PdhgState) -> PdhgState:
    """A state whose tensors are its own."""

    def own(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(own, value))
        return value.clone() if isinstance(value, Tensor) else value

    return replace(state, **{f.name: own(getattr(state, f.name)) for f in fields(state)})


def triton(name: str) -> Any:
    """Triton's implementation of an operation."""
    for module in known("triton").modules:
        importlib.import_module(module)
    return IMPLEMENTATIONS[name, "triton"][0].function


def definition(name: str) -> Any:
    return OPERATIONS[name].definition


def begun(plan: Plan, passes: int = 0) -> PdhgState:
    """A state of PDHG some passes from its start, by definitions."""
    problem = plan.problem
    state = Pdhg().weighted(plan, Pdhg().start(plan, problem.to_dual(problem.cost), None))
    return definition("pdhg_passes")(plan, state, Pdhg(longest=passes), passes)[0] if passes else state


CASES = {
    "batch": lambda draw: [small(draw)],
    "ragged": lambda draw: [graph(draw, 4), graph(draw, 5)],
    "long": lambda draw: [long(draw)],
}

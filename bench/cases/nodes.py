"""Bounds of branch-and-bound nodes a second, against HiGHS and max-flow called for each node."""

from __future__ import annotations

import sys
import time
from statistics import median

import numpy as np
import torch
from torch import Tensor

import blocklp as bl
from bench.instances import ba, er
from bench.registry import Record, case
from bench.rivals import max_flow
from blocklp.general_solvers.linear_program import export, loaded_highs
from blocklp.problems.qpbo import Qubo
from blocklp.problems.qpbo.relaxation import roof_duality_model

SETTINGS = ((2, 0), (4, 0), (8, 0), (16, 0), (8, 40))
"""Sweeps and passes."""


@case(
    "nodes",
    "Node bounds a second, n = 100",
    "Independent sets of 100 nodes as QUBOs; one more variable is fixed than in the parent, whose multipliers a node starts from. "
    "`error` is the mean distance to the node's exact roof dual, relative to it, and `gained` the share of what the fixing moves the "
    "roof dual by, both of a sample. With the median of the exact bounds as cutoff, `pruned` is the share of nodes cut off among "
    "those of the sample whose exact bound reaches it by 0.1 %, and `nodes/s, cutoff` the speed. HiGHS (simplex, bounds "
    "changed in place, from scratch and from the last basis) and max-flow (building included) are called for each node of the "
    "sample; their nodes a second are those of one core times the number of threads. Medians of three runs.",
)
def run(quick: bool) -> list[Record]:
    records: list[Record] = []
    for qubo in (ba(100, 0), er(100, 0.05, 0)):
        parents, fixings, multipliers = family(qubo, 16 if quick else 256)
        nodes = bl.Nodes(roof_duality_model(qubo), "y")
        sample = torch.randperm(len(fixings), generator=torch.Generator().manual_seed(1))[: 32 if quick else 128]
        began = time.perf_counter()
        exact = torch.tensor([max_flow(restricted(qubo, row))[0] for row in fixings[sample].numpy()], dtype=torch.float64)
        flow = len(sample) / (time.perf_counter() - began)
        before = torch.tensor([max_flow(restricted(qubo, row))[0] for row in parents[sample].numpy()], dtype=torch.float64)
        value, cold = highs(qubo, fixings[sample], warm=False)
        assert torch.allclose(value, exact, atol=1e-6)
        warm = highs(qubo, fixings[sample], warm=True)[1]
        cutoff, threads = exact.median().item(), torch.get_num_threads()
        for sweeps, passes in SETTINGS:
            rates = []
            for goal in (None, cutoff):
                taken = []
                for _ in range(4):
                    began = time.perf_counter()
                    found = nodes.solve(fixings, multipliers, goal, sweeps=sweeps, stall=0.0, passes=passes)
                    taken.append(time.perf_counter() - began)
                rates.append(len(fixings) / median(taken[1:]))
                if goal is None:
                    free = found.bound[sample]
            due = exact >= cutoff + 1e-3 * abs(cutoff)
            records.append(
                {
                    "instance": qubo.name,
                    "pairs": len(qubo.edges),
                    "nodes": len(fixings),
                    "sweeps": sweeps,
                    "passes": passes,
                    "error": float(((exact - free) / exact.abs()).mean()),
                    "gained": float((free - before).sum() / (exact - before).sum()),
                    "pruned": float((~found.open[sample])[due].double().mean()),
                    "nodes/s": rates[0],
                    "nodes/s, cutoff": rates[1],
                    "HiGHS": threads * cold,
                    "of HiGHS": rates[0] / (threads * cold),
                    "HiGHS, last basis": threads * warm,
                    "max-flow": threads * flow,
                }
            )
            print(records[-1], file=sys.stderr, flush=True)
    return records


def family(qubo: Qubo, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Fixings of parents and of children, 32 children of every parent, and multipliers for these to start from."""
    draw, model = torch.Generator().manual_seed(0), roof_duality_model(qubo)
    nodes, start = bl.Nodes(model, "y"), model.solve(tol=1e-5).state
    fixings = torch.full((count, qubo.n), -1, dtype=torch.int8)
    found, rows = nodes.solve(fixings, start), torch.arange(count)
    for _ in range(6):
        best = found.scores.topk(8).indices
        column = best[rows, torch.randint(0, 8, (count,), generator=draw)]
        fixings[rows, column] = torch.randint(0, 2, (count,), generator=draw).to(torch.int8)
        found = nodes.solve(fixings, found.multipliers, passes=80)
    columns = found.scores.topk(16).indices.flatten().repeat_interleave(2)
    parent = rows.repeat_interleave(32)
    children = fixings[parent]
    children[torch.arange(len(parent)), columns] = (torch.arange(len(parent)) % 2).to(torch.int8)
    return fixings[parent], children, found.multipliers[parent]


def restricted(qubo: Qubo, fixed: np.ndarray) -> Qubo:
    """The function of the free variables, at the fixings of the others."""
    y, free = np.where(fixed == 1, 1.0, 0.0), fixed < 0
    head, tail = qubo.edges.T
    linear = np.where(free, qubo.linear, 0.0)
    np.add.at(linear, head, qubo.quadratic * y[tail] * free[head])
    np.add.at(linear, tail, qubo.quadratic * y[head] * free[tail])
    both = free[head] & free[tail]
    return Qubo.from_terms(linear, qubo.edges[both], qubo.quadratic[both], float(qubo.energy(y)))


def highs(qubo: Qubo, fixings: Tensor, warm: bool) -> tuple[Tensor, float]:
    """The roof-duality LPs of some nodes by HiGHS, bounds changed in place: values, and nodes a second."""
    program = export(roof_duality_model(qubo), 0)
    solver = loaded_highs(program, solver="simplex")
    solver.run()
    columns, values = np.arange(qubo.n, dtype=np.int32), []
    began = time.perf_counter()
    for row in fixings.numpy():
        lower, upper = np.where(row == 1, 1.0, 0.0), np.where(row == 0, 0.0, 1.0)
        if not warm:
            solver.clearSolver()
        solver.changeColsBounds(qubo.n, columns, lower, upper)
        solver.run()
        values.append(solver.getInfo().objective_function_value + program.offset)
    return torch.tensor(values, dtype=torch.float64), len(fixings) / (time.perf_counter() - began)

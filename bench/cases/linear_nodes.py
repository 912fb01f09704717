"""Bounds of the nodes of a branch and bound over general LPs a second, against HiGHS's warm dual simplex on as many cores."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

import numpy as np
import torch
from scipy.sparse import csr_array, vstack

import blocklp as bl
from bench.data import data
from bench.registry import Record, case, threads
from blocklp.general_solvers.linear_program import Array, LinearProgram, loaded_highs
from blocklp.problems.lp import read_linear_program

NODES, SAMPLE = 4096, 1024
"""Siblings, and those that HiGHS is given."""

NETLIB = ("afiro", "adlittle", "share2b", "israel", "sctap1", "scsd1", "scsd6", "bandm", "degen2", "ship04s", "fit1d", "25fv47")
"""Files of the folder."""


@case(
    "linear_nodes",
    "Nodes of general LPs a second",
    "4,096 siblings of an LP: each fixes one, two or four of its basic variables at one of their bounds (assignments: 0 or 1) "
    "or moves one of their bounds up to a fifth of the way past their value (files). The cutoff is the median of the siblings' "
    "values. `certified` is the share of nodes that end as optimal, cut off or infeasible, and `nodes/s` these a second, by two "
    "threads; setting up (`root`) is apart. HiGHS's dual simplex, presolve off, is given the first 1,024 in two processes at "
    "once, with the cutoff as its `objective_bound`; bounds are changed in place, and it starts from its last basis or from the "
    "root's, whichever is faster. It certifies nothing. `findings`: bounds above HiGHS's values, or states that contradict "
    "them. Files are those of `blocklp data fetch lp/netlib`; 25fv47 is refused, since variables without bounds grow "
    "in it at no cost. Medians of five runs. `tightening`: milliseconds of one thread for the least and largest values of 100 "
    "variables over the points within 1 % of the optimum, and HiGHS's, one LP after the other from the last basis.",
)
def run(quick: bool) -> Iterator[Record]:
    made = {
        "GAP 8 x 48": gap(8, 48),
        "GAP 10 x 100": gap(10, 100),
        "GAP 20 x 200": gap(20, 200),
        "assignment 40 x 40": assignment(40),
    }
    tasks = [(name, program, depth) for name, program in made.items() for depth in (1, 2, 4)]
    if quick:
        tasks = [("GAP 3 x 8", gap(3, 8), 2)]
    else:
        tasks += [(name, read_linear_program(data(f"lp/netlib/{name}.mps.gz")).program, 2) for name in NETLIB]
    for name, program, depth in tasks:
        found = record(name, program, depth, 64 if quick else NODES)
        print(found, file=sys.stderr, flush=True)
        yield found


def record(name: str, program: LinearProgram, depth: int, count: int) -> Record:
    """One LP: its nodes by both, and whether they agree."""
    began = time.perf_counter()
    rows, variables = program.A.shape
    row: Record = {"LP": name, "rows": rows, "columns": variables, "changed": depth}
    figures = "root", "certified", "pivots", "nodes/s", "nodes/s, no cutoff", "HiGHS", "of HiGHS", "tightening", "HiGHS's", "findings"
    empty = dict.fromkeys(figures)
    try:
        nodes = bl.LinearNodes(program)
    except bl.errors.ModelError:
        return row | empty | {"certified": "refused", "findings": 0}
    setup = time.perf_counter() - began
    lower, upper = siblings(program, nodes, depth, count)
    free = nodes.solve(lower, upper)
    cutoff = float(free.bound[torch.isfinite(free.bound)].median())
    rates = []
    for goal in (cutoff, None):
        seconds = []
        for _ in range(5):
            began = time.perf_counter()
            found = nodes.solve(lower, upper, cutoff=goal)
            seconds.append(time.perf_counter() - began)
        ends = (bl.Status.OPTIMAL, bl.Status.CUTOFF, bl.Status.INFEASIBLE)
        done = int(sum((found.status == int(s)).sum() for s in ends))
        rates.append((done / median(seconds), done / count, float(found.pivots.double().mean())))
    rival = max(by_highs(program, lower[:SAMPLE], upper[:SAMPLE], cutoff, root) for root in (False, True))
    return row | {
        "root": setup,
        "certified": rates[0][1],
        "pivots": rates[0][2],
        "nodes/s": rates[0][0],
        "nodes/s, no cutoff": rates[1][0],
        "HiGHS": rival,
        "of HiGHS": rates[0][0] / rival,
        **tightening(program, nodes, depth),
        "findings": findings(program, lower[:200], upper[:200], free, sign=-1.0 if program.maximize else 1.0),
    }


def siblings(program: LinearProgram, nodes: bl.LinearNodes, depth: int, count: int) -> tuple[Array, Array]:
    """Bounds of nodes ``(nodes, variables)``."""
    draw, n = np.random.default_rng(0), len(program.c)
    x, basic = nodes.root.x[0].numpy(), np.flatnonzero(nodes.root.basis[0, :n].numpy() == 1)
    lower, upper = (np.repeat(side[None], count, 0) for side in (program.lower, program.upper))
    binary = bool((program.upper - program.lower == 1).all())
    for i in range(count):
        for j in draw.choice(basic, min(depth, len(basic)), replace=False):
            down = draw.random() < 0.5
            if binary:
                lower[i, j] = upper[i, j] = 0.0 if down else 1.0
                continue
            step = abs(x[j]) * draw.uniform(0, 0.2)
            if down:
                upper[i, j] = min(max(x[j] - step, program.lower[j]), program.upper[j])
            else:
                lower[i, j] = min(max(x[j] + step, program.lower[j]), program.upper[j])
    return lower, upper


def by_highs(program: LinearProgram, lower: Array, upper: Array, cutoff: float, root: bool) -> float:
    """Nodes a second of HiGHS in as many processes as there are threads."""
    threads = torch.get_num_threads()
    parts = [(program, lower[k::threads], upper[k::threads], cutoff, root) for k in range(threads)]
    with multiprocessing.get_context("spawn").Pool(threads) as pool:
        pool.map(_highs, [(program, lower[:1], upper[:1], cutoff, root)] * threads)  # loads the library
        return len(lower) / max(pool.map(_highs, parts, chunksize=1))


def _highs(task: tuple[LinearProgram, Array, Array, float, bool]) -> float:
    """Seconds for some nodes, from the solved root on."""
    program, lower, upper, cutoff, root = task
    highs = loaded_highs(program, solver="simplex", presolve="off")
    highs.run()
    # Only a minimisation ends there.
    highs.setOptionValue("objective_bound", cutoff - program.offset)
    first = highs.getBasis()
    changed = [
        np.flatnonzero((a != program.lower) | (b != program.upper)).astype(np.int32) for a, b in zip(lower, upper, strict=True)
    ]
    began = time.perf_counter()
    for a, b, columns in zip(lower, upper, changed, strict=True):
        if root:
            highs.setBasis(first)
        highs.changeColsBounds(len(columns), columns, a[columns], b[columns])
        highs.run()
        highs.changeColsBounds(len(columns), columns, program.lower[columns], program.upper[columns])
    return time.perf_counter() - began


def tightening(program: LinearProgram, nodes: bl.LinearNodes, depth: int) -> Record:
    """Milliseconds of a thread for the ranges of a hundred variables within 1 % of the optimum, by both."""
    if depth != 2:
        return {"tightening": None, "HiGHS's": None}
    root = nodes.root.bound.item()
    cutoff = root + 0.01 * abs(root) * (-1 if program.maximize else 1)
    columns = np.random.default_rng(0).permutation(len(program.c))[:100]
    with threads(1):
        nodes.tighten(columns[:1], cutoff)
        began = time.process_time()
        nodes.tighten(columns, cutoff)
        ours = time.process_time() - began
    side = cutoff - program.offset
    ends = (np.inf, side) if program.maximize else (side, -np.inf)
    rows = csr_array(vstack([program.A, csr_array(program.c[None])]))
    sides = np.append(program.row_lower, min(ends)), np.append(program.row_upper, max(ends))
    near = LinearProgram(np.zeros(len(program.c)), rows, *sides, program.lower, program.upper)
    highs = loaded_highs(near, solver="simplex", presolve="off")
    highs.run()
    began = time.process_time()
    for j in columns:
        for cost in (1.0, -1.0, 0.0):
            highs.changeColCost(int(j), cost)
            if cost:
                highs.run()
    return {"tightening": 1e3 * ours, "HiGHS's": 1e3 * (time.process_time() - began)}


def findings(program: LinearProgram, lower: Array, upper: Array, found: bl.search.LinearNodeBounds, sign: float) -> int:
    """Nodes whose bounds or states HiGHS contradicts."""
    wrong = 0
    for i, (a, b) in enumerate(zip(lower, upper, strict=True)):
        highs = loaded_highs(replace(program, lower=a, upper=b))
        highs.run()
        status, own = highs.modelStatusToString(highs.getModelStatus()), bl.Status(int(found.status[i]))
        value = highs.getInfo().objective_function_value + program.offset
        if status == "Optimal":
            wrong += sign * (float(found.bound[i]) - value) > 1e-7 * max(1.0, abs(value)) or own is bl.Status.INFEASIBLE
        wrong += status == "Infeasible" and own is bl.Status.OPTIMAL
    return int(wrong)


def gap(bins: int, jobs: int) -> LinearProgram:
    """The LP of a generalised assignment of class C (Chu and Beasley 1997)."""
    draw, n = np.random.default_rng(0), bins * jobs
    weight, cost = draw.integers(5, 26, (bins, jobs)), draw.integers(10, 51, (bins, jobs))
    column, (owner, job) = np.arange(n), np.divmod(np.arange(n), jobs)
    entries = np.concatenate([weight.ravel(), np.ones(n)]), (np.concatenate([owner, bins + job]), np.tile(column, 2))
    room = 0.8 * weight.sum(1) / bins
    below, above = np.concatenate([np.full(bins, -np.inf), np.ones(jobs)]), np.concatenate([room, np.ones(jobs)])
    matrix = csr_array(entries, shape=(bins + jobs, n))
    return LinearProgram(cost.ravel().astype(float), matrix, below, above, np.zeros(n), np.ones(n))


def assignment(size: int) -> LinearProgram:
    """The LP of an assignment with integer costs."""
    draw, n = np.random.default_rng(0), size**2
    column, (owner, job) = np.arange(n), np.divmod(np.arange(n), size)
    matrix = csr_array((np.ones(2 * n), (np.concatenate([owner, size + job]), np.tile(column, 2))), shape=(2 * size, n))
    return LinearProgram(draw.integers(1, 100, n).astype(float), matrix, *(np.ones(2 * size),) * 2, np.zeros(n), np.ones(n))

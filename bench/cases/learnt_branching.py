"""Nodes of exact searches with learnt branching, on the family that was trained on and on others."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import networkx as nx
import numpy as np
import torch

from bench.registry import Record, case
from blocklp.problems.learnt import train_branching
from blocklp.problems.learnt.families import BRANCHING, independent_set, sparse
from blocklp.problems.qpbo import Qubo, solve_qpbo_exactly
from blocklp.problems.qpbo.node_search import ReducedCosts, Rule, StrongBranching

LIMIT = 20.0


def glass(n: int, degree: int, seed: int) -> Qubo:
    """Spins on a random regular graph with normal couplings and fields."""
    draw = np.random.default_rng(seed)
    edges = np.array(nx.random_regular_graph(degree, n, seed=seed).edges)
    coupling, field = draw.normal(size=len(edges)), draw.normal(size=n)
    linear = 2 * field - 2 * np.bincount(edges.ravel(), np.repeat(coupling, 2), n)
    return Qubo.from_terms(linear, edges, 4 * coupling)


HELD_OUT: dict[str, Callable[[int], Qubo]] = {
    "BA-100": partial(independent_set, 100),
    "BA-150": partial(independent_set, 150),
    "ER-100, mean degree 6": partial(sparse, 100, 6),
    "ER-120, mean degree 6": partial(sparse, 120, 6),
    "ER-80, mean degree 10": partial(sparse, 80, 10),
    "spins, 90 nodes of degree 6": partial(glass, 90, 6),
}


@case(
    "learnt_branching",
    "Learnt branching: nodes to proof",
    "Sums over seeds 0 to 4 (training has others) of nodes and seconds of `solve_qpbo_exactly`, stopped after `--limit` "
    "seconds each, with scores learnt from BA-100 alone. `reduced costs` branches on `NodeBounds.scores`, `strong` on the "
    "gains of both children of every free variable, whose bounds are not counted as nodes; all three search by roof duality"
    " in the same way. `default` is the solver without a rule, which takes other bounds. `solved` says how many of the "
    "instances are proved; one that is not counts with the nodes and the time that it had. Other processes shared the "
    "machine. One thread; reductions, tabu search and the root count.",
    limit=LIMIT,
)
def run(quick: bool, limit: float = LIMIT) -> Iterator[Record]:
    torch.set_num_threads(1)
    began = time.process_time()
    learnt = train_branching(BRANCHING["ba"].draw, instances=6 if quick else 12, steps=200 if quick else 3000)
    print(f"trained in {time.process_time() - began:.0f} s", file=sys.stderr)
    rules: dict[str, Rule | None] = {"reduced costs": ReducedCosts(), "strong": StrongBranching(), "learnt": learnt, "default": None}
    for family in list(HELD_OUT)[: 1 if quick else None]:
        reference = 0
        for name, rule in rules.items():
            nodes = proved = 0
            seconds = 0.0
            for seed in range(1 if quick else 5):
                found = solve_qpbo_exactly(HELD_OUT[family](seed), time_limit=limit, branching=rule)
                nodes, seconds, proved = nodes + found.nodes, seconds + found.seconds, proved + found.proven
            reference = nodes if name == "reduced costs" else reference
            of = None if rule is None or not reference else nodes / reference
            row: Record = {
                "family": family,
                "rule": name,
                "nodes": nodes,
                "of reduced costs": of,
                "seconds": seconds,
                "solved": proved,
            }
            print(row, file=sys.stderr, flush=True)
            yield row

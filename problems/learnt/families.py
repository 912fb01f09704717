"""Families of instances that starts are trained on, and branching scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import networkx as nx
import numpy as np
import torch

import blocklp as bl
from blocklp.oracles import AtMostOne
from blocklp.problems.qpbo import Qubo
from blocklp.problems.qpbo.relaxation import roof_duality_model


@dataclass(frozen=True)
class Family:
    """Random instances of one kind.

    Attributes
    ----------
    title : str
        A line about them.
    training, target : callable
        Take a seed to a model: of a size to train on, and of the size that a start is for.
    rounds : int
        Rounds of a start, a quarter to a half of the passes that ADMM takes to a relative error of 1e-3.
    """

    title: str
    training: Callable[[int], bl.Model]
    target: Callable[[int], bl.Model]
    rounds: int


def independent_set(n: int, seed: int) -> Qubo:
    """Weighted independent sets of a Barabasi-Albert graph of connectivity 4, as in section 4.1.7.3 of the thesis.

    Weights are uniform in [0, 1], and an edge costs the larger weight of its ends.
    """
    return _independent_set(nx.barabasi_albert_graph(n, 4, seed=seed), seed)


def _independent_set(graph: nx.Graph, seed: int) -> Qubo:
    weights = np.random.default_rng(seed).random(graph.number_of_nodes())
    edges = np.array(graph.edges, dtype=np.int64)
    return Qubo.from_terms(-weights, edges, weights[edges].max(1))


def ising(side: int, seed: int) -> Qubo:
    """A square grid of spins with normal couplings and fields."""
    draw = np.random.default_rng(seed)
    number = np.arange(side * side).reshape(side, side)
    right, down = ((a.ravel(), b.ravel()) for a, b in ((number[:, :-1], number[:, 1:]), (number[:-1], number[1:])))
    edges = np.concatenate([np.stack(right, 1), np.stack(down, 1)])
    field, coupling = draw.normal(size=side * side), draw.normal(size=len(edges))
    # Spins are 2 y - 1; the constant is left out.
    linear = 2 * field - 2 * np.bincount(edges.ravel(), np.repeat(coupling, 2), side * side)
    return Qubo.from_terms(linear, edges, 4 * coupling)


def matching(n: int, degree: int, seed: int) -> bl.Model:
    """Heaviest matchings of a random bipartite graph, one block a node.

    Parameters
    ----------
    n : int
        Nodes of each side.
    degree : int
        Edges of each node of the first side, to as many nodes of the other.
    seed : int
        Of the graph and of its weights, which are uniform in [0.2, 1.2].

    Returns
    -------
    Model
        It maximises over variables ``x`` ``(n * degree,)``.
    """
    draw = np.random.default_rng(seed)
    ends = np.stack([draw.permutation(n)[:degree] for _ in range(n)]).ravel()
    m = bl.Model()
    x = m.variable("x", n * degree, lower=0, upper=1)
    m.add(AtMostOne(degree), x[np.arange(n * degree).reshape(n, degree)], name="left")
    counts = np.bincount(ends, minlength=n)
    for size in np.unique(counts[counts > 1]).tolist():
        mine = np.flatnonzero(counts == size)
        scope = np.argsort(ends, kind="stable")[np.isin(np.sort(ends, kind="stable"), mine)]
        m.add(AtMostOne(size), x[scope.reshape(-1, size)], name=f"right of {size}")
    m.maximize(torch.from_numpy(0.2 + draw.random(n * degree)) @ x)
    return m


FAMILIES = {
    "ba": Family(
        "independent sets of Barabasi-Albert graphs of 1000 nodes, roof duality",
        lambda seed: roof_duality_model(independent_set(300, seed)),
        lambda seed: roof_duality_model(independent_set(1000, seed)),
        34,
    ),
    "ising": Family(
        "spins on a grid of 32 x 32, roof duality",
        lambda seed: roof_duality_model(ising(16, seed)),
        lambda seed: roof_duality_model(ising(32, seed)),
        38,
    ),
    "matching": Family(
        "bipartite matchings of 2 x 400 nodes with 3200 edges",
        lambda seed: matching(200, 8, seed),  # a step costs what one on 40 nodes does, and learns from more of them
        lambda seed: matching(400, 8, seed),  # errors of small ones are spread more widely around their mean
        18,
    ),
}


@dataclass(frozen=True)
class BranchingFamily:
    """Random functions whose minimisation branches.

    Attributes
    ----------
    title : str
        A line about them.
    draw : callable
        Takes a seed to a function.
    """

    title: str
    draw: Callable[[int], Qubo]


def sparse(n: int, degree: int, seed: int) -> Qubo:
    """Weighted independent sets of a random graph of a mean degree.

    Parameters
    ----------
    n : int
        Nodes.
    degree : int
        Mean degree: the graph has ``n * degree // 2`` edges.
    seed : int
        Of the graph and of its weights, which are uniform in [0, 1].

    Returns
    -------
    Qubo
        Minus the weight of a set; an edge costs the larger weight of its ends.
    """
    graph = nx.gnm_random_graph(n, n * degree // 2, seed=seed)
    return _independent_set(graph, seed)


BRANCHING = {
    "ba": BranchingFamily("independent sets of Barabasi-Albert graphs of 100 nodes", lambda seed: independent_set(100, seed)),
    "er": BranchingFamily("independent sets of random graphs of 100 nodes and mean degree 6", lambda seed: sparse(100, 6, seed)),
}

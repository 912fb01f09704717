"""Families of block-bounded LPs beside roof duality, and their optima by HiGHS."""

from __future__ import annotations

import networkx as nx
import numpy as np

import blocklp as bl
from blocklp.oracles import Edge, Knapsack, Pairwise, Polytope, Simplex, Triangle
from blocklp.problems.mis import WeightedGraph, clique_model


def cliques(seed: int, n: int = 150) -> bl.Model:
    """Weighted independent sets of a random graph, one block a clique of an edge cover."""
    graph = nx.gnp_random_graph(n, 0.3, seed=seed)
    return clique_model(WeightedGraph(np.random.default_rng(seed).random(n), np.array(graph.edges)))


def assignment(seed: int, agents: int = 8, jobs: int = 60) -> bl.Model:
    """Generalised assignment: a knapsack for each agent, one agent for each job."""
    draw = np.random.default_rng(seed)
    m = bl.Model()
    x = m.variable("x", (agents, jobs), lower=0, upper=1)
    weights = draw.uniform(0.2, 1, (agents, jobs))
    m.add(Knapsack(weights, weights.sum(1) * 0.8 / agents), [x[:, j] for j in range(jobs)])
    m.add(Simplex(agents), [x[i] for i in range(agents)])
    m.minimize((draw.random((agents, jobs)) * x).sum())
    return m


def grid(seed: int, side: int = 20, labels: int = 4) -> bl.Model:
    """A Markov random field on a grid with normal costs: the local polytope."""
    draw = np.random.default_rng(seed)
    edges = np.array(nx.convert_node_labels_to_integers(nx.grid_2d_graph(side, side)).edges)
    m = bl.Model()
    x = m.variable("x", (side * side, labels), lower=0, upper=1)
    z = m.variable("z", (len(edges), labels**2), lower=0, upper=1)
    ends = [x[edges[:, end], k] for end in (0, 1) for k in range(labels)]
    m.add(Pairwise(labels, labels), [*ends, *(z[:, k] for k in range(labels**2))])
    m.minimize((draw.normal(size=(side * side, labels)) * x).sum() + (draw.normal(size=(len(edges), labels**2)) * z).sum())
    return m


def ring(draw: np.random.Generator, n: int = 30) -> bl.Model:
    """Two instances of edges around a ring: blocks of one type share variables, and have one of their own."""
    ends = np.array([(i, (i + step) % n) for i in range(n) for step in (1, 4)])
    m = bl.Model(2)
    y, z = m.variable("y", n, lower=0, upper=1, grid=0.5), m.variable("z", len(ends), lower=0, upper=1)
    m.add(Edge(), [y[ends[:, 0]], y[ends[:, 1]], z])
    m.minimize((draw.normal(size=(2, n)) * y).sum() + (draw.normal(size=(2, len(ends))) * z).sum())
    return m


def triangles(seed: int, n: int = 40) -> bl.Model:
    """A QUBO with normal costs, an edge block for each pair and a block for each triangle."""
    draw = np.random.default_rng(seed)
    graph = nx.gnp_random_graph(n, 0.3, seed=seed)
    number = {tuple(sorted(e)): k for k, e in enumerate(graph.edges)}
    pairs = np.array(list(number))
    found = [t for t in nx.enumerate_all_cliques(graph) if len(t) == 3]
    ends = np.array([sorted(t) for t in found])
    products = np.array([[number[a, b], number[a, c], number[b, c]] for a, b, c in ends.tolist()])
    m = bl.Model()
    y, z = m.variable("y", n, lower=0, upper=1), m.variable("z", len(pairs), lower=0, upper=1)
    m.add(Edge(), [y[pairs[:, 0]], y[pairs[:, 1]], z])
    m.add(Triangle(), [*(y[ends[:, k]] for k in range(3)), *(z[products[:, k]] for k in range(3))])
    m.minimize(draw.normal(size=n) @ y + draw.normal(size=len(pairs)) @ z)
    return m


def polytopes(seed: int, dim: int = 4, blocks: int = 200, variables: int = 400) -> bl.Model:
    """A sparse random LP of small polytopes with four rows each."""
    draw = np.random.default_rng(seed)
    matrix, inside = draw.normal(size=(blocks, 4, dim)), draw.random(variables)
    scope = np.stack([draw.permutation(variables)[:dim] for _ in range(blocks)])
    above = np.einsum("brd,bd->br", matrix, inside[scope]) + draw.random((blocks, 4)) * 0.3
    m = bl.Model()
    x = m.variable("x", variables, lower=0, upper=1)
    box = np.zeros((blocks, dim)), np.ones((blocks, dim))
    m.add(Polytope(matrix, np.full((blocks, 4), -np.inf), above, *box), x[scope])
    m.minimize(draw.normal(size=variables) @ x)
    return m


FAMILIES = {
    "MIS-150, cliques": cliques,
    "assignment 8 x 60": assignment,
    "MRF 20 x 20, 4 labels": grid,
    "QUBO-40 with triangles": triangles,
    "polytopes in 4 variables": polytopes,
    "polytopes in 6 variables": lambda seed: polytopes(seed, 6, 130),
}

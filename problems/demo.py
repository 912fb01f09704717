"""A tour on real data that ships with networkx: what is bounded, what is certified, and when a bound is weak."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import torch
from rich.console import Console

import blocklp as bl
from blocklp.problems.mis.instance import WeightedGraph
from blocklp.problems.mis.relaxation import CliqueBlocks, clique_model, solve_mis
from blocklp.problems.qpbo.instance import Qubo
from blocklp.problems.qpbo.relaxation import roof_duality_model, solve_qpbo
from blocklp.problems.report import Reference, Row, show
from blocklp.progress import Progress
from blocklp.reference import reference


def demo(console: Console) -> list[Row]:
    """Solve the tour's problems and explain the results on ``console``."""
    networks = {
        "karate club": nx.karate_club_graph(),
        "Les Miserables": nx.les_miserables_graph(),
        "southern women": nx.davis_southern_women_graph(),
        "Florentine families": nx.florentine_families_graph(),
    }
    split = karate_split(networks["karate club"])
    with one_thread(), Progress() as progress:
        quadratic = _qpbo([split, *(max_cut(name, graph) for name, graph in networks.items())], progress)
        graphs = [WeightedGraph.from_networkx(nx.Graph(graph, name=name), weight=None) for name, graph in networks.items()]
        edges = _mis(graphs, "edges", progress)
        cliques = _mis(graphs, "cliques", progress)
    agree = _agreement(networks["karate club"], quadratic[0].labelling[2])
    tight = [row.file for row in quadratic if row.found.gap <= 1e-4]
    closed = [sum(row.found.gap <= 1e-4 for row in rows) for rows in (edges, cliques)]

    show(quadratic, console, "Quadratic pseudo-boolean functions, minimised: roof duality, one batch")
    console.print(
        f"[bold]{split.name}[/]: two leaders are put on two sides and every tie between the sides costs its weight. "
        f"Such attractive functions have tight bounds; {agree} of {split.n} members land in the club that they really joined.\n"
        f"[bold]max-cut[/]: minus the weight of the cut. The bound is tight where the graph is bipartite and weak elsewhere: "
        f"a limit of this LP, which HiGHS meets too.\n"
        f"Proved optimal within 0.01 %: {', '.join(tight)}.\n"
    )
    show(edges, console, "Largest independent sets, maximised: one block a pair, one batch")
    show(cliques, console, "The same with one block a clique: stronger bounds")
    console.print(
        f"Proved largest within 0.01 %: {closed[0]} of {len(graphs)} sets by pairs, {closed[1]} of {len(graphs)} by cliques.\n\n"
        "[bold]bound[/] is certified: no labelling is better (smaller, or larger where we maximise), whatever the solver did. "
        "[bold]gap[/] is how far the labelling can be from the best one; [bold]LP gap[/] how far the bound can be from the "
        "LP's optimum, which HiGHS finds independently. [bold]fixed[/] counts labels proved to be in an optimal labelling.\n"
        "Next: [bold]blocklp qpbo FILE[/], [bold]blocklp mis FILE[/], [bold]blocklp --help[/].",
        highlight=False,
    )
    return [*quadratic, *edges, *cliques]


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: instances this small gain nothing from more, and lose much on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def karate_split(graph: Any) -> Qubo:
    """State the split of the karate club around its instructor (node 0) and its officer (node 33) as a minimum cut."""
    nodes, edges, weights = _ties(graph)
    cut = Qubo.max_cut(nodes, edges, -weights)
    # More than all ties together, so that the two leaders never move.
    pull = 1.0 + weights.sum()
    linear = cut.linear.copy()
    linear[0] += pull
    linear[nodes - 1] -= pull
    return replace(cut, linear=linear, offset=pull, name="karate club split")


def max_cut(name: str, graph: Any) -> Qubo:
    """Max-cut of a network with its weights, or 1 for every tie."""
    nodes, edges, weights = _ties(graph)
    return Qubo.max_cut(nodes, edges, weights, name=f"max-cut, {name}")


def _ties(graph: Any) -> tuple[int, np.ndarray, np.ndarray]:
    numbered = nx.convert_node_labels_to_integers(graph)
    edges = np.array(numbered.edges, dtype=np.int64)
    weights = np.array([data.get("weight", 1.0) for _, _, data in numbered.edges(data=True)])
    return len(numbered), edges, weights


def _agreement(graph: Any, labels: list[int]) -> int:
    officer = [graph.nodes[node]["club"] == "Officer" for node in graph.nodes]
    return sum(bool(label) == side for label, side in zip(labels, officer, strict=True))


def _qpbo(qubos: list[Qubo], progress: Progress) -> list[Row]:
    solutions = solve_qpbo(qubos, callback=progress)
    return [
        Row(qubo.name, qubo.n, len(qubo.edges), found, reference=compare(roof_duality_model(qubo)))
        for qubo, found in zip(qubos, solutions, strict=True)
    ]


def _mis(graphs: list[WeightedGraph], blocks: CliqueBlocks, progress: Progress) -> list[Row]:
    solutions = solve_mis(graphs, blocks, callback=progress)
    return [
        Row(graph.name, graph.n, len(graph.edges), found, reference=compare(clique_model(graph, blocks)))
        for graph, found in zip(graphs, solutions, strict=True)
    ]


def compare(model: bl.Model, solver: str = "highs") -> Reference:
    """Solve the LP of a model of one instance by another solver."""
    result = reference(model, solver)
    return Reference(solver, float(result.objective[0]), result.seconds)

"""A tour on real data that ships with networkx and this package: what is bounded, what is proved, when a bound is weak."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from blocklp.errors import install
from blocklp.problems.command_line.reference import compare
from blocklp.problems.command_line.report import RelaxationRow, show
from blocklp.problems.mis.instance import WeightedGraph
from blocklp.problems.mis.relaxation import CliqueBlocks, clique_model, solve_mis
from blocklp.problems.qpbo.instance import Qubo
from blocklp.problems.qpbo.relaxation import roof_duality_model, solve_qpbo
from blocklp.progress import ElapsedTime, Progress

if TYPE_CHECKING:
    from blocklp.problems.verification import Network, Verdict


def demo(console: Console) -> list[RelaxationRow]:
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
        "LP's optimum, which HiGHS finds independently. [bold]fixed[/] counts labels proved to be in an optimal labelling.\n",
        highlight=False,
    )
    show_digits(read_digits(), console)
    show_picture(console)
    console.print(
        "Next: [bold]blocklp qpbo FILE[/], [bold]blocklp mis FILE[/], [bold]blocklp verify QUERY --network FILE[/], "
        "[bold]blocklp densecrf IMAGE --scribbles PNG[/], [bold]blocklp --help[/].",
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


def _qpbo(qubos: list[Qubo], progress: Progress) -> list[RelaxationRow]:
    solutions = solve_qpbo(qubos, callback=progress)
    return [
        RelaxationRow(qubo.name, qubo.n, len(qubo.edges), found, reference=compare(roof_duality_model(qubo)))
        for qubo, found in zip(qubos, solutions, strict=True)
    ]


def _mis(graphs: list[WeightedGraph], blocks: CliqueBlocks, progress: Progress) -> list[RelaxationRow]:
    solutions = solve_mis(graphs, blocks, callback=progress)
    return [
        RelaxationRow(graph.name, graph.n, len(graph.edges), found, reference=compare(clique_model(graph, blocks)))
        for graph, found in zip(graphs, solutions, strict=True)
    ]


BOUNDS = {"interval": "interval", "crown": "CROWN", "slopes": "slopes"}
"""Methods of the tour, and what they are called there."""

LABELS, LEVELS = (2, 3, 5, 8), (1, 2)
"""Digits that are shown, and by how many sixteenths each pixel may change."""
PATIENCE = 1.0
"""Seconds for a verdict."""


@dataclass(frozen=True)
class DigitRow:
    """What is known about one digit within one radius.

    Attributes
    ----------
    label : int
        What the digit is.
    levels : int
        Radius in sixteenths, the steps between greys.
    margin : float
        Output of the right class minus the largest other one, at the digit itself.
    bounds : dict
        Lower bounds of the margin over the whole box, by method.
    verdict : Verdict
        Whether every digit in the box is read right.
    """

    label: int
    levels: int
    margin: float
    bounds: dict[str, float]
    verdict: Verdict

    @property
    def answer(self) -> str:
        """The verdict in words, with a colour."""
        words = {"unsat": "[green]verified[/]", "sat": "[red]counterexample[/]"}
        return words.get(self.verdict.status, "[yellow]unknown[/]")


def read_digits() -> list[DigitRow]:
    """Bound and verify how a small network reads digits whose pixels may each change by so many sixteenths."""
    # Reading networks takes modules that the other commands can do without.
    from blocklp.problems.verification import Property, digits, network_bounds, verify

    network, images, _ = digits.load()
    rows = []
    with one_thread():
        for radius in LEVELS:
            for label in LABELS:
                image = images[label]
                low, high = ((image + side * radius * digits.GREY).clamp(0, 1) for side in (-1, 1))
                margins = margin_network(network, label)
                bounds = {name: float(network_bounds(margins, low, high, method=name).output.lower.min()) for name in BOUNDS}
                prop = Property.robustness(low.flatten(), high.flatten(), label, network.outputs)
                verdict = verify(network, prop, timeout=PATIENCE)
                rows.append(DigitRow(label, radius, float(margins(image[None]).min()), bounds, verdict))
    return rows


def margin_network(network: Network, label: int) -> Network:
    """Return the network whose outputs are that of one class minus those of the others."""
    from blocklp.problems.verification import Builder

    builder = Builder(network.input_shape, network.name)
    builder.ops = list(network.ops)
    one = torch.eye(network.outputs, dtype=torch.float64)
    builder.linear(len(network.ops) - 1, (one[label] - one)[torch.arange(network.outputs) != label], name="margins")
    return builder.build()


def show_digits(rows: list[DigitRow], console: Console) -> None:
    """Print what :func:`read_digits` found, and what it means."""
    title = (
        "A network of 800 ReLUs reads digits of 8 x 8 pixels, white 0 to black 1:\n"
        "does it read them right whatever each pixel does within the radius?"
    )
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, collapse_padding=True)
    for heading in ("digit", "radius", "margin", *BOUNDS.values(), "nodes", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in rows:
        bounds = (f"{bound:.2f}" for bound in row.bounds.values())
        numbers = (f"{row.margin:.2f}", *bounds, str(row.verdict.nodes), f"{row.verdict.seconds:.2f}")
        table.add_row(str(row.label), f"{row.levels}/16", *numbers, row.answer)
    console.print(table)
    verified = sum(row.verdict.status == "unsat" for row in rows)
    wrong = [f"{row.label} read as {row.verdict.y.argmax()}" for row in rows if row.verdict.y is not None]
    refuted = f"{len(wrong)} refuted ({', '.join(wrong)})" if wrong else "none refuted"
    console.print(
        "[bold]margin[/]: output of the right class minus the largest other one, for the digit as it is. "
        "[bold]interval[/], [bold]CROWN[/], [bold]slopes[/]: lower bounds of the margin over the whole box, each by more work than "
        "the one before; above zero is a proof. Where bounds are not enough, an attack looks for a digit that is read wrong, and "
        f"branch and bound ([bold]nodes[/]) for a proof, here for {PATIENCE:g} s at most: {verified} of {len(rows)} verified, "
        f"{refuted}.\n",
        highlight=False,
    )


def show_picture(console: Console) -> None:
    """Cut a picture out by a dense CRF, if its optional packages are there."""
    if importlib.util.find_spec("skimage") is None:
        console.print(Text(f"A picture cut out by a dense CRF is left out; it needs scikit-image: {install('densecrf')}.\n"))
        return
    from blocklp.problems.densecrf.demo import coffee_crf, segment_coffee, show_coffee

    with one_thread(), ElapsedTime("cutting a picture out; the first time on a machine loops are compiled, for some twenty seconds"):
        crf = coffee_crf()
        results = segment_coffee(crf)
    show_coffee(crf, results, console)

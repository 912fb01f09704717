"""QUBOs, max-cut and independent-set graphs and Markov random fields, and what is known of them."""

from __future__ import annotations

from bench.data import data
from blocklp.problems.datasets import data_sets
from blocklp.problems.mis import WeightedGraph, read_graph
from blocklp.problems.mrf import Mrf, read_mrf
from blocklp.problems.qpbo import Qubo, read_qubo

Instance = Qubo | WeightedGraph | Mrf


def read(name: str) -> Instance:
    """Read an instance by its path in the data set.

    Raises
    ------
    FileNotFoundError
        It is not there.
    """
    path = data(f"qpbo/{name}")
    if name.startswith(("mrf/", "toulbar2/")):
        return read_mrf(path, log=name.startswith("mrf/tiny/"))
    return read_graph(path) if name.startswith("mis/") else read_qubo(path, "maxcut" if name.startswith("maxcut/") else None)


def known(name: str) -> float | None:
    """Least energy that is known: of cuts and sets with a minus."""
    return data_sets()["qpbo"].energies.get(name)

"""What functions about discrete problems refuse first: graphs of networkx, matrices and whatever else is no instance."""

from __future__ import annotations

from collections.abc import Sequence
from types import UnionType
from typing import get_args

from blocklp.errors import ModelError

MADE = {
    "Qubo": "a Qubo, as read_qubo(path), Qubo.from_matrix(matrix), from_networkx(graph), from_bqm(bqm) or from_terms(...) makes it",
    "Mrf": "an Mrf, as read_mrf(path), Mrf(counts, factors), Mrf.from_arrays(...) or from_networkx(graph) makes it",
    "WeightedGraph": "a WeightedGraph, as read_graph(path), WeightedGraph.from_networkx(graph) or from_edges(...) makes it",
}
"""How an instance of each type is made."""


def check_instance(given: object, kind: type | UnionType, name: str = "the instance") -> None:
    """Refuse what is no instance.

    Parameters
    ----------
    given : object
        Given by the caller.
    kind : type
        Qubo, Mrf or WeightedGraph, or a union of them.
    name : str
        What it is called in messages.

    Raises
    ------
    ModelError
        If it is none.
    """
    if not isinstance(given, kind):
        from blocklp.options import of_type  # it imports torch, which checking a proof does without

        of_type(given, kind, name, "; or ".join(MADE[own.__name__] for own in get_args(kind) or (kind,)), ModelError)


def check_instances(given: object, kind: type) -> None:
    """Refuse what is neither an instance nor a sequence of instances; as :func:`check_instance`."""
    if isinstance(given, Sequence) and not isinstance(given, str):
        for number, own in enumerate(given):
            check_instance(own, kind, f"instance {number}")
    else:
        check_instance(given, kind)

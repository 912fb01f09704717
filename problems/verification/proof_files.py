"""Files of proofs about networks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import FormatError
from blocklp.problems.files import MAX_BYTES
from blocklp.problems.proof_lines import read_lines, write_lines
from blocklp.problems.verification.network import Network
from blocklp.problems.verification.operation_matrices import array_of
from blocklp.problems.verification.properties import Property

FORMAT, VERSION = "blocklp network proof", 1
SAID = "no proof about a network; blocklp verify --proof writes them"


def digests(network: Network, prop: Property) -> dict[str, str]:
    """Return SHA-256 digests of what a proof is about: operations with their constants, and clauses as they are stated."""
    of_network, of_query = hashlib.sha256(), hashlib.sha256()
    for op in network.ops:
        of_network.update(type(op).__name__.encode())
        for value in (getattr(op, part.name) for part in fields(op) if part.name != "name"):
            parts = (value.shape, array_of(value).tobytes()) if isinstance(value, Tensor) else (value,)
            of_network.update(b"".join(part if isinstance(part, bytes) else repr(part).encode() for part in parts))
    for clause in prop.clauses:
        rows = [(sorted((j, str(c)) for j, c in row.terms.items()), str(row.right), row.strict) for row in clause.rows()]
        of_query.update(b"".join(end.tobytes() for end in (clause.lower, clause.upper, *clause.box)) + repr(rows).encode())
    return {"network": of_network.hexdigest(), "query": of_query.hexdigest()}


def write_proof(path: str | Path, network: Network, prop: Property, steps: Iterable[Mapping[str, Any]]) -> int:
    """Write a proof; the same proof is always the same bytes.

    Parameters
    ----------
    path : path-like
        The file.
    network, prop : Network and Property
        What it is about.
    steps : iterable of mapping
        Its steps, such as those of ``verdict.proof``.

    Returns
    -------
    int
        Bytes of the file.

    Raises
    ------
    OSError
        It cannot be written.
    """
    return write_lines(path, {"format": FORMAT, "version": VERSION} | digests(network, prop), steps)


def read_proof(
    path: str | Path, network: Network, prop: Property, max_bytes: int = MAX_BYTES, deadline: Deadline | None = None
) -> Iterator[Any]:
    """Return the steps of a proof, for :func:`blocklp.problems.verification.proof.check_proof`.

    Parameters
    ----------
    path : path-like
        The file, compressed or not.
    network, prop : Network and Property
        What it must be about.
    max_bytes : int
        Most bytes that it may hold once decompressed.
    deadline : Deadline, optional
        When the steps end in a ``TimeLimitError``.

    Raises
    ------
    FormatError
        It is damaged, no proof, of another version, or about something else.
    OSError
        It cannot be read.
    """
    header, steps = read_lines(path, (FORMAT, VERSION), SAID, max_bytes=max_bytes, deadline=deadline)
    for name, digest in digests(network, prop).items():
        if header.get(name) != digest:
            raise FormatError(f"{path}: the proof is about another {name}; give the one that it was written for")
    return steps

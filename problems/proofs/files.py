"""Files of proofs of minima."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from blocklp.deadline import Deadline
from blocklp.errors import FormatError
from blocklp.problems.discrete.given import check_instance
from blocklp.problems.files import MAX_BYTES
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.proof_lines import read_lines, write_lines
from blocklp.problems.proofs.function import Discrete
from blocklp.problems.proofs.steps import Step, from_json, to_json

FORMAT, VERSION = "blocklp minimum proof", 1
SAID = "no proof of a minimum; blocklp qpbo, mis and mrf write them by --exact --proof FILE"


def digest(problem: Discrete) -> str:
    """Return the SHA-256 digest of what a proof is about: kind, coefficients and hard constraints, but no names.

    Raises
    ------
    ModelError
        The problem is none.
    """
    check_instance(problem, Discrete)
    if isinstance(problem, Mrf):
        parts: list[Any] = [problem.counts, np.array([problem.constant, problem.top])]
        for scope, table in problem.factors:
            parts += [np.array(scope), table]
    else:
        numbers = ("weights",) if hasattr(problem, "weights") else ("linear", "quadratic", "offset")
        parts = [problem.edges, *(np.asarray(getattr(problem, name), dtype=np.float64) for name in numbers)]
    found = hashlib.sha256(type(problem).__name__.encode())
    for part in parts:
        found.update(f"{part.dtype.str}{part.shape}".encode() + np.ascontiguousarray(part).tobytes())
    return found.hexdigest()


def write_proof(path: str | Path, problem: Discrete, labels: ArrayLike | None, proof: Iterable[Step]) -> int:
    """Write labels and the proof that no others are better; the same proof is always the same bytes.

    Parameters
    ----------
    path : path-like
        The file.
    problem : Qubo, Mrf or WeightedGraph
        What the proof is about; the file has a digest of it.
    labels : array_like of int, shape (n,), or None
        The labels; None where there are none.
    proof : iterable of Branch, Split, Eliminate, Decomposition or Semidefinite
        Its steps.

    Returns
    -------
    int
        Bytes of the file.

    Raises
    ------
    OSError
        It cannot be written.
    """
    given = None if labels is None else np.asarray(labels).astype(np.int64).tolist()
    header = {"format": FORMAT, "version": VERSION, "kind": type(problem).__name__, "problem": digest(problem), "labels": given}
    return write_lines(path, header, map(to_json, proof))


def read_proof(
    path: str | Path, problem: Discrete, max_bytes: int = MAX_BYTES, deadline: Deadline | None = None
) -> tuple[list[int] | None, Iterator[Step]]:
    """Return the labels and the steps of a proof, for :func:`blocklp.problems.proofs.check_proof`.

    Parameters
    ----------
    path : path-like
        The file, compressed or not.
    problem : Qubo, Mrf or WeightedGraph
        What it must be about.
    max_bytes : int
        Most bytes that it may hold once decompressed.
    deadline : Deadline, optional
        When the steps end in a ``TimeLimitError``.

    Returns
    -------
    labels : list of int or None
        What is claimed to be a minimiser; None if there is said to be none.
    steps : iterator
        The steps.

    Raises
    ------
    FormatError
        It is damaged, no proof, of another version, or about something else.
    OSError
        It cannot be read.
    """
    header, items = read_lines(path, (FORMAT, VERSION), SAID, max_bytes=max_bytes, deadline=deadline)
    if header.get("problem") != digest(problem):
        raise FormatError(f"{path}: the proof is about another problem; give the one that it was written for")
    labels = header.get("labels")
    if labels is not None and (not isinstance(labels, list) or not all(type(label) is int for label in labels)):
        raise FormatError(f"{path}: the labels of a proof must be integers")
    return labels, map(from_json, items)

"""What the child process does with a file: read it, and say what was read in plain numbers."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

LABELLINGS = 600
"""Most labellings whose energies are listed."""


def warm() -> None:
    """Import all readers, and what they import when they first read."""
    import onnx  # noqa: F401
    import onnxruntime  # noqa: F401
    from PIL import Image

    from blocklp.problems import densecrf, mis, mrf, qpbo, verification  # noqa: F401

    Image.init()


def qubo(path: str, format: str | None = None) -> Any:
    """Number of variables and all energies."""
    from blocklp.problems.qpbo import read_qubo

    found = read_qubo(path, format)  # type: ignore[arg-type]
    if 2**found.n > LABELLINGS:
        return found.n, None
    return found.n, [float(found.energy(np.array(y))) for y in itertools.product((0, 1), repeat=found.n)]


def graph(path: str) -> Any:
    """Weights, edges and what is asked for."""
    from blocklp.problems.mis import read_graph

    found = read_graph(path)
    return found.weights.tolist(), found.edges.tolist(), found.objective


def field(path: str, format: str | None = None) -> Any:
    """Numbers of labels and all energies."""
    from blocklp.problems.mrf import read_mrf

    found = read_mrf(path, format)  # type: ignore[arg-type]
    counts = [int(c) for c in found.counts]
    if np.prod(np.array(counts, dtype=float)) > LABELLINGS:
        return counts, None
    return counts, [float(found.energy(np.array(x))) for x in itertools.product(*map(range, counts))]


def exact_field(path: str) -> Any:
    """Read and minimise: energy, bound, whether it is proved, labels."""
    from blocklp.problems.mrf import read_mrf, solve_mrf_exactly

    found = solve_mrf_exactly(read_mrf(path), time_limit=10.0)
    return found.energy, found.bound, found.proven, found.labels.tolist()


def evidence(path: str) -> Any:
    """Observed variables and their labels."""
    from blocklp.problems.mrf import read_evidence

    return read_evidence(path)


def network(path: str) -> Any:
    """Numbers of inputs and outputs of a network."""
    from blocklp.problems.verification import read_onnx

    found = read_onnx(path)
    return found.inputs, found.outputs


def query(path: str) -> Any:
    """Boxes and rows of all clauses."""
    from blocklp.problems.verification import read_property

    found = read_property(path)
    return [[getattr(c, k).tolist() for k in ("lower", "upper", "matrix", "right")] for c in found.clauses]


def unary(path: str, height: int, width: int) -> Any:
    """Shape of unaries."""
    from blocklp.problems.densecrf.readers import read_unary

    return tuple(read_unary(Path(path), (height, width)).shape)


def image(path: str) -> Any:
    """Shape of a picture."""
    from blocklp.problems.densecrf.readers import read_image

    return tuple(read_image(Path(path)).shape)


def scribbles(path: str, height: int, width: int) -> Any:
    """Labels of scribbles."""
    from blocklp.problems.densecrf.readers import read_scribbles

    return read_scribbles(Path(path), (height, width))[0].tolist()

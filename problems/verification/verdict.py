"""What a search for counterexamples says: verdicts, what they claim, and events under way."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from blocklp.tables import SHOWN, Table, Tabled

if TYPE_CHECKING:
    from blocklp.problems.verification.proving import Proof
    from blocklp.search.best_first import SearchEvent

CLAIMS = {
    "unsat": "No counterexample exists: a statement on the real-valued function of the network's weights as the file gives them, "
    "over the whole stated box, decimals rounded outwards. It rests on bounds evaluated in float64 with all rounding charged.",
    "sat": "The float32 point lies in the box exactly as the query's decimals state it, and its outputs, as onnxruntime computes "
    "them on the CPU (for a file; otherwise the network in float32), satisfy the query's rows exactly, in rational arithmetic.",
    "unknown": "Nothing is claimed.",
    "timed-out": "Nothing is claimed.",
}
"""What a verdict claims, by its status."""

FLOAT32_CLAIM = (
    "No counterexample exists in float32: for no float32 point of the box do the outputs satisfy the query's rows, if each "
    "operation of the file is rounded to nearest on its own and in the order of the file, whatever the order of the sums within "
    "it, with or without fused products and subnormal numbers, and constants that the file computes have the values that "
    "onnx.reference gives. Decimals are the nearest float32 numbers. It rests on bounds evaluated in float64 with all rounding "
    "charged, theirs and that of float32."
)
"""The claim of "unsat" for a network in float32."""


@dataclass(frozen=True)
class VerificationEvent:
    """The progress that a callback sees: the phase, seconds since the start, and the search, where one is running."""

    phase: str
    seconds: float
    search: SearchEvent | None = None


@dataclass(frozen=True, repr=False)
class Verdict(Tabled):
    """The answer to a property.

    Attributes
    ----------
    status : str
        "sat" (there is a counterexample), "unsat" (there is none: the property holds), "unknown" or "timed-out".
    x, y : ndarray or None
        The counterexample, ``(inputs,)`` float32, and its outputs.
    bound : float
        What the rows of every clause are proved to miss their right-hand sides by, the least over the whole query: above zero with
        "unsat" (infinite if no clause leaves an input), at most zero where clauses are open.  Minus infinity where nothing is known
        of a clause, and with "sat".
    nodes : int
        Nodes of the search.
    seconds : float
        Time spent.
    phases : dict
        Seconds by phase.
    reason : str
        One sentence.
    float32 : bool
        Whether "unsat" is claimed of an evaluation in float32.
    proof : Proof or None
        Of "sat" and "unsat", if it was asked for.
    """

    status: str
    x: NDArray[np.float32] | None
    y: NDArray[Any] | None
    bound: float
    nodes: int
    seconds: float
    phases: dict[str, float]
    reason: str
    float32: bool = False
    proof: Proof | None = None

    def _tables(self) -> tuple[str, list[Table]]:
        title = f"Verdict: {self.status}. {self.reason}"
        numbers = (self.status, "-" if self.bound == -math.inf else f"{self.bound:.9g}", str(self.nodes), f"{self.seconds:.3g}")
        tables = [Table(("status", "bound", "nodes", "seconds"), [numbers], 1)]
        if self.x is not None and self.y is not None:
            for name, values in (("input", self.x), ("output", self.y)):
                rows = [(str(i), f"{value:.9g}") for i, value in enumerate(values.reshape(-1)[:SHOWN].tolist())]
                tables.append(Table((name, "counterexample"), rows, values.size))
        return title, tables

    @property
    def claim(self) -> str:
        """The claim of the status, a sentence."""
        return FLOAT32_CLAIM if self.status == "unsat" and self.float32 else CLAIMS[self.status]


@dataclass
class PhaseTimer:
    """Adds the time of a with-block to a phase."""

    phases: dict[str, float]
    name: str

    def __enter__(self) -> None:
        self.began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.phases[self.name] = self.phases.get(self.name, 0.0) + time.perf_counter() - self.began

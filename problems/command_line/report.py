"""Results of the command line, as a table and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import blocklp as bl
from blocklp.problems.command_line.reference import Reference
from blocklp.problems.discrete.exact import ExactResult
from blocklp.problems.mis.relaxation import MisSolution
from blocklp.problems.mrf.solve import MrfSolution
from blocklp.problems.printing import json_number, json_status, print_table, table_width
from blocklp.problems.qpbo.relaxation import QpboSolution
from blocklp.tables import plural

if TYPE_CHECKING:
    from blocklp.problems.proofs.check import ProofVerdict

COMPLEMENTED = "a clique problem, solved as independent sets of the complement graph; pairs are those of the complement"
"""The note on cliques."""

Sought: TypeAlias = Literal["labelling", "independent set", "clique"]
"""What a proof of a minimum is about, in sentences."""

STYLES = {bl.Status.OPTIMAL: "green", bl.Status.NUMERICAL_ERROR: "red", bl.Status.INTERRUPTED: "red"}
SPARE = ("its seconds", "pairs", "n", "difference", "passes", "LP gap", "seconds")
"""Columns that a narrow terminal does without, first the least wanted."""


@dataclass(frozen=True)
class RelaxationRow:
    """One instance and all that is known about it.

    Attributes
    ----------
    file : str
        The file, or the name of an instance without one.
    n, pairs : int
        Numbers of variables and of coupled pairs (nodes and edges; of a Markov random field, factors of two variables or more).
    found : QpboSolution, MisSolution or MrfSolution
        Bound, labelling and proofs.
    note : str
        A remark for the reader, or empty.
    reference : Reference, optional
        The LP's optimum by another solver.
    """

    file: str
    n: int
    pairs: int
    found: QpboSolution | MisSolution | MrfSolution
    note: str = ""
    reference: Reference | None = None

    @property
    def relaxation(self) -> bl.Solution:
        """The LP's solution."""
        return self.found.relaxation

    @property
    def labelling(self) -> tuple[str, float, list[int]]:
        """Name of the value of the labelling, the value, and the labels."""
        if isinstance(self.found, MisSolution):
            return "weight", self.found.weight, self.found.members.int().tolist()
        return "energy", self.found.energy, self.found.labels.tolist()

    @property
    def proved(self) -> tuple[int, int] | None:
        """Numbers of labels in some and in all optimal labellings, where they were asked for."""
        if isinstance(self.found, MrfSolution):
            return None
        persistency = self.found.persistency
        return int((persistency.weak >= 0).sum()), int((persistency.strong >= 0).sum())


def show(rows: Sequence[RelaxationRow], console: Console, title: str = "") -> None:
    """Print the table for people: one line an instance.

    A terminal that is too narrow gets fewer columns; a file or a pipe gets all of them.

    Parameters
    ----------
    rows : sequence of RelaxationRow
        The instances.
    console : Console
        Where to print.
    title : str
        Of the table; none by default.
    """
    columns = _columns(rows)
    longest = max(20, console.width // 3) if console.is_terminal else None
    if console.is_terminal:
        for heading in SPARE:
            if table_width(_table(columns, longest)) > console.width:
                columns.pop(heading, None)
    whole = _table(columns, longest)
    whole.title = title or None
    print_table(whole, console)


def _columns(rows: Sequence[RelaxationRow]) -> dict[str, list[str]]:
    """Cells by heading."""
    lps = [row.relaxation for row in rows]
    columns = {
        "instance": [escape(row.file) for row in rows],
        "n": [str(row.n) for row in rows],
        "pairs": [str(row.pairs) for row in rows],
        "bound": [f"{float(lp.bound[0]):.8g}" for lp in lps],
        rows[0].labelling[0]: [f"{row.labelling[1]:.8g}" for row in rows],
        "gap": [f"{100 * row.found.gap:.2f} %" for row in rows],
        "LP gap": [f"{float(lp.gap[0]):.1e}" for lp in lps],
        "fixed": [str(row.proved[0]) for row in rows if row.proved is not None],
        "passes": [str(int(lp.passes[0])) for lp in lps],
        "seconds": [f"{float(lp.seconds[0]):.2f}" for lp in lps],
    }
    if not columns["fixed"]:
        del columns["fixed"]
    if rows[0].reference is not None:
        compared = [row.reference for row in rows if row.reference is not None]
        columns |= {
            f"{compared[0].solver} LP": [by.status if math.isnan(by.value) else f"{by.value:.8g}" for by in compared],
            "difference": ["" if math.isnan(_difference(row)) else f"{_difference(row):+.1e}" for row in rows],
            "its seconds": [f"{by.seconds:.2f}" for by in compared],
        }
    return columns | {"LP status": [_styled(lp.status[0]) for lp in lps]}


def _styled(status: bl.Status) -> str:
    return f"[{STYLES.get(status, 'yellow')}]{status}[/]"


def _table(columns: dict[str, list[str]], longest: int | None = None) -> Table:
    """Lay columns out; names of instances longer than ``longest`` are broken."""
    result = Table(box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    result.add_column("instance", overflow="fold", max_width=longest)
    for heading in list(columns)[1:]:
        result.add_column(heading, justify="left" if heading.endswith("status") else "right", no_wrap=True)
    for cells in zip(*columns.values(), strict=True):
        result.add_row(*cells)
    return result


def _difference(row: RelaxationRow) -> float:
    """Bound minus the LP's optimum, relative to their size."""
    assert row.reference is not None
    bound, value = float(row.relaxation.bound[0]), row.reference.value
    return (bound - value) / max(1.0, abs(bound), abs(value))


def to_json(rows: Sequence[RelaxationRow], method: str) -> str:
    """Return strict JSON: a list with one object an instance, where infinities and NaN are null."""
    return json.dumps([_entry(row, method) for row in rows], allow_nan=False, indent=2)


def _entry(row: RelaxationRow, method: str) -> dict[str, Any]:
    lp, (named, value, labels) = row.relaxation, row.labelling
    entry: dict[str, Any] = {
        "file": row.file,
        "n": row.n,
        "pairs": row.pairs,
        "method": method,
        "version": bl.__version__,
        "status": json_status(lp.status[0]),
        "bound": json_number(lp.bound[0]),
        "safe_bound": json_number(lp.safe_bound[0]),
        "primal": json_number(lp.primal[0]),
        "gap": json_number(lp.gap[0]),
        "passes": int(lp.passes[0]),
        "seconds": json_number(lp.seconds[0]),
        named: json_number(value),
        f"{named}_gap": json_number(row.found.gap),
        **({} if row.proved is None else {"persistency": {"weak": row.proved[0], "strong": row.proved[1]}}),
        "solution": labels,
    }
    if not isinstance(row.found, MisSolution) and row.found.rounds:
        entry["rounds"] = [
            {"blocks": r.blocks, "added": r.added, "bound": json_number(r.bound[0]), "seconds": r.seconds} for r in row.found.rounds
        ]
    if row.note:
        entry["note"] = row.note
    if row.reference is not None:
        entry["reference"] = row.reference.entry() | {"difference": json_number(_difference(row))}
    return entry


@dataclass(frozen=True)
class WrittenProof:
    """A file with the proof of an exact solution, what it proves, and how long that took to build and to check."""

    file: str
    size: int
    verdict: ProofVerdict
    seconds: float

    def entry(self, sought: Sought) -> dict[str, Any]:
        """What JSON says of it."""
        own = {"file": self.file, "bytes": self.size, "leaves": self.verdict.leaves, "seconds": self.seconds}
        return own | said(self.verdict, sought)


def said(verdict: ProofVerdict, sought: Sought) -> dict[str, Any]:
    """What JSON says of a verdict on a proof; bounds of sets are on their weights."""
    claim = "infeasible" if verdict.infeasible else "optimal" if verdict.optimal else "bound"
    bound = verdict.bound if sought == "labelling" else -verdict.bound
    return {"proved": claim, "bound": float(bound), "gap": None if verdict.gap is None else float(verdict.gap)}


def sentence(verdict: ProofVerdict, sought: Sought) -> str:
    """What people are told of a verdict on a proof."""
    if verdict.infeasible:
        return f"no {sought} respects the hard constraints"
    sign, beyond = (1, "is below") if sought == "labelling" else (-1, "weighs more than")
    if verdict.gap is None or verdict.value is None:
        return f"no {sought} {beyond} {float(sign * verdict.bound):.10g}"
    value = f"{float(sign * verdict.value):.10g}"
    if verdict.optimal:
        return f"optimal: no {sought} {beyond} {value}"
    part = f", {float(verdict.gap / abs(verdict.value)):.1e} of that" if verdict.value else ""
    return f"no {sought} is better than {value} by more than {float(verdict.gap):.2g}{part}"


@dataclass(frozen=True)
class ExactRow:
    """One instance and its exact solution; ``named`` says what its value is called."""

    file: str
    n: int
    pairs: int
    named: str
    found: ExactResult
    note: str = ""
    reference: Reference | None = None
    proof: WrittenProof | None = None

    @property
    def sought(self) -> Sought:
        """What no other one is better than."""
        if self.named != "weight":
            return "labelling"
        return "clique" if self.note == COMPLEMENTED else "independent set"


def show_exact(rows: Sequence[ExactRow], console: Console) -> None:
    """Print a table of exact solutions: one line an instance."""
    found = [row.found for row in rows]
    columns = {
        "instance": [escape(row.file) for row in rows],
        "n": [str(row.n) for row in rows],
        "pairs": [str(row.pairs) for row in rows],
        rows[0].named: [f"{f.energy:.10g}" for f in found],
        "bound": [f"{f.bound:.10g}" for f in found],
        "gap": [f"{100 * f.gap:.2f} %" for f in found],
        "nodes": [str(f.nodes) for f in found],
        "seconds": [f"{f.seconds:.2f}" for f in found],
        "status": [f"[green]{f.status}, proven[/]" if f.proven else _styled(f.status) for f in found],
    }
    compared = [row.reference for row in rows if row.reference is not None]
    if compared:
        columns |= {
            compared[0].solver: [by.status if math.isnan(by.value) else f"{by.value:.10g}" for by in compared],
            "its seconds": [f"{by.seconds:.2f}" for by in compared],
        }
    print_table(_table(columns), console)
    for row, proof in ((row, row.proof) for row in rows if row.proof is not None):
        length = f"{plural(proof.verdict.leaves, 'leaf', 'leaves')}, {proof.size} bytes, built and checked in {proof.seconds:.2f} s"
        console.print(
            escape(f"proof in {proof.file} ({length}): {sentence(proof.verdict, row.sought)}"), soft_wrap=True, highlight=False
        )


def exact_json(rows: Sequence[ExactRow]) -> str:
    """Return strict JSON of exact solutions: a list with one object an instance."""
    entries: list[dict[str, Any]] = []
    for row in rows:
        f = row.found
        entry: dict[str, Any] = {
            "file": row.file,
            "n": row.n,
            "pairs": row.pairs,
            "version": bl.__version__,
            "proven": f.proven,
            "status": json_status(f.status),
            "reason": f.reason,
            row.named: json_number(f.energy),
            "bound": json_number(f.bound),
            "gap": json_number(f.gap),
            "nodes": f.nodes,
            "seconds": f.seconds,
            "solution": None if f.status is bl.Status.INFEASIBLE else f.labels.tolist(),
        }
        entry |= {"note": row.note} if row.note else {}
        entry |= {} if row.proof is None else {"proof": row.proof.entry(row.sought)}
        entries.append(entry | ({} if row.reference is None else {"reference": row.reference.entry()}))
    return json.dumps(entries, allow_nan=False, indent=2)

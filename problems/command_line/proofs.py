"""The command ``blocklp check-proof``; what it needs is imported when it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blocklp.deadline import Deadline
from blocklp.errors import FormatError, OptionError
from blocklp.problems.command_line.options import OneJson
from blocklp.problems.command_line.process import EXIT_STOPPED, interruptible
from blocklp.problems.files import MAX_BYTES

if TYPE_CHECKING:
    from blocklp.problems.command_line.report import Sought

MaxBytes = Annotated[int, typer.Option(min=1, help="Most bytes of a file, decompressed, and of what is made of it.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check-proof")(_check_proof_command)


def _check_proof_command(
    subject: Annotated[Path, typer.Argument(metavar="FILE", help="The query, or the instance, that the proof is about.")],
    proof: Annotated[Path, typer.Argument(metavar="PROOF", help="What --proof has written.")],
    network: Annotated[list[str] | None, typer.Option("--network", metavar="[N=]MODEL.onnx", help="The network of a query.")] = None,
    format: Annotated[str | None, typer.Option(help="Format of an instance; by default told by its suffix.")] = None,
    log: Annotated[bool | None, typer.Option("--log/--no-log", help="Whether UAI tables are logarithms; by default in .LG.")] = None,
    evidence: Annotated[Path | None, typer.Option(metavar="FILE.evid", help="Labels that are given.")] = None,
    objective: Annotated[str | None, typer.Option(help="What a graph asks for: clique or independent-set.")] = None,
    max_bytes: MaxBytes = MAX_BYTES,
    as_json: OneJson = False,
) -> None:
    """Check a proof in integer arithmetic, by code that shares nothing with the search but the readers of the files.

    Of `blocklp verify`: about real arithmetic.  Of `blocklp qpbo`, `mis` and `mrf`: that no labelling is better, or that there is
    none.  The exit code is 0 for a proof, 1 if it proves a bound alone, and 2 for a file that proves nothing; the message names what
    is wrong.
    """
    from blocklp.problems.proof_lines import header_of
    from blocklp.problems.proofs.files import FORMAT
    from blocklp.problems.verification.proof_files import FORMAT as ABOUT_NETWORKS
    from blocklp.progress import ElapsedTime

    header = header_of(proof, max_bytes)
    if header.get("format") not in (FORMAT, ABOUT_NETWORKS):
        raise FormatError(f"{proof}: no proof; blocklp verify --proof writes them, and qpbo, mis and mrf do by --exact --proof")
    about_minimum = header["format"] == FORMAT
    if about_minimum and network:
        raise OptionError("--network is for proofs about networks; this one is about a minimum")
    if not about_minimum and any(option is not None for option in (format, log, evidence, objective)):
        raise OptionError("--format, --log, --evidence and --objective are for proofs of minima; this one is none")
    deadline = Deadline()
    with interruptible(), ElapsedTime(f"checking {proof.name}"):
        if about_minimum:
            problem, sought = _instance(subject, header.get("kind"), format, log, evidence, objective, max_bytes)
            entry, told = _minimum(problem, sought, proof, max_bytes, deadline)
        else:
            entry, told = _network(subject, proof, network or [], max_bytes, deadline)
    if as_json:
        typer.echo(json.dumps(entry | {"about": str(subject), "proof": str(proof)}))
    else:
        typer.echo(told)
    if entry.get("proved") == "bound":
        raise typer.Exit(EXIT_STOPPED)


def _network(subject: Path, proof: Path, network: list[str], max_bytes: int, deadline: Deadline) -> tuple[dict[str, Any], str]:
    """Check a proof about a network: its verdict, and what it consists of."""
    from blocklp.problems.verification.answers import How, Networks, read_query, read_task
    from blocklp.problems.verification.proof import check_proof
    from blocklp.problems.verification.proof_files import read_proof
    from blocklp.tables import plural

    asked = read_query(subject, max_bytes, deadline)
    how = How(real_semantics=True, max_bytes=max_bytes)
    read, _, prop = read_task(asked, asked.network(network), how, Networks(), deadline)
    began = deadline.elapsed()
    found = check_proof(read, prop, read_proof(proof, read, prop, max_bytes))
    seconds = deadline.elapsed() - began
    leaves, better = plural(found["leaves"], "leaf", "leaves"), plural(found["bounds"], "better bound")
    told = f"proved by {leaves} and {better}, checked in {seconds:.2f} s"
    return found | {"seconds": seconds}, f"{found['status']}\n{told}"


def _instance(
    subject: Path,
    kind: Any,
    format: str | None,
    log: bool | None,
    evidence: Path | None,
    objective: str | None,
    max_bytes: int,
) -> tuple[Any, Sought]:
    """Read the instance that a proof is about, and what is sought in it."""
    if kind == "Mrf" and objective is None:
        from blocklp.problems.mrf import read_mrf

        return read_mrf(subject, format, log, evidence, max_bytes=max_bytes), "labelling"
    if log is not None or evidence is not None:
        raise OptionError("--log and --evidence are for Markov random fields; the proof is about something else")
    if kind == "WeightedGraph":
        from blocklp.problems.mis import read_graph

        graph = read_graph(subject, format, objective, max_bytes=max_bytes)  # type: ignore[arg-type]
        return (graph.complement(max_bytes), "clique") if graph.objective == "clique" else (graph, "independent set")
    if objective is not None:
        raise OptionError("--objective is for graphs; the proof is about something else")
    if kind == "Qubo":
        from blocklp.problems.qpbo import read_qubo

        return read_qubo(subject, format, max_bytes=max_bytes), "labelling"
    raise FormatError(f"the proof is about a {kind!r}, which is not known")


def _minimum(problem: Any, sought: Sought, proof: Path, max_bytes: int, deadline: Deadline) -> tuple[dict[str, Any], str]:
    """Check a proof of a minimum: its verdict, and what it consists of."""
    from blocklp.problems.command_line.report import said, sentence
    from blocklp.problems.proofs import check_proof, read_proof
    from blocklp.tables import plural

    began = deadline.elapsed()
    labels, steps = read_proof(proof, problem, max_bytes)
    verdict = check_proof(problem, labels, steps)
    seconds = deadline.elapsed() - began
    leaves = plural(verdict.leaves, "leaf", "leaves")
    told = f"{sentence(verdict, sought)}\nproved by {leaves}, checked in {seconds:.2f} s"
    return said(verdict, sought) | {"leaves": verdict.leaves, "seconds": seconds}, told

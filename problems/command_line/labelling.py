"""The work of the commands on QUBOs, graphs and Markov random fields, and what they import for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.text import Text

import blocklp as bl
from blocklp.campaigns import Executor
from blocklp.errors import BlocklpError, OptionError
from blocklp.problems.command_line.options import Output, Solving
from blocklp.problems.command_line.process import EXIT_INTERRUPTED, EXIT_STOPPED, interruptible
from blocklp.problems.command_line.reference import check_solver, compare
from blocklp.problems.command_line.report import ExactRow, RelaxationRow, WrittenProof, exact_json, show, show_exact, to_json
from blocklp.problems.discrete.exact import ExactResult
from blocklp.problems.discrete.together import share
from blocklp.problems.mis import MisSolution
from blocklp.problems.mrf import MrfSolution
from blocklp.problems.plot import blank_figure, plot_convergence, require_folder
from blocklp.problems.qpbo import QpboSolution
from blocklp.progress import ElapsedTime, Progress, SearchProgress
from blocklp.search.tightening import Round

if TYPE_CHECKING:
    from blocklp.problems.mis.instance import WeightedGraph
    from blocklp.problems.mrf.instance import Mrf
    from blocklp.problems.qpbo.instance import Qubo


def tell_round(round: Round, energy: float) -> None:
    """Write a line about a round of tightening to standard error."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(Text(f"{round} | labelling {energy:.9g}"))


@dataclass(frozen=True)
class SolvableFiles:
    """Instances of a kind, and what can be asked of them.

    Attributes
    ----------
    names : sequence of tuple
        File, number of variables, number of pairs and a note for each instance.
    value : str
        The name of the value of a labelling.
    solve : callable
        Takes the options of a solve, ``callback`` and ``history``, and returns the solutions of all instances.
    model : callable
        Gives the model of an instance by its number, for the comparison with another solver.
    search : callable
        Takes the number of an instance, ``time_limit`` and ``callback``, and returns its exact solution.
    problems : sequence of Qubo, Mrf or WeightedGraph
        What a proof of an exact solution is about.
    workers : Executor, optional
        Whose workers build it.
    tightened : bool
        Whether models grow as they are solved: the comparison is with the last one then.
    """

    names: Sequence[tuple[str, int, int, str]]
    value: str
    solve: Callable[..., Sequence[QpboSolution | MisSolution | MrfSolution]]
    model: Callable[[int], bl.Model]
    search: Callable[..., ExactResult]
    problems: Sequence[Qubo | Mrf | WeightedGraph]
    workers: Executor | None
    tightened: bool = False


def answer(asked: SolvableFiles, solving: Solving, output: Output, deadline: bl.Deadline) -> None:
    """Solve, or solve exactly, report, and exit with the code of the worst instance.

    Parameters
    ----------
    asked : SolvableFiles
        The instances.
    solving, output : Solving, Output
        The options of the command.
    deadline : Deadline
        When the work ends.

    Raises
    ------
    OptionError
        If options exclude each other, or there is no time.
    """
    (_exact if solving.exact else _relaxed)(asked, solving, output, deadline)


def _relaxed(asked: SolvableFiles, solving: Solving, output: Output, deadline: bl.Deadline) -> None:
    if output.proof is not None:
        raise OptionError("--proof is about an optimum; give --exact too")
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    given = solving.checked(deadline)
    figure = None if output.plot is None else blank_figure(output.plot)
    if not output.quiet:
        for file, _, _, note in asked.names:
            if note:
                errors.print(Text(f"{file}: {note}"))
    if output.reference is not None:
        check_solver(output.reference)
    with interruptible(), nullcontext() if output.quiet else Progress() as callback:
        found = asked.solve(**given, callback=callback, history=figure is not None)
    solutions = [f.relaxation for f in found]
    status = {s.status[0] for s in solutions}
    rows = [RelaxationRow(file, n, pairs, f, note) for (file, n, pairs, note), f in zip(asked.names, found, strict=True)]
    if output.reference is not None and bl.Status.INTERRUPTED not in status:
        for i, row in enumerate(rows):
            model = row.relaxation.solver.models[0] if asked.tightened else asked.model(i)
            assert isinstance(model, bl.Model)
            with interruptible(), nullcontext() if output.quiet else ElapsedTime(f"solving {row.file} by {output.reference}"):
                rows[i] = replace(row, reference=compare(model, output.reference))
    if output.as_json:
        typer.echo(to_json(rows, solving.method))
    else:
        show(rows, Console())
    if figure is not None and output.plot is not None:
        plot_convergence(figure, [Path(row.file).name for row in rows], [s.history for s in solutions])
        figure.savefig(output.plot, dpi=150)
    if bl.Status.INTERRUPTED in status:
        raise typer.Exit(EXIT_INTERRUPTED)
    if status != {bl.Status.OPTIMAL}:
        raise typer.Exit(EXIT_STOPPED)


def _exact(asked: SolvableFiles, solving: Solving, output: Output, deadline: bl.Deadline) -> None:
    solving.check_exact()
    if output.plot is not None:
        raise OptionError("--plot is about the relaxation; leave it out, or leave --exact out")
    if output.proof is not None and len(asked.names) > 1:
        raise OptionError("--proof writes the proof of one instance; give one file")
    if output.proof is not None:
        require_folder(output.proof)
    if output.reference is not None:
        check_solver(output.reference)
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    rows: list[ExactRow] = []
    for i, (file, n, pairs, note) in enumerate(asked.names):
        if note and not output.quiet:
            errors.print(Text(f"{file}: {note}"))
        own = share(deadline, 1, len(asked.names) - i)
        with interruptible(), nullcontext() if output.quiet else SearchProgress() as callback:
            rows.append(ExactRow(file, n, pairs, asked.value, asked.search(i, time_limit=own, callback=callback), note))
        if rows[-1].found.status is bl.Status.INTERRUPTED:
            for missed, *_ in asked.names[i + 1 :]:
                errors.print(Text(f"{missed}: not reached before the interrupt"))
            break
    unproved, interrupted = False, rows[-1].found.status is bl.Status.INTERRUPTED
    if output.proof is not None and rows[0].found.proven:
        try:
            rows[0] = replace(rows[0], proof=_written_proof(asked, rows[0].found, output.proof, output.quiet, deadline))
        except (BlocklpError, OSError, KeyboardInterrupt) as error:  # the solution stands
            unproved, interrupted = True, isinstance(error, KeyboardInterrupt)
            errors.print(Text(f"no proof was written: {str(error) or 'interrupted'}", style="red"))
    if output.reference is not None and not interrupted:
        for i, row in enumerate(rows):
            limit = bl.Deadline(deadline.seconds / len(asked.names))  # as long again
            with interruptible(), nullcontext() if output.quiet else ElapsedTime(f"solving {row.file} by {output.reference}"):
                other = compare(asked.model(i), output.reference, integers=True, deadline=limit)
            rows[i] = replace(row, reference=other)
    if output.as_json:
        typer.echo(exact_json(rows))
    else:
        show_exact(rows, Console())
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if unproved or not all(row.found.proven for row in rows):
        raise typer.Exit(EXIT_STOPPED)


def _written_proof(asked: SolvableFiles, found: ExactResult, path: Path, quiet: bool, deadline: bl.Deadline) -> WrittenProof:
    """Build a proof of an exact solution, check it, and write it."""
    from blocklp.problems.proofs import check_proof, prove_minimum, write_proof

    began, problem = deadline.elapsed(), asked.problems[0]
    labels = None if found.status is bl.Status.INFEASIBLE else found.labels.numpy()
    with interruptible(), nullcontext() if quiet else ElapsedTime("building a proof"):
        proof = prove_minimum(problem, labels, time_limit=deadline, executor=asked.workers)
        verdict = check_proof(problem, labels, proof)
        size = write_proof(path, problem, labels, proof)
    return WrittenProof(str(path), size, verdict, deadline.elapsed() - began)

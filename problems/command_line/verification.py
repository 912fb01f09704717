"""The commands of verification: ``blocklp verify`` and ``bounds``.

Whatever these commands need is imported when they run: their options must not cost the other commands time.
"""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from blocklp.deadline import Deadline
from blocklp.errors import BlocklpError, LicenceError, OptionError
from blocklp.problems.command_line.options import Against, Device, OneJson, Quiet, Ray, Silent, Workers, executor
from blocklp.problems.command_line.process import EXIT_ERROR, EXIT_INTERRUPTED, interruptible, leaving, until
from blocklp.problems.files import MAX_BYTES
from blocklp.problems.verification.problem import problem_of

if TYPE_CHECKING:
    from blocklp.campaigns import Executor
    from blocklp.problems.verification.answers import How

MaxBytes = Annotated[int, typer.Option(min=1, help="Most bytes of a file, decompressed, and of what is made of it.")]

EXIT_UNKNOWN, EXIT_TIMED_OUT, EXIT_WRONG = 1, 3, 4


class RadiusSpace(StrEnum):
    """What a radius is a distance of."""

    pixel = "pixel"
    input = "input"


def register(app: typer.Typer) -> None:
    """Add the commands, and the options ``--name`` and ``--version``."""
    app.command("verify", context_settings={"allow_extra_args": True})(_verify_command)
    app.command("bounds")(_bounds_command)
    app.callback()(global_options)


def _print_name(wanted: bool) -> None:
    if wanted:
        typer.echo("blocklp")
        raise typer.Exit


def _print_version(wanted: bool) -> None:
    if wanted:
        from blocklp import __version__

        typer.echo(__version__)
        raise typer.Exit


def global_options(
    name: Annotated[bool, typer.Option("--name", is_eager=True, callback=_print_name, help="Print the name of the tool.")] = False,
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")] = False,
) -> None:
    """Take the options before a command."""


def _verify_command(
    ctx: typer.Context,
    query: Annotated[Path | None, typer.Argument(metavar="[QUERY.vnnlib]", help="What a counterexample would be.")] = None,
    network: Annotated[list[str] | None, typer.Option("--network", metavar="[N=]MODEL.onnx", help="The network.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for everything, reading and start-up too.")] = math.inf,
    attack: Annotated[bool, typer.Option("--attack/--no-attack", help="Search for counterexamples; without, never sat.")] = True,
    real_semantics: Annotated[bool, typer.Option("--real-semantics", help="Read a query of floats as one of real numbers.")] = False,
    as_json: OneJson = False,
    assignments: Annotated[
        Path | None, typer.Option("--serialise-assignments", metavar="DIR", help="Write a counterexample as DIR/NAME.pb instead.")
    ] = None,
    result_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a result file of VNN-COMP too.")] = None,
    proof: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a proof of the verdict, for `blocklp check-proof` (real numbers).")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="OUT.png", help="Draw the counterexample and the outputs' bounds (needs matplotlib).")
    ] = None,
    instances: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="Many instances instead: rows of network,property,seconds.")
    ] = None,
    results: Annotated[Path | None, typer.Option(metavar="OUT.csv", help="Where their rows go; those there are kept.")] = None,
    expected: Annotated[Path | None, typer.Option(metavar="FILE.csv", help="Known results to compare with.")] = None,
    workers: Workers = None,
    ray: Ray = None,
    max_bytes: MaxBytes = MAX_BYTES,
    threads: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Threads, of each of the workers; by default what torch takes.")
    ] = None,
    device: Device = "cpu",
    quiet: Quiet = False,
) -> None:
    """Decide whether a network has a counterexample to a property (VNN-LIB 1 and 2).

    The first line on standard output is sat, unsat, unknown or timed-out; for sat, the variables follow, each as
    a line such as "X real [1,5]" and then one value a line.  All else goes to standard error.  `blocklp supports` says what sat
    and unsat claim.  The time limit counts from the start of the process; importing torch alone takes a second or more, and
    a limit below that is answered timed-out as late as the import.

    Exit codes: 0 for sat and unsat, 1 for unknown, 3 for timed-out, 130 for an interrupt (unknown is printed), 2 for an
    error: unknown is printed, and the message goes to standard error; if the command line itself is wrong, nothing is printed.

    With --instances: 0 if all rows are there, 2 if one of them is an error, 4 if a verdict contradicts --expected, 130 for an
    interrupt; the finished rows are kept, and the same command goes on from there.
    """
    if ctx.args:
        models = [name for name in (str(query), *ctx.args) if ".onnx" in name]
        need = f"the network is an option: --network {models[0]}" if models else "give one query, or many by --instances"
        raise typer.BadParameter(f"{' '.join(ctx.args)} is one argument too many; {need}", param_hint="QUERY")
    if not timeout > 0:
        raise typer.BadParameter(f"{timeout} is not a positive number of seconds", param_hint="--timeout")
    if (query is None) == (instances is None):
        raise typer.BadParameter("give either a query or --instances", param_hint="QUERY")
    if (results is None) != (instances is None) or (expected is not None and instances is None):
        raise typer.BadParameter("--instances and --results go together, and --expected with them", param_hint="--instances")
    if instances is not None and (network or assignments or result_file or proof or picture):
        raise typer.BadParameter("the file names networks, and places for counterexamples", param_hint="--instances")
    deadline = until(timeout, ctx.obj)
    output = VerdictOutput(as_json, assignments, result_file, quiet, picture)
    with leaving("" if query is None else _unknown(query, "Interrupted.", output)):
        from blocklp.options import known_device
        from blocklp.problems.verification.answers import How

    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        how = How(timeout, attack, real_semantics, max_bytes, known_device(device), proof)
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        with interruptible():
            alone = workers is None and ray is None
            with executor(workers, ray, None if alone else threads) as where:
                if query is None:
                    assert instances is not None and results is not None
                    code = _run_instances(instances, results, expected, how, where, output, errors)
                else:
                    code = _run_query(query, network or [], how, None if alone else where, deadline, output, errors)
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED if _without_verdict(query, "Interrupted.", output, errors) else EXIT_ERROR
    except Exception as error:
        problem = problem_of(error)
        _without_verdict(query, problem, output, errors)
        if not isinstance(error, BlocklpError | OSError | MemoryError):  # a bug, which its trace may explain
            traceback.print_exc(file=sys.stderr)
        errors.print(Text(f"error: {problem}", style="bold red"))
        code = EXIT_ERROR
    raise typer.Exit(code)


@dataclass(frozen=True)
class VerdictOutput:
    """What to print and to write."""

    as_json: bool
    assignments: Path | None
    result_file: Path | None
    quiet: bool
    picture: Path | None


def _unknown(query: Path, reason: str, output: VerdictOutput) -> str:
    """What is printed about a query without a verdict."""
    entry = {"status": "unknown", "query": str(query), "reason": reason}
    return (json.dumps(entry, indent=2) if output.as_json else "unknown") + "\n"


def _without_verdict(query: Path | None, reason: str, output: VerdictOutput, errors: Console) -> bool:
    """Say unknown, as the standard asks, where a single query got no verdict; return whether that could be written."""
    if query is None:
        return True
    typer.echo(_unknown(query, reason, output), nl=False)
    return output.result_file is None or _written(lambda file: file.write_text("unknown\n"), output.result_file, errors)


def _written(write: Callable[[Path], object], place: Path, errors: Console) -> bool:
    """Write; if that fails, say so and return False."""
    try:
        write(place)
    except OSError as error:
        errors.print(Text(f"error: {problem_of(error)}: nothing is written to {place}", style="bold red"))
        return False
    return True


def _run_query(
    query: Path,
    given: Sequence[str],
    how: How,
    executor: Executor | None,
    deadline: Deadline,
    output: VerdictOutput,
    errors: Console,
) -> int:
    """Answer one query, with workers if there are some; return the exit code."""
    from blocklp.problems.verification.answers import Networks, Watch, answer, try_file, try_folder

    # Now, so that no verdict is found that has no place.
    figure = None
    if output.picture is not None:
        from blocklp.problems.plot import blank_figure

        figure = blank_figure(output.picture)
    for place in (output.result_file, how.proof, output.picture):
        if place is not None:
            try_file(place)
    if output.assignments is not None:
        from blocklp.problems.verification.onnx_files import require_onnx

        require_onnx()
        try_folder(output.assignments)
    with Watch(output.quiet) as watch:
        watch.begin("", deadline)
        found = answer(query, given, how, Networks(), deadline, watch, executor)
    status = found.verdict.status
    if output.as_json:
        typer.echo(json.dumps(found.entry(), allow_nan=False, indent=2))
    else:
        typer.echo(found.text() if output.assignments is None else status)
    sys.stdout.flush()
    if not output.quiet:
        errors.print(Text(found.summary()))
    written = True
    if output.assignments is not None and status == "sat":
        written = _written(found.serialise, output.assignments, errors)
    if output.result_file is not None:
        written = _written(lambda file: file.write_text(found.competition()), output.result_file, errors) and written
    if figure is not None and output.picture is not None and found.task is not None:
        from blocklp.problems.verification.counterexample_picture import plot_verdict

        plot_verdict(figure, *found.task, found.verdict.x, found.verdict.y)
        figure.suptitle(f"{found.query.file.name}, {found.network.name}: {status}")
        written = _written(lambda file: figure.savefig(file, dpi=120), output.picture, errors) and written
    if not written:
        return EXIT_ERROR
    if found.interrupted:
        return EXIT_INTERRUPTED
    return {"sat": 0, "unsat": 0, "timed-out": EXIT_TIMED_OUT}.get(status, EXIT_UNKNOWN)


def _run_instances(
    instances: Path, results: Path, expected: Path | None, how: How, executor: Executor, output: VerdictOutput, errors: Console
) -> int:
    """Answer many queries; return the worst code."""
    from blocklp.campaigns import InProcess
    from blocklp.problems.printing import json_number
    from blocklp.problems.verification.answers import Watch
    from blocklp.problems.verification.batch import InstanceResult, read_expected, run_instances, score, show_score

    known = {} if expected is None else read_expected(expected, how.max_bytes)

    def told(row: InstanceResult) -> None:
        if not output.quiet:
            errors.print(Text(f"{row.onnx} {row.vnnlib}: {row.status}, {row.seconds:.2f} s"))

    if isinstance(executor, InProcess):
        with Watch(output.quiet) as watch:
            run = run_instances(instances, results, how, executor, told, watch=watch)
    else:
        from blocklp.progress import CampaignProgress

        with nullcontext() if output.quiet else CampaignProgress() as progress:
            run = run_instances(instances, results, how, executor, told, callback=progress)
    rows = run.rows
    total = score(rows, known)
    if output.as_json:
        entries = [
            vars(row)
            | {"bound": json_number(row.bound), "load_seconds": json_number(row.load_seconds), "expected": known.get(row.key)}
            for row in rows
        ]
        typer.echo(json.dumps(entries, allow_nan=False, indent=2))
    else:
        show_score(rows, known, Console())
    for row in total.wrong:
        errors.print(Text(f"wrong: {row.onnx} {row.vnnlib} is {known[row.key]}, not {row.status}", style="bold red"))
    if run.problem:
        errors.print(Text(f"error: {run.problem}: not all results are written", style="bold red"))
        return EXIT_ERROR
    if run.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_WRONG if total.wrong else EXIT_ERROR if total.errors else 0


def _bounds_command(
    ctx: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The network.")],
    image: Annotated[Path, typer.Option(metavar="FILE", help="A .npy array, a picture, or a .csv row (class, then pixels).")],
    eps: Annotated[str, typer.Option(metavar="E", help="Radius of the box around it, such as 0.03 or 8/255.")],
    row: Annotated[int, typer.Option(min=0, help="Row of a .csv file.")] = 0,
    mean: Annotated[str, typer.Option(metavar="M[,M,M]", help="What is subtracted from pixels in [0, 1].")] = "0",
    std: Annotated[str, typer.Option(metavar="S[,S,S]", help="What they are then divided by.")] = "1",
    norm_space: Annotated[
        RadiusSpace, typer.Option(help="What the radius is one of: pixels in [0, 1], or inputs.")
    ] = RadiusSpace.pixel,
    label: Annotated[int | None, typer.Option(min=0, help="Class whose margin is printed; that of the .csv row by default.")] = None,
    method: Annotated[str, typer.Option(help="How layers are bounded: interval, crown, slopes, ...")] = "slopes",
    steps: Annotated[int | None, typer.Option(min=1, help="Evaluations of every LP.")] = None,
    gap: Annotated[bool, typer.Option("--gap", help="Say how far from their LPs' optima bounds are at most.")] = False,
    time_limit: Annotated[float, typer.Option(help="Seconds for everything; layers not reached keep interval bounds.")] = math.inf,
    device: Device = "cpu",
    max_bytes: MaxBytes = MAX_BYTES,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all bounds, instead of the table.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="OUT.png", help="Write a picture of the bounds (needs matplotlib).")] = None,
    reference: Against = None,
    quiet: Silent = False,
) -> None:
    """Bound every neuron of a network over the valid pixels in a box around an image.

    With --reference, another solver solves the LPs of the outputs, in which neurons have the bounds that were found.
    """
    from blocklp.options import known_device
    from blocklp.problems.command_line.reference import check_solver
    from blocklp.problems.plot import blank_figure
    from blocklp.problems.printing import json_number
    from blocklp.problems.verification import bounds, images
    from blocklp.problems.verification import bounds_report as report
    from blocklp.problems.verification.answers import try_file
    from blocklp.problems.verification.onnx_reader import read_onnx
    from blocklp.progress import ElapsedTime

    if reference is not None:
        check_solver(reference)
    epsilon, means, stds = images.read_epsilon(eps), images.read_numbers(mean, "--mean"), images.read_numbers(std, "--std")
    figure = None if plot is None else blank_figure(plot)
    deadline = until(time_limit, ctx.obj if isinstance(ctx.obj, float) else None)
    if plot is not None:
        try_file(plot)
    picture = images.read_image(image, row, max_bytes)
    network = read_onnx(model, max_bytes=max_bytes, time_limit=deadline)
    network = network.to(network.dtype, known_device(device))
    lower, upper, point = images.image_box(picture, network.input_shape, epsilon, means, stds, norm_space)
    label = picture.label if label is None else label
    if label is not None and label >= network.outputs:
        raise OptionError(f"the class is {label}, and {network.name} has {network.outputs} outputs; correct --label")
    with interruptible(), nullcontext() if quiet else ElapsedTime(f"bounding {network.name}"):
        found = bounds.network_bounds(network, lower, upper, method=method, steps=steps, gap=gap, time_limit=deadline)
        before = None if figure is None else bounds.network_bounds(network, lower, upper, method="interval")
    other = None
    if reference is not None:
        try:
            other = report.output_optima(found, reference)
        except LicenceError as error:
            typer.echo(f"--reference: {error}", err=True)
    margin = report.margin(found.layers, label) if label is not None and network.outputs > 1 else None
    predicted = int(network(point[None].to(network.device))[0].argmax())
    title = f"{network.name}, {image.name}, eps {eps}, {found.method}"
    if as_json:
        about = {
            "network": str(model),
            "image": str(image),
            "epsilon": epsilon,
            "method": found.method,
            "seconds": found.seconds,
            "label": label,
            "predicted": predicted,
            "margin": None if margin is None else json_number(margin),
            **({} if other is None else {"reference": other}),
        }
        typer.echo(json.dumps(report.to_entry(found.layers, **about), allow_nan=False))
    else:
        report.show_layers(found.layers, Console(), title, gap)
        typer.echo(f"class {predicted} at the image; {found.seconds:.2f} s")
        if other is not None:
            apart = "unknown" if other["difference"] is None else f"{other['difference']:.2e}"
            typer.echo(f"LPs of the outputs by {reference}, {other['seconds']:.2f} s: bounds are off by at most {apart}")
        if margin is not None:
            proved = "robust" if margin > 0 else "not proved robust"
            typer.echo(f"class {label}: margin at least {margin:.4g} by the bounds of the outputs alone: {proved}")
    if figure is not None and before is not None:
        assert plot is not None
        report.plot_layers(figure, before.layers, found.layers, title)
        figure.savefig(plot, dpi=150)

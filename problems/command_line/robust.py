"""The command ``blocklp robust``: robust accuracy of a data set, with a file of results that a later run goes on from."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from blocklp.errors import FormatError, OptionError
from blocklp.problems.command_line.options import Device, Silent
from blocklp.problems.command_line.process import EXIT_INTERRUPTED, interruptible
from blocklp.problems.files import MAX_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from blocklp.problems.verification.network import Network
    from blocklp.problems.verification.radii import CertifiedRadius
    from blocklp.problems.verification.robustness import ImageResult, RobustAccuracy

RADIUS_SECONDS = 10.0
"""Seconds for an image and a radius, where none are given: bisection ends at radii that are hard to decide."""


class Norm(StrEnum):
    """Norms of the change of an image."""

    linf = "linf"
    l2 = "l2"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("robust")(_robust_command)


def _robust_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The network.")],
    images: Annotated[Path, typer.Option(metavar="FILE", help="A .csv of rows (class, then pixels), or a .npy array of images.")],
    eps: Annotated[str, typer.Option(metavar="E", help="Radius of pixels in [0, 1], such as 0.03 or 8/255.")],
    labels: Annotated[Path | None, typer.Option(metavar="FILE.npy", help="Classes of the images of a .npy file.")] = None,
    mean: Annotated[str, typer.Option(metavar="M[,M,M]", help="What is subtracted from pixels in [0, 1].")] = "0",
    std: Annotated[str, typer.Option(metavar="S[,S,S]", help="What they are then divided by.")] = "1",
    norm: Annotated[
        Norm, typer.Option(help="Of the change: linf, of each pixel by the radius; l2, of all together by that length.")
    ] = Norm.linf,
    first: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the first images.")] = None,
    target: Annotated[
        int | None, typer.Option(metavar="CLASS", min=0, help="Counterexamples of this class alone, for images of all others.")
    ] = None,
    radius: Annotated[
        bool, typer.Option("--radius", help="Find the largest certified radius of each image, up to --eps, by bisection.")
    ] = False,
    precision: Annotated[str, typer.Option(metavar="E", help="With --radius: up to which radii are sought.")] = "1/1024",
    results: Annotated[
        Path | None,
        typer.Option(metavar="OUT.jsonl", help="A line for each image; those that have one are not run again."),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for an image.")] = math.inf,
    max_bytes: Annotated[int, typer.Option(min=1, help="Most bytes of a file, decompressed, and of what is made of it.")] = MAX_BYTES,
    device: Device = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all images, instead of the table.")] = False,
    quiet: Silent = False,
) -> None:
    """Count the images that a network classifies rightly whatever happens to their pixels within a radius.

    With --radius, find instead how large the radius may be for each image.

    The exit code is 0 if all images have a result, undecided ones included, 130 for an interrupt: what is done is printed, and with
    --results the same command goes on from there.
    """
    from blocklp.campaigns import Records
    from blocklp.options import known_device
    from blocklp.problems.printing import json_number
    from blocklp.problems.verification.images import read_epsilon, read_images, read_numbers
    from blocklp.problems.verification.onnx_files import Runtime
    from blocklp.problems.verification.onnx_reader import read_onnx
    from blocklp.problems.verification.robustness import RobustAccuracy, robust_accuracy
    from blocklp.progress import LiveLine

    most, means, stds = read_epsilon(eps), read_numbers(mean, "--mean"), read_numbers(std, "--std")
    pixels, classes = read_images(images, labels, max_bytes)
    pixels, classes = pixels[:first], classes[:first]
    network = read_onnx(model, max_bytes=max_bytes)
    network = network.to(network.dtype, known_device(device))
    task: dict[str, Any] = {"network": model.name, "images": images.name, "eps": most, "mean": means, "std": stds, "target": target}
    task["norm"] = norm.value
    if radius:
        if results is not None or target is not None:
            raise OptionError("--radius goes without --results and --target; leave these out")
        options: dict[str, Any] = {"precision": read_epsilon(precision), "mean": means, "std": stds, "runtime": Runtime(model)}
        options["norm"] = norm.value
        options |= {"timeout": timeout if math.isfinite(timeout) else RADIUS_SECONDS}
        print_radii(network, pixels, classes, most, options, task, as_json=as_json, quiet=quiet)
        return
    done: dict[int, ImageResult] = {}
    began, interrupted = time.perf_counter(), False
    with ExitStack() as stack:
        records = None
        if results is not None:
            records = stack.enter_context(Records(results, lambda text: results_of(text, results, task)))
            done = {result.image: result for result in records.found if result.image < len(classes)}
            if records.new:
                records.append(json.dumps(task))
        wrong = [i for i, result in done.items() if result.label != classes[i]]
        if wrong:
            raise FormatError(f"{results}: image {wrong[0]} has another class there; name another file for these images")
        asked = [image for image in range(len(classes)) if classes[image] != target]
        left = [image for image in asked if image not in done]
        line = stack.enter_context(LiveLine()) if not quiet else None

        def add(found: ImageResult) -> None:
            result = replace(found, image=left[found.image])
            done[result.image] = result
            if records is not None:
                records.append(json.dumps(entry(result), allow_nan=False))
            if line is not None:
                line.draw(lambda: f"{progress(list(done.values()), len(asked))} | {time.perf_counter() - began:.1f} s")

        if line is not None:
            line.draw(lambda: f"{progress(list(done.values()), len(asked))} | {model.name}")
        if left:
            stack.enter_context(interruptible())
            options = {"mean": means, "std": stds, "timeout": timeout, "runtime": Runtime(model), "callback": add}
            options["norm"] = norm.value
            options["targets"] = None if target is None else [target] * len(left)
            interrupted = robust_accuracy(network, pixels[left], classes[left], most, **options).interrupted
    found = RobustAccuracy(tuple(done[image] for image in sorted(done)), interrupted)
    if as_json:
        about = {"all": len(asked), "natural": found.natural, "verified": found.verified, "upper": found.upper}
        shares = {name: json_number(share) for name, share in about.items()}
        typer.echo(json.dumps(task | shares | {"results": [entry(result) for result in found.results]}, allow_nan=False))
    else:
        show(found, Console(), f"{model.name}, {images.name}, {norm.value} eps {eps}", len(asked))
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def print_radii(
    network: Network,
    pixels: NDArray[Any],
    classes: NDArray[Any],
    most: float,
    options: dict[str, Any],
    task: dict[str, Any],
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Find the certified radii of images, and print them.

    Parameters
    ----------
    network : Network
        The network.
    pixels, classes : ndarray
        ``(images, ...)`` in [0, 1], and ``(images,)``.
    most : float
        Largest radius.
    options : dict
        Of :func:`blocklp.problems.verification.certified_radii`.
    task : dict
        What the JSON object begins with.
    as_json, quiet : bool
        Whether JSON is printed instead of the table, and no progress.
    """
    from blocklp.problems.printing import json_number
    from blocklp.problems.verification.radii import certified_radii
    from blocklp.progress import LiveLine

    with ExitStack() as stack:
        line = stack.enter_context(LiveLine()) if not quiet else None
        stack.enter_context(interruptible())

        def draw(known: Sequence[CertifiedRadius]) -> None:
            if line is not None:
                line.draw(lambda: f"{len(known)} images | {_median(known)}")

        found = certified_radii(network, pixels, classes, most=most, callback=draw, **options)
    if as_json:
        listed = [asdict(replace(own, x=None)) for own in found]
        for fields in listed:
            del fields["x"]
            fields |= {name: json_number(fields[name]) for name in ("certified", "attacked")}
        typer.echo(json.dumps(task | {"precision": options["precision"], "results": listed}, allow_nan=False))
    else:
        _show_radii(found, task, most)
    if not all(own.finished for own in found):
        raise typer.Exit(EXIT_INTERRUPTED)


def _show_radii(found: Sequence[CertifiedRadius], task: dict[str, Any], most: float) -> None:
    """Print a table of certified radii."""
    from blocklp.problems.printing import print_table

    title = Text(f"{task['network']}, {task['images']}, radii up to {most:g}")
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for heading in ("image", "class", "predicted", "certified", "counterexample at", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for own in found:
        ends = ["-" if math.isnan(end) else f"{end:.4f}" for end in (own.certified, own.attacked)]
        table.add_row(str(own.image), str(own.label), str(own.predicted), *ends, f"{own.seconds:.2f}")
    print_table(table, Console())
    typer.echo(f"{len(found)} images; {_median(found)}")


def _median(found: Sequence[CertifiedRadius]) -> str:
    """The median certified radius of the images that are classified rightly, in words."""
    known = sorted(own.certified for own in found if not math.isnan(own.certified))
    return (
        f"median certified radius {known[len(known) // 2]:.4f} of {len(known)} classified rightly"
        if known
        else "none classified rightly"
    )


def entry(result: ImageResult) -> dict[str, Any]:
    """Return an object of strict JSON about an image; it has no counterexample."""
    from blocklp.problems.printing import json_number

    found = asdict(replace(result, x=None))
    del found["x"]
    return found | {"bound": json_number(result.bound)}


def results_of(text: str, path: Path, task: dict[str, Any]) -> list[ImageResult]:
    """Read the lines of a file of results.

    Parameters
    ----------
    text : str
        Of whole lines: the task, and then one image each.
    path : Path
        For messages.
    task : dict
        What the results must be of.

    Raises
    ------
    FormatError
        A line is damaged.
    OptionError
        The results are of another task.
    """
    from blocklp.problems.verification.robustness import STATUSES, ImageResult

    lines = text.splitlines()
    try:
        heading, *entries = [json.loads(line) for line in lines] or [task]
        found = [ImageResult(**e | {"bound": math.nan if e["bound"] is None else e["bound"]}) for e in entries]
        if not isinstance(heading, dict) or any(result.status not in STATUSES or type(result.image) is not int for result in found):
            raise ValueError
    except (ValueError, TypeError, KeyError):
        raise FormatError(f"{path}: a line is no result of this command; name another file") from None
    for name, value in task.items():
        if heading.get(name) != value:
            raise OptionError(f"{path} has results with {name} {heading.get(name)!r}, not {value!r}; name another file for these")
    return found


def progress(results: Sequence[ImageResult], total: int) -> str:
    """Return one line about a run, a bar first.

    Parameters
    ----------
    results : sequence of ImageResult
        What is done.
    total : int
        Number of images.
    """
    share = len(results) / max(total, 1)
    bar = "█" * round(20 * share) + "░" * (20 - round(20 * share))
    counts = {status: sum(result.status == status for result in results) for status in ("verified", "attacked", "undecided")}
    return " | ".join([f"{bar} {len(results)} of {total}", *(f"{count} {status}" for status, count in counts.items())])


def show(found: RobustAccuracy, console: Console, title: str, total: int) -> None:
    """Print natural accuracy and what became of the images that are classified rightly.

    Parameters
    ----------
    found : RobustAccuracy
        The results.
    console : Console
        Where to print.
    title : str
        Of the table.
    total : int
        Number of images.
    """
    from blocklp.problems.printing import print_table

    count = len(found.results)
    table = Table(box=box.SIMPLE_HEAD, title=Text(title), title_justify="left", pad_edge=False)
    table.add_column("")
    for heading in ("images", "share"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows = [("natural accuracy", count - found.count("misclassified"))]
    rows += [(status, found.count(status)) for status in ("verified", "attacked", "undecided")]
    for name, number in rows:
        table.add_row(name, str(number), f"{100 * number / count:.1f} %" if count else "")
    print_table(table, console)
    seconds = sum(result.seconds for result in found.results)
    typer.echo(f"{count} of {total} images, {seconds:.2f} s; robust accuracy between {found.verified:.4g} and {found.upper:.4g}")

"""The commands of dense CRFs: ``blocklp densecrf`` and ``blocklp stereo``.

Whatever these commands need is imported when they run: their options must not cost the other commands time.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from blocklp.errors import OptionError
from blocklp.problems.command_line.options import Against, Device, OneJson, Silent, grouped
from blocklp.problems.command_line.process import EXIT_INTERRUPTED, EXIT_STOPPED, interruptible, until

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from blocklp.deadline import Deadline
    from blocklp.problems.densecrf import Cliques, DenseCRF, Result

Rounding = Literal["argmax", "kleinberg-tardos", "tree", "descent", "expansion"]
Method = Annotated[str, typer.Option(metavar="NAME", help="How to look for a labelling: mean-field, prox-lp, ...")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="An option of the method, such as steps=10; repeatable.")
]
TimeLimit = Annotated[float, typer.Option(help="Seconds after which the best so far is printed.")]
Smooth = Annotated[tuple[float, float], typer.Option(metavar="SXY WEIGHT", help="The smoothness kernel; weight 0 for none.")]
Bilateral = Annotated[
    tuple[float, float, float],
    typer.Option(metavar="SXY SRGB WEIGHT", help="The kernel of places and colours; weight 0 for none."),
]
Trace = Annotated[
    Path | None, typer.Option("--plot", metavar="TRACE.png", help="Write a picture of energy and bound (needs matplotlib).")
]
MaxBytes = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Most bytes of a file, decompressed, and of what is made of it; 2^30 unless raised."),
]
Best = Annotated[
    Path | None, typer.Option("--best", metavar="BEST.png", help="Write the labelling of least energy of all seen, as --out does.")
]
Rounded = Annotated[
    Rounding, typer.Option(metavar="NAME", help="Beside the largest scores: kleinberg-tardos, tree, descent or expansion.")
]


@dataclass(frozen=True)
class CrfOptions:
    """How a method runs, and what is told of it."""

    settings: Settings = None
    rounding: Rounded = "argmax"
    time_limit: TimeLimit = math.inf
    max_bytes: MaxBytes = None
    best: Best = None
    plot: Trace = None
    reference: Against = None
    device: Device = "cpu"
    as_json: OneJson = False
    quiet: Silent = False

    def answer(
        self, file: Path, size: tuple[int, int], crf: DenseCRF, method: str, options: dict[str, Any], deadline: Deadline
    ) -> tuple[Result, dict[str, Any]]:
        """Run a method with a live line about it; return its result, and what is printed, as numbers.

        Parameters
        ----------
        file : Path
            The picture.
        size : pair of int
            Its height and width.
        crf : DenseCRF
            The energy.
        method, options : str and dict
            The method and its options.
        deadline : Deadline
            When to stop.
        """
        from blocklp.problems.command_line.reference import compare
        from blocklp.problems.densecrf import explicit_model, solve_densecrf
        from blocklp.progress import ElapsedTime, Progress

        # Before the work, since many pictures are too large for that.
        with interruptible(), nullcontext() if self.quiet else ElapsedTime(f"solving the LP by {self.reference}"):
            other = None if self.reference is None else compare(explicit_model(crf), self.reference)
        with interruptible(), nullcontext() if self.quiet else Progress() as callback:
            result = solve_densecrf(crf, method, time_limit=deadline, callback=callback, rounding=self.rounding, **options)
        entry = _entry(file, size, crf, result)
        return result, entry | ({} if other is None else {"reference": other.entry()})


DRAWN = 0.9
"""Part of the pixels that have a stroke, from which on white ones are probably the paper."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("densecrf")(_densecrf_command)
    app.command("stereo")(_stereo_command)


@grouped
def _densecrf_command(
    ctx: typer.Context,
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="The picture.")],
    *,
    unary: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Costs: a .npy array (height, width, labels), or a .c_unary file.")
    ] = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", help="The .npy array holds probabilities, not costs.")] = False,
    scribbles: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Instead: a picture whose colours are labels, black is unknown.")
    ] = None,
    gt_prob: Annotated[
        float | None, typer.Option(help="Probability that a scribble of --scribbles is right.", show_default="0.7")
    ] = None,
    probability: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Instead: a grey picture of the probability of label 1.")
    ] = None,
    smooth: Smooth = (3.0, 3.0),
    bilateral: Bilateral = (80.0, 13.0, 10.0),
    normalise: Annotated[bool, typer.Option("--normalise/--no-normalise", help="Normalise the kernels symmetrically.")] = True,
    superpixels: Annotated[
        tuple[int, float, float] | None,
        typer.Option(metavar="COUNT GAMMA ETA", help="Superpixels that cost GAMMA exp(-variance / ETA) unless of one label."),
    ] = None,
    mean_shift: Annotated[
        tuple[int, float, float] | None,
        typer.Option(metavar="LEAST GAMMA ETA", help="Regions by mean shift, of LEAST pixels or more, instead or too."),
    ] = None,
    method: Method = "prox-lp",
    out: Annotated[
        Path | None, typer.Option(metavar="LABELS.png", help="Write the method's labels, 0 and up, as grey levels.")
    ] = None,
    overlay: Annotated[
        Path | None, typer.Option(metavar="OVERLAY.png", help="Write the labels in colours over the picture (needs matplotlib).")
    ] = None,
    run: CrfOptions,
) -> None:
    """Label the pixels of a picture by a dense CRF, with a lower bound on the energy of every labelling.

    Costs of labels come from one of --unary, --scribbles and --probability; kernels are named as in pydensecrf.  Labels, energy and
    gap are those of the method; the best labelling seen, simple ones included, stands beside them.

    Exit codes: 0 if the method came to its end, 1 if time ran out before, 2 for bad input, 130 after an interrupt (the best so far is
    still printed).
    """
    options = method_options(method, run.settings or [])
    given = [name for name, file in (("--unary", unary), ("--scribbles", scribbles), ("--probability", probability)) if file]
    if len(given) != 1:
        problem = f"{' and '.join(given)} are given" if given else "nothing says what labels cost"
        raise OptionError(f"{problem}; give one of --unary FILE, --scribbles FILE.png and --probability FILE.png")
    for option, value, owner in (("--gt-prob", gt_prob, scribbles), ("--probabilities", probabilities or None, unary)):
        if value is not None and owner is None:
            raise OptionError(f"{option} is given without the file that it speaks of; leave it out, or see --help")
    from blocklp.options import known_device
    from blocklp.problems.densecrf import image_crf, pictures, readers
    from blocklp.problems.files import MAX_BYTES

    deadline, most = until(run.time_limit, ctx.obj), MAX_BYTES if run.max_bytes is None else run.max_bytes
    place = known_device(run.device)
    places = _Places(out, run.best, overlay, run.plot)
    picture = readers.read_image(image, max_bytes=most, deadline=deadline)
    size = (picture.shape[0], picture.shape[1])
    names = None
    if unary is not None:
        costs = readers.read_unary(unary, size, probabilities, max_bytes=most, deadline=deadline)
    elif scribbles is not None:
        labels, painted = readers.read_scribbles(scribbles, size, max_bytes=most, deadline=deadline)
        costs = readers.scribble_unary(labels, len(painted), 0.7 if gt_prob is None else gt_prob)
        names = [f"{k}, #{bytes(colour).hex()}" for k, colour in enumerate(painted)]
        if (labels > 0).mean() > DRAWN and [255, 255, 255] in painted.tolist():
            typer.echo(f"{scribbles}: white is a label there, and black is unknown; draw on black or on nothing", err=True)
    else:
        assert probability is not None
        costs = readers.read_probability(probability, size, max_bytes=most, deadline=deadline)
    crf = image_crf(
        picture,
        costs.to(place),
        smooth=smooth if smooth[1] else None,
        bilateral=bilateral if bilateral[2] else None,
        normalise=normalise,
        time_limit=deadline,
    )
    crf = replace(crf, cliques=_cliques(picture.to(place), superpixels, mean_shift, deadline))
    result, entry = run.answer(image, size, crf, method, options, deadline)
    found = result.labelling.view(size).cpu()
    if crf.cliques is not None:
        entry["cliques"] = len(crf.cliques.cost)
    _report(entry, run.as_json)
    if entry["best_source"] == "constant" and crf.labels > 1 and entry["status"] not in ("time_limit", "interrupted"):
        typer.echo(_lighter(bilateral, None if scribbles is None else 0.7 if gt_prob is None else gt_prob), err=True)
    places.write(result, size, 1, lambda figure: pictures.draw_overlay(figure, picture, found, crf.labels, names))
    _exit(result)


def _lighter(bilateral: tuple[float, float, float], gt_prob: float | None) -> str:
    """What to do where one label everywhere is best: values of options that are not in force yet; ``gt_prob`` is of scribbles."""
    kernel = min(bilateral[0], 30.0), bilateral[1], min(bilateral[2], 5.0)
    given = f" (--bilateral {kernel[0]:g} {kernel[1]:g} {kernel[2]:g})" if bilateral[2] and kernel != bilateral else ""
    surer = ", or surer costs" if gt_prob is None else ", or surer costs (--gt-prob 0.95)" if gt_prob < 0.95 else ""
    told = "one label everywhere has the least energy seen: the kernels are heavy beside the costs; take narrower or lighter ones"
    return f"{told}{given}{surer}"


def _cliques(
    picture: Tensor,
    superpixels: tuple[int, float, float] | None,
    mean_shift: tuple[int, float, float] | None,
    deadline: Deadline,
) -> Cliques | None:
    """Cliques over superpixels, over regions by mean shift, over both, or none."""
    from blocklp.problems.densecrf import mean_shift_regions, region_cliques, superpixel_cliques

    found = None
    if superpixels is not None:
        count, gamma, eta = superpixels
        found = superpixel_cliques(picture, gamma, eta, count, time_limit=deadline)
    if mean_shift is not None:
        least, gamma, eta = mean_shift
        regions = region_cliques(picture, mean_shift_regions(picture, least=least, time_limit=deadline), gamma, eta)
        found = regions if found is None else found + regions
    return found


@grouped
def _stereo_command(
    ctx: typer.Context,
    left: Annotated[Path, typer.Argument(metavar="LEFT", help="The left picture of a rectified pair.")],
    right: Annotated[Path, typer.Argument(metavar="RIGHT", help="The right one.")],
    disparities: Annotated[int, typer.Option(metavar="N", help="Disparities are 0 to N - 1 pixels.")],
    *,
    truncation: Annotated[float, typer.Option(help="Largest cost of a match, a difference of colours from 0 to 255.")] = 20.0,
    most: Annotated[
        float, typer.Option(help="Where the cost of a difference of disparities ends; at most 1 is the Potts model.")
    ] = 2.0,
    smooth: Smooth = (3.0, 10.0),
    bilateral: Bilateral = (10.0, 10.0, 10.0),
    method: Method = "mean-field",
    out: Annotated[Path | None, typer.Option(metavar="DISP.png", help="Write the method's disparities as grey levels.")] = None,
    scale: Annotated[
        int | None, typer.Option(min=1, help="Grey levels a pixel of disparity, of --out and --truth; by default 256 // N.")
    ] = None,
    truth: Annotated[
        Path | None, typer.Option(metavar="FILE", help="True disparities as grey levels, 0 for unknown: report the bad pixels.")
    ] = None,
    overlay: Annotated[
        Path | None, typer.Option(metavar="PICTURE.png", help="Write the disparities beside the picture (needs matplotlib).")
    ] = None,
    run: CrfOptions,
) -> None:
    """Find the disparity of every pixel of the left of two rectified pictures by a dense CRF, with a lower bound on its energy.

    Exit codes: 0 if the method came to its end, 1 if time ran out before, 2 for bad input, 130 after an interrupt (the best so far is
    still printed).
    """
    options = method_options(method, run.settings or [])
    from blocklp.options import known_device
    from blocklp.problems.densecrf import pictures, readers, stereo
    from blocklp.problems.files import MAX_BYTES

    deadline, limit = until(run.time_limit, ctx.obj), MAX_BYTES if run.max_bytes is None else run.max_bytes
    place = known_device(run.device)
    places = _Places(out, run.best, overlay, run.plot)
    one, other = (readers.read_image(path, max_bytes=limit, deadline=deadline) for path in (left, right))
    readers.check_memory(left, 4 * one.shape[0] * one.shape[1] * disparities, f"costs of {disparities} disparities", limit)
    levels = max(1, 256 // max(1, disparities)) if scale is None else scale
    known = None
    if truth is not None:
        known = readers.read_image(truth, max_bytes=limit, deadline=deadline, lossless=True)[:, :, 0] / levels
        stereo.bad_pixels(one[:, :, 0], known)  # refuses a file of another size, or without a truth, before the work
    crf = stereo.stereo_crf(
        one.to(place),
        other.to(place),
        disparities,
        truncation=truncation,
        most=most,
        smooth=smooth if smooth[1] else None,
        bilateral=bilateral if bilateral[2] else None,
        time_limit=deadline,
    )
    size = (one.shape[0], one.shape[1])
    result, entry = run.answer(left, size, crf, method, options, deadline)
    found = result.labelling.view(size).cpu()
    if known is not None:
        entry["bad_pixels"] = stereo.bad_pixels(found, known)
        entry["bad_pixels_of_unaries"] = stereo.bad_pixels(crf.unary.argmin(1).view(size).cpu(), known)
    _report(entry, run.as_json)
    places.write(result, size, levels, lambda figure: pictures.draw_disparities(figure, one, found, known))
    _exit(result)


class _Places:
    """Where pictures of a result go, all of them optional; made before the work, so that no result is found that has no place.

    Parameters
    ----------
    out, best : Path, optional
        For the method's labels and for the best ones, as grey levels.
    overlay, plot : Path, optional
        For the labels in colours and for the run, which matplotlib draws.

    Raises
    ------
    MissingDependencyError
        If Pillow or matplotlib is missing.
    OptionError
        If a folder does not exist, or a suffix is another one.
    """

    def __init__(self, out: Path | None, best: Path | None, overlay: Path | None, plot: Path | None) -> None:
        from blocklp.problems.densecrf.pictures import check_png
        from blocklp.problems.plot import blank_figure

        self.out, self.best = out, best
        for path in (out, best):
            if path is not None:
                check_png(path)
        self.overlay, self.plot = (None if path is None else (path, blank_figure(path)) for path in (overlay, plot))

    def write(self, result: Result, size: tuple[int, int], levels: int, draw: Callable[[Figure], None]) -> None:
        """Write the pictures.

        Parameters
        ----------
        result : Result
            Of one image.
        size : pair of int
            Its height and width.
        levels : int
            Grey levels from a label to the next one.
        draw : callable
            Draws the labels in colours on an empty figure.
        """
        from blocklp.problems.densecrf.pictures import draw_trace, write_grey

        for path, labels in ((self.out, result.labelling), (self.best, result.best_labelling)):
            if path is not None:
                write_grey(path, labels.view(size).cpu() * levels)
        for place, drawn in ((self.overlay, draw), (self.plot, lambda figure: draw_trace(figure, result))):
            if place is not None:
                drawn(place[1])
                place[1].savefig(place[0], dpi=150)


def method_options(method: str, settings: Sequence[str]) -> dict[str, Any]:
    """Read a method's options, NAME=VALUE each.

    Raises
    ------
    OptionError
        If there is no such method, or it has no such option.
    """
    from blocklp.problems.densecrf.solve import METHODS
    from blocklp.problems.method_options import check_options

    found: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise OptionError(f"--set {setting}: give NAME=VALUE")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = {"true": True, "false": False}.get(value, value)  # or a word
    check_options(METHODS, method, found)
    return found


def _entry(file: Path, size: tuple[int, int], crf: DenseCRF, result: Result) -> dict[str, Any]:
    """What is printed, as numbers."""
    import torch

    import blocklp as bl
    from blocklp.problems.printing import json_number, json_status

    history = result.history
    return {
        "file": str(file),
        "height": size[0],
        "width": size[1],
        "labels": crf.labels,
        "method": result.method,
        "version": bl.__version__,
        "status": json_status(result.status),
        "energy": json_number(result.energy[0]),
        "gap": json_number(result.gap[0]),
        "best_energy": json_number(result.best_energy[0]),
        "best_gap": json_number(result.best_gap[0]),
        "best_source": result.best_source[0],
        "bound": json_number(result.bound[0]),
        "steps": len(history.seconds),
        "filter_calls": result.filter_calls,
        "seconds": result.seconds,
        "pixels": torch.bincount(result.labelling, minlength=crf.labels).tolist(),
        "best_pixels": torch.bincount(result.best_labelling, minlength=crf.labels).tolist(),
        "history": {
            "energy": [json_number(e) for e in history.energy[:, 0]],
            "bound": [json_number(b) for b in history.bound[:, 0]],
            "seconds": history.seconds.tolist(),
            "filter_calls": history.filter_calls.tolist(),
        },
    }


def _report(entry: dict[str, Any], as_json: bool) -> None:
    """Print a result."""
    if as_json:
        typer.echo(json.dumps(entry, allow_nan=False, indent=2))
        return
    used = sum(n > 0 for n in entry["pixels"])
    typer.echo(f"{entry['file']}: {entry['width']} x {entry['height']} pixels, {entry['labels']} labels, {used} of them used")
    if "cliques" in entry:
        typer.echo(f"{entry['cliques']} cliques")
    for what, name, kind in (("energy", entry["method"], ""), ("best energy seen", entry["best_source"], "best_")):
        energy, gap = entry[f"{kind}energy"], entry[f"{kind}gap"]
        found = "not evaluated in time" if energy is None else f"{energy:.8g} ({name}), gap {100 * gap:.2f} %"
        typer.echo(f"{what} {found}")
    typer.echo(f"bound {entry['bound']:.8g}: no labelling has less energy")
    if "reference" in entry:
        by = entry["reference"]
        value = "no value" if by["value"] is None else f"{by['value']:.8g}"
        typer.echo(f"LP by {by['solver']}: {by['status']}, {value}, {by['seconds']:.2f} s")
    status = entry["status"].replace("_", " ")
    typer.echo(f"{entry['method']}: {entry['steps']} steps, {entry['filter_calls']} filter calls, {entry['seconds']:.2f} s, {status}")
    if "bad_pixels" in entry:
        before = 100 * entry["bad_pixels_of_unaries"]
        typer.echo(f"bad pixels: {100 * entry['bad_pixels']:.2f} % off by more than 1; {before:.2f} % by the matching costs alone")


def _exit(result: Result) -> None:
    """End with the code of a result."""
    from blocklp.status import Status

    if result.status == Status.INTERRUPTED:
        raise typer.Exit(EXIT_INTERRUPTED)
    if result.status == Status.TIME_LIMIT:
        raise typer.Exit(EXIT_STOPPED)

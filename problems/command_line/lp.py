"""The commands ``blocklp lp`` and ``blocklp structure``; what they need is imported when they run."""

from __future__ import annotations

import json
import math
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blocklp.errors import ModelError, OptionError
from blocklp.problems.command_line.options import Against, Certified, Distributed, MaxBytes, OneJson, Reading, Seconds, grouped
from blocklp.problems.command_line.process import EXIT_STOPPED, interruptible, until
from blocklp.problems.files import MAX_BYTES

if TYPE_CHECKING:
    from blocklp.model import Model

BY_ROWS = {"method": "pdhg", "passes": 1_000_000, "patience": 20_000}
"""How processes solve an LP whose rows are beside the blocks: small steps, of which it takes many."""

SHOWN = 10
"""Most kinds of blocks that a table is followed by."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("lp")(_lp_command)
    app.command("structure")(_structure_command)


Files = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="Linear programs: .mps or .lp, compressed or not; several with --results.")
]
File = Annotated[Path, typer.Argument(metavar="FILE", help="A linear program: .mps or .lp, compressed or not.")]


@grouped
def _lp_command(
    ctx: typer.Context,
    files: Files,
    *,
    tol: Certified = 1e-4,
    time_limit: Seconds = math.inf,
    presolve: Annotated[bool, typer.Option(help="Whether HiGHS reduces the LP first.")] = True,
    simplex: Annotated[bool, typer.Option(help="Whether HiGHS's simplex method takes turns.")] = True,
    reading: Reading,
    solution: Annotated[bool, typer.Option("--solution", help="Print the values of all variables too.")] = False,
    reference: Against = None,
    distributed: Distributed = False,
    reach: Annotated[
        float | None, typer.Option(min=0, help="With --distributed: the most of variables that neither bounds nor rows bound.")
    ] = None,
    as_json: OneJson = False,
) -> None:
    """Solve a linear program of a file (of one with integers, its relaxation) to a certified gap."""
    if reading.one_by_one():
        from blocklp.problems.command_line.file_campaigns import run_files

        return run_files(ctx, _lp_command, files)
    if len(files) > 1:
        raise OptionError("several files are solved one by one; say by --results where their lines go")
    (file,) = files
    began = ctx.obj if isinstance(ctx.obj, float) else time.perf_counter()
    deadline = until(time_limit, ctx.obj)
    if distributed and (solution or reference is not None):
        raise OptionError("--solution and --reference are for one process; leave them out, or leave --distributed out")
    if reach is not None and not distributed:
        raise OptionError("--reach is for --distributed; leave it out: one process needs no bounds")
    if distributed:
        from blocklp.lp.rays import infeasible_by_one_row
        from blocklp.problems.command_line.distributed import run_distributed
        from blocklp.problems.lp import model_of_rows, read_linear_program, unbounded_variables
        from blocklp.status import Status
        from blocklp.tables import listed

        told: dict[str, object] = {}

        def part(*_: int) -> Model | Status:
            given = read_linear_program(file, max_bytes=reading.max_bytes, time_limit=deadline)
            told.update(integers_relaxed=given.integers, boxed=False, declared=[], reach=None)
            if infeasible_by_one_row(given.program):
                return Status.INFEASIBLE
            names = [given.columns[j] for j in unbounded_variables(given.program)]
            if names and reach is None:
                raise ModelError(
                    f"processes need bounds of all variables, and neither bounds nor rows bound {listed(map(repr, names))}; state "
                    "bounds in the file, or say by --reach how far from zero they may be: status and bound hold within it"
                )
            if names:
                told.update(boxed=True, declared=names, reach=reach)
            return model_of_rows(given.program, reach=reach)

        return run_distributed("lp", part, BY_ROWS | {"tol": tol, "time_limit": deadline}, as_json, told=told)
    from blocklp.lp.solve import solve_linear_program
    from blocklp.problems.command_line.reference import check_solver, compare_program
    from blocklp.problems.lp.readers import read_linear_program
    from blocklp.problems.printing import json_number, json_status
    from blocklp.progress import ElapsedTime

    if reference is not None:
        check_solver(reference)
    with interruptible(), ElapsedTime(f"reading {file.name}"):
        given = read_linear_program(file, max_bytes=reading.max_bytes, time_limit=deadline)
    with interruptible(), ElapsedTime(f"solving {file.name}"):
        found = solve_linear_program(given.program, tol=tol, time_limit=deadline, presolve=presolve, simplex=simplex)
    rows, columns = given.program.A.shape
    # The judge charges all rounding: there is one bound, under both names that scripts know.
    numbers = {"bound": found.bound, "safe_bound": found.bound, "primal": found.primal, "gap": found.gap}
    report = {
        "status": json_status(found.status),
        **{key: json_number(v) for key, v in numbers.items()},
        "seconds": time.perf_counter() - began,
        "rows": rows,
        "columns": columns,
    }
    names = [given.columns[j] for j in found.declared]
    report |= {"passes": found.passes, "integers_relaxed": given.integers, "declared": names, "reach": json_number(found.reach)}
    with interruptible(), ElapsedTime(f"solving {file.name} by {reference}"):
        other = None if reference is None else compare_program(given.program, reference)
    values = {name: float(v) for name, v in zip(given.columns, found.x, strict=True)} if solution else {}
    if as_json:
        report |= {} if other is None else {"reference": other.entry()}
        typer.echo(json.dumps({"file": str(file), **report, **({"x": values} if solution else {})}))
    else:
        _print(file, report | ({} if other is None else {"reference": str(other)}), values)
    raise typer.Exit(0 if str(found.status) == "optimal" else EXIT_STOPPED)


class ScoreName(StrEnum):
    """By what a structure is chosen."""

    white = "white"
    spfwh = "spfwh"


def _structure_command(
    ctx: typer.Context,
    file: File,
    score: Annotated[
        ScoreName, typer.Option(help="White area, or GCG's default, which likes set-partitioning masters.")
    ] = ScoreName.white,
    effort: Annotated[float, typer.Option(min=0, help="How much to try; 1 is about a second of one core.")] = 1.0,
    read: Annotated[Path | None, typer.Option(metavar="FILE.dec", help="Take the structure of a .dec or .blk file instead.")] = None,
    write: Annotated[Path | None, typer.Option(metavar="FILE.dec", help="Write the structure, as GCG reads it.")] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the matrix before and after (needs matplotlib).")
    ] = None,
    max_bytes: MaxBytes = MAX_BYTES,
    as_json: OneJson = False,
) -> None:
    """Find the block structure of a linear or mixed-integer program: blocks, and the rows and columns that link them."""
    deadline = until(math.inf, ctx.obj)
    from blocklp.lp.detection.detect import detect
    from blocklp.problems.lp.decompositions import read_decomposition, write_decomposition
    from blocklp.problems.lp.readers import read_linear_program
    from blocklp.progress import ElapsedTime

    figure = None
    if picture is not None:
        from blocklp.problems.plot import blank_figure

        figure = blank_figure(picture)
    with interruptible(), ElapsedTime(f"reading {file.name}"):
        given = read_linear_program(file, max_bytes=max_bytes, time_limit=deadline)
    began = time.perf_counter()
    with interruptible(), ElapsedTime(f"looking for blocks in {file.name}"):
        if read is None:
            found = detect(given.program, score=score.value, effort=effort)
        else:
            found = read_decomposition(read, given, max_bytes=max_bytes, time_limit=deadline)
    seconds = time.perf_counter() - began
    if write is not None:
        write_decomposition(write, found, given)
    if figure is not None and picture is not None:
        from blocklp.problems.lp.picture import draw_structure

        draw_structure(figure, given.program.A, found, file.name)
        figure.savefig(picture, dpi=150)
    rows, columns = given.program.A.shape
    report: dict[str, object] = {"rows": rows, "columns": columns, "entries": int(given.program.A.nnz), "blocks": found.blocks}
    report |= {"linking_rows": len(found.linking_rows), "linking_columns": len(found.linking_columns)}
    report |= {"white": found.white, "found": found.found, "note": found.note, "seconds": seconds}
    if as_json:
        sizes = [
            {"blocks": len(k.blocks), "name": k.name, "rows": k.rows, "columns": k.columns, "identical": k.identical}
            for k in found.kinds
        ]
        typer.echo(json.dumps({"file": str(file), **report, "kinds": sizes}))
    else:
        from blocklp.problems.printing import print_values

        print_values(str(file), {key: value for key, value in report.items() if value != ""})
        for kind in found.kinds[:SHOWN]:
            typer.echo(repr(kind))
        if len(found.kinds) > SHOWN:
            typer.echo(f"and {len(found.kinds) - SHOWN} more kinds of blocks")
    raise typer.Exit(0 if found.blocks else EXIT_STOPPED)


def _print(file: Path, report: dict[str, object], values: dict[str, float]) -> None:
    from rich.console import Console

    from blocklp.problems.printing import print_values

    declared = report["declared"]
    assert isinstance(declared, list)
    shown = report | {"declared": f"{len(declared)} variables" if declared else "none"}
    print_values(str(file), shown)
    console = Console()
    for name, number in values.items():
        console.print(f"{name} = {number:.9g}", highlight=False, markup=False)

"""The command line: its groups of commands, and ``blocklp demo``, ``warm-up`` and ``doctor``.

``HELP`` states where things are printed and the exit codes.  What a command needs is imported when it runs: its options must not
cost the others time, nor a wrong word.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from blocklp.errors import BlocklpError
from blocklp.problems.command_line import (
    datasets,
    densecrf,
    learnt,
    lp,
    matching,
    mis,
    mrf,
    proofs,
    qpbo,
    robust,
    supports,
    verification,
)
from blocklp.problems.command_line.options import OneJson
from blocklp.problems.command_line.process import EXIT_ERROR, EXIT_INTERRUPTED, interruptible

OPTIONAL = (
    "highspy",
    "gurobipy",
    "cvxpy",
    "matplotlib",
    "dimod",
    "ortools",
    "thinqpbo",
    "numba",
    "scikit-image",
    "mtkahypar",
    "ray",
    "pooch",
    "h5py",
    "pyarrow",
)


class Commands(TyperGroup):
    """The commands; an interrupt, and what blocklp or the file system refuses, becomes one line and exit code 130 or 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # who reads the output has enough; typer ends quietly
            raise
        except OSError as error:
            raise _ended(f"error: {error.filename}: {error.strerror}" if error.filename else f"error: {error}", EXIT_ERROR) from error
        except BlocklpError as error:
            raise _ended(f"error: {error}", EXIT_ERROR) from error
        except MemoryError as error:
            raise _ended(f"error: out of memory ({error})", EXIT_ERROR) from error
        except KeyboardInterrupt as error:
            raise _ended("interrupted", EXIT_INTERRUPTED) from error


def _ended(line: str, code: int) -> typer.Exit:
    """Print one line on standard error, and return what ends the command."""
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text(line, style="bold red"), soft_wrap=True)
    return typer.Exit(code)


HELP = """Certified bounds on real problems by block-bounded linear programs.  Start with: blocklp demo

Results go to standard output, progress and errors to standard error.

Exit codes: 0 if every instance reached the tolerance, 1 if one stopped before (its bound is valid all the same), 2 for
bad input or if time ran out before there was a bound, 130 after an interrupt (what is found so far is still printed)."""

app = typer.Typer(cls=Commands, no_args_is_help=True, help=HELP)
for group in (verification, supports, robust, densecrf, lp, matching, learnt, datasets, qpbo, mis, mrf, proofs):
    group.register(app)


@app.command("demo")
def demo_command() -> None:
    """Solve a few real problems that ship with the package's dependencies, and explain the results."""
    from rich.console import Console

    from blocklp.problems.command_line.demo import demo

    with interruptible():
        demo(Console())


@app.command("warm-up")
def warm_up_command(as_json: OneJson = False) -> None:
    """Compile the loops of the numba backend once on this machine, on all cores; takes a few minutes on two."""
    import json

    from rich.console import Console

    from blocklp.problems.warm_up import warm_up
    from blocklp.progress import ElapsedTime

    taken: dict[str, float] = {}
    errors = Console(stderr=True, highlight=False)
    with interruptible(), ElapsedTime("compiling loops, once on this machine", errors):
        for part, seconds in warm_up():
            taken[part] = seconds
            errors.print(f"{part}: {seconds:.1f} s")
        if as_json:
            print(json.dumps(taken))


@app.command("doctor")
def doctor_command() -> None:
    """Check this installation: versions, devices, compiled loops, packages, and a small problem; exits with 1 if it is wrong."""
    import importlib.metadata
    import sys

    import torch

    import blocklp as bl
    from blocklp.kernels.backend import accelerators
    from blocklp.problems.warm_up import ready

    typer.echo(f"blocklp {bl.__version__}, torch {torch.__version__}, Python {sys.version.split()[0]}")
    devices = [f"{name} ({what})" for name, what in accelerators().items()]
    typer.echo(f"devices: {', '.join(['cpu', *devices])}; {torch.get_num_threads()} threads")
    typer.echo(f"methods: {', '.join(bl.methods.METHODS)}")
    for package in OPTIONAL:
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            version = "not installed"
        typer.echo(f"{package}: {version}")
    typer.echo(f"compiled loops: {_loops(ready())}")
    model = bl.Model()
    x = model.variable("x", 2, lower=0, upper=1)
    model.add(x.sum() >= 1)
    model.minimize(2 * x[0] + 3 * x[1])
    found = model.solve(tol=1e-6)
    right = abs(float(found.bound[0]) - 2.0) <= 1e-5 and abs(float(found.primal[0]) - 2.0) <= 1e-5
    typer.echo(
        f"a small problem: {'solved' if right else 'WRONG'}, between {float(found.bound[0]):.6f} and {float(found.primal[0]):.6f}"
    )
    if not right:
        raise typer.Exit(1)


def _loops(ready: dict[str, bool] | None) -> str:
    """What is compiled, in words."""
    if ready is None:
        return "none, since numba is not installed"
    if missing := [name for name, there in ready.items() if not there]:
        return f"{len(ready) - len(missing)} of {len(ready)} sets; `blocklp warm-up` compiles the others ({', '.join(missing)})"
    return f"all {len(ready)} sets"

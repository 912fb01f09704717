"""The command ``blocklp train``; what it needs is imported when it runs."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from blocklp.problems.command_line.options import OneJson, Silent
from blocklp.problems.command_line.process import interruptible


class What(StrEnum):
    """What is learnt."""

    start = "start"
    branching = "branching"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("train")(_train_command)


def _train_command(
    family: Annotated[str, typer.Argument(metavar="FAMILY", help="ba, ising or matching; with --learn branching ba or er.")],
    output: Annotated[Path, typer.Option(metavar="OUT.safetensors", help="Where to write what was learnt.")],
    learn: Annotated[What, typer.Option(help="Multipliers to start from, or scores of variables to branch on.")] = What.start,
    seconds: Annotated[
        float, typer.Option(min=1, help="Most time for the gradient steps of a start, or the searches to learn from.")
    ] = 600.0,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds of a start; by default those that suit the family.")] = None,
    as_json: OneJson = False,
    quiet: Silent = False,
) -> None:
    """Train a start of solves, or branching scores, on random instances of a family; one thread is enough.

    An interrupt ends the training, and what was learnt so far is written.
    """
    from blocklp.errors import OptionError
    from blocklp.problems.learnt.families import BRANCHING, FAMILIES

    known: dict[str, Any] = dict(BRANCHING if learn is What.branching else FAMILIES)
    if family not in known:
        raise OptionError(f"there is no family {family!r} to learn a {learn} from; choose {', '.join(known)}")
    if rounds is not None and learn is What.branching:
        raise OptionError("--rounds is about starts; leave it out")
    train = _train_branching if learn is What.branching else _train_start
    with interruptible():
        report = {"family": family, "learnt": str(learn), **train(family, output, seconds, rounds, quiet)}
    if as_json:
        typer.echo(json.dumps({"file": str(output), **report}))
    else:
        from blocklp.problems.printing import print_values

        print_values(str(output), report)


def _train_start(family: str, output: Path, seconds: float, rounds: int | None, quiet: bool) -> dict[str, object]:
    """Train a start, write it, and say how it went."""
    from blocklp.problems.learnt.families import FAMILIES
    from blocklp.problems.learnt.training import TrainingEvent, train_start

    last: list[TrainingEvent] = []

    def told(event: TrainingEvent) -> None:
        if not quiet and (not last or event.seconds >= last[0].seconds + 10):
            last[:] = [event]
            typer.echo(
                f"{event.seconds:.0f} s | {event.steps} steps | distance to the optima {event.distance:.2g} of the first", err=True
            )

    own = FAMILIES[family]
    start = train_start(own.training, target=own.target, family=family, rounds=rounds or own.rounds, seconds=seconds, told=told)
    start.save(output)
    weight = None if start.weight != start.weight else start.weight
    return {"rounds": start.rounds, "passes": start.passes, "proximal_weight": weight}


def _train_branching(family: str, output: Path, seconds: float, rounds: int | None, quiet: bool) -> dict[str, object]:
    """Train branching scores, write them, and say how it went."""
    from blocklp.problems.learnt.branching import INSTANCES, train_branching
    from blocklp.problems.learnt.families import BRANCHING

    branching = train_branching(BRANCHING[family].draw, seconds=seconds / INSTANCES)
    branching.save(output)
    return {"instances": INSTANCES}

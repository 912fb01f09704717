"""The driver."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

from bench import registry, report

OPTIONS = {
    "limit": "seconds for each solver and instance",
    "minutes": "how long trials are made",
    "seed": "first seed of every trial",
    "count": "how many calls are measured",
    "images": "how many images are worked on",
    "passes": "iterations of every method",
}
"""Numbers that some cases take."""


def main() -> int:
    """Run the cases that were asked for."""
    names = registry.names()
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("what", choices=["list", "run", "all"])
    parser.add_argument("case", nargs="?", choices=names)
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes: a smoke run")
    for name, text in OPTIONS.items():
        parser.add_argument(f"--{name}", type=float, help=f"{text}, where a case has such an option")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args()
    if given.what == "list":
        for name in names:
            print(f"{name:10} {registry.load(name).title}")
        return 0
    if given.what == "run" and given.case is None:
        parser.error("run needs the name of a case; `python -m bench list` shows them")
    for name in OPTIONS:
        value = getattr(given, name)
        if value is not None and (given.what == "all" or name not in registry.load(given.case).options):
            parser.error(f"{given.case or 'all'} has no {name} that could be set")
        if value is not None and not (value > 0 or (name == "seed" and value == 0)):
            parser.error(f"--{name} is {value}; give a positive number")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    failed = False
    for name in names if given.what == "all" else [given.case]:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            failed |= any(record.get("findings") for record in run_case(registry.load(name), given))
        except FileNotFoundError as error:  # data that is not here: the message says what fetches it
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            failed = True
            continue
        print((given.out / f"{name}.md").read_text())
    return int(failed)


_stopped: list[int] = []
"""Signals that ended the run: solvers take an interrupt as the end of their own work, and return."""


def _stop(number: int, _: object) -> None:
    _stopped.append(number)
    raise KeyboardInterrupt


def run_case(case: registry.Case, given: argparse.Namespace) -> list[registry.Record]:
    """Run a case, write its page and return its records; if it is cut short, the page has the rows that there are."""
    command = f"python -m bench run {case.name}" + (" --quick" if given.quick else "")
    options: dict[str, Any] = {}
    for name, default in case.options.items():
        value = getattr(given, name)
        options[name] = default if value is None else value
        command += "" if value is None else f" --{name} {value:g}"
    records: list[registry.Record] = []
    try:
        for record in case.run(given.quick, **options):
            records.append(record)
            if _stopped:
                raise KeyboardInterrupt
    except (KeyboardInterrupt, Exception):
        if records:
            report.write(case, records, command + " (cut short)", given.out)
        raise
    report.write(case, records, command, given.out)
    return records


if __name__ == "__main__":
    raise SystemExit(main())

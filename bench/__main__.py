"""The driver."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

from bench import registry, report


def main() -> int:
    """Run the cases that were asked for."""
    cases = registry.load()
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("what", choices=["list", "run", "all"])
    parser.add_argument("case", nargs="?", choices=sorted(cases))
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes: a smoke run")
    parser.add_argument("--limit", type=float, help="seconds for each solver and instance, where a case has such a limit")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args()
    if given.what == "list":
        for name, case in sorted(cases.items()):
            print(f"{name:10} {case.title}")
        return 0
    if given.what == "run" and given.case is None:
        parser.error("run needs the name of a case; `python -m bench list` shows them")
    if given.limit is not None and (given.what == "all" or cases[given.case].limit is None):
        parser.error(f"{given.case or 'all'} has no limit that could be set")
    if given.limit is not None and not given.limit > 0:
        parser.error(f"--limit is {given.limit}; give a positive number of seconds")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    for name in sorted(cases) if given.what == "all" else [given.case]:
        print(f"{name} ...", file=sys.stderr, flush=True)
        run_case(cases[name], given)
        print((given.out / f"{name}.md").read_text())
    return 0


_stopped: list[int] = []
"""Signals that ended the run: solvers take an interrupt as the end of their own work, and return."""


def _stop(number: int, _: object) -> None:
    _stopped.append(number)
    raise KeyboardInterrupt


def run_case(case: registry.Case, given: argparse.Namespace) -> None:
    """Run a case and write its page; if it is cut short, with the rows that it has."""
    command = f"python -m bench run {case.name}" + (" --quick" if given.quick else "")
    options: dict[str, Any] = {}
    if case.limit is not None:
        options["limit"] = case.limit if given.limit is None else given.limit
        command += "" if given.limit is None else f" --limit {given.limit:g}"
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


if __name__ == "__main__":
    raise SystemExit(main())

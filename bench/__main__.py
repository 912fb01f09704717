"""The driver."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench import registry, report


def main() -> int:
    """Run the cases that were asked for."""
    cases = registry.load()
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("what", choices=["list", "run", "all"])
    parser.add_argument("case", nargs="?", choices=sorted(cases))
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes: a smoke run")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    given = parser.parse_args()
    if given.what == "list":
        for name, case in sorted(cases.items()):
            print(f"{name:10} {case.title}")
        return 0
    if given.what == "run" and given.case is None:
        parser.error("run needs the name of a case; `python -m bench list` shows them")
    for name in sorted(cases) if given.what == "all" else [given.case]:
        print(f"{name} ...", file=sys.stderr, flush=True)
        command = f"python -m bench run {name}" + (" --quick" if given.quick else "")
        report.write(cases[name], cases[name].run(given.quick), command, given.out)
        print((given.out / f"{name}.md").read_text())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Repeat one trial: ``python -m bench.soak TRIAL SEED``; without arguments, list them."""

from __future__ import annotations

import argparse
import sys
import warnings

from bench.soak.trial import Skipped, load


def main() -> int:
    """Run the trial, say what it found."""
    trials = load()
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("trial", nargs="?", choices=sorted(trials))
    parser.add_argument("seed", nargs="?", type=int, default=0)
    parser.add_argument("--size", type=float, default=1.0, help="share of the usual size of instances, at most 1")
    parser.add_argument("--count", type=int, default=1, help="this many seeds, from the one given")
    given = parser.parse_args()
    if given.trial is None:
        for name, one in sorted(trials.items(), key=lambda item: (item[1].family, item[0])):
            print(f"{one.family:13} {name:34} {one.claim}")
        return 0
    warnings.simplefilter("ignore")
    one, found = trials[given.trial], 0
    print(f"{one.name}: {one.claim}")
    for seed in range(given.seed, given.seed + given.count):
        try:
            message = one.run(seed, given.size)
        except Skipped as skipped:
            print(f"seed {seed}: skipped, {skipped}")
            continue
        found += message is not None
        print(f"seed {seed}: {'holds' if message is None else message}", flush=True)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

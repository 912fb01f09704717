"""Which trial finds which fault: ``python -m bench.soak.faults`` runs trials until one finds it, and prints a table.

It is meant for a checkout in which the mend of a fault is taken out (``--only`` names the fault).
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import warnings

from bench.soak.trial import Skipped, load

FAULTS = (
    (
        "Knapsack: the rounding of the load of lower bounds is charged by `safe_bound` only",
        "knapsacks-with-lower-bounds",
        "bound .* above",
    ),
    (
        "Knapsack: weights beyond normal numbers make `safe_bound` NaN",
        "bounds-hold knapsacks-with-lower-bounds warm-starts",
        "safe_bound is (NaN|-?inf)",
    ),
    ("Optimal with primal and bound apart by more than the tolerance", "optimal-is-optimal", r"\|primal - bound\|"),
    ("Tolerances absolute below 1: small costs", "costs-of-any-size", "in one unit"),
    ("Tolerances absolute below 1: small variables or rows", "variables-and-rows-of-any-size", "in one unit"),
    ("`feasibility_tol` absolute below 1: tiny marginals", "tiny-marginals", "is violated"),
    ("Polytope loses vertices in wide boxes", "polytopes-in-wide-boxes", "above|below"),
    ("Gradients are dropped without a word", "gradients", "requires gradients"),
    ("A compiled solver keeps an objective that was replaced", "replaced-objectives", "above|below|optimal"),
    ("Block data are aliased", "block-data-are-copied", "after a tensor was changed"),
    ("Bounds by instance with Knapsack", "bounds-by-instance", "Error|above|below"),
    ("Simplexes of different sizes do not compile together", "models-of-different-sizes", "Simplex"),
    ("A repair hook hides points", "hooks-hide-nothing", "without the hook"),
    ("Stalled while the bound still moves", "patience-waits-for-what-moves", "stalled"),
    ("A certificate says infeasible of a feasible model", "believed-oracles-prove-no-infeasibility", "infeasible"),
    (
        "A certified bound of a type with an oracle alone is above the optimum",
        "believed-oracles-prove-no-infeasibility",
        "passes the optimum",
    ),
    ("Certificates of tiny or huge costs are useless", "certificates-are-tight", "certified as"),
    ("The rounding of the constant of an objective is not charged", "large-constants", "above|below"),
    ("The same in Markov random fields", "field-bounds", "above"),
    ("NaN multipliers in a warm start", "warm-starts", "NaN"),
    ("Wrong types of options", "options-of-solve", "from inside"),
    ("Wrong forms of bounds, warm starts and callbacks", "forms-of-options", "from inside"),
    ("Wrong data of models, ragged tables, hooks", "data-of-models", "from inside"),
    ("Objects print as addresses", "texts", "prints as|status"),
    ("An oracle in float32 is refused with a wrong reason", "single-precision-oracles", "does not say why"),
    ("ProxBC and ProxFW freeze", "proximal-methods-move", "after 600"),
    ("ProxBC and ProxFW fall behind Polyak's step", "proximal-methods-move", "polyak"),
    ("Suffixes: case and compression", "files-of-any-suffix", "is read as|is refused"),
    ("Costs of .wcsp that sum to the upper bound", "sums-up-to-the-upper-bound", "reach the upper bound"),
    ("Headers that promise too much, bombs", "promises-and-bombs", "is read|no answer|Memory|died"),
    ("Constants of ONNX that grow", "constants-that-grow", "no answer|Memory|died"),
    ("Huge weights crash the projection of slopes", "huge-weights", "Error"),
    ("A verdict is lost when its file cannot be written", "places-that-cannot-be-written", "verdict"),
    ("Witnesses outside the decimals of the file", "verdicts", "outside the box"),
    ("`from_bqm` of a constrained model, complex matrices", "other-forms", "imaginary|change_vartype"),
    ("Unaries of -log(0) are refused by the pydensecrf face", "pydensecrf-face", "NonFiniteError"),
    ("Marginals depend on what needs gradients", "layers", "marginals differ"),
    ("`solve_densecrf(..., 'mean-field')` returns a constant labelling", "own-labellings", "mean field ends"),
    ("Calls come back after their time limit", "limits", "came back after"),
)
"""What was wrong in 0.1.0, the trials that should find it, and how their finding reads."""


def main() -> int:
    """Look for every fault, print a row each."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak.faults", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each fault")
    parser.add_argument("--only", default="", help="part of a fault's text")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    trials = load()
    print("| fault | trial | seed | trials | seconds | what it prints |\n| --- | --- | --- | --- | --- | --- |")
    for fault, names, pattern in FAULTS:
        if given.only not in fault:
            continue
        began, seed, skipped, row = time.perf_counter(), 0, 0, None
        while row is None and (time.perf_counter() - began < given.seconds or not seed):
            for name in names.split():
                try:
                    message = trials[name].run(seed)
                except Skipped:
                    skipped += 1
                    continue
                if message is not None and re.search(pattern, message):
                    row = name, seed, " ".join(message.split()).replace("|", "\\|")[:220]
                    break
            seed += 1
        seconds = time.perf_counter() - began
        found = (
            f"`{row[0]}` | {row[1]} | {seed} | {seconds:.1f} | {row[2]}"
            if row
            else f"`{names}` | - | {seed} | {seconds:.1f} | not found" + (f", {skipped} skipped" if skipped else "")
        )
        print(f"| {fault} | {found} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

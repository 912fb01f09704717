"""MPAX on an LP in a folder, as :mod:`bench.ortools_process`: ``python -m bench.mpax_process FOLDER SECONDS TOLERANCE`` prints JSON.

MPAX is on the path or in the folder that ``BLOCKLP_MPAX`` names.  Its time is that of a second run: the first one compiles.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
from scipy.sparse import load_npz, vstack

sys.path += [os.environ.get("BLOCKLP_MPAX", "")]


def main(folder: str, seconds: str, tolerance: str) -> None:
    """Read, solve, print."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp
    import mpax
    from jax.experimental.sparse import BCOO

    given = np.load(Path(folder) / "vectors.npz")
    rows, low, high = load_npz(Path(folder) / "rows.npz").tocsr(), given["above"], given["below"]
    equal, above, below = low == high, np.isfinite(low) & (low < high), np.isfinite(high) & (low < high)
    began = time.perf_counter()
    sides = vstack([rows[above], -rows[below]])
    lp = mpax.create_lp(
        jnp.array(given["c"]),
        BCOO.from_scipy_sparse(rows[equal]),
        jnp.array(low[equal]),
        BCOO.from_scipy_sparse(sides),
        jnp.array(np.concatenate([low[above], -high[below]])),
        jnp.array(given["low"]),
        jnp.array(given["high"]),
    )
    solver = mpax.r2HPDHG(eps_abs=float(tolerance), eps_rel=float(tolerance), iteration_limit=100_000)
    built = time.perf_counter()
    taken = []
    for _ in range(2):
        start = time.perf_counter()
        found = solver.optimize(lp)
        found.primal_solution.block_until_ready()
        taken.append(time.perf_counter() - start)
        if sum(taken) > float(seconds):
            break
    optimal = int(found.termination_status) == int(mpax.utils.TerminationStatus.OPTIMAL)
    value = float(given["c"] @ np.asarray(found.primal_solution)) if optimal else None
    answer = {"value": value, "build": built - began, "solve": min(taken), "status": "optimal" if optimal else "open"}
    print(json.dumps(answer | {"compile": taken[0] - min(taken), "iterations": int(found.iteration_count)}))


if __name__ == "__main__":
    main(*sys.argv[1:])

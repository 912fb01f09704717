"""DuaLip on a matching in a file: ``python -m bench.dualip_process FILE.npz ITERATIONS OUT.npz`` prints JSON.

A checkout of DuaLip is in the folder that ``BLOCKLP_DUALIP`` names.  Options are those of its own benchmark with Jacobi
preconditioning, in float32, but for the regularisation, which is ten times smaller: of these, of decaying regularisation and of
larger steps they leave the smallest gap on the instances of :mod:`bench.cases.matching`.  It has no stopping test; its prices and
its point are written out for a judge.
"""

from __future__ import annotations

import json
import os
import sys
import time
import types
from pathlib import Path

import numpy as np
import torch

GAMMA = 1e-4
"""Regularisation."""


def main(file: str, iterations: str, out: str) -> None:
    """Read, solve, write, print."""
    sys.path.insert(0, str(Path(os.environ["BLOCKLP_DUALIP"]) / "src"))
    sys.modules.setdefault("mlflow", types.ModuleType("mlflow"))  # imported, not used
    from dualip.objectives.matching import MatchingInputArgs, MatchingSolverDualObjectiveFunction
    from dualip.optimizers.agd import AcceleratedGradientDescent
    from dualip.preprocessing.precondition import jacobi_invert_precondition, jacobi_precondition
    from dualip.projections.base import create_projection_map

    torch.set_num_threads(1)
    given, most = np.load(file), int(iterations)
    source, destination = given["source"], given["destination"]
    sources, destinations = int(source.max()) + 1, len(given["capacity"])
    began = time.process_time()
    order = np.lexsort((destination, source))
    starts = np.zeros(sources + 1, dtype=np.int64)
    np.cumsum(np.bincount(source, minlength=sources), out=starts[1:])

    def matrix(values: np.ndarray) -> torch.Tensor:
        entries = torch.from_numpy(values[order].astype(np.float32))
        places = torch.from_numpy(starts), torch.from_numpy(destination[order].astype(np.int64))
        return torch.sparse_csc_tensor(*places, entries, size=(destinations, sources))

    rows, side = matrix(given["weight"]), torch.from_numpy(given["capacity"].astype(np.float32))
    norms = jacobi_precondition(rows, side)
    kinds = create_projection_map(proj_type="simplex", proj_params={"z": 1.0}, num_indices=sources)
    problem = MatchingSolverDualObjectiveFunction(MatchingInputArgs(rows, matrix(-given["value"]), kinds, side), gamma=GAMMA)
    solver = AcceleratedGradientDescent(
        max_iter=most,
        gamma=GAMMA,
        initial_step_size=1e-3,
        max_step_size=0.1,
        save_primal=True,
        iteration_callback=lambda *_: None,
    )
    found = solver.maximize(problem, torch.zeros_like(side))
    seconds = time.process_time() - began
    price = jacobi_invert_precondition(found.dual_val, norms)
    x = np.empty(len(source))
    x[order] = found.objective_result.primal_var.double().flatten().numpy()
    np.savez(out, price=price.double().numpy(), x=x)
    print(json.dumps({"seconds": seconds, "iterations": most, "printed": -float(found.dual_objective)}))


if __name__ == "__main__":
    main(*sys.argv[1:])

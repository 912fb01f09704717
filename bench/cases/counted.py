"""What a solve costs, counted instead of timed: the same on every machine, so that a test can compare it."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import blocklp as bl
from bench.families import FAMILIES
from bench.instances import ba
from bench.registry import Record, case
from bench.rivals import max_flow
from blocklp.general_solvers.solvers import reference
from blocklp.problems.qpbo.relaxation import roof_duality_model

ERRORS = (1e-2, 1e-3, 1e-6)
MOST = 1000
METHODS = {
    "admm": bl.methods.Admm(),
    "pdhg": bl.methods.Pdhg(),
    "smooth": bl.methods.Smooth(),
    "prox": bl.methods.Prox(),
    "bundle": bl.methods.Bundle(),
}


class Counter(TorchDispatchMode):
    """Tensor operations other than views, bytes of new tensors, and calls of compiled loops."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.allocated = self.loops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operation."""
        out = func(*args, **(kwargs or {}))
        aliases = [r.alias_info for r in func._schema.returns]
        self.operations += any(a is None or a.is_write for a in aliases)
        made = out if isinstance(out, tuple | list) else (out,)
        for value, alias in zip(made, aliases, strict=False):
            if alias is None and isinstance(value, Tensor):
                self.allocated += value.numel() * value.element_size()
        return out

    def seen(self, frame: FrameType, event: str, argument: Any) -> None:
        """Count a call of loops."""
        self.loops += event == "call" and frame.f_code.co_name == "run" and frame.f_code.co_filename.endswith("compiled.py")


def count(solver: bl.Solver, method: bl.methods.Method, passes: int) -> Counter:
    """A solve of so many passes, with a check at the first and at the last."""
    counter = Counter()
    sys.setprofile(counter.seen)
    try:
        with counter:
            solver.solve(method=method, passes=passes, tol=0, check_every=10**6, patience=10**6)
    finally:
        sys.setprofile(None)
    return counter


@case(
    "counted",
    "Passes, operations and memory, counted",
    "Passes until the best bound is within an error of the optimum (relative; checks every ten passes, nothing where 1000 do "
    "not suffice), and what a pass of a batch of four equal instances costs in float32 between checks: tensor operations other "
    "than views (what a GPU would launch, but for sums that a CPU makes in order), bytes of new tensors for each copy, and calls of "
    "compiled loops. The same figures on every machine; `bench/tests/test_bench.py` runs the first rows and compares.",
)
def run(quick: bool) -> list[Record]:
    qubo = ba(1000, 0)
    cases = {"BA-1000": (roof_duality_model(qubo), max_flow(qubo)[0])}
    for name, build in list(FAMILIES.items())[: 0 if quick else None]:
        cases[name] = (build(0), reference(build(0)).objective.item())
    records: list[Record] = []
    for family, (model, truth) in cases.items():
        sign = -1 if model.maximizing else 1
        for name, method in list(METHODS.items())[: 3 if quick else None]:
            for looped in (False, True) if family == "BA-1000" and name in ("admm", "pdhg") else (False,):
                backend = "numba" if looped else "torch"
                solver = bl.compile([model] * 4, dtype=torch.float32, backend=backend)
                try:
                    solver.solve(method=method, passes=1)  # what is built once
                    few, many = (count(solver, method, passes) for passes in (11, 31))
                except bl.BlocklpError:
                    continue  # the types lack what the method needs
                row: Record = {"family": family, "method": name + (", loops" if looped else "")}
                found = model.compile(backend=backend).solve(
                    method=method, passes=MOST, tol=0, patience=10**6, history=True, check_every=10
                )
                for error in ERRORS:
                    close = [e.passes for e in found.history if sign * (truth - e.bound.item()) <= error * abs(truth)]
                    row[f"passes to {error:g}"] = close[0] if close else None
                row["operations"] = (many.operations - few.operations) / 20
                row["bytes a copy"] = (many.allocated - few.allocated) / 20 / 4 / solver.decomposition().copies
                row["loops"] = (many.loops - few.loops) / 20
                records.append(row)
                print(row, file=sys.stderr, flush=True)
    return records

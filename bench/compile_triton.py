"""Compile the Triton kernels of ADMM and of checks for a GPU, on a machine that has none: registers, spills, barriers.

    python -m bench.compile_triton

Every kernel that a solve launches is compiled for compute capability 9.0 with the arguments that the solve gives
it, instead of being launched.  ``spilled`` counts bytes of a thread's stack.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget

import blocklp as bl
from blocklp.kernels import triton_admm, triton_check_operations, triton_checks
from blocklp.kernels.operations import IMPLEMENTATIONS
from blocklp.kernels.plan import Plan
from blocklp.kernels.triton_launch import WARPS
from blocklp.kernels.triton_tables import tables
from blocklp.methods import Admm
from blocklp.oracles import AtMostOne, Edge, Knapsack, Simplex

assert triton_check_operations is not None  # which registers operations


@dataclass(frozen=True)
class Compiled:
    """What a kernel takes.

    Attributes
    ----------
    name : str
        Of the kernel.
    registers, spilled : int
        Registers of a thread, and bytes of its stack.
    barriers, fused, cached : int
        Barriers, fused additions, and reads by the cache that does not see what the kernel writes.
    singles : int
        Operations in single precision.
    lanes : set of int
        Entries of a tensor that a thread holds.
    """

    name: str
    registers: int
    spilled: int
    barriers: int
    fused: int
    cached: int
    singles: int
    lanes: set[int]


class Card:
    """What Triton asks a driver before it compiles."""

    def get_current_target(self) -> GPUTarget:
        """What to compile for."""
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        """There is one."""
        return 0

    def get_current_stream(self, device: int) -> int:
        """There is one."""
        return 0


def compiled(kernel: Any, args: tuple[Any, ...], constants: dict[str, Any]) -> Compiled:
    """Compile a kernel for some arguments, as a launch does."""
    options = {"num_warps": WARPS, "enable_fp_fusion": False}
    made = kernel.warmup(*args, grid=(1,), **constants, **options)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, spilled = (int(n) for n in re.findall(r"REG:(\d+) STACK:(\d+)", usage)[-1])
    code = made.asm["ptx"]
    counts = (len(re.findall(what, code)) for what in (r"bar\.sync", r"fma\.rn", r"ld\.global\.nc"))
    singles = len(re.findall(r"\.f32\b", code))
    lanes = {int(n) for n in re.findall(r"#ttg\.blocked<\{sizePerThread = \[(\d+)\]", made.asm["ttgir"])}
    return Compiled(kernel.fn.__name__, registers, spilled, *counts, singles, lanes)


@contextmanager
def compiling() -> Iterator[list[Compiled]]:
    """Have kernels compiled and not launched, once for each form."""
    found: list[Compiled] = []
    seen: set[str] = set()  # groups of one type and size have one kernel

    def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
        key = f"{kernel.fn.__name__} {sorted(constants.items(), key=lambda item: item[0])}"
        if key not in seen:
            seen.add(key)
            found.append(compiled(kernel, args, constants))

    triton.runtime.driver.set_active(Card())
    with mock.patch.object(triton_admm, "launch", launch), mock.patch.object(triton_checks, "launch", launch):
        yield found


def edges() -> bl.Model:
    """Edges, which have a coordinate of their own."""
    draw = np.random.default_rng(0)
    ends = np.array([(i, (i + step) % 30) for i in range(30) for step in (1, 4)])
    m = bl.Model(2)
    y, z = m.variable("y", 30, lower=0, upper=1, grid=0.5), m.variable("z", len(ends), lower=0, upper=1)
    m.add(Edge(), [y[ends[:, 0]], y[ends[:, 1]], z])
    m.minimize((draw.normal(size=(2, 30)) * y).sum() + (draw.normal(size=(2, len(ends))) * z).sum())
    return m


def mixed(size: int) -> bl.Model:
    """Choices, knapsacks and boxes over the same variables."""
    draw = np.random.default_rng(0)
    m = bl.Model(2)
    x = m.variable("x", (size, size), lower=0, upper=1)
    m.add(Simplex(size), x)
    m.add(Knapsack(draw.uniform(1, 9, (2, size, size)), 14.0), x.T)
    m.add(AtMostOne(size), x.T.reshape(size, size))
    m.minimize((draw.normal(size=(2, size, size)) * x).sum())
    return m


def kernels(model: bl.Model, dtype: torch.dtype, anchored: Sequence[bool] = (False, True)) -> list[Compiled]:
    """What all kernels of a solve take, without or with anchors."""
    problem = model.compile(backend="torch").decomposition()
    plan = Plan(problem).to(dtype)
    method = Admm()
    state = method.start(plan, plan.problem.to_dual(plan.problem.cost), None)
    made = tables(Plan(problem), True)
    plan = replace(plan, tables=made.filled(plan))
    with compiling() as found:

        def run(name: str, *args: Any) -> None:
            IMPLEMENTATIONS[name, "triton"][0].function(plan, *args)

        run("admm_first_means", state.duals, state.points)
        run("admm_first_iterates", state.eta, 1.5, state.mean, state.duals, state.points)
        forms = state, replace(state, anchor=torch.zeros_like(state.iterate), passes=200)
        for own in (forms[k] for k in anchored):
            relaxation = method.relaxed(own)
            for together in (True, False):
                with mock.patch.object(triton_admm, "_together", return_value=together):
                    run("admm_passes", own, relaxation, 3, 2)
            run("admm_settled", own, method)
            run("admm_restart", own, relaxation, own.ready, own.eta, own.anchor)
    return found


def checks(model: bl.Model, dtype: torch.dtype) -> list[Compiled]:
    """What all kernels of a check take, for iterates in a precision: in one launch, and in one for each phase."""
    plan = Plan(model.compile(backend="torch").decomposition())
    problem, made = plan.problem, tables(plan, True)
    plan = replace(plan, tables=made.filled(plan))
    bound, primal, value, eta = torch.zeros(4, problem.batch, dtype=torch.float64)
    duals, mean = problem.to_dual(problem.cost).to(dtype), problem.cost.to(dtype)
    with compiling() as found:

        def run(name: str, *args: Any) -> None:
            IMPLEMENTATIONS[name, "triton"][0].function(plan, *args)

        for whole in (10**6, 0):
            with mock.patch.object(triton_checks, "WHOLE", whole):
                run("improved_bounds", duals, (1e-13, 0.01), primal, bound, duals)
                run("offer_mean", mean, (1e-13, 1e-6), bound, primal, problem.cost)
        run("finish_points", torch.arange(problem.batch), problem.cost)
        run("status_record", bound, value.to(dtype), primal, problem.cost, None, eta.to(dtype))
    return found


def main() -> None:
    """Print what each kernel takes."""
    for name, model in (("edges", edges()), ("4 coordinates", mixed(4)), ("12 coordinates", mixed(12))):
        for dtype in (torch.float64, torch.float32):
            for own in (*kernels(model, dtype), *(checks(model, dtype) if name == "edges" else ())):
                print(f"{name:16}{str(dtype)[6:]:9}{own}")


if __name__ == "__main__":
    main()

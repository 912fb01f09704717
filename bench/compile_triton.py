"""Compile all Triton kernels for a GPU, on a machine that has none: registers, spills, barriers.

    python -m bench.compile_triton

Every kernel that a solve or a filter launches is compiled for compute capability 9.0 with the arguments and options
that it is launched with, instead of being launched.  ``spilled`` counts bytes of a thread's stack.
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
from triton.runtime.jit import JITFunction

import blocklp as bl
from bench.families import ring
from blocklp.kernels import triton_admm, triton_check_operations, triton_checks, triton_projection
from blocklp.kernels.backend import Backend
from blocklp.kernels.operations import IMPLEMENTATIONS
from blocklp.kernels.plan import Plan
from blocklp.kernels.settings import EngineSettings
from blocklp.kernels.triton_launch import WARPS
from blocklp.kernels.triton_tables import tables
from blocklp.methods import Admm, triton_prox, triton_vertices
from blocklp.methods.pdhg import Pdhg
from blocklp.methods.prox import Prox
from blocklp.methods.sweeps import OracleQuery, ask
from blocklp.oracles import AtMostOne, Knapsack, Simplex
from blocklp.oracles.filters import lattice_operations, triton_embedding, triton_lattice
from blocklp.oracles.filters.permutohedral import Lattice
from blocklp.oracles.filters.triton_ordered import ordered_filter
from blocklp.problems.densecrf import image_crf, triton_steps

REGISTERED = triton_check_operations, triton_projection, triton_prox, triton_steps, triton_vertices
"""Modules that register operations."""


@dataclass(frozen=True)
class Compiled:
    """Registers and other needs of a kernel.

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
    """A driver's answers to Triton before it compiles."""

    def get_current_target(self) -> GPUTarget:
        """The device to compile for."""
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
    return described(kernel, kernel.warmup(*args, grid=(1,), **constants, **options))


def described(kernel: Any, made: Any) -> Compiled:
    """Say what a kernel takes that was compiled."""
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
    """Have kernels compiled and not launched; forms of a kernel that take as much are listed once."""
    found: list[Compiled] = []
    seen: set[str] = set()
    start = JITFunction.run

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **constants: Any) -> Any:
        made = start(kernel, *args, grid=grid, warmup=True, **constants)
        if made.hash not in seen:
            seen.add(made.hash)
            own = described(kernel, made)
            if own not in found:  # such as for another number of blocks
                found.append(own)
        return made

    triton.runtime.driver.set_active(Card())
    with mock.patch.object(JITFunction, "run", run):
        yield found


def run(name: str, *args: Any) -> Any:
    """Call the implementation of an operation in Triton."""
    return IMPLEMENTATIONS[name, "triton"][0].function(*args)


def edges() -> bl.Model:
    """Edges, which have a coordinate of their own."""
    return ring(np.random.default_rng(0))


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


class Many(bl.FiniteVertices):
    """A table of 24 vertices."""

    vertices = np.random.default_rng(7).uniform(-1, 1, (24, 3)).tolist()


def crossed(first: bl.BlockType, second: bl.BlockType) -> bl.Model:
    """Blocks of three variables in rows, and of another type in columns, and a row beside them."""
    draw = np.random.default_rng(0)
    m = bl.Model(2)
    x = m.variable("x", (6, 3), lower=-1, upper=1)
    m.add(first, x)
    m.add(second, x.T.reshape(6, 3))
    m.minimize((draw.normal(size=(2, 6, 3)) * x).sum())
    return m


def admm(model: bl.Model, dtype: torch.dtype, anchored: Sequence[bool] = (False, True)) -> list[Compiled]:
    """Compile the kernels of a solve by ADMM, without or with anchors."""
    problem = model.compile(backend="torch").decomposition()
    plan = Plan(problem).to(dtype)
    method = Admm()
    state = method.start(plan, plan.problem.to_dual(plan.problem.cost), None)
    made = tables(Plan(problem), True)
    plan = replace(plan, tables=made.filled(plan))
    with compiling() as found:
        run("admm_first_means", plan, state.duals, state.points)
        run("admm_first_iterates", plan, state.eta, 1.5, state.mean, state.duals, state.points)
        forms = state, replace(state, anchor=torch.zeros_like(state.iterate), passes=200)
        for own in (forms[k] for k in anchored):
            relaxation = method.relaxed(own)
            for together in (True, False):
                with mock.patch.object(triton_admm, "_together", return_value=together):
                    run("admm_passes", plan, own, relaxation, 3, 2)
            run("admm_settled", plan, own, method)
            run("admm_restart", plan, own, relaxation, own.ready, own.eta, own.anchor)
    return found


def checks(model: bl.Model, dtype: torch.dtype) -> list[Compiled]:
    """Compile the kernels of a check, for iterates in a precision: in one launch, and in one for each phase."""
    plan = Plan(model.compile(backend="torch").decomposition())
    problem, made = plan.problem, tables(plan, True)
    plan = replace(plan, tables=made.filled(plan))
    bound, primal, value, eta = torch.zeros(4, problem.batch, dtype=torch.float64)
    duals, mean = problem.to_dual(problem.cost).to(dtype), problem.cost.to(dtype)
    with compiling() as found:
        for whole in (10**6, 0):
            with mock.patch.object(triton_checks, "WHOLE", whole):
                run("improved_bounds", plan, duals, (1e-13, 0.01), primal, bound, duals)
                run("offer_mean", plan, mean, (1e-13, 1e-6), bound, primal, problem.cost)
        run("finish_points", plan, torch.arange(problem.batch), problem.cost)
        run("status_record", plan, bound, value.to(dtype), primal, problem.cost, None, eta.to(dtype))
    return found


def rows(dtype: torch.dtype) -> list[Compiled]:
    """Compile the kernels of rows and vertices, in the forms in which PDHG and Prox launch them."""
    with compiling() as found:
        plan = Plan(crossed(Simplex(3), Knapsack(np.ones((6, 3)), 2.0, 0, 1)).compile(backend="torch").decomposition().to(dtype))
        problem, method = plan.problem, Pdhg()
        state = method.weighted(plan, method.start(plan, problem.to_dual(problem.cost), None))
        program = replace(state.program, backend=Backend("triton"))
        plan = replace(plan, backend=Backend("triton"), programs={dtype: program})
        state = replace(state, program=program)
        run("copy_sums", plan)(state.duals)
        run("row_products", program, problem, (program.entries, program.coupling), state.now[0])
        run("row_extremes", program, problem, state.now[1])
        for tiles in (0, 10**9):
            dealt = replace(plan, settings=EngineSettings(cached_row_tiles=tiles, launched_tiles=tiles))
            run("pdhg_passes", dealt, state, method, 6)
            run("projection_passes", dealt, state.now[0], torch.zeros_like(state.now[1]), 1)
        for model in (edges(), crossed(Many(), AtMostOne(3))):
            problem = model.compile(backend="torch").decomposition().to(dtype)
            plan, prox = Plan(problem, backend=Backend("triton")), Prox()
            begun = prox.start(plan, problem.to_dual(problem.cost), None)
            vertices = begun.atoms, begun.weights, begun.earlier
            run("prox_schedule", plan, prox, begun, ask(Plan(problem), begun.points, begun.centre, begun.eta, *vertices))
            for group, *own in zip(problem.groups, *vertices, strict=True):
                query = OracleQuery(problem, begun.points, begun.centre, begun.eta, begun.duals.clone())
                answer, _ = run("ask_group", plan, group, query, *own)
                steps = begun.duals, begun.eta, begun.eta, 2
                run("advance_group", plan, group, answer, steps, begun.points)
                run("steps_to_points", plan, group, own[0], own[1], (begun.points, begun.duals, begun.eta), 1)
    return found


def filters(dtype: torch.dtype) -> list[Compiled]:
    """Compile the kernels of filters of points: of lattices, and in the order of scores."""
    draw = torch.Generator().manual_seed(0)
    features, values = torch.randn(70, 3, generator=draw, dtype=dtype), torch.randn(70, 5, generator=draw, dtype=dtype)
    lattice = Lattice.build(features)
    weights, vertices, size = lattice.weights, lattice.vertices, lattice.size
    with compiling() as found, mock.patch.object(lattice_operations, "kernels", return_value=triton_lattice):
        for image in (None, torch.arange(70) // 40):
            steps, start, offsets, _ = triton_embedding.vertex_keys(features, image)
            triton_embedding.embed(features, steps, start, offsets)
        triton_embedding.diagonal(weights, vertices, lattice.neighbours, lattice.scale)
        for others in (False, True):
            summed = triton_lattice.splat(values, weights, vertices, size, lattice.entries, others=others)
        for way in (0, 1, -1):
            triton_lattice.blur(summed, lattice.neighbours, way, lattice.scale)
        triton_lattice.slice_(summed, weights, vertices)
        triton_lattice.products(summed, values, vertices)
        for levels in (8, 70):  # the latter in the exact order
            ordered_filter(lattice, values, values, levels, None)
    return found


def mean_field(dtype: torch.dtype) -> list[Compiled]:
    """Compile the kernels of mean field and of energies of labellings, for costs that are Potts' or a table's."""
    draw = torch.Generator().manual_seed(0)
    picture, costs = 255 * torch.rand(6, 5, 3, generator=draw), torch.rand(6, 5, 3, generator=draw, dtype=dtype)
    table = torch.tensor([[0.2, 1.0, 2.0], [1.0, 0.0, 1.5], [2.0, 1.5, 0.1]], dtype=torch.float64)
    crfs = [image_crf(picture, costs, compatibility=own, bilateral=(8.0, 60.0, 5.0)) for own in (None, table)]
    with compiling() as found, mock.patch.object(lattice_operations, "kernels", return_value=triton_lattice):
        for crf in crfs:
            for unit in (torch.ones_like(crf.unary[:, :1]), 1.0):
                run("mean_field_update", crf, crf.unary.softmax(1), unit)
            run("labelling_energy", crf, crf.unary.argmin(1))
    return found


def main() -> None:
    """Print what each kernel takes."""
    for dtype in (torch.float64, torch.float32):
        cases = {"rows": rows(dtype), "filters": filters(dtype), "mean field": mean_field(dtype)}
        cases |= {"edges": admm(edges(), dtype) + checks(edges(), dtype)}
        cases |= {f"{size} coordinates": admm(mixed(size), dtype) for size in (4, 12)}
        for name, found in cases.items():
            for own in found:
                print(f"{name:16}{str(dtype)[6:]:9}{own}")


if __name__ == "__main__":
    main()

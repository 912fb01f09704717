"""Compile the Triton kernels of rows and vertices for a GPU, on a machine that has none: registers, spills, barriers.

    python -m bench.compile_triton_rows

As :mod:`bench.compile_triton` does for those of ADMM.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import torch
import triton

import blocklp as bl
from bench.compile_triton import Card, Compiled, compiled, edges
from blocklp.kernels import triton_projection, triton_rows
from blocklp.kernels.backend import Backend
from blocklp.kernels.operations import IMPLEMENTATIONS
from blocklp.kernels.plan import Plan
from blocklp.methods import triton_prox, triton_vertices
from blocklp.methods.pdhg import Pdhg
from blocklp.methods.prox import Prox
from blocklp.methods.sweeps import Query, ask
from blocklp.oracles import AtMostOne, Knapsack, Simplex

MODULES = triton_rows, triton_projection, triton_vertices, triton_prox


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


def kernels(dtype: torch.dtype) -> list[Compiled]:
    """What all kernels take, in the forms in which solves by PDHG and by Prox launch them."""
    found: list[Compiled] = []
    seen: set[str] = set()

    def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
        key = f"{kernel.fn.__name__} {sorted(constants.items())}"
        if key not in seen:
            seen.add(key)
            found.append(compiled(kernel, args, constants))

    def run(name: str, *args: Any) -> Any:
        return IMPLEMENTATIONS[name, "triton"][0].function(*args)

    triton.runtime.driver.set_active(Card())
    with ExitStack() as stack:
        for module in MODULES:
            stack.enter_context(mock.patch.object(module, "launch", launch))
        plan = Plan(crossed(Simplex(3), Knapsack(np.ones((6, 3)), 2.0)).compile(backend="torch").decomposition().to(dtype))
        problem, method = plan.problem, Pdhg()
        state = method.weighted(plan, method.start(plan, problem.to_dual(problem.cost), None))
        program = replace(state.program, backend=Backend("triton"))
        plan = replace(plan, backend=Backend("triton"), programs={dtype: program})
        state = replace(state, program=program)
        run("copy_sums", plan)(state.duals)
        run("row_products", program, problem, (program.entries, program.coupling), state.now[0])
        run("row_extremes", program, problem, state.now[1])
        for tiles in (0, 10**9):
            with mock.patch.multiple(triton_rows, CACHED=tiles, SMALL=tiles):
                run("pdhg_passes", plan, state, method, 6)
                run("projection_passes", plan, state.now[0], torch.zeros_like(state.now[1]), 1)
        for model in (edges(), crossed(Many(), AtMostOne(3))):
            problem = model.compile(backend="torch").decomposition().to(dtype)
            plan, prox = Plan(problem, backend=Backend("triton")), Prox()
            begun = prox.start(plan, problem.to_dual(problem.cost), None)
            run(
                "prox_schedule",
                plan,
                prox,
                begun,
                ask(Plan(problem), begun.points, begun.centre, begun.eta, begun.atoms, begun.weights, begun.earlier),
            )
            for group, *own in zip(problem.groups, begun.atoms, begun.weights, begun.earlier, strict=True):
                query = Query(problem, begun.points, begun.centre, begun.eta, begun.duals.clone())
                answer, _ = run("ask_group", plan, group, query, *own)
                steps = begun.duals, begun.eta, begun.eta, 2
                run("advance_group", plan, group, answer, steps, begun.points)
                run("steps_to_points", plan, group, own[0], own[1], (begun.points, begun.duals, begun.eta), 1)
    return found


def main() -> None:
    """Print what each kernel takes."""
    for dtype in (torch.float64, torch.float32):
        for own in kernels(dtype):
            print(f"{str(dtype)[6:]:9}{own}")


if __name__ == "__main__":
    main()

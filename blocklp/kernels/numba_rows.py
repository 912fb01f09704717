"""Operations on the rows of all blocks (:class:`Program`), in loops that numba compiles for the CPU."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from blocklp.decomposition.problem import Decomposition
from blocklp.decomposition.rows import CouplingRows
from blocklp.kernels.compiled import TURNS, tiles
from blocklp.kernels.operations import implements
from blocklp.kernels.plan import Plan
from blocklp.kernels.program import PASSES, Program

PRODUCTS, PROJECTION = "blocklp.kernels.row_kernels", "blocklp.kernels.projection_kernels"
BATCH_PASSES, TABLEAU = "blocklp.kernels.batch_kernels", "blocklp.kernels.tableau_kernels"
"""Modules of compiled loops."""

CHUNK, WIDEST, CACHED = 16, 256, 100_000
"""Instances that loops for batches take at once, at least and at most, and the numbers that caches hold."""

LONGEST, MOST_READ = 1000, 50_000_000
"""Passes of PDHG between looks at the clock, and numbers that these read, at most."""

PATIENCE, STALL = 10.0, 4.0
"""Most pivots, and pivots after which rows are preferred in turn, over the number of rows and one more."""

PIVOT, VIOLATED = 1e-9, 1e-11
"""Entries of a scaled tableau that count as rounding, and relative violation from which on rows leave."""


def _loops(program: Program, module: str) -> ModuleType:
    """Loops that are there."""
    found = program.loops(module)
    assert found is not None
    return found


def _has_products(program: Program, *_: Any) -> bool:
    return program.loops(PRODUCTS) is not None


@implements("row_products", "numba", _has_products)
def _row_products(
    program: Program, problem: Decomposition, rows: tuple[Tensor, CouplingRows | None], x: Tensor
) -> Tensor:
    """See :func:`blocklp.kernels.program.row_products`."""
    layout, out = program.layout, torch.zeros_like(program.lower)
    assert layout is not None
    given = layout.groups, layout.tiles, layout.sparse, problem.coupling.places, rows[0]
    _loops(program, PRODUCTS).activity(len(x) * len(layout.tiles), *given, x, out)
    return out


@implements("row_adjoints", "numba", _has_products)
def _row_pulls(program: Program, problem: Decomposition, y: Tensor) -> Tensor:
    """See :func:`blocklp.kernels.program.row_adjoints`."""
    layout, copies = program.layout, y.new_zeros(len(y), problem.copies)
    assert layout is not None
    given = layout.groups, layout.tiles, program.entries, y, copies
    _loops(program, PRODUCTS).adjoint(len(y) * len(layout.tiles), *given)
    return copies


def _has_projection(program: Program, *_: Any) -> bool:
    return program.loops(PROJECTION) is not None


def _has_extremes(program: Program, *_: Any) -> bool:
    """Single entries need places that all instances share."""
    return program.layout is not None and program.layout.targets is not None and _has_projection(program)


@implements("row_extremes", "numba", _has_extremes)
def _row_extremes(program: Program, problem: Decomposition, values: Tensor) -> tuple[Tensor, Tensor]:
    """See :func:`blocklp.kernels.program.row_extremes`."""
    least, most = torch.ones_like(program.reach), torch.ones_like(program.reach)
    assert program.layout is not None
    given = program.layout.by_row, program.entries, values, least, most
    _loops(program, PROJECTION).extremes(len(values), *given)
    return least, most


@implements("projection_passes", "numba", lambda plan, *_: _has_projection(plan.program))
def _projection_passes(plan: Plan, x: Tensor, slack: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """See :func:`blocklp.engine.projection.projection_passes`."""
    program, layout, steps = plan.program, plan.program.layout, plan.steps
    assert layout is not None
    found, passes = x.clone(), torch.zeros(len(x), dtype=torch.long)
    _loops(program, PROJECTION).project(
        len(x),
        most,
        (layout.groups, layout.tiles, layout.sparse),
        plan.problem.coupling.places,
        program.entries,
        (x, program.box.lower, program.box.upper, steps.column),
        (program.lower, program.upper, steps.row, steps.length),
        slack,
        tuple(torch.zeros_like(steps.row) for _ in range(3)),
        x.new_zeros(len(x), program.parts, x.shape[1]),
        found,
        passes,
    )
    return found, passes


@implements("pdhg_passes", "numba", lambda plan, state, *_: state.program.loops(PASSES) is not None)
def _pdhg_passes(plan: Plan, state: Any, method: Any, most: int) -> tuple[Any, int]:
    """See :func:`blocklp.methods.pdhg.pdhg_passes`; small instances of a batch are taken several at once."""
    problem, program, steps = plan.problem, state.program, plan.steps
    layout, batch = program.layout, len(state.eta)
    many = min(most, LONGEST, max(1, MOST_READ // max(1, batch * program.work)))
    rules = method.sufficient**2, method.necessary**2, method.artificial, method.every, method.reach
    limits = torch.tensor(rules, dtype=torch.float64)
    given = problem.cost, program.box.lower, program.box.upper, steps.column
    rows = program.lower, program.upper, steps.row, steps.length
    own = tuple(t for part in zip(state.now, state.first, state.bar, strict=True) for t in part)
    scalars = state.eta, state.age, state.residual, state.first_residual, state.weight
    if (found := batch_loops(program, batch)) is not None:
        loops, width = found
        table = layout.groups, layout.tiles
        numbers = layout.by_row, layout.by_copy, program.entries, given, rows, own, state.pulled, scalars
        loops.passes(-(-batch // width), width, many, state.passes, limits, table, *numbers)
        return state.changed(passes=state.passes + many), many
    pieces = len(layout.tiles) + tiles(problem.coupling.variables)
    sums = torch.empty(batch, pieces, 3, dtype=torch.float64)
    _loops(program, PASSES).passes(
        batch if batch > 1 else program.parts,
        torch.zeros(TURNS, dtype=torch.long),
        program.parts,
        many,
        state.passes,
        limits,
        (layout.groups, layout.tiles, layout.sparse),
        problem.coupling.places,
        program.entries,
        given,
        rows,
        own,
        state.pulled,
        scalars,
        (torch.zeros(batch, dtype=torch.long), sums),
    )
    return state.changed(passes=state.passes + many), many


def batch_loops(program: Program, batch: int) -> tuple[ModuleType, int] | None:
    """Return the loops for batches of small instances that share places, and how many they take at once."""
    own_entries = program.entries.shape[1] * (len(program.entries) > 1)
    numbers = own_entries + 10 * program.lower.shape[1] + 9 * program.reach.shape[1]
    width = min(WIDEST, CACHED // max(1, numbers))
    if program.layout is None or program.layout.targets is None:
        return None
    if program.parts > 1 or min(width, batch) < CHUNK:
        return None
    found = program.loops(BATCH_PASSES)
    return None if found is None else (found, width)


@implements("vertices", "numba", lambda program, _: program.loops(TABLEAU) is not None)
def _vertices(program: Program, problem: Decomposition) -> tuple[Tensor, Tensor, Tensor]:
    """See :func:`blocklp.kernels.vertices.vertices`: a dual simplex method on tableaus."""
    layout = program.layout
    assert layout is not None
    x, y = (torch.zeros_like(t, dtype=torch.float64) for t in (program.reach, program.lower))
    ended = torch.zeros(len(x), dtype=torch.bool)
    limits = torch.tensor([PATIENCE, STALL, PIVOT, VIOLATED], dtype=torch.float64)
    given = problem.cost, program.box.lower, program.box.upper, program.reach
    _loops(program, TABLEAU).vertices(
        len(x),
        limits,
        (layout.groups, layout.sparse),
        problem.coupling.places,
        program.entries.double(),
        tuple(t.double() for t in given),
        (program.lower.double(), program.upper.double()),
        (x, y),
        ended,
    )
    return x.to(program.reach), y.to(program.lower), ended

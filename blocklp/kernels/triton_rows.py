"""Operations on the rows of all blocks (:class:`Program`) in Triton: products, and passes of PDHG."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from blocklp.blocks.contract import Rows
from blocklp.decomposition.incidence import Coupling
from blocklp.decomposition.problem import Decomposition
from blocklp.decomposition.rows import CouplingRows
from blocklp.kernels import triton_pdhg_kernels as pdhg
from blocklp.kernels.operations import implements
from blocklp.kernels.plan import Plan
from blocklp.kernels.program import Program
from blocklp.kernels.row_tables import LANES, LONG, TILE, RowTables, SparseSums, apart
from blocklp.kernels.settings import EngineSettings
from blocklp.kernels.triton_launch import launch
from blocklp.kernels.triton_row_kernels import sparse_extremes, sparse_products

TILES = {"BLOCK": TILE, "LONG": LONG}
"""Constants of kernels over tiles, whose lanes are those of a program."""

LONGEST, MOST_READ = 200, 4_000_000_000
"""Passes between looks at the clock, and numbers that these read, at most."""


def tables_of(program: Program, problem: Decomposition) -> RowTables:
    """The rows as sparse matrices, laid out once for a program."""
    found = program.tables.get("triton")
    if found is None:
        found = program.tables["triton"] = RowTables.of(program, problem)
    assert isinstance(found, RowTables)
    return found


def has_tables(problem: Decomposition) -> bool:
    """Whether an index says which variables all copies are of."""
    return problem.coupling.indexed and not problem.coupling.maps


def leaps(tables: RowTables, batch: int, settings: EngineSettings) -> bool:
    """Whether one program makes all passes of an instance, with barriers between them and not launches.

    Parameters
    ----------
    tables : RowTables
        The rows, whose tiles are counted.
    batch : int
        Number of instances.
    settings : EngineSettings
        Up to how many tiles it does.

    Returns
    -------
    bool
        False where a program takes a tile.
    """
    tiles = tables.by_row.units + tables.by_variable.units
    few = tiles <= settings.launched_tiles and tiles * batch <= settings.busy_tiles
    return tiles <= settings.cached_row_tiles or few


def _served(program: Program, problem: Decomposition, *_: Any) -> bool:
    return has_tables(problem)


def products(sums: SparseSums, entries: Tensor | None, values: Tensor, count: int) -> Tensor:
    """Sums of entries times values, in a fixed order.

    Parameters
    ----------
    sums : SparseSums
        Which entries, and which values.
    entries : Tensor or None
        ``(batch or 1, entries)``; None where all are 1.
    values : Tensor
        ``(batch, values)``.
    count : int
        Number of sums.

    Returns
    -------
    Tensor
        ``(batch, count)``.
    """
    values = values if values.stride(1) == 1 else values.contiguous()
    out = values.new_empty(len(values), count)
    matrix = (values, 0) if entries is None else (entries, apart(entries))
    given = out, count, values, values.stride(0), *matrix, sums.given
    launch(sparse_products, (len(values) * sums.units,), sums.units, *given, UNIT=entries is None, **TILES)
    return out


@dataclass(frozen=True)
class SparseCopySums:
    """Sums of the copies of every variable, in the order in which they lie."""

    sums: SparseSums
    variables: int

    def __call__(self, copies: Tensor) -> Tensor:
        """Sum copies ``(batch, copies)`` by variable: ``(batch, variables)``."""
        return products(self.sums, None, copies, self.variables)

    def select(self, rows: Rows) -> SparseCopySums:
        """Return the sums of some instances."""
        return replace(self, sums=self.sums.select(rows))


@implements("copy_sums", "triton", lambda plan: has_tables(plan.problem))
def _copy_sums(plan: Plan) -> SparseCopySums:
    """See :func:`blocklp.kernels.plan.copy_sums`."""
    return plan.keep("triton copy_sums", lambda: _laid_out(plan.problem.coupling))


def _laid_out(coupling: Coupling) -> SparseCopySums:
    """Tables of the copies of every variable."""
    order, ends, variables = coupling.order, coupling.ends, coupling.variables
    if order is None or ends is None:
        copies = torch.arange(coupling.index.shape[1])
        sums = SparseSums.of(coupling.index, copies[None], copies, copies < 0, [variables])
    else:
        sums = SparseSums.of_sorted(ends, (order, order), ends.diff() > LONG, [variables])
    return SparseCopySums(sums, variables)


@implements("row_products", "triton", _served)
def _row_products(
    program: Program, problem: Decomposition, rows: tuple[Tensor, CouplingRows | None], x: Tensor
) -> Tensor:
    """See :func:`blocklp.kernels.program.row_products`."""
    return products(tables_of(program, problem).by_row, rows[0], x, program.lower.shape[1])


@implements("row_adjoints", "triton", _served)
def _row_adjoints(program: Program, problem: Decomposition, y: Tensor) -> Tensor:
    """See :func:`blocklp.kernels.program.row_adjoints`."""
    own = products(tables_of(program, problem).by_copy, program.entries, y, problem.in_blocks)
    return own if problem.rows is None else torch.nn.functional.pad(own, (0, problem.rows.count))


@implements("row_extremes", "triton", _served)
def _row_extremes(program: Program, problem: Decomposition, values: Tensor) -> tuple[Tensor, Tensor]:
    """See :func:`blocklp.kernels.program.row_extremes`."""
    sums, values = tables_of(program, problem).by_variable, values.contiguous()
    least, most = (values.new_empty(len(values), problem.coupling.variables) for _ in range(2))
    matrix = program.entries, apart(program.entries), sums.given
    given = least, most, least.shape[1], values, values.shape[1], *matrix
    launch(sparse_extremes, (len(values) * sums.units,), sums.units, *given, **TILES)
    return least, most


class _Passes:
    """Passes of PDHG over some instances: their iterates side by side, and what kernels take."""

    def __init__(self, plan: Plan, state: Any, method: Any) -> None:
        problem, program, steps = plan.problem, state.program, plan.steps
        self.plan, self.state, self.program = plan, state, program
        self.tables = tables_of(program, problem)
        trios = zip(state.now, state.first, state.bar, strict=True)
        self.x, self.y, self.activity = (torch.stack(own) for own in trios)
        self.planes = self.x, self.y, self.activity
        self.batch, box = len(state.eta), program.box
        bounds = box.lower.contiguous(), box.upper.contiguous()
        sides = program.lower, program.upper, steps.row, steps.length
        self.given = (problem.cost.contiguous(), *bounds, steps.column), sides
        self.sums = self.tables.by_variable, self.tables.by_row
        sizes = self.batch, self.x.shape[2], self.y.shape[2], apart(program.entries)
        self.sizes: tuple[int, ...] = sizes
        self.eta, self.age = state.eta.clone(), state.age.clone()
        self.residuals = state.residual.clone(), state.first_residual.clone()
        self.slots = [sums.depth * LANES * width for sums, width in zip(self.sums, (2, 3), strict=True)]
        self.partials = tuple(self.x.new_zeros(self.batch, n, dtype=torch.float64) for n in self.slots)
        self.rules = method.sufficient**2, method.necessary**2, method.artificial, method.every, method.reach

    def leap(self, many: int) -> Tensor:
        """Make passes, an instance a program; returns A^T y ``(batch, variables)``."""
        pulled = self.x.new_empty(self.batch, self.x.shape[2])
        launch(
            pdhg.pdhg_leap,
            (self.batch,),
            many,
            self.state.passes,
            *self.sizes,
            tuple(sums.given for sums in self.sums),
            self.program.entries,
            self.planes,
            self.given,
            (self.eta, self.age, *self.residuals, self.state.weight),
            (*self.partials, pulled),
            RULES=self.rules,
            LANES=LANES,
            **TILES,
        )
        return pulled

    def one_by_one(self, many: int) -> Tensor:
        """Make passes, all tiles at once; returns A^T y ``(batch, variables)``."""
        due, late = self.age.new_zeros(self.batch, dtype=torch.int32), 0
        scalars = self.eta, self.age, due
        depths = [sums.depth for sums in self.sums]
        for passes in range(self.state.passes + 1, self.state.passes + many + 1):
            measured = passes % self.rules[3] <= 1
            each = zip((False, True), self.sums, self.given, self.partials, self.slots, strict=True)
            for by_row, sums, given, partial, slots in each:
                tables = sums.given, self.program.entries, self.planes, given, scalars, partial
                grid, numbers = (self.batch * sums.units,), (sums.units, late, *self.sizes, slots)
                launch(pdhg.pdhg_pass, grid, *numbers, *tables, FORM=(by_row, measured), **TILES)
            late += 1
            if measured:
                whole = late, passes, *depths, self.partials, scalars, *self.residuals, self.state.weight
                launch(pdhg.pdhg_restart, (self.batch,), *whole, RULES=self.rules, LANES=LANES)
                late = 0
        units = -(-max(self.x.shape[2], self.y.shape[2]) // TILE)
        numbers = units, late, *self.sizes[:3]
        launch(pdhg.pdhg_settle, (self.batch * units,), *numbers, self.planes, *scalars[1:], BLOCK=TILE)
        return products(self.tables.by_variable, self.program.entries, self.y[0], self.x.shape[2])

    def after(self, many: int, pulled: Tensor) -> Any:
        """The state after so many passes, and A^T y ``(batch, variables)``."""
        kept = self.state.pulled
        if kept.shape[1] == 1:
            kept = pulled[:, None]
        else:
            kept.zero_()[:, 0] = pulled
        now, first, bar = ((self.x[k], self.y[k], self.activity[k]) for k in range(3))
        residual, known = self.residuals
        scalars = {"eta": self.eta, "age": self.age, "residual": residual, "first_residual": known}
        passes = self.state.passes + many
        return replace(self.state, now=now, first=first, bar=bar, pulled=kept, passes=passes, **scalars)


@implements("pdhg_passes", "triton", lambda plan, *_: has_tables(plan.problem))
def _pdhg_passes(plan: Plan, state: Any, method: Any, most: int) -> tuple[Any, int]:
    """See :func:`blocklp.methods.pdhg.pdhg_passes`."""
    batch, program = len(state.eta), state.program
    many = min(most, LONGEST, max(1, MOST_READ // max(1, batch * program.work)))
    passes = _Passes(plan, state, method)
    whole = leaps(passes.tables, batch, plan.settings)
    return passes.after(many, passes.leap(many) if whole else passes.one_by_one(many)), many

r"""Checking a bound by code that shares nothing with the engine.

For any multipliers :math:`\lambda`, good or bad, and the bounds ``lo, hi`` of the variables,

.. math:: \sum_b \min_{X_b} \langle \lambda_b, x_b \rangle + \sum_j \min(r_j lo_j, r_j hi_j), \qquad
          r = c - \sum_b \lambda_b,

is a lower bound on the LP (Neumaier and Shcherbina 2004).  Here it is summed in exact arithmetic
(:mod:`blocklp.certify.exact_arithmetic`) and rounded down once, at the end; so the multipliers prove it,
whoever found them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.blocks.capabilities import (
    HasIntervals,
    HasMaskedTable,
    HasRestriction,
    constraints_of,
    supports,
    value_error_of,
)
from blocklp.blocks.contract import BlockType, Constraints
from blocklp.blocks.nonnegative_costs import NonnegativeCosts
from blocklp.certify.exact_arithmetic import Exact, rounded_down
from blocklp.certify.stated_blocks import StatedBlocks, bounded_below, least
from blocklp.errors import ModelError, NonFiniteError, OracleError, ShapeError
from blocklp.general_solvers.linear_program import Array
from blocklp.language.handles import ROWS, Blocks
from blocklp.language.row_constraint import RowConstraint
from blocklp.language.variable_bounds import Bounds, variable_bounds
from blocklp.model import Model
from blocklp.options import named_row, numbers, of_type
from blocklp.results.state import State
from blocklp.results.warm_start import fitted
from blocklp.rounding import roundoff
from blocklp.tables import SHOWN, Table, Tabled

ALLOWANCE = 1e-6
"""Part of the largest value that the multipliers of a block could give by which an oracle might err that is
believed: it proves infeasibility only beyond that."""

ROUNDINGS = 4
"""Roundings a variable that such an oracle is charged where it states no error."""

SLACK = 1e-9
"""A vertex is masked only if it violates a bound by more than this: a rounded bound empties no block."""


@dataclass(frozen=True, repr=False)
class Certificate(Tabled):
    """The bound that multipliers prove, and how it was evaluated.

    Attributes
    ----------
    bound : Tensor
        ``(batch,)`` float64: no feasible point has a smaller value (a larger one, when maximising); infinite
        if a block has no point within the bounds of its variables.
    infeasible : Tensor
        ``(batch,)`` bool: the bound passes the best value that the bounds of the variables allow, so there is
        no feasible point.
    independent : bool
        Whether no min-oracle was asked. False if a block type states neither vertices nor constraints: its
        own oracle, and its ``value_error`` if it has one, had to be believed.
    exact : bool
        Whether ``bound`` is the value of the multipliers itself. False if some block was bounded by the duals
        of an LP solver or by an oracle, which may cost a rounding error.
    maximizing : bool
        The sense of the model.
    """

    bound: Tensor
    infeasible: Tensor
    independent: bool
    exact: bool
    maximizing: bool

    def proves(self, claim: float | Tensor) -> Tensor:
        """Whether a claimed bound holds by these multipliers: ``(batch,)`` bool."""
        claimed = torch.as_tensor(claim, dtype=torch.float64).cpu()
        return self.infeasible | (self.bound <= claimed if self.maximizing else self.bound >= claimed)

    def _tables(self) -> tuple[str, list[Table]]:
        how = "exactly" if self.exact else "safely"
        whose = "" if self.independent else ", believing the oracles of types without vertices or constraints"
        sense = "<=" if self.maximizing else ">="
        proved = zip(self.bound[:SHOWN].tolist(), self.infeasible.tolist(), strict=False)
        rows = [
            (str(i), "infeasible" if empty else f"optimum {sense} {bound!r}")
            for i, (bound, empty) in enumerate(proved)
        ]
        return f"Certificate, evaluated {how}{whose}", [
            Table(("instance", "what is proved"), rows, len(self.bound))
        ]


def verify_certificate(
    model: Model, duals: State | Mapping[str, object] | Mapping[Blocks, object], bounds: Bounds | None = None
) -> Certificate:
    """Evaluate the bound that multipliers prove, without the engine.

    Vertex lists are enumerated, and boxes taken coordinate by coordinate, both exactly. Of other types the
    stated constraints are minimised over by HiGHS, whose dual values then prove a bound on each block,
    whatever their accuracy. A type without constraints has its own min-oracle asked, and is charged the error
    that it admits or, where it states none, some roundings; the result says so. Such a type proves
    infeasibility only beyond an allowance of 1e-6 of what its multipliers could give.

    Variables that a solve put in a box of their own need no multipliers: what the blocks leave of a cost is
    charged at the variable's bounds, which is at least as good. ``"box"`` is therefore accepted and not read.

    Parameters
    ----------
    model : Model
        With the costs (parameters) that the bound is for.
    duals : State or mapping
        ``solution.state``; or name or handle of blocks to multipliers ``(batch or 1, blocks, dim)``, in the
        sense of the model. Blocks without an entry have multipliers zero.
    bounds : mapping, optional
        Tighter bounds of variables, as in :meth:`blocklp.Solver.solve`. Where one leaves a face of a vertex
        list, vertices off the face are struck out; elsewhere it counts in the charge alone.

    Returns
    -------
    Certificate
        The bound of every instance ``(batch,)``, and its parts.

    Raises
    ------
    ModelError
        If the model has no objective, or no blocks have such a name.
    ShapeError, NonFiniteError
        If multipliers have the wrong shape, or are not finite.
    OracleError
        If an oracle that must be believed gives a value that is not finite.
    """
    of_type(model, Model, "model", "a model", ModelError)
    if model.objective is None:
        raise ModelError("the model has no objective; call minimize() or maximize() first")
    sign = -1.0 if model.maximizing else 1.0
    given = _read(model, duals)
    cost, constant = (part.detach() for part in model.objective.evaluate())
    plain = [supports(b.type, HasMaskedTable) or supports(b.type, HasIntervals) for b in model.blocks]
    stated = {b.name: None if p else constraints_of(b.type) for b, p in zip(model.blocks, plain, strict=True)}
    sides = [side.detach().numpy() for side in variable_bounds(model, {} if bounds is None else bounds)]
    proofs = []
    for i in range(model.batch):
        low, high = (side[i % len(side)] for side in sides)
        mine = {k: sign * d[i % len(d)] for k, d in given.items()}
        costs, offset = sign * cost[i].numpy(), sign * float(constant[i])
        proofs.append(_instance(model, stated, costs, mine, low, high, i, offset))
    return Certificate(
        bound=sign * torch.tensor([p[0] for p in proofs], dtype=torch.float64),
        infeasible=torch.tensor([p[1] for p in proofs]),
        independent=all(p or stated[b.name] is not None for p, b in zip(plain, model.blocks, strict=True)),
        exact=all(plain),
        maximizing=model.maximizing,
    )


def _read(model: Model, duals: State | Mapping[str, object] | Mapping[Blocks, object]) -> dict[str, Array]:
    """Multipliers of every blocks' name, ``(batch or 1, blocks, dim)``."""
    found = fitted(duals, model).duals if isinstance(duals, State) else duals
    of_type(found, Mapping, "duals", "a state, or a mapping of blocks to multipliers")
    named = {key.name if isinstance(key, Blocks) else key: value for key, value in found.items()}
    unknown = named.keys() - {b.name for b in model.blocks} - {"box"} - ({ROWS} if model.rows else set())
    if unknown:
        missing = ", ".join(map(repr, sorted(unknown)))
        raise ModelError(f"the model has no blocks named {missing}; it has {model.blocks}")
    read = {}
    for b in model.blocks:
        data = numbers(named.get(b.name, torch.zeros(1, *b.scope.shape)), f"multipliers of {b.name!r}")
        if data.dim() != 3 or data.shape[0] not in (1, model.batch) or data.shape[1:] != b.scope.shape:
            need = model.batch, *b.scope.shape
            raise ShapeError(f"multipliers of {b.name!r} have shape {tuple(data.shape)}, need {need}")
        if not bool(torch.isfinite(data).all()):
            held = "hold NaN or infinite entries; they prove nothing"
            raise NonFiniteError(f"multipliers of {b.name!r} {held}")
        read[b.name] = data.numpy()
    if model.rows:
        count = sum(r.count for r in model.rows)
        data = numbers(named.get(ROWS, torch.zeros(1, count, 1)), "prices of the rows")
        if data.dim() != 3 or data.shape[0] not in (1, model.batch) or data.shape[1:] != (count, 1):
            need = model.batch, count, 1
            raise ShapeError(f"prices of the rows have shape {tuple(data.shape)}, need {need}")
        if not bool(torch.isfinite(data).all()):
            worst = int((~torch.isfinite(data)).any(0).nonzero()[0, 0])
            who = named_row({r.name: r.count for r in model.rows}, worst)
            raise NonFiniteError(f"the price of {who} is NaN or infinite; it proves nothing")
        read[ROWS] = data.numpy()
    return read


def _instance(
    model: Model,
    stated: dict[str, Constraints | None],
    cost: Array,
    duals: dict[str, Array],
    low: Array,
    high: Array,
    instance: int,
    constant: float,
) -> tuple[float, bool]:
    """Bound of one instance in the sense of minimisation, and whether it proves infeasibility."""
    exact_cost, total, allowance = Exact.of(cost), Fraction(constant), Fraction(0)
    by_rows: list[StatedBlocks] = []
    for b in model.blocks:
        scope, multipliers = b.scope.numpy(), duals[b.name]
        block_low, block_high = low[scope], high[scope]
        rows = stated[b.name]
        if supports(b.type, HasMaskedTable):
            value = _best_vertices(b.type, multipliers, block_low, block_high, instance)
        elif supports(b.type, HasIntervals):
            value = _best_corners(b.type, multipliers, block_low, block_high, instance)
        elif rows is not None:
            by_rows.append(StatedBlocks.of(rows, multipliers, block_low, block_high, instance))
            continue
        else:
            value, size = _believed(b.type, multipliers, block_low, block_high, instance)
            allowance += Fraction(ALLOWANCE) * size
        if value is None:
            return np.inf, True
        total += value
    if (value := bounded_below(by_rows)) is None:
        return np.inf, True
    total += value
    scopes = np.concatenate([b.scope.numpy().ravel() for b in model.blocks] or [np.zeros(0, np.int64)])
    shares = np.concatenate([duals[b.name].ravel() for b in model.blocks] or [np.zeros(0)])
    residual, first = exact_cost - Exact.of(shares).scatter(scopes, model.size), 0
    for handle in model.rows:
        prices = duals[ROWS][first : first + handle.count].reshape(-1)
        first += handle.count
        value, used = _priced(handle.constraint, prices, instance)
        total += value
        residual = residual - used
    total += least(residual, low, high)
    return rounded_down(total), total - allowance > Fraction(constant) - least(-exact_cost, low, high)


def _own(data: Tensor, instance: int) -> NDArray[np.generic]:
    """Block data of one instance: ``(batch or 1, blocks or 1, ...) -> (blocks or 1, ...)``."""
    return np.asarray(data[instance % len(data)].cpu())


def _best_vertices(
    kind: HasMaskedTable,
    duals: Array,
    low: Array,
    high: Array,
    instance: int,
) -> Fraction | None:
    """Sum of the blocks' minima over their vertex lists, ``None`` if a list is empty."""
    listed = kind.masked_table()
    assert listed is not None  # there is no limit
    table, mask = listed[0].numpy(), listed[1]
    allowed = np.ones((len(duals), len(table)), dtype=bool)
    if mask is not None:
        allowed &= ~_own(mask, instance).astype(bool)
    for d, column in enumerate(table.T):
        # Only a bound at the far end of the hull leaves a face of it: the hull of the vertices that remain.
        slack = SLACK * (1 + np.abs(column).max())
        for bound, entries in ((low[:, d], column), (-high[:, d], -column)):
            face = bound >= entries.max()
            if face.any():
                allowed &= ~(face[:, None] & (entries < bound[:, None] - slack))
    if not allowed.any(1).all():
        return None
    # Floating point finds the few vertices that can be best; the error of a dot product is far below the
    # margin.
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.where(allowed, duals @ table.T, np.inf)
        size = (np.abs(duals) @ np.abs(table).T).max(1, keepdims=True)
        margin = 4 * (table.shape[1] + 2) * np.finfo(np.float64).eps * size + np.finfo(np.float64).tiny
        hopeless = values > values.min(1, keepdims=True) + margin
    block, vertex = np.nonzero(allowed & ~hopeless)
    costs = (Exact.of(duals)[block] * Exact.of(table)[vertex]).sum(1)
    first = np.flatnonzero(np.diff(block, prepend=-1))
    return Exact(np.minimum.reduceat(costs.integers, first), costs.exponent).total()


def _best_corners(kind: HasIntervals, duals: Array, low: Array, high: Array, instance: int) -> Fraction:
    """Sum of the blocks' minima over their boxes, cut by the variables' bounds where something remains."""
    own_low, own_high = (np.broadcast_to(_own(side, instance), duals.shape) for side in kind.intervals())
    cut_low, cut_high = np.maximum(own_low, low), np.minimum(own_high, high)
    empty = cut_low > cut_high
    return least(Exact.of(duals), np.where(empty, own_low, cut_low), np.where(empty, own_high, cut_high))


def _priced(rows: RowConstraint, prices: Array, instance: int) -> tuple[Fraction, Exact]:
    """Value that prices of rows prove, and their part of the costs of the variables.

    A side that a row does not have is the furthest that the bounds of its variables let it go: its price is
    then no more than a change of these costs, and is left out.
    """
    lower, upper = (side[instance % len(side)].numpy() for side in (rows.lower, rows.upper))
    side = np.where(prices > 0, lower, upper)
    y = np.where(np.isfinite(side), prices, 0.0)
    row, column = rows.matrix.coords
    used = (Exact.of(rows.matrix.data) * Exact.of(y)[row]).scatter(column, rows.model.size)
    return (Exact.of(y) * Exact.of(np.where(y != 0, side, 0.0))).total(), used


def _believed(
    kind: BlockType,
    duals: Array,
    low: Array,
    high: Array,
    instance: int,
) -> tuple[Fraction, Fraction]:
    """Sum of the oracle's values, less the error that it admits or some roundings; and magnitudes."""
    sides = torch.as_tensor(low)[None], torch.as_tensor(high)[None]
    restricted = kind.restrict(*sides) if supports(kind, HasRestriction) else None
    own = (kind if restricted is None else restricted).select(torch.tensor([instance]))
    own = NonnegativeCosts(own, torch.as_tensor(high)[None]) if own.nonnegative_costs else own
    cost = torch.as_tensor(duals)[None]
    (point, value), error = own.min_oracle(cost), value_error_of(own, cost)
    reach = np.maximum(np.maximum(np.abs(low), np.abs(high)), point[0].abs().numpy())
    size = np.abs(duals) * reach
    if error is None:
        error = roundoff(ROUNDINGS * (duals.shape[1] + 2), torch.from_numpy(size.sum(1)))
    if not bool(torch.isfinite(value).all() and torch.isfinite(error).all()):
        wrong = "returned a value that is not finite for finite multipliers"
        raise OracleError(f"min_oracle of {kind.name} {wrong}")
    return Exact.of(value.numpy()).total() - Exact.of(error.numpy()).total(), Exact.of(size).total()

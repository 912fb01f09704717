"""From a state to the first multipliers of a solve, and from the last ones to a state."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from blocklp.blocks.box import BOX
from blocklp.decomposition.block_products import by_groups, stated_rows
from blocklp.decomposition.problem import Decomposition, Group
from blocklp.errors import ModelError, NonFiniteError, OptionError, ShapeError
from blocklp.language.coefficients import all_finite
from blocklp.language.handles import ROWS
from blocklp.language.statement import Statement
from blocklp.methods.base import Memory
from blocklp.options import named_row, of_type
from blocklp.results.state import Saddle, State


def state_of(given: Any, what: str) -> State:
    """The state given, or that of a solution.

    Raises
    ------
    OptionError
        If it is neither.
    """
    found = getattr(given, "state", given)
    of_type(found, State, what, "a state, as solution.state, or the solution itself")
    return found  # type: ignore[no-any-return]


def fitted(state: State, model: Statement) -> State:
    """Fit a state to the present rows of a model, in their order, and leave out what was removed from it.

    Rows without prices start with zero.

    Raises
    ------
    ShapeError
        If the rows of a name are others in number than they were.
    ModelError
        If the state has prices of rows that the model never had.
    NonFiniteError
        If a price is NaN or infinite.
    """
    prices = state.duals.get(ROWS)
    if prices is not None and not all_finite(prices):
        worst = int((~torch.isfinite(prices)).any(0).flatten().nonzero()[0])
        who = named_row(state.rows or {r.name: r.count for r in model.rows}, worst)
        raise NonFiniteError(f"the warm start holds a NaN or infinite price of {who}; it proves no bound")
    gone = model.removed & state.duals.keys()
    duals = {name: own for name, own in state.duals.items() if name not in gone}
    saddle = state.saddle
    if saddle is not None and gone:
        saddle = replace(saddle, rows={name: own for name, own in saddle.rows.items() if name not in gone})
    now = {r.name: r.count for r in model.rows}
    if not state.rows or list(state.rows.items()) == list(now.items()):
        return replace(state, duals=duals, saddle=saddle)
    if unknown := state.rows.keys() - now.keys() - model.removed:
        what = f"the warm start has prices of rows {sorted(unknown)}"
        raise ModelError(f"{what}, which the model does not have; leave them out")
    for name in state.rows.keys() & now.keys():
        if state.rows[name] != now[name]:
            what = f"the warm start has prices of {state.rows[name]} rows {name!r}"
            raise ShapeError(f"{what}, the model has {now[name]} of them")
    first = dict(zip(state.rows, accumulate(state.rows.values(), initial=0), strict=False))

    def rearranged(prices: Tensor) -> Tensor:
        parts = [prices[:, :0]]
        for name, count in now.items():
            zero = prices.new_zeros(len(prices), count, *prices.shape[2:])
            parts.append(prices[:, first[name] : first[name] + count] if name in first else zero)
        return torch.cat(parts, 1)

    if ROWS in duals:
        duals[ROWS] = rearranged(duals[ROWS])
    if saddle is not None and ROWS in saddle.rows:
        saddle = replace(saddle, rows=saddle.rows | {ROWS: rearranged(saddle.rows[ROWS])})
    if not now:
        duals.pop(ROWS, None)
    return State(duals, state.eta, saddle, now)


def take(
    problem: Decomposition,
    duals: Tensor,
    eta: Tensor,
    names: dict[str, int],
    memory: Memory | None,
) -> State:
    """Make the state of a solve, by groups.

    Parameters
    ----------
    problem : Decomposition
        The problem that was solved.
    duals : Tensor
        ``(batch, copies)`` float64: multipliers and prices of rows.
    eta : Tensor
        ``(batch,)`` float64: proximal weights.
    names : dict of str to int
        Names of rows to their numbers.
    memory : Memory, optional
        Of a primal-dual method.

    Returns
    -------
    State
        Multipliers, weights and, of a primal-dual method, its saddle, in the sense of minimisation.
    """
    parts = {name: g.view(duals)[:, own] for g in problem.groups for name, own in g.named}
    for group in problem.groups:
        if group.name == BOX:
            own = parts[BOX] if group.valid is None else parts[BOX] * group.valid[..., None]
            zero = torch.zeros_like(problem.cost)[..., None]
            parts[BOX] = zero.scatter_add_(1, _boxed(problem, group), own)
    if problem.rows is not None:
        parts[ROWS] = duals[:, problem.in_blocks :, None]
    else:  # no time was left to build them
        names = {}
    if memory is None:
        return State(parts, eta, None, names)
    x, y, weight = memory
    in_blocks = y.shape[1] - (problem.copies - problem.in_blocks)
    rows = {
        name: own.transpose(1, 2)[:, blocks]
        for g, own in by_groups(problem, y[:, :in_blocks], list(map(stated_rows, problem.groups)))
        for name, blocks in g.named
        if name != BOX
    }
    if problem.rows is not None:
        rows[ROWS] = y[:, in_blocks:, None]
    return State(parts, eta, Saddle(x, rows, weight), names)


def memory_of(problem: Decomposition, state: State) -> Memory | None:
    """Lay out a primal-dual warm start.

    Parameters
    ----------
    problem : Decomposition
        The problem to solve.
    state : State
        In the sense of minimisation.

    Returns
    -------
    Memory or None
        The point, NaN where it is not known; duals of all stated rows, zero where they are not known; and the
        primal weight.  None without a warm start, or where some block type states no constraints.

    Raises
    ------
    NonFiniteError
        If duals are NaN or infinite.
    """
    if (saddle := state.saddle) is None or not problem.testable:
        return None
    x = torch.full_like(problem.cost, torch.nan)
    width = min(x.shape[1], saddle.x.shape[1])
    x[:, :width] = saddle.x[:, :width].to(x)
    counts = list(map(stated_rows, problem.groups))
    in_blocks = sum(n * g.blocks for n, g in zip(counts, problem.groups, strict=True))
    y = x.new_zeros(len(x), in_blocks + problem.copies - problem.in_blocks)
    beside = None if problem.rows is None else saddle.rows.get(ROWS)
    if beside is not None and problem.rows is not None and beside.shape[1] <= problem.rows.count:
        if not all_finite(beside):
            raise NonFiniteError("the saddle of the warm start holds NaN or infinite duals of rows")
        y[:, in_blocks : in_blocks + beside.shape[1]] = beside[..., 0].to(y)
    groups = by_groups(problem, y[:, :in_blocks], counts)
    for name, own in ((name, own[:, :, blocks]) for g, own in groups for name, blocks in g.named):
        known = saddle.rows.get(name)
        if known is not None and known.shape[2] == own.shape[1] and known.shape[1] <= own.shape[2]:
            if not all_finite(known):
                what = "the saddle of the warm start holds NaN or infinite duals of rows"
                raise NonFiniteError(f"{what} for {name!r}")
            own[:, :, : known.shape[1]] = known.transpose(1, 2).to(y)
    return x, y, saddle.weight.to(x, copy=True)


def weights_of(state: State, device: torch.device, dtype: torch.dtype) -> Tensor | None:
    """A copy of the proximal weights ``(batch,)``, None where some are not known.

    Parameters
    ----------
    state : State
        The state.
    device, dtype
        Of the copy.

    Returns
    -------
    Tensor or None
        ``(batch,)``, in this precision, on this device.

    Raises
    ------
    OptionError
        If one is not positive.
    """
    eta = state.eta.detach().to(device, dtype, copy=True)
    if bool((eta <= 0).any()):
        least = float(eta.nan_to_num(1.0).min())
        raise OptionError(f"eta of the warm start holds {least:g}; weights are positive, NaN where unknown")
    return eta if all_finite(eta) else None


def fill(problem: Decomposition, state: State) -> Tensor:
    """Lay a state out as copies ``(batch, copies)``; what it does not hold is zero.

    Raises
    ------
    ShapeError
        If the batch or the shape of a group does not fit.
    NonFiniteError
        If multipliers are NaN or infinite.
    ModelError
        If it has blocks that the problem does not.
    """
    rows = set() if problem.rows is None else {ROWS}
    names = {name for g in problem.groups for name, _ in g.named}
    if unknown := state.duals.keys() - names - {BOX} - rows:
        what = f"the warm start has multipliers for {sorted(unknown)}"
        raise ModelError(f"{what}, blocks that the model does not have; leave them out")
    if state.batch != problem.batch:
        what = f"the warm start has {state.batch} instances, the problem {problem.batch}"
        raise ShapeError(f"{what}; use state.select, repeat or concatenate")
    duals = torch.zeros(problem.batch, problem.copies, dtype=problem.cost.dtype, device=problem.cost.device)
    for group in problem.groups:
        for name, blocks in group.named:
            if (known := state.duals.get(name)) is None:
                continue
            known = known.to(problem.cost)
            if not all_finite(known):
                what = f"NaN or infinite multipliers for {name!r}"
                raise NonFiniteError(f"the warm start holds {what}; they prove no bound")
            if name == BOX and known.shape[1] <= problem.cost.shape[1]:
                # Other variables may be boxed now; multipliers of one that is not go to its blocks.
                known = torch.nn.functional.pad(known, (0, 0, 0, problem.cost.shape[1] - known.shape[1]))
                known = known.gather(1, _boxed(problem, group))
            own = group.view(duals)[:, blocks]
            if known.shape[2] != group.dim or known.shape[1] > own.shape[1]:
                raise ShapeError(
                    f"the warm start holds {tuple(known.shape[1:])} multipliers for {name!r}, "
                    f"the model has {tuple(own.shape[1:])}; blocks may be added, not removed"
                )
            own[:, : known.shape[1]].copy_(known)
        if group.valid is not None:  # padding has no multipliers
            group.view(duals).mul_(group.valid[..., None])
    if problem.rows is not None and (prices := state.duals.get(ROWS)) is not None:
        if prices.shape[1] > problem.rows.count or prices.shape[2] != 1:
            raise ShapeError(
                f"the warm start holds {tuple(prices.shape[1:])} prices of rows, "
                f"the model has {(problem.rows.count, 1)}; rows may be added, not removed"
            )
        duals[:, problem.in_blocks : problem.in_blocks + prices.shape[1]] = prices[..., 0]
    return duals


def _boxed(problem: Decomposition, group: Group) -> Tensor:
    """The variables of the box, which comes last: ``(batch, blocks, 1)`` int64."""
    index = problem.coupling.index
    return index[:, index.shape[1] - group.blocks :, None].expand(problem.batch, -1, -1)

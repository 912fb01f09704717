"""The state of a solve as a value: multipliers by blocks, proximal weights, and primal-dual warm starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from blocklp import saved
from blocklp.box import BOX
from blocklp.coefficients import all_finite
from blocklp.decomposition import Decomposition, Group
from blocklp.errors import (
    BlocklpError,
    FormatError,
    InstanceError,
    ModelError,
    NonFiniteError,
    OptionError,
    ShapeError,
)
from blocklp.handles import ROWS
from blocklp.methods.base import Memory
from blocklp.options import named_row, of_type, shown, whole
from blocklp.program import by_groups, stated_rows
from blocklp.statement import Statement
from blocklp.tables import listed, plural


@dataclass(frozen=True)
class Saddle:
    """The primal-dual warm start of a method such as :class:`blocklp.Pdhg`.

    Attributes
    ----------
    x : Tensor
        ``(batch, variables)`` float64: its point, feasible in the limit.
    rows : dict of str to Tensor
        Name of blocks to duals of their rows ``(batch, blocks, rows)``, float64, in the order of
        :class:`HasConstraints`.
    weight : Tensor
        ``(batch,)`` float64: its primal weight.
    """

    x: Tensor
    rows: dict[str, Tensor]
    weight: Tensor

    def __post_init__(self) -> None:
        """Refuse what is no such record."""
        _require(isinstance(self.rows, Mapping), "rows of a saddle", self.rows, "a dict of tensors")
        for what, value, dims in (("x of a saddle", self.x, 2), ("weight of a saddle", self.weight, 1)):
            need = f"a tensor of {dims} dimensions, the instance first"
            _require(_is_tensor(value, dims), what, value, need)
        for name, value in self.rows.items():
            _require(_is_tensor(value, 3), f"rows of {name!r}", value, "a tensor (batch, blocks, rows)")

    def select(self, instances: Tensor) -> Saddle:
        """The warm start of some instances: their numbers ``(k,)`` int64."""
        rows = {k: v.index_select(0, instances) for k, v in self.rows.items()}
        return Saddle(self.x.index_select(0, instances), rows, self.weight.index_select(0, instances))


@dataclass(frozen=True)
class State:
    """The start of a later solve.

    The next model may differ in costs and bounds, and may have more blocks: blocks without an entry start
    with a share of zero, so that its first bound is not below the last one.

    Attributes
    ----------
    duals : dict of str to Tensor
        Name of blocks to multipliers ``(batch, blocks, dim)``, float64; those of ``"box"``, the blocks of
        single variables that no other block bounds, by variable, ``(batch, variables, 1)``, zero where there
        is none.
    eta : Tensor
        ``(batch,)`` float64: proximal weights, NaN where unknown.
    saddle : Saddle or None
        The primal-dual warm start of :class:`blocklp.Pdhg`, which multipliers do not give; other methods
        leave and need none.
    rows : dict of str to int
        Name of rows to how many of the prices ``duals["rows"]`` are theirs, in order, so that they are found
        again where the model has got or lost rows.  Without it they are those of the first rows of the model.

    Raises
    ------
    ModelError
        If an attribute is of another type.
    ShapeError
        If tensors differ in batch or have other dimensions.
    """

    duals: dict[str, Tensor]
    eta: Tensor
    saddle: Saddle | None = None
    rows: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what is no state."""
        duals, eta, saddle, rows = self.duals, self.eta, self.saddle, self.rows
        _require(isinstance(duals, Mapping), "duals of a state", duals, "a dict of tensors by name of blocks")
        _require(_is_tensor(eta, 1), "eta of a state", eta, "a tensor (batch,)")
        batch, fits = len(eta), saddle is None or isinstance(saddle, Saddle)
        _require(fits, "saddle of a state", saddle, "a Saddle or None")
        _require(isinstance(rows, Mapping), "rows of a state", rows, "a dict of numbers by name of rows")
        counts = [whole(n, f"number of rows {name!r}", 0) for name, n in rows.items()]
        if rows and sum(counts) != self._priced():
            prices = f"{self._priced()} prices"
            raise ShapeError(f"rows of the state are {rows}, and it has {prices}; they must agree")
        for name, own in duals.items():
            _require(_is_tensor(own, 3), f"duals of {name!r}", own, "a tensor (batch, blocks, dim)")
            if len(own) != batch:
                raise ShapeError(f"duals of {name!r} have {len(own)} instances, eta {batch}; they must agree")
        if saddle is not None and {len(t) for t in (saddle.x, saddle.weight)} != {batch}:
            raise ShapeError(f"the saddle has {len(saddle.x)} instances, eta {batch}; they must agree")

    def _priced(self) -> int:
        """Number of prices of rows."""
        return self.duals[ROWS].shape[1] if ROWS in self.duals else 0

    def __repr__(self) -> str:
        blocks = [f"{name} {tuple(own.shape[1:])}" for name, own in self.duals.items()]
        return f"State of {plural(self.batch, 'instance')}: " + (listed(blocks) or "no multipliers")

    @property
    def batch(self) -> int:
        """Number of instances."""
        return len(self.eta)

    def select(self, instances: Sequence[int] | Tensor) -> State:
        """Return the state of some instances; an instance may be taken several times (children of a node).

        Parameters
        ----------
        instances : sequence of int or Tensor
            Their numbers ``(k,)``, negative ones from the end as in lists, or a mask ``(batch,)`` bool.

        Raises
        ------
        InstanceError
            If there is no such instance, or the numbers are none.
        """
        need = f"give numbers from {-self.batch} to {self.batch - 1}, or a mask of {self.batch} booleans"
        try:
            rows = torch.as_tensor(instances, device=self.eta.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InstanceError(f"instances are {shown(instances)}; {need}") from error
        mask = rows.dtype == torch.bool
        wrong = rows.dim() != 1 or (mask and len(rows) != self.batch)
        if wrong or (len(rows) and (rows.is_floating_point() or rows.is_complex())):
            raise InstanceError(f"instances are {shown(instances)}; {need}")
        rows = rows.nonzero()[:, 0] if mask else rows.long()
        if bool(((rows < -self.batch) | (rows >= self.batch)).any()):
            raise InstanceError(f"instances are {shown(instances)}, out of the range of {self.batch}; {need}")
        rows = torch.where(rows < 0, rows + self.batch, rows)
        saddle = None if self.saddle is None else self.saddle.select(rows)
        duals = {k: v.index_select(0, rows) for k, v in self.duals.items()}
        return State(duals, self.eta.index_select(0, rows), saddle, self.rows)

    def repeat(self, times: int) -> State:
        """Return every instance ``times`` times in a row, from 0 on."""
        return self.select(torch.arange(self.batch).repeat_interleave(whole(times, "times", 0)))

    def save(self, path: saved.File) -> None:
        """Write the state to a file that :meth:`load` reads; it holds numbers and names only.

        Parameters
        ----------
        path : str or path
            Where to; a file of this name is replaced.
        """
        saved.write(path, "state", *packed(self))

    @staticmethod
    def load(path: saved.File) -> State:
        """Read the state of a file, or that of a solution in one.

        A solve that starts from it is the same, to the last bit, as one from the state that was written.

        Raises
        ------
        FormatError
            If it is no such file, or damaged.
        OSError
            If it cannot be opened.
        """
        return unpacked(path, *saved.read(path, ("state", "solution")))

    @staticmethod
    def concatenate(states: Sequence[State]) -> State:
        """Join the instances of several states of one model; a saddle only where all have one, of one shape.

        Raises
        ------
        ModelError
            If they are no states.
        ShapeError
            If they have different blocks, or different numbers of them.
        """
        if not isinstance(states, Sequence) or not all(isinstance(s, State) for s in states):
            raise ModelError(f"states to concatenate are {shown(states)}; give a sequence of states")
        forms = [(_shapes(s.duals), s.rows) for s in states]
        if not states or any(form != forms[0] for form in forms):
            raise ShapeError("states to concatenate need the same blocks; concatenate states of one model")
        duals = {k: torch.cat([s.duals[k] for s in states]) for k in states[0].duals}
        saddles, saddle = [s.saddle for s in states if s.saddle is not None], None
        shapes = [(s.x.shape[1], _shapes(s.rows)) for s in saddles]
        if len(saddles) == len(states) and all(shape == shapes[0] for shape in shapes):
            rows = {k: torch.cat([s.rows[k] for s in saddles]) for k in saddles[0].rows}
            saddle = Saddle(torch.cat([s.x for s in saddles]), rows, torch.cat([s.weight for s in saddles]))
        return State(duals, torch.cat([s.eta for s in states]), saddle, states[0].rows)


def packed(state: State) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Take a state apart into the names and the tensors that a file holds."""
    of = state.saddle.rows if state.saddle is not None else {}
    names = None if state.saddle is None else list(of)
    header = {"blocks": list(state.duals), "of": names, "rows": dict(state.rows)}
    tensors = {"eta": state.eta, **{f"duals_{i}": own for i, own in enumerate(state.duals.values())}}
    if state.saddle is not None:
        tensors |= {"saddle_x": state.saddle.x, "saddle_weight": state.saddle.weight}
        tensors |= {f"saddle_{i}": own for i, own in enumerate(of.values())}
    return header, tensors


def unpacked(path: saved.File, header: dict[str, Any], tensors: dict[str, Tensor]) -> State:
    """Return the state that :func:`packed` took apart.

    Parameters
    ----------
    path : str or path
        The file, for messages.
    header, tensors : dict
        What :func:`packed` returned, as the file holds it.

    Raises
    ------
    FormatError
        If parts are missing, or are none.
    """
    try:
        duals = {str(name): tensors[f"duals_{i}"] for i, name in enumerate(header["blocks"])}
        saddle = None
        if header["of"] is not None:
            rows = {str(name): tensors[f"saddle_{i}"] for i, name in enumerate(header["of"])}
            saddle = Saddle(tensors["saddle_x"], rows, tensors["saddle_weight"])
        return State(duals, tensors["eta"], saddle, header["rows"])
    except (KeyError, TypeError, BlocklpError) as error:
        raise FormatError(f"{path} is damaged: {error!r}; write it again by save()") from error


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    """Shapes by name, without the number of instances."""
    return {name: t.shape[1:] for name, t in tensors.items()}


def _is_tensor(value: object, dims: int) -> bool:
    return isinstance(value, Tensor) and value.dim() == dims and not value.is_complex()


def _require(fits: bool, what: str, value: object, need: str) -> None:
    if not fits:
        error = ShapeError if isinstance(value, Tensor) else ModelError
        raise error(f"{what}: {shown(value)} is not {need}")


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
    sign: float,
) -> State:
    """Make the state of a solve, by groups.

    Parameters
    ----------
    problem : Decomposition
        The problem that was solved.
    duals : Tensor
        ``(batch, copies)`` float64: multipliers and prices of rows, in the sense of the model.
    eta : Tensor
        ``(batch,)`` float64: proximal weights.
    names : dict of str to int
        Names of rows to their numbers.
    memory : Memory, optional
        Of a primal-dual method, in the sense of minimisation.
    sign : float
        1 when minimising, -1 when maximising.
    """
    parts = {g.name: g.view(duals) for g in problem.groups}
    for group in problem.groups:
        if group.name == BOX:
            own = parts[BOX] if group.alive is None else parts[BOX] * group.alive[..., None]
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
        g.name: sign * own.transpose(1, 2)
        for g, own in by_groups(problem, y[:, :in_blocks], list(map(stated_rows, problem.groups)))
        if g.name != BOX
    }
    if problem.rows is not None:
        rows[ROWS] = sign * y[:, in_blocks:, None]
    return State(parts, eta, Saddle(x, rows, weight), names)


def memory_of(problem: Decomposition, state: State, sign: float = 1.0) -> Memory | None:
    """Lay out a primal-dual warm start.

    Parameters
    ----------
    problem : Decomposition
        The problem to solve.
    state : State
        In the sense of the model.
    sign : float
        1 when minimising, -1 when maximising.

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
        y[:, in_blocks : in_blocks + beside.shape[1]] = sign * beside[..., 0].to(y)
    for group, own in by_groups(problem, y[:, :in_blocks], counts):
        known = saddle.rows.get(group.name)
        if known is not None and known.shape[2] == own.shape[1] and known.shape[1] <= group.blocks:
            if not all_finite(known):
                what = "the saddle of the warm start holds NaN or infinite duals of rows"
                raise NonFiniteError(f"{what} for {group.name!r}")
            own[:, :, : known.shape[1]] = sign * known.transpose(1, 2).to(y)
    return x, y, saddle.weight.to(x, copy=True)


def weights_of(state: State, device: torch.device, dtype: torch.dtype) -> Tensor | None:
    """A copy of the proximal weights ``(batch,)``, None where some are not known.

    Parameters
    ----------
    state : State
        The state.
    device, dtype
        Of the copy.

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
    if unknown := state.duals.keys() - {g.name for g in problem.groups} - {BOX} - rows:
        what = f"the warm start has multipliers for {sorted(unknown)}"
        raise ModelError(f"{what}, blocks that the model does not have; leave them out")
    if state.batch != problem.batch:
        what = f"the warm start has {state.batch} instances, the problem {problem.batch}"
        raise ShapeError(f"{what}; use state.select, repeat or concatenate")
    duals = torch.zeros(problem.batch, problem.copies, dtype=problem.cost.dtype, device=problem.cost.device)
    for group in problem.groups:
        known = state.duals.get(group.name)
        if known is None:
            continue
        if not all_finite(known):
            what = f"NaN or infinite multipliers for {group.name!r}"
            raise NonFiniteError(f"the warm start holds {what}; they prove no bound")
        if group.name == BOX and known.shape[1] <= problem.cost.shape[1]:
            # Other variables may be boxed now; multipliers of one that is not go to its blocks.
            known = torch.nn.functional.pad(known, (0, 0, 0, problem.cost.shape[1] - known.shape[1]))
            known = known.gather(1, _boxed(problem, group))
        if known.shape[2] != group.dim or known.shape[1] > group.blocks:
            raise ShapeError(
                f"the warm start holds {tuple(known.shape[1:])} multipliers for {group.name!r}, "
                f"the model has {(group.blocks, group.dim)}; blocks may be added, not removed"
            )
        group.view(duals)[:, : known.shape[1]].copy_(known)
        if group.alive is not None:  # padding has no multipliers
            group.view(duals).mul_(group.alive[..., None])
    if problem.rows is not None and (prices := state.duals.get(ROWS)) is not None:
        if prices.shape[1] > problem.rows.count or prices.shape[2] != 1:
            raise ShapeError(
                f"the warm start holds {tuple(prices.shape[1:])} prices of rows, "
                f"the model has {(problem.rows.count, 1)}; rows may be added, not removed"
            )
        duals[:, problem.in_blocks : problem.in_blocks + prices.shape[1]] = prices[..., 0]
    return duals


def _boxed(problem: Decomposition, group: Group) -> Tensor:
    """The variables of the box: ``(batch, blocks, 1)`` int64."""
    return problem.coupling.index[:, group.start : group.stop, None].expand(problem.batch, -1, -1)

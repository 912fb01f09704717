"""From models to a decomposition that can be solved again and again."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from blocklp import state as states
from blocklp.block import BlockType
from blocklp.box import Box
from blocklp.coupling import Coupling, Linear
from blocklp.decomposition import Decomposition, Group
from blocklp.engine import Event, Limits, Repair, run
from blocklp.errors import DeviceError, ModelError, OptionError
from blocklp.expression import Expression, Values, View, coefficients
from blocklp.methods import Method, as_method
from blocklp.model import BOX, Blocks, Model
from blocklp.solution import Solution, solution
from blocklp.state import State

Bounds = Mapping[View, tuple[object, object]]

HULL_DIM = 64
"""Blocks with more variables are not asked for their own extent: their variables keep an explicit box."""


def compile(models: Model | Sequence[Model], *, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float64) -> Solver:
    """Fix the shapes of a model, or of several models to be solved as one batch.

    Parameters
    ----------
    models : Model or sequence of Model
        Several models need the same variables (by name) and the same kinds of blocks (by name), in any sizes.
    device : str or torch.device
        Where to solve.
    dtype : torch.dtype
        ``float64`` or ``float32``: precision of the iterates.  Bounds are float64 in either case.

    Raises
    ------
    ModelError, OptionError, DeviceError
        If a model has no objective, the models do not fit together, or the device is missing.
    """
    return Solver([models] if isinstance(models, Model) else list(models), torch.device(device), dtype)


class Solver:
    """A compiled problem; :meth:`solve` may be called with new costs (parameters), bounds and warm starts."""

    def __init__(self, models: list[Model], device: torch.device, dtype: torch.dtype) -> None:
        if not models:
            raise ModelError("compile() needs at least one model")
        if device.type == "cuda" and not torch.cuda.is_available():
            raise DeviceError("device 'cuda' was asked for and no CUDA device is available; use device='cpu'")
        if dtype not in (torch.float32, torch.float64):
            raise OptionError(f"dtype {dtype} is not supported; use torch.float64 or torch.float32")
        first = models[0]
        for m in models:
            if m.objective is None:
                raise ModelError("the model has no objective; call minimize() or maximize() first")
            if not m.size:
                raise ModelError("the model has no variables; declare at least one")
            if m.maximizing != first.maximizing or [b.name for b in m.blocks] != [b.name for b in first.blocks]:
                raise ModelError("models compiled together need the same sense and the same names of blocks, in one order")
            if list(m.variables) != list(first.variables):
                raise ModelError("models compiled together need the same variables by name, in one order")
            for a, b in zip(m.blocks, first.blocks, strict=True):
                if repr(a.type) != repr(b.type) or a.scope.shape[1] != b.scope.shape[1]:
                    raise ModelError(f"blocks {a.name!r} differ in type between models compiled together")
                if len(models) > 1 and a.maps is not None:
                    raise ModelError(f"blocks {a.name!r} have maps of their own; models with such blocks compile alone")
        self.models, self.device, self.dtype = models, device, dtype
        self.maximizing = first.maximizing
        self.batch = sum(m.batch for m in models)
        self._structure: Decomposition | None = None
        self._fixed: tuple[list[Expression], Tensor, Tensor] | None = None
        self._sizes = [_size(m) for m in models]

    def owner(self, instance: int) -> tuple[Model, int]:
        """Return the model of an instance and the instance's number in it."""
        for m in self.models:
            if instance < m.batch:
                return m, instance
            instance -= m.batch
        raise IndexError(f"instance {instance} is out of range of a batch of {self.batch}")

    def own_state(self, state: State, instance: int) -> State:
        """Cut the padding of a ragged batch off an instance's state."""
        model, _ = self.owner(instance)
        blocks = {b.name: len(b.scope) for b in model.blocks} | {BOX: model.size}
        return State({k: v[:, : blocks[k]] if k in blocks else v for k, v in state.duals.items()}, state.eta)

    def solve(
        self,
        *,
        method: str | Method = "auto",
        tol: float | Tensor = 1e-4,
        cutoff: float | Tensor | None = None,
        passes: int = 5000,
        time_limit: float = math.inf,
        bounds: Bounds | None = None,
        warm_start: State | None = None,
        callback: Callable[[Event], Any] | None = None,
        history: bool = False,
        check_every: int = 10,
        feasibility_tol: float = 1e-6,
        patience: int = 1000,
        mend: bool = True,
    ) -> Solution:
        """Solve all instances; return the best so far at a limit or an interrupt.

        Parameters
        ----------
        method : str or Method
            ``"auto"`` (default) chooses by what the block types can do; or a name in :data:`blocklp.METHODS`, or an instance with
            settings.
        tol : float or Tensor
            Relative gap at which an instance is optimal; ``(batch,)`` for one each.
        cutoff : float or Tensor, optional
            Stop an instance once its bound reaches this value (from below; from above when maximising).
        passes : int
            Most oracle passes, bound evaluations included.
        time_limit : float
            Seconds.
        bounds : mapping, optional
            ``{variable or view: (lower, upper)}`` to tighten for this solve, each ``shape`` or ``(batch, *shape)``;
            fixings are equal bounds.
        warm_start : State, optional
            ``solution.state`` of a related solve.
        callback : callable, optional
            Gets an :class:`Event` at every check; True, or a mask ``(batch,)``, stops.
        history : bool
            Keep the events in ``solution.history``.
        check_every : int
            Passes between checks of status, primal point and time.
        feasibility_tol : float
            Largest violation of a block, relative to the magnitude of the point, in a primal point.
        patience : int
            Passes without progress after which an instance is stalled.
        mend : bool
            Whether a point that is almost feasible is projected; without, primal points come later, and checks are cheaper.

        Raises
        ------
        OptionError
            If an option is out of range or unknown.
        """
        problem = self.decomposition(bounds)
        ascent = as_method(method, problem)
        sign = -1.0 if self.maximizing else 1.0
        limits = Limits.of(
            problem.offset,
            tol=tol,
            cutoff=math.inf if cutoff is None else sign * torch.as_tensor(cutoff, dtype=torch.float64),
            passes=passes,
            time_limit=time_limit,
            check_every=check_every,
            feasibility_tol=feasibility_tol,
            patience=patience,
            mend=mend,
        )
        if warm_start is None:
            duals, eta = None, None
        else:
            duals = states.fill(problem, State({k: sign * v.to(problem.cost) for k, v in warm_start.duals.items()}, warm_start.eta))
            known = warm_start.eta.to(self.device, self.dtype)
            eta = known if bool(torch.isfinite(known).all()) else None

        def told(event: Event) -> Any:
            assert callback is not None
            return callback(Event(event.passes, event.seconds, sign * event.bound, sign * event.primal, event.gap, event.status))

        log: list[Event] = []
        results = run(
            problem,
            ascent,
            self.dtype,
            limits,
            duals,
            eta,
            self._repair(),
            told if callback is not None else None,
            log.append if history else None,
        )
        results.history = log
        duals = results.duals if sign > 0 else results.duals.neg_()
        return solution(results, states.take(problem, duals, results.eta), self)

    def decomposition(self, bounds: Bounds | None = None, values: Values | None = None) -> Decomposition:
        """Decompose the problem with the parameters' present values, or other ones, and tighter bounds, if given, in float64."""
        if [_size(m) for m in self.models] != self._sizes:
            raise ModelError("the model has got variables or blocks since it was compiled; compile it again")
        width = max(m.size for m in self.models) + (len(self.models) > 1)
        shape = self._structure
        if bounds is not None or shape is None:
            sides = [_bounds(m, bounds or {}, alone=len(self.models) == 1) for m in self.models]
            shape = self._assemble([low for low, _ in sides], [high for _, high in sides], width)
            if bounds is None:
                self._structure = shape
        cost, offset = self._objective(width, values)
        return replace(shape, cost=cost, offset=offset)

    def _objective(self, width: int, values: Values | None) -> tuple[Tensor, Tensor]:
        """Costs ``(batch, width)`` and constants ``(batch,)`` for minimisation; those without parameters are evaluated once."""
        expressions = [m.objective for m in self.models if m.objective is not None]
        if self._fixed is not None and all(a is b for a, b in zip(expressions, self._fixed[0], strict=True)):
            return self._fixed[1].clone(), self._fixed[2].clone()
        sign = -1.0 if self.maximizing else 1.0
        parts = [e.evaluate(values) for e in expressions]
        cost = torch.cat([torch.nn.functional.pad(sign * c, (0, width - c.shape[1])) for c, _ in parts]).to(self.device)
        offset = torch.cat([sign * k for _, k in parts]).to(self.device)
        if all(t.parameter is None for e in expressions for t in e.terms):
            self._fixed = expressions, cost.clone(), offset.clone()
        return cost, offset

    def _assemble(self, lower: list[Tensor], upper: list[Tensor], width: int) -> Decomposition:
        """Build groups, coupling and counts for some bounds."""
        parts = [_groups(m, low, high) for m, low, high in zip(self.models, lower, upper, strict=True)]
        names = list(dict.fromkeys(name for p in parts for name in p))
        ragged = len(self.models) > 1
        batches = [m.batch for m in self.models]
        groups, indices, start = [], [], 0
        maps: dict[tuple[int, int], tuple[Linear, Linear]] = {}
        for name in names:
            having = [p.get(name) for p in parts]
            some = next(h for h in having if h is not None)
            blocks = max(len(h[1]) for h in having if h is not None)
            dim = some[1].shape[1]
            scopes, alive = [], []
            for h, b in zip(having, batches, strict=True):
                scope = h[1] if h is not None else torch.zeros(0, dim, dtype=torch.long)
                pad = torch.full((blocks - len(scope), dim), width - 1)
                scopes.append(torch.cat([scope, pad]).T.reshape(1, -1).expand(b if ragged else 1, -1))
                alive.append((torch.arange(blocks) < len(scope))[None].expand(b, -1))
            kind = (
                some[0]
                if not ragged
                else _stack([h and h[0] for h in having], batches, [0 if h is None else len(h[1]) for h in having], blocks)
            )
            everyone = torch.cat(alive)
            mask = None if bool(everyone.all()) else everyone.to(self.device, torch.float64)
            kind = kind.to(torch.float64, self.device)
            groups.append(Group(name, kind, blocks, dim, start, torch.ones(dim, device=self.device), mask))
            if some[2] is not None:
                maps[start, start + blocks * dim] = some[2]
            indices.append(torch.cat(scopes))
            start += blocks * dim
        index = torch.cat(indices, 1).to(self.device)
        coupling = Coupling.build(width, index, maps)
        ones = torch.ones(index.shape, dtype=torch.float64, device=self.device)
        counts = coupling.collect(ones).clamp(min=1)
        shared = coupling.spread((counts > 1).double())
        # Blocks that only pad all have the same variable; that says nothing about the others.
        curved = [(g.rows(shared) * (1 if g.alive is None else g.alive[:, None])).amax((0, 2)) for g in groups]
        groups = [replace(g, curved=c) for g, c in zip(groups, curved, strict=True)]
        box = [
            _join([torch.nn.functional.pad(t, (0, width - t.shape[1])) for t in side], batches).to(self.device)
            for side in (lower, upper)
        ]
        nothing = torch.zeros(self.batch, width, dtype=torch.float64, device=self.device)
        return Decomposition(nothing, box[0], box[1], nothing[:, 0], tuple(groups), coupling, counts, self._grid(width))

    def _grid(self, width: int) -> Tensor | None:
        """What variables are rounded to, ``(batch or 1, width)``."""
        rows = torch.zeros(len(self.models), width, dtype=torch.float64)
        for row, m in zip(rows, self.models, strict=True):
            for v in m.variables.values():
                row[v.columns] = v.grid
        if not bool(rows.any()):
            return None
        batches = torch.tensor([m.batch for m in self.models])
        return (rows if len(rows) == 1 else rows.repeat_interleave(batches, 0)).to(self.device)

    def _repair(self) -> Repair | None:
        """Wrap the models' repair hooks: apply each to its instances."""
        if any(m.repair is None for m in self.models):
            return None
        first = torch.tensor([0, *(m.batch for m in self.models)]).cumsum(0)

        def repair(x: Tensor, rows: Tensor) -> Tensor:
            fixed = x.clone()
            for m, start in zip(self.models, first.tolist(), strict=False):
                mine = ((rows >= start) & (rows < start + m.batch)).nonzero()[:, 0]
                if len(mine):
                    assert m.repair is not None
                    parts = {k: x[mine][:, v.index.to(x.device)] for k, v in m.variables.items()}
                    answer = m.repair(parts)
                    for k, v in m.variables.items():
                        if k not in answer or answer[k].shape != parts[k].shape:
                            raise ModelError(f"the repair hook must return {k!r} with shape {tuple(parts[k].shape)}")
                        fixed[mine[:, None], v.index.reshape(1, -1).to(x.device)] = answer[k].to(x).reshape(len(mine), -1)
            return fixed

        return repair


def _size(model: Model) -> tuple[int, list[Blocks]]:
    """What tells that a model has grown: number of variables and handles of blocks, which are not changed but replaced."""
    return model.size, list(model.blocks)


def _bounds(model: Model, bounds: Bounds, alone: bool) -> tuple[Tensor, Tensor]:
    """Bounds of an instance's row of variables, ``(batch or 1, variables)``, tightened by what the user gave."""
    sides = []
    for side in ("lower", "upper"):
        parts = [t.reshape(len(t), -1) for t in (getattr(v, side) for v in model.variables.values())]
        sides.append(_join(parts, [model.batch if any(p.shape[0] > 1 for p in parts) else 1] * len(parts), dim=1))
    if not bounds:
        return sides[0], sides[1]
    if not alone:
        raise OptionError("bounds= works on a single compiled model; set the bounds of several models when declaring them")
    low, high = (s.expand(model.batch, -1).clone() for s in sides)
    for view, (lo, hi) in bounds.items():
        if view.model is not model:
            raise ModelError(f"bounds= names {view!r} of another model")
        columns = view.index.reshape(-1)
        given = (coefficients(t, view.shape, model.batch, f"bounds of {view!r}") for t in (lo, hi))
        a, b = (t.reshape(len(t), -1) for t in given)
        low[:, columns] = torch.maximum(low[:, columns], a)
        high[:, columns] = torch.minimum(high[:, columns], b)
    crossed = (low > high).any(1)
    if bool(crossed.any()):
        raise ModelError(f"bounds= leaves no value between lower and upper in instance {int(crossed.nonzero()[0])}")
    return low, high


def _groups(model: Model, lower: Tensor, upper: Tensor) -> dict[str, tuple[BlockType, Tensor, tuple[Linear, Linear] | None]]:
    """Return the model's blocks, restricted to the bounds, and a box for the variables that need one.

    A variable needs a box if it is in no block, or if its bounds cut off part of a block whose type cannot take them in.
    """
    found: dict[str, tuple[BlockType, Tensor, tuple[Linear, Linear] | None]] = {}
    needs_box = torch.ones(model.size, dtype=torch.bool)
    for b in model.blocks:
        needs_box[b.scope] = False
    for b in model.blocks:
        low, high = lower[:, b.scope], upper[:, b.scope]
        least, most = _extent(b.type, model.batch, b.scope)
        slack = 1e-9 * (1 + torch.maximum(least.abs(), most.abs()).nan_to_num(posinf=0.0))
        cut = (low > least + slack) | (high < most - slack)
        kind = b.type
        if bool(cut.any()):
            restricted = kind.restrict(low, high)
            if restricted is None:
                needs_box[b.scope[cut.any(0)]] = True
            else:
                kind = restricted
        found[b.name] = (kind, b.scope, b.maps)
    if bool(needs_box.any()):
        scope = needs_box.nonzero()
        found[BOX] = (Box(lower[:, scope], upper[:, scope]), scope, None)
    return found


def _extent(kind: BlockType, batch: int, scope: Tensor) -> tuple[Tensor, Tensor]:
    """Least and largest value of every coordinate over its block, ``(batch or 1, blocks or 1, dim)``, by the oracle itself."""
    blocks, dim = scope.shape
    rows = batch if any(t.shape[0] > 1 for t in kind.tensors().values()) else 1
    count = blocks if any(t.shape[1] > 1 for t in kind.tensors().values()) else 1
    return (_extent_known if kind.stateless and not kind.tensors() else _extent_of)(kind, rows, count, dim)


def _extent_of(kind: BlockType, rows: int, count: int, dim: int) -> tuple[Tensor, Tensor]:
    least = torch.full((rows, count, dim), -torch.inf, dtype=torch.float64)
    most = -least
    if dim > HULL_DIM:
        return least, most
    for d in range(dim):
        cost = torch.zeros(rows, count, dim, dtype=torch.float64)
        cost[..., d] = 1
        least[..., d] = kind.min_oracle(cost)[1]
        most[..., d] = -kind.min_oracle(-cost)[1]
    return least, most


_extent_known = functools.lru_cache(16)(_extent_of)


def _join(parts: list[Tensor], batches: list[int], dim: int = 0) -> Tensor:
    return torch.cat([p.expand(b, *p.shape[1:]) for p, b in zip(parts, batches, strict=True)], dim)


def _stack(kinds: list[BlockType | None], batches: list[int], counts: list[int], blocks: int) -> BlockType:
    """One type for the blocks of several models: block data padded to a common number of blocks and joined."""
    some = next(k for k in kinds if k is not None)
    joined: dict[str, Tensor] = {}
    for key in some.block_data:
        samples = [k.tensors()[key] for k in kinds if k is not None and key in k.tensors()]
        if not samples:
            continue
        rows = []
        for kind, batch, count in zip(kinds, batches, counts, strict=True):
            sample = samples[0]
            own = kind.tensors().get(key) if kind is not None else None
            # Absent data is zero (nothing excluded); padding repeats a real block, so that oracles meet valid data.
            full = sample[:1, :1].expand(batch, blocks, *sample.shape[2:]).clone()
            if own is not None:
                full[:, :count] = own.expand(batch, count, *own.shape[2:])
            elif kind is not None:
                full[:, :count] = 0
            rows.append(full)
        joined[key] = torch.cat(rows)
    return some.with_data(**joined)

"""From models to the decomposition of a batch: what their blocks are under some bounds, and which copies belong to which variable.

Thousands of small models are assembled together: what differs in length between them is padded.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blocklp.block import BlockType
from blocklp.box import BOX, Box
from blocklp.coefficients import coefficients
from blocklp.coupling import Coupling, Linear
from blocklp.deadline import Deadline
from blocklp.decomposition import Decomposition, Group
from blocklp.errors import ModelError, OptionError, OracleError, UnknownNameError
from blocklp.expression import Expression, Values, View
from blocklp.extents import extent
from blocklp.handles import Blocks, name_of_size
from blocklp.nonnegative_costs import NonnegativeCosts
from blocklp.options import of_type, shown
from blocklp.rows import CouplingRows
from blocklp.statement import Statement

Bounds = Mapping[Any, object]
"""Variables, views or names to tuples (lower, upper), or to a number or tensor at which they are fixed."""

BUILDING = "building the problem"
"""What is being done when a deadline passes here."""


def assemble(models: Sequence[Statement], bounds: Bounds, width: int, device: torch.device, deadline: Deadline) -> Decomposition:
    """Build groups, coupling and counts of models for some bounds, with ``width`` variables and costs that are zero.

    The variables of several models are padded by one at least, which is that of blocks that only pad.  A variable gets a box if it is
    in no block, or if its bounds cut off part of a block whose type cannot take them in.

    Raises
    ------
    TimeLimitError
        If the deadline passes meanwhile.
    """
    deadline.check(BUILDING)
    instances = _Instances(models, width, deadline)
    lower, upper = instances.bounds(bounds)
    needs_box = _first(instances.sizes, width)
    scopes = []
    for same in _by_size(models):
        deadline.check(BUILDING)
        scope = _padded(torch.cat([b.scope for b in same]), [b.scope.shape[0] for b in same], width - 1)
        needs_box.scatter_(1, scope.transpose(1, 2).flatten(1), False)
        scopes.append((same, scope))
    groups, indices, start = [], [], 0
    maps: dict[tuple[int, int], tuple[Linear, Linear]] = {}
    for same, scope in scopes:
        deadline.check(BUILDING)
        own = instances.own(scope)
        kind = instances.restricted(same, own, lower, upper, needs_box)
        if kind.nonnegative_costs:
            kind = NonnegativeCosts(kind, _taken(upper, own))
        if same[0].maps is not None:
            maps[start, start + scope[0].numel()] = same[0].maps
        groups.append(_group(same[0].name, kind, [len(b.scope) for b in same], scope, start, instances, device))
        indices.append(scope)
        start = groups[-1].stop
    deadline.check(BUILDING)
    if bool(needs_box.any()):
        group, scope = _boxes(instances, lower, upper, needs_box, start, device)
        groups.append(group)
        indices.append(scope)
    made = _decomposed(instances, lower, upper, groups, indices, maps, device)
    return replace(made, rows=_rows(models[0], made)) if models[0].rows else made


def _rows(model: Statement, problem: Decomposition) -> CouplingRows:
    """All rows of a model, which compiles alone, within the bounds of its variables."""
    from scipy.sparse import coo_array, vstack  # which takes as long to import as a small model takes to solve

    stated = [r.constraint for r in model.rows]
    parts = [coo_array((s.matrix.data, s.matrix.coords), shape=(s.matrix.shape[0], model.size)) for s in stated]
    matrix = vstack(parts, format="csr")
    matrix.sum_duplicates()
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    lower, upper = (torch.cat([getattr(s, side).expand(model.batch, -1) for s in stated], 1) for side in ("lower", "upper"))
    entries = (torch.from_numpy(np.array(part)) for part in (row, matrix.indices.astype(np.int64), matrix.data))
    device = problem.cost.device
    row_, column, entry, lower, upper = (t.to(device) for t in (*entries, lower, upper))
    return CouplingRows.build(row_, column, entry, lower, upper, problem.lower, problem.upper)


def _by_size(models: Sequence[Statement]) -> Iterator[tuple[Blocks, ...]]:
    """Blocks of one name and size, of every model; those of several sizes get a group for each (:func:`name_of_size`).

    A model without blocks of a size has none of them, of the type that another one has.
    """
    for same in zip(*(m.blocks for m in models), strict=True):
        sizes = sorted({b.scope.shape[1] for b in same})
        for size in sizes if len(sizes) > 1 else ():
            known = next(b for b in same if b.scope.shape[1] == size)
            kind = known.type.with_data(**{key: data[:1, :1] for key, data in known.type.tensors().items()})
            name = name_of_size(known.name, size)
            none = Blocks(name, kind, known.scope[:0])
            yield tuple(replace(b, name=name) if b.scope.shape[1] == size else none for b in same)
        if len(sizes) == 1:
            yield same


def unblocked(models: Sequence[Statement], bounds: Bounds, width: int, device: torch.device) -> Decomposition:
    """Return what :func:`assemble` does, but without the blocks: the least that there is to know of models."""
    instances = _Instances(models, width, Deadline())
    lower, upper = instances.bounds(bounds)
    group, scope = _boxes(instances, lower, upper, _first(instances.sizes, width), 0, device)
    return _decomposed(instances, lower, upper, [group], [scope], {}, device)


def _boxes(
    instances: _Instances, lower: Tensor, upper: Tensor, boxed: Tensor, start: int, device: torch.device
) -> tuple[Group, Tensor]:
    """Boxes of single variables, those of a mask ``(models, width)``, and their scope."""
    counts = boxed.sum(1).tolist()
    scope = _padded(boxed.nonzero()[:, 1:], counts, instances.width - 1)
    kind = Box(*(_taken(side, instances.own(scope)) for side in (lower, upper)))
    return _group(BOX, kind, counts, scope, start, instances, device), scope


def _decomposed(
    instances: _Instances,
    lower: Tensor,
    upper: Tensor,
    groups: list[Group],
    scopes: list[Tensor],
    maps: dict[tuple[int, int], tuple[Linear, Linear]],
    device: torch.device,
) -> Decomposition:
    """Count the copies of every variable, and find the coordinates that blocks share."""
    width = instances.width
    index = instances.own(torch.cat([scope.transpose(1, 2).flatten(1) for scope in scopes], 1)).to(device)
    coupling = Coupling.build(width, index, maps)
    for (start, stop), pair in maps.items():
        _check_maps(next(g.name for g in groups if g.start == start), pair, stop - start, instances.batch, width, device)
    copies = coupling.collect(torch.ones(1, 1, dtype=torch.float64, device=device).expand(index.shape)).clamp(min=1)
    instances.deadline.check(BUILDING)
    shared = copies > 1
    if instances.several:  # blocks that only pad all have the same variable, which says nothing about the others
        shared[:, -1] = False
    curved = coupling.spread(shared.double() if maps else shared) > 0
    own = [g.rows(curved).any(2) for g in groups]  # instances by coordinates
    found = tuple(replace(g, curved=rows.any(0).to(g.curved)) for g, rows in zip(groups, own, strict=True))
    sharing = torch.cat(own, 1)
    several = None if bool((sharing == sharing[:1]).all()) else sharing
    low, high = (side.expand(instances.batch, -1).contiguous().to(device) for side in (lower, upper))
    nothing = torch.zeros(instances.batch, width, dtype=torch.float64, device=device)
    farther = instances.own(instances.beyond).to(device) if bool(instances.beyond.any()) else None
    grid = instances.grid(device)
    return Decomposition(nothing, low, high, nothing[:, 0], found, coupling, copies, grid, sharing=several, beyond=farther)


def costs(objectives: Sequence[Expression], width: int, values: Values | None) -> tuple[Tensor, Tensor]:
    """Coefficients ``(batch, width)`` and constants ``(batch,)`` of models' objectives, with other values of parameters."""
    parts = [e.evaluate(values) for e in objectives]
    if len(parts) == 1:
        return parts[0]
    counts = [e.model.size for e in objectives for _ in range(e.model.batch)]
    return _padded(torch.cat([c.flatten() for c, _ in parts]), counts, 0, width), torch.cat([k for _, k in parts])


class _Instances:
    """The instances of models, one after the other: those of several models have a row each, those of a single one may share it."""

    def __init__(self, models: Sequence[Statement], width: int, deadline: Deadline) -> None:
        self.deadline = deadline
        self.models, self.batches, self.several = models, [m.batch for m in models], len(models) > 1
        self.batch = sum(self.batches)
        self.first = [0, *accumulate(self.batches)]
        self.owner = torch.arange(len(models)).repeat_interleave(torch.tensor(self.batches))
        self.width, self.sizes = width, [m.size for m in models]
        self.beyond = torch.zeros(len(models), width, dtype=torch.float64)
        self.real = self.own(_first(self.sizes, width))

    def own(self, rows: Tensor) -> Tensor:
        """Rows ``(models, ...)`` by instance: ``(batch, ...)``, or ``(1, ...)`` for a single model."""
        return rows if self.batch == len(rows) or not self.several else rows[self.owner]

    def bounds(self, bounds: Bounds) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds of all variables ``(batch, width)``, or ``(1, width)`` for a single model whose instances agree."""
        if not self.several:
            return variable_bounds(self.models[0], bounds)
        of_type(bounds, Mapping, "bounds", "a mapping {variable: (lower, upper)}")
        if bounds:
            raise OptionError("bounds= works on a single compiled model; set the bounds of several models when declaring them")
        counts = [m.size for m in self.models for _ in range(m.batch)]
        lower, upper = (torch.cat([part for m in self.models for part in _parts(m, side)]) for side in ("lower", "upper"))
        return _padded(lower, counts, 0, self.width), _padded(upper, counts, 0, self.width)

    def grid(self, device: torch.device) -> Tensor | None:
        """What variables are rounded to, ``(batch or 1, width)``."""
        variables = [v for m in self.models for v in m.variables.values()]
        steps = torch.tensor([v.grid for v in variables], dtype=torch.float64)
        if not bool(steps.any()):
            return None
        steps = steps.repeat_interleave(torch.tensor([v.columns.stop - v.columns.start for v in variables]))
        return self.own(_padded(steps, self.sizes, 0, self.width)).to(device)

    def restricted(self, same: Sequence[Blocks], scope: Tensor, lower: Tensor, upper: Tensor, needs_box: Tensor) -> BlockType:
        """One type for blocks of the same name, restricted to the bounds; marks the variables whose bounds it cannot take in.

        ``scope`` is ``(batch or 1, blocks, dim)``, ``needs_box`` ``(models, width)`` bool; :attr:`beyond`, ``(models, width)``,
        gets the largest magnitudes of variables in such blocks, where the type's oracle has been asked for them.
        """
        kinds = [b.type for b in same]
        if not self.several and (stated := kinds[0].constraints()) is not None and stated.below is not None:
            assert stated.above is not None
            if not bool(((_taken(lower, scope) > stated.below) | (_taken(upper, scope) < stated.above)).any()):
                return kinds[0]  # what rows imply beyond that need not be known
        least, most = self.extents(same)
        if not bool((self.real & ((lower > least.amin()) | (upper < most.amax()))).any()):  # which is less to look at
            return self.stacked(kinds, same)
        low, high = _taken(lower, scope), _taken(upper, scope)
        slack = 1e-9 * torch.maximum(least.abs(), most.abs()).nan_to_num(posinf=0.0)
        cut = (low > least + slack) | (high < most - slack)
        if self.several:  # blocks that only pad have no bounds
            cut &= self.own(_first([len(b.scope) for b in same], scope.shape[1]))[..., None]
        if not bool(cut.any()):
            return self.stacked(kinds, same)
        for model in sorted(set(self.owner[cut.flatten(1).any(1)].tolist())) if self.several else [0]:
            self.deadline.check(BUILDING)
            rows = slice(self.first[model], self.first[model + 1]) if self.several else slice(None)
            own, count = same[model].scope, len(same[model].scope)
            narrowed = kinds[model].restrict(low[rows, :count], high[rows, :count])
            if narrowed is None:
                needs_box[model, own[cut[rows, :count].any(0)]] = True
                farthest = torch.maximum(least.abs(), most.abs())[rows if len(least) > 1 else slice(None), :count]
                farthest = farthest.nan_to_num(posinf=0.0).amax(0).expand(count, -1)
                self.beyond[model].scatter_reduce_(0, own.flatten(), farthest.flatten(), "amax")
            else:
                kinds[model] = narrowed
        return self.stacked(kinds, same)

    def extents(self, same: Sequence[Blocks]) -> tuple[Tensor, Tensor]:
        """Least and largest values of every coordinate over its block: ``(batch or 1, blocks or 1, dim)``."""
        asked: dict[tuple[int, int, int], tuple[Tensor, Tensor]] = {}
        found = []
        for b, batch in zip(same, self.batches, strict=True):
            data, (blocks, dim) = b.type.tensors().values(), b.scope.shape
            rows, count = batch if any(len(t) > 1 for t in data) else 1, blocks if any(t.shape[1] > 1 for t in data) else 1
            ask = _extent_known if b.type.stateless and not data else extent
            key = id(b.type), rows, count
            self.deadline.check(BUILDING)
            asked[key] = asked.get(key) or ask(b.type, rows, count, dim)
            found.append(asked[key])
        if all(f is found[0] for f in found):
            return found[0]
        counts = [b.scope.shape[0] for b, batch in zip(same, self.batches, strict=True) for _ in range(batch)]
        full = [(b.scope.shape[0], b.scope.shape[1]) for b in same]
        least, most = (
            torch.cat([t.expand(batch, *shape).flatten(0, 1) for t, batch, shape in zip(side, self.batches, full, strict=True)])
            for side in zip(*found, strict=True)
        )
        return _padded(least, counts, 0), _padded(most, counts, 0)

    def stacked(self, kinds: Sequence[BlockType], same: Sequence[Blocks]) -> BlockType:
        """One type for the blocks of all models: block data padded to a common number of blocks and joined."""
        if not self.several:
            return kinds[0]
        kinds, counts = kinds[0].alike(kinds), [len(b.scope) for b in same]
        first = kinds[0]
        joined: dict[str, Tensor] = {}
        for key in first.block_data:
            own = [kind.tensors().get(key) for kind in kinds]
            sample = next((data for data in own if data is not None), None)
            if sample is None:
                continue
            rows = []
            for data, batch, count in zip(own, self.batches, counts, strict=True):
                self.deadline.check(BUILDING)
                # Absent data is zero (nothing excluded); padding repeats a real block, so that oracles meet valid data.
                full = sample[:1, :1].expand(batch, max(counts), *sample.shape[2:]).clone()
                full[:, :count] = 0 if data is None else data.expand(batch, count, *data.shape[2:])
                rows.append(full)
            joined[key] = torch.cat(rows)
        return first.with_data(**joined) if joined else first


def variable_bounds(model: Statement, bounds: Bounds) -> tuple[Tensor, Tensor]:
    """Bounds of an instance's row of variables, ``(batch or 1, variables)``, tightened by what the user gave.

    Raises
    ------
    OptionError
        If these are no such mapping.
    ModelError, UnknownNameError
        If they name what the model does not have, are no finite numbers, or leave no value.
    """
    of_type(bounds, Mapping, "bounds", "a mapping {variable: (lower, upper)}")
    sides = [_joined(model, side) for side in ("lower", "upper")]
    if not bounds:
        return sides[0], sides[1]
    low, high = (s.expand(model.batch, -1).clone() for s in sides)
    for key, given in bounds.items():
        view = _named(model, key)
        if isinstance(given, list) or (isinstance(given, tuple) and len(given) != 2):
            raise OptionError(
                f"bounds of {view!r} are {shown(given)}; give a tuple (lower, upper), or one number or tensor to fix it"
            )
        both = given if isinstance(given, tuple) else (given, given)
        sides = [coefficients(t, view.shape, model.batch, f"bounds of {view!r}") for t in both]
        a, b = (t.reshape(len(t), -1) for t in sides)
        columns = view.index.reshape(-1)
        low[:, columns] = torch.maximum(low[:, columns], a)
        high[:, columns] = torch.minimum(high[:, columns], b)
    if bool((low > high).any()):
        i, column = (low > high).nonzero()[0].tolist()
        least, most = float(low[i, column]), float(high[i, column])
        raise ModelError(f"bounds= leaves {model.entry(column)} no value between {least:g} and {most:g} in instance {i}")
    return low, high


def _named(model: Statement, key: object) -> View:
    """The entries that a key of bounds speaks of."""
    if isinstance(key, str):
        if key not in model.variables:
            raise UnknownNameError(f"bounds= names {key!r}; the model has {', '.join(map(repr, model.variables))}")
        return model.variables[key]
    of_type(key, View, "a key of bounds", "a variable, a view of one, or its name")
    assert isinstance(key, View)
    if key.model is not model:
        raise ModelError(f"bounds= names {key!r} of another model")
    return key


def _check_maps(name: str, maps: tuple[Linear, Linear], copies: int, batch: int, width: int, device: torch.device) -> None:
    """Refuse maps of the caller's that return anything but tensors of the shapes that they must."""
    for function, given, must, map_ in (("to_dual", width, copies, maps[0]), ("to_primal", copies, width, maps[1])):
        answer = map_(torch.zeros(batch, given, dtype=torch.float64, device=device))
        if not isinstance(answer, Tensor) or answer.shape != (batch, must):
            what = f"a tensor {tuple(answer.shape)}" if isinstance(answer, Tensor) else f"{type(answer).__name__}"
            raise OracleError(f"{function} of {name!r} returned {what}; for {(batch, given)} it must return a tensor {(batch, must)}")


def _joined(model: Statement, side: str) -> Tensor:
    """Bounds of all variables, ``(batch, variables)``, or ``(1, variables)`` where instances of the model agree."""
    parts = [bound.reshape(bound.shape[0], -1) for bound in (getattr(v, side) for v in model.variables.values())]
    rows = max(p.shape[0] for p in parts)
    return torch.cat([p.expand(rows, -1) for p in parts], 1)


def _parts(model: Statement, side: str) -> list[Tensor]:
    """Bounds of all variables of all instances of a model, one after the other, in parts."""
    if model.batch == 1:
        return [getattr(v, side).reshape(-1) for v in model.variables.values()]
    return [_joined(model, side).expand(model.batch, -1).reshape(-1)]


def _group(
    name: str, kind: BlockType, counts: list[int], scope: Tensor, start: int, instances: _Instances, device: torch.device
) -> Group:
    """The blocks of a name, ``counts`` of them in each model."""
    _, blocks, dim = scope.shape
    alive = None if min(counts) == blocks else instances.own(_first(counts, blocks)).to(device, torch.float64)
    return Group(name, kind.to(torch.float64, device), blocks, dim, start, torch.ones(dim, dtype=torch.float64, device=device), alive)


def _first(counts: list[int], length: int) -> Tensor:
    """Which of so many entries are among the first ones, for each count: ``(counts, length)`` bool."""
    return torch.arange(length) < torch.tensor(counts)[:, None]


def _padded(joined: Tensor, counts: list[int], fill: int, length: int = 0) -> Tensor:
    """Rows of so many entries, all joined ``(entries, ...)``, with ``fill`` after each to ``length`` or to the longest.

    Returns ``(rows, length, ...)``.
    """
    length = max(length, *counts)
    if min(counts) == length:
        return joined.view(len(counts), length, *joined.shape[1:])
    # In memory entries run fastest, as copies do in a row of them.
    found = joined.new_full((len(counts), *joined.shape[1:], length), fill).movedim(-1, 1)
    found[_first(counts, length)] = joined
    return found


def _taken(values: Tensor, scope: Tensor) -> Tensor:
    """Values ``(batch or 1, variables)`` of the variables in blocks ``(batch or 1, blocks, dim)``."""
    return values[:, scope[0]] if len(scope) == 1 else values.gather(1, scope.flatten(1)).view(scope.shape)


_extent_known = functools.lru_cache(16)(extent)  # thousands of models may share a type

"""From models to the decomposition of a batch.

It holds the blocks of the models under some bounds, and which copies belong to which variable.

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
from blocklp.capabilities import HasRestriction, constraints_of, supports
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


def assemble(
    models: Sequence[Statement],
    bounds: Bounds,
    width: int,
    device: torch.device,
    deadline: Deadline,
) -> Decomposition:
    """Build groups, coupling and counts of models for some bounds; the costs are zero.

    The variables of several models are padded by one at least, which is that of padding blocks. A
    variable gets a box if it is in no block, or if its bounds cut off part of a block whose type cannot take
    them in.

    Parameters
    ----------
    models : sequence of Statement
        Models with the same names and types of blocks; one with rows compiles alone.
    bounds : mapping
        Tighter bounds of variables (:data:`Bounds`); empty for several models.
    width : int
        Number of variables of an instance, padding included.
    device : torch.device
        Where the tensors go; they are float64.
    deadline : Deadline
        Checked before each part of the work.

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
        counts = [len(b.scope) for b in same]
        groups.append(_group(same[0].name, kind, counts, scope, start, instances, device))
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
    from scipy.sparse import coo_array, vstack  # importing it takes as long as solving a small model

    stated = [r.constraint for r in model.rows]
    matrices = [r.matrix for r in stated]
    parts = [coo_array((m.data, m.coords), shape=(m.shape[0], model.size)) for m in matrices]
    matrix = vstack(parts, format="csr")
    matrix.sum_duplicates()
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    lower = torch.cat([r.lower.expand(model.batch, -1) for r in stated], 1)
    upper = torch.cat([r.upper.expand(model.batch, -1) for r in stated], 1)
    columns = matrix.indices.astype(np.int64)
    entries = (torch.from_numpy(np.array(part)) for part in (row, columns, matrix.data))
    device = problem.cost.device
    row_, column, entry, lower, upper = (t.to(device) for t in (*entries, lower, upper))
    return CouplingRows.build(row_, column, entry, lower, upper, problem.lower, problem.upper)


def _by_size(models: Sequence[Statement]) -> Iterator[tuple[Blocks, ...]]:
    """Blocks of one name and size, of every model; each size of a name is a group (:func:`name_of_size`).

    A model without blocks of a size has zero blocks in that group, of the type that another model has there.
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
    """Build the decomposition of models without their blocks: a box around each variable, and zero costs.

    Parameters
    ----------
    models : sequence of Statement
        The models; their blocks and rows are not read.
    bounds : mapping
        Tighter bounds of variables (:data:`Bounds`); empty for several models.
    width : int
        Number of variables of an instance, padding included.
    device : torch.device
        Where the tensors go; they are float64.
    """
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
        name = next(g.name for g in groups if g.start == start)
        _check_maps(name, pair, stop - start, instances.batch, width, device)
    ones = torch.ones(1, 1, dtype=torch.float64, device=device).expand(index.shape)
    copies = coupling.collect(ones).clamp(min=1)
    instances.deadline.check(BUILDING)
    shared = copies > 1
    if instances.several:  # padding blocks all have the same variable, which says nothing about the others
        shared[:, -1] = False
    coupled = coupling.spread(shared.double() if maps else shared) > 0
    own = [g.rows(coupled).any(2) for g in groups]  # instances by coordinates
    found = tuple(replace(g, curved=rows.any(0).to(g.curved)) for g, rows in zip(groups, own, strict=True))
    sharing = torch.cat(own, 1)
    several = None if bool((sharing == sharing[:1]).all()) else sharing
    low, high = (side.expand(instances.batch, -1).contiguous().to(device) for side in (lower, upper))
    nothing = torch.zeros(instances.batch, width, dtype=torch.float64, device=device)
    farther = instances.own(instances.beyond).to(device) if bool(instances.beyond.any()) else None
    grid = instances.grid(device)
    zero = nothing[:, 0]
    return Decomposition(nothing, low, high, zero, found, coupling, copies, grid, several, beyond=farther)


def costs(objectives: Sequence[Expression], width: int, values: Values | None) -> tuple[Tensor, Tensor]:
    """Coefficients and constants of the models' objectives.

    Parameters
    ----------
    objectives : sequence of Expression
        One for each model, of shape ``()``.
    width : int
        Number of variables of an instance, padding included.
    values : mapping or None
        Parameters to the values to use instead of those that are set.

    Returns
    -------
    cost, constant : Tensor
        ``(batch, width)`` and ``(batch,)`` float64.
    """
    parts = [e.evaluate(values) for e in objectives]
    if len(parts) == 1:
        return parts[0]
    counts = [e.model.size for e in objectives for _ in range(e.model.batch)]
    joined = torch.cat([c.flatten() for c, _ in parts])
    return _padded(joined, counts, 0, width), torch.cat([k for _, k in parts])


class _Instances:
    """The instances of models, one after the other.

    Each instance of several models has a row of its own; the instances of a single model may share one.
    """

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
        """Bounds of all variables: ``(batch, width)`` each, or ``(1, width)`` where instances agree."""
        if not self.several:
            return variable_bounds(self.models[0], bounds)
        of_type(bounds, Mapping, "bounds", "a mapping {variable: (lower, upper)}")
        if bounds:
            instead = "set the bounds of several models when declaring them"
            raise OptionError(f"bounds= works on a single compiled model; {instead}")
        counts = [m.size for m in self.models for _ in range(m.batch)]
        lower = torch.cat([part for m in self.models for part in _parts(m, "lower")])
        upper = torch.cat([part for m in self.models for part in _parts(m, "upper")])
        return _padded(lower, counts, 0, self.width), _padded(upper, counts, 0, self.width)

    def grid(self, device: torch.device) -> Tensor | None:
        """What variables are rounded to, ``(batch or 1, width)``."""
        variables = [v for m in self.models for v in m.variables.values()]
        steps = torch.tensor([v.grid for v in variables], dtype=torch.float64)
        if not bool(steps.any()):
            return None
        steps = steps.repeat_interleave(torch.tensor([v.columns.stop - v.columns.start for v in variables]))
        return self.own(_padded(steps, self.sizes, 0, self.width)).to(device)

    def restricted(
        self,
        same: Sequence[Blocks],
        scope: Tensor,
        lower: Tensor,
        upper: Tensor,
        needs_box: Tensor,
    ) -> BlockType:
        """One type for blocks of the same name, restricted to the bounds of their variables.

        Parameters
        ----------
        same : sequence of Blocks
            The blocks of each model.
        scope : Tensor
            ``(batch or 1, blocks, dim)`` int64: their variables, padding included.
        lower, upper : Tensor
            ``(batch or 1, width)`` float64: bounds of all variables.
        needs_box : Tensor
            ``(models, width)`` bool, written: the variables whose bounds the type cannot take in.
            :attr:`beyond`, ``(models, width)``, gets the largest magnitudes of variables in such blocks,
            where the type's oracle has been asked for them.
        """
        kinds = [b.type for b in same]
        if not self.several and (stated := constraints_of(kinds[0])) is not None and stated.below is not None:
            assert stated.above is not None
            tighter = (_taken(lower, scope) > stated.below) | (_taken(upper, scope) < stated.above)
            if not bool(tighter.any()):
                return kinds[0]  # what rows imply beyond that need not be known
        least, most = self.extents(same)
        # Variables are fewer than copies: look at these first.
        if not bool((self.real & ((lower > least.amin()) | (upper < most.amax()))).any()):
            return self.stacked(kinds, same)
        low, high = _taken(lower, scope), _taken(upper, scope)
        slack = 1e-9 * torch.maximum(least.abs(), most.abs()).nan_to_num(posinf=0.0)
        cut = (low > least + slack) | (high < most - slack)
        if self.several:  # padding blocks have no bounds
            cut &= self.own(_first([len(b.scope) for b in same], scope.shape[1]))[..., None]
        if not bool(cut.any()):
            return self.stacked(kinds, same)
        for model in sorted(set(self.owner[cut.flatten(1).any(1)].tolist())) if self.several else [0]:
            self.deadline.check(BUILDING)
            rows = slice(self.first[model], self.first[model + 1]) if self.several else slice(None)
            own, count = same[model].scope, len(same[model].scope)
            kind, sides = kinds[model], (low[rows, :count], high[rows, :count])
            narrowed = kind.restrict(*sides) if supports(kind, HasRestriction) else None
            if narrowed is None:
                needs_box[model, own[cut[rows, :count].any(0)]] = True
                farthest = torch.maximum(least.abs(), most.abs())
                farthest = farthest[rows if len(least) > 1 else slice(None), :count]
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
            rows = batch if any(len(t) > 1 for t in data) else 1
            count = blocks if any(t.shape[1] > 1 for t in data) else 1
            ask = _extent_known if b.type.stateless and not data else extent
            key = id(b.type), rows, count
            self.deadline.check(BUILDING)
            asked[key] = asked.get(key) or ask(b.type, rows, count, dim)
            found.append(asked[key])
        if all(f is found[0] for f in found):
            return found[0]
        counts = [b.scope.shape[0] for b, batch in zip(same, self.batches, strict=True) for _ in range(batch)]
        full = [(batch, *b.scope.shape) for b, batch in zip(same, self.batches, strict=True)]
        least, most = (
            torch.cat([t.expand(shape).flatten(0, 1) for t, shape in zip(side, full, strict=True)])
            for side in zip(*found, strict=True)
        )
        return _padded(least, counts, 0), _padded(most, counts, 0)

    def stacked(self, kinds: Sequence[BlockType], same: Sequence[Blocks]) -> BlockType:
        """One type for the blocks of all models: block data padded to one number of blocks, and joined."""
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
                # Absent data is zero (nothing excluded); padding repeats a real block, so that oracles meet
                # valid data.
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
            need = "give a tuple (lower, upper), or one number or tensor to fix it"
            raise OptionError(f"bounds of {view!r} are {shown(given)}; {need}")
        both = given if isinstance(given, tuple) else (given, given)
        sides = [coefficients(t, view.shape, model.batch, f"bounds of {view!r}") for t in both]
        a, b = (t.reshape(len(t), -1) for t in sides)
        columns = view.index.reshape(-1)
        low[:, columns] = torch.maximum(low[:, columns], a)
        high[:, columns] = torch.minimum(high[:, columns], b)
    if bool((low > high).any()):
        i, column = (low > high).nonzero()[0].tolist()
        least, most = float(low[i, column]), float(high[i, column])
        between = f"between {least:g} and {most:g} in instance {i}"
        raise ModelError(f"bounds= leaves {model.entry(column)} no value {between}")
    return low, high


def _named(model: Statement, key: object) -> View:
    """The entries that a key of bounds speaks of."""
    if isinstance(key, str):
        if key not in model.variables:
            known = ", ".join(map(repr, model.variables))
            raise UnknownNameError(f"bounds= names {key!r}; the model has {known}")
        return model.variables[key]
    of_type(key, View, "a key of bounds", "a variable, a view of one, or its name")
    assert isinstance(key, View)
    if key.model is not model:
        raise ModelError(f"bounds= names {key!r} of another model")
    return key


def _check_maps(
    name: str,
    maps: tuple[Linear, Linear],
    copies: int,
    batch: int,
    width: int,
    device: torch.device,
) -> None:
    """Refuse maps of the caller's that return anything but tensors of the shapes that they must."""
    sizes = (("to_dual", width, copies), ("to_primal", copies, width))
    for (function, given, must), map_ in zip(sizes, maps, strict=True):
        answer = map_(torch.zeros(batch, given, dtype=torch.float64, device=device))
        if not isinstance(answer, Tensor) or answer.shape != (batch, must):
            tensor = isinstance(answer, Tensor)
            what = f"a tensor {tuple(answer.shape)}" if tensor else f"{type(answer).__name__}"
            need = f"for {(batch, given)} it must return a tensor {(batch, must)}"
            raise OracleError(f"{function} of {name!r} returned {what}; {need}")


def _joined(model: Statement, side: str) -> Tensor:
    """Bounds of all variables: ``(batch, variables)``, or ``(1, variables)`` where instances agree."""
    bounds: list[Tensor] = [getattr(v, side) for v in model.variables.values()]
    parts = [bound.reshape(bound.shape[0], -1) for bound in bounds]
    rows = max(p.shape[0] for p in parts)
    return torch.cat([p.expand(rows, -1) for p in parts], 1)


def _parts(model: Statement, side: str) -> list[Tensor]:
    """Bounds of all variables of all instances of a model, one after the other, in parts."""
    if model.batch == 1:
        return [getattr(v, side).reshape(-1) for v in model.variables.values()]
    return [_joined(model, side).expand(model.batch, -1).reshape(-1)]


def _group(
    name: str,
    kind: BlockType,
    counts: list[int],
    scope: Tensor,
    start: int,
    instances: _Instances,
    device: torch.device,
) -> Group:
    """The blocks of a name, ``counts`` of them in each model."""
    _, blocks, dim = scope.shape
    valid = None if min(counts) == blocks else instances.own(_first(counts, blocks)).to(device, torch.float64)
    coupled = torch.ones(dim, dtype=torch.float64, device=device)
    return Group(name, kind.to(torch.float64, device), blocks, dim, start, coupled, valid)


def _first(counts: list[int], length: int) -> Tensor:
    """Which of so many entries are among the first ones, for each count: ``(counts, length)`` bool."""
    return torch.arange(length) < torch.tensor(counts)[:, None]


def _padded(joined: Tensor, counts: list[int], fill: int, length: int = 0) -> Tensor:
    """Pad rows, given joined as ``(entries, ...)``, with ``fill`` to ``length`` or to the longest.

    ``counts`` are the lengths of the rows. Returns ``(rows, length, ...)``.
    """
    length = max(length, *counts)
    if min(counts) == length:
        return joined.view(len(counts), length, *joined.shape[1:])
    # In memory entries run fastest, as copies do in a row of them.
    found = joined.new_full((len(counts), *joined.shape[1:], length), fill).movedim(-1, 1)
    found[_first(counts, length)] = joined
    return found


def _taken(values: Tensor, scope: Tensor) -> Tensor:
    """Gather values ``(batch or 1, variables)`` for the variables of blocks ``(batch or 1, blocks, dim)``."""
    return values[:, scope[0]] if len(scope) == 1 else values.gather(1, scope.flatten(1)).view(scope.shape)


_extent_known = functools.lru_cache(16)(extent)  # thousands of models may share a type

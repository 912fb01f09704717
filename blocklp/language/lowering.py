"""From models to the decomposition of a batch.

It holds the blocks of the models under some bounds, and which copies belong to which variable.

Thousands of small models are assembled together: what differs in length between them is padded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from blocklp.blocks.box import BOX, Box
from blocklp.blocks.contract import BlockType
from blocklp.blocks.nonnegative_costs import NonnegativeCosts
from blocklp.deadline import Deadline
from blocklp.decomposition.incidence import Coupling, Linear
from blocklp.decomposition.problem import Decomposition, Group
from blocklp.decomposition.rows import CouplingRows
from blocklp.errors import OracleError
from blocklp.language.expression import Expression, Values
from blocklp.language.handles import Blocks, name_of_size
from blocklp.language.instances import BUILDING, Instances, leading, padded, taken
from blocklp.language.statement import Statement
from blocklp.language.variable_bounds import Bounds


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

    Returns
    -------
    Decomposition
        The problem of all instances, ``(batch, width)`` variables, float64 on the device.

    Raises
    ------
    TimeLimitError
        If the deadline passes meanwhile.
    """
    deadline.check(BUILDING)
    instances = Instances(models, width, deadline)
    lower, upper = instances.bounds(bounds)
    needs_box = leading(instances.sizes, width)
    scopes = []
    for same in _by_size(models):
        deadline.check(BUILDING)
        scope = padded(torch.cat([b.scope for b in same]), [b.scope.shape[0] for b in same], width - 1)
        needs_box.scatter_(1, scope.transpose(1, 2).flatten(1), False)
        scopes.append((same, scope))
    groups, indices, start = [], [], 0
    maps: dict[tuple[int, int], tuple[Linear, Linear]] = {}
    for same, scope in scopes:
        deadline.check(BUILDING)
        own = instances.own(scope)
        kind = instances.restricted(same, own, lower, upper, needs_box)
        if kind.nonnegative_costs:
            kind = NonnegativeCosts(kind, taken(upper, own))
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

    Returns
    -------
    Decomposition
        The problem of all instances, ``(batch, width)`` variables, float64 on the device.
    """
    instances = Instances(models, width, Deadline())
    lower, upper = instances.bounds(bounds)
    group, scope = _boxes(instances, lower, upper, leading(instances.sizes, width), 0, device)
    return _decomposed(instances, lower, upper, [group], [scope], {}, device)


def _boxes(
    instances: Instances, lower: Tensor, upper: Tensor, boxed: Tensor, start: int, device: torch.device
) -> tuple[Group, Tensor]:
    """Boxes of single variables, those of a mask ``(models, width)``, and their scope."""
    counts = boxed.sum(1).tolist()
    scope = padded(boxed.nonzero()[:, 1:], counts, instances.width - 1)
    kind = Box(*(taken(side, instances.own(scope)) for side in (lower, upper)))
    return _group(BOX, kind, counts, scope, start, instances, device), scope


def _decomposed(
    instances: Instances,
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
    found = tuple(replace(g, coupled=rows.any(0).to(g.coupled)) for g, rows in zip(groups, own, strict=True))
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
    return padded(joined, counts, 0, width), torch.cat([k for _, k in parts])


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


def _group(
    name: str,
    kind: BlockType,
    counts: list[int],
    scope: Tensor,
    start: int,
    instances: Instances,
    device: torch.device,
) -> Group:
    """The blocks of a name, ``counts`` of them in each model."""
    _, blocks, dim = scope.shape
    valid = None
    if min(counts) < blocks:
        valid = instances.own(leading(counts, blocks)).to(device, torch.float64)
    coupled = torch.ones(dim, dtype=torch.float64, device=device)
    return Group(name, kind.to(torch.float64, device), blocks, dim, start, coupled, valid)

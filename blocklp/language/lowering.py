"""From models to the decomposition of a batch.

It holds the blocks of the models under some bounds, and which copies belong to which variable.

Thousands of small models are assembled together: what differs in length between them is padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from blocklp.blocks.box import BOX, Box
from blocklp.blocks.contract import BlockType
from blocklp.blocks.nonnegative_costs import NonnegativeCosts
from blocklp.decomposition.incidence import Coupling, Linear
from blocklp.decomposition.problem import Decomposition, Group
from blocklp.decomposition.rows import CouplingRows
from blocklp.errors import OracleError
from blocklp.language.expression import Expression, Values
from blocklp.language.handles import Rows
from blocklp.language.instances import BUILDING, Instances, Members, leading, padded, taken
from blocklp.language.variable_bounds import Bounds


def assemble(instances: Instances, bounds: Bounds, device: torch.device) -> Decomposition:
    """Build groups, coupling and counts of models for some bounds; the costs are zero.

    The variables of several models are padded by one at least, which is that of padding blocks. A
    variable gets a box if it is in no block, or if its bounds cut off part of a block whose type cannot take
    them in.

    Parameters
    ----------
    instances : Instances
        Of models with the same names and types of blocks; one with rows compiles alone.
    bounds : mapping
        Tighter bounds of variables (:data:`Bounds`); empty for several models.
    device : torch.device
        Where the tensors go; they are float64.

    Returns
    -------
    Decomposition
        The problem of all instances, ``(batch, width)`` variables, float64 on the device.

    Raises
    ------
    TimeLimitError
        If the deadline passes meanwhile.
    """
    deadline = instances.deadline
    deadline.check(BUILDING)
    lower, upper = (side.detach() for side in instances.bounds(bounds))
    members, needs_box = list(instances.members()), instances.present
    for same in members:
        needs_box.scatter_(1, same.columns.flatten(1), False)
    groups, indices, start = [], [], 0
    maps: dict[tuple[int, int], tuple[Linear, Linear]] = {}
    for same in members:
        deadline.check(BUILDING)
        kind, points = instances.restricted(same, lower, upper, needs_box)
        if kind.nonnegative_costs:
            kind = NonnegativeCosts(kind, taken(upper, instances.own(same.scope)))
        if same.maps is not None:
            maps[start, start + same.columns[0].numel()] = same.maps
        group = _group(same, kind, start, instances, device)
        groups.append(group if points is None else replace(group, known=points.transpose(0, 1).to(device)))
        indices.append(same.columns)
        start = groups[-1].stop
    deadline.check(BUILDING)
    if bool(needs_box.any()):
        group, columns = _boxes(instances, lower, upper, needs_box, start, device)
        groups.append(group)
        indices.append(columns)
    made = _decomposed(instances, lower, upper, groups, indices, maps, device)
    rows = instances.rows
    return replace(made, rows=_rows(rows, made)) if rows else made


def _rows(rows: Sequence[Rows], problem: Decomposition) -> CouplingRows:
    """All rows of a model, which compiles alone, within the bounds of its variables."""
    from scipy.sparse import csr_array  # importing it takes as long as solving a small model

    stated, batch = [r.constraint for r in rows], problem.batch
    first = np.cumsum([0, *(r.matrix.shape[0] for r in stated)])
    row = np.concatenate([r.matrix.coords[0] + at for r, at in zip(stated, first[:-1], strict=True)])
    column = np.concatenate([r.matrix.coords[1] for r in stated])
    data = np.concatenate([r.matrix.data for r in stated])
    matrix = csr_array((data, (row, column)), shape=(first[-1], problem.cost.shape[1]))  # adds duplicates up
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    lower = torch.cat([r.lower.expand(batch, -1) for r in stated], 1)
    upper = torch.cat([r.upper.expand(batch, -1) for r in stated], 1)
    parts = (torch.from_numpy(part) for part in (row, matrix.indices.astype(np.int64), matrix.data))
    rows_, columns, entries, lower, upper = (t.to(problem.cost.device) for t in (*parts, lower, upper))
    return CouplingRows.build(rows_, columns, entries, lower, upper, problem.lower, problem.upper)


def unblocked(instances: Instances, bounds: Bounds, device: torch.device) -> Decomposition:
    """Build the decomposition of models without their blocks: a box around each variable, and zero costs.

    Parameters
    ----------
    instances : Instances
        Of the models; their blocks and rows are not read.
    bounds, device
        As in :func:`assemble`, and so is what is returned.
    """
    lower, upper = (side.detach() for side in instances.bounds(bounds))
    group, columns = _boxes(instances, lower, upper, instances.present, 0, device)
    return _decomposed(instances, lower, upper, [group], [columns], {}, device)


def _boxes(
    instances: Instances, lower: Tensor, upper: Tensor, boxed: Tensor, start: int, device: torch.device
) -> tuple[Group, Tensor]:
    """Boxes of single variables, those of a mask ``(models, width)``, and their columns."""
    counts = boxed.sum(1)
    scope = padded(boxed.nonzero()[:, 1:], counts.tolist(), instances.width - 1)
    kind = Box(*(taken(side, instances.own(scope)) for side in (lower, upper)))
    unequal = counts if bool((counts < scope.shape[1]).any()) else None
    members = Members(BOX, scope.transpose(1, 2), unequal, None)
    return _group(members, kind, start, instances, device), members.columns


def _decomposed(
    instances: Instances,
    lower: Tensor,
    upper: Tensor,
    groups: list[Group],
    columns: list[Tensor],
    maps: dict[tuple[int, int], tuple[Linear, Linear]],
    device: torch.device,
) -> Decomposition:
    """Count the copies of every variable, and find the coordinates that blocks share."""
    width = instances.width
    flat = [own.flatten(1) for own in columns]
    index = instances.own(flat[0] if len(flat) == 1 else torch.cat(flat, 1)).to(device)
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
    zero = torch.zeros(instances.batch, dtype=torch.float64, device=device)
    nothing = zero[:, None].expand(-1, width)  # costs are those of a solve, which take its place
    farther = instances.own(instances.beyond).to(device) if bool(instances.beyond.any()) else None
    grid = instances.grid(device)
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
    members: Members, kind: BlockType, start: int, instances: Instances, device: torch.device
) -> Group:
    """The blocks of a name."""
    _, dim, blocks = members.columns.shape
    valid = None
    if members.counts is not None:
        valid = instances.own(leading(members.counts, blocks)).to(device, torch.float64)
    coupled = torch.ones(dim, dtype=torch.float64, device=device)
    kind, added = kind.to(torch.float64, device), members.added
    return Group(members.name, kind, blocks, dim, start, coupled, valid, added=added)

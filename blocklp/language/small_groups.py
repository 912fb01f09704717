"""Blocks of one type that were added few at a time, as in a loop: they are one group, as if added together.

Every pass calls the oracle of each group, so that a thousand groups of one block take a hundred times as long
as one group of a thousand blocks. The names of the calls stay: states and multipliers are by them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from blocklp.blocks.contract import BlockType
from blocklp.blocks.type_difference import one_for_both, with_other_data
from blocklp.language.instances import Members

SMALL = 1000
"""Copies up to which blocks of a name are put together with others; more are worth a call of their own."""

LOOKED_AT = 16
"""Groups of one form that blocks are compared with, the latest ones."""


class Added(NamedTuple):
    """Blocks that one call added, of all models: as :meth:`Instances.restricted` answers."""

    members: Members
    kind: BlockType
    points: Tensor | None


def together(added: Sequence[Added]) -> Iterator[Added]:
    """Put small groups of equal types together, each with the first of its kind.

    Parameters
    ----------
    added : sequence of Added
        All blocks, in order. Those with maps or padding stay alone.

    Returns
    -------
    iterator of Added
        The groups.
    """
    groups: list[list[Added]] = []
    by_form: dict[object, list[list[Added]]] = {}
    for one in added:
        if (form := _form(one)) is None:
            groups.append([one])
            continue
        alike = by_form.setdefault(form, [])
        if (same := next((own for own in alike[-LOOKED_AT:] if _fit(own[0], one)), None)) is None:
            groups.append(same := [])
            alike.append(same)
        same.append(one)
    return map(_joined, groups)


def _form(one: Added) -> object | None:
    """What groups that are put together have in common, as a key; None for one that stays alone."""
    members, data = one.members, one.kind.tensors()
    models, dim, blocks = members.columns.shape
    if not 0 < dim * blocks <= SMALL or members.counts is not None or members.maps is not None:
        return None
    forms = ((key, len(t), t.dim(), t.dtype, t.shape[1] < blocks) for key, t in data.items())
    return type(one.kind), models, dim, tuple(forms)


def _fit(one: Added, other: Added) -> bool:
    """Whether groups of one form differ in data of single blocks only, whose shapes can be made equal."""
    if not one_for_both(one.kind, other.kind):
        return False
    blocks = other.members.columns.shape[2]
    mine, theirs = (kind.tensors() for kind in one.kind.alike([one.kind, other.kind]))
    return all(
        torch.equal(mine[key], own) if own.shape[1] < blocks else mine[key].shape[2:] == own.shape[2:]
        for key, own in theirs.items()
    )


def _joined(parts: Sequence[Added]) -> Added:
    """One group of all blocks of some."""
    first, members = parts[0], parts[0].members
    if len(parts) == 1:
        return first
    counts = [part.members.columns.shape[2] for part in parts]
    each = [kind.tensors() for kind in first.kind.alike([part.kind for part in parts])]
    own = [key for key, t in each[0].items() if t.shape[1] == counts[0]]
    data = {key: torch.cat([tensors[key] for tensors in each], 1) for key in own}
    columns = torch.cat([part.members.columns for part in parts], 2)
    added = tuple((part.members.name, count) for part, count in zip(parts, counts, strict=True))
    kind = with_other_data(first.kind, data) if data else first.kind
    joined = replace(members, columns=columns, stated=None, added=added)
    return Added(joined, kind, _points([part.points for part in parts], counts))


def _points(parts: Sequence[Tensor | None], counts: Sequence[int]) -> Tensor | None:
    """Points of the blocks of several groups, as :attr:`Extent.points`; blocks with fewer repeat one."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    if known[0].shape[2] == 1 and all(torch.equal(part, known[0]) for part in known):
        return known[0]
    most, rows = max(map(len, known)), max(part.shape[1] for part in known)
    repeated = [torch.cat([part, part[-1:].expand(most - len(part), -1, -1, -1)]) for part in known]
    every = zip(repeated, counts, strict=True)
    return torch.cat([part.expand(-1, rows, count, -1) for part, count in every], 2)

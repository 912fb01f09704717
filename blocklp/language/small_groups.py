"""Blocks of one type that were added few at a time, as in a loop: they are one group, as if added together.

Every pass calls the oracle of each group, so that a thousand groups of one block take a hundred times as long
as one group of a thousand blocks. The names of the calls stay: states and multipliers are by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from blocklp.blocks.contract import BlockType
from blocklp.blocks.type_difference import one_for_both, with_other_data
from blocklp.language.handles import Blocks

SMALL = 1000
"""Copies up to which blocks of a name are put together with others; more are worth a call of their own."""

LOOKED_AT = 16
"""Groups of one form that blocks are compared with, the latest ones."""

ASKED = 8
"""Calls, the first and the last ones, whose answers those of a group are compared with."""


class Together(NamedTuple):
    """Blocks of one group.

    Attributes
    ----------
    same : tuple of Blocks
        Those of every model, under the first name.
    added : tuple of tuple
        As :attr:`Group.added`.
    """

    same: tuple[Blocks, ...]
    added: tuple[tuple[str, int], ...] = ()


def together(named: Iterable[tuple[Blocks, ...]], batches: Sequence[int]) -> Iterator[Together]:
    """Put small groups of equal types together, each with the first of its kind.

    Types of others are asked whether all blocks together answer as they do alone: a type that holds data of
    single blocks unknown to us, or can only deal with so many blocks, is left as it was added.

    Parameters
    ----------
    named : iterable of tuple of Blocks
        The blocks of a name, of every model. Those with maps, or of which models have different numbers, stay
        alone.
    batches : sequence of int
        Instances of the models.

    Yields
    ------
    Together
        The groups.
    """
    groups: list[list[tuple[Blocks, ...]]] = []
    by_form: dict[object, list[list[tuple[Blocks, ...]]]] = {}
    for same in named:
        if (form := _form(same)) is None:
            groups.append([same])
            continue
        alike = by_form.setdefault(form, [])
        if (found := next((own for own in alike[-LOOKED_AT:] if _fit(own[0], same)), None)) is None:
            groups.append(found := [])
            alike.append(found)
        found.append(same)
    for parts in groups:
        joined = _joined(parts)
        own = zip(joined.same, zip(*parts, strict=True), batches, strict=True)
        if len(parts) == 1 or all(_answers(*of_model) for of_model in own):
            yield joined
        else:
            yield from map(Together, parts)


def _form(same: Sequence[Blocks]) -> object | None:
    """What groups that are put together have in common, as a key; None for one that stays alone."""
    count, dim = same[0].scope.shape
    if not 0 < count * dim <= SMALL or any(len(b.scope) != count or b.maps is not None for b in same):
        return None
    return dim, tuple((type(b.type), _data_form(b.type, count)) for b in same)


def _data_form(kind: BlockType, count: int) -> tuple[object, ...]:
    data = kind.tensors()
    return tuple((key, len(t), t.dim(), t.dtype, t.shape[1] < count) for key, t in data.items())


def _fit(one: Sequence[Blocks], other: Sequence[Blocks]) -> bool:
    """Whether groups of one form differ in data of single blocks only, whose shapes can be made equal."""
    return all(_fits(a.type, b.type, len(b.scope)) for a, b in zip(one, other, strict=True))


def _fits(one: BlockType, other: BlockType, count: int) -> bool:
    if not one_for_both(one, other):
        return False
    mine, theirs = (kind.tensors() for kind in one.alike([one, other]))
    return all(
        torch.equal(mine[key], own) if own.shape[1] < count else mine[key].shape[2:] == own.shape[2:]
        for key, own in theirs.items()
    )


def _joined(parts: Sequence[tuple[Blocks, ...]]) -> Together:
    """One group of all blocks of some."""
    if len(parts) == 1:
        return Together(parts[0])
    added = tuple((same[0].name, len(same[0].scope)) for same in parts)
    return Together(tuple(map(_united, zip(*parts, strict=True))), added)


def _united(blocks: Sequence[Blocks]) -> Blocks:
    """The blocks of one model under one name."""
    return Blocks(blocks[0].name, _kind(blocks), torch.cat([b.scope for b in blocks]))


def _kind(blocks: Sequence[Blocks]) -> BlockType:
    """One type for all blocks of a model."""
    kind, count = blocks[0].type, len(blocks[0].scope)
    each = [own.tensors() for own in kind.alike([b.type for b in blocks])]
    own = [key for key, data in each[0].items() if data.shape[1] == count]
    data = {key: torch.cat([tensors[key] for tensors in each], 1) for key in own}
    return with_other_data(kind, data) if data else kind


def _answers(joined: Blocks, parts: Sequence[Blocks], batch: int) -> bool:
    """Whether the oracle of all blocks says what those of its parts do."""
    kind, (count, dim) = joined.type, joined.scope.shape
    if type(kind).__module__.partition(".")[0] == "blocklp":
        return True
    cost = torch.randn(batch, count, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cost = cost.abs() if kind.nonnegative_costs else cost
    try:
        answer = _values(kind, cost)
    except Exception:  # whatever it is that it cannot do with so many blocks
        return False
    stops = list(accumulate(len(part.scope) for part in parts))
    for k in {*range(min(len(parts), ASKED // 2)), *range(max(0, len(parts) - ASKED // 2), len(parts))}:
        own = slice(stops[k] - len(parts[k].scope), stops[k])
        expected = _values(parts[k].type, cost[:, own].contiguous())
        if answer.shape != (2, batch, count) or not torch.allclose(answer[:, :, own], expected, 1e-9, 1e-12):
            return False
    return True


def _values(kind: BlockType, cost: Tensor) -> Tensor:
    """Values of blocks ``(2, batch, blocks)``: as the oracle says, and of its points."""
    point, value = kind.min_oracle(cost)
    return torch.stack([value, (point * cost).sum(-1)])

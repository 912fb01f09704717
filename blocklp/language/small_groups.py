"""Blocks of one type that were added few at a time, as in a loop: they are one group, as if added together.

Every pass calls the oracle of each group, so that a thousand groups of one block take a hundred times as long
as one group of a thousand blocks. The names of the calls stay: states and multipliers are by them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from blocklp.blocks import capabilities
from blocklp.blocks.capabilities import constraints_of, value_error_of
from blocklp.blocks.contract import BlockType
from blocklp.blocks.factored import FactoredBlock
from blocklp.blocks.type_difference import of_package, one_for_both, with_other_data
from blocklp.language.handles import Blocks

SMALL = 1000
"""Copies up to which blocks of a name are put together with others; more are worth a call of their own."""

LOOKED_AT = 4
"""Groups of one form that blocks are compared with, the latest ones."""

COMPARED = {"min_oracle", "min_value", "value_error", "constraints"}
"""Methods of types of others whose answers are compared."""

OF_ONE_BLOCK = {"prox_block", "min_block", "complete_block", "overlap", "vertex_table"}
"""Methods that say the same of any number of blocks."""

OTHERS = (
    {
        name
        for kind in (BlockType, *(c for n, c in vars(capabilities).items() if n.startswith("Has")))
        for name, value in vars(kind).items()
        if not name.startswith("_") and isinstance(value, classmethod | staticmethod | type(lambda: 0))
    }
    - COMPARED
    - OF_ONE_BLOCK
)
"""Methods that types of others may have got wrong for several blocks, which nobody compares."""


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


def together(
    named: Iterable[tuple[Blocks, ...]], batches: Sequence[int], check: Callable[[], None]
) -> Iterator[Together]:
    """Put small groups of equal types together, each with the first of its kind.

    Types that are not of this package are put together if they state no more than what can be compared, and
    all blocks together answer as they do alone: a type that holds data of single blocks unknown to us, or
    deals with so many blocks only, is left as it was added.

    Parameters
    ----------
    named : iterable of tuple of Blocks
        The blocks of a name, of every model. Those with maps, or of which models have different numbers, stay
        alone.
    batches : sequence of int
        Instances of the models.
    check : callable
        Called before every piece of work; raises where there is no time.

    Yields
    ------
    Together
        The groups.
    """
    groups: list[list[tuple[Blocks, ...]]] = []
    by_form: dict[object, list[list[tuple[Blocks, ...]]]] = {}
    for same in named:
        check()
        if (form := _form(same)) is None:
            groups.append([same])
            continue
        alike = by_form.setdefault(form, [])
        if (found := next((own for own in alike[-LOOKED_AT:] if _fit(own[0], same)), None)) is None:
            groups.append(found := [])
            alike.append(found)
        found.append(same)
    for parts in groups:
        check()
        joined = _joined(parts) if len(parts) == 1 or of_package(parts[0][0].type) else _tried(parts, batches)
        yield from map(Together, parts) if joined is None else [joined]


def _form(same: Sequence[Blocks]) -> object | None:
    """What groups that are put together have in common, as a key; None for one that stays alone."""
    count, dim = same[0].scope.shape
    if not 0 < count * dim <= SMALL or any(len(b.scope) != count or b.maps is not None for b in same):
        return None
    if any(isinstance(b.type, FactoredBlock) or _says_more(b.type) for b in same):
        return None
    return dim, tuple((type(b.type), _data_form(b.type, count)) for b in same)


def _says_more(kind: BlockType) -> bool:
    """Whether a class that is not of this package has methods that cannot be compared."""
    stated = (
        name
        for own in type(kind).__mro__
        if own.__module__.partition(".")[0] != "blocklp"
        for name, value in vars(own).items()
        if callable(value) or isinstance(value, classmethod | property)
    )
    return not of_package(kind) and not OTHERS.isdisjoint(stated)


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


def _tried(parts: Sequence[tuple[Blocks, ...]], batches: Sequence[int]) -> Together | None:
    """One group of blocks whose type is not of this package, or None where it is no type for all of them."""
    try:
        joined = _joined(parts)
        models = zip(joined.same, zip(*parts, strict=True), batches, strict=True)
        return joined if all(_answers(*model) for model in models) else None
    except Exception:  # whatever it is that it cannot do with so many blocks
        return None


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
    kinds, count = blocks[0].type.alike([b.type for b in blocks]), len(blocks[0].scope)
    first, *rest = (kind.tensors() for kind in kinds)
    if all(t.shape[1] == 1 and all(torch.equal(t, other[key]) for other in rest) for key, t in first.items()):
        return kinds[0]  # all blocks share the data
    own = [key for key, t in first.items() if t.shape[1] == count]
    return with_other_data(kinds[0], {key: torch.cat([t[key] for t in (first, *rest)], 1) for key in own})


def _answers(joined: Blocks, parts: Sequence[Blocks], batch: int) -> bool:
    """Whether the type of all blocks says what those of its parts do."""
    kind, (count, dim) = joined.type, joined.scope.shape
    cost = torch.randn(batch, count, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    cost = cost.abs() if kind.nonnegative_costs else cost
    answer = _told(kind, cost)
    first = 0
    for part in parts:
        own = slice(first, first := first + len(part.scope))
        expected, mine = _told(part.type, cost[:, own].contiguous()), [told[:, own] for told in answer]
        if len(mine) != len(expected) or not all(map(_close, mine, expected)):
            return False
    return True


def _told(kind: BlockType, cost: Tensor) -> list[Tensor]:
    """All that a type says of blocks, each ``(batch or 1, blocks, ...)``."""
    batch, count, dim = cost.shape
    point, value = kind.min_oracle(cost)
    told = [value, (point * cost).sum(-1), kind.min_value(cost)]
    if any(own.shape != (batch, count) for own in told) or point.shape != (batch, count, dim):
        raise ValueError("an answer of another shape")
    if (error := value_error_of(kind, cost)) is not None:
        told.append(error)
    if (stated := constraints_of(kind)) is not None:
        sides = (stated.matrix, stated.lower, stated.upper, stated.below, stated.above)
        told += [t.expand(-1, count, *t.shape[2:]) for t in sides if t is not None]
    return told


def _close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, 1e-9, 1e-12)

"""The order in which passes go over blocks of pairs: close to each other in memory, and not adding to one sum at a time."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from blocklp.language.offsets import Offsets

NEAR = 2**16
"""Variables that blocks close to each other have for second ends: what a pass adds up for them stays in the cache of a core."""

HANDS, DEAL = 16, 2**12
"""Hands, and blocks that are dealt out to them at a time: additions to the same sum have to wait for each other."""


def passing_order(second: Tensor, variables: int, pairs: Offsets) -> tuple[Tensor, Tensor]:
    """Order pairs by ranges of :data:`NEAR` second variables, and deal each :data:`DEAL` of them out.

    :data:`HANDS` hands hold some that follow each other, and each in turn gives one.

    Parameters
    ----------
    second : Tensor
        ``(total,)`` int64: second variable of each pair, by its number in its instance.
    variables : int
        Most variables of an instance.
    pairs : Offsets
        Where the pairs of each instance begin.

    Returns
    -------
    order, local : Tensor
        ``(total,)`` int64: pairs by their numbers among all, instances in their order, and by their numbers in their instance.
    """
    if pairs.count == 1 or (pairs.uniform and variables <= NEAR):  # the same for all instances
        local = dealt(pairs.most, second.device)
        if variables > NEAR:
            near = torch.div(second, NEAR, rounding_mode="floor").to(torch.int16)
            local = torch.sort(near, stable=True).indices[local]
        if pairs.count == 1:
            return local, local
        return (local + pairs.first[:-1, None]).flatten(), local.expand(pairs.count, -1).flatten()
    number = torch.arange(pairs.total, device=second.device)
    first, count = (t.repeat_interleave(pairs.sizes, output_size=pairs.total) for t in (pairs.first[:-1], pairs.sizes))
    begin = (number - first) // DEAL * DEAL
    order = first + begin + _dealt(number - first - begin, (count - begin).clamp_(max=DEAL))
    if variables > NEAR:
        near = torch.div(second, NEAR, rounding_mode="floor") + first * (variables // NEAR + 1)
        order = torch.argsort(near, stable=True)[order]
    return order, order - first


def dealt(count: int, device: torch.device | None = None) -> Tensor:
    """Numbers below ``count``, every :data:`DEAL` of them dealt out."""
    if count <= DEAL:
        return _hand(count, device)
    whole, rest = divmod(count, DEAL)
    begins = torch.arange(0, whole * DEAL, DEAL, device=device)
    order = torch.empty(count, dtype=torch.long, device=device)
    torch.add(begins[:, None], _hand(DEAL, device), out=order[: whole * DEAL].view(whole, DEAL))
    if rest:
        order[whole * DEAL :] = _hand(rest, device) + whole * DEAL
    return order


@lru_cache(64)
def _hand(count: int, device: torch.device | None) -> Tensor:
    """The order of so few numbers that they are dealt out at once; not to be written to."""
    number = torch.arange(count, device=device)
    return _dealt(number, torch.full_like(number[:1], count))


def _dealt(place: Tensor, count: Tensor) -> Tensor:
    """Which number comes in a place when some numbers, at most :data:`DEAL`, are dealt out."""
    turns = (count + (HANDS - 1)) // HANDS
    hand = count // turns
    rest = count - hand * turns
    # So many of the first turns have a number more than the others.
    longer = rest * (hand + 1)
    turn = torch.where(place < longer, place // (hand + 1), rest + (place - longer) // hand.clamp(min=1))
    return turn + (place - turn * hand - torch.minimum(turn, rest)) * turns

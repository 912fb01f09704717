"""Solve models as few batches as their structures allow."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import blocklp as bl

GRACE = 0.2
"""Seconds by which models may be stated too late."""


def solve_together(
    models: Sequence[bl.Model], *, time_limit: float | bl.Deadline = math.inf, device: str = "cpu", dtype: Any = None, **options: Any
) -> list[bl.Solution]:
    """Solve single-instance models; those with the same variables and kinds of blocks share a batch.

    Parameters
    ----------
    models : sequence of Model
        Of one instance each.
    time_limit : float or Deadline
        Seconds for all of them.  Each batch gets the share of what is left that its instances are of those left, so that one hard
        instance does not take the time of all others.  A batch whose turn comes too late is left after its first pass, with a valid
        bound; so is every later batch after an interrupt.
    device, dtype
        As in :func:`blocklp.compile`.
    **options
        Those of :meth:`blocklp.Solver.solve`.

    Returns
    -------
    list of Solution
        One a model, in their order; ``history`` holds the events of that instance until it left.
    """
    batches: dict[Hashable, list[int]] = {}
    for position, model in enumerate(models):
        batches.setdefault(_structure(model), []).append(position)
    stated = [(members, [models[i] for i in members]) for members in batches.values()]
    return solve_batches(stated, time_limit=time_limit, device=device, dtype=dtype, **options)


def solve_batches(
    batches: Sequence[tuple[Sequence[int], Sequence[bl.Model] | bl.ModelBatch]],
    *,
    time_limit: float | bl.Deadline = math.inf,
    device: str = "cpu",
    dtype: Any = None,
    **options: Any,
) -> list[bl.Solution]:
    """Solve batches one after the other.

    Parameters
    ----------
    batches : sequence of (sequence of int, models)
        The numbers of the instances of each batch among all, and what it compiles.
    time_limit, device, dtype, **options
        As in :func:`solve_together`.

    Returns
    -------
    list of Solution
        One an instance, in the order of their numbers, as of :func:`solve_together`.
    """
    deadline, count = bl.Deadline.of(time_limit), sum(len(members) for members, _ in batches)
    build = {"device": device} if dtype is None else {"device": device, "dtype": dtype}
    found: dict[int, bl.Solution] = {}
    for members, stated in batches:
        solver = bl.compile(stated, **build)
        batch = solver.solve(time_limit=share(deadline, len(members), count - len(found)), **options)
        found |= {i: replace(batch.instance(k), history=_events(batch, k)) for k, i in enumerate(members)}
        if bl.Status.INTERRUPTED in batch.status:
            options["callback"] = stop
    return [found[i] for i in range(count)]


def lenient(deadline: bl.Deadline) -> bl.Deadline:
    """The deadline for stating models, without which there is nothing to return: a little later."""
    return bl.Deadline(deadline.seconds + GRACE, began=deadline.began)


def before(deadline: bl.Deadline, seconds: float) -> bl.Deadline:
    """The deadline for work that so many seconds of other work follow, if that is a fifth of what is left at most."""
    left = deadline.left()
    return deadline if math.isinf(left) else deadline.within(left - min(seconds, left / 5))


def share(deadline: bl.Deadline, count: int, of: int) -> bl.Deadline:
    """The deadline for ``count`` of the ``of`` instances that are left.

    Parameters
    ----------
    deadline : Deadline
        That of all instances.
    count, of : int
        Instances that get a part, and those that are left.
    """
    return deadline if count == of else deadline.within(deadline.left() * count / of)


def stop(*_: Any) -> bool:
    """Stop at the first event: what later solves get after an interrupt."""
    return True


def _structure(model: bl.Model) -> Hashable:
    """What models of one batch have in common."""
    kinds = tuple((b.name, repr(b.type), b.scope.shape[1]) for b in model.blocks)
    return model.maximizing, tuple(model.variables), kinds


def _events(batch: bl.Solution, i: int) -> tuple[bl.Event, ...]:
    """Cut one instance's share out of the events, up to the one at which it left."""
    here, last = slice(i, i + 1), int(batch.passes[i])
    return tuple(
        bl.Event(e.passes, e.seconds, e.bound[here], e.primal[here], e.gap[here], e.status[here])
        for e in batch.history
        if e.passes <= last
    )

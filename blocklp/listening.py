"""Callbacks: how a caller follows a running solve, and how a callback may answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from blocklp.engine.records import Event
from blocklp.errors import OptionError
from blocklp.language.sense import Sense
from blocklp.options import as_tensor, flag, hook, shown

MINIMIZE = Sense(maximizing=False)

Listener = Callable[[Event], Any]


def _own(event: Event, sense: Sense) -> Event:
    """A copy of an event in the sense of the model, whose tensors a callback may write to."""
    tensors = {name: getattr(event, name).clone() for name in ("bound", "primal", "gap", "status")}
    return sense.turned(replace(event, **tensors), "bound", "primal")


@contextmanager
def listening(
    callback: Callable[[Event], Any] | None,
    verbose: bool,
    batch: int,
    sense: Sense = MINIMIZE,
) -> Iterator[Listener | None]:
    """Provide the function that the engine calls at every check, or None, and draw progress meanwhile.

    Parameters
    ----------
    callback : callable or None
        The caller's: takes an :class:`Event`, and answers None, a truth value or a mask of instances to stop.
    verbose : bool
        Whether a line of progress is shown.
    batch : int
        Number of instances.
    sense : Sense
        That of the model, in which bounds and values of events are told.

    Yields
    ------
    callable or None
        Takes an :class:`Event` of the engine, which minimises, and answers like the callback.

    Raises
    ------
    OptionError
        If an option is of another type, or the callback answers anything but None, a truth value or a mask
        ``(batch,)`` bool.
    """
    hook(callback, "callback")
    if not flag(verbose, "verbose"):
        yield None if callback is None else lambda event: _stops(callback(_own(event, sense)), batch)
        return
    from blocklp.progress import Progress  # draws with rich, which takes long to import

    with Progress() as progress:

        def listener(event: Event) -> Any:
            progress(_own(event, sense))
            return None if callback is None else _stops(callback(_own(event, sense)), batch)

        yield listener


def _stops(answer: Any, batch: int) -> Any:
    """Read the answer of a callback: None, a truth value, or a mask ``(batch,)`` of instances to stop."""
    if answer is None or isinstance(answer, bool | np.bool_):
        return answer if answer is None else bool(answer)
    try:
        mask = as_tensor(answer)
    except (TypeError, ValueError, RuntimeError):
        mask = torch.empty(0)
    if mask.dtype != torch.bool or mask.shape not in ((), (batch,)):
        must = f"it must return None, True, False or a mask of {batch} booleans"
        raise OptionError(f"callback returned {shown(answer)}; {must}")
    return mask.expand(batch)

"""The nonconvex methods under one call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import ModelError, NonFiniteError, OptionError, ShapeError
from blocklp.problems.method_options import check_options
from blocklp.problems.modules import modules
from blocklp.problems.mrf.instance import Mrf
from blocklp.problems.mrf.nonconvex.methods.bcd import rounded
from blocklp.problems.mrf.nonconvex.multilinear import Multilinear
from blocklp.problems.mrf.nonconvex.run import Minimised, NonconvexRun
from blocklp.status import Status

MODULES = modules("blocklp.problems.mrf.nonconvex.methods")

METHODS: dict[str, Callable[..., None]] = {name: module.METHOD for name, module in MODULES.items()}
"""Methods by the names of their modules; their options are the keyword arguments of these functions."""


def minimise(
    mrf: Mrf,
    method: str = "admm",
    starts: int | Tensor = 1,
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
    time_limit: float | Deadline = math.inf,
    **options: Any,
) -> Minimised:
    r"""Look for labellings of little energy by minimising the multilinear energy over the simplices, from several starts at once.

    The method's last points are rounded by block coordinate descent, which never raises the energy.  Infinite entries take part as
    costs that outweigh all others; the energies returned are the true ones.

    Parameters
    ----------
    mrf : Mrf
        The energy.
    method : str
        One of :data:`METHODS`.
    starts : int or Tensor
        That many starts: all labels alike, then random points; or labellings ``(batch, n)`` or points ``(batch, n, most labels)`` on
        the simplices, on the device to work on.
    seed : int
        Of the random points; the first ones do not depend on how many there are.
    device : str or torch.device
        Where to work, if ``starts`` is a number.
    time_limit : float or Deadline
        Seconds after which the last points are rounded and returned.
    **options
        Those of the method.

    Returns
    -------
    Minimised
        One labelling a start; an interrupt returns those of the last points.  No random numbers but those of the starts are used (on
        CUDA sums may be rounded in another order from run to run, unless ``torch.use_deterministic_algorithms(True)``).

    Raises
    ------
    OptionError
        If the method or an option is unknown or out of range.
    ShapeError, ScopeError, NonFiniteError
        If the starts do not fit the instance.
    ModelError
        If the method cannot take the model.
    """
    check_method(mrf, method, options)
    deadline = Deadline.of(time_limit)
    energy = Multilinear(mrf, starts.device if isinstance(starts, Tensor) else torch.device(device))
    run = NonconvexRun(energy, _points(energy, starts, seed), deadline)
    try:
        METHODS[method](run, **options)
        labels = rounded(energy, run.point, run)
    except KeyboardInterrupt:
        run.status = Status.INTERRUPTED
        labels = rounded(energy, run.point, steps=0)
    true = torch.tensor(mrf.energy(labels.cpu().numpy()), device=energy.device)
    return Minimised(method, labels, true, run.point, energy.value(run.point), run.history(), run.seconds, run.status)


def check_method(mrf: Mrf, method: str, options: Iterable[str] = ()) -> None:
    """Refuse, before anything is done, a method that there is not, or that does not take a model or an option.

    Parameters
    ----------
    mrf : Mrf
        The model.
    method : str
        Name of the method.
    options : iterable of str
        Names of the options given.

    Raises
    ------
    OptionError, ModelError
        As :func:`minimise`.
    """
    check_options(METHODS, method, options)
    if mrf.order > (most := getattr(MODULES[method], "MOST_VARIABLES", mrf.order)):
        name = mrf.name or "the instance"
        raise ModelError(f"{name} has factors of {mrf.order} variables; {method} takes {most} at most")


def _points(energy: Multilinear, starts: int | Tensor, seed: int) -> Tensor:
    """Starts as float64 points ``(batch, n, most labels)``."""
    exists = energy.exists.to(torch.float64)
    if not isinstance(starts, Tensor):
        if starts < 1:
            raise OptionError(f"starts is {starts}; give at least 1")
        draws = np.random.default_rng(seed).exponential(size=(starts - 1, *exists.shape))
        weights = torch.cat([torch.ones_like(exists)[None], torch.tensor(draws, device=energy.device)]) * exists
        return weights / weights.sum(-1, keepdim=True)
    if starts.ndim == 2:
        return energy.one_hot(torch.tensor(energy.mrf.checked_labels(starts.cpu().numpy()), device=energy.device))
    if starts.shape[1:] != exists.shape:
        raise ShapeError(
            f"the starts have shape {tuple(starts.shape)}; give (batch, {energy.mrf.n}) or (batch, *{tuple(exists.shape)})"
        )
    x = starts.to(torch.float64)
    if not bool(torch.isfinite(x).all()):
        raise NonFiniteError("the starts hold NaN or infinities")
    if not bool((x >= 0).all() and (x * (1 - exists) == 0).all() and ((x.sum(-1) - 1).abs() < 1e-3).all()):
        raise OptionError(
            "the starts are not on the simplices; the labels of every variable must have weights from 0 to 1 that add up to 1"
        )
    return x / x.sum(-1, keepdim=True)

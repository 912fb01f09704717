"""All methods under one call."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from blocklp.engine import Event
from blocklp.errors import NonFiniteError, OptionError, ShapeError
from blocklp.problems.densecrf.admm import admm
from blocklp.problems.densecrf.dc_gen import dc_gen
from blocklp.problems.densecrf.dc_neg import dc_neg
from blocklp.problems.densecrf.energy import DenseCRF
from blocklp.problems.densecrf.frank_wolfe import ConvexBound
from blocklp.problems.densecrf.hst import hst
from blocklp.problems.densecrf.mean_field import mean_field
from blocklp.problems.densecrf.projected_gradient import pgd
from blocklp.problems.densecrf.prox_lp import prox_lp
from blocklp.problems.densecrf.prox_lp_variants import prox_lp_acc, prox_lp_l
from blocklp.problems.densecrf.proximal_gradient import prox_grad
from blocklp.problems.densecrf.qp_cvx import qp_cvx
from blocklp.problems.densecrf.regularized_fw import efw, l2fw
from blocklp.problems.densecrf.result import Result
from blocklp.problems.densecrf.run import Run
from blocklp.problems.densecrf.sg_lp import sg_lp
from blocklp.status import Status

METHODS: dict[str, Callable[..., None]] = {
    "mean-field": mean_field,
    "qp-cvx": qp_cvx,
    "dc-gen": dc_gen,
    "dc-neg": dc_neg,
    "sg-lp": sg_lp,
    "prox-lp": prox_lp,
    "prox-lp-l": prox_lp_l,
    "prox-lp-acc": prox_lp_acc,
    "hst": hst,
    "l2fw": l2fw,
    "efw": efw,
    "pgd": pgd,
    "prox-grad": prox_grad,
    "admm": admm,
}
"""Methods by name; their options are the keyword arguments of these functions."""

BASELINE_STEPS = 25
"""Mean-field steps of the labelling that no result is worse than."""


def check_options(method: str, options: Iterable[str]) -> None:
    """Raise OptionError unless there is such a method and it has options of these names."""
    if method not in METHODS:
        raise OptionError(f"there is no method {method!r}; choose one of {', '.join(METHODS)}")
    known = [name for name in inspect.signature(METHODS[method]).parameters if name != "run"]
    for name in options:
        if name not in known:
            raise OptionError(f"{method} has no option {name!r}; it takes {', '.join(known)}")


def solve_densecrf(
    crf: DenseCRF,
    method: str = "prox-lp",
    *,
    start: Tensor | None = None,
    tol: float = 0.0,
    time_limit: float = math.inf,
    callback: Callable[[Event], object] | None = None,
    **options: Any,
) -> Result:
    """Look for a labelling of little energy, with a lower bound on that of every labelling.

    Parameters
    ----------
    crf : DenseCRF
        The energy.
    method : str
        One of :data:`METHODS`.
    start : Tensor, optional
        ``(points, labels)`` on the simplices, such as ``y`` of a result: where methods that can start anywhere do; by default the
        marginals of mean field for these, the unaries for the others.
    tol : float
        Stop once the relative gaps of all images are within it.
    time_limit : float
        Seconds after which the best so far is returned, at the end of a step.
    callback : callable, optional
        Called with an :class:`~blocklp.engine.Event` after every step, such as :class:`~blocklp.progress.Progress`.
    **options
        Those of the method.

    Returns
    -------
    Result
        Never worse than the unaries' labelling, the best constant one and mean field after 25 steps; an interrupt returns the best
        so far.

    Raises
    ------
    OptionError
        If the method or an option is unknown or out of range.
    ShapeError, NonFiniteError
        If the start does not fit or is not finite.
    ModelError
        If the energy has terms that the method cannot handle.
    """
    check_options(method, options)
    if not tol >= 0 or not time_limit > 0:
        raise OptionError(f"tol is {tol} and time_limit {time_limit}; give a tolerance of 0 or more and a positive time")
    if start is not None and start.shape != crf.unary.shape:
        raise ShapeError(f"the start has shape {tuple(start.shape)}; give {tuple(crf.unary.shape)}, one row a point")
    if start is not None and not bool(torch.isfinite(start).all()):
        raise NonFiniteError("the start holds NaN or infinities")
    run = Run(crf, method, time_limit, callback, tol)
    try:
        if method != "mean-field":
            baseline = Run(crf, "mean-field", time_limit)
            mean_field(baseline, steps=BASELINE_STEPS)
            run.offer(baseline.y.argmax(1), "mean-field")
            run.start = baseline.y
        if start is not None:
            run.start = start.to(crf.unary)
            run.offer(run.start.argmax(1), "start")
        METHODS[method](run, **options)
        if bool(torch.isinf(run.best_bound).any()):
            run.bounded(ConvexBound(crf).anywhere())
    except KeyboardInterrupt:
        run.status = Status.INTERRUPTED
    return run.result()

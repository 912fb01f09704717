"""All methods under one call."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.engine.records import Event
from blocklp.errors import ModelError, NonFiniteError, OptionError, ShapeError, TimeLimitError
from blocklp.gradients.envelope import LagrangianPart, differentiable
from blocklp.problems.densecrf.admm import admm
from blocklp.problems.densecrf.dc_gen import dc_gen
from blocklp.problems.densecrf.dc_neg import dc_neg
from blocklp.problems.densecrf.energy import DenseCRF
from blocklp.problems.densecrf.frank_wolfe import ConvexBound
from blocklp.problems.densecrf.hst import hst
from blocklp.problems.densecrf.kernel import Kernel
from blocklp.problems.densecrf.mean_field import mean_field, mean_field_update
from blocklp.problems.densecrf.projected_gradient import pgd
from blocklp.problems.densecrf.prox_lp import prox_lp, proximal_points
from blocklp.problems.densecrf.prox_lp_variants import prox_lp_acc, prox_lp_l
from blocklp.problems.densecrf.proximal_gradient import prox_grad
from blocklp.problems.densecrf.qp_cvx import qp_cvx
from blocklp.problems.densecrf.regularized_fw import efw, fw, l2fw
from blocklp.problems.densecrf.result import Result
from blocklp.problems.densecrf.rounding import ROUNDINGS
from blocklp.problems.densecrf.run import Run
from blocklp.problems.densecrf.sg_lp import sg_lp, sg_lp_l
from blocklp.problems.densecrf.warm_up import loops_in_time
from blocklp.problems.method_options import check_options
from blocklp.status import Status

METHODS: dict[str, Callable[..., None]] = {
    "mean-field": mean_field,
    "qp-cvx": qp_cvx,
    "dc-gen": dc_gen,
    "dc-neg": dc_neg,
    "sg-lp": sg_lp,
    "sg-lp-l": sg_lp_l,
    "prox-lp": prox_lp,
    "prox-lp-l": prox_lp_l,
    "prox-lp-acc": prox_lp_acc,
    "hst": hst,
    "l2fw": l2fw,
    "efw": efw,
    "fw": fw,
    "pgd": pgd,
    "prox-grad": prox_grad,
    "admm": admm,
}
"""Methods by name; their options are the keyword arguments of these functions."""

LINEAR = ("sg-lp", "sg-lp-l", "prox-lp", "prox-lp-l", "prox-lp-acc")
"""Methods on the LP relaxation: their bounds are its bounds."""
BASELINE_STEPS = 25
"""Mean-field steps to the marginals that methods start from; no best labelling is worse than theirs."""


def solve_densecrf(
    crf: DenseCRF,
    method: str = "prox-lp",
    *,
    start: Tensor | None = None,
    tol: float = 0.0,
    time_limit: float | Deadline = math.inf,
    callback: Callable[[Event], object] | None = None,
    bound_steps: int = 5,
    rounding: str = "argmax",
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
        Stop once the relative gaps of all images' best labellings are within it.
    time_limit : float or Deadline
        Seconds after which the best so far is returned, in whatever phase; a phase that cannot be divided is left out if it would
        end too late.
    callback : callable, optional
        Called with an :class:`~blocklp.engine.records.Event` after every step, such as :class:`~blocklp.progress.Progress`.
    bound_steps : int
        After methods other than those on the LP, proximal problems that PROX-LP solves for a bound (each takes two filter calls, and
        their time counts); 0 for the simple bound.
    rounding : str
        How the method's last point is rounded in the end, one of :data:`~blocklp.problems.densecrf.ROUNDINGS`; what is found stands
        beside the other labellings for the best one.  "expansion" finds much less energy than the largest scores where methods are
        far from the bound.
    **options
        Those of the method.

    Returns
    -------
    Result
        The method's own labelling and, beside it, the best one seen, which is never worse than those of the unaries, the best
        constant one and mean field after 25 steps.  The bound is valid whenever the run ended; an interrupt ends it, too.  Where
        unaries, weights of kernels or costs of cliques require gradients, the bounds of methods on the LP have them, at the last
        point ``y`` (:func:`blocklp.value`).

    Raises
    ------
    OptionError
        If the method, the rounding or an option is unknown or out of range.
    ShapeError, NonFiniteError
        If the start does not fit or is not finite.
    ModelError
        If the energy has terms that the method cannot handle, or a compatibility or a filter requires gradients, which bounds have
        not.

    Notes
    -----
    Methods that minimise the energy itself or a relaxation of it do not depend on the unit that costs are measured in: multiply all
    costs by a number, and labellings, steps and relative gaps stay, up to rounding.  "mean-field", "efw" and "l2fw" minimise the
    energy and an entropy or a norm of some weight: that weight has to be multiplied along, and mean field's is 1.
    """
    deadline = Deadline.of(time_limit)
    check_options(METHODS, method, options)
    if not tol >= 0 or bound_steps < 0:
        raise OptionError(f"tol is {tol} and bound_steps {bound_steps}; give 0 or more of each")
    if rounding not in ROUNDINGS:
        raise OptionError(f"there is no rounding {rounding!r}; choose one of {', '.join(ROUNDINGS)}")
    if start is not None and start.shape != crf.unary.shape:
        raise ShapeError(f"the start has shape {tuple(start.shape)}; give {tuple(crf.unary.shape)}, one row a point")
    if start is not None and not bool(torch.isfinite(start).all()):
        raise NonFiniteError("the start holds NaN or infinities")
    given, crf = crf, detached(crf, method)
    run = Run(crf, method, deadline, callback, tol)
    try:
        with loops_in_time(deadline, crf.unary):
            for kernel in crf.kernels:
                kernel.prepare(deadline)
            run.begin(run.start, "unary")
            run.offer(crf.best_constant(), "constant")
            run.bounded(ConvexBound(run.crf).anywhere())
            if method != "mean-field":
                run.begin(baseline(run), "mean-field")
            marginals = run.start
            if start is not None:
                run.begin(start.to(crf.unary), "start")
            METHODS[method](run, **options)
            run.look()
            if rounding != "argmax":
                run.offer(ROUNDINGS[rounding](run.crf, run.y), rounding)
            if method not in LINEAR:
                improve_bound(run, run.y if method == "mean-field" else marginals, bound_steps)
    except TimeLimitError:
        if not run.over():
            run.status = Status.TIME_LIMIT
    except KeyboardInterrupt:
        run.status = Status.INTERRUPTED
    found = run.result()
    if method not in LINEAR or not torch.is_grad_enabled():
        return found
    return replace(found, bound=differentiable(found.bound, list(parts_of(given, found.y.double()))))


def detached(crf: DenseCRF, method: str) -> DenseCRF:
    """The energy without gradients.

    Raises
    ------
    ModelError
        If something requires gradients that the bound of the method cannot have.
    """
    for kernel in crf.kernels:
        named = [("the compatibility", kernel.compatibility), *(("the filter", t) for t in vars(kernel.filter).values())]
        for what, tensor in named:
            if method in LINEAR and torch.is_grad_enabled() and isinstance(tensor, Tensor) and tensor.requires_grad:
                why = "bounds have gradients in unaries, weights of kernels and costs of cliques"
                raise ModelError(f"{what} of a kernel requires gradients; {why}: detach it, or train a DenseCRFLayer")
    cliques = crf.cliques
    if cliques is not None and cliques.cost.requires_grad:
        cliques = replace(cliques, cost=cliques.cost.detach())
    same = cliques is crf.cliques and not crf.unary.requires_grad
    return crf if same else replace(crf, unary=crf.unary.detach(), cliques=cliques)


def parts_of(crf: DenseCRF, y: Tensor) -> Iterator[LagrangianPart]:
    """The parts of the LP's energy at y ``(points, labels)`` float64 that depend on what requires gradients."""
    if crf.unary.requires_grad:
        yield LagrangianPart([crf.unary], lambda unary: crf.per_image(unary.double() * y))
    for kernel in crf.kernels:
        if kernel.stated_weight is not None and kernel.stated_weight.requires_grad:
            plain = Kernel(kernel.filter, 1.0, kernel.normalise, kernel.compatibility)
            pairs = crf.per_image(y * crf.subgradient_of(plain, y, None))
            yield LagrangianPart([kernel.stated_weight], partial(torch.mul, pairs))
    if crf.cliques is not None and crf.cliques.cost.requires_grad:
        apart = replace(crf.cliques, cost=torch.ones_like(crf.cliques.cost)).relaxed(y)
        yield LagrangianPart([crf.cliques.cost], lambda cost: crf.per_clique(cost.double() * apart))


def baseline(run: Run) -> Tensor:
    """Mean field's marginals in the energy's own unit, as far as time allows: ``(points, labels)``."""
    unit = run.crf.per_point(run.unit).to(run.crf.unary)
    q = (-run.crf.unary / unit).softmax(1)
    for _ in range(BASELINE_STEPS):
        if run.over():
            break
        q = mean_field_update(run.crf, q, unit)
    return q


def improve_bound(run: Run, y: Tensor, steps: int) -> None:
    """Bounds of the LP relaxation, where the energy has one, until the tolerance or the deadline.

    Parameters
    ----------
    run : Run
        Keeps the bounds, and says when it is over.
    y : Tensor
        ``(points, labels)``: where to begin, a point of the simplices.
    steps : int
        Proximal problems at most.
    """
    with contextlib.suppress(ModelError):  # no metric below a compatibility: the bound stays simple
        points = proximal_points(run, y)
        for _ in range(steps):
            if run.over():
                return
            next(points)
        run.over()

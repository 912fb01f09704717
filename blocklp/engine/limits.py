"""Limits of a solve: the options by which it ends, checked, and what counts as feasible."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import OptionError
from blocklp.options import flag, per_instance, real, whole


class LimitOptions(TypedDict, total=False):
    """Keyword arguments of :meth:`blocklp.Solver.solve` and :func:`blocklp.raw.solve_raw`."""

    tol: float | Tensor
    cutoff: float | Tensor | None
    passes: int
    time_limit: float | Deadline
    check_every: int | None
    feasibility_tol: float
    patience: int
    project: bool


DEFAULTS: LimitOptions = {
    "tol": 1e-4,
    "cutoff": None,
    "passes": 5000,
    "time_limit": math.inf,
    "check_every": None,
    "feasibility_tol": 1e-6,
    "patience": 1000,
    "project": True,
}
"""The options where none are given."""


@dataclass(frozen=True)
class Limits:
    """Checked options, in the sense of minimisation.

    Attributes
    ----------
    tol, cutoff : Tensor
        ``(batch,)`` float64 on the CPU, where stop rules are applied; ``cutoff`` is infinite where there is
        none.
    passes, patience : int
        Most passes, and most passes without progress.
    deadline : Deadline
        When the time is over.
    check_every : int or None
        Passes between checks; None where the method decides.
    feasibility_tol : float
        Largest violation of a row, relative to what it is made of.
    project : bool
        Whether points that are almost feasible are projected.
    """

    tol: Tensor
    cutoff: Tensor
    passes: int
    deadline: Deadline
    check_every: int | None
    feasibility_tol: float
    patience: int
    project: bool = True

    @classmethod
    def of(cls, like: Tensor, options: LimitOptions) -> Limits:
        """Check options, and lay ``tol`` and ``cutoff`` out.

        Parameters
        ----------
        like : Tensor
            ``(batch,)``: shape of ``tol`` and ``cutoff``.
        options : LimitOptions
            All of them (:func:`with_defaults`).

        Returns
        -------
        Limits
            The options, and the deadline of the time limit, which begins now if it is a number.

        Raises
        ------
        OptionError
            If one is out of range.
        """
        every, cutoff = options["check_every"], options["cutoff"]
        like = torch.empty(len(like))
        tol = per_instance(options["tol"], "tol", like, 0.0)
        if bool(tol.isinf().any()):
            need = "it must be a finite gap, at which an instance counts as optimal"
            raise OptionError(f"tol is infinite; {need}")
        return cls(
            tol=tol,
            cutoff=per_instance(math.inf if cutoff is None else cutoff, "cutoff", like),
            passes=whole(options["passes"], "passes"),
            deadline=Deadline.of(options["time_limit"]),
            check_every=None if every is None else whole(every, "check_every"),
            feasibility_tol=real(options["feasibility_tol"], "feasibility_tol"),
            patience=whole(options["patience"], "patience"),
            project=flag(options["project"], "project"),
        )


def with_defaults(given: LimitOptions) -> LimitOptions:
    """Options as given, the others by default; the time of a limit in seconds begins now.

    Raises
    ------
    OptionError
        If an option is unknown, or the time limit is no such.
    """
    if unknown := given.keys() - DEFAULTS.keys():
        known = ", ".join(DEFAULTS)
        raise OptionError(f"unknown options {', '.join(map(repr, sorted(unknown)))}; there are {known}")
    options: LimitOptions = {**DEFAULTS, **given}
    options["time_limit"] = Deadline.of(options["time_limit"])
    return options

"""What another solver says to the same LP or integer program: the option ``--reference`` of the commands."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

import blocklp as bl
from blocklp.errors import LicenceError
from blocklp.general_solvers.linear_program import LinearProgram
from blocklp.general_solvers.solvers import lp_solver
from blocklp.problems.printing import json_number

NEVER = bl.Deadline()


@dataclass(frozen=True)
class Reference:
    """Another solver's answer: how it ended, its optimum (NaN without one), and the seconds it took."""

    solver: str
    status: str
    value: float
    seconds: float

    def entry(self) -> dict[str, object]:
        """Return an object of strict JSON."""
        return {"solver": self.solver, "status": self.status, "value": json_number(self.value), "seconds": self.seconds}

    def __str__(self) -> str:
        value = "no value" if math.isnan(self.value) else f"{self.value:.9g}"
        return f"{self.solver}: {self.status}, {value}, {self.seconds:.3g} s"


def check_solver(solver: str) -> None:
    """Refuse a solver that is unknown or not installed, before the work: it solves an LP of one variable."""
    model = bl.Model()
    model.minimize(model.variable("x", 1, lower=0, upper=1).sum())
    with suppress(LicenceError):  # which may cover more, and is told with the answers
        bl.reference(model, solver)


def compare(model: bl.Model, solver: str = "highs", *, integers: bool = False, deadline: bl.Deadline = NEVER) -> Reference:
    """Solve a model of one instance by another solver; one that its licence does not cover is told as refused.

    Parameters
    ----------
    model : Model
        The model.
    solver : str
        As in :func:`blocklp.reference`.
    integers : bool
        Whether integer variables are integers.
    deadline : Deadline
        When it is given up.

    Returns
    -------
    Reference
        The answer.
    """
    began = time.perf_counter()
    try:
        result = bl.reference(model, solver, integers=integers, time_limit=deadline)
    except LicenceError as error:
        return _refused(solver, error)
    except KeyboardInterrupt:  # what the command itself found is printed all the same
        return Reference(solver, "interrupted", math.nan, time.perf_counter() - began)
    return Reference(solver, result.status[0], float(result.objective[0]), result.seconds)


def compare_program(program: LinearProgram, solver: str) -> Reference:
    """Solve an LP by another solver, as :func:`compare`."""
    began = time.perf_counter()
    try:
        status, point = lp_solver(solver)(program)
    except LicenceError as error:
        return _refused(solver, error)
    except KeyboardInterrupt:
        return Reference(solver, "interrupted", math.nan, time.perf_counter() - began)
    return Reference(solver, status, math.nan if point is None else program.value(point), time.perf_counter() - began)


def _refused(solver: str, error: LicenceError) -> Reference:
    """Say why there is no answer; what the command itself finds is printed all the same."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(Text(f"--reference: {error}"))
    return Reference(solver, "refused", math.nan, 0.0)

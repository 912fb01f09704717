"""What another solver says to the same LP: the option ``--reference`` of the commands."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import blocklp as bl
from blocklp.general_solvers.linear_program import LinearProgram
from blocklp.general_solvers.solvers import lp_solver
from blocklp.problems.printing import json_number


@dataclass(frozen=True)
class Reference:
    """Another solver's answer to an LP: how it ended, its optimum (NaN without one), and the seconds it took."""

    solver: str
    status: str
    value: float
    seconds: float

    def entry(self) -> dict[str, object]:
        """Return an object of strict JSON."""
        return {"solver": self.solver, "status": self.status, "value": json_number(self.value), "seconds": self.seconds}

    def __str__(self) -> str:
        return f"{self.solver}: {self.status}, {self.value:.9g}, {self.seconds:.3g} s"


def compare(model: bl.Model, solver: str = "highs") -> Reference:
    """Solve the LP of a model of one instance by another solver."""
    result = bl.reference(model, solver)
    return Reference(solver, result.status[0], float(result.objective[0]), result.seconds)


def compare_program(program: LinearProgram, solver: str) -> Reference:
    """Solve an LP by another solver."""
    began = time.perf_counter()
    status, point = lp_solver(solver)(program)
    return Reference(solver, status, math.nan if point is None else program.value(point), time.perf_counter() - began)

"""Why the work on an instance ended."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """Status of one instance; ``str`` gives its name in words and ``message`` the sentence for the user."""

    RUNNING = 0
    OPTIMAL = 1
    CUTOFF = 2
    STALLED = 3
    PASS_LIMIT = 4
    TIME_LIMIT = 5
    INFEASIBLE = 6
    INTERRUPTED = 7
    NUMERICAL_ERROR = 8
    UNBOUNDED = 9

    def __str__(self) -> str:
        return self.name.lower().replace("_", " ")

    def __repr__(self) -> str:
        return f"Status.{self.name}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    @property
    def message(self) -> str:
        """One sentence, with a remedy where there is one."""
        return MESSAGES[self]


VALID, BEST = "the bound is valid", "the bound is the best so far"

MESSAGES = {
    Status.RUNNING: "Still running.",
    Status.OPTIMAL: "The certified gap between primal point and bound is within the tolerance.",
    Status.CUTOFF: "The bound passed the cutoff.",
    Status.STALLED: (
        f"Neither the best values nor the multipliers moved for `patience` passes, and the gap is open; "
        f"{VALID}. Choose another method=, or float64; without a primal point, state constraints() of all "
        f"block types or give a repair hook."
    ),
    Status.PASS_LIMIT: f"The pass limit was reached; {VALID}. Raise passes= or warm-start from state.",
    Status.TIME_LIMIT: f"The time limit was reached; {VALID}. Raise time_limit= or warm-start from state.",
    Status.INFEASIBLE: (
        "Proved infeasible: the bound is above the largest value that variable bounds allow. Rows, if "
        "there are any, contradict each other where prices are largest (solution.price)."
    ),
    Status.INTERRUPTED: f"Interrupted by the user or a callback; {BEST}.",
    Status.NUMERICAL_ERROR: f"The iterates became non-finite; {BEST}. Use float64 or another eta.",
    Status.UNBOUNDED: "The value falls without end along a ray from a feasible point, by infinite bounds.",
}

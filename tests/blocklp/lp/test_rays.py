"""Proofs that an LP has no feasible point."""

import numpy as np
from scipy.sparse import csr_array

from blocklp.general_solvers.linear_program import LinearProgram
from blocklp.lp.rays import infeasible_by_one_row


def test_one_row_proves_nothing_of_what_a_point_satisfies_with_equality():
    """Rows and bounds that all hold with equality at a point are no contradiction, and are one when moved apart."""
    random = np.random.default_rng(0)
    for _ in range(50):
        matrix = csr_array(random.normal(size=(3, 4)) * random.integers(0, 2, (3, 4)))
        x = random.normal(size=4) * 10.0 ** random.integers(-3, 6)
        # What rounds to less than the true activity, or more.
        sides, slack = matrix @ x, 1e-14 * (abs(matrix) @ abs(x))
        cost, maximize = random.normal(size=4), bool(random.integers(2))
        lower = np.where(random.integers(0, 2, 4), x, -np.inf)
        for below, above in ((sides - slack, sides + slack), (sides - slack, np.full(3, np.inf))):
            program = LinearProgram(cost, matrix, below, above, lower, x, 0.0, maximize)
            assert not infeasible_by_one_row(program)
        least = sides.copy()
        least[1] += 1e-6 * (1 + (abs(matrix) @ abs(x))[1])
        fixed = LinearProgram(cost, matrix, least, np.full(3, np.inf), x, x, 0.0, maximize)
        assert infeasible_by_one_row(fixed)

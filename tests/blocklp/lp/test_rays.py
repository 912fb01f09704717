"""Proofs that an LP has no feasible point, or no least value."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from blocklp.general_solvers.linear_program import LinearProgram, loaded_highs
from blocklp.lp import rays
from blocklp.lp.rays import infeasible_by_one_row, verdict
from blocklp.lp.solve import solve_linear_program
from blocklp.status import Status


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


def test_a_ray_is_no_proof_without_a_point() -> None:
    """Two rows contradict each other, and the value falls along a ray that satisfies both: points far out seem to."""
    matrix = csr_array([[-1.0, -1.0], [-2.0, -2.0]])
    sides = np.array([2.0, -4.0])
    free = np.full(2, np.inf)
    program = LinearProgram(np.array([1.0, 0.0]), matrix, sides, sides, -free, free)
    assert verdict(program, 10.0) is Status.INFEASIBLE
    assert verdict(LinearProgram(program.c, matrix[:1], sides[:1], sides[:1], -free, free), 10.0) is Status.UNBOUNDED


def test_values_are_not_followed_to_where_they_have_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ray of an LP whose bases fill up comes from its cone, and a point from the LP without costs."""
    draw = np.random.default_rng(0)
    matrix = csr_array(draw.normal(size=(200, 600)) * (draw.random((200, 600)) < 0.05))
    side, free = matrix @ draw.random(600) + draw.random(200), np.full(600, np.inf)
    program = LinearProgram(draw.normal(size=600), matrix, np.full(200, -np.inf), side, np.zeros(600), free)
    costs, run = [], rays.run_within

    def recorded(highs: object, *limits: object) -> object:
        costs.append((np.array(highs.getLp().col_cost_), np.array(highs.getLp().col_upper_)))  # type: ignore[attr-defined]
        return run(highs, *limits)  # type: ignore[arg-type]

    monkeypatch.setattr(rays, "run_within", recorded)
    assert verdict(program, 60.0) is Status.UNBOUNDED
    assert all((upper == 1).all() or not cost.any() for cost, upper in costs)
    highs = loaded_highs(program)
    highs.run()
    assert highs.modelStatusToString(highs.getModelStatus()) == "Unbounded"


def test_an_interrupt_while_a_ray_is_looked_for_returns_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("blocklp.lp.solve.verdict", interrupted)
    none = csr_array((0, 1))
    program = LinearProgram(np.array([-1.0]), none, np.zeros(0), np.zeros(0), np.zeros(1), np.full(1, np.inf))
    found = solve_linear_program(program)
    assert found.status is Status.INTERRUPTED and found.bound == -np.inf

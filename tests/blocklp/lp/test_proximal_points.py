"""Proximal points by Newton steps, scaling, and prices that assume nothing of open variables."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp

import blocklp as bl
from blocklp.deadline import Deadline
from blocklp.errors import NonFiniteError, OptionError
from blocklp.general_solvers.linear_program import LinearProgram
from blocklp.lp import newton
from blocklp.lp.closing import closed
from blocklp.lp.judge import of_sides, proved, reduced_costs, violation
from blocklp.lp.newton import DenseFactorError, proximal_points, serves
from blocklp.lp.rounds import residual
from blocklp.lp.scaling import Scaled
from blocklp.lp.solve import solve_linear_program


def feasible_program(seed: int) -> LinearProgram:
    """Rows of all kinds at a known vertex, some variables free, costs that prices of the right signs pay: there is an optimum."""
    draw = np.random.default_rng(seed)
    rows, n = int(draw.integers(4, 12)), int(draw.integers(12, 20))
    matrix = sp.csr_array(draw.normal(size=(rows, n)) * (draw.random((rows, n)) < 0.7) * 10.0 ** draw.integers(-2, 3, (rows, 1)))
    part = np.arange(n) < draw.integers(1, rows // 2 + 1)
    assert np.linalg.matrix_rank(matrix.toarray()[:, part]) == part.sum()
    free = part & (draw.random(n) < 0.5)
    x = np.where(free, draw.normal(size=n), part * (draw.random(n) + 0.1))
    kind, at = draw.integers(0, 3, rows), matrix @ x
    lower, upper = np.where(kind == 1, -np.inf, at), np.where(kind == 2, np.inf, at)
    price = draw.normal(size=rows)
    price = np.where(kind == 0, price, np.where(kind == 1, -np.abs(price), np.abs(price)))
    slack = np.where(free | (x > 0), 0.0, draw.random(n))
    return LinearProgram(matrix.T @ price + slack, matrix, lower, upper, np.where(free, -np.inf, 0.0), np.full(n, np.inf))


def ended(program: LinearProgram) -> tuple[np.ndarray, np.ndarray]:
    scaled = Scaled.of(program)
    start = np.clip(np.zeros(len(program.c)), program.lower, program.upper), np.zeros(len(program.row_lower))
    *_, last = proximal_points(scaled.program, *scaled.apply(*start), Deadline(20))
    assert last.ended
    return scaled.restore(last.x, last.price)


@pytest.mark.parametrize("seed", range(30))
def test_point_and_prices_are_optimal_but_for_rounding(seed: int) -> None:
    program = feasible_program(seed)
    x, price = ended(program)
    assert violation(program, np.clip(x, program.lower, program.upper)) <= 1e-9
    assert residual(program, x, price) <= 1e-8
    found = program.linprog()
    assert float(program.c @ x) == pytest.approx(found.fun, rel=1e-7, abs=1e-7 * np.abs(program.c).sum())


@pytest.mark.parametrize("seed", range(10))
def test_scaling_has_an_inverse_and_evens_entries_out(seed: int) -> None:
    program, draw = feasible_program(seed), np.random.default_rng(seed)
    scaled = Scaled.of(program)
    x, price = draw.normal(size=len(program.c)), draw.normal(size=len(program.row_lower))
    back = scaled.restore(*scaled.apply(x, price))
    assert back[0] == pytest.approx(x, rel=1e-12) and back[1] == pytest.approx(price, rel=1e-12)
    largest = abs(scaled.program.A).max(axis=1).toarray().ravel()
    assert largest[largest > 0] == pytest.approx(1, abs=0.05)
    inner, _ = scaled.apply(x, price)
    assert float(scaled.program.c @ inner) * scaled.costs * scaled.sides == pytest.approx(float(program.c @ x), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("simplex", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_bounds_that_assume_nothing_are_below_the_exact_optimum(seed: int, simplex: bool) -> None:
    """Exact: of the closed prices, those that the free variables' equations determine, solved in fractions."""
    program = feasible_program(seed)
    value = program.linprog().fun
    found = bl.lp.solve_linear_program(program, tol=1e-6, simplex=simplex)
    assert found.status is bl.Status.OPTIMAL
    assert found.bound <= value + 1e-9 * max(1, abs(value)) and not len(found.declared)


@pytest.mark.parametrize("seed", range(20))
def test_closed_prices_have_reduced_costs_of_the_right_sign(seed: int) -> None:
    program = feasible_program(seed)
    _, price = ended(program)
    made = next(closed(program, of_sides(program, price), program.lower, program.upper), None)
    if made is None:
        pytest.fail("no prices near these prove anything")
    assert np.abs(made.price - price).max() <= 1e-6 * np.abs(price).max()
    dense = program.A.toarray()
    for j in np.flatnonzero(~made.zero):
        # For all prices within the slack: the least reduced cost, in fractions.
        terms = [Fraction(dense[i, j]) * Fraction(made.price[i]) for i in range(len(price))]
        spread = sum(abs(Fraction(dense[i, j])) * Fraction(made.slack[i]) for i in range(len(price)))
        assert Fraction(program.c[j]) - sum(terms) - spread >= 0
    free = np.flatnonzero(np.isneginf(program.lower))
    assert made.zero[free].all()
    if len(free):  # there are such prices: least squares in double precision come near them
        matrix = dense[:, free][made.slack > 0]
        missing = program.c[free] - dense[:, free].T @ made.price
        moved = np.linalg.lstsq(matrix.T, missing, rcond=None)[0]
        assert np.abs(matrix.T @ moved - missing).max(initial=0) <= 1e-15 * np.abs(dense).max() * np.abs(price).max()


def test_reduced_costs_of_open_columns_are_exact() -> None:
    """1 + 2^-60 - 1 - 2^-60 is zero, and nothing is in doubt; with a column that is not open there is doubt."""
    tiny = 2.0**-30
    matrix = sp.csr_array(np.array([[1 + tiny], [1.0], [-tiny], [-1.0]]))
    program = LinearProgram(np.zeros(1), matrix, np.zeros(4), np.zeros(4), np.zeros(1), np.full(1, np.inf))
    price = np.array([1 - tiny, tiny * tiny, 0.0, 1.0])
    for open_ in (True, False):
        reduced, doubt = reduced_costs(program, price, np.array([open_]))
        assert (reduced[0] == 0 and doubt[0] == 0) if open_ else doubt[0] > 0
    assert proved(program, price, program.lower, program.upper) > -1e-12


@pytest.mark.parametrize("simplex", [False, True])
def test_a_free_variable_in_two_parts_is_one(simplex: bool) -> None:
    """min y - z with y - z >= 1/3, y, z >= 0: no price makes both reduced costs positive, and none in double precision both zero."""
    program = LinearProgram(
        np.array([0.1, -0.1]),
        sp.csr_array([[0.3, -0.3], [0.7, -0.7]]),
        np.array([0.1, 0.1]),
        np.full(2, np.inf),
        np.zeros(2),
        np.full(2, np.inf),
    )
    found = bl.lp.solve_linear_program(program, tol=1e-9, presolve=False, simplex=simplex)
    assert found.status is bl.Status.OPTIMAL and not len(found.declared)
    assert found.bound == pytest.approx(1 / 30, rel=1e-9)


def test_a_warm_start_goes_on_from_there() -> None:
    program = feasible_program(3)
    first = bl.lp.solve_linear_program(program, tol=1e-9)
    second = bl.lp.solve_linear_program(program, tol=1e-9, warm_start=first)
    assert second.status is bl.Status.OPTIMAL and second.passes == 0
    with pytest.raises(OptionError, match="warm_start is of an LP"):
        bl.lp.solve_linear_program(feasible_program(4), warm_start=first)


@pytest.mark.parametrize("name", ["c", "lower", "row_upper"])
def test_no_number_is_refused_by_name(name: str) -> None:
    program = feasible_program(0)
    getattr(program, name)[0] = np.nan
    with pytest.raises(NonFiniteError, match=name):
        bl.lp.solve_linear_program(program)


def test_factors_that_would_fill_up_are_not_begun() -> None:
    draw = np.random.default_rng(0)
    n = 12_000
    matrix = sp.random_array((n, 2 * n), density=10 / n, rng=draw, format="csr")
    box, sides = (np.zeros(2 * n), np.full(2 * n, 1e3)), (draw.uniform(1, 2, n), np.full(n, np.inf))
    program = LinearProgram(draw.uniform(1, 3, 2 * n), matrix, *sides, *box)
    assert serves(program)
    with pytest.raises(DenseFactorError):
        list(proximal_points(program, box[1], np.zeros(n), Deadline.of(20)))
    found = solve_linear_program(program, time_limit=2.0, passes=100, presolve=False, simplex=False)
    assert found.bound <= found.primal and found.seconds < 4


def test_steps_that_never_converge_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sigma falls with every step that is not exact, and is never divided by once it is nothing."""
    program = feasible_program(0)
    start = np.clip(np.zeros(len(program.c)), program.lower, program.upper), np.zeros(len(program.row_lower))
    monkeypatch.setattr(newton._Newton, "solve", lambda self, x, activity, price, *given: (x, activity, price, False))
    made = list(proximal_points(program, *start, Deadline()))
    assert 10 < len(made) < 100 and not made[-1].ended

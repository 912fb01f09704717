"""Rounds of the methods for one LP: turns of the simplex method go on from each other, and each method gives way to the others."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import scipy.sparse as sp

import blocklp as bl
from blocklp.deadline import Deadline
from blocklp.general_solvers.linear_program import LinearProgram, loaded_highs
from blocklp.general_solvers.simplex_turns import pass_time
from blocklp.lp.best import Best
from blocklp.lp.newton import Iterate
from blocklp.lp.rounds import MULTIPLICATIONS, NUMBERS, PASSES, STEPS, Rounds, simplex_turn

pytest.importorskip("highspy")


def staircase(periods: int, seed: int) -> LinearProgram:
    """Production, stock and demand, period by period, with a start that is paid for: first-order methods are slow on long chains."""
    draw = np.random.default_rng(seed)
    eye, before = sp.eye_array(periods), sp.eye_array(periods, k=-1)
    balance = sp.hstack([eye, before - eye, sp.csr_array((periods, periods))])
    room = sp.hstack([eye, sp.csr_array((periods, periods)), -5.0 * eye])
    demand = draw.uniform(0.5, 4, periods)
    sides = np.concatenate([demand, np.full(periods, -np.inf)]), np.concatenate([demand, np.zeros(periods)])
    cost = np.concatenate([draw.uniform(1, 3, periods), np.full(periods, 0.05), draw.uniform(5, 20, periods)])
    return LinearProgram(
        cost, sp.csr_array(sp.vstack([balance, room])), *sides, np.zeros(3 * periods), np.repeat([5.0, np.inf, 1.0], periods)
    )


def iterations_alone(program: LinearProgram) -> tuple[int, float]:
    """HiGHS's iterations and value."""
    highs = loaded_highs(program, presolve="off", solver="simplex")
    highs.run()
    return highs.getInfo().simplex_iteration_count, highs.getInfo().objective_function_value


def test_turns_of_the_simplex_method_go_on_from_each_other() -> None:
    program = staircase(150, 0)
    alone, value = iterations_alone(program)
    best = Best(program, 1e-9, Deadline())
    rounds, turns = Rounds(best, program, lambda x, price: (x, price), None, 1e-9, Deadline(), simplex=True), 0
    while best.gap() > 1e-9 and turns < 100:
        rounds.run(alone // 5)
        turns += 1
    assert 5 <= turns <= 8 and alone <= rounds.spent <= 1.3 * alone
    assert best.primal == pytest.approx(value, rel=1e-9) and best.bound <= value + 1e-9 * abs(value)


def test_one_turn_ends_what_the_others_are_slow_on() -> None:
    program = staircase(400, 1)
    alone, value = iterations_alone(program)
    found = bl.lp.solve_linear_program(program, tol=1e-8, presolve=False)
    assert found.status is bl.Status.OPTIMAL and found.passes <= 1.1 * alone
    assert found.bound <= value + 1e-9 * value and found.primal == pytest.approx(value, rel=1e-8)
    without = bl.lp.solve_linear_program(program, tol=1e-8, passes=alone, presolve=False, simplex=False)
    assert without.bound <= value + 1e-9 * value


@pytest.mark.parametrize("enough", [True, False])
def test_passes_go_before_newton_steps_where_the_simplex_method_takes_long(monkeypatch: pytest.MonkeyPatch, enough: bool) -> None:
    program, order = staircase(60, 2), []
    best = Best(program, 0.0, Deadline())  # a gap that no method reaches
    rounds = Rounds(best, program, lambda x, price: (x, price), None, 0.0, Deadline(), simplex=True)
    for name in ("_simplex", "_newton", "_pdhg"):

        def turn(self: Rounds, count: int, name: str = name) -> None:
            order.append(name)
            self._pivots &= not (enough and name == "_simplex")

        monkeypatch.setattr(Rounds, name, turn)
    monkeypatch.setattr("blocklp.lp.rounds.simplex_turn", lambda *size: (10, True))
    rounds.run(10**9)
    assert order == ["_simplex", *(("_newton", "_pdhg") if enough else ("_pdhg", "_newton"))]


def test_newton_steps_that_take_long_are_paid_for_in_further_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first proximal step whose factors cost as much as the passes of ten rounds is the only one for three rounds."""
    program, asked = staircase(60, 2), []
    budget = MULTIPLICATIONS * PASSES * pass_time(NUMBERS * program.A.nnz)

    def points(least: LinearProgram, x: object, price: object, deadline: object) -> Iterator[Iterate]:
        for number in itertools.count(1):
            asked.append(number)
            yield Iterate(x, price, number, 10 * budget * number, False)  # type: ignore[arg-type]

    monkeypatch.setattr("blocklp.lp.rounds.proximal_points", points)
    rounds = Rounds(Best(program, 0.0, Deadline()), program, lambda x, price: (x, price), None, 0.0, Deadline(), simplex=False)
    counts = []
    for number in range(5):
        rounds._newton(STEPS * 2**number)
        counts.append(len(asked))
    assert counts == [1, 1, 1, 2, 4]  # credits: 1, and from then on -9 + 2, -7 + 4, -3 + 8, -5 + 16


def test_a_warm_start_is_given_to_the_other_methods_first() -> None:
    program = staircase(60, 2)
    first = bl.lp.solve_linear_program(program, tol=1e-9)
    nearby = LinearProgram(program.c * 1.001, program.A, program.row_lower, program.row_upper, program.lower, program.upper)
    best = Best(nearby, 1e-9, Deadline())
    start = first.x, first.row_price
    rounds = Rounds(best, nearby, lambda x, price: (x, price), start, 1e-9, Deadline(), simplex=True)
    rounds.run(5)
    assert best.gap() <= 1e-3  # five iterations from no basis have no point


def test_an_interrupt_does_not_wait_for_the_simplex_method() -> None:
    """Random rows fill its factors up: it takes several seconds."""
    draw = np.random.default_rng(0)
    matrix = sp.random_array((2000, 3000), density=0.01, rng=draw, format="csr")
    zero, most = np.zeros(3000), np.full(3000, 10.0)
    program = LinearProgram(draw.uniform(1, 3, 3000), matrix, draw.uniform(1, 5, 2000), np.full(2000, np.inf), zero, most)
    assert simplex_turn(program, PASSES)[1]
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    found = bl.lp.solve_linear_program(program, presolve=False)
    timer.join()
    assert found.status is bl.Status.INTERRUPTED and found.seconds < 2.5

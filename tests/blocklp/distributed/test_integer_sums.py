"""Sums of integers: exact, the same whatever the parts and the order, far from overflow, and the same in loops."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import blocklp as bl
from blocklp.distributed.sharding import sharded
from blocklp.distributed.shared_coupling import integer_copies, largest_shared
from blocklp.distributed.totals import SharedTotals, exponent, integer_terms, largest_magnitude, scale
from blocklp.kernels.backend import Backend

from .processes import model, together

TORCH, NUMBA = Backend("torch"), Backend("numba", frozenset({"any"}))


class Alone:
    """A single process."""

    rank, world = 0, 1

    def sum(self, values):
        return values

    greatest = sum

    def begin_sum(self, values):
        found = self.sum(values)
        return lambda: found


def totals(count, foreign=(), backend=TORCH):
    return SharedTotals(Alone(), torch.tensor(foreign, dtype=torch.long), count, count, count, torch.arange(count), backend)


@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=50), st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_sums_are_exact_to_far_below_the_largest_and_of_any_order(numbers, seed):
    terms = torch.tensor([numbers], dtype=torch.float64)
    found = float(totals(len(numbers)).over_blocks(terms))
    exact, largest = sum(map(Fraction, numbers)), max(map(abs, numbers))
    relative = 2**-52 * (abs(exact) + Fraction(largest) * Fraction(2) ** -30)
    assert abs(Fraction(found) - exact) <= relative + Fraction(2) ** -1060  # for numbers that underflow
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(numbers)))
    assert float(totals(len(numbers)).over_blocks(terms[:, order])) == found


def test_every_process_sends_the_same_messages_whatever_rows_it_holds():
    """Parts with 5 rows of blocks, 3 and none, of 8 in all, and one row beside them."""
    found = []
    for held in (5, 3, 0):
        own, sent = totals(8), []
        own.processes.sum = lambda values, sent=sent: (sent.append(values.shape), values)[1]
        own.processes.greatest = own.processes.sum
        terms = [torch.ones(1, held + 1, dtype=torch.float64)]
        assert float(own.of_program_in_order([], terms, (8, 1))[0]) == held + 1
        found.append(sent)
    assert found[0] == found[1] == found[2] == [(1, 1), (2, 1, 1)]


def test_equal_large_terms_do_not_overflow():
    for count in (1, 2, 3, 2**10, 2**20 + 1):
        largest = math.nextafter(2.0**30, 0)
        terms = torch.full((1, count), largest, dtype=torch.float64)
        assert float(totals(count).over_blocks(terms)) == pytest.approx(count * largest, rel=1e-15)
        power = exponent(terms[:, 0], count)
        assert count * round(largest * float(scale(power))) < 2**62


def test_small_terms_beside_large_ones_count():
    """In floating point 2^20 ones vanish beside 2^60; two integers hold them."""
    terms = torch.ones(1, 2**20 + 2, dtype=torch.float64)
    terms[0, 0], terms[0, -1] = 2.0**60, -(2.0**60)
    assert float(totals(terms.shape[1]).over_blocks(terms)) == 2.0**20


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_sums_with_a_number_that_is_not_finite_are_nan(bad):
    terms = torch.tensor([[1.0, bad, 2.0], [1.0, 2.0, 3.0]], dtype=torch.float64)
    found = totals(3).over_blocks(terms)
    assert found[0].isnan() and float(found[1]) == 6.0


def test_variables_that_others_count_do_not_count_here():
    terms = torch.tensor([[1.0, 1e9 / 3, 4.0]], dtype=torch.float64)
    assert float(totals(3, [1]).over_variables(terms)) == 5.0
    assert float(totals(3, [1]).over_blocks(torch.zeros(1, 0))) == 0.0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_loops_find_the_same_integers(dtype):
    pytest.importorskip("numba", reason="compares with loops that numba compiles")
    import blocklp.distributed.numba_sums  # noqa: F401  registers them

    random = np.random.default_rng(0)
    terms = torch.from_numpy(random.normal(size=(2, 1001)) * 10.0 ** random.integers(-9, 9, (2, 1001))).to(dtype)
    numba, unit = totals(1001, backend=NUMBA), scale(torch.tensor([20, -3]))
    assert torch.equal(largest_magnitude(numba, terms), largest_magnitude.definition(numba, terms))
    given = terms, unit, 30
    assert torch.equal(integer_terms(numba, *given), integer_terms.definition(numba, *given))
    for bad in (math.nan, -math.inf):
        row = torch.tensor([[1.0, bad, 2.0]], dtype=dtype)
        assert largest_magnitude(numba, row).tolist() == [math.inf]
        assert largest_magnitude.definition(numba, row).tolist() == [math.inf]
    problem = model().compile().decomposition()
    coupling = sharded(problem, Alone(), True, NUMBA).problem.coupling
    copies = torch.from_numpy(random.normal(size=(1, problem.copies))).to(dtype)
    assert torch.equal(largest_shared(coupling, copies), largest_shared.definition(coupling, copies))
    for iterate in (None, torch.from_numpy(random.normal(size=copies.shape)).to(dtype)):
        given = coupling, copies, iterate, unit[:1]
        for own, other in zip(integer_copies(*given), integer_copies.definition(*given), strict=True):
            assert own.dtype == other.dtype
            assert torch.equal(own, other)


def test_sums_of_copies_err_less_than_what_bounds_charge():
    """With copies of very different sizes, of which the smallest vanish beside the unit."""
    problem = model().compile().decomposition()
    part = sharded(problem, Alone(), True, TORCH)
    random = np.random.default_rng(1)
    sizes = 10.0 ** random.integers(-25, 9, (1, problem.copies))
    copies = torch.from_numpy(random.normal(size=sizes.shape) * sizes)
    found, charged = part.problem.collect(copies)[0], part.problem.total_size(copies)[0]
    exact = [Fraction(0)] * problem.cost.shape[1]
    for variable, copy in zip(problem.coupling.index[0].tolist(), copies[0].tolist(), strict=True):
        exact[variable] += Fraction(copy)
    unit = torch.finfo(torch.float64).eps
    rest = zip(found.tolist(), exact, charged.tolist(), problem.counts[0].tolist(), strict=True)
    for own, right, total, count in rest:
        assert abs(Fraction(own) - right) <= unit * int(count) * total


class Counted(Alone):
    """A single process that counts all-reduces."""

    def __init__(self):
        self.sums, self.maxima = 0, 0

    def sum(self, values):
        self.sums += 1
        return values

    def greatest(self, values):
        self.maxima += 1
        return values


def test_a_sum_of_copies_needs_one_message_unless_they_grow_or_shrink_much():
    problem, processes = model().compile().decomposition(), Counted()
    part = sharded(problem, processes, True, TORCH).problem
    processes.world = 2  # of which the other one has no copies
    copies = torch.from_numpy(np.random.default_rng(4).normal(size=(1, problem.copies)))
    right = problem.collect(copies)
    for factor, sums, maxima in ((1.0, 0, 1), (1.5, 1, 0), (0.9, 1, 0), (2.0**9, 1, 1), (2.0**9, 1, 0), (1.0, 1, 1)):
        processes.sums = processes.maxima = 0
        found = part.collect(copies * factor)
        assert (processes.sums, processes.maxima) == (sums, maxima)
        torch.testing.assert_close(found, right * factor, rtol=1e-14, atol=1e-14 * factor)
    bad = copies.clone()
    bad[0, 0] = torch.inf
    assert not torch.isfinite(part.collect(bad)).all()
    torch.testing.assert_close(part.collect(copies), right, rtol=1e-14, atol=1e-14)


def sums_of_parts(seed):
    """Sums of copies and of blocks in all processes, of the same numbers."""
    import torch.distributed as dist

    from blocklp.distributed.processes import Processes

    processes = Processes(dist.group.WORLD, 20.0)
    problem = model().compile().decomposition()
    part = sharded(problem, processes, True, TORCH)
    copies = torch.from_numpy(np.random.default_rng(seed).normal(size=(1, problem.copies)))
    whole = torch.zeros_like(problem.cost)
    whole[:, part.variables] = part.problem.collect(part.cut(copies))
    again = part.placed(part.cut(copies))
    processes.sum(again)
    value = part.problem.value(part.problem.to_dual(part.problem.cost))
    processes.close()
    return whole.numpy(), part.variables.numpy(), again.numpy(), copies.numpy(), float(value), len(part.owned)


def test_parts_hold_all_copies_once_and_sum_to_the_same():
    problem = model().compile().decomposition()
    (one,) = together(sums_of_parts, 1, 3)
    parts = together(sums_of_parts, 3, 3)
    right = problem.collect(torch.from_numpy(one[3])).numpy()
    np.testing.assert_allclose(one[0], right, rtol=1e-12, atol=1e-12)
    assert one[4] == pytest.approx(float(problem.value(problem.to_dual(problem.cost))[0]), rel=1e-13)
    for whole, variables, again, copies, value, count in parts:
        assert (whole[:, variables] == one[0][:, variables]).all()
        assert (again == copies).all()
        assert value == one[4]
        assert count < problem.cost.shape[1]


def test_loops_over_copies_update_as_the_definitions_do():
    pytest.importorskip("numba", reason="compares with loops that numba compiles")
    import blocklp.distributed.numba_sums  # noqa: F401  registers them
    from blocklp.kernels.plan import Plan
    from blocklp.methods.admm import Admm, admm_restart
    from blocklp.methods.consensus import admm_multipliers

    made = {}
    for backend in (TORCH, NUMBA):
        part = sharded(model().compile().decomposition(), Alone(), True, backend).problem
        plan, method = Plan(part, backend=backend), Admm()
        state = method.start(plan, part.to_dual(part.cost), None)
        for _ in range(3):
            state, _ = method.run(plan, state, 1)
        centre, anchor = state.reflected + 1, torch.empty_like(state.iterate)
        state = method.finish(plan, state)
        admm_multipliers(plan, state, part.groups[0], centre)
        admm_restart(plan, state, 1.5, torch.tensor([True]), torch.tensor([0.7], dtype=torch.float64), anchor)
        made[backend.name] = state.duals, state.iterate, anchor
    for own, other in zip(made["torch"], made["numba"], strict=True):
        torch.testing.assert_close(own, other, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("factor", [1.0, 1e9, torch.inf])
@pytest.mark.parametrize("far", [1.0, 1e8])
def test_activities_are_exact_to_far_below_their_largest_term(factor, far):
    """Within bounds, far beyond them, and where a number is infinite; in loops as by the definition."""
    pytest.importorskip("numba", reason="compares with loops that numba compiles")
    import blocklp.distributed.numba_sums  # noqa: F401  registers them

    random = np.random.default_rng(6)
    made, rows = bl.Model(), random.normal(size=(5, 30)) * (random.uniform(size=(5, 30)) < 0.7)
    x = made.variable("x", 30, lower=-far, upper=far)
    made.add_rows(rows, x, -1.0, 1.0)
    made.minimize(x.sum())
    problem = made.compile().decomposition()
    point = torch.from_numpy(random.uniform(-1, 1, (1, 30)))
    point[0, 7] *= factor
    found = [sharded(problem, Alone(), True, own).problem.rows for own in (TORCH, NUMBA)]
    assert found[0].wide == (far > 1)
    activity, other = (own.activity(point) for own in found)
    torch.testing.assert_close(activity, other, rtol=0, atol=0, equal_nan=True)
    for row, number in zip(rows, activity[0].tolist(), strict=True):
        pairs = zip(row.tolist(), point[0].tolist(), strict=True)
        terms = [Fraction(a * b) for a, b in pairs if a and math.isfinite(b)]
        if factor == torch.inf and row[7]:
            assert math.isnan(number)
        else:
            assert abs(Fraction(number) - sum(terms)) <= 2**-45 * max(map(abs, terms))

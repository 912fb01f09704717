"""Clauses of several rows: what all of them clip, and formulas that are networks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import Tensor

from blocklp.problems.verification import Network, Property, VerifySettings, network_bounds, verify
from blocklp.problems.verification.network import Builder
from blocklp.problems.verification.operations import Linear
from blocklp.problems.verification.relu_splits import ReluSplits
from tests.problems.verification_networks import dense, unit_box

SIZES = (6, 14, 3)
SIGNS = VerifySettings(few_inputs=0)


def least_greatest(network: Network, lower: Tensor, upper: Tensor) -> float:
    """The least value of the greatest output over the box, by a mixed-integer program of HiGHS: two matrices and a ReLU."""
    first, last = (op for op in network.ops if isinstance(op, Linear))
    weight, shift, outer, end = (t.numpy() for t in (first.weight, first.bias, last.weight, last.bias))
    n, m, k = weight.shape[1], weight.shape[0], outer.shape[0]
    big = np.abs(weight) @ np.maximum(np.abs(lower.numpy()), np.abs(upper.numpy())) + np.abs(shift)
    # Columns: inputs, activations, whether they are on, and the greatest output.
    none, eye = np.zeros((m, 1)), np.eye(m)
    rows = [
        (np.hstack([-weight, eye, np.zeros((m, m)), none]), shift, np.full(m, np.inf)),
        (np.hstack([-weight, eye, np.diag(big), none]), np.full(m, -np.inf), shift + big),
        (np.hstack([np.zeros((m, n)), eye, -np.diag(big), none]), np.full(m, -np.inf), np.zeros(m)),
        (np.hstack([np.zeros((k, n)), outer, np.zeros((k, m)), -np.ones((k, 1))]), np.full(k, -np.inf), -end),
    ]
    box = Bounds(
        np.concatenate([lower.numpy(), np.zeros(2 * m), [-np.inf]]), np.concatenate([upper.numpy(), big, np.ones(m), [np.inf]])
    )
    cost = np.append(np.zeros(n + 2 * m), 1.0)
    whole = np.concatenate([np.zeros(n + m), np.ones(m), [0.0]])
    found = milp(cost, constraints=[LinearConstraint(*row) for row in rows], bounds=box, integrality=whole)
    assert found.status == 0
    return float(found.fun)


@pytest.mark.parametrize("seed", range(4))
def test_what_all_rows_clip_holds_no_point_that_satisfies_them(seed: int) -> None:
    network = dense(seed, SIZES)
    lower, upper = unit_box(network, seed, 0.1)
    draw = torch.rand(20000, SIZES[0], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = torch.lerp(lower, upper, draw)
    y = network(x)
    right = y[y.max(1).values.argmin()] + 0.02 * y.std(0)
    relaxation = network_bounds(network, lower, upper, method="crown").relaxation
    splits = ReluSplits(relaxation, torch.eye(SIZES[2], dtype=torch.float64), right, 5, lambda x: None)
    splits.roots([0] * SIZES[2], 5)
    clips = splits.conjunctions
    assert clips.on
    ends, signs = splits.boxes.root[None].clone(), torch.zeros(1, splits.total, dtype=torch.int8)
    specs, cuts = torch.zeros(1, dtype=torch.int64), splits.cuts.root[None]
    impossible = clips.propagate(splits._row_bounds(specs, cuts), ends, signs)
    kept = (y <= right).all(1)
    low, high = splits.boxes.box(ends)
    assert bool(kept.any()) and not bool(impossible)
    assert bool(((x >= low) & (x <= high))[kept].all())
    assert bool(((high - low) < (upper - lower)).any())
    (relu,) = splits.boxes.first
    z = network.run(x[kept])[network.ops[relu].inputs[0]]
    between = splits.boxes.bounds(relu, ends)
    assert between is not None
    assert bool(((z >= between[0]) & (z <= between[1])).all())
    free = splits.free[relu]
    assert bool((z[:, free] * signs >= 0).all())
    # Rows that no point satisfies by far leave nothing.
    hopeless = ReluSplits(relaxation, torch.eye(SIZES[2], dtype=torch.float64), y.min(0).values - 100, 5, lambda x: None)
    hopeless.roots([0] * SIZES[2], 5)
    assert bool(hopeless.conjunctions.propagate(hopeless._row_bounds(specs, cuts), ends, signs))


@pytest.mark.parametrize("seed", range(6))
def test_verdicts_are_those_of_the_exact_minimum(seed: int) -> None:
    network = dense(seed, SIZES)
    lower, upper = unit_box(network, seed)
    least = least_greatest(network, lower, upper)
    rows = np.eye(SIZES[2])
    for above, status in ((-0.01, "unsat"), (1e-3, "sat")):
        prop = Property.of(lower.numpy(), upper.numpy(), rows, np.full(SIZES[2], least + above))
        verdict = verify(network, prop, timeout=20, settings=SIGNS, attack=status == "sat")
        assert verdict.status == status
    nearly = Property.of(lower.numpy(), upper.numpy(), rows, np.full(SIZES[2], least + 1e-5))
    assert verify(network, nearly, timeout=20, settings=SIGNS, attack=False).status == "unknown"


def formula(clauses: list[list[int]], variables: int) -> Network:
    """A network whose outputs are the clauses that are not satisfied, and the distance of the inputs from 0 and 1, both added up."""
    weight, shift = torch.zeros(len(clauses), variables), torch.ones(len(clauses))
    for row, clause in enumerate(clauses):
        for literal in clause:
            weight[row, abs(literal) - 1] = -1.0 if literal > 0 else 1.0
            shift[row] -= float(literal < 0)
    inner = torch.cat([weight, torch.eye(variables), 2 * torch.eye(variables)])
    outer = torch.zeros(2, len(inner))
    outer[0, : len(clauses)] = 1.0
    outer[1, len(clauses) : -variables], outer[1, -variables:] = 1.0, -1.0
    b = Builder((variables,), "formula")
    b.linear(b.relu(b.linear(0, inner, torch.cat([shift, torch.zeros(variables), -torch.ones(variables)]))), outer, torch.zeros(2))
    return b.build()


def decision_tree(variables: int, leaves: int, seed: int) -> list[list[int]]:
    """Clauses that contradict each other: one for each leaf of a random decision tree, which a proof need not be longer than."""
    rng = np.random.default_rng(seed)
    clauses: list[list[int]] = [[]]
    while len(clauses) < leaves:
        at = int(rng.integers(len(clauses)))
        left = sorted(set(range(1, variables + 1)) - {abs(literal) for literal in clauses[at]})
        variable = int(rng.choice(left))
        clauses[at : at + 1] = [[*clauses[at], variable], [*clauses[at], -variable]]
    return clauses


def satisfied(clauses: list[list[int]], variables: int) -> bool:
    return any(
        all(any((literal > 0) == point[abs(literal) - 1] for literal in clause) for clause in clauses)
        for point in itertools.product((False, True), repeat=variables)
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_formula_is_decided_by_no_more_splits_than_the_tree_it_came_from(seed: int) -> None:
    variables, clauses = 24, decision_tree(24, 60, seed)
    prop = Property.of(np.zeros(variables), np.ones(variables), np.eye(2), np.zeros(2))
    verdict = verify(formula(clauses, variables), prop, timeout=60)
    assert verdict.status == "unsat"
    assert 0 < verdict.nodes < len(clauses)


@pytest.mark.parametrize("seed", range(12))
def test_formulas_have_the_verdicts_of_all_assignments(seed: int) -> None:
    rng, variables = np.random.default_rng(seed), 8
    count = 34 + 3 * (seed % 4)
    picked = [rng.choice(variables, 3, replace=False) + 1 for _ in range(count)]
    clauses = [[int(v * rng.choice((-1, 1))) for v in own] for own in picked]
    prop = Property.of(np.zeros(variables), np.ones(variables), np.eye(2), np.zeros(2))
    verdict = verify(formula(clauses, variables), prop, timeout=60, settings=SIGNS)
    assert verdict.status == ("sat" if satisfied(clauses, variables) else "unsat")


@pytest.mark.parametrize(("seed", "below"), [(3, 0.3), (11, 0.8)])
def test_clauses_of_several_rows_behind_a_first_layer_that_is_known(seed: int, below: float) -> None:
    """A large constant makes margins so wide that nodes are level."""
    draw, inputs, constant = torch.Generator().manual_seed(seed), 24, 1e4
    b = Builder((inputs,), "known")
    first = b.relu(b.linear(0, torch.randn(6, inputs, generator=draw) / 24, torch.full((6,), 5.0)))
    weight = torch.randn(8, 6, generator=draw)
    second = b.relu(b.linear(first, weight, -5 * weight.sum(1)))
    b.linear(second, torch.randn(2, 8, generator=draw), torch.full((2,), constant))
    network = b.build()
    x = torch.rand(20000, inputs, generator=draw, dtype=torch.float64) * 2 - 1
    least = float(network(x).max(1).values.min())
    above = Property.of([-1] * inputs, [1] * inputs, np.eye(2), [least + 0.1] * 2)
    assert verify(network, above, timeout=20).status == "sat"
    prop = Property.of([-1] * inputs, [1] * inputs, np.eye(2), [least - below] * 2)
    assert verify(network, prop, timeout=20).status == "unsat"

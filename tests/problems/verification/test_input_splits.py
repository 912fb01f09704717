"""Searches over input boxes: networks of sparse matrices, and chains of affine operations before the first ReLU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.problems.verification import Clause, Property, verify
from blocklp.problems.verification.input_splits import InputSplits
from blocklp.problems.verification.network import Builder, Network
from blocklp.problems.verification.operations import Linear, Sparse
from blocklp.problems.verification.proof import check_proof
from blocklp.problems.verification.proving import Part


def lattice(terms: int, sets: int, seed: int) -> tuple[Network, Tensor, Tensor, Tensor]:
    """The maximum over sets of minima of affine functions of two inputs, by matrices that select, subtract and add.

    Also the functions ``(terms, 2)`` and ``(terms,)``, and which of them each set holds ``(sets, 4)``.
    """
    draw = torch.Generator().manual_seed(seed)
    weight, bias = (torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in ((terms, 2), (terms,)))
    chosen = torch.stack([torch.randperm(terms, generator=draw)[:4] for _ in range(sets)])
    builder = Builder((2,), "lattice")
    at = builder.linear(0, weight, bias)
    at = builder.linear(at, torch.eye(terms, dtype=torch.float64)[chosen.flatten()])
    count, sign = 4 * sets, -1.0
    while count > 1:
        if count == sets:
            sign = 1.0
        # Of numbers a and b: min(a, b) = relu(b) - relu(-b) - relu(b - a), and max alike.
        half, unit = count // 2, torch.eye(count, dtype=torch.float64)
        a, b = unit[0::2], unit[1::2]
        at = builder.relu(builder.linear(at, torch.cat([b, -b, sign * (a - b)])))
        one = torch.eye(half, dtype=torch.float64)
        at, count = builder.linear(at, torch.cat([one, -one, sign * one], 1)), half
    return builder.build(), weight, bias, chosen


def values(weight: Tensor, bias: Tensor, chosen: Tensor, x: Tensor) -> Tensor:
    """What the network computes at points ``(batch, 2)``."""
    return (x @ weight.T + bias)[:, chosen].amin(2).amax(1)


def test_matrices_of_few_entries_become_sparse_and_compute_what_they_did() -> None:
    network, *terms = lattice(16, 64, 0)
    kinds = [type(op) for op in network.ops if isinstance(op, (Linear, Sparse))]
    assert Sparse in kinds and Linear in kinds  # large ones, and small ones
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(network(x)[:, 0], values(*terms, x), atol=1e-12, rtol=0)
    for op in network.ops:
        if isinstance(op, Sparse):
            y = torch.randn(3, *op.shape, dtype=torch.float64)
            assert float((op.linear(x.new_ones(3, *op.source)) * y).sum()) == pytest.approx(float(op.adjoint(y).sum()), abs=1e-10)
            assert float(op.absolute().weight.min()) >= 0


# In the larger network neurons keep their intervals until boxes are small.
@pytest.mark.parametrize(("terms", "sets"), [(8, 16), (16, 64)])
@pytest.mark.parametrize("seed", range(3))
def test_verdicts_on_lattices_are_right(terms: int, sets: int, seed: int) -> None:
    network, weight, bias, chosen = lattice(terms, sets, seed)
    grid = torch.linspace(-1, 1, 201, dtype=torch.float64)
    highest = float(values(weight, bias, chosen, torch.cartesian_prod(grid, grid)).max())
    box = -np.ones(2), np.ones(2)
    # The functions change by less than 0.01 times the sum of their slopes between points of the grid.
    above = highest + 0.01 * float(weight.abs().sum(1).max()) + 0.1
    for right, status in ((above, "unsat"), (highest - 0.05, "sat")):
        claim = Property([Clause(*box, -np.ones((1, 1)), np.array([-right]), np.array([False]))], 2, 1)
        found = verify(network, claim, timeout=60, proof=terms == 8)
        assert found.status == status
        if found.proof is not None:
            assert check_proof(network, claim, found.proof.steps())["status"] == status


def test_affine_forms_hold_in_all_boxes_within_theirs() -> None:
    network, weight, bias, chosen = lattice(16, 64, 3)
    splits = InputSplits(network, [torch.eye(1).double()], [torch.zeros(1).double()], lambda x: None, Deadline(), [Part()])
    whole = torch.full((1, 2), -2.0, dtype=torch.float64), torch.full((1, 2), 2.0, dtype=torch.float64)
    splits.roots([(0, whole[0][0], whole[1][0])])
    (relu,) = splits.forms
    draw = torch.Generator().manual_seed(0)
    ends = (4 * torch.rand(2, 500, 2, generator=draw, dtype=torch.float64) - 2).sort(0).values
    x = ends[0] + (ends[1] - ends[0]) * torch.rand(500, 2, generator=draw, dtype=torch.float64)
    z = network.run(x)[network.ops[relu].inputs[0]]
    below, above = (form.least(*ends) for form in splits.forms[relu])
    assert bool((below <= z).all() and (-above >= z).all())
    # In a point they are the pre-activations, up to rounding; in boxes they are attained at corners.
    for form, sign in zip(splits.forms[relu], (1, -1), strict=True):
        torch.testing.assert_close(form.least(x, x), sign * z, atol=1e-10, rtol=0)
    pairs = (x @ weight.T + bias)[:, chosen.flatten()]
    torch.testing.assert_close(z[:, : pairs.shape[1] // 2], pairs[:, 1::2], atol=1e-12, rtol=0)

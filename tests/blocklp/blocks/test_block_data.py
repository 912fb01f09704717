"""Data of block types are copies, and what is no finite array of numbers is refused by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp.blocks.capabilities import constraints_of
from blocklp.blocks.contract import BlockType
from blocklp.blocks.nonnegative_costs import NonnegativeCosts
from blocklp.errors import ModelError, OracleError
from blocklp.oracles import Box, Knapsack, Polytope
from blocklp.oracles.relu import ReluHull

LOW, HIGH = np.zeros(3), np.ones(3)

MADE: dict[str, tuple[Callable[[Tensor], BlockType], Tensor]] = {
    "Box lower": (lambda t: Box(t, [2.0, 2, 2]), torch.tensor([0.0, 1, 1])),
    "Box upper": (lambda t: Box([0.0, 0, 0], t), torch.tensor([2.0, 1, 1])),
    "Knapsack weights": (lambda t: Knapsack(t, 2.0), torch.tensor([1.0, 2, 1])),
    "Knapsack capacity": (lambda t: Knapsack([1.0, 2, 1], t), torch.tensor(2.0)),
    "Knapsack least": (lambda t: Knapsack([1.0, 2, 1], least=t), torch.tensor(2.0)),
    "Knapsack lower": (lambda t: Knapsack([1.0, 2, 1], 2.0, lower=t), torch.tensor([0.5, 0, 0])),
    "Knapsack upper": (lambda t: Knapsack([1.0, 2, 1], 2.0, upper=t), torch.tensor([0.5, 1, 1])),
    "Polytope matrix": (lambda t: Polytope(t, [0.0], [2.0], LOW, HIGH), torch.tensor([[1.0, 2, 1]])),
    "Polytope lower": (lambda t: Polytope([[1.0, 2, 1]], t, [2.0], LOW, HIGH), torch.tensor([1.0])),
    "Polytope upper": (lambda t: Polytope([[1.0, 2, 1]], [0.0], t, LOW, HIGH), torch.tensor([2.0])),
    "Polytope x_lower": (lambda t: Polytope([[1.0, 2, 1]], [0.0], [2.0], t, HIGH), torch.tensor([0.5, 0, 0])),
    "Polytope x_upper": (lambda t: Polytope([[1.0, 2, 1]], [0.0], [2.0], LOW, t), torch.tensor([0.5, 1, 1])),
    "FiniteVertices vertices": (lambda t: bl.FiniteVertices(t), torch.tensor([[1.0, 2, 1], [0, 0, 0]])),
    "ReluHull lower": (lambda t: ReluHull(t, 2.0), torch.tensor(-1.0)),
    "ReluHull upper": (lambda t: ReluHull(-1.0, t), torch.tensor(1.0)),
}

MAY_LACK = "FiniteVertices vertices", "Knapsack capacity", "Knapsack least", "Knapsack lower", "Knapsack upper"
"""Vertices of a class may be None, which then has them as an attribute, and so may sides and bounds of knapsacks."""


@pytest.mark.parametrize("what", MADE)
def test_later_changes_of_tensors_change_nothing(what: str) -> None:
    make, data = MADE[what]
    given = data.double()
    kind = make(given)
    cost = -torch.ones(1, 1, kind.dim or 3, dtype=torch.float64)
    before = [t.clone() for t in kind.min_oracle(cost)]
    rows = constraints_of(kind)
    kept = None if rows is None else [t.clone() for t in (rows.matrix, rows.lower, rows.upper)]
    given.add_(17.0)
    assert all(torch.equal(a, b) for a, b in zip(kind.min_oracle(cost), before, strict=True))
    rows = constraints_of(kind)
    assert kept is None or rows is not None
    assert kept is None or all(torch.equal(a, b) for a, b in zip((rows.matrix, rows.lower, rows.upper), kept, strict=True))
    array = data.double().numpy().copy()
    kind = make(array)  # type: ignore[arg-type]
    array += 17.0
    assert all(torch.equal(a, b) for a, b in zip(kind.min_oracle(cost), before, strict=True))


@pytest.mark.parametrize("what", MADE)
def test_data_that_are_no_numbers_are_refused_by_name(what: str) -> None:
    make, data = MADE[what]
    bad: list[object] = [None, "one", [[1.0, 2.0], [1.0]], [None, 1.0], {"a": 1}, object()]
    for value in bad:
        if not (value is None and what in MAY_LACK):
            with pytest.raises(ModelError, match=f"{what}: cannot read .* as numbers"):
                make(value)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=f"{what} holds complex numbers"):
        make(data * 1j)
    with pytest.raises(ModelError, match="NaN"):
        make(data * torch.nan)


@pytest.mark.parametrize("what", MADE)
def test_gradients_of_data_stay_outside_of_the_model(what: str) -> None:
    """The type that solves ask carries none, and the handle keeps the one that was given."""
    make, data = MADE[what]
    kind = make(data.double().requires_grad_())
    assert kind.carried()
    m = bl.Model()
    x = m.variable("x", kind.dim or 3, lower=0, upper=1)
    blocks = m.add(kind, x)
    assert blocks.given is kind and not blocks.type.carried()


class Own(BlockType):
    """A type of a user's with data of blocks, or with other tensors."""

    block_data = ("price",)
    dim = 2

    def __init__(self, price: Tensor | None, secret: Tensor) -> None:
        self.price, self.secret = price, secret

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        point = self.secret * (cost < 0)
        return point, (cost * point).sum(-1)


def test_gradients_of_an_oracle_are_refused_where_its_type_does_not_hold_them() -> None:
    m = bl.Model()
    x = m.variable("x", 2, lower=0, upper=1)
    one = torch.ones(1, 1, 2, dtype=torch.float64)
    hidden = Hidden(one, one)
    hidden.parts = [one.clone().requires_grad_()]
    with pytest.raises(OracleError, match="returned tensors that require gradients"):
        m.add(hidden, x)
    assert m.add(Own(one.clone().requires_grad_(), one.clone().requires_grad_()), x).given is not None
    assert m.add(Own(one, one), x).given is None


class Hidden(Own):
    """Data in a list, where they are not looked for."""

    parts: list[Tensor]

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        point = self.parts[0] * (cost < 0)
        return point, (cost * point).sum(-1)


class Cheapest(bl.BlockType):
    """One unit on the cheapest coordinate, at a price of its own for every block; costs must not be negative."""

    nonnegative_costs, block_data = True, ("price",)

    def __init__(self, price: Tensor) -> None:
        self.price, self.dim = price, 3

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        best = cost.min(-1)
        return torch.nn.functional.one_hot(best.indices, 3).to(cost), best.values + self.price


@pytest.mark.parametrize("which", [slice(1, 3), torch.tensor([3, 0])])
def test_some_blocks_of_a_type_have_their_own_data(which: slice | Tensor) -> None:
    draw = torch.Generator().manual_seed(0)
    cost, upper = torch.randn(2, 4, 3, generator=draw).double(), torch.rand(1, 4, 3, generator=draw).double()
    weights = torch.rand(4, 3, generator=draw).double()
    kinds = [
        Knapsack(weights, 1.0),
        NonnegativeCosts(Cheapest(torch.arange(4.0).double()[None]), upper),
        Box([0.0, 0, 0], [1.0, 1, 1]),
    ]
    for kind in kinds:
        point, value = kind.min_oracle(cost)
        own, mine = kind.part(which).min_oracle(cost[:, which])
        assert torch.equal(own, point[:, which]) and torch.equal(mine, value[:, which])


class Weighed(bl.BlockType):
    """The unit box, with a weight of every block that is not named in ``block_data``."""

    dim = 2

    def __init__(self, weight: Tensor, expanded: bool) -> None:
        self.weight, self.expanded = weight, expanded

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        weight = self.weight.expand_as(cost) if self.expanded else self.weight
        point = ((cost * weight) < 0).to(cost)
        return point, (cost * point).sum(-1)


@pytest.mark.parametrize("expanded, complaint", [(True, r"failed \(.*\)"), (False, "returned point")])
def test_data_of_blocks_that_are_not_named_as_such_are_told(expanded: bool, complaint: str) -> None:
    m = bl.Model()
    x = m.variable("x", (3, 2), lower=0, upper=1)
    m.add(Weighed(torch.ones(1, 3, 1, dtype=torch.float64), expanded), scope=x)
    m.minimize(x.sum())
    with pytest.raises(OracleError, match=f"min_oracle of Weighed {complaint}.* block_data"):
        m.solve()

"""The self-check of a model accepts right models and names what is wrong in others."""

import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp.blocks.contract import BlockType
from blocklp.errors import ModelError, OptionError, OracleError
from blocklp.oracles import AtMostOne, Edge, Knapsack, Polytope, Simplex
from blocklp.testing.check import check


def grid(batch: int = 1) -> tuple[bl.Model, bl.Variable]:
    model = bl.Model(batch=batch)
    x = model.variable("x", (4, 3), lower=0, upper=1)
    model.minimize(x.sum())
    return model, x


def test_right_models_pass() -> None:
    model, x = grid(batch=2)
    model.add(Simplex(3), scope=x)
    model.add(AtMostOne(4), scope=[x[0, [0]], x[1, [0]], x[2, [0]], x[3, [0]]], name="column")
    model.add(Edge(), scope=[x[:, 0], x[:, 1], x[:, 2]])
    model.add(Knapsack([[[1.0, 2.0, 3.0]], [[3.0, 2.0, 0.0]]], 2.0), scope=x, name="budget")
    model.add(Polytope([[1.0, -1.0, 1.0]], [0.0], [1.0], [0, 0, 0], [1, 1, 1]), scope=x)
    report = check(model, trials=3)
    assert len(report.tested) == 5 and not report.untested
    assert "budget: 4 blocks of Knapsack(dim=3), 3 costs, 24 LPs" in str(report)


def test_report_tells_what_was_not_tested() -> None:
    class Bare(BlockType):
        def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
            point = (cost < 0).to(cost)
            return point, (cost * point).sum(-1)

    model, x = grid()
    model.add(Bare(), scope=x)
    report = check(model)
    assert "not tested: Bare: optimality, since Bare states no constraints()" in str(report)


def test_many_blocks_are_sampled() -> None:
    model = bl.Model()
    x = model.variable("x", (500, 3), lower=0, upper=1)
    model.add(Edge(), scope=x)
    model.minimize(x.sum())
    assert "500 blocks of Edge(vertices=4, dim=3), 2 costs, 20 LPs" in str(check(model, trials=2, sample=10))


def test_wrong_oracle_is_named() -> None:
    class Printed(BlockType):
        """Right on the two costs that add() asks, wrong on others."""

        dim = 3
        constraints = Edge.constraints

        def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
            y = (cost[..., :2] < 0).to(cost)
            point = torch.cat([y, y[..., :1] * y[..., 1:]], -1)
            return point, (cost * point).sum(-1)

    model, x = grid()
    model.add(Printed(), scope=x, name="pairs")
    with pytest.raises(OracleError, match="blocks 'pairs': Printed: block"):
        check(model)


class Single(BlockType):
    """The unit box, calculated in single precision; ``where`` says what of it is returned so."""

    dim = 3

    def __init__(self, where: str) -> None:
        self.where = where

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        low = cost.float()
        point = (low < 0).float()
        value = (low * point).sum(-1)
        return point if self.where == "point" else point.to(cost), value if self.where == "value" else value.to(cost)

    def min_value(self, cost: Tensor) -> Tensor:
        return cost.clamp(max=0).sum(-1)


class SingleValue(Single):
    """Only the value alone, which bounds are calculated from, is one of single precision."""

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        point = (cost < 0).to(cost)
        return point, (cost * point).sum(-1)

    def min_value(self, cost: Tensor) -> Tensor:
        return cost.float().clamp(max=0).sum(-1).to(cost)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Single("neither"), "min_oracle of Single calculates in single precision.*float32"),
        (SingleValue("neither"), "min_value of SingleValue calculates in single precision"),
        (Single("point"), "returned point and value of torch.float32 and torch.float64"),
        (Single("value"), "returned point and value of torch.float64 and torch.float32"),
    ],
)
def test_oracles_of_single_precision_are_refused_where_they_are_declared(kind: BlockType, message: str) -> None:
    """Whatever their bounds would be off by, they would be too high in half of all cases."""
    model, x = grid()
    with pytest.raises(OracleError, match=message):
        model.add(kind, scope=x)


def test_single_precision_is_told_by_the_check() -> None:
    class Later(BlockType):
        """Right on the costs that add() asks."""

        dim = 3

        def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
            if len(cost.unique()) <= 3:
                return Edge().min_oracle(cost)
            point, value = Edge().min_oracle(cost.float())
            return point.to(cost), value.to(cost)

    model, x = grid()
    model.add(Later(), scope=x)
    with pytest.raises(OracleError, match="blocks 'Later': min_oracle of Later calculates in single precision"):
        check(model)


def test_values_above_the_cost_of_their_point_are_refused() -> None:
    """By a millionth of a percent, unless the type admits it: the bound would be as much too high."""

    class Above(BlockType):
        dim = 3

        def __init__(self, error: float | None) -> None:
            self.error = error

        def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
            point = (cost < 0).to(cost)
            return point, (cost * point).sum(-1) + 1e-8

        def value_error(self, cost: Tensor) -> Tensor | None:
            return None if self.error is None else torch.full_like(cost[..., 0], self.error)

    model, x = grid()
    model.add(Above(1e-7), scope=x)
    for error in (None, 1e-9):
        with pytest.raises(OracleError, match="a value that is not the cost of its point"):
            model.add(Above(error), scope=x, name="above")


def structured(to_primal_factor: float, shift: int) -> bl.Model:
    """Blocks (x_k, x_(k+1)) of a chain with maps of their own."""
    model = bl.Model(batch=2)
    x = model.variable("x", 6, lower=0, upper=1)

    def to_dual(values: Tensor) -> Tensor:
        return torch.cat([values[:, :5], values[:, 1:].roll(shift, 1)], 1)

    def to_primal(copies: Tensor) -> Tensor:
        pad = torch.nn.functional.pad
        return pad(copies[:, :5], (0, 1)) + to_primal_factor * pad(copies[:, 5:].roll(-shift, 1), (1, 0))

    model.add(AtMostOne(2), scope=[x[:5], x[1:]], name="chain", to_dual=to_dual, to_primal=to_primal)
    model.minimize(x.sum())
    return model


def test_maps() -> None:
    assert check(structured(1.0, 0)).tested
    with pytest.raises(OracleError, match="blocks 'chain': to_primal is not the adjoint of to_dual"):
        check(structured(0.5, 0))
    with pytest.raises(OracleError, match="blocks 'chain': to_dual gives position 1 of block 0 another value"):
        check(structured(1.0, 1))


def test_refused() -> None:
    model, _ = grid()
    with pytest.raises(OptionError, match="trials is 0"):
        check(model, trials=0)
    empty = bl.Model()
    empty.variable("x", 3, lower=0, upper=1)
    with pytest.raises(ModelError, match="no objective"):
        check(empty)

"""The self-check of a model accepts right models and names what is wrong in others."""

import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp.block import BlockType
from blocklp.check import check
from blocklp.errors import ModelError, OptionError, OracleError
from blocklp.oracles import AtMostOne, Edge, Knapsack, Polytope, Simplex


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
    class Printed(Edge):
        """Right on the two costs that add() asks, wrong on others."""

        def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
            y = (cost[..., :2] < 0).to(cost)
            point = torch.cat([y, y[..., :1] * y[..., 1:]], -1)
            return point, (cost * point).sum(-1)

    model, x = grid()
    model.add(Printed(), scope=x, name="pairs")
    with pytest.raises(OracleError, match="blocks 'pairs': Printed: block"):
        check(model)


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
    with pytest.raises(OptionError, match="trials = 0"):
        check(model, trials=0)
    empty = bl.Model()
    empty.variable("x", 3, lower=0, upper=1)
    with pytest.raises(ModelError, match="no objective"):
        check(empty)

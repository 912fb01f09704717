import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp.errors import ModelError, NonFiniteError, OptionError, OracleError, ShapeError
from blocklp.general_solvers.solvers import reference
from blocklp.oracles import Edge
from blocklp.raw import solve_raw
from blocklp.structure import bounded, pack, same_form, unpack

ARGUMENTS = ("c", "min_oracle", "to_dual", "to_primal")


@dataclass
class Qpbo:
    """Pairs of n variables, as in the thesis: y ``(batch, n)`` and z ``(batch, edges)`` in two tensors.

    Copies are y ``(batch, edges, 2)`` and z ``(batch, edges)``.
    """

    a: Tensor
    p: Tensor
    i: Tensor
    j: Tensor

    @property
    def c(self) -> tuple[Tensor, Tensor]:
        return self.a, self.p

    def to_dual(self, x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        y, z = x
        degree = torch.bincount(torch.cat([self.i, self.j]), minlength=y.shape[1])
        shared = y / degree
        return torch.stack([shared[:, self.i], shared[:, self.j]], 2), z

    def to_primal(self, copies: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        y, z = copies
        total = torch.zeros(len(y), self.a.shape[1], dtype=y.dtype)
        return total.index_add(1, self.i, y[..., 0]).index_add(1, self.j, y[..., 1]), z

    def min_oracle(self, cost: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The best of the vertices (0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 1)."""
        y, z = cost
        values = torch.stack([torch.zeros_like(z), y[..., 0], y[..., 1], y.sum(2) + z], 2)
        vertex = values.argmin(2)
        points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=y.dtype)[vertex]
        return points, (vertex == 3).to(z.dtype)

    def arguments(self) -> dict[str, Any]:
        return {k: getattr(self, k) for k in ARGUMENTS} | {"lower": 0.0, "upper": 1.0}

    def model(self) -> bl.Model:
        m = bl.Model(len(self.a))
        y = m.variable("y", self.a.shape[1], lower=0, upper=1)
        z = m.variable("z", self.p.shape[1], lower=0, upper=1)
        m.add(Edge(), [y[self.i], y[self.j], z])
        m.minimize(self.a @ y + self.p @ z)
        return m


@pytest.fixture
def qpbo() -> Qpbo:
    rng = np.random.default_rng(0)
    i, j = np.nonzero(np.triu(rng.random((9, 9)) < 0.5, 1))
    a, p = rng.standard_normal((3, 9)), rng.standard_normal((3, len(i)))
    # The first instance is easy and leaves the batch early.
    a[0] = 5
    return Qpbo(*(torch.as_tensor(v) for v in (a, p, i, j)))


@pytest.mark.parametrize("method", ["auto", "admm", "prox", "proxfw", "proxbc"])
def test_qpbo_of_the_thesis(qpbo: Qpbo, method: str) -> None:
    optimum = reference(qpbo.model()).objective
    answer = solve_raw(**qpbo.arguments(), method=method, passes=2000)
    assert (answer.bound <= optimum + 1e-9).all()
    assert (answer.bound >= optimum - 0.02 * optimum.abs().clamp(min=1)).all()
    assert (answer.safe_bound == -math.inf).all()
    assert answer.status[0] == bl.Status.OPTIMAL and answer.passes[0] < answer.passes[1]
    y, z = answer.x
    assert y.shape == (3, 9) and z.shape == qpbo.p.shape
    assert [t.shape for t in answer.duals] == [(3, len(qpbo.i), 2), (3, len(qpbo.i))]
    for total, cost in zip(qpbo.to_primal(answer.duals), qpbo.c, strict=True):
        assert torch.allclose(total, cost)


def test_bound_is_that_of_its_multipliers(qpbo: Qpbo) -> None:
    answer = solve_raw(**qpbo.arguments(), passes=100)
    point = qpbo.min_oracle(answer.duals)
    value = sum((d * x).flatten(1).sum(1) for d, x in zip(answer.duals, point, strict=True))
    assert torch.allclose(value, answer.bound, atol=1e-12)


def test_primal_point_is_feasible(qpbo: Qpbo) -> None:
    answer = solve_raw(**qpbo.arguments(), passes=50)
    y, _ = answer.x
    assert answer.primal[0] == 0 and not y[0].any()
    assert answer.gap[0] <= 1e-4 and answer.seconds[0] > 0


def test_value_may_be_returned_and_structure_is_free(qpbo: Qpbo) -> None:
    """The same problem in dicts and a nested list, with the value."""

    def to_dual(x: dict[str, Tensor]) -> list[Any]:
        y, z = qpbo.to_dual((x["y"], x["z"]))
        return [{"ends": y}, z]

    def to_primal(copies: list[Any]) -> dict[str, Tensor]:
        y, z = qpbo.to_primal((copies[0]["ends"], copies[1]))
        return {"y": y, "z": z}

    def min_oracle(cost: list[Any]) -> tuple[list[Any], Tensor]:
        y, z = qpbo.min_oracle((cost[0]["ends"], cost[1]))
        return [{"ends": y}, z], (y * cost[0]["ends"]).flatten(1).sum(1) + (z * cost[1]).sum(1)

    c = {"y": qpbo.a, "z": qpbo.p}
    bounds = {"lower": {"y": 0, "z": torch.zeros(len(qpbo.i))}, "upper": 1}
    answer = solve_raw(c, min_oracle, to_dual, to_primal, **bounds, passes=60)
    plain = solve_raw(**qpbo.arguments(), passes=60)
    assert torch.allclose(answer.bound, plain.bound, atol=1e-9)
    assert set(answer.x) == {"y", "z"} and answer.duals[0]["ends"].shape == (3, len(qpbo.i), 2)


def test_single_tensor_and_options() -> None:
    """One variable per block: a bound from two copies each of x in [-1, 2]^3, met at once."""
    c = torch.tensor([[1.0, -1.0, 0.5]])
    seen = []
    answer = solve_raw(
        c,
        lambda cost: torch.where(cost < 0, 2.0, -1.0),
        lambda x: torch.stack([x, x], 1) / 2,
        lambda copies: copies.sum(1),
        lower=-1,
        upper=torch.tensor([2.0, 2.0, 2.0]),
        callback=lambda event: seen.append(event.passes),
    )
    assert answer.bound.tolist() == pytest.approx([-3.5]) and answer.primal.tolist() == [-3.5]
    assert answer.x.tolist() == [[-1, 2, -1]] and answer.duals.shape == (1, 2, 3)
    assert seen


def swapped(x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return x[1], x[0]


def test_wrong_functions_are_refused_by_name(qpbo: Qpbo) -> None:
    good = qpbo.arguments()

    def refused(match: str, error: type[Exception] = OracleError, **changes: object) -> None:
        with pytest.raises(error, match=match):
            solve_raw(**good | changes)  # type: ignore[arg-type]

    def undivided(x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return torch.stack([x[0][:, qpbo.i], x[0][:, qpbo.j]], 2), x[1]

    def unequal(x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        y, z = qpbo.to_dual(x)
        first = {int(v): k for k, v in reversed(list(enumerate(qpbo.i)))}
        last = {int(v): k for k, v in enumerate(qpbo.i)}
        for v, k in first.items():
            if last[v] != k:
                y[:, k, 0], y[:, last[v], 0] = 1.5 * y[:, k, 0], 0.5 * y[:, last[v], 0]
        return y, z

    refused(r"to_primal\(to_dual\(x\)\) is not x: to_dual must give each copy", to_dual=undivided)
    refused("to_primal is not the adjoint of to_dual", to_dual=unequal)
    refused("to_primal must return a tuple of tensors of shapes", to_primal=lambda copies: copies)
    refused("min_oracle must return a tuple of tensors of shapes", min_oracle=lambda cost: swapped(qpbo.min_oracle(cost)))
    refused(
        "min_oracle of solve_raw returned a value that is not the cost",
        min_oracle=lambda cost: (qpbo.min_oracle(cost), torch.full((3,), 7.0)),
    )
    refused("value as a tensor", min_oracle=lambda cost: (qpbo.min_oracle(cost), 7.0))
    refused("NaN", min_oracle=lambda cost: tuple(math.nan * t for t in qpbo.min_oracle(cost)))
    refused("to_dual.* holds float", to_dual=lambda x: 1.0)
    refused("each needs the batch 3 first", to_dual=lambda x: (x[0][:1], x[1]))
    refused("same leading batch", ShapeError, c=(qpbo.a, qpbo.p[:2]))
    refused("c holds float", ShapeError, c=(qpbo.a, 1.0))
    refused("c holds NaN", NonFiniteError, c=(qpbo.a, qpbo.p * math.nan))
    refused("must be finite", NonFiniteError, upper=math.inf)
    refused("above that of upper", ModelError, lower=2.0)
    refused("lower does not broadcast", ShapeError, lower=(torch.zeros(4), 0.0))
    refused("upper must have the structure of c", ShapeError, upper=[1.0, 1.0])
    refused("passes is 0", OptionError, passes=0)
    refused("unknown options 'pases'; there are tol", OptionError, pases=3)


def test_structures() -> None:
    like = {"a": torch.zeros(2, 3), "b": [torch.zeros(2), (torch.zeros(2, 1, 2),)]}
    rows = torch.arange(12.0, dtype=torch.float64).reshape(2, 6)
    made = unpack(rows, like)
    assert same_form(made, like) and torch.equal(pack(made), rows)
    assert not same_form(made, {"b": made["b"], "a": made["a"]})
    assert not same_form(made, {"a": made["a"], "b": tuple(made["b"])})
    assert same_form(bounded(like, {"a": 1.0, "b": 2}, "lower"), like)
    with pytest.raises(ShapeError, match="structure of c"):
        bounded(like, {"a": 1.0}, "lower")

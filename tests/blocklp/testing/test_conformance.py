"""The conformance exam fails types that are wrong in one way each."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from blocklp.blocks.contract import BlockType, Constraints
from blocklp.blocks.finite import FiniteVertices
from blocklp.errors import OracleError
from blocklp.oracles import Edge, Knapsack, Simplex
from blocklp.testing.conformance import BlockTypeConformance

Answer = tuple[Tensor, Tensor]


class Printed(BlockType):
    """An edge by the rule printed in the thesis: y by its own sign, then z."""

    dim = 3
    constraints = Edge.constraints

    def vertex_table(self) -> Tensor:
        return Edge().table

    def min_oracle(self, cost: Tensor) -> Answer:
        y = (cost[..., :2] < 0).to(cost)
        z = y[..., :1] * y[..., 1:]
        point = torch.cat([y, z], -1)
        return point, (cost * point).sum(-1)


class Asking(BlockType):
    """A type that asks a simplex, and states what one states of itself."""

    def __init__(self, size: int) -> None:
        self.simplex, self.dim = Simplex(size), size

    def constraints(self) -> Constraints:
        return self.simplex.constraints()

    def value_error(self, cost: Tensor) -> Tensor:
        return self.simplex.value_error(cost)


class InPlace(Asking):
    def min_oracle(self, cost: Tensor) -> Answer:
        cost += 0.0
        answer = self.simplex.min_oracle(cost)
        cost -= 1.0
        return answer


class Unsteady(Asking):
    """Ties at random."""

    def min_oracle(self, cost: Tensor) -> Answer:
        point, value = self.simplex.min_oracle(cost)
        ties = (cost == value[..., None]).to(cost)
        best = (ties * torch.rand(cost.shape)).argmax(-1, keepdim=True)
        return torch.zeros_like(point).scatter_(-1, best, 1.0), value


class Mixed(Asking):
    """Every block answers for the mean of all blocks."""

    def min_oracle(self, cost: Tensor) -> Answer:
        point, _ = self.simplex.min_oracle(cost.mean(1, keepdim=True).expand_as(cost))
        return point, (cost * point).sum(-1)


class Positions(BlockType):
    """Data by block that is not listed as block data."""

    dim = 2

    def __init__(self) -> None:
        self.upper = torch.tensor([[[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]]).double()

    def min_oracle(self, cost: Tensor) -> Answer:
        point = torch.where(cost < 0, self.upper[:, : cost.shape[1]].to(cost), 0.0)
        return point, (cost * point).sum(-1)


class Storage(Asking):
    """Reads the storage of the cost."""

    def min_oracle(self, cost: Tensor) -> Answer:
        storage = torch.as_strided(cost, cost.shape, (cost.shape[1] * cost.shape[2], cost.shape[2], 1))
        return self.simplex.min_oracle(storage)


class Widening(Asking):
    def min_oracle(self, cost: Tensor) -> Answer:
        point, value = self.simplex.min_oracle(cost)
        return point.double(), value.double()


class Cancelling(Asking):
    """Loses digits to a large constant."""

    def min_oracle(self, cost: Tensor) -> Answer:
        point, value = self.simplex.min_oracle(cost)
        return point, (value + 1e5) - 1e5


class Clipped(Asking):
    def min_oracle(self, cost: Tensor) -> Answer:
        clipped = cost.clamp(min=-0.5)
        point, _ = self.simplex.min_oracle(clipped)
        return point, (cost * point).sum(-1)


class WrongRows(Simplex):
    """Constraints of a larger polytope."""

    def constraints(self) -> Constraints:
        rows = super().constraints()
        return replace(rows, lower=torch.where(rows.lower == 1, -0.5, rows.lower))


class Optimistic(Knapsack):
    def value_error(self, cost: Tensor) -> Tensor:
        return torch.zeros_like(cost[..., 0])


class Forgetful(Simplex):
    """Ignores lower bounds."""

    def restrict(self, lower: Tensor, upper: Tensor) -> Simplex | None:
        return super().restrict(torch.zeros_like(lower), upper)


class Doubled(Simplex):
    """Min-marginals of twice the cost."""

    def min_marginals(self, cost: Tensor) -> Tensor:
        return super().min_marginals(2 * cost)


class Greedy(Simplex):
    """Gives everything away at once."""

    def overlap(self, shared: Tensor) -> int:
        return 1


class Short(Simplex):
    """Leaves a vertex out of its table."""

    def vertex_table(self) -> Tensor:
        return torch.eye(3, dtype=torch.float64)[:2]


class Hard(Simplex):
    """The point of the oracle for a gradient."""

    def soft_min(self, cost: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.min_oracle(cost)[0], *super().soft_min(cost, temperature)[1:]


class Late(BlockType):
    """Data of instances that is not selected."""

    dim = 2

    def __init__(self) -> None:
        self.sign = torch.tensor([[[1.0]], [[2.0]]]).double()

    def min_oracle(self, cost: Tensor) -> Answer:
        point = torch.where(cost < 0, self.sign[: len(cost)].to(cost), 0.0)
        return point, (cost * point).sum(-1)


class Rooted(Asking):
    """A tensor made on the CPU, whatever the cost lies on."""

    def min_oracle(self, cost: Tensor) -> Answer:
        point, value = self.simplex.min_oracle(cost)
        return point * torch.ones(self.dim, dtype=cost.dtype), value


class Returning(Asking):
    """An answer on the CPU."""

    def min_oracle(self, cost: Tensor) -> Answer:
        point, value = self.simplex.min_oracle(cost.cpu())
        return point.to(cost.device), value


class Numpy(Asking):
    """A cost that is handed to numpy."""

    def min_oracle(self, cost: Tensor) -> Answer:
        return self.simplex.min_oracle(torch.from_numpy(cost.numpy()).to(cost.device))


WRONG: list[tuple[Callable[[], BlockType], str, str]] = [
    (Printed, "test_optimality", "one of min_oracle"),
    (Printed, "test_vertices", "best vertex"),
    (Printed, "test_concavity", "cheaper at another cost"),
    (lambda: InPlace(3), "test_answers", "in place"),
    (lambda: Unsteady(3), "test_zero_cost", "two answers"),
    (lambda: Mixed(3), "test_batch_equals_singles", "keep blocks and instances apart"),
    (Positions, "test_order_of_blocks", "order of the blocks"),
    (lambda: Storage(3), "test_strided_costs", "strided"),
    (lambda: Widening(3), "test_precision", "turns float32 into"),
    (lambda: Cancelling(3), "test_precision", "loses its value in float32"),
    (lambda: Cancelling(3), "test_value_error", "off its exact minimum"),
    (lambda: Clipped(3), "test_homogeneity", "scaled"),
    (lambda: WrongRows(3), "test_optimality", "an LP over its constraints"),
    (lambda: Optimistic([0.3, 0.7, 1.1], 0.9), "test_value_error", "charge every rounding"),
    (lambda: Forgetful(3), "test_restrict", "restricted to"),
    (lambda: Doubled(3), "test_min_marginals", "not its best value with 1"),
    (lambda: Greedy(3), "test_min_marginals", "larger overlap"),
    (lambda: Short(3), "test_vertex_table", "best vertex of its table"),
    (lambda: Hard(3), "test_soft_min", "not the gradient"),
    (Late, "test_selected_instances", "block_data"),
]


@pytest.mark.parametrize(("build", "test", "message"), WRONG)
def test_wrong_types_fail(build: Callable[[], BlockType], test: str, message: str) -> None:
    class Exam(BlockTypeConformance):
        def block_type(self) -> BlockType:
            return build()

    with pytest.raises(OracleError, match=message):
        getattr(Exam(), test)()


@pytest.mark.parametrize(
    ("kind", "message"), [(Rooted, "does not run on"), (Returning, "answers on cpu"), (Numpy, "does not run on")]
)
def test_types_that_stay_on_the_cpu_fail(kind: Callable[[int], BlockType], message: str, device: torch.device) -> None:
    if device.type == "cpu":
        pytest.skip("nothing that stays on the CPU fails there")

    class Exam(BlockTypeConformance):
        def block_type(self) -> BlockType:
            return kind(3)

    Exam().test_device()  # no device is asked for
    Exam.device = device
    with pytest.raises(OracleError, match=message):
        Exam().test_device()


def test_types_with_the_oracle_alone_pass() -> None:
    class Bare(BlockType):
        def min_oracle(self, cost: Tensor) -> Answer:
            point = (cost < 0).to(cost)
            return point, (cost * point).sum(-1)

    class Exam(BlockTypeConformance):
        dim = 3

        def block_type(self) -> BlockType:
            return Bare()

    exam = Exam()
    questions = [name for name in dir(exam) if name.startswith("test_")]
    assert len(questions) > 5
    for name in questions:
        getattr(exam, name)()


def test_large_tables_state_no_constraints() -> None:
    table = torch.eye(12)
    assert FiniteVertices(table).constraints() is None
    assert FiniteVertices(table[:9]).constraints() is not None


def test_facets_are_computed_once_per_table() -> None:
    rows = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.5]]
    assert FiniteVertices(rows).constraints() is FiniteVertices(rows).constraints()


def test_vertices_satisfy_their_own_facets_in_any_unit() -> None:
    """Relative to sides that are zero too: a triangle at the origin, small integers, any size and place."""
    draw = np.random.default_rng(0)
    tables = [np.array([[0.0, 0], [1, 0], [0, 1]]), np.array([[0.0], [3]]), np.array([[0.0, 0, 0], [1, 0, 1], [0, 1, 1]])]
    tables += [np.unique(draw.integers(-2, 3, (8, int(draw.integers(1, 5)))).astype(float), axis=0) for _ in range(40)]
    for table in tables:
        for unit in (1e-6, 1.0, 1e6):
            stated = FiniteVertices(unit * table).constraints()
            assert stated is not None
            point = torch.from_numpy(unit * table)[None]
            worst = stated.relative_violation(point, torch.full_like(point, float(point.abs().max())))
            assert float(worst.max()) <= 1e-12, (table, unit)
            away = point - point.mean(1, keepdim=True)
            outside = (point + away)[:, away.norm(dim=2).argmax()][:, None]  # of the vertex that is farthest from the mean
            apart = stated.relative_violation(outside, torch.full_like(outside, float(outside.abs().max())))
            assert float(apart) > 0.01

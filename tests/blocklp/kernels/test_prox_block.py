"""Proximal points of one block, which numba compiles: those of the tensor operations, for our types and for a user's."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp.errors import ModelError, OracleError
from blocklp.general_solvers.solvers import reference
from blocklp.kernels import block_source
from blocklp.kernels.block_source import module_of
from blocklp.kernels.numba_instances import Loops
from blocklp.kernels.plan import Plan
from blocklp.oracles import AtMostOne, Knapsack, Simplex
from blocklp.testing.probes import proximal


class Ball(bl.BlockType):
    """Where the L1 norm is at most a radius: as a user writes it, with a proximal point of tensors and one of a block."""

    dim = 3
    block_data = ("radius",)

    def __init__(self, radius: Tensor) -> None:
        self.radius = radius.double()  # (1, blocks)

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        best, at = cost.abs().max(-1, keepdim=True)
        point = torch.zeros_like(cost).scatter_(-1, at, -self.radius.to(cost)[..., None] * cost.gather(-1, at).sign())
        return point, -self.radius.to(cost) * best[..., 0]

    def prox(self, cost: Tensor, centre: Tensor, step: Tensor, shared: Tensor) -> Tensor | None:
        if not bool(shared.all()):
            return None
        y = centre - step * cost
        sizes, many = y.abs().sort(-1, descending=True).values, torch.arange(1, y.shape[-1] + 1)
        level = ((sizes.cumsum(-1) - self.radius.to(y)[..., None]) / many).amax(-1, keepdim=True).clamp(min=0)
        return y.sign() * (y.abs() - level).clamp(min=0)

    @staticmethod
    def prox_block(cost: Any, centre: Any, step: float, point: Any, radius: Any) -> None:
        """Raise a threshold."""
        level, last = 0.0, np.inf
        for i in range(len(point)):
            point[i] = centre[i] - step * cost[i]
        while level != last:
            above, count, last = 0.0, 0, level
            for i in range(len(point)):
                if abs(point[i]) > level:
                    above, count = above + abs(point[i]), count + 1
            if count > 0:
                level = max(level, (above - radius) / count)
        for i in range(len(point)):
            point[i] = math.copysign(max(abs(point[i]) - level, 0.0), point[i])

    def constraints(self) -> bl.Constraints:
        signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 3)
        most = self.radius[..., None].expand(*self.radius.shape, 8)
        return bl.Constraints(signs[None, None], torch.full_like(most, -torch.inf), most)


def model(kind: str, batch: int, seed: int) -> bl.Model:
    """Blocks of a kind that share all of their variables, more than a tile of them."""
    draw = np.random.default_rng(seed)
    n, blocks, dim = 150, 300, {"ball": 3}.get(kind, 4)
    m = bl.Model(batch)
    x = m.variable("x", n, lower=-1 if kind == "ball" else 0, upper=1)
    scope = np.stack([draw.choice(n, dim, replace=False) for _ in range(blocks)])
    scope[: n // dim] = draw.permutation(n)[: n // dim * dim].reshape(-1, dim)
    weight, room = draw.normal(size=(batch, blocks, dim)), draw.uniform(0.2, 1.0, (batch, blocks))
    types: dict[str, Callable[[], bl.BlockType]] = {
        "simplex": lambda: Simplex(dim, 1 + draw.random(1)),
        "at most one": lambda: AtMostOne(dim),
        "knapsack": lambda: Knapsack(np.abs(weight), room),
        "two-sided knapsack": lambda: Knapsack(weight, room, least=-room),
        "ball": lambda: Ball(torch.from_numpy(0.3 + draw.random((1, blocks)))),
    }
    m.add(types[kind](), x[scope[: n // dim] if kind == "simplex" else scope])
    if kind == "simplex":
        m.add(AtMostOne(2), x[draw.permutation(n).reshape(-1, 2)])
    m.minimize((torch.from_numpy(draw.normal(size=(batch, n))) * x).sum())
    return m


KINDS = ["simplex", "at most one", "knapsack", "two-sided knapsack", "ball"]


@pytest.mark.parametrize(("kind", "dtype"), [*((kind, torch.float64) for kind in KINDS), ("ball", torch.float32)])
def test_loops_pass_as_tensor_operations_do(kind: str, dtype: torch.dtype, use_backend: Callable[[str], None]) -> None:
    """Thirty passes with anchors and restarts among them; bounds hold, and those of loops close in on the optimum."""
    m, found = model(kind, 2, 0), []
    truth = reference(m).objective
    for backend in ("torch", "numba"):
        use_backend(backend)
        short = m.compile(dtype=dtype).solve(method="admm", tol=0, passes=30, check_every=30, project=False)
        found.append(short.bound)
    long = m.compile(dtype=dtype).solve(method="admm", tol=1e-6, passes=3000)
    scale = truth.abs().clamp(min=1)
    assert all(bool((bound <= truth + 1e-9 * scale).all()) for bound in (long.bound, *found))
    assert bool((truth - long.bound <= 1e-3 * scale).all())
    torch.testing.assert_close(found[1], found[0], rtol=1e-3 if dtype == torch.float32 else 1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_the_backend_serves_them(kind: str, use_backend: Callable[[str], None]) -> None:
    use_backend("numba")
    problem = model(kind, 1, 1).compile().decomposition()
    loops = Plan(problem).settled(torch.float64, 1).laid_out(whole=True).tables
    assert isinstance(loops, Loops)
    assert [run is not None for run in loops.passes] == [bool(group.coupled.all()) for group in problem.groups]


def test_an_instance_has_the_same_bits_in_a_batch_and_for_any_threads(use_backend: Callable[[str], None]) -> None:
    use_backend("numba")
    models, threads = [model("knapsack", 1, seed) for seed in range(4)], torch.get_num_threads()
    try:
        together = bl.compile(models).solve(method="admm", tol=1e-7, passes=200)
        torch.set_num_threads(3)
        again = bl.compile(models).solve(method="admm", tol=1e-7, passes=200)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(together.bound, again.bound) and torch.equal(together.raw_x, again.raw_x)
    for k, m in enumerate(models):
        alone = m.solve(method="admm", tol=1e-7, passes=200)
        assert alone.passes[0] == together.passes[k] and torch.equal(alone.raw_x[0], together.raw_x[k, : m.size])


def test_an_edited_function_is_another_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And so is one of block data that are None; what is the same is written once."""
    monkeypatch.setenv("BLOCKLP_CACHE_DIR", str(tmp_path))

    class Other(Simplex):
        @staticmethod
        def prox_block(cost: Any, centre: Any, step: float, point: Any, mass: Any) -> None:
            point[:] = 1.0 / len(point)

    names = [module_of(kind, 4) for kind in (Other(4), Other(4), Other(4, 2.0))]
    assert names[0] == names[1] != names[2]
    assert sorted(p.name for p in tmp_path.glob("*.py")) == sorted(f"{n.rpartition('.')[2]}.py" for n in names[1:] if n)

    def parsed(*given: object) -> str:
        raise AssertionError("what is there is not written again, which takes a tenth of a second")

    block_source._written.cache_clear()  # as another process finds it
    monkeypatch.setattr(block_source, "_text", parsed)
    assert module_of(Other(4), 4) == names[0]


def test_a_wrong_function_is_found() -> None:
    class Wrong(Simplex):
        @staticmethod
        def prox_block(cost: Any, centre: Any, step: float, point: Any) -> None:
            point[:] = 1.0 / len(point)

    class Alone(bl.FiniteVertices):
        @staticmethod
        def prox_block(cost: Any, centre: Any, step: float, point: Any) -> None:
            point[:] = 0.0

    cost, centre = torch.randn(2, 1, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    step = torch.ones(1, 1, 1, dtype=torch.float64)
    with pytest.raises(OracleError, match="another proximal point in prox_block"):
        proximal(Wrong(2), cost, centre, step)
    with pytest.raises(OracleError, match="no prox\\(\\), which it stands for"):
        proximal(Alone([[0, 0], [1, 0]]), cost, centre, step)
    proximal(Simplex(2), cost, centre, step)


def test_a_parameter_that_is_no_block_data_is_refused(use_backend: Callable[[str], None]) -> None:
    use_backend("numba")

    class Reads(bl.Box):
        @staticmethod
        def prox_block(cost, centre, step, point, limit):  # type: ignore[no-untyped-def]
            point[:] = limit

    m = bl.Model()
    x = m.variable("x", (2, 2), lower=0, upper=1)
    m.add(Reads(np.zeros(2), np.ones(2)), x)
    m.add(AtMostOne(2), x.T)
    m.minimize(x.sum())
    with pytest.raises(ModelError, match="Reads: its functions of one block have parameters limit"):
        m.solve(method="admm")

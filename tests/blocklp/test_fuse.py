"""What users write as tensor operations runs compiled where that pays, with the same numbers, and as written everywhere else."""

from __future__ import annotations

import logging
import shutil

import numpy as np
import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp import atoms, fuse, sweeps
from blocklp.methods.admm import Admm
from blocklp.oracles import AtMostOne
from blocklp.plan import Plan
from blocklp.reference import reference

# What torch warns of while it compiles is not ours.
pytestmark = pytest.mark.filterwarnings("ignore")
compiler = pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler")


class Chain(bl.BlockType):
    """x1 <= x2 <= x3 in [0, 1], or the other way round."""

    dim = 3
    block_data = ("sign",)

    def __init__(self, sign: Tensor) -> None:
        self.sign = sign  # (batch or 1, blocks): 1, or -1 where the chain falls

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        rises = self.sign[..., None] > 0
        first, second, third = torch.where(rises, cost, cost.flip(-1)).unbind(-1)
        sums = (torch.zeros_like(first), third, third + second, third + second + first)
        best = torch.minimum(torch.minimum(sums[0], sums[1]), torch.minimum(sums[2], sums[3]))
        ones = torch.where(sums[0] == best, 0, torch.where(sums[1] == best, 1, torch.where(sums[2] == best, 2, 3)))
        point = torch.stack([(ones >= 3 - k).to(cost) for k in range(3)], -1)
        return torch.where(rises, point, point.flip(-1)), best

    def constraints(self) -> bl.Constraints:
        rows = torch.tensor([[-1.0, 1, 0], [0, -1, 1]]).double() * self.sign.double()[..., None, None]
        unit = torch.eye(3, dtype=torch.float64).expand(*rows.shape[:2], 3, 3)
        lower = torch.zeros(*rows.shape[:2], 5, dtype=torch.float64)
        upper = torch.tensor([torch.inf, torch.inf, 1, 1, 1], dtype=torch.float64).expand_as(lower)
        return bl.Constraints(torch.cat([rows, unit], 2), lower, upper)


class Interval(bl.BlockType):
    """A box, with a proximal point."""

    dim = 2

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        point = (cost < 0).to(cost)
        return point, (cost * point).sum(-1)

    def prox(self, cost: Tensor, centre: Tensor, step: Tensor, shared: Tensor) -> Tensor:
        return torch.where(shared > 0, centre - step * cost, (cost < 0).to(cost)).clamp(0, 1)


class Stubborn(Interval):
    """Python that depends on the data."""

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        point = torch.zeros_like(cost)
        for k in range(2):
            if bool((cost[..., k] < 0).any()):
                point[..., k] = (cost[..., k] < 0).to(cost)
        return point, (cost * point).sum(-1)


class Other(Interval):
    """An exponential, which a compiler rounds in its own way."""

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        point, value = Interval.min_oracle(self, cost)
        return point, value + 1e-9 * (cost.exp().log() - cost).sum(-1)


def model(batch: int = 1, seed: int = 0, blocks: int = 300, n: int = 120) -> bl.Model:
    draw = np.random.default_rng(seed)
    m = bl.Model(batch)
    x = m.variable("x", n, lower=0, upper=1)
    sign = torch.from_numpy(draw.choice([-1.0, 1.0], (1, blocks)))
    m.add(Chain(sign), x[np.stack([draw.choice(n, 3, replace=False) for _ in range(blocks)])])
    m.minimize(draw.standard_normal((batch, n)) @ x if batch > 1 else draw.standard_normal(n) @ x)
    return m


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops and compilers whatever the size."""
    monkeypatch.setattr(sweeps, "LARGE", 0)
    monkeypatch.setattr(fuse, "WORTH", 0)
    monkeypatch.setattr(fuse, "_known", {})
    monkeypatch.setattr(fuse, "_said", [])


def known(name: str) -> fuse.Fused:
    return next(f for f in fuse._known.values() if f.name == name)


@compiler
@pytest.mark.usefixtures("early")
def test_compiled_verbs_give_the_same_bits_and_shapes_do_not_compile_again(caplog: pytest.LogCaptureFixture) -> None:
    draw = torch.Generator().manual_seed(0)
    with caplog.at_level(logging.INFO, logger="blocklp"), torch.no_grad():
        for dtype in (torch.float32, torch.float64):
            for batch, blocks in ((7, 50), (6, 50), (3, 50), (2, 50), (5, 41), (4, 77)):
                kind = Chain(torch.randn(batch, blocks, generator=draw, dtype=torch.float64).sign().to(dtype))
                cost = torch.randn(batch, 3, blocks, generator=draw, dtype=torch.float64).to(dtype).transpose(1, 2)
                found, same = fuse.compiled(kind.min_oracle, 10)(cost), kind.min_oracle(cost)
                assert torch.equal(found[0], same[0]) and torch.equal(found[1], same[1])
    assert known("Chain.min_oracle").run is not None and known("Chain.min_oracle").graphs == 2
    assert [r.getMessage().split(" in ")[0] for r in caplog.records] == ["compiled Chain.min_oracle"] * 2


@compiler
@pytest.mark.usefixtures("early")
def test_a_proximal_point_gives_the_same_bits() -> None:
    cost, centre = torch.randn(2, 3, 40, 2, generator=torch.Generator().manual_seed(0))
    arguments = (cost, centre, torch.full((3, 1, 1), 0.3), torch.tensor([1.0, 0.0], dtype=torch.float64))
    with torch.no_grad():
        found = fuse.compiled(Interval().prox, 10)(*arguments)
    assert torch.equal(found, Interval().prox(*arguments)) and known("Interval.prox").graphs == 1


@pytest.mark.usefixtures("early")
@pytest.mark.parametrize("kind", [Stubborn(), Other()])
def test_what_cannot_be_compiled_runs_as_written_and_says_so_once(kind: bl.BlockType, caplog: pytest.LogCaptureFixture) -> None:
    cost = torch.randn(2, 500, 2, generator=torch.Generator().manual_seed(0))
    with caplog.at_level(logging.WARNING, logger="blocklp"), torch.no_grad():
        for _ in range(3):
            found, same = fuse.compiled(kind.min_oracle, 10)(cost), kind.min_oracle(cost)
            assert torch.equal(found[0], same[0]) and torch.equal(found[1], same[1])
    assert len(caplog.records) == 1 and caplog.records[0].getMessage().startswith(f"{type(kind).__name__}.min_oracle ")


@pytest.mark.usefixtures("early")
def test_without_a_compiler_the_solution_is_the_same(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler")

    pytest.importorskip("numba")
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", fail)
    with caplog.at_level(logging.WARNING, logger="blocklp"):
        broken = [model().solve(passes=30, tol=1e-9) for _ in range(2)]
    assert [r.getMessage().split(" cannot")[0] for r in caplog.records] == ["Chain.min_oracle"]
    monkeypatch.setattr(fuse, "WORTH", 1e30)
    plain = model().solve(passes=30, tol=1e-9)
    for solution in broken:
        assert torch.equal(solution.bound, plain.bound) and torch.equal(solution.raw_x, plain.raw_x)


@pytest.mark.usefixtures("early")
def test_errors_of_an_oracle_are_its_own() -> None:
    class Wrong(Interval):
        def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
            raise ArithmeticError("wrong")

    with pytest.raises(ArithmeticError, match="wrong"):
        fuse.compiled(Wrong().min_oracle, 10)(torch.zeros(1, 2, 2))


def test_small_problems_and_types_of_the_package_do_not_compile() -> None:
    for verb, spent in ((Interval().prox, 1000), (AtMostOne(3).prox, 10**12)):
        assert fuse.compiled(verb, spent) is verb


@compiler
@pytest.mark.usefixtures("early")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bounds_hold_and_instances_leave(dtype: torch.dtype) -> None:
    pytest.importorskip("numba")
    whole = model(batch=4, blocks=70)
    tol = torch.tensor([1e-1, 1e-2, 1e-3, 1e-4])
    solution, truth = whole.solve(dtype=dtype, tol=tol, passes=600, method="admm"), reference(whole)
    assert known("Chain.min_oracle").run is not None and known("Chain.min_oracle").graphs <= 2
    for i in range(4):
        optimum = float(truth.objective[i])
        assert optimum < -1
        assert optimum - 2e-2 * abs(optimum) <= float(solution.bound[i]) <= optimum + 1e-8 * max(1.0, abs(optimum))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [1, 3])
def test_loops_keep_answers_as_tensor_operations_do(batch: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    problem = model(batch).compile().decomposition().to(dtype)
    monkeypatch.setattr(sweeps, "LARGE", 10**9)
    state = Admm().start(Plan(problem), problem.to_dual(problem.cost), None)
    for _ in range(4):
        state = Admm().step(Plan(problem), state)
    group, cache = problem.groups[0], state.atoms[0]
    assert isinstance(cache, atoms.VertexCache)
    draw = torch.Generator().manual_seed(0)
    noise = torch.rand(state.weights[0].shape, generator=draw, dtype=torch.float64).to(dtype)  # so that no two atoms tie
    weights = (state.weights[0] + 0.3 * noise) / (state.weights[0] + 0.3 * noise).sum(1, keepdim=True)
    points, slopes = torch.empty_like(state.points), state.duals + torch.randn(state.duals.shape, generator=draw).to(dtype)
    answer = cache.answer(group, slopes, weights, weights)
    expected = atoms.pairwise_steps(answer.atoms, answer.weights, answer.values, state.eta, 1)
    assert isinstance(answer.atoms, atoms.VertexCache)
    monkeypatch.setattr(sweeps, "LARGE", 0)
    own = cache.points.clone(memory_format=torch.contiguous_format)
    sweeps.renew(problem, group, atoms.VertexCache(own, cache.curved), weights, (points, slopes, state.eta), 1, 5)
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-11, "atol": 1e-11}
    assert float((answer.atoms.points != cache.points).any(1).any(1).double().mean()) > 0.1  # answers that were new
    torch.testing.assert_close(own, answer.atoms.points, **close)
    torch.testing.assert_close(weights, expected, **close)
    torch.testing.assert_close(group.rows(points), answer.atoms.combine(expected), **close)


def test_nothing_depends_on_threads_or_on_other_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.setattr(sweeps, "LARGE", 0)
    solver, threads = model(3).compile(), torch.get_num_threads()
    found = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(solver.solve(passes=60, tol=1e-12, method="admm"))
    finally:
        torch.set_num_threads(threads)
    alone = solver.solve(passes=60, tol=torch.tensor([1e30, 1e-12, 1e30]), method="admm")  # the others leave at once
    assert torch.equal(found[0].bound, found[1].bound) and torch.equal(found[0].bound[1:2], alone.bound[1:2])

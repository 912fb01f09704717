"""Instances of a batch that share other coordinates than their neighbours: each is solved as it would be alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp.general_solvers.solvers import reference
from blocklp.oracles import Edge

STAR = [(0, k) for k in range(1, 8)]
RING = [(k, (k + 1) % 7) for k in range(7)]
MATCHING = [(2 * k, 2 * k + 1) for k in range(7)]
"""Edges of which one, both, or no end is in other edges too."""

SHAPES = [STAR, RING, MATCHING, STAR[:5], [*RING, (0, 2), (1, 4)]]
PADDED = {"admm", "pdhg", "min-marginals"}
"""Methods that padding changes nothing for; others get graphs of seven edges."""

TOLERANCES = [1e-5, 1e-3, 1e-4, 1e-6, 1e-5]


def graph(edges: list[tuple[int, int]], seed: int) -> bl.Model:
    draw, pairs = np.random.default_rng(seed), np.array(edges)
    m = bl.Model()
    y = m.variable("y", int(pairs.max()) + 1, lower=0, upper=1, grid=0.5)
    z = m.variable("z", len(pairs), lower=0, upper=1)
    m.add(Edge(), [y[pairs[:, 0]], y[pairs[:, 1]], z])
    m.minimize(draw.normal(size=y.shape[0]) @ y + draw.normal(size=len(pairs)) @ z)
    return m


def models(padded: bool = True) -> list[bl.Model]:
    return [graph(edges, seed) for seed, edges in enumerate(SHAPES if padded else [STAR, RING, MATCHING, STAR, RING])]


METHODS = ["admm", "pdhg", "prox", "smooth", "bundle", "min-marginals"]
COMPILED = (), pytest.mark.slow
WAYS = [
    *((method, dtype, "torch") for method in METHODS for dtype in (torch.float64, torch.float32)),
    # Compiling the loops of a method takes half a minute.
    *(pytest.param(method, torch.float64, "numba", marks=COMPILED[method in ("admm", "pdhg")]) for method in METHODS),
    pytest.param("admm", torch.float32, "numba", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("method", "dtype", "backend"), WAYS)
def test_stars_beside_other_graphs(method: str, dtype: torch.dtype, backend: str, use_backend: Callable[[str], None]) -> None:
    """Points, passes and status bit for bit, cold and warm; the events tell the same."""
    use_backend(backend)
    several, seen = models(method in PADDED), []
    solver = bl.compile(several, dtype=dtype)
    together = solver.solve(method=method, tol=torch.tensor(TOLERANCES), passes=60, history=True, callback=seen.append)
    again = solver.solve(method=method, tol=1e-6, passes=60, warm_start=together.state)
    for i, (m, tol) in enumerate(zip(several, TOLERANCES, strict=True)):
        alone = m.solve(method=method, tol=tol, passes=60, dtype=dtype)
        warm = m.solve(method=method, tol=1e-6, passes=60, dtype=dtype, warm_start=together.instance(i).state)
        for one, all_of_them in ((alone, together), (warm, again)):
            assert one.passes[0] == all_of_them.passes[i] and one.status[0] == all_of_them.status[i]
            assert torch.equal(one.raw_x[0], all_of_them.raw_x[i, : m.size])
            assert one.bound.item() == pytest.approx(all_of_them.bound[i].item(), rel=1e-12)
            assert one.bound.item() <= reference(m).objective.item() + 1e-9
    assert all(torch.equal(a.bound, b.bound) and torch.equal(a.status, b.status) for a, b in zip(seen, together.history, strict=True))
    assert seen[-1].status.tolist() == list(map(int, together.status))
    assert torch.allclose(seen[-1].bound, together.bound, rtol=1e-3)  # those of other graphs are farther off


def test_a_callback_stops_the_instances_that_it_names() -> None:
    named = torch.tensor([False, True, False, True, False])
    found = bl.compile(models()).solve(tol=0, passes=40, callback=lambda event: named if event.passes > 15 else None)
    assert [status == bl.Status.INTERRUPTED for status in found.status] == named.tolist()
    every = bl.compile(models()).solve(tol=0, passes=40, callback=lambda event: event.passes > 15)
    assert set(every.status) == {bl.Status.INTERRUPTED}


def test_repair_hooks_get_their_own_instances() -> None:
    several, asked = models(), {}

    def hook(i: int, x: dict[str, Tensor]) -> dict[str, Tensor]:
        asked.setdefault(i, []).append(x["y"].shape)
        ends, pairs = x["y"].round(), np.array(SHAPES[i])
        return {"y": ends, "z": ends[:, pairs[:, 0]] * ends[:, pairs[:, 1]]}

    for i, m in enumerate(several):
        m.repair_with(lambda x, i=i: hook(i, x))
    found = bl.compile(several).solve(tol=0, passes=30)
    assert {i: set(shapes) for i, shapes in asked.items()} == {i: {(1, m.variables["y"].shape[0])} for i, m in enumerate(several)}
    for i, m in enumerate(several):
        ends, pairs = found.raw_x[i, : m.variables["y"].shape[0]], np.array(SHAPES[i])
        assert set(ends.tolist()) <= {0.0, 1.0}
        products = ends[pairs[:, 0]] * ends[pairs[:, 1]]
        assert torch.equal(found.raw_x[i, len(ends) : m.size], products)
        assert found.bound[i].item() <= reference(m).objective.item() + 1e-9 <= found.primal[i].item() + 2e-9


def test_cutoffs_are_those_of_their_instances() -> None:
    truth = torch.cat([reference(m).objective for m in models()])
    cutoff = truth + torch.tensor([1.0, -0.5, 1.0, -0.5, 1.0])
    found = bl.compile(models()).solve(tol=0, passes=200, cutoff=cutoff)
    assert [status == bl.Status.CUTOFF for status in found.status] == [False, True, False, True, False]

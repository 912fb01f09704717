"""Everything that runs on a device gives there what it gives on the CPU; on the simulated device where there is no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp.errors import OptionError
from blocklp.methods import METHODS
from blocklp.oracles import AtMostOne, Edge, FourCycle, Knapsack, Polytope, Simplex, Triangle
from blocklp.problems.densecrf import METHODS as CRF_METHODS
from blocklp.problems.densecrf import DenseCRFLayer, image_crf, solve_densecrf
from blocklp.problems.mis import WeightedGraph, solve_mis
from blocklp.problems.mrf import Mrf, solve_mrf
from blocklp.problems.qpbo import Qubo, solve_qpbo
from blocklp.problems.verification import Network, Property, from_torch, network_bounds, verify

from . import simulated_device
from .block_types import Oracle, Table, choices, sharing

CLOSE = {"rtol": 1e-3, "atol": 1e-3}
"""After some dozen passes in another order of sums."""


def qpbo(seed: int, n: int = 12) -> bl.Model:
    draw = np.random.default_rng(seed)
    ends = np.array([(i, j) for i in range(n) for j in range(i) if draw.random() < 0.4])
    m = bl.Model()
    y, z = m.variable("y", n, lower=0, upper=1, grid=0.5), m.variable("z", len(ends), lower=0, upper=1)
    m.add(Edge(), [y[ends[:, 0]], y[ends[:, 1]], z])
    m.minimize(draw.normal(size=n) @ y + draw.normal(size=len(ends)) @ z)
    return m


def polytopes() -> bl.Model:
    draw, m = np.random.default_rng(0), bl.Model(2)
    x = m.variable("x", (4, 3), lower=0, upper=1)
    m.add(Polytope(draw.uniform(0, 1, (4, 2, 3)), [-np.inf, -np.inf], [1.2, 1.3], np.zeros(3), np.ones(3)), x)
    m.add(Simplex(4), x.T)
    m.minimize((draw.normal(size=(2, 4, 3)) * x).sum())
    return m


def clusters() -> bl.Model:
    draw, m = np.random.default_rng(0), bl.Model()
    y, z = m.variable("y", 4, lower=0, upper=1), m.variable("z", 6, lower=0, upper=1)
    ends = np.array([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (1, 3)])
    m.add(Edge(), [y[ends[:, 0]], y[ends[:, 1]], z])
    m.add(Triangle(), [y[[0]], y[[1]], y[[2]], z[[0]], z[[4]], z[[1]]])
    m.add(FourCycle(), [y[[0]], y[[1]], y[[2]], y[[3]], z[[0]], z[[1]], z[[2]], z[[3]]])
    m.minimize(draw.normal(size=4) @ y + draw.normal(size=6) @ z)
    return m


FAMILIES: dict[str, Callable[[], Any]] = {
    "QPBO, ragged": lambda: [qpbo(seed, 8 + 2 * seed) for seed in range(3)],
    "choices and rows": lambda: choices(np.random.default_rng(0), 2),
    "a user's oracle": lambda: sharing(np.random.default_rng(0), Oracle(), Oracle()),
    "a user's table": lambda: sharing(np.random.default_rng(0), Table(), Table()),
    "two types": lambda: sharing(np.random.default_rng(0), AtMostOne(3), Simplex(3)),
    "polytopes": polytopes,
    "clusters": clusters,
}


WAYS = [
    (family, method, dtype)
    for i, family in enumerate(FAMILIES)
    for j, method in enumerate([*METHODS, "auto"])
    for dtype in ([torch.float64, torch.float32] if (i + j) % 3 == 0 else [torch.float64])
]
"""All families by all methods; every family and every method in single precision too, a third of their pairs."""


@pytest.mark.parametrize(("family", "method", "dtype"), WAYS)
def test_methods(family: str, method: str, dtype: torch.dtype, device: torch.device) -> None:
    model, found = FAMILIES[family](), []
    for place in ("cpu", device):
        # Newton steps are made on the host in either case: by the same operations here.
        solver = bl.compile(model, device=place, dtype=dtype, backend="torch" if method == "newton" else "auto")
        try:
            found.append(solver.solve(method=method, passes=12, tol=1e-9))
        except OptionError as error:  # the type lacks what the method needs, wherever it runs
            found.append(str(error))
    here, there = found
    if isinstance(here, str):
        assert here == there
        return
    assert there.bound.device.type == device.type
    assert bool((there.safe_bound <= there.primal + 1e-6).all())
    torch.testing.assert_close(there.bound.cpu(), here.bound, **CLOSE)


def assert_alike(work: Callable[[Any], Tensor], device: torch.device, **close: float) -> None:
    """Compare what some work returns here and there."""
    here, there = work(torch.device("cpu")), work(device)
    assert there.device.type == device.type
    torch.testing.assert_close(there.cpu(), here, **(close or CLOSE))


def test_warm_starts_go_from_device_to_device(device: torch.device) -> None:
    model, places = qpbo(0), (torch.device("cpu"), device)
    states = [model.solve(device=place, passes=20, tol=0).state for place in places]
    truth = bl.reference(model).objective.item()
    for place in places:
        for state in states:
            found = model.solve(device=place, warm_start=state, passes=400, tol=1e-6)
            assert found.bound.item() <= truth + 1e-7 and truth - found.bound.item() <= 1e-3


def test_options_of_a_solve(device: torch.device) -> None:
    """Tighter bounds, cutoffs, callbacks and repair, with tensors from either place."""
    events: list[bl.Event] = []

    def seen(event: bl.Event) -> Tensor:
        events.append(event)
        return torch.zeros(2, dtype=torch.bool)

    def work(place: torch.device) -> Tensor:
        m = bl.Model(2)
        x = m.variable("x", (6, 3), lower=0, upper=1)
        m.add(Simplex(3), x)
        m.add(AtMostOne(6), x.T)
        price = m.parameter("price", (6, 3))
        m.minimize((price * x).sum())
        price.value = torch.linspace(-1, 1, 18, dtype=torch.float64).view(6, 3).sin().to(place)
        m.repair_with(lambda found: {"x": found["x"].round()})
        upper = torch.ones(6, 3, dtype=torch.float64, device=place)
        upper[0, 0] = 0
        return m.solve(
            device=place, bounds={x: (0, upper)}, cutoff=torch.full((2,), 1e9, device=place), callback=seen, passes=60
        ).bound

    assert_alike(work, device)
    assert events


def test_models_are_stated_from_tensors_of_the_device(device: torch.device) -> None:
    def work(place: torch.device) -> Tensor:
        draw = torch.Generator().manual_seed(0)
        cost, size = (torch.rand(2, 6, generator=draw, dtype=torch.float64).to(place) for _ in range(2))
        rows, index = torch.rand(3, 12, generator=draw, dtype=torch.float64).to(place), torch.arange(6, device=place)
        m = bl.Model()
        x = m.variable("x", (2, 6), lower=torch.zeros(6, device=place, dtype=torch.float64), upper=torch.ones(6, device=place))
        m.add(Knapsack(size, size.sum(1) / 2), x)
        m.add(AtMostOne(2), x[:, index].T)
        m.add(rows @ x.reshape(-1) <= torch.full((3,), 3.0, device=place))
        m.maximize((cost * x).sum())
        return m.solve(device=place, passes=300).bound

    assert_alike(work, device)


def test_answers_read_well(device: torch.device, tmp_path: Path) -> None:
    m = choices(np.random.default_rng(0), 2)
    found = m.solve(device=device, tol=1e-3)
    assert "optimal" in str(found) and found._repr_html_()
    rows = m.rows[0]
    assert found[m.variables["x"]].shape == (2, 6, 3)
    assert found.price(rows).shape == found.slack(rows).shape == (2, 4)
    found.save(tmp_path / "saved")


def test_certificates(device: torch.device) -> None:
    model = qpbo(1)
    found = model.solve(device=device, tol=1e-6)
    proved = bl.verify_certificate(model, found.state)
    assert float(proved.bound) == pytest.approx(found.bound.item(), abs=1e-6)


def test_soft_bounds_and_their_gradients(device: torch.device) -> None:
    def work(place: torch.device) -> Tensor:
        m = bl.Model()
        x = m.variable("x", (4, 3), lower=0, upper=1)
        price = m.parameter("price", (4, 3))
        m.add(Simplex(3), x)
        m.add(AtMostOne(4), x.T)
        m.minimize((price * x).sum())
        price.value = np.sin(np.arange(12.0)).reshape(4, 3)
        solver = m.compile(device=place)
        state = solver.solve(passes=400, tol=1e-9, method="pdhg").state
        cost = torch.tensor(np.sin(np.arange(12.0)).reshape(4, 3), device=place, requires_grad=True)
        bl.soft_bound(solver, state, 0.1, {price: cost}).sum().backward()
        assert cost.grad is not None
        return cost.grad

    assert_alike(work, device)


def test_nodes(device: torch.device) -> None:
    def work(place: torch.device) -> Tensor:
        model = qpbo(2)
        search = bl.Nodes(model.compile(device=place), model.variables["y"])
        return search.solve([{0: 0}, {0: 1, 3: 0}, {}]).bound

    assert_alike(work, device, rtol=1e-2, atol=1e-2)


def test_the_thesis_s_three_functions(device: torch.device) -> None:
    """Their tensors lie where the costs do: rows and columns of a matrix, each with one entry of 1."""

    def work(place: torch.device) -> Tensor:
        cost = torch.linspace(-1, 1, 50, dtype=torch.float64).sin().mul(7).cos().view(2, 5, 5).to(place)
        choose = torch.nn.functional.one_hot

        def least(copies: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            rows, columns = copies
            return choose(rows.argmin(2), 5).double(), choose(columns.argmin(1), 5).double().transpose(1, 2)

        found = bl.raw.solve_raw(
            cost, least, lambda x: (x / 2, x / 2), lambda copies: copies[0] + copies[1], lower=0.0, upper=1.0, passes=200
        )
        return found.bound

    assert_alike(work, device)


def labels_of(place: torch.device) -> dict[str, Any]:
    return {"device": place, "tol": 1e-3, "passes": 300}


@pytest.mark.parametrize("tighten", [False, True])
def test_qpbo(tighten: bool, device: torch.device) -> None:
    draw = np.random.default_rng(0)
    ends = np.array([(i, j) for i in range(12) for j in range(i + 1, 12)])
    qubo = Qubo(draw.normal(size=12), ends, draw.normal(size=len(ends)))
    assert_alike(lambda place: solve_qpbo(qubo, tighten=tighten, **labels_of(place)).relaxation.bound, device)


def test_a_type_of_clusters_that_a_model_has_not_yet(device: torch.device) -> None:
    """A sparse graph: the first triangles join blocks of edges alone."""
    qubo = Qubo(-np.ones(5), np.array([(0, 1), (0, 2), (1, 2), (2, 3), (3, 4)]), np.full(5, 1.5))
    assert_alike(lambda place: solve_qpbo(qubo, tighten=True, **labels_of(place)).relaxation.bound, device)


def test_independent_sets(device: torch.device) -> None:
    draw = np.random.default_rng(0)
    ends = np.array([(i, j) for i in range(14) for j in range(i + 1, 14) if draw.random() < 0.4])
    graph = WeightedGraph(np.ones(14), ends)
    assert_alike(lambda place: solve_mis(graph, **labels_of(place)).relaxation.bound, device)


@pytest.mark.parametrize("tighten", [False, True])
def test_fields(tighten: bool, device: torch.device) -> None:
    draw = np.random.default_rng(0)
    ends = np.array([(0, 1), (1, 2), (2, 0), (2, 3)])
    mrf = Mrf.from_arrays(draw.random((4, 3)), ends, draw.random((4, 3, 3)))
    assert_alike(lambda place: torch.as_tensor(solve_mrf(mrf, tighten=tighten, **labels_of(place)).bound).to(place), device)


def network(place: torch.device, inputs: int = 4) -> Network:
    torch.manual_seed(0)
    sizes = [(inputs, 8), (8, 6), (6, 3)]
    first, second, last = (torch.nn.Linear(*size) for size in sizes)
    module = torch.nn.Sequential(first, torch.nn.ReLU(), second, torch.nn.ReLU(), last)
    return from_torch(module.double(), (inputs,)).to(torch.float64, place)


BOUNDS = ["interval", "crown", "slopes", "alpha-crown", "admm", "prox", "exact"]


@pytest.mark.parametrize(("method", "boxed"), [*((m, "there") for m in BOUNDS), *((m, "here") for m in ("crown", "prox", "exact"))])
def test_bounds_of_networks(method: str, boxed: str, device: torch.device) -> None:
    """The box of inputs may lie on either device; bounds lie where the network does."""

    def work(place: torch.device) -> Tensor:
        given = place if boxed == "there" else torch.device("cpu")
        low, high = (
            torch.full((4,), -0.1, dtype=torch.float64, device=given),
            torch.full((4,), 0.3, dtype=torch.float64, device=given),
        )
        found = network_bounds(network(place), low, high, method=method)
        return torch.cat([torch.stack([layer.lower.flatten(), layer.upper.flatten()], 1) for layer in found.layers])

    assert_alike(work, device)


@pytest.mark.parametrize("inputs", [4, 24])
@pytest.mark.parametrize("radius", [0.02, 0.2, 0.5])
def test_verdicts(radius: float, inputs: int, device: torch.device) -> None:
    """Few inputs are split themselves, many have their ReLUs split."""

    def verdict(place: torch.device) -> str:
        centre = torch.full((inputs,), 0.2, dtype=torch.float64)
        label = int(network(torch.device("cpu"), inputs)(centre[None]).argmax())
        prop = Property.robustness(centre - radius, centre + radius, label=label, classes=3)
        return verify(network(place, inputs), prop, timeout=60).status

    assert verdict(device) == verdict(torch.device("cpu"))


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("method", sorted(CRF_METHODS))
def test_dense_crfs(method: str, exact: bool, device: torch.device) -> None:
    """By all pairs of pixels, and by a lattice."""

    def work(place: torch.device) -> Tensor:
        draw = torch.Generator().manual_seed(0)
        size = (6, 7) if exact else (10, 12)
        image = 255 * torch.rand(*size, 3, generator=draw)
        unary = torch.rand(*size, 3, generator=draw, dtype=torch.float64)
        # Pixels lie on the faces of the smoothness lattice, where devices may round apart.
        smooth = (3.0, 3.0) if exact else None
        crf = image_crf(image.to(place), unary.to(place), smooth=smooth, exact=exact)
        found = solve_densecrf(crf, method)
        assert found.labelling.device.type == place.type
        return found.energy

    assert_alike(work, device, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("exact", [True, False])
def test_layers_of_dense_crfs(exact: bool, device: torch.device) -> None:
    def work(place: torch.device) -> Tensor:
        draw = torch.Generator().manual_seed(0)
        images, logits = 255 * torch.rand(1, 3, 8, 9, generator=draw), torch.rand(1, 3, 8, 9, generator=draw)
        # Pixels lie on the faces of the smoothness lattice, where devices may round apart.
        layer = DenseCRFLayer(3, smooth=None, exact=exact).to(place)
        return layer(images.to(place), logits.to(place)).detach()

    assert_alike(work, device)


def test_an_ascent_over_slopes_waits_nowhere(device: torch.device) -> None:
    """By counts: with more evaluations of the outputs' bounds there are launches, at most 75 each, and no wait more."""
    if device.type != simulated_device.NAME:
        pytest.skip("only the simulated device counts")
    net, low = network(device), torch.full((4,), -0.1, dtype=torch.float64, device=device)

    def counts(steps: int) -> tuple[int, int]:
        with simulated_device.watch("blocklp") as trace:
            network_bounds(net, low, low + 0.4, method="alpha-crown", steps=steps)
        return trace.launches, trace.syncs

    few, many = counts(5), counts(25)
    assert many[1] == few[1] and 0 < (many[0] - few[0]) / 20 <= 75

"""Verdicts against the exact minimum by enumeration of all sign patterns, and on the shared instances."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from blocklp.errors import OptionError, ShapeError
from blocklp.problems.verification import Network, Property, Runtime, VerifySettings, from_torch, read_onnx, read_property, verify
from blocklp.problems.verification.bounds import network_bounds
from blocklp.problems.verification.exact import planet_lp, solve_leaf
from blocklp.problems.verification.operations import Relu
from blocklp.problems.verification.relu_splits import ReluSplits
from blocklp.problems.verification.verdict import VerificationEvent
from blocklp.search.best_first import Expansion

from ..verification_networks import dense, residual, unit_box

SHARED = Path(__file__).parents[4] / "shared" / "data" / "verification"
needs_data = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared verification data is not beside the project")

SHORT = 0.25
"""Seconds of a search that cannot end, as it is left to look for a counterexample by splits alone."""


def patterns(network: Network, lower: torch.Tensor, upper: torch.Tensor) -> Iterator[dict[int, tuple[torch.Tensor, torch.Tensor]]]:
    """Bounds of all ReLUs for every sign pattern of the unstable neurons."""
    bounds = network_bounds(network, lower, upper).relaxation.bounds
    unstable = [(r, int(i)) for r, (low, high) in bounds.items() for i in ((low < 0) & (high > 0)).flatten().nonzero()[:, 0]]
    for signs in itertools.product((-1, 1), repeat=len(unstable)):
        fixed = {r: (low[0].clone(), high[0].clone()) for r, (low, high) in bounds.items()}
        for (r, i), sign in zip(unstable, signs, strict=True):
            fixed[r][0 if sign > 0 else 1].view(-1)[i] = 0.0
        yield fixed


def minimum(network: Network, lower: torch.Tensor, upper: torch.Tensor, row: torch.Tensor) -> float:
    """Exact minimum of a linear output: an LP for every sign pattern."""
    node = len(network.ops) - 1
    return min(planet_lp(network, lower, upper, b, node, boxes=True).minimise(row).value for b in patterns(network, lower, upper))


def least_greatest(network: Network, lower: torch.Tensor, upper: torch.Tensor, rows: torch.Tensor, right: torch.Tensor) -> float:
    """Exact minimum of the greatest of ``rows @ output - right``."""
    more = network.followed_by(rows, -right)
    every, node = torch.ones(len(rows), dtype=torch.bool), len(more.ops) - 1
    leaves = ({r: low >= 0 for r, (low, _) in bounds.items()} for bounds in patterns(network, lower, upper))
    return min(solve_leaf(more, lower, upper, on, node, every).optimum.value for on in leaves)


def cases() -> list[tuple[Network, torch.Tensor, torch.Tensor, torch.Tensor]]:
    found = []
    for seed in range(4):
        for network in (dense(seed, (3, 5, 4, 2)), residual(seed)):
            lower, upper = unit_box(network, seed, 0.5 if len(network.relus) == 2 and network.inputs == 3 else 0.3)
            found.append((network, lower, upper, torch.tensor([1.0, -1.0], dtype=torch.float64)))
    return found


def test_a_verdict_prints_its_counterexample() -> None:
    network, lower, upper, row = cases()[0]
    box = (lower.numpy().ravel(), upper.numpy().ravel(), row[None].numpy())
    truth = minimum(network, lower, upper, row)
    held, broken = (verify(network, Property.of(*box, np.array([truth + shift])), timeout=60) for shift in (-1e-3, 1e-3))
    assert broken.x is not None and f"{broken.x[0]:.9g}" in repr(broken)
    for verdict, tables in ((held, 1), (broken, 3)):
        page = verdict._repr_html_()
        assert page.count("<table>") == tables and verdict.reason in page
        assert repr(verdict).startswith(f"Verdict: {verdict.status}. ") and (f"{held.bound:.9g}" if tables == 1 else " - ") in repr(
            verdict
        )


@pytest.mark.parametrize("case", cases(), ids=lambda c: c[0].name)
def test_verdicts_agree_with_enumeration(case: tuple[Network, torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    network, lower, upper, row = case
    truth = minimum(network, lower, upper, row)
    for few_inputs, (shift, expected) in itertools.product((0, 20), ((-1e-3, "unsat"), (1e-3, "sat"))):
        settings = VerifySettings(few_inputs=few_inputs)  # splits of ReLUs, or of inputs
        prop = Property.of(lower.numpy().ravel(), upper.numpy().ravel(), row[None].numpy(), np.array([truth + shift]))
        verdict = verify(network, prop, timeout=60, settings=settings)
        assert verdict.status == expected, (verdict, truth, few_inputs)
        if expected == "sat":
            assert verdict.x is not None
            assert prop.violated(verdict.x, network.to(torch.float32)(torch.tensor(verdict.x)[None])[0].numpy()) == 0
        else:
            assert 0 < verdict.bound <= -shift + 1e-9
        # Without the attack a counterexample must never be argued away.
        assert verify(network, prop, timeout=SHORT if expected == "sat" else 60, attack=False, settings=settings).status in (
            {"unsat"} if expected == "unsat" else {"unknown", "timed-out"}
        ), few_inputs


def test_halving_regions_changes_no_verdict() -> None:
    """Searches that give up at once leave everything to regions with bounds of their own."""
    network = dense(11, (6, 8, 6, 5, 2))
    lower, upper = unit_box(network, 4, 0.35)
    low = float(network_bounds(network, lower, upper).output.lower[0])
    reached = float(network(torch.stack([lower, upper, (lower + upper) / 2]))[:, 0].min())
    row = np.array([[1.0, 0.0]])
    answers = []
    for patience in (10**9, 1):
        settings = VerifySettings(few_inputs=0, patience=patience)
        props = [Property.of(lower.numpy(), upper.numpy(), row, np.array([low + t * (reached - low)])) for t in (0.2, 1.1)]
        answers.append([verify(network, prop, timeout=30, settings=settings).status for prop in props])
    assert answers[0] == answers[1] == ["unsat", "sat"]


@pytest.mark.parametrize("trouble", ["no halves", "unresolved"])
def test_no_part_of_a_region_is_forgotten(trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clause that cannot be halved, or a node that is given up, must not vanish while the other clause is proved."""
    network = dense(11, (6, 8, 6, 5, 2))
    lower, upper = unit_box(network, 4, 0.35)
    settings = VerifySettings(few_inputs=0, patience=1)
    bounds = network_bounds(network, lower, upper).output
    reached = float(network(torch.stack([lower, upper, (lower + upper) / 2]))[:, 1].min())
    row = np.eye(2)
    false = Property.of(lower.numpy(), upper.numpy(), row[:1], np.array([float(bounds.lower[0]) - 1])).clauses[0]
    true = Property.of(lower.numpy(), upper.numpy(), row[1:], np.array([reached + 1e-3])).clauses[0]
    prop = Property((false, true))
    if trouble == "no halves":
        monkeypatch.setattr(ReluSplits, "halves", lambda *_: [])
    else:
        expand = ReluSplits.expand

        def give_up(self: object, nodes: list[Any]) -> Expansion:
            found = expand(self, nodes)
            return Expansion(found.children[1:], unresolved=found.children[:1])

        monkeypatch.setattr(ReluSplits, "expand", give_up)
    assert verify(network, prop, timeout=3, attack=False, settings=settings).status in ("unknown", "timed-out")


@pytest.mark.parametrize("few_inputs", [0, 20], ids=["relu splits", "input splits"])
def test_a_clause_needs_all_its_rows(few_inputs: int) -> None:
    """Each row alone can be satisfied, both together cannot: half of each proves it without a split."""
    settings = VerifySettings(few_inputs=few_inputs)
    network = dense(3, (2, 4, 3, 1))
    lower, upper = unit_box(network, 3, 0.5)
    low = minimum(network, lower, upper, torch.ones(1, dtype=torch.float64))
    high = -minimum(network, lower, upper, -torch.ones(1, dtype=torch.float64))
    middle = (low + high) / 2
    rows = np.array([[1.0], [-1.0]])
    box = lower.numpy().ravel(), upper.numpy().ravel()
    apart = Property.of(*box, rows, np.array([middle - 0.1 * (high - low), -middle - 0.1 * (high - low)]))
    verdict = verify(network, apart, timeout=20, settings=settings)
    assert (verdict.status, verdict.nodes) == ("unsat", 0)
    assert 0 < verdict.bound <= 0.1 * (high - low)
    together = Property.of(*box, rows, np.array([middle + 0.1 * (high - low), -middle + 0.1 * (high - low)]))
    assert verify(network, together, timeout=20, settings=settings).status == "sat"
    # Rows of different clauses are not mixed.
    both = Property(apart.clauses + together.clauses)
    assert verify(network, both, timeout=20, settings=settings).status == "sat"
    assert verify(network, both, timeout=SHORT, attack=False, settings=settings).status in ("unknown", "timed-out")


@pytest.mark.parametrize("network", [make(seed) for seed in range(3) for make in (dense, residual)], ids=lambda n: n.name)
def test_conjunctions_agree_with_enumeration(network: Network) -> None:
    lower, upper = unit_box(network, 7, 0.25)
    g = torch.Generator().manual_seed(len(network.name))
    rows = torch.randn(3, network.outputs, generator=g, dtype=torch.float64)
    inside = network(lower + (upper - lower) * torch.rand(500, *lower.shape, generator=g, dtype=torch.float64)) @ rows.T
    right = inside.mean(0)  # so that the rows compete
    truth = least_greatest(network, lower, upper, rows, right)
    assert truth <= float((inside - right).amax(1).min())
    for few_inputs, (margin, expected) in itertools.product((0, 20), ((-1e-3, "unsat"), (1e-3, "sat"))):
        settings = VerifySettings(few_inputs=few_inputs)  # splits of ReLUs, or of inputs
        prop = Property.of(lower.numpy().ravel(), upper.numpy().ravel(), rows.numpy(), (right + truth + margin).numpy())
        verdict = verify(network, prop, timeout=60, settings=settings)
        assert verdict.status == expected, (verdict, truth, few_inputs)
        assert verdict.bound <= 1e-3
        # Without the attack a counterexample must never be argued away.
        if expected == "sat":
            assert verify(network, prop, timeout=SHORT, attack=False, settings=settings).status in ("unknown", "timed-out")


@pytest.mark.parametrize("inputs", [3, 40])
def test_a_network_without_relus(inputs: int) -> None:
    network = dense(0, (inputs, 1))
    lower, upper = unit_box(network, 0)
    low = float(network_bounds(network, lower, upper).output.lower)
    for right, expected in ((low - 1e-6, "unsat"), (low + 1e-3, "sat")):
        prop = Property.of(lower.numpy(), upper.numpy(), np.ones((1, 1)), np.array([right]))
        assert verify(network, prop, timeout=20).status == expected


def test_wrong_use_is_refused() -> None:
    network = dense(0)
    prop = Property.of(np.zeros(4), np.ones(4), np.ones((1, 2)), np.zeros(1))
    with pytest.raises(ShapeError, match="another network"):
        verify(network, prop)
    module = torch.nn.Linear(4, 2)
    with pytest.raises(OptionError, match=r"network is .*; give a Network, as from_torch"):
        verify(module, prop)
    with pytest.raises(OptionError, match=r"network is .*; give a Network"):
        verify(prop, network)
    with pytest.raises(OptionError, match=r"prop is .*; give a Property, as Property\.of"):
        verify(network, module)
    with pytest.raises(OptionError, match=r"module is .*; give a torch\.nn\.Module"):
        from_torch(4, module)
    with pytest.raises(ShapeError, match="input_shape has shape 'four'"):
        from_torch(module, "four")
    assert from_torch(module, 4).input_shape == (4,)
    fits = Property.of(np.zeros(3), np.ones(3), np.ones((1, 2)), np.zeros(1))
    with pytest.raises(OptionError, match="timeout"):
        verify(network, fits, timeout=0)
    with pytest.raises(OptionError, match=r"runtime is 'm.onnx'; give a function of inputs, such as Runtime\(path\)"):
        verify(network, fits, runtime="m.onnx")
    with pytest.raises(OptionError, match=r"settings is \{\}; give VerifySettings\("):
        verify(network, fits, settings={})
    for wrong in ({"few_inputs": -3}, {"few_inputs": 2.0}, {"patience": 0}):
        with pytest.raises(OptionError, match=f"{next(iter(wrong))} is .*; it must be"):
            VerifySettings(**wrong)


def test_an_interrupt_is_unknown() -> None:
    network = dense(0)
    lower, upper = unit_box(network, 0)
    prop = Property.of(lower.numpy(), upper.numpy(), np.array([[1.0, 0.0]]), np.array([-1e3]))

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    assert verify(network, prop, callback=interrupt).status == "unknown"


def test_mutated_networks_are_told_apart() -> None:
    """A network whose bias is dropped gets another verdict for a property between the two minima."""
    network = dense(5, (3, 5, 4, 2))
    lower, upper = unit_box(network, 5, 0.3)
    ops = list(network.ops)
    ops[1] = type(ops[1])(**{**ops[1].__dict__, "bias": torch.zeros_like(ops[1].bias)})  # type: ignore[attr-defined]
    other = Network(tuple(ops))
    row = torch.tensor([1.0, -1.0], dtype=torch.float64)
    a, b = minimum(network, lower, upper, row), minimum(other, lower, upper, row)
    assert abs(a - b) > 1e-3 and isinstance(ops[2], Relu)
    prop = Property.of(lower.numpy(), upper.numpy(), row[None].numpy(), np.array([(a + b) / 2]))
    assert verify(network, prop, timeout=20).status != verify(other, prop, timeout=20).status


def shared(names: tuple[str, ...]) -> list[dict[str, str]]:
    if not SHARED.is_dir():
        return []
    with (SHARED / "expected.csv").open() as file:
        return [row for row in csv.DictReader(file) if any(n in row["onnx"] + row["vnnlib"] for n in names)]


QUICK = (
    "smoke/",
    "prop_1.vnnlib",
    "prop_3.vnnlib",
    "prop_4.vnnlib",
    "img2908",
    "img4549",
    "img1697",
    "img4386",
    "img4720",
    "img8406",
    "256x2",
)


@needs_data
@pytest.mark.parametrize("row", shared(QUICK), ids=lambda r: f"{Path(r['onnx']).stem}-{Path(r['vnnlib']).stem}")
def test_shared_instances(row: dict[str, str]) -> None:
    network = read_onnx(SHARED / row["onnx"])
    prop = read_property(SHARED / row["vnnlib"], network.inputs, network.outputs)
    verdict = verify(network, prop, timeout=100, runtime=Runtime(SHARED / row["onnx"]))
    assert verdict.status == row["expected"]
    if row["expected"] == "sat":
        assert verify(network, prop, timeout=1, attack=False).status in ("unknown", "timed-out")


@pytest.mark.parametrize("seed", [500258, 500352, *range(12)])  # the first two end in leaves that an LP bounds
def test_bounds_of_searches_by_signs_are_not_above_the_optimum(seed: int) -> None:
    """Of several rows in small networks, whose boxes are clipped by mixes of them."""
    draw = np.random.default_rng(seed)
    inputs = int(draw.integers(1, 3))
    sizes = inputs, *(int(n) for n in draw.integers(1, 4, size=draw.integers(1, 3))), 2
    layers: list[torch.nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layer = torch.nn.Linear(before, after)
        weight, bias = draw.normal(size=(after, before)) / np.sqrt(before) * 1.5, draw.normal(size=after) * 0.5
        layer.weight.data, layer.bias.data = torch.from_numpy(weight).float(), torch.from_numpy(bias).float()
        layers += [layer, torch.nn.ReLU()]
    network = from_torch(torch.nn.Sequential(*layers[:-1]), (inputs,))
    points = network(torch.from_numpy(draw.uniform(-1, 1, (4000, inputs))))
    rows, right = torch.from_numpy(np.round(draw.normal(size=(3, 2)) * 64) / 64), torch.from_numpy(draw.normal(size=3) * 0.5)
    least = float((points @ rows.T - right).amax(1).min())
    right += least - 10 ** draw.uniform(-4.5, 0)
    lower, upper = -torch.ones(inputs, dtype=torch.float64), torch.ones(inputs, dtype=torch.float64)
    truth = least_greatest(network, lower, upper, rows, right)
    prop = Property.of(lower.numpy(), upper.numpy(), rows.numpy(), right.numpy())
    verdict = verify(network, prop, timeout=20, attack=False, settings=VerifySettings(few_inputs=0))
    assert verdict.status == "unsat" and truth > 0 and 0 < verdict.bound <= truth + 1e-9


@pytest.mark.parametrize("seed", [6, 10, 22])
def test_a_search_that_proves_nothing_has_the_bound_of_what_is_open(seed: int) -> None:
    network = dense(seed, (4, 7, 6, 2))
    lower, upper = unit_box(network, seed)
    rows = torch.eye(2, dtype=torch.float64)
    least, other = (minimum(network, lower, upper, row) for row in rows)
    settings, ends = VerifySettings(few_inputs=0), (lower.numpy(), upper.numpy())
    closed = Property.of(*ends, rows[:1].numpy(), np.array([least - 1e-3]))
    alone = verify(network, closed, settings=settings)
    assert alone.status == "unsat" and alone.nodes > 0  # by a search
    # The other clause has counterexamples, which nobody looks for: some of its nodes stay open.
    both = Property((*closed.clauses, *Property.of(*ends, rows[1:].numpy(), np.array([other + 0.01])).clauses))
    verdict = verify(network, both, attack=False, settings=settings)
    assert verdict.status == "unknown"
    assert -np.inf < verdict.bound <= -0.01 + 1e-9


@pytest.mark.parametrize(("few_inputs", "phase"), [(0, "quick bounds"), (0, "search"), (20, "search")])
def test_a_run_that_ends_early_has_no_bound_of_the_closed_clauses_alone(few_inputs: int, phase: str) -> None:
    network = dense(0, (3, 5, 4, 2))
    lower, upper = unit_box(network, 0, 0.5)
    rows = torch.eye(2, dtype=torch.float64)
    least, other = (minimum(network, lower, upper, row) for row in rows)
    clauses = [
        Property.of(lower.numpy(), upper.numpy(), rows[k : k + 1].numpy(), np.array([e])) for k, e in enumerate((-99.0, other))
    ]

    def interrupt(event: VerificationEvent) -> None:
        if event.phase == phase and (phase != "search" or event.search is not None):
            raise KeyboardInterrupt

    prop = Property(tuple(clause for own in clauses for clause in own.clauses))
    verdict = verify(network, prop, attack=False, settings=VerifySettings(few_inputs=few_inputs), callback=interrupt)
    assert least > -99 and verdict.bound <= 1e-9
    assert verdict.reason == "Interrupted."
    assert ("  -  " in repr(verdict)) == (verdict.bound == -np.inf)

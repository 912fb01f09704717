"""The checker of proofs by itself: its numbers against rational ones, and steps that no search writes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.errors import FormatError, ModelError
from blocklp.problems.verification import Builder, Network, Property, network_bounds, read_onnx, read_property, verify
from blocklp.problems.verification.operations import Add, Affine, Input, Relu
from blocklp.problems.verification.proof import ONE, UNIT, _Checker, _Region, check_proof
from blocklp.problems.verification.proof_files import read_proof, write_proof
from blocklp.problems.verification.proving import Part, stated
from blocklp.problems.verification.tightener import Tightener

from ..verification_networks import all_kinds, conv, dense, residual, unit_box

SHARED = Path(__file__).parents[4] / "shared" / "data" / "verification" / "mnist_fc"
Steps = list[dict[str, Any]]


def exactly(network: Network, x: Tensor) -> list[NDArray[Any]]:
    """Results of all operations at a point, in rational numbers; matrices are what operations make of unit vectors."""
    values: list[NDArray[Any]] = []
    for op in network.ops:
        given = [values[i] for i in op.inputs]
        if isinstance(op, Input):
            values.append(np.array([Fraction(float(v)) for v in x.flatten()], dtype=object))
        elif isinstance(op, Relu):
            values.append(np.maximum(given[0], 0))
        elif isinstance(op, Add):
            values.append(given[0] + given[1])
        else:
            assert isinstance(op, Affine)
            matrix = op.linear(torch.eye(math.prod(op.source), dtype=torch.float64).view(-1, *op.source)).flatten(1).T
            shift = op.shift().double().expand(1, *op.shape).flatten()
            sums = [sum((Fraction(float(row[j])) * given[0][j] for j in row.nonzero()[:, 0].tolist()), Fraction(0)) for row in matrix]
            values.append(np.array([s + Fraction(float(b)) for s, b in zip(sums, shift, strict=True)], dtype=object))
    return values


def scaled(network: Network, power: Callable[[int], int]) -> Network:
    """The network with weights and biases of each operation times a power of two."""
    ops = []
    for at, op in enumerate(network.ops):
        numbers = {name: getattr(op, name) * 2.0 ** power(at) for name in ("weight", "bias") if hasattr(op, name)}
        ops.append(replace(op, **numbers))
    return Network(tuple(ops), f"{network.name} scaled")


def first_output(network: Network, lower: Tensor, upper: Tensor, right: float = 0.0) -> Property:
    """A counterexample has the first output at or below a number."""
    row = np.zeros((1, network.outputs))
    row[0, 0] = 1.0
    return Property.of(lower.flatten(), upper.flatten(), row, [right])


def opened(network: Network, prop: Property, steps: Steps) -> tuple[_Checker, _Region]:
    """The checker after some steps, and the part that is open then and comes first."""
    checker = _Checker(network, prop)
    for step in [{"clauses": [list(range(len(prop.clauses)))]}, *steps]:
        checker.open += reversed(checker.parts(checker.open.pop(), step))
    return checker, checker.open[-1]


def bound(checker: _Checker, region: _Region, given: dict[str, Any]) -> Fraction:
    """A lower bound of the first output."""
    cost = np.zeros((len(region.low[-1]), 1), dtype=np.int64)
    cost[0] = 1
    [total] = checker.backward(region, len(checker.ops) - 1, [(cost, np.zeros(1, dtype=np.int64))], given)
    return Fraction(int(total), 2**UNIT)


def digits_of(slopes: dict[int, Tensor]) -> dict[str, str]:
    return {str(r): (s * ONE).round().numpy().astype(">u2").tobytes().hex() for r, s in slopes.items()}


WIDE = [scaled(net, lambda at: (at * 37) % 61 - 30) for net in all_kinds(range(1))]


@pytest.mark.parametrize("network", [*all_kinds(range(2)), *WIDE], ids=lambda n: n.name)
def test_bounds_are_those_of_the_formula_and_hold(network: Network) -> None:
    """With any slopes, beside the same bound in float64, and beside exact values at points of the box."""
    g = torch.Generator().manual_seed(3)
    lower, upper = unit_box(network, 1, 0.3)
    relus = list(network.relus)
    known = network_bounds(network, lower, upper, method="crown").relaxation
    checker, region = opened(network, first_output(network, lower, upper), [{"bounds": {"relus": relus}}])
    for relu, (low, high) in known.bounds.items():
        at = network.ops[relu].inputs[0]
        wide = (high - low).flatten().numpy().max()
        for mine, other in ((region.low[at], low), (region.high[at], high)):
            assert np.abs(mine - other.flatten().numpy()).max() < 1e-6 * wide
    cost = torch.zeros(1, *network.ops[-1].shape, dtype=torch.float64)
    cost.view(-1)[0] = 1.0
    for _ in range(3):
        slopes = {r: stated(torch.rand(1, *network.ops[r].shape, generator=g)) for r in relus}
        found = bound(checker, region, {"slopes": digits_of(slopes)})
        # Neurons whose sign is known have the slopes 1 and 0, whatever a proof says.
        used = {r: torch.where(known.open[r], s, (known.bounds[r][0] >= 0).to(s)) for r, s in slopes.items()}
        value = float(known.backward(len(network.ops) - 1, cost, used).value)
        assert abs(float(found) - value) < 1e-6 * float(known.magnitudes[-1].max())
        for _ in range(4):
            x = lower + (upper - lower) * torch.rand(lower.shape, generator=g, dtype=torch.float64).round(decimals=1)
            x = torch.minimum(torch.maximum(x, lower), upper)
            results = exactly(network, x)
            assert results[-1][0] >= found
            for at, values in enumerate(results):
                assert (values >= region.low[at]).all()
                assert (values <= region.high[at]).all()


def test_multipliers_of_known_signs_tighten_a_bound_that_holds() -> None:
    """Of all points where a neuron is on (or off), against samples; the best multiplier is better than none."""
    gains = []
    for seed in range(6):
        network = dense(seed, (2, 5, 1))
        lower, upper = unit_box(network, seed, 1.0)
        checker, region = opened(network, first_output(network, lower, upper), [])
        relu, prop = network.relus[0], first_output(network, lower, upper)
        at = network.ops[relu].inputs[0]
        x = lower + (upper - lower) * torch.rand(5000, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        z, y = network.run(x)[at], network(x)[:, 0]
        for neuron in np.flatnonzero((region.low[at] < 0) & (region.high[at] > 0)).tolist():
            checker, _ = opened(network, prop, [{"split": [relu, neuron, 0]}])
            for part, inside in ((checker.open[-1], z[:, neuron] >= 0), (checker.open[-2], z[:, neuron] <= 0)):
                bounds = [
                    bound(checker, part, {"betas": {str(relu): [[neuron], [[beta]]]}}) for beta in (0.0, 0.1, 0.3, 1.0, 3.0, 1e9)
                ]
                gains.append(float(max(bounds) - bounds[0]))
                assert not inside.any() or float(max(bounds)) <= float(y[inside].min())
    assert max(gains) > 1e-2
    assert min(gains) >= 0


@pytest.mark.parametrize("network", [conv(5), dense(6, (6, 20, 15, 3)), residual(4)], ids=lambda n: n.name)
def test_bounds_of_layers_under_signs_are_those_of_the_search(network: Network) -> None:
    """Windows of convolutions and multipliers of signs, as a search writes them down, give the checker the same bounds."""
    lower, upper = unit_box(network, 4, 0.5)
    first = network_bounds(network, lower, upper, method="crown").relaxation
    relu, last = network.relus[0], network.relus[-1]
    neurons = first.open[relu].flatten().nonzero()[:2, 0].tolist()
    signs = torch.zeros_like(first.bounds[relu][0])
    signs.view(-1)[neurons] = 1
    part = Part()
    tightener = Tightener(network, lower[None], upper[None], 8, output=False, signs={relu: signs}, part=part)
    tightener.run()
    assert not tightener.empty
    part.empty(last, 0)
    steps = [s for s in json.loads(json.dumps(list(part.steps()))) if "bounds" in s]
    checker, _ = opened(network, first_output(network, lower, upper), [{"split": [relu, neuron, 0]} for neuron in neurons])
    region = checker.open[-1]
    for step in steps:
        [region] = checker.parts(region, step)
    assert any(s["bounds"].get("betas") for s in steps)
    for at, (low, high) in tightener.bounds.items():
        source = network.ops[at].inputs[0]
        wide = float((high - low).max())
        assert (low.flatten().numpy() - region.low[source] < 1e-5 * wide).all()
        assert (region.high[source] - high.flatten().numpy() < 1e-5 * wide).all()
    assert float((tightener.bounds[last][0] - first.bounds[last][0]).max()) > 1e-3  # signs and slopes matter


SMALL = dense(0, (2, 4, 3, 1))
ENDS = torch.full((2,), -1.0, dtype=torch.float64), torch.full((2,), 1.0, dtype=torch.float64)


@pytest.fixture(scope="module")
def edge() -> tuple[float, float]:
    """A number that the output of SMALL is above everywhere, and one that it is not, by a point and rational numbers."""
    low, high = -20.0, 20.0
    for _ in range(14):
        middle = (low + high) / 2
        prop = first_output(SMALL, *ENDS, middle)
        verdict = verify(SMALL, prop, timeout=30)
        if verdict.status == "unsat":
            low = middle
        else:
            assert verdict.x is not None
            assert exactly(SMALL, torch.tensor(verdict.x, dtype=torch.float64))[-1][0] <= Fraction(middle) + Fraction(1, 1000)
            high = middle
    return low, high + 1e-3


@pytest.fixture
def false(edge: tuple[float, float]) -> Property:
    """A property of SMALL that does not hold."""
    return first_output(SMALL, *ENDS, edge[1])


def refused(prop: Property, steps: Steps, network: Network = SMALL) -> bool:
    try:
        check_proof(network, prop, json.loads(json.dumps(steps)))
    except FormatError:
        return True
    return False


WHOLE = {"clauses": [[0]]}
LEAF: dict[str, Any] = {"leaf": {}}
ALL = {"bounds": {"relus": [2, 4]}}


@pytest.mark.parametrize(
    "split",
    [
        [0, [0, 1], 0.5], [0, True, 0.5], [0, None, 0.5], [0, 0.0, 0.5], [0, "0", 0.5], [0, 0, math.nan], [0, 0, math.inf],
        [0, 0, None], [0, 0, [0.5]], [0, 0, "0"], [2, [0, 1], 0], [2, True, 0], [2, None, 0], [2, 0, 0.5], [2, 9, 0], [1, 0, 0],
        [3, 0, 0], [None, 0, 0], [[2], 0, 0], [9, 0, 0], [2, 0], [2, 0, 0, 0], {},
    ],
)  # fmt: skip
def test_a_split_is_of_one_neuron_or_input_at_one_number(split: Any, false: Property) -> None:
    """Parts that two neurons at once, or no number, would make are easily closed, and do not cover the box."""
    for closing in ([LEAF] * 2, [ALL, LEAF] * 2, [ALL, {"empty": [2, 0]}, LEAF], [{"empty": [0, 0]}] * 2, []):
        assert refused(false, [WHOLE, {"split": split}, *closing])


@pytest.mark.parametrize(
    "given",
    [
        {"betas": {"2": [[0], [[-1.0]]]}}, {"betas": {"2": [[0], [[math.nan]]]}}, {"betas": {"2": [[0], [[math.inf]]]}},
        {"betas": {"2": [[[0, 1]], [[1e3]]]}}, {"betas": {"2": [[0], [1e3]]}}, {"betas": {"2": [[0, 1], [[1e3]]]}},
        {"betas": {"2": [[1], [[1e3]]]}}, {"betas": {"2": [[-3], [[1e3]]]}}, {"betas": {"2": [[True], [[1e3]]]}},
        {"betas": {"2": [[9], [[1e3]]]}}, {"betas": {"2": None}},
        {"slopes": {"2": "ffff"}}, {"slopes": {"2": "ff"}}, {"slopes": {"2": "zz"}}, {"slopes": {"2": 1.5}}, {"slopes": None},
        {"mix": [-1]}, {"mix": []}, {"mix": [1, 1]}, {"mix": [1.5]}, {"mix": [True]}, {"mix": ["1"]}, {"mix": None}, {"mix": 1},
    ],
)  # fmt: skip
def test_multipliers_that_are_none_are_refused(given: dict[str, Any], edge: tuple[float, float]) -> None:
    """Of a property that is proved without them, in the part where neuron 0 of four is on and the next one may be both."""
    prop = first_output(SMALL, *ENDS, edge[0] - 30.0)
    neuron = 0
    _, region = opened(SMALL, prop, [])
    free = ((region.low[1] < 0) & (region.high[1] > 0)).tolist()
    assert free[0]
    assert free[1]
    split = {"split": [2, neuron, 0]}
    assert not refused(prop, [WHOLE, split, {"leaf": {"betas": {"2": [[neuron], [[1.0]]]}}}, LEAF])
    assert refused(prop, [WHOLE, split, {"leaf": given}, LEAF])


@pytest.mark.parametrize(
    "steps",
    [
        [], [WHOLE], [LEAF], [ALL], [WHOLE, LEAF, LEAF], [WHOLE, {"empty": [2, 0]}], [WHOLE, {"empty": [0, 0]}], [{"clauses": []}],
        [{"clauses": [[]]}], [{"clauses": [[0], []]}], [{"clauses": [[1]]}], [{"clauses": [[0, 1]]}], [WHOLE, {"clauses": []}],
        [WHOLE, {"clauses": [[]]}], [WHOLE, {"counterexample": [0.0, 0.0]}], [{"counterexample": [0.0]}], [{"counterexample": []}],
        [{"counterexample": [math.nan, 0.0]}], [{"counterexample": [math.inf, 0.0]}], [{"counterexample": [2.0, 0.0]}], [None], [[]],
        ["leaf"], [{}], [{"leaf": None}], [WHOLE, {"leaf": None}], [WHOLE, {"bounds": None}], [WHOLE, {"bounds": {}}, LEAF],
        [WHOLE, {"bounds": {"relus": [3]}}, LEAF], [WHOLE, {"bounds": {"relus": [2], "neurons": [9]}}, LEAF],
        [WHOLE, {"bounds": {"relus": [2], "neurons": [[0, 1], [2]]}}, LEAF],
    ],
)  # fmt: skip
def test_what_is_no_proof_is_refused(steps: Steps, edge: tuple[float, float]) -> None:
    holds = first_output(SMALL, *ENDS, edge[0] - 30.0)
    assert not refused(holds, [WHOLE, LEAF])
    assert refused(holds, steps)


def test_no_proof_of_what_is_false_is_found_at_random(false: Property, edge: tuple[float, float]) -> None:
    """Trees of random splits, bounds, slopes and multipliers: some are proofs of nearby properties, none of this one."""
    draw = np.random.default_rng(0)

    def columns(count: int) -> dict[str, str]:
        return {str(r): draw.choice([0, 1, 30000, ONE], size=(count, n)).astype(">u2").tobytes().hex() for r, n in ((2, 4), (4, 3))}

    near, accepted = first_output(SMALL, *ENDS, edge[0] - 2.0), 0
    for _ in range(150):
        steps: Steps = [WHOLE]
        work: list[tuple[list[int], int]] = [([], 0)]
        while work:
            signs, depth = work.pop()
            if draw.random() < 0.5:
                steps.append({"bounds": {"relus": [4], "neurons": draw.integers(-3, 3, 2).tolist(), "slopes": columns(4)}})
            if depth < 5 and draw.random() < 0.75:
                if draw.random() < 0.5:
                    steps.append({"split": [0, int(draw.integers(2)), float(draw.normal())]})
                    work += [(signs, depth + 1)] * 2
                else:
                    neuron = int(draw.integers(4))
                    steps.append({"split": [2, neuron, 0]})
                    work += [([*signs, neuron], depth + 1)] * 2
            else:
                own = sorted(set(signs))
                betas = {"2": [own, draw.exponential(1.0, (len(own), 1)).tolist()]} if own else {}
                steps.append({"leaf": {"slopes": columns(1), "betas": betas}})
        accepted += not refused(near, steps)
        assert refused(false, steps)
    assert accepted > 10


def test_rows_are_those_that_are_stated() -> None:
    """Decimals, strict rows and mixes, at the border: y = x on [0, 1], in exact arithmetic."""
    builder = Builder((1,), "identity")
    builder.linear(builder.relu(builder.linear(0, torch.ones(1, 1))), torch.tensor([[1.0], [-1.0]]))
    network = builder.build()
    for right, status in ((0.0, "sat"), (-(2.0**-60), "unsat"), (2.0**-60, "sat")):
        prop = Property.of([0.0], [1.0], [[1.0, 0.0]], [right])  # y_0 <= right
        assert refused(prop, [WHOLE, LEAF], network) == (status == "sat")
        assert refused(prop, [{"counterexample": [0.0]}], network) == (status == "unsat")
    strict = Property.of([0.0], [1.0], [[1.0, 0.0]], [0.0], True)  # y_0 < 0
    assert refused(strict, [{"counterexample": [0.0]}], network)
    both = Property.of([0.0], [1.0], [[1.0, 0.0], [0.0, 1.0]], [0.5, -0.75])  # y_0 <= 1/2 and -y_0 <= -3/4
    assert refused(both, [WHOLE, {"leaf": {"mix": [1, 0]}}], network)
    assert refused(both, [WHOLE, {"leaf": {"mix": [0, 0]}}], network)
    assert not refused(both, [WHOLE, {"leaf": {"mix": [1, 1]}}], network)
    assert not refused(both, [WHOLE, {"leaf": {"mix": [10**30, 10**30]}}], network)
    assert refused(both, [WHOLE, {"leaf": {"mix": [3, 1]}}], network)


def test_numbers_out_of_range_are_refused_and_not_rounded() -> None:
    for weight in (1e300, 1e-320):
        builder = Builder((1,), "extreme")
        builder.linear(
            builder.relu(builder.linear(0, torch.tensor([[weight], [1.0]], dtype=torch.float64))),
            torch.full((1, 2), weight, dtype=torch.float64),
        )
        network = builder.build()
        prop = Property.of([-1.0], [1.0], [[1.0]], [-1.0])
        try:
            status = check_proof(network, prop, [WHOLE, LEAF])["status"]
        except (FormatError, ModelError):
            continue
        assert status == "unsat"  # y >= 0
        assert refused(Property.of([-1.0], [1.0], [[1.0]], [weight**2]), [WHOLE, LEAF], network)


@pytest.mark.skipif(not SHARED.exists(), reason="the shared networks are not here")
def test_a_network_of_the_competition(tmp_path: Path) -> None:
    network = read_onnx(SHARED / "nets" / "mnist-net_256x2.onnx")
    prop = read_property(SHARED / "specs" / "prop_0_0.03.vnnlib", network.inputs, network.outputs)
    verdict = verify(network, prop, timeout=60, proof=True)
    assert verdict.proof is not None
    write_proof(tmp_path / "proof.gz", network, prop, verdict.proof.steps())
    assert check_proof(network, prop, read_proof(tmp_path / "proof.gz", network, prop))["status"] == verdict.status == "unsat"
    # The radius of the other file is larger, and has a counterexample.
    wider = read_property(SHARED / "specs" / "prop_0_0.05.vnnlib", network.inputs, network.outputs)
    with pytest.raises(FormatError, match="another query"):
        read_proof(tmp_path / "proof.gz", network, wider)
    with pytest.raises(FormatError, match="step"):
        check_proof(network, wider, verdict.proof.steps())

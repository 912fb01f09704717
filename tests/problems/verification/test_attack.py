import csv
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import blocklp as bl
from blocklp.errors import OptionError, ShapeError
from blocklp.problems.verification.attack import _gradient, confirm, find_counterexample, float32_box
from blocklp.problems.verification.network import Builder
from blocklp.problems.verification.properties import Property

SAT = [
    ("oval21", "cifar_base_kw-img1697"),
    ("oval21", "cifar_wide_kw-img4386"),
    ("mnist_fc", "prop_2_0.03"),
    ("mnist_fc", "prop_0_0.05"),
    ("mnist_fc", "prop_2_0.05"),
    ("acasxu", "prop_2"),
    ("smoke", "test_prop"),
    ("marabou-cifar10", "networkcifar10_small_index1783"),
]


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def connected(seed):
    b = Builder((6,))
    at = b.relu(b.linear(0, normal(seed, 20, 6), normal(seed + 1, 20)))
    at = b.relu(b.linear(at, normal(seed + 2, 20, 20), normal(seed + 3, 20)))
    b.linear(at, normal(seed + 4, 4, 20), normal(seed + 5, 4))
    return b.build()


def convolutional(seed):
    b = Builder((2, 5, 5))
    at = b.relu(b.conv(0, normal(seed, 4, 2, 3, 3), normal(seed + 1, 4), stride=(2, 2), padding=(1, 1, 1, 1)))
    at = b.reorder(at, axes=(1, 2, 0), shape=(36,))
    b.linear(at, normal(seed + 2, 3, 36), normal(seed + 3, 3))
    return b.build()


def residual(seed):
    b = Builder((2, 3, 3))
    first = b.relu(b.conv(0, normal(seed, 2, 2, 2, 2), normal(seed + 1, 2), padding=(1, 0, 1, 0)))
    at = b.relu(b.add(b.conv(first, normal(seed + 2, 2, 2, 1, 1)), b.scale(0, normal(seed + 3, 2, 1, 1))))
    b.linear(b.add(at, first), normal(seed + 4, 3, 18), normal(seed + 5, 3))
    return b.build()


NETWORKS = [make(seed) for seed in (0, 100) for make in (connected, convolutional, residual)]
IDS = [f"{make}-{seed}" for seed in (0, 1) for make in ("connected", "convolutional", "residual")]


def constant(value=0.0):
    b = Builder((3,))
    b.linear(b.relu(b.linear(0, torch.zeros(4, 3))), torch.zeros(1, 4), torch.tensor([value]))
    return b.build()


def outputs(network, x):
    return network(torch.as_tensor(np.asarray(x, dtype=np.float64)).reshape(-1, *network.input_shape)).numpy()


def in_float32(network):
    single = network.to(torch.float32)
    return lambda x: single(torch.as_tensor(x).reshape(1, *single.input_shape))[0].numpy()


def box(network, seed=7, radius=0.5):
    centre = np.random.default_rng(seed).normal(size=network.inputs)
    return centre - radius, centre + radius


def samples(network, lower, upper, count=3000):
    x = np.random.default_rng(1).uniform(lower, upper, (count, len(lower)))
    return outputs(network, x)


def union(*properties):
    return Property(tuple(clause for prop in properties for clause in prop.clauses))


def check(network, prop, found):
    assert found.x.dtype == np.float32
    assert found.x.shape == (prop.inputs,)
    assert found.inside
    clause, x = prop.clauses[found.clause], found.x.astype(np.float64)
    assert ((clause.lower <= x) & (x <= clause.upper)).all()
    assert (clause.matrix @ outputs(network, x)[0] <= clause.right).all()
    assert confirm(in_float32(network), found.x, prop)


@pytest.mark.parametrize("network", NETWORKS, ids=IDS)
def test_the_gradient_is_that_of_autograd(network):
    x = normal(3, 5, *network.input_shape).requires_grad_()
    cost = normal(4, 5, network.outputs)
    results = network.run(x)
    (truth,) = torch.autograd.grad((results[-1].flatten(1) * cost).sum(), x)
    found = _gradient(network, [r.detach() for r in results], cost, torch.zeros(5, dtype=torch.float64), bl.Deadline())
    torch.testing.assert_close(found, truth.flatten(1))


def test_a_full_leak_makes_a_network_linear():
    network = connected(0)
    weights = [op.weight for op in network.ops if hasattr(op, "weight")]
    cost = normal(1, 2, 4)
    found = _gradient(network, network.run(normal(2, 2, 6)), cost, torch.ones(2, dtype=torch.float64), bl.Deadline())
    torch.testing.assert_close(found, cost @ weights[2] @ weights[1] @ weights[0])


@pytest.mark.parametrize("network", NETWORKS, ids=IDS)
@pytest.mark.parametrize("seed", range(3))
def test_finds_a_planted_row_among_clauses_that_hold_nowhere(network, seed):
    lower, upper = box(network)
    y = samples(network, lower, upper)
    c = np.random.default_rng(seed).normal(size=network.outputs)
    planted = Property.of(lower, upper, [c], [(y @ c).min()])
    # |y| of the samples, times a thousand, is more than any point of the box can reach.
    never = Property.of(lower, upper, -np.eye(network.outputs), np.full(network.outputs, -1000 * np.abs(y).max()))
    prop = union(never, planted, never)
    found = find_counterexample(network.to(torch.float32), prop, seed=seed)
    assert found.clause == 1
    check(network, prop, found)
    assert find_counterexample(network, prop, restarts=4, steps=20, exclude=[1]) is None


@pytest.mark.parametrize("network", NETWORKS, ids=IDS)
def test_finds_a_planted_conjunction(network):
    """All outputs near those of a hidden point."""
    lower, upper = box(network)
    y = samples(network, lower, upper)
    near, width = y[0], 0.05 * (y.max(0) - y.min(0))
    unit = np.eye(network.outputs)
    prop = Property.of(lower, upper, np.vstack([unit, -unit]), np.concatenate([near + width, width - near]))
    check(network, prop, find_counterexample(network, prop, restarts=64))


def test_clauses_may_have_boxes_and_row_counts_of_their_own():
    b = Builder((2,))
    b.relu(b.linear(0, torch.eye(2)))
    network = b.build()
    one = Property.of([0, 0], [1, 1], [[-1, 0]], [-2])
    other = Property.of([4, 4], [5, 6], [[-1, 0], [0, -1], [1, 0]], [-4.5, -5.5, 4.75])
    found = find_counterexample(network, union(one, other, one), seed=1)
    assert found.clause == 1
    check(network, union(one, other), found)


def test_a_layer_that_is_off_is_no_wall():
    """The true gradient vanishes but near the corner (1, ..., 1), where no start is."""
    b = Builder((30,))
    b.linear(b.relu(b.linear(0, torch.ones(1, 30), torch.tensor([-27.0]))), torch.tensor([[-1.0]]))
    network, prop = b.build(), Property.of(np.zeros(30), np.ones(30), [[1.0]], [-2.0])
    assert (samples(network, np.zeros(30), np.ones(30)) == 0).all()
    check(network, prop, find_counterexample(network, prop))


def test_nothing_is_found_where_nothing_is():
    wall = np.zeros(3), np.ones(3)
    for value, right, strict in ((0.0, -1e-30, False), (0.0, 0.0, True), (1.0, 0.5, False)):
        assert find_counterexample(constant(value), Property.of(*wall, [[1.0]], [right], strict), steps=10) is None
    found = find_counterexample(constant(), Property.of(*wall, [[1.0]], [0.0]), steps=10)
    assert found is not None
    assert found.inside


@pytest.mark.parametrize("seed", range(4))
def test_points_stay_inside_narrow_boxes_of_any_scale(seed):
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.integers(-30, 30, 40)
    lower = rng.normal(size=40) * scale
    upper = lower + np.abs(lower) * rng.choice([1e-6, 1e-3, 0.1, 3.0], 40)
    b = Builder((40,))
    b.linear(b.relu(b.scale(0, 1 / torch.as_tensor(scale))), torch.as_tensor(rng.normal(size=(1, 40))))
    network = b.build()
    prop = Property.of(lower, upper, [[1.0]], [np.quantile(samples(network, lower, upper), 0.01)])
    found = find_counterexample(network, prop, seed=seed)
    assert found.inside
    assert ((lower <= found.x.astype(np.float64)) & (found.x.astype(np.float64) <= upper)).all()
    assert prop.violated(found.x, outputs(network, found.x)[0]) == 0


@pytest.mark.parametrize("seed", range(3))
def test_the_float32_box_is_the_largest_inside(seed):
    rng = np.random.default_rng(seed)
    lower = rng.normal(size=500) * 10.0 ** rng.integers(-42, 30, 500)
    lower[:20] = lower[:20].astype(np.float32)
    upper = lower + np.abs(lower) * rng.choice([1e-6, 1e-2], 500) + 1e-44
    low, high, inside = float32_box(Property.of(lower, upper, [[1.0]], [0.0]).clauses[0])
    assert inside
    assert low.dtype == high.dtype == np.float32
    assert ((lower <= low.astype(float)) & (low <= high) & (high.astype(float) <= upper)).all()
    assert (np.nextafter(low, np.float32(-np.inf)).astype(float) < lower).all()
    assert (np.nextafter(high, np.float32(np.inf)).astype(float) > upper).all()


def test_an_interval_without_float32_numbers_is_marked():
    lower = np.array([0.1, 0.5, -0.3, 1e300])
    upper = np.array([0.1, 0.75, -0.3, 2e300])
    prop = Property.of(lower, upper, [[1.0]], [1.0])
    low, high, inside = float32_box(prop.clauses[0])
    assert not inside
    assert (low[:3] == np.float32([0.1, 0.5, -0.3])).all()
    assert (high == [low[0], 0.75, low[2], np.finfo(np.float32).max]).all()
    b = Builder((3,))
    b.linear(0, torch.ones(1, 3))
    first = Property.of(lower[:3], upper[:3], [[1.0]], [1.0])
    found = find_counterexample(b.build(), first, steps=5)
    assert not found.inside
    assert not confirm(lambda x: np.zeros(1), found.x, first)


def test_confirmation_is_exact():
    prop = Property.of([0.0, 0.1], [1.0, 0.2], [[1.0, 0.0]], [0.1])
    inside, tenth = np.float32([0.5, 0.15]), np.float32(0.1)
    assert confirm(lambda x: np.float32([[0.0], [9.0]]), inside, prop)
    assert confirm(lambda x: np.nextafter([tenth, tenth], np.float32(0)), inside, prop)
    assert not confirm(lambda x: [tenth, 0], inside, prop)  # the float32 number 0.1 is above 0.1
    assert not confirm(lambda x: [np.nan, 0], inside, prop)
    assert not confirm(lambda x: [0, 0], np.nextafter(np.float32([0, 0.15]), np.float32(-1)), prop)
    assert not confirm(lambda x: [0, 0], np.float32([1, 0.2]), prop)  # and 0.2 above 0.2
    assert confirm(lambda x: x, np.float32([0, 0.1]), prop)


def test_runs_repeat_and_starts_are_used():
    network = connected(3)
    lower, upper = box(network)
    prop = Property.of(lower, upper, [[1.0, 0, 0, 0]], [samples(network, lower, upper)[:, 0].min()])
    first, second = (find_counterexample(network, prop, seed=5) for _ in range(2))
    assert (first.x == second.x).all()
    known = find_counterexample(network, prop, starts=[upper + 9, first.x], restarts=1, steps=1)
    assert (known.x == first.x).all()


def test_stops_at_the_deadline():
    prop = Property.of(np.zeros(3), np.ones(3), [[1.0]], [-1.0])
    began = time.process_time()
    assert find_counterexample(constant(), prop, steps=10**9, restarts=10**9, deadline=bl.Deadline(0.1)) is None
    assert time.process_time() - began < 10


def test_errors_name_what_is_wrong():
    prop = Property.of(np.zeros(3), np.ones(3), [[1.0]], [-1.0])
    for wrong in ({"restarts": 0}, {"steps": 0}):
        with pytest.raises(OptionError, match="at least 1"):
            find_counterexample(constant(), prop, **wrong)
    with pytest.raises(ShapeError, match="6 inputs and 4 outputs"):
        find_counterexample(connected(0), prop)
    with pytest.raises(ShapeError, match="starts"):
        find_counterexample(constant(), prop, starts=[[0.0]])


@pytest.fixture(scope="session")
def shared_instances():
    folder = Path(__file__).parents[4] / "shared" / "data" / "verification"
    if not folder.is_dir():
        pytest.skip(f"the instance folder {folder} is absent")
    for package in ("onnx", "onnxruntime"):
        pytest.importorskip(package, reason=f"reading networks needs {package}")
    with (folder / "expected.csv").open(newline="") as file:
        return folder, list(csv.DictReader(file))


@pytest.mark.parametrize(("family", "spec"), SAT)
def test_known_counterexamples_are_found_and_replayed(shared_instances, family, spec):
    from blocklp.problems.verification.onnx_files import Runtime
    from blocklp.problems.verification.onnx_reader import read_onnx
    from blocklp.problems.verification.vnnlib_reader import read_property

    folder, rows = shared_instances
    row = next(r for r in rows if r["onnx"].startswith(family) and f"/{spec}" in r["vnnlib"] and r["expected"] == "sat")
    network, prop = read_onnx(folder / row["onnx"], check=False), read_property(folder / row["vnnlib"])
    found = find_counterexample(network.to(torch.float32), prop)
    assert confirm(Runtime(folder / row["onnx"]), found.x, prop)


def test_no_counterexample_of_an_instance_known_to_have_none(shared_instances):
    from blocklp.problems.verification.onnx_reader import read_onnx
    from blocklp.problems.verification.vnnlib_reader import read_property

    folder, rows = shared_instances
    for row in rows:
        if row["expected"] == "unsat" and row["onnx"].startswith(("acasxu", "smoke", "mnist_fc")):
            network, prop = read_onnx(folder / row["onnx"], check=False), read_property(folder / row["vnnlib"])
            assert find_counterexample(network, prop, restarts=2, steps=20) is None, row

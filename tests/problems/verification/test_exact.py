import math
import sys
from itertools import product

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from blocklp.errors import MissingDependencyError, ModelError, NonFiniteError, OptionError, ShapeError
from blocklp.problems.verification.exact import exact_bounds, planet_lp
from blocklp.problems.verification.network import Builder
from blocklp.problems.verification.operation_matrices import sparse_matrix
from blocklp.problems.verification.operations import Add, Affine, Input, Relu

TOLERANCE = 1e-7


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def connected(seed, sizes=(3, 5, 4, 2)):
    b = Builder(sizes[:1])
    at = b.scale(0, 2.0, 0.1)
    for layer, size in enumerate(sizes[1:]):
        at = b.relu(at) if layer else at
        at = b.linear(at, normal(10 * seed + layer, size, math.prod(b.ops[at].shape)), normal(seed + 77, size))
    return b.build()


def convolutional(seed):
    b = Builder((2, 5, 4))
    at = b.relu(b.conv(0, normal(seed, 3, 2, 3, 2), normal(seed + 1, 3), stride=(2, 1), padding=(1, 0, 0, 1)))
    at = b.reorder(at, axes=(1, 2, 0), shape=(math.prod(b.ops[at].shape),))
    b.linear(at, normal(seed + 2, 3, math.prod(b.ops[at].shape)), normal(seed + 3, 3))
    return b.build()


def residual(seed):
    b = Builder((2, 3, 3))
    first = b.relu(b.conv(0, normal(seed, 2, 2, 2, 2), normal(seed + 1, 2), padding=(1, 0, 1, 0)))
    second = b.conv(first, normal(seed + 2, 2, 2, 1, 1))
    at = b.relu(b.add(second, b.scale(0, normal(seed + 3, 2, 1, 1))))
    b.linear(at, normal(seed + 4, 2, 18), normal(seed + 5, 2))
    return b.build()


NETWORKS = [make(seed) for seed in (0, 1) for make in (connected, convolutional, residual)]
IDS = [f"{make}-{seed}" for seed in (0, 1) for make in ("connected", "convolutional", "residual")]


def box(network, radius=0.3):
    centre = normal(5, network.inputs)
    return centre - radius, centre + radius


def interval_bounds(network, lower, upper):
    """Pre-activation bounds by interval arithmetic on the centre and the radius."""
    found, bounds = [], {}
    for at, op in enumerate(network.ops):
        if isinstance(op, Input):
            found.append((lower.reshape(1, *op.shape), upper.reshape(1, *op.shape)))
        elif isinstance(op, Relu):
            bounds[at] = tuple(end[0] for end in found[op.inputs[0]])
            found.append(tuple(end.clamp(min=0) for end in found[op.inputs[0]]))
        elif isinstance(op, Add):
            found.append(tuple(a + b for a, b in zip(*(found[i] for i in op.inputs), strict=True)))
        else:
            low, high = found[op.inputs[0]]
            middle, radius = op((low + high) / 2), op.absolute().linear((high - low) / 2)
            found.append((middle - radius, middle + radius))
    return bounds


def dense_lp(network, lower, upper, bounds, node, c, boxes=()):
    """The textbook LP: a variable for every number of every result, dense matrices, all by linprog."""
    sizes = [math.prod(op.shape) for op in network.ops[: node + 1]]
    first = np.concatenate([[0], np.cumsum(sizes)])
    equal, equal_right, under, under_right = [], [], [], []
    limits = [(None, None)] * first[-1]

    def block(*parts):
        row = np.zeros((len(parts[0][1]), first[-1]))
        for at, matrix in parts:
            row[:, first[at] : first[at + 1]] += matrix
        return row

    for at, op in enumerate(network.ops[: node + 1]):
        one = np.eye(sizes[at])
        if isinstance(op, Input):
            limits[: sizes[0]] = list(zip(lower.tolist(), upper.tolist(), strict=True))
        elif isinstance(op, Add):
            equal.append(block((at, one), (op.inputs[0], -one), (op.inputs[1], -one)))
            equal_right.append(np.zeros(sizes[at]))
        elif isinstance(op, Affine):
            unit = torch.eye(sizes[op.inputs[0]], dtype=torch.float64).reshape(-1, *op.source)
            equal.append(block((at, one), (op.inputs[0], -op.linear(unit).flatten(1).T.numpy())))
            equal_right.append(op(torch.zeros(1, *op.source, dtype=torch.float64)).flatten().numpy())
        else:
            before = op.inputs[0]
            for j, (low, high) in enumerate(zip(*(end.flatten().tolist() for end in bounds[at]), strict=True)):
                x, z = one[j : j + 1], one[j : j + 1]
                if low >= 0:
                    rows = [(block((at, x), (before, -z)), 0.0), (block((at, -x), (before, z)), 0.0)]
                elif high <= 0:
                    rows = [(block((at, x)), 0.0), (block((at, -x)), 0.0)]
                else:
                    slope = high / (high - low)
                    rows = [(block((at, -x)), 0.0), (block((at, -x), (before, z)), 0.0)]
                    rows.append((block((at, x), (before, -slope * z)), -slope * low))
                if at in boxes:
                    rows += [(block((before, z)), high), (block((before, -z)), -low)]
                under += [row for row, _ in rows]
                under_right += [[right] for _, right in rows]
    cost = np.zeros(first[-1])
    cost[first[node] :] = c
    stacked = {"A_eq": np.vstack(equal), "b_eq": np.concatenate(equal_right)} if equal else {}
    stacked |= {"A_ub": np.vstack(under), "b_ub": np.concatenate(under_right)} if under else {}
    return linprog(cost, bounds=limits, **stacked)


@pytest.mark.parametrize("seed", range(3))
def test_sparse_matrices_are_the_maps(seed):
    b = Builder((4, 7, 6))
    b.conv(0, normal(seed, 6, 4, 3, 2), stride=(2, 1), padding=(2, 0, 1, 3))
    b.conv(0, normal(seed, 6, 2, 2, 3), stride=(1, 3), padding=(1, 1, 0, 0), dilation=(2, 2), groups=2)
    b.conv(0, normal(seed, 4, 1, 1, 1), groups=4, stride=(3, 3))
    b.linear(0, normal(seed, 3, 168))
    b.scale(0, normal(seed, 4, 1, 1), 3.0)
    b.scale(0, 2.0)
    b.reorder(0, axes=(2, 0, 1), shape=(3, 56))
    b.sparse(0, (5, 2), (torch.tensor([9, 0, 0, 3]), torch.tensor([0, 167, 5, 5]), normal(seed, 4)), 1.0)
    x = normal(seed + 9, 2, 4, 7, 6)
    for op in b.ops[1:]:
        found = torch.as_tensor(sparse_matrix(op) @ x.flatten(1).T.numpy()).T
        torch.testing.assert_close(found, op.linear(x).flatten(1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("network", NETWORKS, ids=IDS)
@pytest.mark.parametrize("algorithm", ["simplex", "ipm"])
def test_values_are_those_of_a_dense_formulation(network, algorithm):
    lower, upper = box(network)
    bounds = interval_bounds(network, lower, upper)
    for node in range(1, len(network.ops)):
        lp = planet_lp(network, lower, upper, bounds, node, algorithm=algorithm)
        for c in np.random.default_rng(node).normal(size=(3, math.prod(network.ops[node].shape))):
            low, high = (dense_lp(network, lower, upper, bounds, node, sign * c) for sign in (1, -1))
            assert lp.minimise(c).value == pytest.approx(low.fun, rel=1e-6, abs=1e-6)
            found = lp.maximise(torch.as_tensor(c).reshape(network.ops[node].shape))
            assert found.value == pytest.approx(-high.fun, rel=1e-6, abs=1e-6)
            assert found.status == "optimal"
            assert ((lower.numpy() - TOLERANCE <= found.x) & (found.x <= upper.numpy() + TOLERANCE)).all()


@pytest.mark.parametrize("network", NETWORKS, ids=IDS)
def test_exact_bounds_hold_every_sampled_activation(network):
    lower, upper = box(network)
    bounds = interval_bounds(network, lower, upper)
    x = lower + (upper - lower) * torch.rand(2000, network.inputs, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[1000:] = torch.where(x[1000:] > (lower + upper) / 2, upper, lower)
    results = network.run(x.reshape(-1, *network.input_shape))
    for relu in network.relus:
        before = network.ops[relu].inputs[0]
        least, most = exact_bounds(network, lower, upper, bounds, before, range(math.prod(network.ops[before].shape)))
        seen = results[before].flatten(1).numpy()
        assert (least - TOLERANCE <= seen.min(0)).all()
        assert (seen.max(0) <= most + TOLERANCE).all()
        wide = [end.flatten().numpy() for end in bounds[relu]]
        assert (least >= wide[0] - TOLERANCE).all()
        assert (most <= wide[1] + TOLERANCE).all()
        shape = network.ops[relu].shape
        bounds[relu] = (torch.as_tensor(least).reshape(shape), torch.as_tensor(most).reshape(shape))


@pytest.mark.parametrize("seed", range(8))
def test_one_neuron_of_one_input_is_exact(seed):
    """The hull of a graph over an interval: the extremes lie at its ends or at the kink."""
    factors, builder = normal(seed, 4), Builder((1,))
    relu = builder.relu(builder.scale(0, factors[0], factors[1]))
    builder.add(builder.scale(relu, factors[2]), builder.scale(0, factors[3]))
    network, (a, b, c, d) = builder.build(), factors.tolist()
    ends = torch.tensor([a * -1 + b, a + b], dtype=torch.float64)
    bounds = {relu: (ends.min().reshape(1), ends.max().reshape(1))}
    points = [x for x in (-1, 1, -b / a) if -1 <= x <= 1]
    values = [c * max(a * x + b, 0) + d * x for x in points]
    least, most = exact_bounds(network, torch.tensor([-1.0]), torch.tensor([1.0]), bounds, len(network.ops) - 1, [0])
    assert (least[0], most[0]) == pytest.approx((min(values), max(values)), abs=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_leaves_with_boxes_give_the_minimum_of_the_network(seed):
    """Every neuron split both ways: leaves are exact, so that the best of them is attained, and beats no sample."""
    network = connected(seed, (2, 3, 2, 1))
    lower, upper = box(network, 0.8)
    bounds, node = interval_bounds(network, lower, upper), len(network.ops) - 1
    root, best, closed = planet_lp(network, lower, upper, bounds, node).minimise([1.0]), math.inf, 0
    for signs in product((True, False), repeat=5):
        on = dict(zip(network.relus, torch.tensor(signs).split([3, 2]), strict=True))
        if any((torch.where(on[r], most, -least) < 0).any() for r, (least, most) in bounds.items()):
            continue
        leaf = {
            r: (torch.where(on[r], b[0].clamp(min=0), b[0]), torch.where(on[r], b[1], b[1].clamp(max=0))) for r, b in bounds.items()
        }
        found = planet_lp(network, lower, upper, leaf, node, boxes=True).minimise([1.0])
        same = dense_lp(network, lower, upper, leaf, node, [1.0], network.relus)
        assert found.status == {0: "optimal", 2: "infeasible"}[same.status]
        if found.status == "infeasible":
            closed += 1
            assert found.value == math.inf
            assert np.isnan(found.x).all()
            continue
        assert found.value == pytest.approx(same.fun, abs=1e-7)
        assert float(network(torch.as_tensor(found.x)[None])) == pytest.approx(found.value, abs=1e-6)
        best = min(best, found.value)
    samples = lower + (upper - lower) * torch.rand(5000, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert closed
    assert root.value - TOLERANCE <= best <= float(network(samples).min()) + TOLERANCE


def test_boxes_matter_where_neurons_were_split():
    """y = relu(x) - 2 x on [-1, 1] is -x on the side x >= 0 and -2 x on the other, whose ends the split alone does not say."""
    b = Builder((1,))
    relu = b.relu(0)
    node = b.add(relu, b.scale(0, -2.0))
    network, zero, one = b.build(), torch.zeros(1), torch.ones(1)
    for split, free, boxed in (((zero, one), (-1, 1), (-1, 0)), ((-one, zero), (-2, 2), (0, 2))):
        for boxes, ends in ((False, free), ([], free), (True, boxed), ([relu], boxed)):
            least, most = exact_bounds(network, -one, one, {relu: split}, node, [0], boxes=boxes)
            assert (least[0], most[0]) == pytest.approx(ends, abs=1e-8)
    nowhere = {relu: (2 * one, 3 * one)}
    assert exact_bounds(network, -one, one, nowhere, node, [0], boxes=True) == (math.inf, -math.inf)
    assert planet_lp(network, -one, one, nowhere, node).minimise([1.0]).status == "optimal"


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1e-13), (-1e-13, 1.0), (-1e-13, 1e-13), (-1e-6, 1e6), (0.0, 0.0)])
def test_neurons_that_are_hardly_unstable_are_no_trouble(low, high):
    b = Builder((1,))
    relu = b.relu(0)
    b.add(relu, b.scale(0, -1.0))
    ends = torch.tensor([low], dtype=torch.float64), torch.tensor([high], dtype=torch.float64)
    for node, truth in ((relu, (0.0, high)), (relu + 2, (0.0, -low))):
        least, most = exact_bounds(b.build(), *ends, {relu: ends}, node, [0])
        assert (least[0], most[0]) == pytest.approx(truth, rel=1e-9, abs=1e-8)


@pytest.mark.parametrize("solver", ["highs", "gurobi", "cvxpy"])
def test_contradictory_boxes_are_infeasible_for_every_solver(solver):
    pytest.importorskip({"gurobi": "gurobipy", "cvxpy": "cvxpy"}.get(solver, "highspy"))
    b = Builder((1,))
    relu = b.relu(0)
    one = torch.ones(1, dtype=torch.float64)
    lp = planet_lp(b.build(), -one, one, {relu: (2 * one, 3 * one)}, relu, boxes=True, solver=solver)
    assert (lp.minimise([1.0]).value, lp.maximise([1.0]).value) == (math.inf, -math.inf)
    assert lp.minimise([1.0]).status == "infeasible"


def test_objectives_do_not_depend_on_those_before():
    network = connected(4, (6, 12, 12, 5))
    lower, upper = box(network)
    bounds, node = interval_bounds(network, lower, upper), len(network.ops) - 1
    lp = planet_lp(network, lower, upper, bounds, node)
    for c in np.random.default_rng(0).normal(size=(20, 5)):
        fresh = planet_lp(network, lower, upper, bounds, node).minimise(c)
        assert lp.minimise(c).value == pytest.approx(fresh.value, abs=1e-7)


def test_an_early_end_is_told():
    network = connected(3, (8, 30, 30, 4))
    lower, upper = box(network)
    bounds = interval_bounds(network, lower, upper)
    found = planet_lp(network, lower, upper, bounds, len(network.ops) - 1, time_limit=1e-9).minimise(np.ones(4))
    assert found.status == "time limit reached"
    assert math.isnan(found.value)


def test_errors_name_what_is_wrong(monkeypatch):
    network = connected(0)
    lower, upper = box(network)
    bounds, node = interval_bounds(network, lower, upper), len(network.ops) - 1
    with pytest.raises(OptionError, match="'barrier'"):
        planet_lp(network, lower, upper, bounds, node, algorithm="barrier")
    with pytest.raises(OptionError, match="'magic'; choose 'highs'"):
        planet_lp(network, lower, upper, bounds, node, solver="magic")
    with pytest.raises(OptionError, match="'gurobi' takes no algorithm and no time limit"):
        planet_lp(network, lower, upper, bounds, node, solver="gurobi", time_limit=1)
    with pytest.raises(OptionError, match="time_limit"):
        planet_lp(network, lower, upper, bounds, node, time_limit=0)
    with pytest.raises(ModelError, match="no number 99"):
        planet_lp(network, lower, upper, bounds, 99)
    with pytest.raises(ModelError, match="no pre-activation bounds for relu"):
        planet_lp(network, lower, upper, {}, node)
    with pytest.raises(ModelError, match="above the upper bound"):
        planet_lp(network, upper, lower, bounds, node)
    with pytest.raises(NonFiniteError, match="the input"):
        planet_lp(network, lower, upper + math.inf, bounds, node)
    with pytest.raises(ShapeError, match="the input"):
        planet_lp(network, lower[1:], upper, bounds, node)
    with pytest.raises(ShapeError, match="objective"):
        planet_lp(network, lower, upper, bounds, node).minimise([1.0])
    with pytest.raises(NonFiniteError, match="objective"):
        planet_lp(network, lower, upper, bounds, node).maximise([1.0, math.nan])
    with pytest.raises(ShapeError, match="neurons 0 to 1"):
        exact_bounds(network, lower, upper, bounds, node, [2])
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(MissingDependencyError, match="highspy"):
        planet_lp(network, lower, upper, bounds, node)

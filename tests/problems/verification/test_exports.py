"""Every network of the list is read and right, or refused by operator and node: against onnxruntime, at every step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from blocklp.deadline import Deadline
from blocklp.errors import FormatError, ModelError
from blocklp.problems.files import MAX_BYTES
from blocklp.problems.verification import Property, from_torch, network_bounds, verify
from blocklp.problems.verification.onnx_reader import load_onnx, read_onnx
from blocklp.problems.verification.operations import Computed

from ..verification_networks import holds_adjoints
from .exported_networks import DYNAMO, GRAPHS, LEGACY, REFUSED, filled, legacy_export, module_of

READ = [*LEGACY, *DYNAMO, *GRAPHS]
RADIUS = 0.3


def written(name: str, folder: Path) -> Path:
    path = folder / "net.onnx"
    if name in LEGACY:
        legacy_export(name, path)
    else:
        opset, text, *_ = (DYNAMO | GRAPHS | REFUSED)[name]
        onnx.save(filled(text, opset), path)
    return path


def test_nearly_all_networks_of_the_list_are_read() -> None:
    assert len(READ) + len(REFUSED) >= 136
    assert len(READ) >= 125


@pytest.mark.parametrize("name", READ)
def test_network_is_read_and_right(tmp_path: Path, name: str) -> None:
    network, runtime = load_onnx(written(name, tmp_path), MAX_BYTES, Deadline(60))
    rng = np.random.default_rng(5)
    x = np.concatenate([rng.normal(size=(3, network.inputs)), rng.uniform(-RADIUS, RADIUS, (60, network.inputs))]).astype(np.float32)
    y = runtime(x).astype(np.float64)
    own = network(torch.from_numpy(x).double().reshape(-1, *network.input_shape)).numpy()
    np.testing.assert_allclose(y, own, rtol=1e-5, atol=1e-5 * np.abs(own).max())

    holds_adjoints(network)

    low = torch.full(network.input_shape, -RADIUS, dtype=torch.float64)
    bounds = network_bounds(network, low, -low, steps=3).output
    inside = network.run(torch.from_numpy(x[3:]).double().reshape(-1, *network.input_shape))[-1].flatten(1)
    least, most = bounds.lower.flatten(), bounds.upper.flatten()
    assert (least - 1e-9 <= inside).all() and (inside <= most + 1e-9).all()
    assert bool(torch.isfinite(least).all())

    # A threshold that sampled outputs fall below has a counterexample, one below the bound has none.
    ends = np.full(network.inputs, -RADIUS), np.full(network.inputs, RADIUS)
    if network.head is None:
        row, found, proved = np.eye(network.outputs)[:1], float(np.median(y[3:, 0])), float(least[0] - (most[0] - least[0]) / 10)
    else:
        row = np.eye(network.outputs)[:1] - np.eye(network.outputs)[1:2]
        gap = float((inside[:, 0] - inside[:, 1]).median())
        row, found, proved = (row if gap <= 0 else -row), 0.0, -np.inf
    sat = Property.of(*ends, row, [found])
    verdict = verify(network, sat, runtime=runtime, timeout=20)
    assert verdict.status == "sat" and verdict.x is not None
    assert sat.violated(verdict.x, runtime(verdict.x)) is not None
    if proved > -np.inf:
        unsat = Property.of(*ends, row, [proved])
        assert verify(network, unsat, runtime=runtime, timeout=20, attack=False).status == "unsat"

    # Between two float32 points rounding is most of what bounds have to cover; some operations are not bounded in float32.
    if network.head is not None or any(isinstance(op, Computed) for op in network.ops):
        return
    near = np.nextafter(x[0], np.float32(np.inf))
    corners = np.where(rng.random((20, network.inputs)) < 0.5, x[0], near).astype(np.float32)
    y = runtime(corners).astype(np.float64)
    points = (torch.from_numpy(end).double().reshape(network.input_shape) for end in (x[0], near))
    rounded = network_bounds(network.in_float32(), *points, method="crown").output
    assert ((rounded.lower.flatten().numpy() <= y) & (y <= rounded.upper.flatten().numpy())).all()


@pytest.mark.parametrize("name", REFUSED)
def test_refusal_names_operator_node_and_a_way_out(tmp_path: Path, name: str) -> None:
    with pytest.raises(FormatError, match=r"net\.onnx: operator " + REFUSED[name][2]):
        read_onnx(written(name, tmp_path))


@pytest.mark.parametrize("name", [name for name in LEGACY if name not in ("cumulated", "einsum", "stack of matrices")])
def test_module_is_read_and_right(name: str) -> None:
    module, shape = module_of(name), LEGACY[name][2]
    network = from_torch(module, shape)
    x = torch.randn(4, *shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    others = torch.stack([module.double()(point[None]).flatten() for point in x])
    torch.testing.assert_close(network(x), others)


def test_a_softmax_is_compared_and_nothing_else() -> None:
    network = from_torch(module_of("softmax"), (6,))
    box = -np.ones(6), np.ones(6)
    verify(network, Property.of(*box, [[1.0, -1.0, 0.0]], [0.0]))
    for row, right in (([1.0, 0.0, 0.0], 0.5), ([1.0, -1.0, 0.0], 0.1), ([2.0, -1.0, -1.0], 0.0)):
        with pytest.raises(ModelError, match="state the property of the network without its last layer"):
            verify(network, Property.of(*box, [row], [right]))
    logarithm = from_torch(module_of("logarithm of softmax"), (6,))
    verify(logarithm, Property.of(*box, [[2.0, -1.0, -1.0]], [0.1]))
    with pytest.raises(ModelError, match="rows that compare differences"):
        verify(logarithm, Property.of(*box, [[1.0, 0.0, 0.0]], [-0.5]))

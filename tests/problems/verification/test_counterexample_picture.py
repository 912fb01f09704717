"""Pictures of counterexamples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from typer.testing import CliRunner

from blocklp.problems.command_line.app import app
from blocklp.problems.verification import Property, digits, network_bounds, verify
from blocklp.problems.verification.counterexample_picture import plot_verdict
from blocklp.problems.verification.images import arrange, as_picture
from tests.problems.verification_networks import dense, unit_box


@pytest.mark.parametrize("shape", [(3, 5, 4), (5, 4, 3), (60,), (1, 6, 6), (7,)])
def test_inputs_are_images_and_back(shape: tuple[int, ...]) -> None:
    values = np.arange(float(np.prod(shape)))
    picture = as_picture(values, shape)
    assert picture.ndim == 3 and np.array_equal(arrange(picture, shape).ravel(), values)


def test_a_counterexample_is_drawn_beside_the_middle_of_its_box() -> None:
    network, images, _ = digits.load()
    low, high = (images[8] - 1 / 8).clamp(0, 1), (images[8] + 1 / 8).clamp(0, 1)
    prop = Property.robustness(low.flatten(), high.flatten(), 8, 10)
    verdict = verify(network, prop, timeout=60)
    assert verdict.x is not None
    figure = Figure()
    plot_verdict(figure, network, prop, verdict.x, verdict.y)
    middle, point, difference = (a.images[0].get_array() for a in figure.axes[0].child_axes)
    centre = (low + high).numpy()[0] / 2
    x = verdict.x.reshape(8, 8).astype(np.float64)
    assert middle is not None and point is not None and difference is not None
    scale = max(centre.max(), x.max()) - min(centre.min(), x.min())
    assert np.allclose(point - middle, (x - centre) / scale) and np.abs(difference - 0.5).max() == pytest.approx(0.5)
    assert np.array_equal(np.sign(difference - 0.5), np.sign(x - centre))
    lines = figure.axes[1].collections[0]
    assert isinstance(lines, LineCollection)
    bars = np.array(list(lines.get_segments()))[:, :, 1]
    bounds = network_bounds(network, low, high, method="crown").output
    assert np.allclose(bars, torch.stack([bounds.lower, bounds.upper], 1).numpy())
    drawn = [np.asarray(line.get_ydata()) for line in figure.axes[1].lines]
    assert len(drawn) == 2 and drawn[1].argmax() != 8 and drawn[0].argmax() == 8
    for values in drawn:
        assert ((bars[:, 0] <= values) & (values <= bars[:, 1])).all()


def test_few_inputs_are_drawn_as_intervals_and_a_proof_as_bounds() -> None:
    network = dense(1)
    lower, upper = unit_box(network, 1)
    prop = Property.robustness(lower, upper, 0, 2)
    figure, x = Figure(), upper.numpy().astype(np.float32)
    plot_verdict(figure, network, prop, x, network(torch.tensor(x)[None].double())[0].numpy())
    (inner,) = figure.axes[0].child_axes
    assert np.allclose(np.asarray(inner.lines[1].get_ydata()), upper, atol=1e-6)
    proof = Figure()
    plot_verdict(proof, network, prop, None, None)
    assert len(proof.axes) == 1 and len(proof.axes[0].lines) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the legacy exporter is the quick one
def test_the_command_writes_a_picture(tmp_path: Path) -> None:
    model, query, picture = tmp_path / "m.onnx", tmp_path / "q.vnnlib", tmp_path / "p.png"
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    torch.onnx.export(module, (torch.zeros(1, 2),), str(model), dynamo=False)
    lines = [f"(declare-const {name} Real)" for name in ("X_0", "X_1", "Y_0", "Y_1")]
    lines += [f"(assert ({sign} X_{i} {end}))" for i in (0, 1) for sign, end in ((">=", 0.0), ("<=", 1.0))]
    query.write_text("\n".join([*lines, "(assert (<= Y_0 100.0))"]))
    done = CliRunner().invoke(app, ["verify", str(query), "--network", str(model), "--picture", str(picture)])
    assert done.exit_code == 0 and done.stdout.startswith("sat") and picture.read_bytes()[:4] == b"\x89PNG"
    wrong = CliRunner().invoke(app, ["verify", str(query), "--network", str(model), "--picture", str(tmp_path / "p.txt")])
    assert wrong.exit_code == 2 and "suffix" in wrong.output

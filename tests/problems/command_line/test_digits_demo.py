"""The network that reads digits: what is stored, how it was trained, and what the demo says about it."""

import io
import subprocess
import sys
from importlib.resources import files

import numpy as np
import pytest
import torch
from rich.console import Console

from blocklp.problems.command_line import demo
from blocklp.problems.verification import digits, network_bounds
from blocklp.problems.verification.digits import train


def test_the_network_and_its_digits_are_small_and_whole():
    folder = files(digits)
    assert len((folder / "digits.npz").read_bytes()) < 60_000
    assert "CC BY 4.0" in (folder / "SOURCE.md").read_text()
    network, images, labels = digits.load()
    assert images.shape == (10, 1, 8, 8) and images.dtype == torch.float64
    assert labels.tolist() == list(range(10))
    assert images.min() == 0 and images.max() == 1 and torch.equal(images * 16, (images * 16).round())
    assert sum(int(np.prod(network.ops[r].shape)) for r in network.relus) == 800
    with torch.no_grad():
        told = digits.module().double()(images)
    torch.testing.assert_close(network(images), told, rtol=1e-12, atol=1e-12)
    assert told.argmax(1).tolist() == list(range(10))


def test_loading_takes_nothing_that_is_optional():
    code = (
        "import sys; from blocklp.problems.verification import digits; digits.load();"
        "print([m for m in ('onnx', 'onnxruntime', 'sklearn', 'highspy', 'matplotlib') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_training_learns_repeats_itself_and_keeps_to_half_precision(tmp_path):
    _, images, labels = digits.load()
    once, again = (train.train(images.float(), labels, epochs=80, seed=1) for _ in range(2))
    assert train.accuracy(once, images.float(), labels) == 1
    for a, b in zip(once.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b) and torch.equal(a, a.half().float()) and a.dtype == torch.float32
    train.save(tmp_path / "found.npz", once, images.flip(0), labels.flip(0))
    with np.load(tmp_path / "found.npz") as stored:
        for name, tensor in once.state_dict().items():
            assert torch.equal(torch.from_numpy(stored[name]).float(), tensor)
        assert stored["labels"].tolist() == list(range(10))
        assert np.array_equal(stored["images"], images[:, 0].numpy() * 16)


def test_an_attack_stays_in_its_box():
    _, images, labels = digits.load()
    torch.manual_seed(0)
    net, images = digits.module(), images.float()
    worse = train.attacked(net, images, labels, 2 * digits.GREY, 10)
    assert float((worse - images).abs().max()) <= 2 * digits.GREY + 1e-6 and worse.min() >= 0 and worse.max() <= 1
    loss = torch.nn.functional.cross_entropy
    assert loss(net(worse), labels) > loss(net(images), labels)


def test_the_digits_are_those_of_scikit_learn_beyond_the_trained_ones():
    found = pytest.importorskip("sklearn.datasets", reason="scikit-learn, of the extra train, is not installed").load_digits()
    _, images, labels = digits.load()
    pixels, classes = found.images[train.TRAINED :] / 16, found.target[train.TRAINED :]
    for image, label in zip(images, labels, strict=True):
        assert np.array_equal(pixels[(classes == int(label)).argmax()], image[0].numpy())


def test_margins_are_differences_of_outputs():
    network, images, _ = digits.load()
    outputs = network(images)
    for label in (0, 4, 9):
        others = [j for j in range(10) if j != label]
        told = demo.margin_network(network, label)(images)
        torch.testing.assert_close(told, outputs[:, [label]] - outputs[:, others], rtol=1e-12, atol=1e-12)


@pytest.fixture(scope="module")
def rows():
    return demo.read_digits()


@pytest.mark.slow
def test_bounds_of_the_demo_are_below_every_margin_of_the_box(rows):
    network, images, _ = digits.load()
    draw = torch.Generator().manual_seed(0)
    for row in rows:
        image, radius = images[row.label], row.levels * digits.GREY
        corners = image + radius * (2 * torch.randint(0, 2, (500, *image.shape), generator=draw) - 1)
        attack = train.attacked(
            digits.module(), image[None].float().expand(20, -1, -1, -1), torch.full((20,), row.label), radius, 20
        ).double()
        attack = attack.clamp((image - radius).clamp(0, 1), (image + radius).clamp(0, 1))
        margins = demo.margin_network(network, row.label)(torch.cat([image[None], corners.clamp(0, 1), attack]))
        assert float(margins[0].min()) == pytest.approx(row.margin, rel=1e-12)
        assert set(row.bounds) == {"interval", "crown", "slopes"}
        assert max(row.bounds.values()) <= margins.min() + 1e-12


def test_verdicts_of_the_demo_are_true(rows):
    network, images, _ = digits.load()
    assert [(row.label, row.levels) for row in rows] == [(label, levels) for levels in (1, 2) for label in (2, 3, 5, 8)]
    seen = {row.verdict.status for row in rows}
    assert {"unsat", "sat"} <= seen <= {"unsat", "sat", "unknown", "timed-out"}
    for row in rows:
        if row.verdict.status == "sat":
            x = torch.from_numpy(row.verdict.x).double().view(1, 1, 8, 8)
            assert float((x - images[row.label]).abs().max()) <= row.levels * digits.GREY and x.min() >= 0 and x.max() <= 1
            assert network(x)[0].argmax() != row.label or demo.margin_network(network, row.label)(x).min() < 1e-5
        elif max(row.bounds.values()) > 0:
            assert row.verdict.status == "unsat"


def test_the_table_says_what_was_found(rows):
    console = Console(width=80, record=True, file=io.StringIO(), force_terminal=True)
    demo.show_digits(rows, console)
    shown = console.export_text()
    assert all(len(line.rstrip()) <= 80 for line in shown.splitlines())
    assert "verified" in shown and "counterexample" in shown
    assert f"{sum(row.verdict.status == 'unsat' for row in rows)} of {len(rows)} verified" in " ".join(shown.split())


def test_the_exact_lp_of_a_margin_is_above_the_bound():
    network, images, _ = digits.load()
    low, high = ((images[8] + side * 0.5 * digits.GREY).clamp(0, 1) for side in (-1, 1))
    margins = demo.margin_network(network, 8)
    found = network_bounds(margins, low, high, method="crown")
    truth = network_bounds(margins, low, high, method="exact").output.lower
    assert (found.output.lower <= truth + 1e-6).all()

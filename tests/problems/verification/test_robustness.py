"""Robust accuracy of many images, against verdicts image by image."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from blocklp.errors import FormatError, ModelError, OptionError, ShapeError
from blocklp.problems.command_line.app import app
from blocklp.problems.command_line.robust import results_of
from blocklp.problems.verification import Builder, Property, certified_radii, digits, network_bounds, robust_accuracy, verify
from blocklp.problems.verification.images import read_images
from blocklp.problems.verification.robustness import RobustAccuracy

from ..verification_networks import conv, dense, residual, unit_box

NETWORK, IMAGES, LABELS = digits.load()
# At this radius the eight takes a long search, and two others a search of a few nodes.
EASY = [0, 1, 2, 3, 4, 5, 6, 7, 9]
IMAGES, LABELS = IMAGES[EASY], LABELS[EASY]
EPS = 1.5 / 16


@pytest.fixture(scope="module")
def found() -> RobustAccuracy:
    wrong = LABELS.clone()
    wrong[5] = 6  # one label that the network does not give
    return robust_accuracy(NETWORK, IMAGES, wrong, EPS)


def test_every_image_has_the_verdict_that_it_has_alone(found: RobustAccuracy) -> None:
    kinds = {"unsat": "verified", "sat": "attacked"}
    assert [result.image for result in found.results] == list(range(9))
    assert found.count("verified") and found.count("attacked"), "the radius tells nothing of the one or the other"
    for image, result in zip(IMAGES, found.results, strict=True):
        if result.image == 5:
            assert result.status == "misclassified"
            continue
        low, high = (image - EPS).clamp(0, 1).flatten(), (image + EPS).clamp(0, 1).flatten()
        assert result.status == kinds[verify(NETWORK, Property.robustness(low, high, result.label, 10)).status]
    assert found.natural == pytest.approx(8 / 9) and found.count("verified") + found.count("attacked") == 8


def test_a_counterexample_is_in_the_box_and_a_margin_is_below_all_samples(found: RobustAccuracy) -> None:
    generator = torch.Generator().manual_seed(0)
    for image, result in zip(IMAGES, found.results, strict=True):
        low, high = (image - EPS).clamp(0, 1), (image + EPS).clamp(0, 1)
        if result.x is not None:
            point = torch.from_numpy(result.x).view(image.shape)
            assert bool(((low <= point.double()) & (point.double() <= high)).all())
            outputs = NETWORK.to(torch.float32)(point[None])[0]
            assert outputs.argmax() != result.label or outputs.sort().values[-2] == outputs.max()
        if result.status == "verified":
            x = low + (high - low) * torch.randint(2, (500, *image.shape), generator=generator)
            outputs = NETWORK(x)
            own = outputs[:, result.label].clone()
            outputs[:, result.label] = -torch.inf
            assert 0 < result.bound <= (own - outputs.max(1).values).min()


def test_a_radius_for_each_pixel_holds_the_others_still() -> None:
    still = robust_accuracy(NETWORK, IMAGES[:3], LABELS[:3], np.zeros((8, 8)))
    assert still.verified == 1.0
    half = np.zeros((8, 8))
    half[:, :4] = 1.0
    found = robust_accuracy(NETWORK, IMAGES[:3], LABELS[:3], half)
    moved = [(torch.from_numpy(r.x).view(8, 8) - IMAGES[r.image, 0])[:, 4:] for r in found.results if r.x is not None]
    assert moved and all(bool((m == 0).all()) for m in moved)


@pytest.mark.parametrize("network", [dense(0), conv(0), residual(0)], ids=["dense", "conv", "residual"])
@pytest.mark.parametrize("method", ["interval", "crown", "slopes"])
def test_bounds_of_several_boxes_are_those_of_each(network, method) -> None:  # type: ignore[no-untyped-def]
    lower, upper = unit_box(network, 1)
    middle = (lower + upper) / 2
    low, high = torch.stack([lower, lower, middle]), torch.stack([upper, middle, upper])
    together = network_bounds(network, low, high, method=method, gap=method == "slopes")
    for box in range(3):
        alone = network_bounds(network, low[box], high[box], method=method)
        for several, one in zip(together.layers, alone.layers, strict=True):
            if method != "slopes":  # ascents differ by rounding
                torch.testing.assert_close(several.lower[box], one.lower, rtol=0, atol=1e-9)
                torch.testing.assert_close(several.upper[box], one.upper, rtol=0, atol=1e-9)
    outputs = network(low[1] + (high[1] - low[1]) * torch.rand(200, *lower.shape, dtype=torch.float64))
    assert bool((outputs >= together.output.lower[1].flatten()).all() and (outputs <= together.output.upper[1].flatten()).all())


def test_known_bounds_must_be_of_the_box_and_leave_the_verdict() -> None:
    low, high = (IMAGES[3] - EPS).clamp(0, 1), (IMAGES[3] + EPS).clamp(0, 1)
    known = network_bounds(NETWORK, low, high, method="crown")
    prop = Property.robustness(low.flatten(), high.flatten(), 3, 10)
    status = verify(NETWORK, prop).status
    assert [verify(NETWORK, prop, known=given).status for given in (known, known.relaxation)] == [status] * 2
    wider = Property.robustness(low.flatten() - 0.1, high.flatten(), 3, 10)
    several = network_bounds(NETWORK, torch.stack([low, low]), torch.stack([high, high]), method="interval")
    for given, claim in ((known, wider), (several, prop)):
        with pytest.raises(ModelError, match="not those of one box or ball that holds clause 0"):
            verify(NETWORK, claim, known=given)
    other = network_bounds(conv(0), *unit_box(conv(0), 1), method="interval")
    with pytest.raises(ModelError, match="known bounds are those of another network"):
        verify(NETWORK, prop, known=other)
    with pytest.raises(OptionError, match=r"known is .*; give what network_bounds"):
        verify(NETWORK, prop, known=prop)  # type: ignore[arg-type]


def test_images_may_require_gradients() -> None:
    given = IMAGES[:2].clone().requires_grad_()
    found, same = robust_accuracy(NETWORK, given, LABELS[:2], 1 / 64), robust_accuracy(NETWORK, IMAGES[:2], LABELS[:2], 1 / 64)
    assert [result.bound for result in found.results] == [result.bound for result in same.results]
    assert Property.robustness((given[0] - 0.1).flatten(), given[0].flatten() + 0.1, 0, 10).inputs == 64


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ShapeError, match="one whole number for each image"):
        robust_accuracy(NETWORK, IMAGES, LABELS[:8], EPS)
    with pytest.raises(ModelError, match="labels are 0 to 10"):
        robust_accuracy(NETWORK, IMAGES, LABELS + (LABELS == 9), EPS)
    with pytest.raises(ModelError, match="outside of"):
        robust_accuracy(NETWORK, IMAGES * 16, LABELS, EPS)
    with pytest.raises(OptionError, match=r"runtime is 'm.onnx'; give a function of inputs"):
        certified_radii(NETWORK, IMAGES, LABELS, runtime="m.onnx")  # type: ignore[arg-type]
    for eps, error in ((-0.1, OptionError), (math.nan, OptionError), ("1/16", OptionError), (np.zeros(3), ShapeError)):
        with pytest.raises(error, match="eps"):
            robust_accuracy(NETWORK, IMAGES, LABELS, eps)
    with pytest.raises(ShapeError, match="a dimension of boxes in front"):
        network_bounds(NETWORK, IMAGES, IMAGES[:2])
    with pytest.raises(OptionError, match="one box at a time"):
        network_bounds(NETWORK, IMAGES, IMAGES, method="prox")


def test_a_target_is_the_only_class_of_counterexamples() -> None:
    targets = (LABELS + 1) % 10
    found = robust_accuracy(NETWORK, IMAGES, LABELS, 2.5 / 16, targets=targets, timeout=1.0)
    assert found.count("verified")
    for image, target, result in zip(IMAGES, targets.tolist(), found.results, strict=True):
        low, high = ((image + side * 2.5 / 16).clamp(0, 1) for side in (-1, 1))
        if result.x is not None:
            outputs = NETWORK.to(torch.float32)(torch.from_numpy(result.x).view(1, *image.shape))[0]
            assert outputs[target] >= outputs[result.label]
        if result.status == "verified":
            outputs = NETWORK(low + (high - low) * torch.randint(2, (500, *image.shape), generator=torch.Generator().manual_seed(1)))
            assert float((outputs[:, result.label] - outputs[:, target]).min()) > result.bound > 0
    alone = robust_accuracy(NETWORK, IMAGES[:1], LABELS[:1], 1.0, targets=[8])
    assert alone.results[0].status == "attacked" and alone.results[0].x is not None
    outputs = NETWORK.to(torch.float32)(torch.from_numpy(alone.results[0].x).view(1, *IMAGES[0].shape))[0]
    assert outputs[8] >= outputs[0]
    with pytest.raises(ModelError, match="target of image 2 is 2"):
        robust_accuracy(NETWORK, IMAGES, LABELS, EPS, targets=[1, 2, 2, 4, 5, 6, 7, 8, 0])


def test_certified_radii_are_those_of_one_neuron() -> None:
    # y0 = x, y1 = 1 - relu(x): an x of 0.8 is of class 0 as long as it stays above 1/2.
    builder = Builder((1,), "two classes")
    hidden = builder.relu(builder.linear(0, torch.tensor([[1.0]])))
    builder.linear(hidden, torch.tensor([[1.0], [-1.0]]), torch.tensor([0.0, 1.0]))
    network = builder.build()
    rounds: list[float] = []
    found = certified_radii(
        network, [[0.8], [0.9], [0.2]], [0, 0, 0], precision=1e-3, callback=lambda known: rounds.append(known[1].certified)
    )
    for one, truth in zip(found[:2], (0.3, 0.4), strict=True):
        assert truth - 2e-3 <= one.certified <= truth <= one.attacked + 1e-7 <= truth + 2e-3
        assert one.x is not None and float(one.x[0]) <= 0.5
    assert all(one.finished for one in found)

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    begun = certified_radii(network, [[0.8], [0.2]], [0, 0], precision=1e-3, callback=interrupt)
    assert [one.finished for one in begun] == [False, True] and 0.3 <= begun[0].attacked <= 1.0
    assert found[2].predicted == 1 and math.isnan(found[2].certified) and math.isnan(found[2].attacked)
    assert rounds == sorted(rounds) and 2 <= len(rounds) <= 12
    robust = certified_radii(network, [[0.9]], [0], most=0.25)[0]
    assert robust.certified == 0.25 and robust.attacked == math.inf and robust.x is None
    with pytest.raises(OptionError, match="at most 1"):
        certified_radii(network, [[0.9]], [0], most=2.0)
    with pytest.raises(OptionError, match="below it"):
        certified_radii(network, [[0.9]], [0], precision=1.0)


def test_a_network_prints_as_a_table() -> None:
    first, heading, *rows = str(NETWORK).splitlines()
    assert first == repr(NETWORK) and "3 layers of 800 ReLUs" in first and f"{NETWORK.weights} weights" in first
    assert heading.split() == ["operation", "name", "shape", "weights", "of"] and len(rows) == len(NETWORK.ops)
    counts = [int(row.split(")")[1].split()[0].replace(",", "")) for row in rows if "Conv" in row or "Linear" in row]
    assert sum(counts) == sum(p.numel() for p in digits.module().parameters())


def test_results_print_short(found: RobustAccuracy) -> None:
    assert len(repr(found)) < 300 and f"{found.count('verified')}" in repr(found)
    bounds = network_bounds(NETWORK, (IMAGES - EPS).clamp(0, 1), (IMAGES + EPS).clamp(0, 1), method="crown")
    assert len(repr(bounds)) < 600 and f"{bounds.unstable} unstable" in repr(bounds)
    assert len(repr(bounds.layers)) < 500 and "tensor" not in repr(bounds.layers)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the legacy exporter is the quick one
def test_the_command_goes_on_where_it_ended(tmp_path: Path, found: RobustAccuracy, monkeypatch: pytest.MonkeyPatch) -> None:
    model, table, out = tmp_path / "digits.onnx", tmp_path / "digits.csv", tmp_path / "out.jsonl"
    torch.onnx.export(digits.module(), (torch.zeros(1, 1, 8, 8),), str(model), dynamo=False)
    np.save(tmp_path / "images.npy", IMAGES.numpy())
    np.save(tmp_path / "labels.npy", np.array([0, 1, 2, 3, 4, 6, 6, 7, 9]))
    command = ["robust", str(model), "--images", str(tmp_path / "images.npy"), "--labels", str(tmp_path / "labels.npy")]
    command += ["--eps", "3/32", "--results", str(out)]
    begun = CliRunner().invoke(app, [*command, "--first", "4"])
    assert begun.exit_code == 0 and "4 of 4 images" in begun.stdout
    lines = out.read_text().splitlines()
    out.write_text("\n".join(lines) + '\n{"image": 9, "la')  # what a run that was killed leaves
    ended = CliRunner().invoke(app, [*command, "--json"])
    assert ended.exit_code == 0, ended.output
    assert out.read_text().splitlines()[:5] == lines and len(out.read_text().splitlines()) == 10
    entries = json.loads(ended.stdout)
    assert [e["status"] for e in entries["results"]] == [r.status for r in found.results]
    assert entries["verified"] == found.verified and entries["natural"] == found.natural

    others = CliRunner().invoke(app, [*command[:-2], "--target", "6", "--json"])
    assert [e["image"] for e in json.loads(others.stdout)["results"]] == [0, 1, 2, 3, 4, 7, 8]
    radii = CliRunner().invoke(app, [*command[:-2], "--radius", "--precision", "1/64", "--first", "2", "--timeout", "0.2", "--json"])
    assert all(0 <= e["certified"] <= 3 / 32 for e in json.loads(radii.stdout)["results"]) and radii.exit_code == 0
    assert (
        "median certified radius" in CliRunner().invoke(app, [*command[:-2], "--radius", "--timeout", "0.1", "--first", "2"]).stdout
    )

    ball = CliRunner().invoke(app, [*command[:-2], "--norm", "l2", "--first", "2", "--json"])
    within = robust_accuracy(NETWORK, IMAGES[:2], [0, 1], 3 / 32, norm="l2")
    assert json.loads(ball.stdout)["norm"] == "l2"
    assert [e["status"] for e in json.loads(ball.stdout)["results"]] == [r.status for r in within.results]
    refused = CliRunner().invoke(app, [*command, "--norm", "l2"])
    assert refused.exit_code == 2 and "norm 'linf', not 'l2'" in refused.output

    table.write_text("3,0,255\n4,0,9\n")
    short = CliRunner().invoke(app, ["robust", str(model), "--images", str(table), "--eps", "0.1"])
    assert "give 64 numbers a row, in a .csv file after the class" in short.output

    # All are there: nothing is run, and the table is that of the file.
    import blocklp.problems.verification.robustness as module

    monkeypatch.setattr(module, "robust_accuracy", lambda *a, **k: pytest.fail("an image with a line was run again"))
    shown = CliRunner().invoke(app, command)
    assert f"robust accuracy between {found.verified:.4g} and {found.upper:.4g}" in shown.stdout and "88.9 %" in shown.stdout
    with pytest.raises(OptionError, match=r"results with eps 0\.09375, not 0\.25"):
        results_of(out.read_text(), out, json.loads(lines[0]) | {"eps": 0.25})
    with pytest.raises(FormatError, match="no result"):
        results_of(lines[0] + "\n{}\n", out, json.loads(lines[0]))
    table.write_text("3,0,255\n4,0\n")
    with pytest.raises(FormatError, match="different numbers of pixels"):
        read_images(table)
    with pytest.raises(OptionError, match="--labels"):
        read_images(tmp_path / "images.npy")

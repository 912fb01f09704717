"""The pictures that are made, their measure, and training on them."""

from __future__ import annotations

import copy

import torch

from blocklp.problems.densecrf.layers import DenseCRFLayer
from blocklp.problems.densecrf.shapes_example import LABELS, NOISE, SIZE, PixelNetwork, _command, mean_iou, shapes, train


def test_pictures_are_the_same_for_a_seed_and_hold_all_labels() -> None:
    one, two, other = shapes(6, 3), shapes(6, 3), shapes(6, 4)
    assert torch.equal(one.images, two.images) and torch.equal(one.truth, two.truth) and not torch.equal(one.truth, other.truth)
    assert one.images.shape == (6, 3, SIZE, SIZE) and one.images.min() >= 0 and one.images.max() <= 255
    assert one.truth.unique().tolist() == list(range(LABELS))
    ground = one.images[one.truth[:, None].expand_as(one.images) == 0]
    assert 0.8 * NOISE < ground.std() < NOISE + 10


def test_mean_iou_by_counting() -> None:
    draw = torch.Generator().manual_seed(0)
    found, truth = (torch.randint(0, 4, (3, 5, 6), generator=draw) for _ in range(2))
    truth[truth == 2] = -1
    found[found == 3] = 0
    shares = []
    for label in range(5):
        pairs = [(int(f), int(t)) for f, t in zip(found.flatten(), truth.flatten(), strict=True) if t >= 0]
        both = sum(f == label and t == label for f, t in pairs)
        either = sum(label in pair for pair in pairs)
        shares += [both / either] if either else []
    assert len(shares) == 4  # label 4 is nowhere, label 3 was never found
    assert abs(mean_iou(found, truth, 5) - sum(shares) / 4) < 1e-12
    assert mean_iou(truth.clamp(min=0), truth, 4) == 1


def test_training_together_gains_what_vanilla_frank_wolfe_cannot() -> None:
    """Figure 1c: no gradient reaches the kernels through labellings of least cost."""
    known, held_back = shapes(8, 0), shapes(8, 1)
    torch.manual_seed(0)
    network = PixelNetwork()
    train(network, known, held_back, 40, (0.01, 0.0))
    gains = {}
    for method in ("l2fw", "fw"):
        joint = copy.deepcopy(network)
        joint.crf = DenseCRFLayer(LABELS, method=method, smooth=(2.0, 1.0), bilateral=(8.0, 100.0, 1.0), skip=True)
        weights = joint.crf.log_weights.detach().clone()
        before = joint.measure(held_back)
        gains[method] = train(joint, known, held_back, 5, (0.001, 0.05))[-1] - before
        assert torch.equal(joint.crf.log_weights.detach(), weights) == (method == "fw")
    assert gains["l2fw"] > 0.05 and gains["l2fw"] > gains["fw"] + 0.02


def test_the_command_prints_a_row_for_each_method(capsys) -> None:
    _command(seeds=1, epochs=1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["mIoU,", "per", "cent", "untrained", "epoch", "1"] and len(lines) == 9
    assert [line.split("  ")[0] for line in lines[1:]] == ["no layer", "mean-field", "efw", "l2fw", "fw", "pgd", "prox-grad", "admm"]

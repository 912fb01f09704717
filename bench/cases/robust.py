"""Robust accuracy of many images at once, and image by image."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from bench.data import data
from bench.registry import Record, case, threads
from bench.verification_data import MEAN, NETS, STD, images
from blocklp.problems.verification.images import Image, image_box, read_images
from blocklp.problems.verification.onnx_files import Runtime
from blocklp.problems.verification.onnx_reader import read_onnx
from blocklp.problems.verification.properties import Property
from blocklp.problems.verification.robustness import robust_accuracy
from blocklp.problems.verification.verify import verify

RADIUS = 2 / 255
IMAGES = 50
TIMEOUT = 60.0
KINDS = {"unsat": "verified", "sat": "attacked"}


@case(
    "robust",
    "Networks: robust accuracy of CIFAR-10 images",
    "Fifty test images, 2/255, cifar_base_kw of oval21, at most 60 seconds an image, one thread. `batch`: `robust_accuracy`, "
    "`alone`: `verify` of every image that is classified rightly; CPU seconds. `ratio`: `alone` over `batch`. `other`: images "
    "with another result alone.",
)
def run(quick: bool) -> list[Record]:
    with threads(1):
        return [_compare(10 if quick else IMAGES)]


def _compare(count: int) -> Record:
    path: Path = data(NETS["base"])
    network, runtime = read_onnx(path), Runtime(path)
    pixels, labels = (array[:count] for array in read_images(images()))
    pixels = pixels.reshape(count, 32, 32, 3)
    began = time.process_time()
    found = robust_accuracy(network, pixels, labels, RADIUS, mean=MEAN, std=STD, timeout=TIMEOUT, runtime=runtime)
    batch = time.process_time() - began
    began, alone = time.process_time(), []
    for own, label in zip(pixels, labels.tolist(), strict=True):
        lower, upper, point = image_box(Image(own), network.input_shape, RADIUS, MEAN, STD, "pixel")
        if int(network(point[None])[0].argmax()) != label:
            alone.append("misclassified")
            continue
        prop = Property.robustness(lower.flatten(), upper.flatten(), label, network.outputs)
        alone.append(KINDS.get(verify(network, prop, timeout=TIMEOUT, runtime=runtime).status, "undecided"))
    seconds = time.process_time() - began
    record: Record = {
        "images": count,
        "natural": found.natural,
        "verified": found.count("verified"),
        "attacked": found.count("attacked"),
        "undecided": found.count("undecided"),
        "other": sum(one != result.status for one, result in zip(alone, found.results, strict=True)),
        "batch": batch,
        "alone": seconds,
        "ratio": seconds / batch,
    }
    print(record, file=sys.stderr, flush=True)
    return record

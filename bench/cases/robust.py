"""Robust accuracy of many images at once, and image by image."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
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
MORE = "BLOCKLP_CIFAR10"
"""Names a file of more images: a row each of the class and 3072 values from 0 to 255, channels last."""
TIMEOUT = 60.0
COMMANDS = 10
KINDS = {"unsat": "verified", "sat": "attacked"}


@case(
    "robust",
    "Networks: robust accuracy of CIFAR-10 images",
    "The first test images, 2/255, cifar_base_kw of oval21, at most 60 seconds an image, one thread; CPU seconds of all images. "
    "`batch`: `robust_accuracy`, in a process that is there. `alone`: `verify` of every image that is classified rightly, in the "
    f"same process. `commands`: `blocklp robust` of one image each, as the mean of the first {COMMANDS} says. Ratios are over "
    f"`batch`. `other`: images with another result alone. A thousand images are those of the file that `{MORE}` names.",
)
def run(quick: bool) -> Iterator[Record]:
    with threads(1):
        yield _compare(images(), 10 if quick else 50)
        if MORE in os.environ and not quick:
            yield _compare(Path(os.environ[MORE]), 1000)


def _compare(file: Path, count: int) -> Record:
    path: Path = data(NETS["base"])
    network, runtime = read_onnx(path), Runtime(path)
    pixels, labels = (array[:count] for array in read_images(file))
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
    commands = count * _command(path, file)
    record: Record = {
        "images": count,
        "natural": found.natural,
        "verified": found.count("verified"),
        "attacked": found.count("attacked"),
        "undecided": found.count("undecided"),
        "other": sum(one != result.status for one, result in zip(alone, found.results, strict=True)),
        "batch": batch,
        "alone": seconds,
        "alone ratio": seconds / batch,
        "commands": commands,
        "commands ratio": commands / batch,
    }
    print(record, file=sys.stderr, flush=True)
    return record


def _command(network: Path, file: Path) -> float:
    """CPU seconds of a command for one image."""
    numbers = [",".join(str(value) for value in values) for values in (MEAN, STD)]
    options = ["--eps", "2/255", "--mean", numbers[0], "--std", numbers[1], "--timeout", str(TIMEOUT), "--json", "--quiet"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder, file.open() as rows:
        for row, _ in zip(rows, range(COMMANDS), strict=False):
            (own := Path(folder) / "image.csv").write_text(row)
            command = [str(Path(sys.executable).with_name("blocklp")), "robust", str(network), "--images", str(own), *options]
            subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / COMMANDS

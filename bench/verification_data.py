"""Networks, images and boxes of the verification cases, and the rival that runs in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.data import data
from blocklp.problems.verification import from_torch
from blocklp.problems.verification.images import image_box, read_image
from blocklp.problems.verification.network import Network
from blocklp.problems.verification.onnx_reader import read_onnx
from blocklp.problems.verification.operations import Conv, Linear, Relu, Reorder
from blocklp.problems.verification.relaxation import Relaxation
from blocklp.problems.verification.slopes import SlopeDual
from blocklp.problems.verification.tightener import Tightener
from blocklp.search.parameter_ascent import ascend

ROOT = Path(__file__).parents[1]
NETS = {
    "sgd": "verification/decomposition_plnn/cifar_sgd_8px.pth",
    "madry": "verification/decomposition_plnn/cifar_madry_8px.pth",
    "base": "verification/oval21/nets/cifar_base_kw.onnx",
    "wide": "verification/oval21/nets/cifar_wide_kw.onnx",
    "deep": "verification/oval21/nets/cifar_deep_kw.onnx",
}
"""CIFAR-10 networks; their input is (pixel - MEAN) / STD."""
MEAN, STD = (0.485, 0.456, 0.406), (0.225,)

RIVAL = "BLOCKLP_AUTO_LIRPA"
"""Names the folders, separated as in PYTHONPATH, with the sources of auto_LiRPA and what it needs."""


@dataclass(frozen=True)
class Problem:
    """A network, a box of inputs around an image and the rows "label minus other"."""

    net: str
    radius: int
    row: int
    network: Network
    lower: Tensor
    upper: Tensor
    rows: Tensor  # (others, outputs) float64

    @property
    def name(self) -> str:
        """What to call it."""
        return f"{self.net}, {self.radius}/255"

    @property
    def node(self) -> int:
        """Position of the outputs."""
        return len(self.network.ops) - 1

    @property
    def relus(self) -> list[int]:
        """Positions of all ReLUs."""
        return list(self.network.relus)

    def layers(self, steps: int) -> Tightener:
        """Bound all hidden layers; one step is CROWN."""
        tightener = Tightener(self.network, self.lower[None], self.upper[None], steps, output=False)
        tightener.run()
        return tightener


def network_of(net: str) -> Network:
    """A network of :data:`NETS`; those of the UAI 2020 paper are published as PyTorch checkpoints of one architecture."""
    path = data(NETS[net])
    if path.suffix == ".onnx":
        return read_onnx(path)
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(), nn.Flatten()]
    module = nn.Sequential(*layers, nn.Linear(2048, 100), nn.ReLU(), nn.Linear(100, 10))
    [state] = torch.load(path, weights_only=True, map_location="cpu")["state_dict"]
    module.load_state_dict(state)
    return from_torch(module, (3, 32, 32))


def images() -> Path:
    """Images of CIFAR-10 with labels: the first hundred of the test set, or the first fifty of them."""
    try:
        return data("verification/images/cifar10_test_rows0-49.csv")
    except FileNotFoundError:
        return data("verification/images/cifar10_test.csv")


def problem(net: str, radius: int, row: int) -> Problem:
    """Read a network and the valid pixels within ``radius``/255 of a test image."""
    network = network_of(net)
    image = read_image(images(), row)
    lower, upper, _ = image_box(image, network.input_shape, radius / 255, MEAN, STD, "pixel")
    assert image.label is not None
    others = [k for k in range(network.outputs) if k != image.label]
    rows = torch.zeros(len(others), network.outputs, dtype=torch.float64)
    rows[:, image.label] = 1
    rows[torch.arange(len(others)), others] -= 1
    return Problem(net, radius, row, network, lower, upper, rows)


def slopes(
    relaxation: Relaxation, node: int, cost: Tensor, relus: list[int], steps: int, gap: bool = False
) -> tuple[Tensor, Tensor | None, float]:
    """Bounds of ``min <cost, result of node>`` by ascent over slopes in float32, as :func:`network_bounds` makes them.

    They are evaluated in float64 with all rounding charged.  Returns bounds, feasible values (with ``gap``), seconds.
    """
    began = time.perf_counter()
    dual = SlopeDual(relaxation.to(torch.float32), node, cost.float(), relus, {}, averaged=gap)
    reached = ascend(dual, dual.start(), steps)
    best, _ = dual.named([p.double() for p in reached.parameters])
    value = relaxation.backward(node, cost, best, charge=True).value
    if not gap:
        return value, None, time.perf_counter() - began
    assert dual.x is not None
    precise = SlopeDual(relaxation, node, cost, relus, {}, x=dual.x.double())
    precise.trace = relaxation.backward(node, cost, best)
    return value, precise.primal(), time.perf_counter() - began


def error(bound: Tensor, worst: Tensor, exact: Tensor) -> Tensor:
    """What is open of the way from a first bound to the exact value, in percent."""
    return (exact - bound) / (exact - worst) * 100


def _described(network: Network) -> list[dict[str, Any]]:
    """The layers of a chain of convolutions, linear maps and ReLUs, float32."""
    layers: list[dict[str, Any]] = []
    for at, op in enumerate(network.ops[1:], 1):
        if op.inputs != (at - 1,):
            raise ValueError(f"{network.name}: {op.name} is no link of a chain")
        if isinstance(op, Conv) and op.dilation == (1, 1) and len(set(op.padding)) == 1:
            entry = {"stride": op.stride, "padding": op.padding[0], "groups": op.groups}
            layers.append({"kind": "conv", "weight": op.weight.float(), "bias": op.bias.float(), **entry})
        elif isinstance(op, Linear):
            layers.append({"kind": "linear", "weight": op.weight.float(), "bias": op.bias.float()})
        elif isinstance(op, Relu):
            layers.append({"kind": "relu"})
        elif not (isinstance(op, Reorder) and op.axes == tuple(range(len(op.axes)))):
            raise ValueError(f"{network.name}: {op.name} has no counterpart for the rival")
    return layers


def rival(
    given: Problem, relaxation: Relaxation | None, iterations: Iterable[int], repeats: int = 1, **options: Any
) -> list[dict[str, Any] | None]:
    """Run alpha-CROWN of auto_LiRPA on all rows, once for each number of iterations, in a process of its own.

    With a relaxation its intermediate bounds are given and fixed; without, alpha-CROWN computes and optimises them.
    Entries have ``values``, ``seconds`` and ``unstable`` (by layer); they are None where auto_LiRPA is not to be had.
    """
    wanted = list(iterations)
    sources = os.environ.get(RIVAL)
    if not sources:
        return [None] * len(wanted)
    bounds: Sequence[tuple[Tensor, Tensor]] = []
    if relaxation is not None:
        bounds = [tuple(b.float() for b in relaxation.bounds[r]) for r in given.relus]  # type: ignore[misc]
    job = {
        "layers": _described(given.network),
        "lower": given.lower.float()[None],
        "upper": given.upper.float()[None],
        "rows": given.rows.float()[None],
        "bounds": list(bounds),
        "iterations": wanted,
        "repeats": repeats,
        "threads": torch.get_num_threads(),
        "options": options,
    }
    with tempfile.TemporaryDirectory() as folder:
        torch.save(job, Path(folder) / "job.pt")
        command = [sys.executable, "-m", "bench.auto_lirpa_process", str(Path(folder) / "job.pt")]
        paths = [sources, *filter(None, [os.environ.get("PYTHONPATH")])]
        found = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, capture_output=True, text=True
        )
    if found.returncode:
        raise RuntimeError(f"auto_LiRPA at {RIVAL}={sources} failed:\n{found.stderr[-2000:]}")
    answers: list[dict[str, Any] | None] = json.loads(found.stdout.splitlines()[-1])
    return answers

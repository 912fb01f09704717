"""Bounds, verdicts and witnesses of small networks, against exact values at points."""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bench.soak.trial import Draw, Skipped, claim, trial
from blocklp.errors import BlocklpError
from blocklp.problems.verification import Property, Runtime, network_bounds, read_onnx, read_property, verify

Layers = list[tuple[NDArray[np.float32], NDArray[np.float32]]]


def random_layers(draw: Draw, scale: float = 1.0) -> Layers:
    """Weights ``(out, in)`` and biases of a small network."""
    sizes = [draw.count(1, 4), *(draw.count(2, 6) for _ in range(draw.count(1, 2))), draw.count(1, 3)]
    made = []
    for first, second in itertools.pairwise(sizes):
        weight = draw.random.normal(size=(second, first)) * scale
        made.append((weight.astype(np.float32), (draw.random.normal(size=second) * scale ** draw.pick(0, 1)).astype(np.float32)))
    return made


def outputs(layers: Layers, x: list[Fraction]) -> list[Fraction]:
    """Exact outputs of the real-valued function."""
    for number, (weight, bias) in enumerate(layers):
        rows = zip(weight.tolist(), bias.tolist(), strict=True)
        x = [sum((Fraction(w) * v for w, v in zip(row, x, strict=True)), Fraction(b)) for row, b in rows]
        if number + 1 < len(layers):
            x = [max(v, Fraction(0)) for v in x]
    return x


def write_onnx(layers: Layers, path: Path) -> None:
    """Save a network."""
    try:
        from onnx import TensorProto, helper, save
    except ImportError as error:
        raise Skipped("onnx is not installed") from error
    nodes, weights, name = [], [], "X"
    for k, (weight, bias) in enumerate(layers):
        weights.append(helper.make_tensor(f"W{k}", TensorProto.FLOAT, weight.shape, weight.ravel()))
        weights.append(helper.make_tensor(f"b{k}", TensorProto.FLOAT, bias.shape, bias))
        out = "Y" if k + 1 == len(layers) else f"z{k}"
        nodes.append(helper.make_node("Gemm", [name, f"W{k}", f"b{k}"], [out], transB=1))
        if out != "Y":
            nodes.append(helper.make_node("Relu", [out], [f"a{k}"]))
            name = f"a{k}"
    sizes = ("X", layers[0][0].shape[1]), ("Y", len(layers[-1][1]))
    ends = [helper.make_tensor_value_info(key, TensorProto.FLOAT, [1, size]) for key, size in sizes]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))


@dataclass
class Query:
    """A box in decimals, and rows ``sum of coefficients . y <= right`` that a counterexample satisfies, all of them."""

    lower: list[str]
    upper: list[str]
    rows: list[tuple[list[int], str]]

    def write(self, path: Path) -> None:
        """Save it as VNN-LIB 1."""
        outputs = len(self.rows[0][0])
        lines = [f"(declare-const X_{i} Real)" for i in range(len(self.lower))]
        lines += [f"(declare-const Y_{i} Real)" for i in range(outputs)]
        for i, (low, high) in enumerate(zip(self.lower, self.upper, strict=True)):
            lines += [f"(assert (>= X_{i} {low}))", f"(assert (<= X_{i} {high}))"]
        for row, right in self.rows:
            terms = " ".join(f"(* {c} Y_{i})" for i, c in enumerate(row) if c)
            lines.append(f"(assert (<= {f'(+ {terms})' if sum(map(bool, row)) > 1 else terms} {right}))")
        path.write_text("\n".join(lines) + "\n")

    def inside(self, x: list[Fraction]) -> bool:
        """Whether a point is in the box, exactly."""
        sides = zip(self.lower, x, self.upper, strict=True)
        return all(Fraction(low) <= v <= Fraction(high) for low, v, high in sides)

    def met(self, y: list[Fraction]) -> bool:
        """Whether outputs satisfy all rows, exactly."""
        return all(sum((c * v for c, v in zip(row, y, strict=True)), Fraction(0)) <= Fraction(right) for row, right in self.rows)


def random_query(draw: Draw, layers: Layers) -> tuple[Query, list[Fraction]]:
    """A query around a point of the box, which satisfies it or misses it by little."""
    inputs = layers[0][0].shape[1]
    digits = draw.pick(1, 2, 4, 6)
    centre = draw.random.integers(-(10**digits), 10**digits, inputs)
    width = (
        draw.random.integers(0, max(2, 10**digits // draw.pick(2, 20, 200)), inputs) if draw.chance(0.9) else np.zeros(inputs, int)
    )
    texts = [[_decimal(int(v), digits) for v in side] for side in (centre - width, centre + width)]
    if draw.chance(0.4):  # as data sets write what was a float32
        ends = (np.array([[float(v) for v in side] for side in texts]) + draw.random.random((2, inputs)) * 1e-3).astype(np.float32)
        texts = [
            [np.format_float_positional(v, precision=draw.pick(16, 17)) for v in side.astype(float)] for side in np.sort(ends, 0)
        ]
    share = draw.random.random(inputs) if draw.chance(0.5) else draw.random.integers(0, 2, inputs)
    inner = [Fraction(a) + Fraction(float(s)) * (Fraction(b) - Fraction(a)) for a, b, s in zip(*texts, share, strict=True)]
    y = outputs(layers, inner)
    rows = []
    for _ in range(draw.count(1, 2)):
        row = draw.random.integers(-1, 2, len(y)).tolist()
        row = row if any(row) else [1] + [0] * (len(y) - 1)
        value = sum((c * v for c, v in zip(row, y, strict=True)), Fraction(0))
        size = max(map(abs, y))
        slack = size * Fraction(draw.pick(1, -1, 0, 1)) * Fraction(draw.pick("0.2", "0.01", "0.000001"))
        rows.append((row, f"{_rounded_up(value + slack)}"))
    return Query(texts[0], texts[1], rows), inner


def _decimal(value: int, digits: int) -> str:
    sign = "-" if value < 0 else ""
    whole, part = divmod(abs(value), 10**digits)
    return f"{sign}{whole}.{part:0{digits}d}"


def _rounded_up(value: Fraction, digits: int = 9) -> str:
    return _decimal(-((-value * 10**digits).__floor__()), digits)


@trial(
    "verification",
    "Verdicts are right at every point that is tried, and witnesses satisfy the decimals of the file, exactly.",
    weight=3,
)
def verdicts(draw: Draw) -> None:
    layers = random_layers(draw, scale=draw.pick(1.0, 1.0, 1e-3, 1e3))
    query, planted = random_query(draw, layers)
    with tempfile.TemporaryDirectory() as folder:
        network, prop = Path(folder) / "n.onnx", Path(folder) / "q.vnnlib"
        write_onnx(layers, network)
        query.write(prop)
        read = read_onnx(network)
        runtime = Runtime(network)
        found = verify(read, read_property(prop, read.inputs, read.outputs), runtime=runtime, timeout=20.0)
    shown = f"weights {[w.shape for w, _ in layers]}, box {query.lower} to {query.upper}, rows {query.rows}"
    if found.status == "sat":
        assert found.x is not None
        x = [Fraction(float(v)) for v in found.x]
        over = max((max(Fraction(a) - v, v - Fraction(b)) for a, v, b in zip(query.lower, x, query.upper, strict=True)))
        claim(query.inside(x), lambda: f"the witness {found.x} is outside the box of the file by {float(over):.3g}: {shown}")
        y = [Fraction(float(v)) for v in np.asarray(runtime(found.x)).ravel()]
        claim(query.met(y), lambda: f"the witness's outputs {[float(v) for v in y]} do not satisfy the file: {shown}")
    if found.status == "unsat":
        points = [planted, *_points(draw, query)]
        wrong = next((p for p in points if query.inside(p) and query.met(outputs(layers, p))), None)
        claim(wrong is None, lambda: f"unsat is said, and {[float(v) for v in wrong or []]} is a counterexample: {shown}")


def _points(draw: Draw, query: Query) -> list[list[Fraction]]:
    """Corners and points of the box."""
    sides = [(Fraction(a), Fraction(b)) for a, b in zip(query.lower, query.upper, strict=True)]
    corners = [list(p) for p in itertools.product(*sides)]
    inner = [[a + Fraction(float(draw.random.random())) * (b - a) for a, b in sides] for _ in range(20)]
    return corners + inner


@trial("verification", "Bounds of neurons contain the exact outputs at every point that is tried.", weight=2)
def neurons(draw: Draw) -> None:
    layers = random_layers(draw, scale=draw.pick(1.0, 10.0, 1e-6, 1e6))
    query, planted = random_query(draw, layers)
    with tempfile.TemporaryDirectory() as folder:
        write_onnx(layers, Path(folder) / "n.onnx")
        network = read_onnx(Path(folder) / "n.onnx")
    low, high = (torch.tensor([float(Fraction(v)) for v in side], dtype=torch.float64) for side in (query.lower, query.upper))
    method = draw.pick("slopes", "interval", "crown", "alpha-crown", "admm", "prox", "proxbc", "polyak")
    shape = network.ops[0].shape
    found = network_bounds(network, low.reshape(shape), high.reshape(shape), method=method, steps=draw.pick(None, 3, 20))
    last = found.layers[-1] if hasattr(found, "layers") else found
    lower, upper = last.lower.flatten().tolist(), last.upper.flatten().tolist()
    box = list(zip(low.tolist(), high.tolist(), strict=True))
    for point in [planted, *_points(draw, query)]:
        inside = [min(max(v, Fraction(a)), Fraction(b)) for v, (a, b) in zip(point, box, strict=True)]
        for i, (a, v, b) in enumerate(zip(lower, outputs(layers, inside), upper, strict=True)):
            claim(
                Fraction(a) <= v <= Fraction(b), f"{method}: output {i} is {float(v)!r} at a point, and its bounds are {a!r}, {b!r}"
            )


@trial("verification", "Weights whose products leave float32 are verified or refused, without a crash.", weight=2)
def huge_weights(draw: Draw) -> None:
    layers = random_layers(draw, scale=10.0 ** draw.count(8, 30))
    inputs, out = layers[0][0].shape[1], len(layers[-1][1])
    with tempfile.TemporaryDirectory() as folder:
        network = Path(folder) / "n.onnx"
        write_onnx(layers, network)
        try:
            read = read_onnx(network)
            box = np.full(inputs, -1.0), np.full(inputs, 1.0)
            right = draw.pick(-1e30, 0.0, 1e30, -1e300)
            prop = Property.of(*box, np.eye(out)[:1], np.array([right]))
            found = verify(read, prop, runtime=Runtime(network), timeout=10.0)
            network_bounds(read, torch.as_tensor(box[0]), torch.as_tensor(box[1]), method=draw.pick("slopes", "crown", "interval"))
        except BlocklpError:
            return
    if found.status == "unsat":
        for corner in itertools.product((Fraction(-1), Fraction(1)), repeat=inputs):
            y = outputs(layers, list(corner))[0]
            claim(y > Fraction(right), f"unsat is said, and the corner {corner} has the output {float(y)} <= {right}")


@trial(
    "verification",
    "A verdict is printed though its file cannot be written, or the place is refused before the search.",
    weight=0.3,
    seconds=120,
)
def places_that_cannot_be_written(draw: Draw) -> None:
    layers = random_layers(draw)
    query, _ = random_query(draw, layers)
    with tempfile.TemporaryDirectory() as folder:
        network, prop = Path(folder) / "n.onnx", Path(folder) / "q.vnnlib"
        write_onnx(layers, network)
        query.write(prop)
        option = draw.pick("--result-file", "--serialise-assignments")
        place = Path(folder) / "missing" / "deeper" / "out" if option == "--result-file" else prop / "x"
        command = [
            sys.executable,
            "-m",
            "blocklp",
            "verify",
            str(prop),
            "--network",
            str(network),
        ]
        plain = subprocess.run([*command, "--quiet"], capture_output=True, text=True, timeout=100)
        done = subprocess.run([*command, "--quiet", option, str(place)], capture_output=True, text=True, timeout=100)
    verdict = plain.stdout.split("\n")[0]
    said = done.stdout.split("\n")[0]
    refused = done.returncode == 2 and str(place.name) in done.stderr and said != verdict
    early = said in ("", "unknown") and "Traceback" not in done.stderr
    claim("Traceback" not in done.stderr, f"{option} {place.name}: {done.stderr.strip().splitlines()[-1:]}")
    claim(
        said == verdict or (refused and early and _before(done.stderr)),
        f"the verdict is {verdict}, and with {option} at a place that cannot be written {said!r} is printed: "
        f"{done.stderr.strip()[-150:]!r}",
    )


def _before(message: str) -> bool:
    """Whether an error says that nothing was searched yet, or what to do."""
    return any(word in message for word in ("cannot be written", "before", "choose", "create", "give", "make"))

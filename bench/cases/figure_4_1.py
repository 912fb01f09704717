"""Fig. 4.1 of the thesis as it is printed: bounds of all layers by methods that start from c / n, against exact LPs."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from torch import Tensor

import blocklp as bl
from bench.registry import Record, case
from bench.verification_data import Problem, problem
from blocklp.problems.verification import Builder, digits
from blocklp.problems.verification.exact import Algorithm, exact_bounds
from blocklp.problems.verification.operations import Conv, Relu
from blocklp.problems.verification.planet import Planet
from blocklp.problems.verification.relaxation import Pair, Relaxation, undecided
from blocklp.problems.verification.tightener import CHUNK, intervals

METHODS = {
    "PSM": bl.methods.Supergradient(),
    "Prox": bl.methods.Prox(30.0),
    "ProxBC": bl.methods.ProxBC(100.0),
    "ProxFW": bl.methods.ProxFW(100.0),
}
"""Five inner steps and the weight 100 are the thesis's (4.1.7.2); Prox, which is not in it, has that of `network_bounds`."""

Solver = Callable[[Relaxation, int, Tensor, Pair], Pair]
"""Relaxation, position of a result, some of its neurons and bounds of them that are known, to better bounds."""

LEAST = 1e-7
"""Errors below are drawn as this: HiGHS's tolerance."""


def draw(records: list[Record], figure: Figure) -> None:
    """Error against seconds, a point an image, a panel a network."""
    names, nets = (list(dict.fromkeys(r[key] for r in records)) for key in ("method", "network"))
    for axes, net in zip(figure.subplots(1, len(nets), squeeze=False, sharey=True)[0], nets, strict=True):
        for name in names:
            own = [r for r in records if (r["method"], r["network"]) == (name, net)]
            kind, _, count = name.partition("-")
            style = {"color": f"C{[*METHODS, 'HiGHS'].index(kind)}", "marker": "so"[count == names[-1].partition("-")[2]]}
            axes.scatter([r["seconds"] for r in own], [max(r["error"], LEAST) for r in own], label=name, s=25, **style)
        axes.set(xscale="log", yscale="log", xlabel="seconds an image", title=net)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("largest error of a score")
    figure.axes[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


@case(
    "figure_4_1",
    "Networks: highest scores by all layers' LPs, Fig. 4.1 of the thesis",
    "Highest scores of wrong labels within 8/255: both LPs of every unstable neuron, layer by layer, those of a layer as one batch, "
    "each from multipliers c / n, and each layer with the bounds of those before it; then the labels'. `error`: the greatest "
    "difference of a wrong label's score to the one that HiGHS finds, whose layers are exact too. PSM is the projected "
    "supergradient method; suffixes count iterations. Networks of CIFAR-10 trained by gradient descent (the thesis's baseline) and "
    "robustly (for its WK network); those of the thesis are not published. On a processor; `--quick` takes the digits' "
    "network. The first layer is exact by intervals. HiGHS's simplex method serves windows of convolutions, its interior point whole "
    "networks. `network_bounds` starts from CROWN's slopes instead and takes other steps: see `verification_layers`.",
    draw,
    images=2,
    passes=100,
)
def run(quick: bool, images: float, passes: float) -> Iterator[Record]:
    counts = (3, 12) if quick else (max(2, int(passes) // 5), int(passes))
    for net in ("digits",) if quick else ("madry", "sgd"):
        for row in range(1 if quick else int(images)):
            given = _digits(row) if quick else problem(net, 8, row)
            label = int(given.rows[0].argmax())
            wrong = [k for k in range(given.network.outputs) if k != label]
            solvers = {"HiGHS": _exact} | {
                f"{name}-{count}": partial(_bounded, method=method, passes=count)
                for count in counts
                for name, method in METHODS.items()
            }
            truth = None
            for name, solver in solvers.items():
                began = time.perf_counter()
                scores = highest(given, solver)[wrong]
                seconds = time.perf_counter() - began
                truth = scores if truth is None else truth
                record = {"network": given.name, "image": row, "method": name, "error": float((scores - truth).max())}
                print(record, seconds, file=sys.stderr, flush=True)
                yield {**record, "seconds": seconds}


def highest(given: Problem, solver: Solver) -> Tensor:
    """Upper bounds ``(outputs,)`` of the outputs, layer by layer."""
    network, lower, upper = given.network, given.lower[None], given.upper[None]
    bounds: dict[int, Pair] = {}
    found: list[Pair] = []
    for relu in (*network.relus, len(network.ops)):
        node = network.ops[relu].inputs[0] if relu < len(network.ops) else relu - 1
        low, high = (end.flatten(1).clone() for end in intervals(network, lower, upper, bounds, node, found)[node])
        last = relu == len(network.ops)
        if bounds:
            relaxation = Relaxation(network, lower, upper, dict(bounds))
            wanted = torch.ones_like(low[0], dtype=torch.bool) if last else undecided(network, relu, low[0], high[0])
            neurons = wanted.nonzero()[:, 0]
            area = math.prod(network.ops[node].shape[1:])
            for place in (neurons % area).unique().tolist() if area > 1 else [None]:
                own = neurons if place is None else neurons[neurons % area == place]
                at = own if place is None else own // area
                small = relaxation if place is None else part(relaxation, node, place)
                size = sum(math.prod(op.shape) for op in small.network.ops[:node])
                for some, index in zip(*(torch.split(t, max(1, CHUNK // (2 * size))) for t in (own, at)), strict=True):
                    ends = low[0, some], high[0, some]
                    low[0, some], high[0, some] = solver(small, node, index, ends)
        shape = network.ops[node].shape
        bounds[relu] = low.view(1, *shape), high.view(1, *shape)
    return bounds[len(network.ops)][1].flatten()


def part(relaxation: Relaxation, node: int, place: int) -> Relaxation:
    """Cut out what the channels of one pixel of a result depend on, in a chain of convolutions and ReLUs, border by border."""
    network, width = relaxation.network, relaxation.network.ops[node].shape[2]
    ranges = [slice(place // width, place // width + 1), slice(place % width, place % width + 1)]
    cut, paddings = {node: ranges}, {}
    for at in range(node, 0, -1):
        op = network.ops[at]
        if isinstance(op, Conv):
            before, around = [], []
            for axis, near in enumerate(ranges):
                pad, size = op.padding[2 - 2 * axis], op.source[1 + axis]
                first = near.start * op.stride[axis] - pad
                end = (near.stop - 1) * op.stride[axis] - pad + op.weight.shape[2 + axis]
                before.append(slice(max(first, 0), min(end, size)))
                around.append((max(-first, 0), max(end - size, 0)))
            ranges, paddings[at] = before, (*around[1], *around[0])
        cut[at - 1] = ranges
    builder = Builder((network.ops[0].shape[0], *(r.stop - r.start for r in cut[0])), network.name)
    for at, op in enumerate(network.ops[1 : node + 1], 1):
        if isinstance(op, Conv):
            builder.conv(at - 1, op.weight, op.bias, op.stride, paddings[at], op.dilation, op.groups, op.name)
        else:
            assert isinstance(op, Relu)
            builder.relu(at - 1, op.name)
    lower, upper = (end[:, :, *cut[0]] for end in (relaxation.lower, relaxation.upper))
    bounds = {r: (low[:, :, *cut[r]], high[:, :, *cut[r]]) for r, (low, high) in relaxation.bounds.items()}
    return Relaxation(builder.build(), lower, upper, bounds)


def _exact(relaxation: Relaxation, node: int, neurons: Tensor, known: Pair) -> Pair:
    """Both bounds of some results by HiGHS: its simplex method within a window, its interior point for the whole network."""
    bounds = {relu: (low[0], high[0]) for relu, (low, high) in relaxation.bounds.items()}
    box = relaxation.lower[0], relaxation.upper[0]
    algorithm: Algorithm = "simplex" if isinstance(relaxation.network.ops[node], Conv) else "ipm"
    low, high = exact_bounds(relaxation.network, *box, bounds, node, neurons.tolist(), algorithm=algorithm)
    return torch.fmax(torch.as_tensor(low), known[0]), torch.fmin(torch.as_tensor(high), known[1])


def _bounded(relaxation: Relaxation, node: int, neurons: Tensor, known: Pair, method: bl.methods.Method, passes: int) -> Pair:
    """Both bounds of some results, from multipliers c / n and no worse than what is known of them."""
    shape = relaxation.network.ops[node].shape
    cost = torch.zeros(2 * len(neurons), math.prod(shape), dtype=torch.float64)
    cost[torch.arange(len(cost)), neurons.repeat(2)] = torch.ones(2, dtype=torch.float64).repeat_interleave(len(neurons))
    cost[len(neurons) :] *= -1
    cost = cost.view(-1, *shape)
    slopes = relaxation.start([r for r in relaxation.bounds if r < node], len(cost))
    box = intervals(relaxation.network, relaxation.lower, relaxation.upper, relaxation.bounds, node)[node]
    planet = Planet.build(relaxation.select(torch.zeros(len(cost), dtype=torch.int64)), node, cost, box, slopes)
    value = planet.model.solve(method=method, passes=passes, tol=0).safe_bound
    low, high = value.tensor_split(2)
    return torch.fmax(low, known[0]), torch.fmin(-high, known[1])


def _digits(row: int) -> Problem:
    """A digit of the network that comes with the package."""
    network, images, labels = digits.load()
    rows = torch.zeros(1, network.outputs, dtype=torch.float64)
    rows[0, labels[row]] = 1
    return Problem("digits", 8, row, network, (images[row] - 8 / 255).clamp(0, 1), (images[row] + 8 / 255).clamp(0, 1), rows)

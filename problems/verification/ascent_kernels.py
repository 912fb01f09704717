"""Ascent over the slopes of networks of ReLUs and the multipliers of their splits, compiled for the CPU.

This is :func:`blocklp.search.ascend` over :class:`SlopeDual` in single precision, for many instances over one box.  The network is
one sparse matrix from inputs and ReLUs to the arguments of ReLUs, and instances are worked on side by side in lanes: one pass over
the matrix serves them all, what a ReLU needs lies together, and a lane whose instance is done takes the next one at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blocklp.kernels.compiled import FAST, compile, kernel
from blocklp.kernels.lane_sums import LANES, row_sums

SECONDS = 10.0
"""What it takes to compile all of these loops, on a busy machine."""

COST, POINT, MEAN, MOST, BEST, SIGN, VALUE, FIELDS = 0, LANES, 2 * LANES, 3 * LANES, 4 * LANES, 5 * LANES, 6 * LANES, 7 * LANES
"""Where the numbers of a parameter are, of all lanes: the cost on the activation, the parameter, the mean of its supergradients and
the decaying maximum of their magnitudes, its best value, the sign of its neuron, and what was summed last."""

FLUSH = 64
"""Terms of a value that are summed in single precision."""

TINY = np.float32(np.finfo(np.float32).tiny ** 0.5)
LARGEST = np.float32(float(np.finfo(np.float32).max) ** 0.9)
CLOSE = np.float32(16 * np.finfo(np.float32).eps)


@compile(nogil=True, error_model="numpy", fastmath=FAST)
def _backward(
    matrix: Any, across: Any, neurons: Any, box: Any, costs: Any, sums: Any, own: Any, outer: Any, spare: Any, value: Any
) -> None:
    """Send costs backwards; leave the minimising inputs in ``sums``, costs of activations in ``own``, and the values."""
    shift, noise = matrix[3], matrix[4]
    starts, rows, entries = across
    number, line, level, scale = neurons
    lower, upper, inputs, hidden = box[0], box[1], len(box[0]), len(number)
    target, weight = costs
    part, unit, nearest, farthest = spare[0], spare[1], hidden, -1
    for lane in range(LANES):
        value[lane] = 0.0
        part[lane] = 0.0
        farthest = max(farthest, target[lane])
        nearest = min(nearest, target[lane]) if target[lane] >= 0 else nearest
    for i in range(len(outer)):
        given, bias, error = outer[i], shift[hidden + i], noise[hidden + i]
        sent = sums[inputs + hidden + i]
        for lane in range(LANES):
            rho = given[POINT + lane] * given[COST + lane]
            sent[lane] = rho
            part[lane] += rho * bias - abs(rho) * error
    for back in range(hidden):
        j = hidden - 1 - back
        bias, error, at = shift[j], noise[j], number[j]
        sent = sums[inputs + j]
        first, last = starts[inputs + j], starts[inputs + j + 1]
        if at < 0:
            row_sums(first, last, rows, entries, sums, sums, inputs + j)
        else:
            here, a, b, times = own[at], line[j], level[j], scale[j]
            row_sums(first, last, rows, entries, sums, spare, 2)
            come = spare[2]
            # Apart, since LLVM works on lanes together where all numbers lie at distances that it knows.
            for lane in range(LANES):
                here[COST + lane] = come[lane]
            for lane in range(LANES):
                # Split neurons pass their costs or nothing, less their multipliers; others by the line of the side of the cost.
                mu, p, sign = here[COST + lane], here[POINT + lane], here[SIGN + lane]
                below = mu <= 0
                slope = a if below else p
                free = slope * mu
                fixed = (mu if sign > 0 else np.float32(0.0)) - p * times
                paid = mu * b if below else np.float32(0.0)
                here[VALUE + lane] = free if sign == 0 else fixed
                here[COST + lane] = mu
                part[lane] += paid if sign == 0 else np.float32(0.0)
            for lane in range(LANES):
                sent[lane] = here[VALUE + lane]
        if nearest <= j <= farthest:
            for lane in range(LANES):
                sent[lane] += weight[lane] if target[lane] == j else np.float32(0.0)
        for lane in range(LANES):
            part[lane] += sent[lane] * bias - abs(sent[lane]) * error
        if j % FLUSH == 0:
            for lane in range(LANES):
                value[lane] += part[lane]
                part[lane] = 0.0
    for i in range(inputs):
        row_sums(starts[i], starts[i + 1], rows, entries, sums, spare, 2)
        come, sent, low, high = spare[2], sums[i], lower[i], upper[i]
        for lane in range(LANES):
            x = high if come[lane] <= 0 else low
            unit[lane] = x
            part[lane] += come[lane] * x
        for lane in range(LANES):
            sent[lane] = unit[lane]
        if i % FLUSH == 0:
            for lane in range(LANES):
                value[lane] += part[lane]
                part[lane] = 0.0
    for lane in range(LANES):
        value[lane] += part[lane]


@compile(inline="always")
def _move(here: Any, lane: int, rise: Any, rates: Any, better: Any, least: Any, most: Any) -> None:
    """Move a parameter of a lane by its supergradient, within a range, after its best value is kept."""
    size = abs(rise)
    sure = size < LARGEST
    rise = rise if sure else np.float32(0.0)
    size = size if sure else np.float32(0.0)
    mean = here[MEAN + lane] + rates[0] * (rise - here[MEAN + lane])
    faded = here[MOST + lane] * rates[1]
    largest = (size if size > faded else faded) + TINY
    here[MEAN + lane] = mean
    here[MOST + lane] = largest
    point = here[POINT + lane]
    here[BEST + lane] = point if better[lane] > 0 else here[BEST + lane]
    point += rates[2 + lane] * mean / largest
    point = point if point > least else least
    here[POINT + lane] = point if point < most else most


@compile(nogil=True, error_model="numpy", fastmath=FAST)
def _forward(
    matrix: Any, neurons: Any, inputs: int, sums: Any, own: Any, outer: Any, spare: Any, rates: Any, better: Any, moves: bool
) -> None:
    """Send the minimising inputs forwards; each parameter moves by its supergradient, after its best value is kept."""
    starts, columns, entries, shift = matrix[:4]
    number, line, level, scale = neurons
    hidden = len(number)
    for j in range(hidden):
        bias, at = shift[j], number[j]
        row_sums(starts[j], starts[j + 1], columns, entries, sums, spare, 2)
        come, sent = spare[2], sums[inputs + j]
        if at < 0:
            for lane in range(LANES):
                sent[lane] = come[lane] + bias
            continue
        here, a, b, times = own[at], line[j], level[j], scale[j]
        for lane in range(LANES):
            here[VALUE + lane] = come[lane] + bias
        for lane in range(LANES):
            z, mu, p, sign = here[VALUE + lane], here[COST + lane], here[POINT + lane], here[SIGN + lane]
            below = mu <= 0
            free = a * z + b if below else p * z
            fixed = z if sign > 0 else np.float32(0.0)
            here[VALUE + lane] = free if sign == 0 else fixed
            rise = np.float32(0.0) if below else mu * z
            least = np.float32(0.0) if sign >= 0 else -LARGEST
            top = np.float32(1.0) if sign == 0 else (LARGEST if sign > 0 else np.float32(0.0))
            _move(here, lane, rise if sign == 0 else -z * times, rates, better, least, top)
        for lane in range(LANES):
            sent[lane] = here[VALUE + lane]
    for i in range(len(outer) if moves else 0):
        bias, here = shift[hidden + i], outer[i]
        row_sums(starts[hidden + i], starts[hidden + i + 1], columns, entries, sums, spare, 2)
        come = spare[2]
        for lane in range(LANES):
            unit = here[COST + lane]
            _move(here, lane, (come[lane] + bias) * unit, rates, better, np.float32(0.0), LARGEST if unit > 0 else np.float32(0.0))


@kernel(grain=LANES // 2, fastmath=FAST)
def climb(
    first: int,
    last: int,
    matrix: tuple[Any, ...],
    across: tuple[Any, ...],
    neurons: tuple[Any, ...],
    box: tuple[Any, ...],
    instances: tuple[Any, ...],
    schedule: tuple[Any, ...],
    enough: float,
    found: tuple[Any, ...],
) -> None:
    """Ascend from the start of some instances, and write down the best that each reaches.

    Parameters
    ----------
    first, last : int
        Instances.
    matrix : (rows + 1,) int64, (entries,) uint32, (entries,) float32, (rows,) float32, (rows,) float32
        Rows are arguments of ReLUs, in the order of the network, and outputs; columns are inputs and ReLUs.  Each row has a multiple
        of ``STEP`` entries.  The constants of rows, and what rounding may take from a value for each unit of a row's cost.
    across : (columns + 1,) int64, (entries,) uint32, (entries,) float32
        The transpose: rows are numbered behind the inputs.
    neurons : (ReLUs,) int64, and (ReLUs,) float32 thrice
        Number of a ReLU's parameter, -1 for those that pass everything; slope and shift of its upper line; scale of its multiplier.
    box : (inputs,) float32 twice
        Bounds of the inputs.
    instances : (k, outputs) float32 twice, (k,) int64, (k,) float32, (k, parameters) int8, (k, parameters) float32
        Costs of outputs in units, and their units; a ReLU whose argument has a cost as well, or -1, and that cost; signs of neurons
        that are split; slopes of others and, of these, multipliers in their scale.
    schedule : (steps,) float32, float32, float32, bool
        Steps' sizes; weight of a new supergradient in the mean; fading of the maximum; whether costs of outputs are parameters, too.
    enough : float
        Instances whose value is above this are done.
    found : (k,) float32, (k, parameters) float32, (k, outputs) float32
        Values, parameters and costs of outputs in units.
    """
    cost, units, aim, much, signs, start = instances
    sizes, weight, fading, moves = schedule
    values, best, multiples = found
    inputs, hidden, outputs, parameters, steps = len(box[0]), len(neurons[0]), cost.shape[1], signs.shape[1], len(sizes)
    sums = np.zeros((inputs + hidden + outputs, LANES), np.float32)
    own, outer = np.zeros((parameters, FIELDS), np.float32), np.zeros((outputs, FIELDS), np.float32)
    spare, value = np.zeros((3, LANES), np.float32), np.zeros(LANES)
    rates, better = np.zeros(2 + LANES, np.float32), np.zeros(LANES, np.float32)
    rates[0], rates[1] = weight, fading
    target, load = np.full(LANES, -1), np.zeros(LANES, np.float32)
    row, step = np.full(LANES, -1), np.zeros(LANES, np.int64)
    here, highest = np.zeros(LANES, np.float32), np.zeros(LANES, np.float32)
    following = first
    while True:
        busy = 0
        for lane in range(LANES):
            if row[lane] < 0 and following < last:
                k = following
                following += 1
                row[lane], step[lane], here[lane], highest[lane] = k, 0, -np.inf, -np.inf
                target[lane], load[lane] = aim[k], much[k]
                for f in range(parameters):
                    item = own[f]
                    item[POINT + lane] = item[BEST + lane] = start[k, f]
                    item[SIGN + lane] = signs[k, f]
                    item[MEAN + lane] = item[MOST + lane] = 0.0
                for i in range(outputs):
                    item = outer[i]
                    item[COST + lane], item[POINT + lane], item[BEST + lane] = units[k, i], cost[k, i], cost[k, i]
                    item[MEAN + lane] = item[MOST + lane] = 0.0
            busy += row[lane] >= 0
        if busy == 0:
            return
        _backward(matrix, across, neurons, box, (target, load), sums, own, outer, spare, value)
        going = 0
        for lane in range(LANES):
            now = np.float32(value[lane])
            if not np.isfinite(now):
                now = np.float32(-np.inf)
            highest[lane] = max(highest[lane], now)
            # Of values that rounding cannot tell apart the later one is likely to be the better one.
            good = now > here[lane] or now >= highest[lane] - CLOSE * abs(highest[lane])
            here[lane] = now if good else here[lane]
            better[lane] = 1.0 if good else 0.0
            rates[2 + lane] = sizes[step[lane]] if row[lane] >= 0 else 0.0
            step[lane] += 1
            if row[lane] >= 0 and (step[lane] == steps or here[lane] > enough):
                k = row[lane]
                values[k] = here[lane]
                for f in range(parameters):
                    best[k, f] = own[f, POINT + lane] if good else own[f, BEST + lane]
                for i in range(outputs):
                    multiples[k, i] = outer[i, POINT + lane] if good else outer[i, BEST + lane]
                row[lane], step[lane], target[lane] = -1, 0, -1
            going += row[lane] >= 0
        if going:
            _forward(matrix, neurons, inputs, sums, own, outer, spare, rates, better, moves)


def rehearse() -> None:
    """Compile the loop, for the types of arrays that searches give it: one input, one ReLU, one output."""
    one, zero, none = np.ones(1, np.float32), np.zeros(1, np.float32), np.full(1, -1)
    starts, four = np.array([0, 4, 8]), np.zeros(8, np.float32)
    matrix = starts, np.zeros(8, np.uint32), four, np.zeros(2, np.float32), np.zeros(2, np.float32)
    instances = one[None], one[None], none, zero, np.zeros((1, 1), np.int8), zero[None].copy()
    schedule = one, np.float32(0.5), np.float32(0.5), False
    across, neurons = (starts, np.ones(8, np.uint32), four), (np.zeros(1, np.int64), one, zero, one)
    climb(1, matrix, across, neurons, (zero, one), instances, schedule, 0.0, (one.copy(), one[None].copy(), one[None].copy()))

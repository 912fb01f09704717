"""Search for counterexamples by projected gradient steps, all clauses and restarts in one batch.

Steps follow the sign of an accumulated gradient (MI-FGSM, Dong et al., CVPR 2018) and shrink.  Most restarts see a gradient
in which ReLUs that are off, and smooth activations anywhere, let a little through: where a deep layer is almost wholly off, the
true gradient knows nothing of the neurons that would have to come on.  (Of a layer of mnist-net_256x2, two of 256 neurons are on
around ``prop_0_0.05``; from 50 starts the true gradient got no further down than a margin of 0.96, the leaking one found the
counterexample.)
Adam's direction was tried too: it came out behind on ACAS Xu, MNIST and CIFAR-10 alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import NonFiniteError, OptionError, ShapeError, TimeLimitError
from blocklp.problems.verification.balls import Ball, Balls
from blocklp.problems.verification.given import check_query
from blocklp.problems.verification.network import Network
from blocklp.problems.verification.operations import Add, Affine, Relu, SmoothActivation, send
from blocklp.problems.verification.properties import Clause, Property

LEAKS = (0.0, 0.003, 0.01, 0.03)
"""What ReLUs that are off let through at first, by restart; it vanishes by half of the steps."""

LONGEST, SHORTEST, MOMENTUM = (1.0, 0.25), 0.02, 0.75
"""First steps, by restart, and the last step, in half widths of the box; share of the direction that is kept."""

CLEAR = 1e-4
"""Violation at which the search stops, relative to the terms of a row: rounding in float32 seldom moves a row by as much."""

LANES, BYTES = 256, 1 << 28
"""Most searches, and about the most memory, of one batch."""

Float32Array = NDArray[np.float32]


class Candidate(NamedTuple):
    """A point that violates the property in float64 arithmetic.

    Attributes
    ----------
    x : ndarray
        ``(inputs,)`` float32, in C order.
    clause : int
        The clause that it satisfies.
    inside : bool
        False if an interval of the clause's box holds no float32 number, so that x lies beside it, as near as can be.
    """

    x: Float32Array
    clause: int
    inside: bool


def float32_box(clause: Clause) -> tuple[Float32Array, Float32Array, bool]:
    """Return the least and greatest float32 numbers in a clause's box as it is stated, and whether every interval holds one.

    Where an interval holds none, both are the float32 number nearest to it.
    """
    most, (lower, upper) = np.finfo(np.float32).max, clause.box
    low, high = lower.clip(-most, most).astype(np.float32), upper.clip(-most, most).astype(np.float32)
    with np.errstate(over="ignore"):  # beyond the range of float32 there is infinity, and no number inside
        inner_low = np.where(low < lower, np.nextafter(low, np.float32(np.inf)), low)
        inner_high = np.where(high > upper, np.nextafter(high, np.float32(-np.inf)), high)
    empty = inner_low > inner_high
    # The two numbers around an empty interval; the nearer one, by its distance from the interval's end.
    nearest = np.where(inner_low - upper < lower - inner_high, inner_low, inner_high)
    return np.where(empty, nearest, inner_low), np.where(empty, nearest, inner_high), not bool(empty.any())


def confirm(runtime: Callable[[Float32Array], ArrayLike], x: Float32Array, prop: Property) -> bool:
    """Return whether a point is a counterexample to the float32 network that a runtime executes.

    Box and rows are compared as they are stated, exactly: decimals of a file are not rounded.

    Parameters
    ----------
    runtime : callable
        Maps ``(inputs,)`` float32 to the outputs, in any shape; for example an onnxruntime session.
    x : ndarray
        ``(inputs,)`` float32.
    prop : Property
        The property.
    """
    x = np.asarray(x, dtype=np.float32)
    try:
        return prop.violated(x, runtime(x)) is not None
    except NonFiniteError:
        return False


def find_counterexample(
    network: Network,
    prop: Property,
    *,
    restarts: int = 32,
    steps: int = 100,
    seed: int = 0,
    deadline: Deadline | None = None,
    exclude: Collection[int] = (),
    starts: ArrayLike | None = None,
) -> Candidate | None:
    """Search for a counterexample: :func:`find_counterexamples` with one owner of all clauses.

    Parameters
    ----------
    network, prop, restarts, steps, seed, deadline, exclude, starts
        As there.

    Returns
    -------
    Candidate or None
        The first clear violation, or the largest if none is clear.  Ask :func:`confirm` before it is believed.

    Raises
    ------
    OptionError, ShapeError
        As there.
    """
    owner = [0] * len(prop.clauses)
    options: dict[str, Any] = {"restarts": restarts, "steps": steps, "seed": seed, "deadline": deadline}
    return find_counterexamples(network, prop, owner, **options, exclude=exclude, starts=starts).get(0)


def find_counterexamples(
    network: Network,
    prop: Property,
    owner: Sequence[int],
    *,
    restarts: int = 32,
    steps: int = 100,
    seed: int = 0,
    deadline: Deadline | None = None,
    exclude: Collection[int] = (),
    starts: ArrayLike | None = None,
) -> dict[int, Candidate]:
    """Search for one counterexample for every owner of clauses, such as images of a data set, side by side.

    Parameters
    ----------
    network : Network
        The network; the search runs in float32 where its weights are, and what it finds is evaluated in float64.
    prop : Property
        The property, over the network's inputs and outputs.
    owner : sequence of int
        Whose each clause is.
    restarts, steps : int
        Searches for each clause, at least 1, and their length, at least 1.
    seed : int
        Of the starting points; results repeat on the same device.
    deadline : Deadline, optional
        When to stop.
    exclude : collection of int
        Clauses to leave out, because they are known to have no counterexample.
    starts : array_like, optional
        ``(n, inputs)``: the first n starting points for each clause, say minimisers of a relaxation; they are moved into the box.

    Returns
    -------
    dict
        By owner the first clear violation, or the largest if none is clear.  Ask :func:`confirm` before one is believed.

    Raises
    ------
    OptionError
        If network or property is none, or ``restarts`` or ``steps`` is not positive.
    ShapeError
        If the network, the property and the starts do not fit each other.
    """
    check_query(network, prop)
    if restarts < 1 or steps < 1:
        raise OptionError(f"restarts is {restarts} and steps {steps}; both must be at least 1")
    if (prop.inputs, prop.outputs) != (network.inputs, network.outputs):
        raise ShapeError(
            f"{network.name} has {network.inputs} inputs and {network.outputs} outputs, property {prop.name!r} speaks of "
            f"{prop.inputs} and {prop.outputs}"
        )
    given = np.asarray(np.zeros((0, prop.inputs)) if starts is None else starts, dtype=np.float32)
    if given.shape[1:] != (prop.inputs,):
        raise ShapeError(f"starts has shape {given.shape}; give (n, {prop.inputs})")
    deadline = Deadline() if deadline is None else deadline
    search = _AttackSearch(
        network.to(torch.float32, network.device), network.to(torch.float64, network.device), prop, owner, deadline
    )
    generator = torch.Generator().manual_seed(seed)
    numbers = [number for number in range(len(prop.clauses)) if number not in exclude]
    lanes = range(len(numbers) * max(restarts, len(given)))
    most = max(1, min(LANES, BYTES // (16 * sum(math.prod(op.shape) for op in network.ops))))
    for first in range(0, len(lanes), most):
        # Every clause is tried once before any is tried again.
        part = [(numbers[lane % len(numbers)], lane // len(numbers)) for lane in lanes[first : first + most]]
        part = [lane for lane in part if owner[lane[0]] not in search.clear]
        wanted = {owner[number] for number, _ in part}
        if not part:
            continue
        try:
            deadline.check("searching for a counterexample")
            for _ in search.descend(search.batch(part, given, generator), steps):
                if wanted <= search.clear:
                    break
        except TimeLimitError:
            return search.best
    return search.best


@dataclass
class _Batch:
    """Searches side by side: their clauses, boxes, rows (padded by rows that always hold), points, and balls if there are some."""

    clause: list[int]
    lower: Tensor
    upper: Tensor
    inside: list[bool]
    matrix: Tensor
    right: Tensor
    x: Tensor
    restart: Tensor
    balls: Balls | None = None

    def moved(self, x: Tensor) -> Tensor:
        """Points ``(searches, inputs)``, moved into the boxes and balls."""
        x = x.clamp(self.lower, self.upper)
        # A box holds the centre of its ball, so that points on the way there stay in it.
        return x if self.balls is None else self.balls.pulled(x).clamp(self.lower, self.upper)


class _AttackSearch:
    """The networks, the property, and of every owner of clauses the best candidate so far; owners with a clear one."""

    def __init__(self, network: Network, exact: Network, prop: Property, owner: Sequence[int], deadline: Deadline) -> None:
        self.network, self.exact, self.prop, self.owner, self.deadline = network, exact, prop, owner, deadline
        self.best: dict[int, Candidate] = {}
        self.margin: dict[int, float] = {}
        self.clear: set[int] = set()

    def batch(self, lanes: list[tuple[int, int]], starts: NDArray[np.float32], generator: torch.Generator) -> _Batch:
        """Set up searches; restart 0 begins in the centre, odd ones in a random corner, the others at a random point."""
        device = self.network.device
        boxes = {number: float32_box(self.prop.clauses[number]) for number, _ in lanes}
        lower, upper = (torch.as_tensor(np.stack([boxes[number][end] for number, _ in lanes])) for end in (0, 1))
        rows = max(len(self.prop.clauses[number].right) for number in boxes)
        matrix, right = torch.zeros(len(lanes), rows, self.prop.outputs), torch.full((len(lanes), rows), torch.inf)
        where = torch.rand(lower.shape, generator=generator)
        for lane, (number, restart) in enumerate(lanes):
            clause = self.prop.clauses[number]
            matrix[lane, : len(clause.right)] = torch.tensor(clause.matrix, dtype=torch.float32)
            right[lane, : len(clause.right)] = torch.tensor(clause.right, dtype=torch.float32)
            if restart == len(starts):
                where[lane] = 0.5
            elif restart % 2:
                where[lane] = where[lane].round()
        x = torch.lerp(lower, upper, where)
        for lane, (_, restart) in enumerate(lanes):
            if restart < len(starts):
                x[lane] = torch.as_tensor(starts[restart])
        restarts = torch.tensor([restart for _, restart in lanes])
        parts = (t.to(device) for t in (lower, upper, matrix, right, x, restarts))
        lower, upper, matrix, right, x, restarts = parts
        inside = [boxes[number][2] for number, _ in lanes]
        clauses = [self.prop.clauses[number] for number, _ in lanes]
        balls = None
        if any(clause.ball is not None for clause in clauses):
            # The ball around a box takes nothing from it.
            every = [clause.ball or _around(clause) for clause in clauses]
            balls = Balls.stacked(every, (self.prop.inputs,), device).to(torch.float32)
        found = _Batch([number for number, _ in lanes], lower, upper, inside, matrix, right, x, restarts, balls)
        found.x = found.moved(x)
        return found

    def descend(self, batch: _Batch, steps: int) -> Iterator[None]:
        """Step, and hand over after every step."""
        x, restart = batch.x, batch.restart
        leak = torch.tensor(LEAKS, device=x.device)[restart % len(LEAKS)]
        longest = torch.tensor(LONGEST, device=x.device)[restart // len(LEAKS) % 2, None]
        # Rows of a conjunction: the worst alone, or all that are not met.
        summed = restart // (2 * len(LEAKS)) % 2 == 1
        radius, direction = (batch.upper - batch.lower) / 2, torch.zeros_like(x)
        for step in range(steps + 1):
            results = self.network.run(x.reshape(-1, *self.network.input_shape), self.deadline)
            over = torch.einsum("brk,bk->br", batch.matrix, results[-1].flatten(1)) - batch.right
            worst, row = over.max(1)
            self.consider(batch, torch.nonzero(worst <= 0).flatten(), x)
            yield
            if step == steps:
                return
            weight = torch.nn.functional.one_hot(row, over.shape[1]).to(x)
            weight = torch.where((summed & (worst > 0))[:, None], (over > 0).to(x), weight)
            cost = torch.einsum("brk,br->bk", batch.matrix, weight)
            gradient = _gradient(self.network, results, cost, leak * max(0.0, 1 - 2 * step / steps), self.deadline)
            # Where numbers leave the range of float32 there is no direction; the search goes on where it is.
            gradient = gradient.nan_to_num(0.0)
            direction = MOMENTUM * direction + gradient / gradient.abs().mean(1, keepdim=True).clamp(min=1e-30)
            length = longest * (SHORTEST / longest) ** (step / steps)
            x = batch.moved(x - length * radius * direction.sign())

    def consider(self, batch: _Batch, lanes: Tensor, x: Tensor) -> None:
        """Keep of every owner the point of these lanes that violates a clause most in float64, if more than the one so far."""
        if not len(lanes):
            return
        outputs = self.exact.run(x[lanes].double().reshape(-1, *self.exact.input_shape), self.deadline)[-1].flatten(1).cpu().numpy()
        for lane, y in zip(lanes.tolist(), outputs, strict=True):
            clause, owner = self.prop.clauses[batch.clause[lane]], self.owner[batch.clause[lane]]
            with np.errstate(over="ignore", invalid="ignore"):
                over = clause.matrix @ y - clause.right
                margin = float((over / (np.abs(clause.matrix) @ np.abs(y) + np.abs(clause.right)).clip(1e-30)).max())
            if margin < self.margin.get(owner, math.inf) and np.where(clause.strict, over < 0, over <= 0).all():
                self.margin[owner] = margin
                self.clear |= {owner} if margin <= -CLEAR else set()
                self.best[owner] = Candidate(x[lane].cpu().numpy(), batch.clause[lane], batch.inside[lane])


def _around(clause: Clause) -> Ball:
    """A ball around the box of a clause."""
    centre = (clause.lower + clause.upper) / 2
    return Ball(centre, 2 * math.sqrt(len(centre)) * (clause.upper - centre))


def _gradient(network: Network, results: list[Tensor], cost: Tensor, leak: Tensor, deadline: Deadline) -> Tensor:
    """Gradient of ``<cost, outputs>`` at the input, flat, if ReLUs that are off let ``leak`` ``(batch,)`` through."""
    last = len(network.ops) - 1
    pending = {last: cost.reshape(results[last].shape)}
    for at in range(last, 0, -1):
        y = pending.pop(at, None)
        if y is None:
            continue
        op = network.ops[at]
        op.ask(deadline, y)
        if isinstance(op, Relu):
            off = leak.reshape(-1, *(1,) * len(op.shape))
            y = torch.where(results[op.inputs[0]] > 0, y, y * off)
        elif isinstance(op, SmoothActivation):
            y = y * (op.curve.ascent(results[op.inputs[0]]) + leak.reshape(-1, *(1,) * len(op.shape)))
        elif isinstance(op, Affine):
            y = op.adjoint(y)
        for of in op.inputs if isinstance(op, Add) else op.inputs[:1]:
            send(pending, of, y)
    return pending[0].flatten(1)


def runtime_of(network: Network) -> Callable[[NDArray[np.float32]], NDArray[Any]]:
    """Return what evaluates float32 inputs ``(inputs,)`` by a network in float32, where there is no other runtime."""

    def run(x: NDArray[np.float32]) -> NDArray[Any]:
        rounded = network.to(torch.float32, network.device)
        return rounded(torch.as_tensor(x, device=network.device).view(1, *network.input_shape))[0].cpu().numpy()

    return run

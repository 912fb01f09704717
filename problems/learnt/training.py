"""Training of learnt starts: gradient steps on bounds, through all rounds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import blocklp as bl
from blocklp.errors import OptionError
from blocklp.options import hook, real, required_hook, whole
from blocklp.problems.learnt.passes import CopyGraph, LearntPasses
from blocklp.problems.learnt.start import LearntStart
from blocklp.solver import Solver

FIRST_SEED = 1000
"""Seeds of instances to train on begin here; those below are for tests."""
RATE, TOGETHER, NEAR = 3e-3, 2, 2e-4
"""Step length of Adam, instances of a step, and the part of the first distance to the optimum below which less is no better."""
SHORT, GROWN = 0.35, 0.6
"""Training begins with this part of the rounds, and makes all of them after this part of its time."""
WEIGHTS = (math.nan, 0.1, 0.3, 1.0, 3.0)
"""Proximal weights that are tried, in units of one over the size of the first multipliers."""
TRIED, CHECK, ENOUGH, CLOSER = 6, 5, 1e-3, 3e-4
"""Instances on which weights are tried, passes between checks, and the gap and the error of the bound to which passes count."""


@dataclass(frozen=True)
class TrainingEvent:
    """The state of a training, for callbacks.

    Attributes
    ----------
    steps : int
        Gradient steps so far.
    seconds : float
        Time since the first of them.
    distance : float
        What the last instances are from their optima after all rounds, in parts of where they began (a geometric mean).
    """

    steps: int
    seconds: float
    distance: float


@dataclass(frozen=True)
class _Example:
    """An instance with its optimum, both for minimisation."""

    solver: Solver
    graph: CopyGraph
    optimum: float
    first: float


def train_start(
    draw: Callable[[int], bl.Model],
    *,
    target: Callable[[int], bl.Model] | None = None,
    family: str = "",
    rounds: int = 32,
    seconds: float = 240.0,
    steps: int | None = None,
    instances: int = 24,
    network: LearntPasses | None = None,
    told: Callable[[TrainingEvent], Any] | None = None,
) -> LearntStart:
    r"""Train a start on random instances of a family, by gradient steps on the bounds of all rounds.

    The loss is the mean, with weights that grow with the round r, of

    .. math:: \log \left( \frac{D^* - D(\lambda_r)}{D^* - D(\lambda_0)} + \varepsilon \right)

    where :math:`D^*` comes from a solve of each instance.  :math:`D(\lambda)` is :func:`blocklp.soft_bound` in the limit of a low
    temperature, whose gradient is a point of the blocks less the mean of its copies; higher ones train no better.

    Parameters
    ----------
    draw : callable
        Takes a seed to a model with one instance; seeds from 1000 on are asked for.
    target : callable, optional
        Likewise, models of the size that the start is for, on which its proximal weight is chosen; by default those of ``draw``.
    family : str
        The name that the start gets.
    rounds : int
        Rounds of the start.
    seconds : float
        How long steps are made.
    steps : int, optional
        Most steps; with a number that comes before the time is over, training repeats itself.
    instances : int
        How many instances are drawn.
    network : LearntPasses, optional
        The network to train further; by default a new one.
    told : callable, optional
        Gets a :class:`TrainingEvent` after every step; True ends the training.

    Returns
    -------
    LearntStart
        The start, with the proximal weight that does best on some of the instances.

    Raises
    ------
    OptionError
        An option is out of range, or no instance has anything to learn: none of its types has min-marginals, or its bound is the
        optimum before the first pass.
    """
    required_hook(draw, "draw")
    hook(told, "told")
    whole(rounds, "rounds"), whole(instances, "instances"), real(seconds, "seconds")
    most = math.inf if steps is None else whole(steps, "steps")
    examples = [e for k in range(instances) if (e := _example(draw(FIRST_SEED + k))) is not None]
    if not examples:
        raise OptionError("all instances are solved by their first multipliers; draw some that are not")
    random = torch.Generator().manual_seed(0)
    if network is None:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            network = LearntPasses()
    optimiser = torch.optim.Adam(network.parameters(), RATE)
    began, made = time.perf_counter(), 0
    while True:
        spent = time.perf_counter() - began
        part = max(spent / seconds, made / most)
        if part >= 1:
            break
        optimiser.param_groups[0]["lr"] = RATE * min(1.0, 2 * (1 - part)) + 1e-5
        now = math.ceil(rounds * min(1.0, SHORT + (1 - SHORT) * part / GROWN))
        optimiser.zero_grad()
        distances = []
        for k in torch.randint(len(examples), (TOGETHER,), generator=random).tolist():
            found = _logarithms(network, examples[k], now)
            weights = torch.arange(1, now + 1, dtype=torch.float64)
            torch.autograd.backward((found * weights).sum() / weights.sum() / TOGETHER)
            distances.append(float(found[-1].detach()))
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        made += 1
        mean = math.exp(sum(distances) / len(distances))
        if told is not None and told(TrainingEvent(made, time.perf_counter() - began, mean)):
            break
    if target is not None:
        examples = [e for k in range(TRIED) if (e := _example(target(FIRST_SEED + k))) is not None]
    return LearntStart(network, rounds, _best_weight(network, rounds, examples[:TRIED]), family)


def _example(model: bl.Model) -> _Example | None:
    """An instance, or None where there is nothing to learn."""
    solver = model.compile()
    graph = CopyGraph(solver.decomposition())
    first = float(graph.problem.value(graph.first)[0] + graph.problem.offset[0])
    optimum = float(solver.sense.turn(solver.solve(tol=1e-6).bound)[0])
    return _Example(solver, graph, optimum, first) if optimum - first > 1e-9 * abs(optimum) else None


def _logarithms(network: LearntPasses, example: _Example, rounds: int) -> Tensor:
    """The logarithms of the distances to the optimum after all rounds: ``(rounds,)``."""
    problem = example.graph.problem
    values = torch.stack([problem.value(duals)[0] for duals in network.steps(example.graph, rounds)])
    left = (example.optimum - values - problem.offset[0]) / (example.optimum - example.first)
    return (left.clamp(min=0) + NEAR).log()


def _best_weight(network: LearntPasses, rounds: int, examples: list[_Example]) -> float:
    """The proximal weight from which ADMM takes the fewest passes, to a gap and to a bound near the optimum together."""
    taken = []
    for weight in WEIGHTS:
        start, total = LearntStart(network, rounds, weight), 0
        for example in examples:
            solver = example.solver
            found = solver.solve(
                method="admm", warm_start=start(solver, "admm"), tol=ENOUGH, passes=1000, check_every=CHECK, history=True
            )
            total += int(found.passes[0]) + passes_to(found, float(solver.sense.turn(torch.tensor(example.optimum))), CLOSER)
        taken.append(total)
    return WEIGHTS[taken.index(min(taken))]


def passes_to(solution: bl.Solution, optimum: float, tol: float = ENOUGH) -> int:
    """Passes after which a bound is within a relative distance of the optimum; all of the solve where it never is.

    Parameters
    ----------
    solution : Solution
        Of one instance, with its history.
    optimum : float
        The optimum of the LP.
    tol : float
        The relative distance.

    Returns
    -------
    int
        The passes at the first check that finds it.
    """
    for event in solution.history:
        if abs(float(event.bound[0]) - optimum) <= tol * abs(optimum):
            return event.passes
    return int(solution.passes[0])

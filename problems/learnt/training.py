"""Training of learnt starts: gradient steps on bounds, through all rounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import blocklp as bl
from blocklp.deadline import Deadline
from blocklp.errors import OptionError
from blocklp.options import hook, required_hook, whole
from blocklp.problems.learnt.passes import CopyGraph, LearntPasses
from blocklp.problems.learnt.start import LearntStart
from blocklp.solver import Solver

FIRST_SEED = 1000
"""Seeds of instances to train on begin here; those below are for tests."""
STEPS, RATE, TOGETHER, NEAR = 1500, 3e-3, 2, 2e-4
"""Gradient steps, step length of Adam, instances of a step, and the part of the first distance to the optimum that counts as none."""
SHORT, GROWN = 0.35, 0.6
"""Training begins with this part of the rounds, and makes all of them after this part of its steps."""
WEIGHTS = (math.nan, 0.1, 0.3, 1.0, 3.0)
"""Proximal weights that are tried, in units of one over the size of the first multipliers."""
TRIED, CHECK, ENOUGH, CLOSER = 20, 5, 1e-3, 3e-4
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
    steps: int = STEPS,
    seconds: float = math.inf,
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
    steps : int
        Gradient steps; unless the time is over before, training repeats itself.
    seconds : float
        How long steps are made at most.
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
    whole(rounds, "rounds"), whole(instances, "instances"), whole(steps, "steps")
    examples = [e for k in range(instances) if (e := _example(draw(FIRST_SEED + k))) is not None]
    if not examples:
        raise OptionError("all instances are solved by their first multipliers; draw some that are not")
    if network is None:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            network = LearntPasses()
    trained = _Training(examples, network, rounds)
    try:
        trained.run(steps, Deadline(seconds), told)
    except KeyboardInterrupt:
        pass  # a network is one after any step
    if target is not None:
        examples = [e for k in range(TRIED) if (e := _example(target(FIRST_SEED + k))) is not None]
    return LearntStart(network, rounds, _best_weight(network, rounds, examples[:TRIED]), family)


class _Training:
    """Gradient steps on the bounds of random examples."""

    def __init__(self, examples: list[_Example], network: LearntPasses, rounds: int) -> None:
        self.examples, self.network, self.rounds = examples, network, rounds
        self.optimiser = torch.optim.Adam(network.parameters(), RATE)
        self.random = torch.Generator().manual_seed(0)

    def run(self, steps: int, deadline: Deadline, told: Callable[[TrainingEvent], Any] | None) -> None:
        """Make steps until there were enough of them, the time is over, or the callback says so."""
        made, distance = 0, 1.0
        while (part := max(made / steps, deadline.elapsed() / deadline.seconds)) < 1:
            rounds = math.ceil(self.rounds * min(1.0, SHORT + (1 - SHORT) * part / GROWN))
            distance = self.step(RATE * min(1.0, 2 * (1 - part)) + 1e-5, rounds)
            made += 1
            if told is not None and told(TrainingEvent(made, deadline.elapsed(), distance)):
                break

    def step(self, rate: float, rounds: int) -> float:
        """One step; return the mean distance to the optimum after the last round."""
        self.optimiser.param_groups[0]["lr"] = rate
        self.optimiser.zero_grad()
        weights = torch.arange(1, rounds + 1, dtype=torch.float64)
        total = 0.0
        for k in torch.randint(len(self.examples), (TOGETHER,), generator=self.random).tolist():
            found = _logarithms(self.network, self.examples[k], rounds)
            torch.autograd.backward((found * weights).sum() / weights.sum() / TOGETHER)
            total += float(found[-1].detach()) / TOGETHER
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimiser.step()
        return math.exp(total)


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

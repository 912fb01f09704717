"""The tree of integer programs (:mod:`blocklp.search.integer_search`): splits, and what nodes teach others.

A task is a function of its nodes, the best value, and advice, so that any process expands nodes alike.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.results.state import State
from blocklp.search.best_first import Expansion, Node
from blocklp.search.integer_relaxations import Bases, bytes_of, joined
from blocklp.search.integer_search import (
    COARSE,
    INTEGRAL,
    NODE_PASSES,
    IntegerProgram,
    Subproblem,
)

WAIT = 8
"""Solves between two dives as long as no point is known; afterwards dives follow 2, 4, 8 and so on solves."""


@dataclass(frozen=True)
class Advice:
    """What the nodes so far have taught, for a task.

    Attributes
    ----------
    gains, asked : Tensor
        ``(2, variables)``: what splits downwards and upwards gained for each unit in all, and how many there
        were.
    size : float
        That of the terms of the best value.
    number : int
        Of the task, from 1 on.
    """

    gains: Tensor
    asked: Tensor
    size: float
    number: int


@dataclass(frozen=True)
class Lesson:
    """What a task teaches: column, side and gain for each unit of its splits, its best value and point."""

    splits: list[tuple[int, int, float]]
    value: float
    point: Tensor | None


class IntegerTree:
    """Expands nodes of an integer program, and learns from them.

    Parameters
    ----------
    program : IntegerProgram
        The program; it has the best point that is known here.
    """

    def __init__(self, program: IntegerProgram) -> None:
        self.program, self.tasks = program, 0
        self.gains, self.asked = torch.zeros(2, 2, program.model.size, dtype=torch.float64)

    def advice(self) -> Advice:
        """Return what is known now, for the next task."""
        self.tasks += 1
        return Advice(self.gains.clone(), self.asked.clone(), self.program.size, self.tasks)

    def learn(self, lesson: Lesson) -> None:
        """Note gains of splits (pseudo-costs; Benichou et al. 1971), and a better point."""
        for split in lesson.splits:
            self._note(*split)
        if lesson.point is not None and lesson.value < self.program.best:
            self.program.keep(lesson.value, lesson.point)

    def _note(self, column: int, side: int, gain: float) -> None:
        self.gains[side, column] += gain
        self.asked[side, column] += 1

    def expand(self, nodes: list[Node], incumbent: float, deadline: Deadline, advice: Advice) -> Expansion:
        """Bound nodes and split those that may hold a better point; the log has a :class:`Lesson`.

        Parameters
        ----------
        nodes, incumbent, deadline, advice
            As in :data:`blocklp.search.over_workers.Expand`.
        """
        # Nothing is left of a task for others.
        own, program = copy.copy(self), copy.copy(self.program)
        program.best, program.point, program.size, program.deadline = incumbent, None, advice.size, deadline
        program.task = advice.number
        own.program, own.tasks = program, advice.number
        own.gains, own.asked = advice.gains.clone(), advice.asked.clone()
        return own._expanded(nodes)

    def _expanded(self, nodes: list[Node]) -> Expansion:
        program = self.program
        # They are not looked at again, and the bound counts them.
        closed = [Node(node.bound, node.depth) for node in nodes if node.bound >= program.goal()]
        nodes = [node for node in nodes if node.bound < program.goal()]
        if not nodes or program.deadline.over():
            return Expansion(nodes, unresolved=closed)
        subs: list[Subproblem] = [node.state for node in nodes]
        low, high = torch.stack([s.low for s in subs]), torch.stack([s.high for s in subs])
        found = program.relaxed(low, high, joined([s.state for s in subs]), COARSE, NODE_PASSES)
        kept = found.state
        program.offer(found.x)
        if self.tasks.bit_count() == 1 or (math.isinf(program.best) and self.tasks % WAIT == 0):
            program.dive(low[0], high[0], kept.select([0]), seed=self.tasks)
        bounds = found.bound
        low, high = self._tightened(found.price, bounds, low, high)
        children, splits = list[Node](), list[tuple[int, int, float]]()
        for i, (node, sub) in enumerate(zip(nodes, subs, strict=True)):
            bound = program.raised(max(node.bound, float(bounds[i])))
            if sub.split is not None and math.isfinite(bound - node.bound):
                column, side, moved = sub.split
                splits.append((column, side, max(bound - node.bound, 0.0) / max(moved, INTEGRAL)))
                self._note(*splits[-1])
            if bool((low[i] > high[i]).any()) or bound == math.inf:
                continue  # nothing better than the best point, or nothing at all
            if bound >= program.goal():
                closed.append(Node(bound, node.depth))
                continue
            free, own = program.integer & (low[i] < high[i]), kept.select([i])
            if bool(free.any()):
                children += self._halves(low[i], high[i], found.x[i], free, own, bound, node.depth + 1)
                continue
            bound = max(bound, float(program.complete(low[i][None], own)[0]))
            closed.append(Node(program.raised(bound), node.depth))
        value, point = math.inf if program.point is None else program.best, program.point
        return Expansion(children, value, point, closed, [Lesson(splits, value, point)])

    def _halves(
        self,
        low: Tensor,
        high: Tensor,
        x: Tensor,
        free: Tensor,
        state: State | Bases,
        bound: float,
        depth: int,
    ) -> list[Node]:
        """Split a node on the variable whose two sides promise most."""
        x = torch.minimum(torch.maximum(x, low), high)
        down = x - x.floor()
        usual = self.gains.sum() / self.asked.sum().clamp(min=1)
        mean = torch.where(self.asked > 0, self.gains / self.asked.clamp(min=1), usual.clamp(min=1e-9))
        score = (mean[0] * down).clamp(min=1e-9) * (mean[1] * (1 - down)).clamp(min=1e-9)
        broken = free & (torch.minimum(down, 1 - down) > INTEGRAL)
        column = int(score.masked_fill(~(broken if bool(broken.any()) else free), -1.0).argmax())
        below = float(x[column].floor().clamp(max=float(high[column]) - 1))
        left, right = high.clone(), low.clone()
        left[column], right[column] = below, below + 1
        moved = float(x[column]) - below
        size = bytes_of(state)
        return [
            Node(bound, depth, Subproblem(low, left, state, (column, 0, moved)), size),
            Node(bound, depth, Subproblem(right, high, state, (column, 1, 1 - moved)), size),
        ]

    def _tightened(self, price: Tensor, bounds: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Narrow integers by reduced costs: each unit away from where its box has it costs its multiplier."""
        program = self.program
        if math.isinf(program.best):
            return low, high
        least = program.goal() if program.unit else program.best
        room = (least - bounds).clamp(min=0)[:, None] + 1e-9 * abs(program.best)
        steps = (room / price.abs()).nan_to_num(posinf=math.inf).floor()
        rising, falling = program.integer & (price < 0), program.integer & (price > 0)
        low = torch.where(rising, torch.maximum(low, high - steps), low)
        return low, torch.where(falling, torch.minimum(high, low + steps), high)

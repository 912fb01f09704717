r"""Branching scores by regression on what strong branching says.

Strong branching bounds both children of a node for every free variable; what they gain, in parts of the distance to the incumbent,
is learnt from a handful of features of a variable and its neighbours, by a network of one hidden layer (Alvarez, Louveaux and
Wehenkel, A machine learning-based approximation of strong branching, 2017, for general integer programs; Lu and Kumar, Neural network
branching for neural network verification, 2020).  A variable at 0 and the same one at 1 are two rows of one regression, so that
scores do not change where labels are exchanged, nor with the order of variables or the unit of the function.

A rule only chooses where to split: whatever its scores are, all bounds are those of :class:`blocklp.Nodes`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

import blocklp as bl
from blocklp.errors import BlocklpError, FormatError, OptionError
from blocklp.options import of_type, required_hook, whole
from blocklp.problems.qpbo import Qubo, solve_qpbo_exactly
from blocklp.problems.qpbo.node_search import LEAST, StrongBranching, portion, product
from blocklp.results import saved
from blocklp.search.nodes import NodeBounds

KIND = "learnt branching"
"""The word by which files of learnt branching are known."""
FEATURES, HIDDEN = 14, 24
FRACTIONAL = 0.4
"""Distance to one half below which a value counts as undecided."""
STEPS, BATCH, RATE = 3000, 4096, 3e-3
"""Steps of Adam, rows of a step, and its step length."""
INSTANCES = 12
"""Functions that are searched."""
FIRST_SEED = 1000
"""Seeds of functions to train on begin here; those below are for tests."""


class LearntBranching:
    """Branches by gains that were learnt.

    Parameters
    ----------
    network : Module
        Takes ``(rows, 14)`` features to ``(rows, 1)`` logarithms of gains; by default one that was not trained.

    Examples
    --------
    >>> from blocklp.problems.learnt import BRANCHING, LearntBranching, train_branching
    >>> from blocklp.problems.qpbo import solve_qpbo_exactly
    >>> branching = train_branching(BRANCHING["ba"].draw, instances=1, steps=10)
    >>> solve_qpbo_exactly(BRANCHING["ba"].draw(1), branching=branching).proven
    True
    """

    def __init__(self, network: nn.Sequential | None = None) -> None:
        self.network = fresh() if network is None else network

    @torch.no_grad()
    def scores(self, qubo: Qubo, nodes: bl.Nodes, found: NodeBounds, goal: float) -> Tensor:
        """Return the product of the gains that both children are expected to have.

        Parameters
        ----------
        qubo, nodes, found, goal
            As in :meth:`blocklp.problems.qpbo.node_search.Rule.scores`; no child is bounded.

        Returns
        -------
        Tensor
            ``(nodes, k)`` float64, positive.
        """
        del nodes
        seen = features(qubo, found, goal)
        gains = self.network(seen).squeeze(-1).double().exp().nan_to_num(0.0, posinf=1.0)
        return product(gains.clamp(0, 1))

    def save(self, path: saved.File) -> None:
        """Write a file that :meth:`load` reads; it holds numbers only.

        Parameters
        ----------
        path : str or path
            Where to; a file of this name is replaced.
        """
        tensors = {f"layer_{name.replace('.', '_')}": own for name, own in self.network.state_dict().items()}
        saved.write(path, KIND, {}, tensors)

    @staticmethod
    def load(path: saved.File) -> LearntBranching:
        """Read a file that :meth:`save` wrote.

        Raises
        ------
        FormatError, OSError
            As :func:`blocklp.results.saved.read` does.
        """
        _, tensors = saved.read(path, (KIND,))
        network = fresh()
        try:
            named = {name.removeprefix("layer_").replace("_", "."): own for name, own in tensors.items()}
            network.load_state_dict(named)
        except (RuntimeError, BlocklpError) as error:
            raise FormatError(f"{path} is damaged: {error!r}; write it again by save()") from error
        return LearntBranching(network)


def fresh() -> nn.Sequential:
    """A network that was not trained, the same at every call."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, 1))


def features(qubo: Qubo, found: NodeBounds, goal: float) -> Tensor:
    """The features of each variable of each node that the network sees, at 0 and at 1.

    Coefficients and gains are in parts of the distance to the incumbent.  Of the variable: the gains by the last sweeps, at this
    value and at the other one; how far its value in the point is from this one and from one half; its linear coefficient.  Of its
    free neighbours: how many there are, how many of these are undecided, and how many of theirs; their pairs with it, added up; and
    the means of their gains at the values to which this one draws them, and at the others.  Of the node: how much is free, and
    how far the bound is from the incumbent.

    Parameters
    ----------
    qubo : Qubo
        The function, of k variables.
    found : NodeBounds
        Its nodes.
    goal : float
        The bound that closes a node.

    Returns
    -------
    Tensor
        ``(nodes, k, 2, 14)`` float32.
    """
    free = (found.fixings < 0).double()
    gap = (goal - found.bound).clamp(min=1e-300)[:, None]
    gains = torch.stack([portion(side - found.bound[:, None], gap) for side in (found.if_zero, found.if_one)], -1) + LEAST
    logs = gains.log() * free[..., None]
    undecided = free * ((found.x - 0.5).abs() < FRACTIONAL)
    one = (found.fixings == 1).double()
    pairs = _Pairs(qubo)
    count = pairs.sum(free)
    signed, size = pairs.sum(free, pairs.weight), pairs.sum(free, pairs.weight.abs())
    linear = torch.tensor(qubo.linear) + pairs.sum(one, pairs.weight) + signed / 2
    # A pair of positive coefficient draws its ends to different values, any other to the same one.
    drawn = torch.where(pairs.weight > 0, 1.0, 0.0)
    apart, alike = (pairs.sum(logs[..., side], drawn) for side in (0, 1)), (pairs.sum(logs[..., side], 1 - drawn) for side in (0, 1))
    (apart_0, apart_1), (alike_0, alike_1) = apart, alike
    towards = torch.stack([apart_1 + alike_0, apart_0 + alike_1], -1) / count.clamp(min=1)[..., None]
    from_it = torch.stack([apart_0 + alike_1, apart_1 + alike_0], -1) / count.clamp(min=1)[..., None]
    value = torch.tensor([0.0, 1.0], dtype=torch.float64)
    common = [
        (found.x - 0.5).abs(),
        count.log1p(),
        pairs.sum(undecided).log1p(),
        pairs.sum(undecided * pairs.sum(undecided)).log1p(),
        (size / gap).log1p(),
        (pairs.sum(undecided, pairs.weight.abs()) / gap).log1p(),
        free.sum(1, keepdim=True).log1p().expand_as(free),
        (gap / (np.abs(qubo.quadratic).mean() + 1e-300)).log1p().expand_as(free),
    ]
    own = [
        logs,
        logs.flip(-1),
        (found.x[..., None] - value).abs(),
        ((linear / gap)[..., None] * (2 * value - 1)).asinh(),
        towards,
        from_it,
    ]
    seen = torch.stack([*own, *(c[..., None].expand(*c.shape, 2) for c in common)], -1)
    return seen.nan_to_num(0.0, 0.0, 0.0).float()


class _Pairs:
    """The pairs of a function, in both directions."""

    def __init__(self, qubo: Qubo) -> None:
        first, second = torch.tensor(qubo.edges).T
        self.begin, self.end = torch.cat([first, second]), torch.cat([second, first])
        self.weight = torch.tensor(qubo.quadratic).repeat(2)

    def sum(self, values: Tensor, weight: Tensor | float = 1.0) -> Tensor:
        """Add up the values of the neighbours ``(nodes, k)``, with a weight for each pair."""
        return torch.zeros_like(values).index_add_(1, self.begin, values[:, self.end] * weight)


@dataclass
class _Recorded:
    """Strong branching that keeps what it has seen."""

    rule: StrongBranching = field(default_factory=StrongBranching)
    seen: list[Tensor] = field(default_factory=list)
    gains: list[Tensor] = field(default_factory=list)

    def scores(self, qubo: Qubo, nodes: bl.Nodes, found: NodeBounds, goal: float) -> Tensor:
        """Return the scores of strong branching."""
        gains = self.rule.gains(nodes, found, goal)
        rows = (found.fixings < 0) & found.open[:, None]
        self.seen.append(features(qubo, found, goal)[rows].flatten(0, 1))
        self.gains.append(gains[rows].flatten().float())
        return product(gains)


def train_branching(
    draw: Callable[[int], Qubo], *, instances: int = INSTANCES, steps: int = STEPS, seconds: float = 60.0
) -> LearntBranching:
    """Learn from searches by strong branching.

    Parameters
    ----------
    draw : callable
        Takes a seed to a function; seeds from 1000 on are asked for.
    instances : int
        How many functions are searched.
    steps : int
        Gradient steps.
    seconds : float
        How long each function is searched at most.

    Returns
    -------
    LearntBranching
        A rule for ``solve_qpbo_exactly(..., branching=)``.

    Raises
    ------
    OptionError
        An option is out of range, or no function is branched on.
    """
    required_hook(draw, "draw")
    whole(instances, "instances"), whole(steps, "steps")
    recorded = _Recorded()
    for k in range(instances):
        qubo = draw(FIRST_SEED + k)
        of_type(qubo, Qubo, "what draw returns", "a Qubo")
        solve_qpbo_exactly(qubo, time_limit=seconds, branching=recorded)
    seen, gains = torch.cat([torch.zeros(0, FEATURES), *recorded.seen]), torch.cat([torch.zeros(0), *recorded.gains])
    if not len(seen):
        raise OptionError("no function was branched on; draw some whose roof dual is below their minimum")
    target, network = (gains + LEAST).log(), fresh()
    optimiser, random = torch.optim.Adam(network.parameters(), RATE), torch.Generator().manual_seed(0)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = RATE * min(1.0, 2 * (1 - step / steps))
        rows = torch.randint(len(seen), (BATCH,), generator=random)
        optimiser.zero_grad()
        (network(seen[rows])[:, 0] - target[rows]).square().mean().backward()
        optimiser.step()
    return LearntBranching(network)

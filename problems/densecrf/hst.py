r"""General label compatibilities through random trees (thesis, A.1.6; Kumar & Koller 2009).

A tree of clusters of labels, drawn at random (Fakcharoenphol, Rao & Talwar 2004), gives a tree metric that is nowhere below the
compatibility, and in expectation O(log labels) above a metric at most.  The labelling problem is solved on several trees, by the
LP (A.1.6.1), by the steps of Algorithm 7 or of PROX-LP, or cluster by cluster from the root to the leaves, and every labelling is
judged by the true energy.

The thesis calls any semi-metric fit; the theorem needs the triangle inequality.  Here the clusters are those of the shortest paths
in the compatibility, and a cluster is as wide as the compatibility itself says: the trees err above only, by the distortion times
what the shortest paths cut.  Since they are above, what bounds a tree's energy from below does not bound the true one; the bounds
of this method are those of cuts below the compatibility (:func:`~blocklp.problems.densecrf.compatibility.metric_cuts`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from blocklp.errors import OptionError
from blocklp.problems.densecrf.compatibility import Cuts
from blocklp.problems.densecrf.energy import DenseCRF
from blocklp.problems.densecrf.kernel import Kernel
from blocklp.problems.densecrf.mean_field import settle
from blocklp.problems.densecrf.prox_lp import prox_lp
from blocklp.problems.densecrf.run import Run
from blocklp.problems.densecrf.sg_lp import sg_lp
from blocklp.problems.method_options import check_counts

SOLVERS = "prox", "subgradient"
"""What solves the problem of a tree."""

DRAWS = 8
"""Trees drawn for each one kept."""
LAST = 5
"""Steps of mean field that choose among the labels that the trees have found."""


@dataclass(frozen=True, eq=False)
class LabelTree:
    """Clusters of labels, level by level.

    Two labels are as far apart as the dearest pair of the smallest cluster that holds both: never less than the pair itself.  The
    r-HST of the same clusters has a bound on that for all clusters of a level, and so is never nearer to the compatibility.

    Attributes
    ----------
    partitions : Tensor
        ``(levels, labels)`` int64: the cluster of every label, below the root's first, single labels last; each level divides the
        clusters of the one before.
    """

    partitions: Tensor

    def members(self, level: int) -> Tensor:
        """The clusters of a level: ``(labels, clusters)`` float64, 0 or 1."""
        return torch.nn.functional.one_hot(self.partitions[level]).double()

    def lengths(self, costs: Tensor) -> list[Tensor]:
        """Half of how much narrower than the one around it each cluster is, the lengths of the edges: ``(clusters,)`` by level."""
        found, around = [], costs.max().expand(len(costs))
        for level in range(len(self.partitions)):
            inside = self.members(level).bool()
            width = torch.stack([costs[s][:, s].max() for s in inside.T])
            found.append((torch.stack([around[s][0] for s in inside.T]) - width) / 2)
            around = width[self.partitions[level]]
        return found

    def cuts(self, costs: Tensor) -> Cuts:
        """The tree metric for a compatibility ``(labels, labels)``."""
        return Cuts(torch.cat([self.members(k) for k in range(len(self.partitions))], 1), torch.cat(self.lengths(costs)))


def random_tree(costs: Tensor, draw: torch.Generator, r: float = 2.0) -> LabelTree:
    """Draw a tree: balls around the labels in random order, of radii that shrink from level to level, divide the clusters.

    Parameters
    ----------
    costs : Tensor
        ``(labels, labels)`` float64: a semi-metric.
    draw : Generator
        Where random numbers come from.
    r : float
        By what radii shrink, above 1.
    """
    labels = len(costs)
    metric = shortest_paths(costs)
    order = torch.randperm(labels, generator=draw)
    # From one r-th of the diameter to the whole, with density 1 / radius.
    radius = float(metric.max()) * r ** (float(torch.rand((), generator=draw, dtype=torch.float64)) - 1)
    least = float(metric[metric > 0].min()) if bool((metric > 0).any()) else torch.inf
    now, partitions = torch.zeros(labels, dtype=torch.int64), []
    while radius >= least:
        # Every label goes to the first in the order whose ball holds it.
        centre = (metric[order] <= radius).byte().argmax(0)
        finer = torch.unique(now * labels + centre, return_inverse=True)[1]
        if int(finer.max()) > int(now.max()):
            now = finer
            partitions.append(now)
        radius /= r
    if not partitions or int(now.max()) < labels - 1:
        partitions.append(torch.arange(labels))
    return LabelTree(torch.stack(partitions))


def random_trees(costs: Tensor, trees: int, seed: int, r: float = 2.0) -> list[LabelTree]:
    """Draw eight times as many trees and keep those of least sum of distances: least mean distortion above the same costs.

    Parameters
    ----------
    costs : Tensor
        ``(labels, labels)``: costs of pairs of labels.
    trees, seed : int
        How many trees to keep, and the seed of the draw.
    r : float
        As for :func:`random_tree`.
    """
    draw = torch.Generator().manual_seed(seed)
    drawn = [random_tree(costs, draw, r) for _ in range(DRAWS * trees)]
    return sorted(drawn, key=lambda tree: float(tree.cuts(costs).distances().sum()))[:trees]


def shortest_paths(costs: Tensor) -> Tensor:
    """The largest metric nowhere above a semi-metric (Floyd 1962): ``(labels, labels)``."""
    metric = costs.clone()
    for k in range(len(costs)):
        metric = torch.minimum(metric, metric[:, k, None] + metric[k])
    return metric


def hst(
    run: Run,
    *,
    trees: int = 4,
    seed: int = 0,
    top_down: bool = False,
    weight: float = 1.0,
    outer: int = 5,
    inner: int = 5,
    r: float = 2.0,
    solver: str = "prox",
) -> None:
    r"""Solve the labelling problem on random trees and combine what they find.

    Every tree's problem starts at the softmax of its unaries.  In the end mean field on the true energy chooses for each point among
    the start's label and those that the trees have found for it.

    Parameters
    ----------
    run : Run
        The run.
    trees : int
        Number of trees.
    seed : int
        Seed of the random trees.
    top_down : bool
        Whether each tree is descended: at every level the points choose among the clusters that divide theirs, which is a problem
        with a label for every cluster.  Otherwise the LP of the whole tree metric is solved: one problem for all levels, so that
        steps are fewer, and nothing is settled before the leaves are seen.
    weight, outer, inner : float and int
        Those of :func:`~blocklp.problems.densecrf.prox_lp.prox_lp`, for every tree or level.
    r : float
        By what the radii of clusters shrink from level to level, above 1: the r of an r-HST.
    solver : str
        "prox", or "subgradient" for the steps of Algorithm 7, ``outer * inner`` of them, of length 1 / (1 + t).

    Raises
    ------
    OptionError
        If a number is not positive, r not above 1, or the solver is another one.
    ModelError
        If a compatibility is not a semi-metric: negative, or with costs on its diagonal.
    """
    if trees < 1:
        raise OptionError(f"trees is {trees}; give at least 1")
    if not 1 < r < math.inf or solver not in SOLVERS:
        raise OptionError(f"r is {r} and solver {solver!r}; give a number above 1, and 'prox' or 'subgradient'")
    solve = partial(prox_lp, weight=weight, outer=outer, inner=inner)
    if solver == "subgradient":
        check_counts(outer=outer, inner=inner)
        solve = partial(sg_lp, steps=outer * inner, step="printed")
    crf = run.crf
    run.bounded(crf.lower_bound(crf.subgradient(crf.level, 2), torch.float64))
    costs = [compatibility(kernel, crf.labels) for kernel in crf.kernels]
    mean = sum((k.weight * c for k, c in zip(crf.kernels, costs, strict=True)), torch.zeros(crf.labels, crf.labels).double())
    allowed = torch.nn.functional.one_hot(run.start.argmax(1), crf.labels).bool()
    unit = crf.per_point(run.unit).to(crf.unary)
    for tree in random_trees(mean, trees, seed, r):
        if top_down:
            found, stopped = _descend(run, tree, costs, solve)
        else:
            part = _TreeRun(run, replace(crf, kernels=_with(crf.kernels, [tree.cuts(c).distances() for c in costs])))
            part.start = (-crf.unary / unit).softmax(1)
            solve(part)
            found, stopped = part.y.argmax(1), part.stopped
        if stopped:
            return
        allowed.scatter_(1, found[:, None], True)
    settle(_TreeRun(run, replace(crf, unary=crf.unary + crf.per_point(crf.barrier).to(crf.unary) * ~allowed)), unit, LAST)


def compatibility(kernel: Kernel, labels: int) -> Tensor:
    """Costs of pairs of labels under a kernel, Potts included: ``(labels, labels)`` float64 on the CPU."""
    return 1 - torch.eye(labels, dtype=torch.float64) if kernel.compatibility is None else kernel.compatibility.cpu()


def _descend(run: Run, tree: LabelTree, costs: list[Tensor], solve: Callable[[Run], None]) -> tuple[Tensor, bool]:
    """From the root to the leaves: the labelling ``(points,)`` that the points come to, and whether to stop."""
    crf = run.crf
    lengths = [tree.lengths(c) for c in costs]
    chosen = torch.zeros(crf.points, dtype=torch.int64, device=crf.unary.device)
    around = torch.zeros(crf.labels, dtype=torch.int64)
    for level, partition in enumerate(tree.partitions):
        inside = tree.members(level).bool().to(chosen.device)
        # A cluster costs a point what its best label does.
        best = [crf.unary[:, s].min(1) for s in inside.T]
        stands = torch.stack([s.nonzero()[:, 0][b.indices] for s, b in zip(inside.T, best, strict=True)], 1)
        parent = torch.stack([around[s][0] for s in inside.T.cpu()]).to(chosen.device)
        unary = torch.stack([b.values for b in best], 1) + crf.per_point(crf.barrier).to(crf.unary) * (parent != chosen[:, None])
        # Two clusters of one level are apart by both their edges; the edges above are settled.
        stars = [(c[level][:, None] + c[level]).fill_diagonal_(0) for c in lengths]
        cliques = None if crf.cliques is None else crf.cliques.merged(inside)
        part = _TreeRun(run, replace(crf, unary=unary, kernels=_with(crf.kernels, stars), cliques=cliques), stands)
        part.start = (-unary / crf.per_point(run.unit).to(unary)).softmax(1)
        solve(part)
        if part.stopped:
            break
        chosen, around = part.y.argmax(1), partition
    return stands.gather(1, part.y.argmax(1, keepdim=True))[:, 0], part.stopped


def _with(kernels: tuple[Kernel, ...], costs: list[Tensor]) -> tuple[Kernel, ...]:
    """The kernels with other compatibilities."""
    return tuple(replace(k, compatibility=c) for k, c in zip(kernels, costs, strict=True))


class _TreeRun(Run):
    """A run on another energy whose steps are steps of the true one; its bounds are of that other energy and stay here."""

    def __init__(self, run: Run, crf: DenseCRF, stands: Tensor | None = None) -> None:
        super().__init__(crf, run.method)
        self.run, self.stands, self.stopped = run, stands, False

    @property
    def unit(self) -> Tensor:
        """That of the true energy."""
        return self.run.unit

    def step(self, y: Tensor, stalled: Callable[[], object] | None = None) -> bool:
        self.y = y
        # The label that stands for a cluster takes all of its share.
        whole = y if self.stands is None else torch.zeros_like(self.run.crf.unary).scatter_(1, self.stands, y)
        self.run.filter_calls += self.filter_calls
        self.filter_calls = 0
        self.stopped = self.run.step(whole)
        return self.stopped or (self.run.seen and stalled is not None and bool(stalled()))

"""A deadline, or an interrupt, in every phase: what is known then is returned, with a valid bound."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch

from blocklp.deadline import Deadline
from blocklp.errors import TimeLimitError
from blocklp.oracles.filters.gaussian import Gaussian
from blocklp.oracles.filters.permutohedral import Lattice
from blocklp.problems.densecrf import DenseCRF, Kernel, Result, image_crf, image_features, solve_densecrf, superpixel_cliques
from blocklp.problems.densecrf.compatibility import metric_cuts
from blocklp.problems.densecrf.stereo import matching_costs
from blocklp.status import Status

MIXED = torch.tensor([[0.4, 1, -1], [1, 0, 2], [-1, 2, -0.3]], dtype=torch.float64)


class Asked(Deadline):
    """A deadline that is over, or an interrupt that comes, once it has been asked so many times."""

    def __init__(self, times: int, event: Callable[[], None] | None = None) -> None:
        super().__init__(1e6)
        self.times, self.event, self.asked = times, event, 0

    def elapsed(self) -> float:
        self.asked += 1
        if self.asked <= self.times:
            return 0.0
        if self.event is not None:
            self.event()
        return 2e6


def interrupt() -> None:
    raise KeyboardInterrupt


def field(kind: Callable[[torch.Tensor], Lattice | Gaussian], compatibility: torch.Tensor | None = None) -> DenseCRF:
    draw = torch.Generator().manual_seed(0)
    unary = 2 * torch.rand(8, 3, generator=draw, dtype=torch.float64) - 1
    smooth = Kernel(kind(image_features(2, 4, 1.5)), 0.5, normalise=False)
    return DenseCRF(unary, (smooth, Kernel(kind(image_features(2, 4, 3.0)), 1.0, compatibility=compatibility)))


def optimum(crf: DenseCRF) -> float:
    """The least energy of all labellings, from the dense matrices."""
    x = torch.tensor(list(itertools.product(range(3), repeat=8)))
    total = crf.unary[torch.arange(8), x].sum(1)
    for kernel in crf.kernels:
        matrix = kernel(torch.eye(8, dtype=torch.float64)).triu(1)
        costs = 1 - torch.eye(3, dtype=torch.float64) if kernel.compatibility is None else kernel.compatibility
        total += (matrix * costs[x[:, :, None], x[:, None, :]]).sum((1, 2))
    return float(total.min())


def check(crf: DenseCRF, found: Result, best: float) -> None:
    assert torch.isfinite(found.bound).all() and found.bound.item() <= best
    assert found.best_energy.item() >= best - 1e-12
    for labelling, energy in ((found.labelling, found.energy), (found.best_labelling, found.best_energy)):
        # What was not evaluated in time is not claimed.
        assert energy.item() == pytest.approx(crf.energy(labelling).item(), rel=1e-9) or energy.item() == float("inf")
    assert torch.equal(found.labelling, found.y.argmax(1)) and 0 <= found.best_gap.item()


@pytest.mark.parametrize("kind", [Lattice.build, Gaussian])
@pytest.mark.parametrize("compatibility", [None, MIXED])
def test_intervals_bound_every_labelling_at_once(kind: type, compatibility: torch.Tensor | None) -> None:
    crf = field(kind, compatibility)
    best = optimum(crf)
    assert crf.interval_bound().item() <= best
    if compatibility is None:
        assert crf.interval_bound().item() == pytest.approx(crf.unary.amin(1).sum().item(), rel=1e-6)


@pytest.mark.parametrize(
    ("method", "event"),
    [*((m, None) for m in ("mean-field", "dc-neg", "sg-lp", "prox-lp-acc", "hst", "pgd")), ("qp-cvx", None), ("prox-lp", interrupt)],
)
def test_it_may_end_in_any_phase(method: str, event: Callable[[], None] | None) -> None:
    crf = field(Gaussian if method == "qp-cvx" else Lattice.build)
    best = optimum(crf)
    whole = Asked(10**9)
    done = solve_densecrf(crf, method, time_limit=whole)
    assert whole.asked > 20
    stopped = Status.TIME_LIMIT if event is None else Status.INTERRUPTED
    bounds = []
    for times in sorted({0, 2, 4, 7, 11, *np.linspace(12, whole.asked - 1, 4).astype(int).tolist()}):
        deadline = Asked(times, event)
        found = solve_densecrf(crf, method, time_limit=deadline)
        check(crf, found, best)
        bounds.append(found.bound.item())
        assert found.status in (stopped, done.status) and (found.status == stopped or times > 0.9 * whole.asked)
        assert deadline.asked <= times + 10  # nothing is begun any more
    assert bounds == sorted(bounds) and bounds[-1] <= done.bound.item()


def test_looking_at_the_deadline_changes_no_bit() -> None:
    crf = field(Lattice.build)
    for method in ("mean-field", "prox-lp", "dc-neg"):
        free, timed = solve_densecrf(crf, method), solve_densecrf(crf, method, time_limit=1e6)
        assert torch.equal(free.y, timed.y) and torch.equal(free.bound, timed.bound)


def test_what_has_nothing_to_return_says_what_was_being_done() -> None:
    image, unary = torch.zeros(4, 5, 3), torch.zeros(4, 5, 2)
    for work, doing in (
        (lambda: image_crf(image, unary, time_limit=Asked(0)), "building a lattice"),
        (lambda: superpixel_cliques(image, time_limit=Asked(0)), "superpixels"),
        (lambda: matching_costs(image, image, 3, time_limit=Asked(0)), "comparing"),
        (lambda: metric_cuts(torch.rand(9, 9).double().fill_diagonal_(0), Asked(0)), "cuts"),
    ):
        with pytest.raises(TimeLimitError, match=doing):
            work()

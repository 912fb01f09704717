"""LPs of dense CRFs written out, against energies of labellings, enumeration and another program that writes them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import blocklp as bl
from blocklp.errors import ModelError
from blocklp.oracles.filters.gaussian import Gaussian
from blocklp.oracles.filters.permutohedral import Lattice
from blocklp.problems.densecrf import explicit_model, solve_densecrf

from .explicit_lp import explicit_lp
from .test_lp_family import LINE, batch, crf, overlapping, some_cliques


@pytest.mark.parametrize("metric", [None, LINE])
@pytest.mark.parametrize("kind", [Gaussian, Lattice.build])
def test_the_model_is_the_lp(kind: type, metric: Tensor | None) -> None:
    field = crf(3, 4, 3, 3, kind, metric, overlapping(12) if metric is None else some_cliques(12))
    field = replace(field, unary=2 * field.unary)
    model = explicit_model(field)
    found = bl.reference(model)
    assert found.objective.item() == pytest.approx(explicit_lp(field), rel=1e-9)
    assert len(found.x["y"][0].argmax(1).unique()) > 1
    # At a labelling it is the energy.
    for seed in range(3):
        x = torch.randint(3, (12,), generator=torch.Generator().manual_seed(seed))
        y = torch.nn.functional.one_hot(x, 3).double()
        at = bl.reference(model, bounds={"y": (y, y)}).objective.item()
        assert at == pytest.approx(field.energy(x).item(), rel=1e-9)


def test_two_labels_are_solved_exactly_and_bounded_by_methods() -> None:
    field = crf(3, 3, 2, 1)
    field = replace(field, unary=2 * field.unary)
    best = min(field.energy(torch.tensor(x)).item() for x in itertools.product(range(2), repeat=9))
    model = explicit_model(field)
    assert bl.reference(model).objective.item() == pytest.approx(best, rel=1e-9)
    assert model.solve(tol=1e-6).bound.item() == pytest.approx(best, rel=1e-5)
    assert solve_densecrf(field, "prox-lp").bound.item() <= best + 1e-9


def test_what_is_not_written_out() -> None:
    with pytest.raises(ModelError, match="2 images; write out the LP of each alone"):
        explicit_model(batch([(2, 2, 1), (2, 3, 2)], LINE))
    with pytest.raises(ModelError, match=r"900 points and 3 labels has 2022750 columns .* smaller picture"):
        explicit_model(crf(30, 30, metric=LINE))
    assert explicit_model(crf(2, 3)).size == 18 + 45  # kernels of the same cuts share columns

"""How many threads tensor operations have while a problem is solved."""

from __future__ import annotations

import pytest
import torch

import blocklp as bl
from blocklp.kernels.settings import EngineSettings
from blocklp.language.compiled_models import ModelList
from blocklp.oracles import Simplex
from blocklp.solver import Solver


def stated() -> bl.Model:
    """Two simplices that share their variables."""
    m = bl.Model()
    x = m.variable("x", 3, lower=0, upper=1)
    for name in "ab":
        m.add(Simplex(3), x[None], name=name)
    m.minimize((torch.tensor([1.0, 2.0, 3.0]) * x).sum())
    return m


@pytest.mark.parametrize(("least", "expected"), [(7, 1), (6, 2)])
def test_a_single_chunk_has_threads_from_a_size_on_and_gives_them_back(least: int, expected: int) -> None:
    settings, before, seen = EngineSettings(threaded_copies=least), torch.get_num_threads(), set()
    solver = Solver(ModelList([stated()]), torch.device("cpu"), torch.float64, backend="torch", settings=settings)
    assert solver.decomposition().copies == 6

    def callback(_: bl.Event) -> None:
        seen.add(torch.get_num_threads())

    torch.set_num_threads(2)
    try:
        found = solver.solve(callback=callback)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == {expected} and found.bound.item() == pytest.approx(1.0)

"""Triton's kernels of mean field and of energies against their definitions, and what an iteration costs a device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from blocklp.problems.densecrf import DenseCRF, image_crf, solve_densecrf
from blocklp.problems.densecrf.energy import labelling_energy
from blocklp.problems.densecrf.mean_field import mean_field_update

from ... import simulated_device

pytest.importorskip("triton", reason="Triton is not installed")

LABELS = 3
PAIRS = torch.tensor([[0.2, 1.0, 2.0], [1.0, 0.0, 1.5], [2.0, 1.5, 0.1]], dtype=torch.float64)
"""A compatibility with costs on its diagonal."""


def crf(dtype: torch.dtype, images: int = 1, compatibility: Tensor | None = None, place: torch.device | None = None) -> DenseCRF:
    draw = torch.Generator().manual_seed(1)
    pictures = [255 * torch.rand(3, 4, 3, generator=draw) for _ in range(images)]
    costs = [torch.rand(3, 4, LABELS, generator=draw, dtype=dtype) for _ in range(images)]
    at = [[t.to(place or "cpu") for t in tensors] for tensors in (pictures, costs)]
    return image_crf(*at, compatibility=compatibility, bilateral=(8.0, 60.0, 5.0))


@pytest.mark.parametrize(
    ("images", "compatibility", "dtype"),
    [(1, None, torch.float64), (1, PAIRS, torch.float32), (2, None, torch.float32), (2, PAIRS, torch.float64)],
)
def test_updates_and_energies(
    images: int, compatibility: Tensor | None, dtype: torch.dtype, use_backend: Callable[[str], None]
) -> None:
    """With the unit of the costs, which one image's points share in one place of memory, and a labelling of that kind."""
    use_backend("torch")
    here = crf(dtype, images, compatibility)
    q = (-here.unary).softmax(1)
    unit = here.per_point(here.unit).to(dtype)
    labelling = here.best_constant() if images == 1 else here.unary.argmin(1)
    truth = mean_field_update.definition(here, q, unit), labelling_energy.definition(here, labelling)
    use_backend("triton")
    there = crf(dtype, images, compatibility)
    assert mean_field_update.implementation(there, q, unit) is not None
    assert labelling_energy.implementation(there, labelling) is not None
    close = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-5}
    found = mean_field_update(there, q, unit)
    torch.testing.assert_close(found, truth[0], **close)
    assert torch.equal(found, mean_field_update(there, q, unit))
    torch.testing.assert_close(labelling_energy(there, labelling), truth[1], rtol=1e-12, atol=1e-12)


def test_gradients_go_by_the_definition(use_backend: Callable[[str], None]) -> None:
    use_backend("triton")
    field = crf(torch.float64)
    q = (-field.unary).softmax(1).requires_grad_()
    assert mean_field_update.implementation(field, q) is None
    with torch.no_grad():
        assert mean_field_update.implementation(field, q) is not None


@pytest.mark.slow
def test_an_iteration_of_mean_field_waits_nowhere(use_backend: Callable[[str], None]) -> None:
    if not simulated_device.available():
        pytest.skip("this version of torch takes no devices from Python")
    device = simulated_device.install()
    use_backend("triton")
    simulated_device.count_triton()
    field = crf(torch.float32, place=device)
    solve_densecrf(field, "mean-field", steps=1, bound_steps=0)

    def counts(steps: int) -> tuple[int, int]:
        with simulated_device.watch("blocklp") as trace:
            found = solve_densecrf(field, "mean-field", steps=steps, bound_steps=0)
        assert found.history.energy.shape == (steps, 1)
        return trace.launches, trace.syncs

    few, many = counts(1), counts(4)
    assert many[1] == few[1] and (many[0] - few[0]) / 3 <= 40


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mean-field", "pgd"])
def test_energies_are_those_of_the_cpu(method: str, use_backend: Callable[[str], None]) -> None:
    if not simulated_device.available():
        pytest.skip("this version of torch takes no devices from Python")
    here = solve_densecrf(crf(torch.float64), method, steps=3, bound_steps=0)
    use_backend("triton")
    there = solve_densecrf(crf(torch.float64, place=simulated_device.install()), method, steps=3, bound_steps=0)
    torch.testing.assert_close(there.energy.cpu(), here.energy, rtol=1e-9, atol=1e-9)
    # The device is looked at in the end alone: a method that stalls makes some steps more there, of no effect.
    same = there.history.energy.cpu()[: len(here.history.energy)]
    torch.testing.assert_close(same, here.history.energy, rtol=1e-9, atol=1e-9)
    assert there.best_source == here.best_source and there.status == here.status

"""Whether a device gives what the CPU gives: every method of the engine and every problem module, on small instances."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

import blocklp as bl
from bench.families import assignment, grid
from bench.instances import ba
from blocklp.errors import OptionError
from blocklp.methods import METHODS
from blocklp.problems.densecrf import image_crf, solve_densecrf
from blocklp.problems.mis import WeightedGraph, solve_mis
from blocklp.problems.mrf import Mrf, solve_mrf
from blocklp.problems.qpbo import QuboBatch, roof_duality_batch, solve_qpbo
from blocklp.problems.verification import Property, digits, network_bounds, verify

Answer = Callable[[torch.device], Tensor]
CPU = torch.device("cpu")

CLOSE = 1e-3
"""Relative difference of bounds after some dozen passes in another order of sums."""


class Differs(RuntimeError):
    """A device gives another answer than the CPU."""


def solved(stated: Callable[[torch.device], bl.Model], method: str, dtype: torch.dtype, place: torch.device) -> Tensor:
    """Bounds of a problem after some passes of a method; zero where its types lack what the method needs."""
    # "auto" turns to other methods on a device than on a CPU: only where they end do their bounds agree.
    passes, tol = (2000, CLOSE / 4) if method == "auto" else (40, 1e-9)
    try:
        return bl.compile(stated(place), device=place, dtype=dtype).solve(method=method, passes=passes, tol=tol).bound
    except OptionError:
        return torch.zeros(1)


def checks(quick: bool) -> Iterator[tuple[str, Answer]]:
    """Names, and what to compare: a function of the device."""
    qubos = QuboBatch.of([ba(20 + 5 * seed, seed) for seed in range(3)])
    models = {"QPBO": lambda place: roof_duality_batch(qubos.to(place))}
    models |= {"assignment": lambda _: assignment(0, 3, 9), "grid": lambda _: grid(0, 4, 3)}
    for family, stated in list(models.items())[: 1 if quick else None]:
        for method in ["admm", "pdhg"] if quick else ["auto", *METHODS]:
            for dtype in (torch.float32, torch.float64):
                yield f"{method} on {family}, {dtype}", partial(solved, stated, method, dtype)
    yield "solve_qpbo", lambda place: solve_qpbo(ba(40, 0), device=place, tol=1e-3).relaxation.bound
    if quick:
        return
    yield "solve_qpbo, tightened", lambda place: solve_qpbo(ba(14, 0), tighten=True, device=place, passes=300).relaxation.bound
    draw = np.random.default_rng(0)
    ends = np.array([(i, j) for i in range(14) for j in range(i + 1, 14) if draw.random() < 0.4])
    yield "solve_mis", lambda place: solve_mis(WeightedGraph(np.ones(14), ends), device=place, tol=1e-3).relaxation.bound
    field = Mrf.from_arrays(draw.random((4, 3)), np.array([(0, 1), (1, 2), (2, 0), (2, 3)]), draw.random((4, 3, 3)))
    yield "solve_mrf", lambda place: torch.as_tensor(solve_mrf(field, device=place, tol=1e-3).bound)
    network, images, labels = digits.load()
    low, high = (images[3] - 1 / 16).clamp(0, 1), (images[3] + 1 / 16).clamp(0, 1)

    def layers(place: torch.device) -> Tensor:
        found = network_bounds(network.to(torch.float64, place), low, high)
        # Neurons of one sign keep any bounds that say so: who bounds them further gains nothing in later layers.
        hidden = [(layer.lower.clamp(max=0) * (layer.upper > 0)).flatten() for layer in found.layers[:-1]]
        return torch.cat([*hidden, found.layers[-1].lower.flatten()])

    def verdict(place: torch.device) -> Tensor:
        prop = Property.robustness(low.flatten(), high.flatten(), label=int(labels[3]), classes=10)
        return torch.tensor(float(verify(network.to(torch.float64, place), prop, timeout=60).status == "unsat"))

    yield "network_bounds", layers
    yield "verify", verdict
    seeded = torch.Generator().manual_seed(0)
    image, unary = 255 * torch.rand(20, 24, 3, generator=seeded), torch.rand(20, 24, 3, generator=seeded)
    for method in ("mean-field", "prox-lp"):
        yield f"dense CRF, {method}", lambda place, m=method: solve_densecrf(image_crf(image.to(place), unary.to(place)), m).energy


def compare(device: torch.device, quick: bool) -> int:
    """Run all checks; how many there were.

    Raises
    ------
    Differs
        If the device raises an error or gives another answer: nothing is to be measured then.
    """
    count = 0
    for name, answer in checks(quick):
        here = answer(CPU).double()
        try:
            there = answer(device).cpu().double()
        except Exception as error:
            raise Differs(f"{name} fails on {device}: {type(error).__name__}: {error}") from error
        off = float(((here - there).abs() / (1 + here.abs())).max())
        if not off <= CLOSE:
            raise Differs(
                f"{name} on {device} is off by {off:.2g}: {there.flatten()[:4].tolist()}, not {here.flatten()[:4].tolist()}"
            )
        count += 1
    return count

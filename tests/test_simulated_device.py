"""The simulated device refuses what CUDA refuses and counts what CUDA would do."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from . import simulated_device as simulated

pytestmark = pytest.mark.skipif(not simulated.available(), reason="torch cannot register devices from Python")
DEVICE = simulated.install() if simulated.available() else torch.device("cpu")


@pytest.fixture
def x() -> Tensor:
    return torch.arange(6.0, device=DEVICE).view(2, 3)


def counted(run: Callable[[], object]) -> tuple[int, int, int, int]:
    with simulated.watch() as trace:
        run()
    return trace.launches, trace.syncs, trace.bytes, trace.moved


def test_tensors_are_where_they_should_be(x: Tensor) -> None:
    made = [
        x + 1,
        x.T.contiguous(),
        x.new_zeros(3),
        torch.zeros(2, device="sim"),
        torch.tensor([1.0], device=DEVICE),
        torch.rand(3, device=DEVICE),
        torch.arange(2, 9, 3, device=DEVICE),
        torch.as_tensor(np.ones(2), device=DEVICE),
        x[x > 2],
        x.double(),
        x.clone(),
        x.sum(),
        *x.max(1),
    ]
    assert all(t.device == DEVICE and t.device.type == "sim" for t in made)
    assert x.cpu().device.type == x.to("cpu", torch.float64).device.type == torch.ones(2).copy_(x[0, :2]).device.type == "cpu"
    assert x.to(DEVICE) is x and x.T.stride() == (1, 3) and made[6].tolist() == [2, 5, 8]


def test_values_are_those_of_the_cpu() -> None:
    draw = torch.Generator().manual_seed(0)
    a, b, index = torch.randn(4, 5, generator=draw), torch.randn(5, 4, generator=draw), torch.randint(0, 5, (4, 7), generator=draw)

    def work(a: Tensor, b: Tensor, index: Tensor) -> list[Tensor]:
        c = (a @ b).softmax(1)
        c[:, 0] = 2.0
        c[c < 0.1] = 0.0
        view = c[1:]
        view.mul_(3)
        return [
            c,
            a.gather(1, index),
            torch.linalg.solve(c + 5 * torch.eye(4, device=c.device), a),
            torch.unique(index),
            a.sort(1).values,
        ]

    for here, there in zip(work(a, b, index), work(a.to(DEVICE), b.to(DEVICE), index.to(DEVICE)), strict=True):
        assert torch.equal(here, there.cpu())


def test_views_share_memory(x: Tensor) -> None:
    x[0].add_(1)
    x.view(-1)[5] = 9.0
    x.T[2] += 1
    assert x.tolist() == [[1, 2, 4], [3, 4, 10]]


def test_gradients() -> None:
    for place in ("cpu", DEVICE):
        x = torch.tensor([1.0, 2.0, 3.0], device=place, requires_grad=True)
        (x.square() * x.detach()).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [2.0, 8.0, 18.0] and x.grad.device.type == torch.device(place).type
    layer = torch.nn.Linear(3, 2).to(DEVICE)
    assert copy.deepcopy(layer)(torch.ones(1, 3, device=DEVICE)).device == DEVICE


def test_threads(x: Tensor) -> None:
    found: list[Tensor] = []
    worker = threading.Thread(target=lambda: found.append(torch.ones(3, device=DEVICE) + x[0]))
    worker.start()
    worker.join()
    assert found[0].tolist() == [1, 2, 3]


def test_places_do_not_mix(x: Tensor) -> None:
    here, mask, number = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool), torch.tensor(2.0)
    index = torch.zeros(2, 1, dtype=torch.long)
    for run in (
        lambda: x + here, lambda: here * x, lambda: torch.cat([x, here]), lambda: torch.where(mask, x, x), lambda: x.gather(1, index),
        lambda: here[index.to(DEVICE)], lambda: here.add_(x), lambda: x.masked_fill(mask, 0.0), lambda: torch.equal(x, here),
        lambda: here * x[0, 0], lambda: torch.searchsorted(x, here), lambda: x.__setitem__(index.to(DEVICE)[:, 0], here[:1]),
        lambda: torch.addcmul(x, number, number),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=r"same device|value tensor"):
            run()
    assert (x + number).device == (number * x).device == x[index[:, 0]].device == DEVICE
    x[index[:, 0]] = x[:1].clone()
    x.copy_(here)


def test_other_refusals(x: Tensor) -> None:
    for run in (x.numpy, lambda: np.asarray(x), lambda: np.add(x, 1)):
        with pytest.raises(TypeError, match="host memory"):
            run()
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(2, device=DEVICE, generator=torch.Generator())
    with pytest.raises(NotImplementedError, match="mv_cuda"):
        x.long() @ torch.ones(3, dtype=torch.long, device=DEVICE)
    with pytest.raises(RuntimeError, match="deterministic"), simulated.watch(deterministic=True):
        x.new_zeros(3).index_add_(0, torch.zeros(3, dtype=torch.long, device=DEVICE), x[0])
    with pytest.raises((AssertionError, RuntimeError), match=r"CUDA|NVIDIA"):  # torch without CUDA, or with it and no driver
        torch.zeros(2, device="cuda:0") + torch.ones(2, device="cuda")


@pytest.mark.parametrize(
    ("run", "launches", "syncs", "size", "moved"),
    [
        (lambda x: x + 1, 1, 0, 48, 0),
        (lambda x: x.add_(x), 1, 0, 48, 0),
        (lambda x: x.T[1:].unsqueeze(0), 0, 0, 0, 0),
        (lambda x: x[:, :1].expand(2, 3) + x, 1, 0, 8 + 24 + 24, 0),
        (lambda x: x.sum(1), 1, 0, 24 + 8, 0),
        (lambda x: torch.zeros(3, device=DEVICE), 1, 0, 12, 0),
        (lambda x: torch.empty(3, device=DEVICE), 0, 0, 0, 0),
        (lambda x: x.masked_fill(x > 1, 0), 3, 0, 24 + 6 + 24 + 24 + 6 + 24 + 24, 0),
        (lambda x: x[0, 0].item(), 0, 1, 0, 4),
        (lambda x: x.tolist(), 0, 1, 0, 24),
        (lambda x: bool((x > 1).any()), 2, 1, 24 + 6 + 6 + 1, 1),
        (lambda x: torch.ones(4).to(DEVICE), 0, 1, 0, 16),
        (lambda x: torch.ones(4).to(DEVICE, non_blocking=True), 0, 0, 0, 16),
        (lambda x: torch.where(x > 0, x, torch.tensor(2.0)), 2, 1, 24 + 6 + 6 + 24 + 24, 4),
        (lambda x: torch.where(x > 0, x, 2.0), 3, 0, 24 + 6 + 4 + 6 + 24 + 4 + 24, 0),
        (lambda x: x[x > 1], 7, 1, None, 0),
        (lambda x: x.nonzero(), 5, 1, None, 0),
        (lambda x: x.__setitem__(x > 1, 5.0), 2, 0, None, 0),
        (lambda x: x.__setitem__((0, 0), 5.0), 0, 1, 0, 4),
        (lambda x: x.__setitem__(0, 5.0), 1, 0, 12, 0),
        (lambda x: x[[1]], 1, 1, None, 8),
        (lambda x: x.gather(1, x.long()[:, :1] * 0), 3, 0, None, 0),
    ],
)
def test_counts(x: Tensor, run: Callable[[Tensor], object], launches: int, syncs: int, size: int | None, moved: int) -> None:
    found = counted(lambda: run(x))
    assert found[:2] == (launches, syncs) and found[3] == moved and size in (None, found[2])


def test_memory_and_places() -> None:
    with simulated.watch() as trace:
        a = torch.zeros(1000, device=DEVICE)
        b = a[:10] + 1
        assert trace.live == 4040
        del a
        assert trace.live == 40
        bool(b[0])
        b.new_zeros(3).index_add_(0, torch.zeros(3, dtype=torch.long, device=DEVICE), b[:3])
    assert trace.peak == 4040
    assert [site.split(":")[0].rpartition("/")[2] for site in trace.sites()] == ["test_simulated_device.py"]
    assert list(trace.atomics.values()) == [1] and "item" not in trace.report() and "waits at" in trace.report()


def test_estimates() -> None:
    hardware = simulated.Hardware(bandwidth=1e9, launch=1e-6, view=0.0, kernel=1e-6, wait=1e-5)
    big = torch.zeros(1_000_000, device=DEVICE)
    with simulated.watch() as trace:
        (big + 1).add_(1)
    found = trace.estimate(hardware)
    assert found.memory == pytest.approx(16e-3) and found.total == pytest.approx(16e-3 + 1e-6) and found.overhead < 0.01
    with simulated.watch() as trace:
        for _ in range(100):
            big[:1].add_(1)
        big[0].item()
    found = trace.estimate(hardware)
    assert found.host == pytest.approx(101e-6) and found.waiting == pytest.approx(1e-5) and found.overhead > 0.9


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is built for CUDA")
def test_as_cuda() -> None:
    with simulated.as_cuda() as device:
        x = torch.ones(3).cuda()
        made = [x, x + 1, torch.zeros(2, device="cuda"), torch.ones(1).to("cuda:0"), torch.nn.Linear(3, 2).cuda()(x)]
        assert all(t.device == device and t.is_cuda and t.device.type == "cuda" for t in made) and torch.cuda.is_available()
        assert x.to("cuda") is x and x.cpu().device.type == "cpu"
    assert not torch.cuda.is_available() and x.device == DEVICE


def test_printing_and_pickling(x: Tensor) -> None:
    assert "sim:0" in repr(x) and f"{x[0, 1]:.1f}" == "1.0"
    assert torch.equal(pickle.loads(pickle.dumps(x)).cpu(), x.cpu())

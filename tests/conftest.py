"""Fixtures shared by the tests of all parts."""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from blocklp.campaigns import LocalExecutor

from . import simulated_device
from .triton_interpreter import patch_once

# A shell that starts the tests in the background has its children ignore interrupts; those of the tests must not.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests run side by side on small tensors; threads of their own would only wait for each other.
torch.set_num_threads(1)

# Most objects of a run are what is imported, which the garbage collector would look through again and again.
gc.set_threshold(50_000, 20, 20)


# Autograd counts the types of devices when it starts.
if simulated_device.available():
    simulated_device.install()

# Triton reads this when kernels are defined; its interpreter runs them on tensors of any device.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where tests with the fixture ``device`` run."""
    places = "cpu", "sim", "cuda"
    parser.addoption("--device", choices=places, help="run device tests on this device alone (sim: the simulated one)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of a ``device`` run on the simulated one, and on a CUDA device where there is one."""
    if "device" in metafunc.fixturenames:
        asked = metafunc.config.getoption("--device")
        there = ["sim", *(["cuda"] if torch.cuda.is_available() else [])]
        metafunc.parametrize("device", [asked] if asked else there, indirect=True)


@pytest.fixture(scope="session")
def two_workers() -> Iterator[LocalExecutor]:
    """Two processes for all tests that share searches: they take seconds to start."""
    with LocalExecutor(2, threads=1) as executor:
        yield executor


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device that a test runs on."""
    if request.param == "sim":
        if not simulated_device.available():
            pytest.skip("this version of torch takes no devices from Python")
        return simulated_device.install()
    return torch.device(request.param)


@pytest.fixture
def use_backend(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have "auto" stand for a backend from now on; the test is skipped where that is missing."""

    def use(name: str) -> None:
        if name in ("numba", "triton"):
            pytest.importorskip(name, reason=f"{name} is not installed")
        if name == "triton":
            patch_once()
        monkeypatch.setenv("BLOCKLP_BACKEND", name)

    return use


@pytest.fixture(scope="session")
def shared_qpbo() -> Path:
    """Folder of real QUBO, max-cut, MIS and MRF instances beside the checkout."""
    folder = Path(__file__).parents[2] / "shared" / "data" / "qpbo"
    if not folder.is_dir():
        pytest.skip(f"the instance folder {folder} is absent")
    return folder


@pytest.fixture(scope="session")
def all_labellings() -> Callable[[int], NDArray[np.int64]]:
    """Return a function of n that lists {0, 1}^n, shape (2^n, n)."""
    return lambda n: np.array(list(product((0, 1), repeat=n)))

"""A small network that reads digits, trained here, with ten digits that it was not trained on.

``train.py`` made the weights; ``SOURCE.md`` says where the digits come from.
"""

from __future__ import annotations

from importlib.resources import as_file, files

import numpy as np
import torch
from torch import Tensor, nn

from blocklp.problems.verification.network import Network
from blocklp.problems.verification.torch_reader import from_torch

GREY = 1 / 16
"""The step between greys: pixels are its multiples from 0 to 1."""


def layers() -> nn.Sequential:
    """Return the network without its weights: 800 ReLUs in three layers, 10,698 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def module() -> nn.Sequential:
    """Return the trained network as a torch module, float32, in evaluation mode."""
    net = layers()
    net.load_state_dict({name: torch.from_numpy(array).float() for name, array in _stored().items() if "." in name})
    return net.eval()


def load() -> tuple[Network, Tensor, Tensor]:
    """Return the trained network and ten digits.

    Returns
    -------
    network : Network
        In float64; inputs ``(1, 8, 8)``, ten outputs.
    images : Tensor
        ``(10, 1, 8, 8)`` float64 in [0, 1]: of every class the first one that was not trained on.
    labels : Tensor
        ``(10,)`` int64: 0 to 9.
    """
    stored = _stored()
    images = torch.from_numpy(stored["images"]).double()[:, None] * GREY
    return from_torch(module(), (1, 8, 8)), images, torch.from_numpy(stored["labels"]).long()


def _stored() -> dict[str, np.ndarray]:
    with as_file(files(__name__) / "digits.npz") as path, np.load(path) as arrays:
        return dict(arrays)

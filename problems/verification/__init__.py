"""Verification of ReLU networks: LP bounds of every neuron, and complete verdicts."""

from blocklp.problems.verification.bounds import LayerBounds, NetworkBounds, network_bounds
from blocklp.problems.verification.network import Builder, Network
from blocklp.problems.verification.onnx_reader import Runtime, read_onnx
from blocklp.problems.verification.properties import Clause, Property
from blocklp.problems.verification.torch_reader import from_torch
from blocklp.problems.verification.verify import Verdict, verify
from blocklp.problems.verification.vnnlib_reader import read_property

__all__ = [
    "Builder",
    "Clause",
    "LayerBounds",
    "Network",
    "NetworkBounds",
    "Property",
    "Runtime",
    "Verdict",
    "from_torch",
    "network_bounds",
    "read_onnx",
    "read_property",
    "verify",
]

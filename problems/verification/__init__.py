"""Verification of neural networks: bounds of every neuron, and complete verdicts."""

from typing import TYPE_CHECKING

from blocklp.lazy import publish

if TYPE_CHECKING:
    from blocklp.problems.verification.balls import Ball as Ball
    from blocklp.problems.verification.bounds import NetworkBounds as NetworkBounds
    from blocklp.problems.verification.bounds import network_bounds as network_bounds
    from blocklp.problems.verification.network import Builder as Builder
    from blocklp.problems.verification.network import Network as Network
    from blocklp.problems.verification.onnx_files import Runtime as Runtime
    from blocklp.problems.verification.onnx_reader import read_onnx as read_onnx
    from blocklp.problems.verification.properties import Clause as Clause
    from blocklp.problems.verification.properties import Property as Property
    from blocklp.problems.verification.radii import CertifiedRadius as CertifiedRadius
    from blocklp.problems.verification.radii import certified_radii as certified_radii
    from blocklp.problems.verification.robustness import RobustAccuracy as RobustAccuracy
    from blocklp.problems.verification.robustness import robust_accuracy as robust_accuracy
    from blocklp.problems.verification.settings import VerifySettings as VerifySettings
    from blocklp.problems.verification.tightener import LayerBounds as LayerBounds
    from blocklp.problems.verification.torch_reader import from_torch as from_torch
    from blocklp.problems.verification.verdict import Verdict as Verdict
    from blocklp.problems.verification.verify import verify as verify
    from blocklp.problems.verification.vnnlib_reader import read_property as read_property
else:
    publish(
        __name__,
        {
            "blocklp.problems.verification.balls": ["Ball"],
            "blocklp.problems.verification.bounds": ["NetworkBounds", "network_bounds"],
            "blocklp.problems.verification.network": ["Builder", "Network"],
            "blocklp.problems.verification.onnx_files": ["Runtime"],
            "blocklp.problems.verification.onnx_reader": ["read_onnx"],
            "blocklp.problems.verification.properties": ["Clause", "Property"],
            "blocklp.problems.verification.tightener": ["LayerBounds"],
            "blocklp.problems.verification.radii": ["CertifiedRadius", "certified_radii"],
            "blocklp.problems.verification.robustness": ["RobustAccuracy", "robust_accuracy"],
            "blocklp.problems.verification.torch_reader": ["from_torch"],
            "blocklp.problems.verification.verdict": ["Verdict"],
            "blocklp.problems.verification.settings": ["VerifySettings"],
            "blocklp.problems.verification.verify": ["verify"],
            "blocklp.problems.verification.vnnlib_reader": ["read_property"],
        },
    )

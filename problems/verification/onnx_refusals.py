"""ONNX operators that are not read, and what to do about them."""

from __future__ import annotations

from collections.abc import Sequence

STEPS = ("ArgMax", "ArgMin", "Ceil", "Equal", "Floor", "Greater", "GreaterOrEqual", "Hardmax", "Less", "LessOrEqual", "Not", "Round")
JUMPS = (*STEPS, "ThresholdedRelu", "TopK")


def batch_of(shape: Sequence[int]) -> str:
    """Return what to do about an input that may be a batch of several; empty where its first axis is of one."""
    if len(shape) < 2 or shape[0] == 1:
        return ""
    return f"; if {tuple(shape)} is a batch of {shape[0]}, export the network at batch 1 or with a free batch axis"


def way_out(operator: str, domain: str) -> str:
    """Return what to do about an operator that is not supported."""
    if domain not in ("", "ai.onnx"):
        return f"it is one of {domain}; export the network with operators of ONNX alone"
    if operator in JUMPS:
        return "its result jumps; cut it off and state the property of what it is applied to"
    if "Quantize" in operator or operator.endswith("Integer") or operator.startswith("QLinear"):
        return "export the network in float32, without quantised results"
    if operator == "Log":
        return "of logarithms that of a softmax is read, as LogSoftmax; a log-sigmoid is read from its torch module, by from_torch"
    if operator in ("If", "Loop", "Scan") or operator.startswith(("Sequence", "Optional")):
        return "export the network without control flow and sequences"
    return "networks are of affine, piecewise-linear and some smooth operators (see `blocklp supports`); use one of these instead"

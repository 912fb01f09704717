"""ONNX operators that are not read, and what to do about them."""

from __future__ import annotations

STEPS = ("ArgMax", "ArgMin", "Ceil", "Equal", "Floor", "Greater", "GreaterOrEqual", "Hardmax", "Less", "LessOrEqual", "Not", "Round")
JUMPS = (*STEPS, "ThresholdedRelu", "TopK")


def way_out(operator: str, domain: str) -> str:
    """Return what to do about an operator that is not supported."""
    if domain not in ("", "ai.onnx"):
        return f"it is one of {domain}; export the network with operators of ONNX alone"
    if operator in JUMPS:
        return "its result jumps; cut it off and state the property of what it is applied to"
    if "Quantize" in operator or operator.endswith("Integer") or operator.startswith("QLinear"):
        return "export the network in float32, without quantised results"
    if operator in ("If", "Loop", "Scan") or operator.startswith(("Sequence", "Optional")):
        return "export the network without control flow and sequences"
    return "networks are of affine, piecewise-linear and some smooth operators (see `blocklp supports`); use one of these instead"

"""The command ``blocklp supports``: what the verifier takes, in the words of the VNN-LIB standard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from blocklp.errors import FormatError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("supports")(_supports_command)


CAPABILITIES = {
    "onnx_operators": "ONNX operators",
    "onnx_element_types": "element types",
    "onnx_opset_versions": "ONNX operator sets, from and to",
    "vnnlib_versions": "VNN-LIB versions, from and to",
    "hidden_node_theories": "hidden nodes",
    "multiple_input_output_theories": "inputs and outputs",
    "multiple_network_theories": "networks",
    "multiple_node_comparison_theories": "comparisons between nodes",
    "arithmetic_complexity_theories": "arithmetic",
    "optimised_disjunctive_reasoning": "disjunctions are more than expanded",
    "serialise_assignments": "serialised assignments",
}


def capability(name: str) -> list[str]:
    """Return the lines of one capability, in the words of the standard."""
    if name == "onnx_operators":
        from blocklp.problems.verification.onnx_operators import OPERATORS

        # Nodes without arguments are evaluated, not read.
        return sorted(["Constant", *OPERATORS])
    if name == "onnx_opset_versions":
        from blocklp.problems.verification.onnx_reader import OLDEST_OPSET

        return [str(OLDEST_OPSET), str(_newest_opset())]
    return {
        # The standard: a tool reports the types that it is sound for.
        "onnx_element_types": ["real", "float32"],
        "vnnlib_versions": ["1.0", "2.0"],
        "hidden_node_theories": ["NH"],
        "multiple_input_output_theories": ["SIO"],
        "multiple_network_theories": ["SNET"],
        "multiple_node_comparison_theories": ["SNC"],
        # Linear rows over outputs are taken too, but LIN would promise rows over inputs.
        "arithmetic_complexity_theories": ["BND", "OUTC"],
        "optimised_disjunctive_reasoning": ["false"],
        "serialise_assignments": ["true"],
    }[name]


def _newest_opset() -> int:
    """Return the newest operator set that both onnx and onnxruntime take; the latter does not say so but by refusing."""
    import tempfile

    from blocklp.problems.verification.onnx_files import Runtime, require_onnx
    from blocklp.problems.verification.onnx_reader import OLDEST_OPSET

    onnx = require_onnx()
    helper, number = onnx.helper, onnx.TensorProto.FLOAT
    ends = [helper.make_tensor_value_info(name, number, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "probe", ends[:1], ends[1:])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "probe.onnx"
        for opset in range(onnx.defs.onnx_opset_version(), OLDEST_OPSET, -1):
            onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), file)
            try:
                Runtime(file)
            except FormatError:
                continue
            return opset
    return OLDEST_OPSET


def _capability_option(name: str) -> Any:
    return typer.Option(f"--{name.replace('_', '-')}", help=f"{CAPABILITIES[name].capitalize()}.")


def _supports_command(
    onnx_operators: Annotated[bool, _capability_option("onnx_operators")] = False,
    onnx_element_types: Annotated[bool, _capability_option("onnx_element_types")] = False,
    onnx_opset_versions: Annotated[bool, _capability_option("onnx_opset_versions")] = False,
    vnnlib_versions: Annotated[bool, _capability_option("vnnlib_versions")] = False,
    hidden_node_theories: Annotated[bool, _capability_option("hidden_node_theories")] = False,
    multiple_input_output_theories: Annotated[bool, _capability_option("multiple_input_output_theories")] = False,
    multiple_network_theories: Annotated[bool, _capability_option("multiple_network_theories")] = False,
    multiple_node_comparison_theories: Annotated[bool, _capability_option("multiple_node_comparison_theories")] = False,
    arithmetic_complexity_theories: Annotated[bool, _capability_option("arithmetic_complexity_theories")] = False,
    optimised_disjunctive_reasoning: Annotated[bool, _capability_option("optimised_disjunctive_reasoning")] = False,
    serialise_assignments: Annotated[bool, _capability_option("serialise_assignments")] = False,
) -> None:
    """Print what verify takes, one item a line; without an option all of it, and what sat and unsat claim."""
    wanted = locals()
    names = [name for name in CAPABILITIES if wanted[name]]
    if names:
        typer.echo("\n".join(line for name in names for line in capability(name)))
        return
    from blocklp.problems.verification.verdict import CLAIMS, FLOAT32_CLAIM

    lines = [f"{title}: {', '.join(capability(name))}" for name, title in CAPABILITIES.items()]
    lines += ["", "Linear constraints over outputs are taken too. Operators that do not depend on the input may be any that onnx "]
    lines[-1] += "evaluates, but for control flow."
    claims = CLAIMS | {"unsat in float32": FLOAT32_CLAIM}
    lines += ["", *(f"{status}: {claim}" for status, claim in claims.items())]
    typer.echo("\n".join(lines))

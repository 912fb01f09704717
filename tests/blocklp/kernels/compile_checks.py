"""Compiles the kernels of checks for an H100, which takes no GPU, and prints what they take; run without Triton's interpreter."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from blocklp.kernels import triton_bounds, triton_points
from blocklp.kernels.triton_launch import LANES, WARPS
from blocklp.kernels.triton_source import functions_of
from blocklp.oracles import Edge

REAL, MASK, WHOLE = "*fp64", "*i1", "i32"
LAYOUT = {"layout": ("*i64", "*u32", "*i32", "*i32", "*i64"), "strides": (WHOLE,) * 10, "sizes": (WHOLE,) * 5}
BLOCKS = {"data": (), "data_strides": ()}


def compiled(kernel: Any, signature: dict[str, Any], constants: dict[str, Any]) -> None:
    """Compile a kernel, and print registers, spills, fused additions and loads that are not coherent."""
    names = kernel.arg_names
    kinds = {name: signature.get(name, "constexpr") for name in names}
    source = ASTSource(fn=kernel, signature=kinds, constexprs={(names.index(name),): value for name, value in constants.items()})
    options = {"enable_fp_fusion": False, "num_warps": WARPS}
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "kernel.cubin"
        place.write_bytes(made.asm["cubin"])
        usage = subprocess.run([tool, "-res-usage", place], capture_output=True, text=True, check=True).stdout
    text = made.asm["ptx"]
    registers, local = (int(re.findall(rf"{name}:(\d+)", usage)[0]) for name in ("REG", "LOCAL"))
    fused, incoherent = len(re.findall(r"fma\.rn", text)), text.count("ld.global.nc")
    print(f"{kernel.__name__} registers={registers} local={local} fused={fused} incoherent={incoherent}")


def main() -> None:
    """Compile all of them for edges."""
    functions = functions_of(Edge(), 3)
    assert functions is not None
    common = {"DIM": 3, "COUPLED": 2, "BLOCK": LANES}
    for kind, phases in (("*fp32", (-1, 0, 1, 2)), ("*fp64", (-1,))):
        signature = LAYOUT | BLOCKS | {"duals": kind, "variables": (REAL,) * 4, "met": MASK, "share": REAL, "totals": REAL}
        signature |= {"limits": ("fp32",) * 2, "others": (REAL,) * 3, "kept": (REAL, REAL, kind), "most": WHOLE, "parts": WHOLE}
        for phase in phases:
            compiled(triton_bounds.bounds, signature, common | {"PHASE": phase, "MIN": functions.min_block})
    completes = common | {"COMPLETE": functions.complete_block}
    signature = LAYOUT | BLOCKS | {"mean": "*fp32", "variables": (REAL,) * 2, "box": (REAL,) * 3, "masks": (MASK,) * 3}
    signature |= {"found": REAL, "totals": REAL, "limits": ("fp32",) * 2, "state": REAL, "kept": (REAL,) * 2}
    compiled(triton_points.completed, signature | {"most": WHOLE, "parts": WHOLE}, completes | {"PHASE": -1, "POINTS": 2})
    compiled(triton_points.finished, LAYOUT | BLOCKS | {"rows": "*i64", "cost": REAL, "x": REAL}, completes)
    signature = {"active": "*i64", "numbers": (REAL, REAL, "*fp32", "*fp32"), "terms": (REAL,) * 2, "x": REAL, "packed": REAL}
    compiled(triton_points.recorded, signature | {"batch": WHOLE, "count": WHOLE}, {"BLOCK": LANES})


if __name__ == "__main__":
    os.environ.pop("TRITON_INTERPRET", None)
    main()

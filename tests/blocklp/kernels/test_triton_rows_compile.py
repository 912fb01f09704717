"""Triton's kernels of rows and vertices compile for a GPU, without the interpreter, which leaves out types."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")


def test_kernels_compile_for_a_gpu() -> None:
    """Next to no spills, no fused additions, no reads that do not see what others wrote, nothing in single precision."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    code = "import torch; from bench.compile_triton_rows import *; print(*kernels(torch.float64), sep='\\n')"
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for name in (
        "sparse_products",
        "pdhg_leap",
        "pdhg_restart",
        "projection_leap",
        "vertex_ask",
        "vertex_renew",
        "vertex_steps",
        "prox_numbers",
    ):
        assert any(f"name='{name}'" in line for line in lines), name
    for line in lines:
        assert "fused=0, cached=0, singles=0" in line, line
        assert "spilled=0" in line or "spilled=8" in line, line

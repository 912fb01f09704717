"""Triton's kernels of rows, vertices, filters and mean field compile for a GPU, without the interpreter, which leaves out types."""

from __future__ import annotations

import re
from importlib.metadata import version

import pytest

from ...triton_interpreter import compiled_without

pytest.importorskip("triton", reason="Triton is not installed")

ROWS = "sparse_products sparse_extremes pdhg_leap pdhg_restart projection_leap"
VERTICES = "vertex_ask vertex_renew vertex_steps prox_numbers"
LATTICES = "key_steps embed_points diagonal_entries splat_runs sum_runs blur_axis blur_last slice_points corner_products"
ORDERED = "splat_levels pile_levels slice_levels sweep_parts"
OLDER = 16 if version("triton").startswith(("3.7.", "3.8.")) else 0
"""Bytes of two numbers, which Triton 3.7 spills where 3.9 spills less."""


def compiled(case: str, names: str) -> list[str]:
    """What :mod:`bench.compile_triton` prints of a case in double precision; all these kernels are among it."""
    lines = compiled_without(f"{case}(torch.float64)")
    for name in names.split():
        assert any(f"name='{name}'" in line for line in lines), name
    return lines


def spilled(line: str) -> int:
    """Bytes of a thread's registers that a kernel writes to memory."""
    found = re.search(r"spilled=(\d+)", line)
    assert found is not None, line
    return int(found[1])


@pytest.mark.slow
def test_kernels_of_rows_and_vertices() -> None:
    """Next to no spills, no fused additions, no reads that do not see what others wrote, nothing in single precision."""
    for line in compiled("rows", f"{ROWS} {VERTICES}"):
        assert "fused=0, cached=0, singles=0" in line, line
        assert spilled(line) <= max(8, OLDER), line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "names"), [("filters", f"{LATTICES} {ORDERED}"), ("mean_field", "slice_costs splat_labels slice_labels")]
)
def test_kernels_of_filters(case: str, names: str) -> None:
    """No spills, but by older versions, and no reads that do not see what others wrote."""
    for line in compiled(case, names):
        assert spilled(line) <= OLDER and "cached=0" in line, line

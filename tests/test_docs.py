"""Every Python block of the documentation runs, page by page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    "README.md",
    "docs/index.md",
    "docs/start.md",
    "docs/block-types.md",
    "docs/own-block-type.md",
    "docs/extending.md",
    "docs/certificate.md",
    "docs/linear-programs.md",
    "docs/coming-from.md",
    "docs/nodes.md",
    "docs/learning.md",
    "docs/verification.md",
    "docs/declarative.md",
    "docs/densecrf.md",
    "docs/qpbo.md",
    "docs/mrf.md",
    "docs/mrf_methods.md",
    "docs/exact.md",
    "docs/learnt.md",
    "docs/gpu.md",
    "docs/campaigns.md",
]


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), flags=re.S | re.M)


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(
    page: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # pages may write files
    code = blocks(page)
    assert code, f"{page} has no Python blocks"
    names: dict[str, object] = {"__name__": page}
    for number, block in enumerate(code):
        exec(compile(block, f"{page}, block {number}", "exec"), names)
    assert "Error" not in capsys.readouterr().out


def test_the_assignment_example_is_short() -> None:
    example = blocks("docs/start.md")[0]
    lines = [line for line in example.splitlines() if line.strip()]
    assert "Knapsack" in example and "Simplex" in example
    assert len(lines) <= 25

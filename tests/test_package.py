"""What is installed, and which way imports point."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import blocklp.oracles
import blocklp.problems.qpbo

ROOT = Path(__file__).parents[1]


def imported(folder: str) -> set[str]:
    names: set[str] = set()
    for path in (ROOT / folder).rglob("*.py"):
        if folder == "blocklp" and path.relative_to(ROOT / folder).parts[0] in ("oracles", "problems"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {a.name for a in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
    return names


def test_imports_point_from_problems_to_oracles_to_the_engine() -> None:
    assert not [n for n in imported("blocklp") if n.startswith(("blocklp.oracles", "blocklp.problems"))]
    assert not [n for n in imported("oracles") if n.startswith("blocklp.problems")]


def test_no_second_copy_of_the_mapped_folders_is_loaded() -> None:
    assert "oracles" not in sys.modules and "problems" not in sys.modules
    assert blocklp.oracles.Edge.__module__.startswith("blocklp.oracles.")
    assert blocklp.problems.qpbo.Qubo.__module__.startswith("blocklp.problems.")

"""What is installed, and which way imports point."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

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


PACKAGES = [
    "blocklp",
    "blocklp.oracles",
    *(f"blocklp.problems.{name}" for name in ("densecrf", "mis", "mrf", "qpbo", "verification")),
]


def in_a_process(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120, cwd=ROOT).stdout


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_see_the_names_that_are_imported_on_first_use(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__file__ is not None
    [block] = [node for node in ast.parse(Path(module.__file__).read_text()).body if isinstance(node, ast.If)]
    stated = {
        (node.module, alias.name, alias.asname) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert stated == {(module._module_of[name], name, name) for name in module.__all__}
    assert set(module.__all__) <= set(dir(module))
    for where, name, _ in stated:
        assert getattr(module, name) is getattr(importlib.import_module(str(where)), name)
    assert not hasattr(module, "absent")


def test_a_public_name_is_not_replaced_by_the_submodule_of_that_name() -> None:
    assert (
        in_a_process(
            "import blocklp.check, blocklp.reference, blocklp.problems.verification.verify\n"
            "from blocklp import check, reference\n"
            "from blocklp.problems.verification import verify\n"
            "print(*(type(f).__name__ for f in (check, reference, verify, blocklp.check)))"
        ).split()
        == ["function"] * 4
    )


def test_importing_blocklp_imports_nothing_that_waits() -> None:
    code = "import sys, blocklp; {}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    heavy = {"numpy", "torch", "scipy", "networkx", "numba", "rich", "typer"}
    assert not heavy & set(in_a_process(code.format("dir(blocklp)")).split())
    model = in_a_process(code.format("from blocklp.oracles import Edge; blocklp.Model().variable('x', 3, lower=0, upper=1)"))
    assert heavy & set(model.split()) == {"numpy", "torch"}

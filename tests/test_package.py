"""What is installed, and which way imports point."""

from __future__ import annotations

import ast
import contextlib
import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import blocklp.oracles
import blocklp.problems.matching
import blocklp.problems.qpbo

ROOT = Path(__file__).parents[1]


def imported(folder: str) -> set[str]:
    names: set[str] = set()
    for path in (ROOT / folder).rglob("*.py"):
        # The command line, which `python -m blocklp` runs, is that of the problems.
        if folder == "blocklp" and path.relative_to(ROOT / folder).parts[0] in ("oracles", "problems", "__main__.py"):
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


def test_no_two_folders_of_the_engine_import_each_other() -> None:
    folders = {path.name for path in (ROOT / "blocklp").iterdir() if path.is_dir()} - {
        "oracles",
        "problems",
        "generated",
        "__pycache__",
    }
    below = {
        folder: {name.split(".")[1] for name in imported(f"blocklp/{folder}") if name.count(".") > 1} & folders for folder in folders
    }
    while leaves := [folder for folder in below if not below[folder] - {folder} & set(below)]:
        for folder in leaves:
            del below[folder]
    assert not below and len(folders) > 10


def test_no_second_copy_of_the_mapped_folders_is_loaded() -> None:
    assert "oracles" not in sys.modules and "problems" not in sys.modules
    assert blocklp.oracles.Edge.__module__.startswith("blocklp.oracles.")
    assert blocklp.problems.qpbo.Qubo.__module__.startswith("blocklp.problems.")


PACKAGES = [
    "blocklp",
    *(
        f"blocklp.{name}"
        for name in ("blocks", "certify", "declarative", "language", "learning", "lp", "results", "search", "testing")
    ),
    "blocklp.oracles",
    "blocklp.oracles.filters",
    *(
        f"blocklp.problems.{name}"
        for name in ("declarative", "densecrf", "learnt", "lp", "matching", "mis", "mrf", "qpbo", "verification")
    ),
]


def in_a_process(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, cwd=ROOT).stdout


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_see_the_names_that_are_imported_on_first_use(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__file__ is not None
    [block] = [node for node in ast.parse(Path(module.__file__).read_text()).body if isinstance(node, ast.If)]
    stated = {
        (node.module, alias.name, alias.asname) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    names = {(module._module_of[name], name, name) for name in module.__all__}
    assert stated == names | {(package, name, name) for name in module._submodules}
    for where, name, _ in names:
        assert getattr(module, name) is getattr(importlib.import_module(where), name)
    for name in module._submodules:
        assert getattr(module, name) is importlib.import_module(f"{package}.{name}")
    assert not hasattr(module, "absent")


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_and_submodules_are_listed_before_they_are_imported(package: str) -> None:
    module = importlib.import_module(package)
    listed = in_a_process(f"import sys, {package}; print(*dir({package}), '|', *sys.modules)").split()
    split = listed.index("|")
    assert {*module.__all__, *module._submodules} <= set(listed[:split])
    assert not {f"{package}.{name}" for name in module._submodules} & set(listed[split:])


def documented() -> set[str]:
    """Names and modules of the engine that the reference has entries for."""
    pages = "\n".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))
    entries = re.findall(r"^\.\. auto\w+:: (blocklp\.\S+)$", pages, flags=re.M)
    return {name for name in entries if name.split(".")[1] not in ("oracles", "problems")}


def test_the_top_is_small_and_every_name_of_it_documented() -> None:
    assert len(blocklp.__all__) <= 36
    assert {f"blocklp.{name}" for name in blocklp.__all__} <= documented()
    assert not set(blocklp.__all__) & {*blocklp.methods.__all__, *blocklp.lp.__all__}  # one name, one place


def test_what_the_reference_documents_is_reached_from_blocklp_alone() -> None:
    names = sorted(documented())
    assert len(names) > len(blocklp.__all__) + len(blocklp._submodules)
    missing = (
        "import sys, blocklp\n"
        "for name in sys.argv[1:]:\n"
        "    found = blocklp\n"
        "    for part in name.split('.')[1:]: found = getattr(found, part, None)\n"
        "    if found is None: print(name)"
    )
    assert in_a_process(missing, *names, "blocklp.absent").split() == ["blocklp.absent"]
    reached = {name.split(".")[1] for name in names if name.count(".") > 1 or name.split(".")[1] not in blocklp.__all__}
    assert reached == set(blocklp._submodules)


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))])
def test_names_that_a_page_mentions_exist(page: str) -> None:
    for mentioned in set(re.findall(r"\b(?:bl|blocklp)((?:\.[A-Za-z_]\w*)+)(?![\w/])", (ROOT / page).read_text())):
        found: object = blocklp
        for part in mentioned.split(".")[1:]:
            if part in getattr(found, "__dataclass_fields__", {}):
                break
            if isinstance(found, ModuleType) and not hasattr(found, part):
                with contextlib.suppress(ModuleNotFoundError):  # whether it was imported before is no matter of the page
                    importlib.import_module(f"{found.__name__}.{part}")
            assert hasattr(found, part) or mentioned == ".solve_exact.ExactSolution", f"{page}: blocklp{mentioned}"
            found = getattr(found, part, None)


def test_a_public_name_is_not_replaced_by_the_submodule_of_that_name() -> None:
    assert (
        in_a_process(
            "import blocklp.problems.verification.verify\n"
            "from blocklp.problems.verification import verify\n"
            "print(*(type(f).__name__ for f in (verify, blocklp.problems.verification.verify)))"
        ).split()
        == ["function"] * 2
    )


def test_importing_blocklp_imports_nothing_that_waits() -> None:
    code = "import sys, blocklp; {}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    heavy = {"numpy", "torch", "scipy", "networkx", "numba", "rich", "typer"}
    assert not heavy & set(in_a_process(code.format("dir(blocklp); dir(blocklp.lp); blocklp.errors.OptionError")).split())
    model = in_a_process(code.format("from blocklp.oracles import Edge; blocklp.Model().variable('x', 3, lower=0, upper=1)"))
    assert heavy & set(model.split()) == {"numpy", "torch"}

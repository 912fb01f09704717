"""What a release says of itself agrees: versions, dependencies and commands are stated in several files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

import blocklp

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA = {"torch": "pytorch"}
"""Names that conda gives to packages."""


def recipe() -> dict[str, Any]:
    page = jinja2.Template((ROOT / "docs" / "conda" / "meta.yaml").read_text()).render(PYTHON="python")
    read: dict[str, Any] = yaml.safe_load(page)
    return read


def lower_bounds(requirements: list[str]) -> dict[str, str]:
    pairs = (re.fullmatch(r"([\w-]+) ?>=([\d.]+)", one) for one in requirements)
    return {pair[1]: pair[2] for pair in pairs if pair is not None}


def test_every_dependency_has_a_lower_bound_and_no_other() -> None:
    assert len(lower_bounds(PROJECT["dependencies"])) == len(PROJECT["dependencies"])


def test_the_recipe_of_conda_asks_for_what_the_wheel_asks_for() -> None:
    run = lower_bounds(recipe()["requirements"]["run"])
    assert run.pop("python") == PROJECT["requires-python"].removeprefix(">=")
    assert run == {CONDA.get(name, name): bound for name, bound in lower_bounds(PROJECT["dependencies"]).items()}
    extras = [one for extra in ("fast", "highs") for one in PROJECT["optional-dependencies"][extra]]
    assert lower_bounds(recipe()["requirements"]["run_constrained"]) == lower_bounds(extras)
    [command] = recipe()["build"]["entry_points"]
    assert command == f"blocklp = {PROJECT['scripts']['blocklp']}"


def test_versions_agree() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {PROJECT["version"], recipe()["package"]["version"], str(citation["version"])} == {blocklp.__version__}


@pytest.mark.parametrize("name", ["test", "docs", "release", "gpu"])
def test_workflows_name_files_and_targets_that_exist(name: str) -> None:
    text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text()
    targets = set(re.findall(r"run: make ([\w-]+)", text))
    assert targets <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    files = set(re.findall(r"(?<![\w/])(?:tests|docs|\./\.github)/[\w./]*\w\.(?:py|yml)", text))
    assert all((ROOT / file).is_file() for file in files)
    assert targets or files

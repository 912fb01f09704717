"""The map of the sources and the glossary: what they name exists, and no numbered item of a source is left out."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import typer

import blocklp as bl
from blocklp.methods import METHODS
from blocklp.problems.command_line.app import app
from blocklp.problems.densecrf.solve import METHODS as DENSECRF
from blocklp.problems.verification.robustness import STATUSES
from blocklp.problems.verification.verdict import CLAIMS

ROOT = Path(__file__).parents[1]
BENCH = "python -m bench run "
SOURCES, GLOSSARY = ((ROOT / "docs" / f"{page}.md").read_text() for page in ("sources", "glossary"))
NUMBER = r"(?:[A-Z]\.)?\d+(?:\.\d+)*(?:-\d+)?"
ITEMS = re.compile(rf"\b(eq|Algorithm|Table|Figure|Lemma)s?\.? ({NUMBER}(?:, {NUMBER})*)")

THESIS = "2.1.4.1-6 2.1.5.1-8 2.1.6.1-3 2.1.7.1-4 2.2.3.1-4 2.2.4.1-10 2.2.5.1 4.1.4.1-15 4.1.5.1-9 4.1.6.1-10"
APPENDIX = "A.1.2.1-7 A.1.3.1-2 A.1.4.1-2 A.1.5.1-3 A.1.6.1-2 A.1.7.1-2 A.2.1.1-31 A.2.2.1-4 A.2.3.1"
PRINTED = {
    "Thesis": {
        "eq": f"{THESIS} {APPENDIX}",
        "Algorithm": "1-9",
        "Table": "2.1-2 4.1 A.1-4",
        "Figure": "2.1-8 4.1-3 A.1-12",
    },
    "Cliques in dense CRFs": {"eq": "1-104", "Algorithm": "1-4", "Table": "1-3", "Figure": "1-3"},
    "Regularised Frank-Wolfe": {"eq": "1-14", "Algorithm": "1", "Table": "1-3", "Figure": "1", "Lemma": "1"},
    # The supplement goes on with the numbers of its paper, and repeats and cites some of these.
    "Nonconvex MAP inference": {"eq": "10 14 20 32 43-111", "Algorithm": "1", "Table": "4-15", "Figure": "2"},
    "Differentiating argmin": {"eq": "1-82", "Figure": "1-6", "Lemma": "3.1-4 4.1-2"},
}
"""The numbered items of every source (of the thesis, of its chapters 2 and 4)."""


def sections(page: str, level: str = "##") -> dict[str, str]:
    parts = re.split(rf"^{level} (.+)$", page, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(text: str) -> list[list[str]]:
    """The cells of a table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines[2:]]


def expanded(number: str) -> list[str]:
    first, _, last = number.partition("-")
    head, dot, tail = first.rpartition(".")
    return [f"{head}{dot}{k}" for k in range(int(tail), int(last or tail) + 1)]


def items(text: str) -> set[tuple[str, str]]:
    return {(kind, one) for kind, numbers in ITEMS.findall(text) for number in numbers.split(", ") for one in expanded(number)}


@cache
def defined(path: Path) -> frozenset[str]:
    """Dotted names of functions, classes, their members and constants of a file."""

    def names(body: list[ast.stmt], owner: str = "") -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield owner + node.name
            if isinstance(node, ast.ClassDef):
                yield from names(node.body, f"{owner}{node.name}.")
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from (owner + target.id for target in targets if isinstance(target, ast.Name))

    return frozenset(names(ast.parse(path.read_text()).body))


@cache
def cases() -> frozenset[str]:
    """Names under which cases register."""
    nodes = (node for path in (ROOT / "bench" / "cases").glob("*.py") for node in ast.walk(ast.parse(path.read_text())))
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "case"]
    return frozenset(call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant))


def missing(where: str) -> list[str]:
    """What the second cell of a row names that is not there."""
    absent = []
    for entry in where.split("; "):
        first, *names = re.findall(r"`([^`]+)`", entry) or [""]
        if ", ".join(f"`{name}`" for name in (first, *names)) != entry:
            absent.append(f"{entry!r} is not written as `file`, `name`, `name`")
        elif first.startswith(BENCH):
            absent += [] if first.removeprefix(BENCH) in cases() and not names else [entry]
        elif not (ROOT / first).is_file():
            absent.append(first)
        else:
            absent += [f"{first}: {name}" for name in names if name not in defined(ROOT / first)]
    return absent


@cache
def options() -> dict[str, frozenset[str]]:
    """The options of every command."""
    group = typer.main.get_command(app)
    found = {}
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        parts = {f"{name} {part}": below for part, below in getattr(command, "commands", {}).items()} or {name: command}
        found |= {full: frozenset(option for p in one.params for option in p.opts) for full, one in parts.items()}
    return found


def needed(name: str) -> list[set[str]]:
    """Of each of these sets a command needs an option."""
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    found = [set(p.opts) for p in command.params if p.required and p.param_type_name == "option"]
    return [*found, {"--unary", "--scribbles"}] if name == "densecrf" else found


def runs(command: str) -> bool:
    """Whether a command exists: a case, a module, or a command with these options and this method."""
    words = command.split()
    if words[:3] == ["python", "-m", "bench"]:
        return words[3] in ("list", "all") or words[4] in cases()
    if words[0] == "python":
        return (ROOT / f"{words[2].replace('.', '/')}.py").is_file()
    known = next((found for name, found in options().items() if words[1 : 1 + len(name.split())] == name.split()), None)
    given = {word for word in words if word.startswith("--")}
    whole = len(words) > 2 and not words[2].startswith("--")  # and no mention of an option of the command
    if known is None or not given <= known or (whole and not all(given & one for one in needed(words[1]))):
        return False
    method = words[words.index("--method") + 1] if "--method" in words else None
    return method is None or method in (DENSECRF if words[1] in ("densecrf", "stereo") else METHODS)


def exists(name: str) -> bool:
    """Whether a dotted name can be imported, or is a field of a dataclass."""
    owner, *parts = name.split(".")
    found: object = importlib.import_module(owner)
    for part in parts:
        if hasattr(found, part):
            found = getattr(found, part)
        elif isinstance(found, ModuleType):
            if importlib.util.find_spec(f"{found.__name__}.{part}") is None:
                return False
            found = importlib.import_module(f"{found.__name__}.{part}")
        else:
            return part in getattr(found, "__dataclass_fields__", {}) and part == parts[-1]
    return True


@pytest.mark.parametrize("source", PRINTED)
def test_what_the_map_names_exists(source: str) -> None:
    table = rows(sections(SOURCES)[source])
    assert table and all(len(row) == 3 and row[0] and row[1] for row in table)
    assert not [absent for row in table for absent in missing(row[1])]


@pytest.mark.parametrize("source", PRINTED)
def test_every_numbered_item_is_code_or_said_not_to_be(source: str) -> None:
    text = sections(SOURCES)[source]
    code = set().union(*(items(row[0]) for row in rows(text)))
    other = items(text.partition("\nNot code:")[2])
    stated = {(kind, one) for kind, numbers in PRINTED[source].items() for number in numbers.split() for one in expanded(number)}
    assert code | other == stated
    assert not code & other


def test_notes_name_files_and_commands_that_exist() -> None:
    assert list(sections(SOURCES)) == ["Commands", *PRINTED]
    spans = set(re.findall(r"`([^`]+)`", SOURCES))
    assert not [span for span in spans if re.fullmatch(r"[\w/]+\.py", span) and not (ROOT / span).is_file()]
    assert not [span for span in spans if span.startswith(BENCH) and span.removeprefix(BENCH) not in cases()]
    commands = [span for span in spans if span.startswith(("python -m ", "blocklp "))]
    assert len(commands) > 20 and not [command for command in commands if not runs(command)]


@pytest.mark.parametrize("source", PRINTED)
def test_every_algorithm_table_and_figure_has_a_command_or_a_reason(source: str) -> None:
    table = rows(sections(sections(SOURCES)["Commands"], "###")[source])
    named = [item for row in table for item in items(row[0])]
    shown = {kind: numbers for kind, numbers in PRINTED[source].items() if kind not in ("eq", "Lemma")}
    assert sorted(named) == sorted(
        (kind, one) for kind, numbers in shown.items() for number in numbers.split() for one in expanded(number)
    )
    for _, command, note in table:
        spans = re.findall(r"`([^`]+)`", command)
        assert (command == "none" and note) or (spans and "; ".join(f"`{span}`" for span in spans) == command)


@pytest.mark.parametrize(
    "command",
    [
        "python -m bench run absent",
        "python -m blocklp.absent",
        "blocklp absent FILE",
        "blocklp qpbo FILE --absent",
        "blocklp qpbo --method absent",
    ],
)
def test_a_command_that_is_gone_is_found(command: str) -> None:
    assert not runs(command)


@pytest.mark.parametrize(
    "where",
    [
        "`blocklp/methods/proxbc.py`, `ProxBC.stepped`",
        "`blocklp/methods/proxbc.py`, `step`",
        "`blocklp/methods/absent.py`",
        "`blocklp/methods/proxbc.py` `ProxBC`",
        "blocklp/methods/proxbc.py",
        "`python -m bench run absent`",
        "",
    ],
)
def test_a_name_that_is_gone_or_badly_written_is_found(where: str) -> None:
    assert missing("`blocklp/methods/proxbc.py`, `ProxBC`, `ProxBC.step`, `ProxBC.inner`; `python -m bench run table_4_1`") == []
    assert len(missing(where)) == 1


def test_the_glossary_has_the_names_of_the_api() -> None:
    table = [row for text in sections(GLOSSARY).values() for row in rows(text)]
    assert all(len(row) == 3 and row[1].endswith(".") for row in table)
    words = [word for row in table for word in row[0].split(", ")]
    assert len(words) == len(set(words)) >= 30
    names = {name for row in table if row[2] != "-" for name in re.findall(r"`([^`]+)`", row[2])}
    assert not [name for name in names if not exists(name)]
    assert not exists("blocklp.Solution.absent") and not exists("blocklp.absent") and not exists("blocklp.Solution.bound.absent")


def test_every_word_of_status_is_explained_once() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text().split("## Words of status")[1]
    words = [word for row in rows(text) for word in row[0].split(", ")]
    named = [*map(str, bl.Status), *CLAIMS, *STATUSES, "proven", "refused", "error", "... within reach"]
    assert sorted(words) == sorted(named)


def test_benchmarks_that_pages_name_are_there() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"python -m bench run ([a-z]\w*)", page.read_text())}
    assert len(named) > 40
    assert not [name for name in sorted(named) if not (ROOT / "bench" / "cases" / f"{name}.py").exists()]

"""Formats as modules of packages."""

import importlib
import sys

import pytest

from blocklp.deadline import Deadline
from blocklp.errors import FormatError, OptionError
from blocklp.problems.formats import READERS, Formats
from blocklp.problems.mis import read_graph
from blocklp.problems.modules import module_names
from blocklp.problems.mrf import read_mrf
from blocklp.problems.qpbo import read_qubo

TOY = "SUFFIXES = ('.toy',)\n\n\ndef read(file, twice=None):\n    return file.name, file.lines.fields, twice\n"


def test_no_suffix_tells_two_formats():
    found = [suffix for package in READERS for module in Formats(package).modules.values() for suffix in module.SUFFIXES]
    assert len(found) == len(set(found)) > 20
    assert all(suffix.startswith(".") and suffix == suffix.lower() for suffix in found)


@pytest.mark.parametrize("package", READERS)
def test_a_format_is_a_module(package, tmp_path, monkeypatch):
    """A folder with one more file has one more format, which is not imported for its name."""
    folder = importlib.import_module(package)
    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.setattr(folder, "__path__", [*folder.__path__, str(tmp_path)])
    monkeypatch.setattr(folder.__spec__, "submodule_search_locations", folder.__path__)
    assert "toy" in module_names(package) and f"{package}.toy" not in sys.modules
    formats = Formats(package)
    (tmp_path / "a.TOY").write_text("1 2\n")
    assert formats.chosen(tmp_path / "a.TOY", None) == "toy"
    file = formats.opened(tmp_path / "a.TOY", 100, Deadline())
    assert formats.read(file, "toy", twice=2) == ("a", [["1", "2"]], 2)
    with pytest.raises(OptionError, match=r"twice=2 is for toy files, and .* is read as"):
        formats.read(file, next(name for name in formats.modules if name != "toy"), twice=2)
    sys.modules.pop(f"{package}.toy")


@pytest.mark.parametrize(
    ("read", "suffix", "command"),
    [
        (read_mrf, ".mc", "qpbo"),
        (read_mrf, ".clq", "mis"),
        (read_mrf, ".mps", "lp"),
        (read_qubo, ".uai", "mrf"),
        (read_qubo, ".graph", "mis"),
        (read_graph, ".sparse", "qpbo"),
        (read_graph, ".wcsp", "mrf"),
    ],
)
def test_files_of_other_readers_are_told_by_their_suffixes(tmp_path, read, suffix, command):
    (tmp_path / f"a{suffix}").write_text("1 1\n")
    with pytest.raises(FormatError, match=f"blocklp {command}"):
        read(tmp_path / f"a{suffix}")

"""Formats of instances: each is a module in a folder of its reader, with its suffixes and a function that reads.

Such a module states ``SUFFIXES``, those of its files in lower case, and ``read(file: InputFile)``, which may have options with
defaults. Its name is that of the format.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from blocklp.deadline import Deadline
from blocklp.errors import FormatError, OptionError
from blocklp.problems.files import Allowance, format_suffix
from blocklp.problems.lines import Lines, instance_name
from blocklp.problems.modules import modules

READERS = {
    "blocklp.problems.qpbo.formats": "a quadratic function or a max-cut graph; read it with blocklp qpbo, or read_qubo",
    "blocklp.problems.mis.formats": "a graph; read it with blocklp mis, or read_graph",
    "blocklp.problems.mrf.formats": "a Markov random field; read it with blocklp mrf, or read_mrf",
}
"""Folders of formats, and what their files are."""

FOREIGN = {
    ".lp": "a linear program; read it with blocklp lp",
    ".mps": "a linear program; read it with blocklp lp",
    ".pre": "a pedigree, from which toulbar2 makes a model of genotypes; write that with toulbar2 -z=FILE.wcsp, and read FILE.wcsp",
    ".xml": "a model of XCSP; write it with toulbar2 -z=FILE.wcsp, and read FILE.wcsp",
    ".cp": "a model in the language of cp2wcsp.awk; translate it with that program, and read the .wcsp file",
}
"""Suffixes that are in no such folder, and what their files are."""

NEUTRAL = ("", ".txt")
"""Suffixes of files of any format."""


@dataclass(frozen=True)
class InputFile:
    """A file that is to be read, and what that may take.

    Attributes
    ----------
    path : Path
        The file, of any compression.
    suffix : str
        Its suffix below that of a compression, in lower case.
    name : str
        What the instance is to be called: the name of the file without suffixes.
    max_bytes : int
        Most bytes that it may hold once decompressed.
    deadline : Deadline
        Until when it must be read.
    """

    path: Path
    suffix: str
    name: str
    max_bytes: int
    deadline: Deadline

    @cached_property
    def allowance(self) -> Allowance:
        """Memory and time that a reader of bytes may take; that of a text is ``lines.allowance``."""
        return Allowance(self.path, self.max_bytes, self.deadline)

    @cached_property
    def lines(self) -> Lines:
        """The lines of a text.

        Raises
        ------
        FormatError, OSError, TimeLimitError
            As :meth:`Lines.read`; also if there is none.
        """
        lines = Lines.read(self.path, self.max_bytes, self.deadline)
        if not len(lines):
            raise FormatError(f"{self.path}: the file is empty; fetch it again")
        return lines


class Formats:
    """The formats of a folder.

    Parameters
    ----------
    package : str
        Name of the folder's package, one of :data:`READERS`.
    """

    def __init__(self, package: str) -> None:
        self.package = package

    @cached_property
    def modules(self) -> dict[str, ModuleType]:
        """The modules by the names of their formats."""
        return modules(self.package)

    @cached_property
    def suffixes(self) -> dict[str, str]:
        """Suffixes, in lower case, and the formats that they tell."""
        return {suffix: name for name, module in self.modules.items() for suffix in module.SUFFIXES}

    def chosen(self, path: Path, format: str | None) -> str | None:
        """The format of a file: that given, or that which its suffix tells; None where it tells nothing.

        Raises
        ------
        OptionError
            If there is no such format.
        FormatError
            If the suffix tells that the file is for another reader.
        """
        if format is not None:
            if format not in self.modules:
                raise OptionError(f"format (--format) is {format!r}; give one of {', '.join(self.modules)}, or leave it out")
            return format
        suffix = format_suffix(path)
        if suffix in self.suffixes:
            return self.suffixes[suffix]
        if suffix in NEUTRAL:
            return None
        others = {known: what for package, what in READERS.items() for known in Formats(package).suffixes} | FOREIGN
        if suffix in others:
            raise FormatError(f"{path}: this suffix names {others[suffix]}")
        return None

    def opened(self, path: Path, max_bytes: int, deadline: Deadline) -> InputFile:
        """Make ready a file, named without a suffix that tells a format, or nothing.

        Parameters
        ----------
        path : Path
            The file.
        max_bytes : int
            Most bytes that it may hold once decompressed.
        deadline : Deadline
            Until when it must be read.
        """
        return InputFile(
            path, format_suffix(path), instance_name(path, (*self.suffixes, *filter(None, NEUTRAL))), max_bytes, deadline
        )

    def read(self, file: InputFile, format: str, **options: Any) -> Any:
        """Read a file by the module of its format.

        Parameters
        ----------
        file : InputFile
            The file.
        format : str
            Name of the format.
        **options
            Those of its ``read``; None stands for the default.

        Raises
        ------
        OptionError
            If a format has not the option that is given.
        """
        given = {name: value for name, value in options.items() if value is not None}
        for option, value in given.items():
            able = [name for name, module in self.modules.items() if option in inspect.signature(module.read).parameters]
            if format not in able:
                which = f"{option}={value} is for {', '.join(able)} files"
                raise OptionError(f"{which}, and {file.path} is read as {format!r}; leave it out")
        return self.modules[format].read(file, **given)

"""The data sets that can be fetched, from the tables in ``sets``.

A table names the files of a set, their bytes and SHA-256, and the commit of the public repository that each is
downloaded from.  None of these files is part of this package: their licences are those of their sources.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from blocklp.errors import OptionError

VARIABLE = "BLOCKLP_DATA"
"""Names the folder of all data sets."""


@dataclass(frozen=True)
class Remote:
    """A file of a set.

    Attributes
    ----------
    path : str
        Where it goes, below the folder of all data sets.
    url : str
        Where it comes from.
    bytes : int
        Its size.
    sha256 : str
        Its checksum, in hexadecimal digits.
    """

    path: str
    url: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class DataSet:
    """A data set, or a folder of one.

    Attributes
    ----------
    name : str
        Its folder below that of all data sets, such as ``qpbo`` or ``verification/oval21``.
    about : str
        What it holds.
    licences : dict of str to str
        The licence that each repository states for its files.
    files : tuple of Remote
        All files.
    instances : tuple
        Of networks: network, property, seconds and the known result (``sat``, ``unsat`` or ``unknown``); paths
        are below ``name``.
    energies : dict of str to float
        Of quadratic functions, graphs and fields: the least energy known, by the path below ``name``; cuts and
        sets count negatively.
    """

    name: str
    about: str
    licences: dict[str, str]
    files: tuple[Remote, ...]
    instances: tuple[tuple[str, str, float, str], ...]
    energies: dict[str, float]

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(file.bytes for file in self.files)

    def part(self, name: str) -> DataSet:
        """The files below a folder ``name`` of this set, with the licences of their sources."""
        inside = f"{name}/"
        files = tuple(file for file in self.files if file.path.startswith(inside))
        if not files:
            folders = {str(PurePosixPath(file.path).parent) for file in self.files}
            raise OptionError(f"data set {self.name!r} has no folder {name!r}; choose one of {', '.join(sorted(folders))}")
        below = name.removeprefix(self.name).strip("/")
        start = f"{below}/" if below else ""
        rows = tuple(
            (onnx.removeprefix(start), vnnlib.removeprefix(start), seconds, known)
            for onnx, vnnlib, seconds, known in self.instances
            if onnx.startswith(start) and vnnlib.startswith(start)
        )
        energies = {path.removeprefix(start): value for path, value in self.energies.items() if path.startswith(start)}
        licences = {address: own for address, own in self.licences.items() if any(address in file.url for file in files)}
        return DataSet(name, self.about, licences, files, rows, energies)


@cache
def data_sets() -> dict[str, DataSet]:
    """All data sets by name."""
    return {path.stem: _read(path) for path in sorted(Path(__file__).with_name("sets").glob("*.json"))}


def chosen(name: str) -> DataSet:
    """A data set, or a folder of one.

    Parameters
    ----------
    name : str
        Of a set, or a path of one of its folders.

    Returns
    -------
    DataSet
        Its files.

    Raises
    ------
    OptionError
        There is no such set, or no such folder in it.
    """
    name = name.strip("/")
    found = data_sets().get(name.split("/")[0])
    if found is None:
        raise OptionError(f"there is no data set {name!r}; choose one of {', '.join(data_sets())}")
    return found if name == found.name else found.part(name)


def data_folder() -> Path:
    """The folder of all data sets: what ``BLOCKLP_DATA`` names, or one in the user's cache."""
    return Path(os.environ.get(VARIABLE) or Path.home() / ".cache" / "blocklp" / "data")


def located(path: str, folder: Path | None = None) -> Path:
    """A file or folder of the data sets that is there.

    Parameters
    ----------
    path : str
        Below the folder of all data sets, such as ``qpbo/maxcut/G1.txt``.
    folder : Path, optional
        The folder of all data sets, in place of :func:`data_folder`.

    Returns
    -------
    Path
        Where it is.

    Raises
    ------
    FileNotFoundError
        It is not there; the message says which command fetches it.
    """
    found = (folder or data_folder()) / path
    if not found.exists():
        raise FileNotFoundError(f"{found} is missing; get it with: blocklp data fetch {path.split('/')[0]}")
    return found


def _read(path: Path) -> DataSet:
    table, name = json.loads(path.read_text(encoding="utf-8")), path.stem
    sources = {key: (own["address"], own["licence"]) for key, own in table["sources"].items()}
    files = tuple(
        Remote(f"{name}/{target}", sources[key][0] + quote(there), size, sha256)
        for target, key, there, size, sha256 in table["files"]
    )
    licences = {"/".join(address.split("/")[3:5]): licence for address, licence in sources.values()}
    rows = tuple(tuple(row) for row in table.get("instances", ()))
    return DataSet(name, table["about"], licences, files, rows, table.get("energies", {}))

"""What a solve over processes has come to, in files that any number of processes reads.

Every process writes what it holds, with the numbers that its blocks and variables have in the whole model.
Once all have, the first one names their folder in a file that it replaces at once: whatever ends processes at
whatever time, this file names a folder that is complete.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from blocklp.blocks.box import BOX
from blocklp.decomposition.problem import Decomposition, Group
from blocklp.distributed.hashing import items_hash, problem_hash
from blocklp.distributed.processes import Mesh, Processes
from blocklp.distributed.sharding import InstancePart
from blocklp.distributed.shared_rows import SharedRows
from blocklp.distributed.stated_parts import StatedPart
from blocklp.engine.records import Snapshot
from blocklp.errors import FormatError, ModelError
from blocklp.results import saved

KIND = "checkpoint"

UNITS = "units of "
"""What names of numbers begin with that say in which units copies were added last."""

LATEST = "latest.json"
"""The file that names the folder of the last complete snapshot."""


@dataclass(frozen=True)
class Numbering:
    """Which blocks and variables of the whole model a process's own ones are.

    Attributes
    ----------
    first : dict of str to int
        Name of a group to the number of its first block that this process states; those after it follow.
    columns : Tensor
        ``(variables,)`` int64: the number of each variable that the process states.
    """

    first: dict[str, int]
    columns: Tensor


@dataclass
class Checkpoints:
    """The snapshots of a solve.

    Attributes
    ----------
    folder : Path
        Where they are; one of a file system that all processes share.
    every : int
        Passes between two of them, at least.
    processes : Processes
        Who takes part.
    part : InstancePart
        What this process holds.
    numbering : Numbering
        Which blocks and variables these are.
    asked : str
        A hash of the problem, by which those of another one are refused.
    """

    folder: Path
    every: int
    processes: Processes
    part: InstancePart
    numbering: Numbering
    asked: str
    saved: int = field(default=0, init=False)

    @classmethod
    def of(
        cls,
        mesh: Mesh,
        processes: Processes,
        part: InstancePart,
        stated: StatedPart | None,
        asked: tuple[Decomposition, object],
    ) -> Checkpoints:
        """Number blocks and variables.

        Parameters
        ----------
        mesh : Mesh
            Which says where snapshots are, and how often.
        processes : Processes
            Who takes part.
        part : InstancePart
            What this process holds.
        stated : StatedPart or None
            What it states, where no process states all.
        asked : tuple
            The problem as this process states it, and all settings by which iterates differ.

        Returns
        -------
        Checkpoints
            None of which has been written.
        """
        problem, settings = asked
        first = dict.fromkeys((group.name for group in problem.groups), 0)
        columns, common = torch.arange(problem.cost.shape[1]), None
        if stated is not None:
            counts = processes.gather({group.name: group.blocks for group in problem.groups})
            first = {name: sum(own[name] for own in counts[: processes.rank]) for name in counts[0]}
            columns, common = stated.columns(), part.common
        totals = part.problem.totals
        sizes = totals.blocks(0), totals.variables(0), [t.tolist() for t in part.problem.cost_terms]
        names = [group.name for group in problem.groups]
        own = cls(Path(str(mesh.save)), mesh.save_every, processes, part, Numbering(first, columns), "")
        data = None if stated is None else own._data()
        return replace(own, asked=problem_hash(problem, (settings, sizes, names, data), (), common))

    def _data(self) -> int:
        """A hash of blocks, variables and rows, of which each process states some."""
        problem, column = self.part.problem, self.numbering.columns[self.part.variables]
        total, index = torch.zeros(1, dtype=torch.int64), problem.coupling.index
        for group, which in self._blocks():
            kept = group.type.tensors().values()
            each = (own[0].expand(group.blocks, *own.shape[2:]) for own in kept)
            total += items_hash(group.name, which, column[group.rows(index)[0].T], *each)
        held, sides = self.part.owned, (problem.cost, problem.lower, problem.upper)
        total += items_hash("variables", column[held], torch.stack([own[0, held] for own in sides], 1))
        if isinstance(rows := problem.rows, SharedRows):
            at = rows.counted
            ends = torch.stack([rows.row[at], column[rows.column[at]]], 1)
            total += items_hash("entries", ends[:, 0], ends, rows.entry[at, None])
        return int(self.processes.sum(total))

    def save(self, passes: int, snapshot: Callable[[], Snapshot]) -> None:
        """Write a snapshot where it is due; all processes at the same check.

        Parameters
        ----------
        passes : int
            Passes so far.
        snapshot : callable
            Makes it.
        """
        if passes < self.saved + self.every:
            return
        own, rank, world = snapshot(), self.processes.rank, self.processes.world
        name = f"passes-{passes}"
        (self.folder / name).mkdir(parents=True, exist_ok=True)
        numbers = dict(own.numbers)
        numbers |= {f"{UNITS}{kind}": power for kind, power in self.part.coupling.recent.items()}
        tensors = {f"number_{key}": values for key, values in numbers.items()}
        for i, (group, which) in enumerate(self._blocks()):
            tensors[f"blocks_{i}"] = which
            tensors |= {f"copies_{i}_{key}": group.view(all_)[0] for key, all_ in own.copies.items()}
            tensors |= {f"rows_{i}_{key}": groups[i][0].T for key, groups in own.rows.items()}
        prices = self.part.problem.in_blocks
        tensors |= {f"prices_{key}": all_[:, prices:] for key, all_ in own.copies.items()}
        held = self.part.owned
        tensors["variables"] = self.numbering.columns[self.part.variables[held]]
        tensors |= {f"variable_{key}": values[0, held] for key, values in own.variables.items()}
        header: dict[str, object] = {"asked": self.asked}
        kinds = ("copies", own.copies), ("variables", own.variables), ("rows", own.rows)
        header |= {kind: list(those) for kind, those in kinds}
        saved.write(self.folder / name / f"{rank}-of-{world}", KIND, header, tensors)
        self.processes.any(False)  # all have written
        if rank == 0:
            new = self.folder / f"{LATEST}.part"
            new.write_text(json.dumps({"folder": name, "world": world}))
            new.replace(self.folder / LATEST)
            for other in self.folder.glob("passes-*"):
                if other.name != name:
                    shutil.rmtree(other, ignore_errors=True)
        self.saved = passes

    def find(self) -> Snapshot | None:
        """Read the last snapshot, of any number of processes; None where there is none.

        Raises
        ------
        ModelError
            If it is one of another problem.
        FormatError
            If a file is damaged or missing.
        """
        latest = self.processes.from_first(self._latest())
        if latest is None:
            return None
        name, world = latest
        blocks, found = self._blocks(), None
        mine = self.numbering.columns[self.part.variables]
        for rank in range(world):
            path = self.folder / name / f"{rank}-of-{world}"
            try:
                header, tensors = saved.read(path, (KIND,))
            except OSError as error:
                raise FormatError(
                    f"{path} cannot be read ({error}); empty the folder to begin anew"
                ) from error
            if header["asked"] != self.asked:
                what = f"{self.folder} holds what another model, or one with other options, had come to"
                raise ModelError(f"{what}; name another folder, or empty it")
            if found is None:
                found = self._empty(header, tensors)
            for i, (group, which) in enumerate(blocks):
                into, out = _places(which, tensors[f"blocks_{i}"])
                for key in header["copies"]:
                    group.view(found.copies[key])[0, into] = tensors[f"copies_{i}_{key}"][out]
                for key in header["rows"]:
                    found.rows[key][i][0].T[into] = tensors[f"rows_{i}_{key}"][out]
            into, out = _places(mine, tensors["variables"])
            for key in header["variables"]:
                found.variables[key][0, into] = tensors[f"variable_{key}"][out]
        assert found is not None
        self.saved = int(found.numbers["place"][0])
        units = {key.removeprefix(UNITS): own for key, own in found.numbers.items() if key.startswith(UNITS)}
        return replace(found, resumed=partial(self._take_units, units))

    def _take_units(self, powers: dict[str, Tensor]) -> None:
        """Have the next sums of copies take the units that they would have taken."""
        recent = self.part.coupling.recent
        recent.clear()
        recent |= powers

    def _latest(self) -> tuple[str, int] | None:
        """The folder of the last snapshot, and of how many processes it is."""
        path = self.folder / LATEST
        if not path.exists():
            return None
        try:
            found = json.loads(path.read_text())
            return str(found["folder"]), int(found["world"])
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(f"{path} is damaged ({error}); empty the folder to begin anew") from error

    def _empty(self, header: dict[str, list[str]], tensors: dict[str, Tensor]) -> Snapshot:
        """A snapshot of this process's blocks and variables, to be filled."""
        problem = self.part.problem
        kinds = {key: tensors[f"copies_0_{key}"].dtype for key in header["copies"]}
        copies = {key: torch.zeros(1, problem.copies, dtype=kind) for key, kind in kinds.items()}
        for key, own in copies.items():
            own[:, problem.in_blocks :] = tensors[f"prices_{key}"]
        variables = {
            key: torch.zeros(1, problem.cost.shape[1], dtype=tensors[f"variable_{key}"].dtype)
            for key in header["variables"]
        }
        rows: dict[str, list[Tensor]] = {}
        for key in header["rows"]:
            each = ((tensors[f"rows_{i}_{key}"], group) for i, group in enumerate(problem.groups))
            rows[key] = [own.new_zeros(1, own.shape[1], group.blocks) for own, group in each]
        prefix = "number_"
        numbers = {key[len(prefix) :]: t for key, t in tensors.items() if key.startswith(prefix)}
        return Snapshot(copies, variables, rows, numbers)

    def _blocks(self) -> list[tuple[Group, Tensor]]:
        """The groups, and numbers of their blocks ``(blocks,)``: those of a box are its variables'."""
        return list(self._numbered())

    def _numbered(self) -> Iterator[tuple[Group, Tensor]]:
        index = self.part.problem.coupling.index[0]
        for group, (stated, which) in zip(self.part.problem.groups, self.part.chosen, strict=True):
            if group.name == BOX:
                yield group, self.numbering.columns[self.part.variables[index[group.start : group.stop]]]
            else:
                yield group, torch.arange(stated.blocks)[which] + self.numbering.first[group.name]


def _places(wanted: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """Which of the numbers wanted are there, and where; both ascending."""
    if not len(there):
        none = torch.zeros(0, dtype=torch.long)
        return none, none
    at = np.searchsorted(there.numpy(), wanted.numpy()).clip(max=len(there) - 1)
    met = torch.from_numpy(at)
    into = (there[met] == wanted).nonzero()[:, 0]
    return into, met[into]

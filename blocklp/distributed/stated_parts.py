"""Models of which every process states a part: what all state alike, and boxes of variables in no block."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blocklp.blocks.box import BOX, Box
from blocklp.decomposition.incidence import Coupling
from blocklp.decomposition.problem import Decomposition, Group
from blocklp.distributed.processes import Processes
from blocklp.distributed.sharding import groups_of
from blocklp.errors import ModelError
from blocklp.language.handles import Rows
from blocklp.language.instances import taken
from blocklp.language.row_expression import activities
from blocklp.language.shard import Shard
from blocklp.language.statement import Statement
from blocklp.results.state import State

NAMES = "a name of variables, private or not, of blocks or of rows, or a type of blocks"
"""What processes compare before they build anything."""


def outline(problem: Decomposition) -> Decomposition:
    """Groups of a problem, and of variables those of the box: what states are read and written by."""
    nothing, last = problem.cost.new_zeros(1, 1).expand_as(problem.cost), problem.groups[-1]
    boxed = problem.coupling.index[:, last.start if last.name == BOX else last.stop :]
    coupling = Coupling.build(problem.coupling.variables, boxed.clone())
    bare = replace(problem, cost=nothing, lower=nothing, upper=nothing, counts=nothing, coupling=coupling)
    return replace(bare, grid=None, beyond=None)


def _names(model: Statement) -> tuple[object, ...]:
    """Names of variables, blocks and rows, and shapes of common variables."""
    shapes = {name: None if name in model.private else own.shape for name, own in model.variables.items()}
    blocks = [(own.name, own.type.name) for own in model.blocks]
    return model.maximizing, list(shapes.items()), blocks, [own.name for own in model.rows]


@dataclass(frozen=True)
class StatedPart:
    """The part of a model that this process states.

    Attributes
    ----------
    model : Statement
        As it is stated here.
    processes : Processes
        All of them.
    common : Tensor
        ``(variables,)`` bool: which variables all processes state.
    """

    model: Statement
    processes: Processes
    common: Tensor

    @classmethod
    def of(cls, model: Statement, processes: Processes) -> StatedPart:
        """Read which variables are common.

        Raises
        ------
        ModelError
            If the part is that of another process, or has a repair hook.
        ProcessError
            If names of variables, blocks or rows are not those of other processes, or one has no private
            variables or blocks and others do: in all processes, and before anything is built.
        """
        part = model.part
        assert part is not None
        if (part.rank, part.world) != (processes.rank, processes.world):
            what = f"the model is the part of process {part.rank} of {part.world}"
            raise ModelError(
                f"{what}, and this is process {processes.rank} of {processes.world}; state its own"
            )
        if model.repair is not None:
            raise ModelError("a repair hook needs whole points, and no process has one; take the hook away")
        processes.agree(_names(model), NAMES)
        for variable in model.variables.values():  # memory is short where a part is solved
            variable.forget_index()
        common = torch.ones(model.size, dtype=torch.bool)
        for name in model.private:
            common[model.variables[name].columns] = False
        return cls(model, processes, common)

    def form(self, problem: Decomposition) -> tuple[object, ...]:
        """Sizes and data of blocks, and whether points are rounded: what all processes must state alike."""
        blocks = [(g.name, g.type.name, g.dim, list(g.type.tensors())) for g in problem.groups]
        return [own for own in blocks if own[0] != BOX], problem.grid is None

    def boxed(self, problem: Decomposition) -> Decomposition:
        """Have every variable that no block bounds in the box of one process.

        Parameters
        ----------
        problem : Decomposition
            The blocks of this process, and a box for all variables that they do not bound.

        Returns
        -------
        Decomposition
            The blocks, with what they share with blocks of others, and a box for a part of those variables
            that no process bounds.  There is a box, which may hold nothing, where some process has one.
        """
        processes, common = self.processes, self.common.nonzero()[:, 0]
        groups = [group for group in problem.groups if group.name != BOX]
        stop = groups[-1].stop if groups else 0
        index = problem.coupling.index[0]
        inside, boxed = torch.zeros(2, len(self.common), dtype=torch.bool)
        index, outside = index[:stop], index[stop:]
        inside[index] = True
        boxed[outside] = True
        marks = torch.stack([inside[common], boxed[common] & inside[common]]).long()
        met, cut = processes.greatest(marks) > 0
        needed = common[cut | ~met]
        mine = needed[Shard(processes.rank, processes.world).own(len(needed))]
        boxed[common] = False
        boxed[mine] = True
        if processes.any(bool(boxed.any())):
            columns = boxed.nonzero()[:, 0]
            kind = Box(*(taken(side, columns[None, :, None]) for side in (problem.lower, problem.upper)))
            groups.append(Group(BOX, kind, len(columns), 1, stop, torch.ones(1, dtype=torch.float64)))
            index = torch.cat([index, columns])
        beyond = problem.beyond
        if processes.any(beyond is not None):
            beyond = torch.zeros_like(problem.cost) if beyond is None else beyond.clone()
            beyond[:, common] = processes.greatest(beyond[:, common])
        coupling = Coupling.build(len(self.common), index[None])
        counts = torch.bincount(index, minlength=len(self.common))
        counts[common] = processes.sum(counts[common])
        all_ = tuple((group, slice(None)) for group in groups)
        coupled = groups_of(all_, counts[index] > 1, processes)
        return replace(problem, groups=coupled, coupling=coupling, beyond=beyond)

    def columns(self) -> Tensor:
        """The number that each variable of this process has among all: ``(variables,)`` int64, ascending.

        Variables are in the order in which they were declared, private ones process after process.
        """
        counts = {n: v.columns.stop - v.columns.start for n, v in self.model.variables.items()}
        sizes, rank, found, first = self.processes.gather(counts), self.processes.rank, [], 0
        for name, count in counts.items():
            private = name in self.model.private
            before = sum(own[name] for own in sizes[:rank]) if private else 0
            found.append(torch.arange(first + before, first + before + count))
            first += sum(own[name] for own in sizes) if private else count
        return torch.cat(found)

    def objective_of_others(self, problem: Decomposition, x: Tensor) -> Tensor:
        """Sum what variables of other processes cost at a point ``(1, variables)``: ``(1,)``."""
        own = (problem.cost * x)[:, ~self.common].sum(1)
        return self.processes.sum(own.clone()) - own

    def rows_of_all(self, x: Tensor) -> tuple[Rows, ...]:
        """The rows of the model, whose sides are less by what private variables of others add to activities.

        Parameters
        ----------
        x : Tensor
            ``(1, variables)`` float64: the point of this process.
        """
        private, found = x.masked_fill(self.common, 0.0), []
        for handle in self.model.rows:
            stated = handle.constraint
            own = activities(stated.matrix, private)
            others = self.processes.sum(own.clone()) - own
            sides = {name: getattr(stated, name) - others for name in ("lower", "upper")}
            found.append(replace(handle, constraint=replace(stated, **sides)))
        return tuple(found)

    def joined(self, state: State) -> State:
        """The state of this process's blocks with the multipliers that others have for common variables."""
        box = state.duals.get(BOX)
        if box is None:
            return state
        known = box[:, self.common].contiguous()
        self.processes.sum(known.view(torch.int64))  # one process has it, others zero: the bits are its own
        box = box.clone()
        box[:, self.common] = known
        return replace(state, duals=state.duals | {BOX: box})

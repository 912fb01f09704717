"""Which part of a model a process states, where no process states all of it."""

from __future__ import annotations

from dataclasses import dataclass

from blocklp.errors import ModelError
from blocklp.options import whole

SOLVE = "solve it by mesh= in all processes, each of which states its own part"


@dataclass(frozen=True)
class Shard:
    """The part of a model that one of several processes states.

    Attributes
    ----------
    rank, world : int
        Number of the process, from 0 on, and of processes.

    Raises
    ------
    OptionError
        If these are no integers from 0 and 1 on.
    ModelError
        If there is no process of this number.
    """

    rank: int
    world: int

    def __post_init__(self) -> None:
        whole(self.rank, "rank of a shard", 0)
        whole(self.world, "world of a shard")
        if self.rank >= self.world:
            raise ModelError(f"rank is {self.rank} and world {self.world}; ranks are numbered from 0 on")

    def own(self, count: int) -> slice:
        """Return an equal part of so many blocks, those of other processes before and after it."""
        return slice(count * self.rank // self.world, count * (self.rank + 1) // self.world)

    def refuse_alone(self) -> None:
        """Refuse to take the part for the model.

        Raises
        ------
        ModelError
            If other processes state parts, too.
        """
        if self.world > 1:
            what = f"the model is the part that process {self.rank} of {self.world} states"
            raise ModelError(f"{what}; {SOLVE}")

"""Settings of the search for a verdict."""

from __future__ import annotations

from dataclasses import dataclass

from blocklp.options import whole


@dataclass(frozen=True)
class VerifySettings:
    """Where the search changes its ways.

    Attributes
    ----------
    few_inputs : int
        Networks of at most so many inputs are split at their inputs: every layer then gets new bounds in every node.
    patience : int
        Nodes of a clause that the first search of a region that may be divided expands; further ones expand twice as many each.

    Raises
    ------
    OptionError
        If ``few_inputs`` is no integer of at least 0, or ``patience`` no positive one.
    """

    few_inputs: int = 20
    patience: int = 1

    def __post_init__(self) -> None:
        whole(self.few_inputs, "few_inputs", 0)
        whole(self.patience, "patience")

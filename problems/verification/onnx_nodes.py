"""Nodes of ONNX models as the functions of their operators see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blocklp.errors import ModelError
from blocklp.problems.verification.lowering import Array, Value


@dataclass(frozen=True)
class OnnxNode:
    """A node with its arguments: results of the network, constants, or None where left out.

    Attributes
    ----------
    operator, name : str
        Its operator and what errors call it.
    inputs : list
        Arguments by position.
    names : list of str
        The names of the arguments, empty where left out.
    attributes : dict
        As onnx gives them.
    alone : list of bool
        Of each argument, whether it is a product of matrices that nothing else uses.
    opset : int
        Operator set of the file.
    evaluate : callable
        All results, with arrays of float64 in the place of the results of the network, by their names.
    """

    operator: str
    name: str
    inputs: list[Value | Array | None]
    names: list[str]
    attributes: dict[str, Any]
    alone: list[bool]
    opset: int
    evaluate: Callable[[dict[str, Array]], list[Array]]

    def argument(self, at: int) -> Value | Array | None:
        """Argument, or None if left out."""
        return self.inputs[at] if at < len(self.inputs) else None

    def variable(self, at: int = 0) -> Value:
        """Argument that must depend on the input."""
        found = self.argument(at)
        if not isinstance(found, Value):
            raise ModelError(f"argument {at} must depend on the input of the network, and the others must not; fold constants first")
        return found

    def constant(self, at: int) -> Array | None:
        """Argument that must not depend on the input; None if left out."""
        found = self.argument(at)
        if isinstance(found, Value):
            told = f"argument {at} depends on the input of the network; only constants are supported there"
            raise ModelError(
                f"{told}: quotients and products of matrices of results, and places that depend on them, are not bounded"
            )
        return found

    def tensor(self, at: int) -> Tensor:
        """Constant argument in float64."""
        if (found := self.optional(at)) is None:
            raise ModelError(f"argument {at} is missing; export the network again")
        return found

    def optional(self, at: int) -> Tensor | None:
        """Constant argument in float64, or None."""
        found = self.constant(at)
        return None if found is None else tensor_of(found)

    def integers(self, at: int, attribute: str) -> list[int] | None:
        """Integers that older files hold in an attribute and newer ones in an argument."""
        found = self.constant(at)
        held = self.attributes.get(attribute)
        return held if found is None else [int(n) for n in found.reshape(-1)]

    def number(self, at: int, attribute: str, default: float | None) -> float | None:
        """A number that older files hold in an attribute and newer ones in an argument.

        Parameters
        ----------
        at : int
            Position of the argument.
        attribute : str
            Name of the attribute, which is looked at if there is no such argument.
        default : float or None
            What is returned if there is neither.

        Raises
        ------
        ModelError
            If the argument depends on the input of the network.
        """
        found = self.constant(at)
        return self.attributes.get(attribute, default) if found is None else float(found.reshape(()))

    def text(self, attribute: str, default: str) -> str:
        """An attribute that is a word."""
        return str(self.attributes.get(attribute, default.encode()).decode())

    def variables(self) -> dict[str, Value]:
        """All arguments that depend on the input, by name."""
        return {name: value for name, value in zip(self.names, self.inputs, strict=True) if isinstance(value, Value)}


def tensor_of(array: Array) -> Tensor:
    """Return a constant in float64."""
    return torch.from_numpy(np.array(array, dtype=np.float64))

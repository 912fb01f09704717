"""What functions about networks refuse first: modules, arrays and whatever else is no network, property or bounds of it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from blocklp.errors import ModelError, OptionError
from blocklp.options import of_type, shown
from blocklp.problems.verification.balls import Ball
from blocklp.problems.verification.network import Network
from blocklp.problems.verification.properties import Property
from blocklp.problems.verification.relaxation import Relaxation


def check_network(network: object) -> None:
    """Refuse what is no network.

    Raises
    ------
    OptionError
        If it is none.
    """
    of_type(network, Network, "network", "a Network, as from_torch(module, input_shape) or read_onnx(path) makes it")


def check_query(network: object, prop: object) -> None:
    """Refuse what is no network, or no property.

    Raises
    ------
    OptionError
        If one of them is none.
    """
    check_network(network)
    of_type(prop, Property, "prop", "a Property, as Property.of(...), Property.robustness(...) or read_property(path) makes it")


def check_runtime(runtime: object) -> None:
    """Refuse what evaluates no inputs, None excepted.

    Raises
    ------
    OptionError
        If it cannot be called.
    """
    if runtime is not None and not callable(runtime):
        raise OptionError(f"runtime is {shown(runtime)}; give a function of inputs, such as Runtime(path) of an ONNX file, or None")


def known_relaxation(known: Any, network: Network) -> Relaxation | None:
    """Return known bounds of a network as their relaxation, or refuse them.

    Parameters
    ----------
    known : NetworkBounds, Relaxation or None
        What users give.
    network : Network
        What they must be about.

    Raises
    ------
    OptionError
        If they are no bounds.
    ModelError
        If they are those of another network, or of real arithmetic for a network in float32.
    """
    found: Relaxation | None = getattr(known, "relaxation", known)
    if found is None:
        return None
    of_type(found, Relaxation, "known", "what network_bounds(network, lower, upper) returns")
    if not _same(found.network, network.to(torch.float64, found.network.device)):
        raise ModelError(f"known bounds are those of another network; give what network_bounds returns for {network.name}")
    if found.network.unit < network.unit:
        raise ModelError("known bounds are those of real arithmetic; give what network_bounds returns for the network in float32")
    return found


def holds(known: Relaxation, lower: Tensor, upper: Tensor, ball: Ball | None) -> bool:
    """Whether known bounds are those of one box around some others, or of one around each, and of their ball if of any.

    Parameters
    ----------
    known : Relaxation
        The bounds.
    lower, upper : Tensor
        ``(boxes, *input_shape)``: ends of the other boxes.
    ball : Ball or None
        What inputs of these are in, too.
    """
    if len(known.lower) not in (1, len(lower)) or bool((known.lower > lower).any() or (known.upper < upper).any()):
        return False
    return known.balls is None or known.balls.are(ball)


def _same(one: Network, other: Network) -> bool:
    """Whether networks have the same operations, whatever these are called."""
    if len(one.ops) != len(other.ops):
        return False
    for a, b in zip(one.ops, other.ops, strict=True):
        if a is not b and (type(a) is not type(b) or not all(_equal(a, b, own.name) for own in fields(a) if own.name != "name")):
            return False
    return True


def _equal(a: object, b: object, name: str) -> bool:
    """Whether two objects have the same attribute, numbers of tensors compared."""
    one, other = getattr(a, name), getattr(b, name)
    return torch.equal(one, other) if isinstance(one, Tensor) and isinstance(other, Tensor) else bool(one == other)

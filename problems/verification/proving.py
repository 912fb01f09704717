"""What a search writes down of its proof: a tree of parts, and the steps that :mod:`blocklp.problems.verification.proof` checks."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.errors import ModelError
from blocklp.problems.verification.proof import ONE
from blocklp.problems.verification.relaxation import Relaxation, Trace

COARSE = 2.0**-18
"""Share of the costs of activations of unknown sign that a search which writes a proof charges its leaves, since the checker, in
integers of some thirty bits, finds bounds of neurons that differ a little."""

WEIGHTS = 2**24
"""Weights of mixes are multiples of 1 / WEIGHTS."""

TIE = 1e-4
"""Where the ends of an interval are as far from zero up to this, relative to its length, the checker's bounds may tell another
one of them to be the nearer: CROWN's slopes are stated there."""

Step = dict[str, Any]


def stated(slopes: Tensor) -> Tensor:
    """Return slopes as a proof states them, float64: multiples of 1 / 65535."""
    return (slopes.double() * ONE).round() / ONE


def within(mixes: Tensor) -> Tensor:
    """Weights of rows ``(..., rows)`` that add up to at most 1: a mix is never above the greatest row, if that is not negative."""
    total = mixes.sum(-1, keepdim=True)
    return torch.where(total > 1, mixes / (total * (1 + 1e-15 * mixes.shape[-1])), mixes)


def stated_mix(mix: Tensor) -> Tensor:
    """Return weights of rows as a proof states them, float64: multiples of 1 / :data:`WEIGHTS` from 0 on, of sum 1 at most."""
    return (within(mix.double().clamp(min=0)) * WEIGHTS).floor() / WEIGHTS


def needed(relaxation: Relaxation, trace: Trace, slopes: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Return slopes where they matter, and 0 elsewhere: where activations cost something, and are not clearly on or off.

    Parameters
    ----------
    relaxation : Relaxation
        The bounds of neurons.
    trace : Trace
        Its backward pass with these slopes.
    slopes : mapping
        ``(batch, *shape)`` by position of the ReLU.
    """
    found = {}
    for relu, slope in slopes.items():
        low, high = relaxation.bounds[relu]
        found[relu] = slope * (trace.activation[relu] > 0) * (low <= TIE * (high - low)) * (high > 0)
    return found


@dataclass(eq=False)
class Part:
    """A part of a proof: bounds that are improved there, and then what splits or closes it.

    Attributes
    ----------
    bounds : list
        Steps that improve bounds.
    kind, given : str and object
        The last step, "split", "leaf" or "empty"; none where parts by clauses follow, or as long as the part is open.
    clauses, parts : list
        The parts it is split into, with their clauses if it is split by these.
    anew : bool
        Whether its own parts have all bounds that they need.
    key : str
        Tells parts apart, in all processes.
    """

    bounds: list[Step] = field(default_factory=list)
    kind: str = ""
    given: Any = None
    clauses: list[int] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    anew: bool = False
    key: str = field(default_factory=lambda: uuid.uuid4().hex)

    def become(self, other: Part) -> None:
        """Take what was written down in another process, of the part that this one is here."""
        for name in ("bounds", "kind", "given", "clauses", "parts", "anew"):
            setattr(self, name, getattr(other, name))

    def open(self) -> Iterator[Part]:
        """The parts in it, or itself, that nothing closes or splits yet."""
        work = [self]
        while work:
            part = work.pop()
            work += part.parts
            if not (part.kind or part.parts):
                yield part

    def by_clause(self, clauses: Sequence[int]) -> list[Part]:
        """Split the part by clauses."""
        self.clauses, self.parts = list(clauses), [Part() for _ in clauses]
        return self.parts

    def keep(self, clauses: Sequence[int]) -> None:
        """Forget other clauses of a part that is split by them."""
        pairs = [(c, p) for c, p in zip(self.clauses, self.parts, strict=True) if c in clauses]
        self.clauses, self.parts = [c for c, _ in pairs], [p for _, p in pairs]

    def split(self, relu: int, neuron: int, value: float = 0.0, anew: bool = False) -> list[Part]:
        """Split the part at a neuron before a ReLU, or at an input (0 for the ReLU); what was below it is forgotten.

        Parameters
        ----------
        relu, neuron, value
            Where; the first part is that above the value.
        anew : bool
            Whether both parts will have all bounds that they need.
        """
        self.kind, self.given, self.parts, self.anew = "split", [relu, neuron, value], [Part(), Part()], anew
        return self.parts

    def empty(self, relu: int, neuron: int) -> None:
        """Close the part: the bounds of a neuron before a ReLU are crossed."""
        self.kind, self.given, self.parts = "empty", [relu, neuron], []

    def close(self, mix: Tensor, slopes: Mapping[int, Tensor], betas: Mapping[int, Tensor]) -> None:
        """Close the part of one clause.

        Parameters
        ----------
        mix : Tensor
            ``(rows,)``: weights of the rows of the clause, as :func:`stated_mix` returns them.
        slopes, betas : mapping
            ``(*shape,)`` by position of the ReLU: slopes as :func:`stated` returns them, and multipliers of known signs, of either
            sign themselves.  Where there are no slopes, they are CROWN's.
        """
        weights = [round(weight * WEIGHTS) for weight in mix.tolist()]
        common = math.gcd(*weights) or 1
        # Those of the mix with the integers.
        scaled = {r: b[None] * (WEIGHTS / common) for r, b in betas.items()}
        multipliers = _multipliers({r: s[None] for r, s in slopes.items()}, scaled)
        self.kind, self.given, self.parts = "leaf", {"mix": [weight // common for weight in weights]} | multipliers, []

    def improve_all(self, relus: Sequence[int], slopes: Mapping[int, Tensor]) -> None:
        """Improve the bounds of all neurons of unknown sign before some ReLUs, one after the other.

        Parameters
        ----------
        relus : sequence of int
            Their positions.
        slopes : mapping
            ``(*shape,)`` by position of the ReLU, for all bounds alike; where there are none, they are CROWN's.
        """
        self.bounds = [{"relus": list(relus)} | _multipliers({r: s[None] for r, s in slopes.items()}, {})]

    def improve(self, relu: int, neurons: Tensor, slopes: Mapping[int, Tensor], betas: Mapping[int, Tensor]) -> None:
        """Improve the bounds of neurons before a ReLU.

        Parameters
        ----------
        relu : int
            Its position.
        neurons : Tensor
            ``(k,)``: numbers of the neurons.
        slopes, betas : mapping
            ``(2 k, *shape)`` by position of the ReLU, for the lower bounds and then for the upper ones, as in :meth:`close`; or
            slopes ``(1, *shape)`` of all bounds.
        """
        self.bounds.append({"relus": [relu], "neurons": neurons.tolist()} | _multipliers(slopes, betas))

    def steps(self) -> Iterator[Step]:
        """The steps of the part.

        Raises
        ------
        ModelError
            A part is open: the search did not end, or found no proof.
        """
        work = [self]
        while work:
            part = work.pop()
            if not (part.anew or (part.parts and all(p.anew for p in part.parts))):
                yield from ({"bounds": _encoded(given)} for given in part.bounds)
            if part.kind:
                yield {part.kind: _encoded(part.given) if part.kind == "leaf" else part.given}
            elif len(part.clauses) > 1:
                yield {"clauses": [[clause] for clause in part.clauses]}
            elif not part.parts:
                raise ModelError("the proof is not whole: a part of it is open")
            work += reversed(part.parts)


@dataclass(eq=False)
class Proof:
    """A proof of a verdict.

    Attributes
    ----------
    groups : list
        Clauses over one box, and the part that proves that they are impossible.
    counterexample : ndarray or None
        ``(inputs,)``, of a verdict "sat".
    """

    groups: list[tuple[list[int], Part]] = field(default_factory=list)
    counterexample: NDArray[Any] | None = None

    def add(self, clauses: Sequence[int], part: Part) -> None:
        """Add a part; none, if there are no clauses."""
        if clauses:
            self.groups.append((list(clauses), part))

    def steps(self) -> Iterator[Step]:
        """The steps of the proof; errors are those of :meth:`Part.steps`."""
        if self.counterexample is not None:
            yield {"counterexample": self.counterexample.tolist()}
            return
        yield {"clauses": [clauses for clauses, _ in self.groups]}
        for _, part in self.groups:
            yield from part.steps()


def _multipliers(slopes: Mapping[int, Tensor], betas: Mapping[int, Tensor]) -> Step:
    """Slopes ``(columns, neurons)`` as integers, and neurons with their multipliers ``(neurons, columns)``, by position."""
    found = {}
    for relu, beta in betas.items():
        values = np.abs(beta.detach().cpu().double().flatten(1).numpy()).T
        neurons = np.flatnonzero(values.any(1))
        if len(neurons):
            found[relu] = neurons, values[neurons]
    whole = {r: (s.flatten(1) * ONE).round().cpu().numpy().astype(">u2") for r, s in slopes.items()}
    return {"slopes": whole, "betas": found}


def _encoded(given: Step) -> Step:
    """Multipliers as text and lists."""
    slopes = {str(r): s.tobytes().hex() for r, s in given.get("slopes", {}).items()}
    betas = {str(r): [neurons.tolist(), values.tolist()] for r, (neurons, values) in given.get("betas", {}).items()}
    return given | {name: part for name, part in (("slopes", slopes), ("betas", betas)) if part or name in given}

"""The state of a solve as a value: multipliers by blocks, proximal weights, and primal-dual warm starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from blocklp.errors import (
    BlocklpError,
    FormatError,
    InstanceError,
    ModelError,
    ShapeError,
)
from blocklp.language.handles import ROWS
from blocklp.language.sense import Sense
from blocklp.options import shown, whole
from blocklp.results import saved
from blocklp.tables import listed, plural


@dataclass(frozen=True)
class Saddle:
    """The primal-dual warm start of a method such as :class:`blocklp.methods.Pdhg`.

    :class:`blocklp.methods.Admm` begins at its point, with the multipliers of the state.

    Attributes
    ----------
    x : Tensor
        ``(batch, variables)`` float64: its point, feasible in the limit.
    rows : dict of str to Tensor
        Name of blocks to duals of their rows ``(batch, blocks, rows)``, float64, in the order of
        :meth:`HasConstraints.constraints`.
    weight : Tensor
        ``(batch,)`` float64: its primal weight, NaN where no pass was made.
    """

    x: Tensor
    rows: dict[str, Tensor]
    weight: Tensor

    def __post_init__(self) -> None:
        """Refuse what is no such record."""
        _require(isinstance(self.rows, Mapping), "rows of a saddle", self.rows, "a dict of tensors")
        for what, value, dims in (("x of a saddle", self.x, 2), ("weight of a saddle", self.weight, 1)):
            need = f"a tensor of {dims} dimensions, the instance first"
            _require(_is_tensor(value, dims), what, value, need)
        for name, value in self.rows.items():
            _require(_is_tensor(value, 3), f"rows of {name!r}", value, "a tensor (batch, blocks, rows)")

    def select(self, instances: Tensor) -> Saddle:
        """The warm start of some instances: their numbers ``(k,)`` int64."""
        rows = {k: v.index_select(0, instances) for k, v in self.rows.items()}
        return Saddle(self.x.index_select(0, instances), rows, self.weight.index_select(0, instances))


@dataclass(frozen=True)
class State:
    """The start of a later solve.

    The next model may differ in costs and bounds, and may have more blocks: blocks without an entry start
    with a share of zero, so that its first bound is not below the last one.

    Attributes
    ----------
    duals : dict of str to Tensor
        Name of blocks to multipliers ``(batch, blocks, dim)``, float64; those of ``"box"``, the blocks of
        single variables that no other block bounds, by variable, ``(batch, variables, 1)``, zero where there
        is none.
    eta : Tensor
        ``(batch,)`` float64: proximal weights, NaN where unknown.
    saddle : Saddle or None
        The primal-dual warm start of :class:`blocklp.methods.Pdhg`, which multipliers do not give, and the
        point of one of :class:`blocklp.methods.Admm`; other methods leave and need none.
    rows : dict of str to int
        Name of rows to how many of the prices ``duals["rows"]`` are theirs, in order, so that they are found
        again where the model has got or lost rows.  Without it they are those of the first rows of the model.

    Raises
    ------
    ModelError
        If an attribute is of another type.
    ShapeError
        If tensors differ in batch or have other dimensions.
    """

    duals: dict[str, Tensor]
    eta: Tensor
    saddle: Saddle | None = None
    rows: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what is no state."""
        duals, eta, saddle, rows = self.duals, self.eta, self.saddle, self.rows
        _require(isinstance(duals, Mapping), "duals of a state", duals, "a dict of tensors by name of blocks")
        _require(_is_tensor(eta, 1), "eta of a state", eta, "a tensor (batch,)")
        batch, fits = len(eta), saddle is None or isinstance(saddle, Saddle)
        _require(fits, "saddle of a state", saddle, "a Saddle or None")
        _require(isinstance(rows, Mapping), "rows of a state", rows, "a dict of numbers by name of rows")
        counts = [whole(n, f"number of rows {name!r}", 0) for name, n in rows.items()]
        if rows and sum(counts) != self._priced():
            prices = f"{self._priced()} prices"
            raise ShapeError(f"rows of the state are {rows}, and it has {prices}; they must agree")
        for name, own in duals.items():
            _require(_is_tensor(own, 3), f"duals of {name!r}", own, "a tensor (batch, blocks, dim)")
            if len(own) != batch:
                raise ShapeError(f"duals of {name!r} have {len(own)} instances, eta {batch}; they must agree")
        if saddle is not None and {len(t) for t in (saddle.x, saddle.weight)} != {batch}:
            raise ShapeError(f"the saddle has {len(saddle.x)} instances, eta {batch}; they must agree")

    def _priced(self) -> int:
        """Number of prices of rows."""
        return self.duals[ROWS].shape[1] if ROWS in self.duals else 0

    def __repr__(self) -> str:
        blocks = [f"{name} {tuple(own.shape[1:])}" for name, own in self.duals.items()]
        return f"State of {plural(self.batch, 'instance')}: " + (listed(blocks) or "no multipliers")

    @property
    def batch(self) -> int:
        """Number of instances."""
        return len(self.eta)

    def select(self, instances: Sequence[int] | Tensor) -> State:
        """Return the state of some instances; an instance may be taken several times (children of a node).

        Parameters
        ----------
        instances : sequence of int or Tensor
            Their numbers ``(k,)``, negative ones from the end as in lists, or a mask ``(batch,)`` bool.

        Raises
        ------
        InstanceError
            If there is no such instance, or the numbers are none.
        """
        need = f"give numbers from {-self.batch} to {self.batch - 1}, or a mask of {self.batch} booleans"
        try:
            rows = torch.as_tensor(instances, device=self.eta.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InstanceError(f"instances are {shown(instances)}; {need}") from error
        mask = rows.dtype == torch.bool
        wrong = rows.dim() != 1 or (mask and len(rows) != self.batch)
        if wrong or (len(rows) and (rows.is_floating_point() or rows.is_complex())):
            raise InstanceError(f"instances are {shown(instances)}; {need}")
        rows = rows.nonzero()[:, 0] if mask else rows.long()
        if bool(((rows < -self.batch) | (rows >= self.batch)).any()):
            raise InstanceError(f"instances are {shown(instances)}, out of the range of {self.batch}; {need}")
        rows = torch.where(rows < 0, rows + self.batch, rows)
        saddle = None if self.saddle is None else self.saddle.select(rows)
        duals = {k: v.index_select(0, rows) for k, v in self.duals.items()}
        return State(duals, self.eta.index_select(0, rows), saddle, self.rows)

    def turned(self, sense: Sense) -> State:
        """The state of the minimisation that a model is solved as, or the other way round.

        Parameters
        ----------
        sense : Sense
            The model's.

        Returns
        -------
        State
            With multipliers, prices and the saddle's duals negated where the model maximises.
        """
        saddle = None if self.saddle is None else sense.turned(self.saddle, "rows")
        return replace(sense.turned(self, "duals"), saddle=saddle)

    def repeat(self, times: int) -> State:
        """Return every instance ``times`` times in a row, from 0 on."""
        return self.select(torch.arange(self.batch).repeat_interleave(whole(times, "times", 0)))

    def save(self, path: saved.File) -> None:
        """Write the state to a file that :meth:`load` reads; it holds numbers and names only.

        Parameters
        ----------
        path : str or path
            Where to; a file of this name is replaced.
        """
        saved.write(path, "state", *packed(self))

    @staticmethod
    def load(path: saved.File) -> State:
        """Read the state of a file, or that of a solution in one.

        A solve that starts from it is the same, to the last bit, as one from the state that was written.

        Raises
        ------
        FormatError, OSError
            As :func:`blocklp.results.saved.read` does.
        """
        return unpacked(path, *saved.read(path, ("state", "solution")))

    @staticmethod
    def concatenate(states: Sequence[State]) -> State:
        """Join the instances of several states of one model; a saddle only where all have one, of one shape.

        Raises
        ------
        ModelError
            If they are no states.
        ShapeError
            If they have different blocks, or different numbers of them.
        """
        if not isinstance(states, Sequence) or not all(isinstance(s, State) for s in states):
            raise ModelError(f"states to concatenate are {shown(states)}; give a sequence of states")
        forms = [(_shapes(s.duals), s.rows) for s in states]
        if not states or any(form != forms[0] for form in forms):
            raise ShapeError("states to concatenate need the same blocks; concatenate states of one model")
        duals = {k: torch.cat([s.duals[k] for s in states]) for k in states[0].duals}
        saddles, saddle = [s.saddle for s in states if s.saddle is not None], None
        shapes = [(s.x.shape[1], _shapes(s.rows)) for s in saddles]
        if len(saddles) == len(states) and all(shape == shapes[0] for shape in shapes):
            rows = {k: torch.cat([s.rows[k] for s in saddles]) for k in saddles[0].rows}
            saddle = Saddle(torch.cat([s.x for s in saddles]), rows, torch.cat([s.weight for s in saddles]))
        return State(duals, torch.cat([s.eta for s in states]), saddle, states[0].rows)


def packed(state: State) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Take a state apart into the names and the tensors that a file holds."""
    of = state.saddle.rows if state.saddle is not None else {}
    names = None if state.saddle is None else list(of)
    header = {"blocks": list(state.duals), "of": names, "rows": dict(state.rows)}
    tensors = {"eta": state.eta, **{f"duals_{i}": own for i, own in enumerate(state.duals.values())}}
    if state.saddle is not None:
        tensors |= {"saddle_x": state.saddle.x, "saddle_weight": state.saddle.weight}
        tensors |= {f"saddle_{i}": own for i, own in enumerate(of.values())}
    return header, tensors


def unpacked(path: saved.File, header: dict[str, Any], tensors: dict[str, Tensor]) -> State:
    """Return the state that :func:`packed` took apart.

    Parameters
    ----------
    path : str or path
        The file, for messages.
    header, tensors : dict
        What :func:`packed` returned, as the file holds it.

    Returns
    -------
    State
        The multipliers, weights and saddle of the file.

    Raises
    ------
    FormatError
        If parts are missing, or are none.
    """
    try:
        duals = {str(name): tensors[f"duals_{i}"] for i, name in enumerate(header["blocks"])}
        saddle = None
        if header["of"] is not None:
            rows = {str(name): tensors[f"saddle_{i}"] for i, name in enumerate(header["of"])}
            saddle = Saddle(tensors["saddle_x"], rows, tensors["saddle_weight"])
        return State(duals, tensors["eta"], saddle, header["rows"])
    except (KeyError, TypeError, BlocklpError) as error:
        raise FormatError(f"{path} is damaged: {error!r}; write it again by save()") from error


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    """Shapes by name, without the number of instances."""
    return {name: t.shape[1:] for name, t in tensors.items()}


def _is_tensor(value: object, dims: int) -> bool:
    return isinstance(value, Tensor) and value.dim() == dims and not value.is_complex()


def _require(fits: bool, what: str, value: object, need: str) -> None:
    if not fits:
        error = ShapeError if isinstance(value, Tensor) else ModelError
        raise error(f"{what}: {shown(value)} is not {need}")

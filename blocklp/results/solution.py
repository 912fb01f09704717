"""Solutions: bounds, primal points and multipliers, with their files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.engine.records import Event, Results
from blocklp.errors import FormatError, ModelError, UnknownNameError
from blocklp.language.coefficients import of_instances
from blocklp.language.expression import Expression, View
from blocklp.language.handles import ROWS, Rows
from blocklp.language.row_expression import RowExpression, activities
from blocklp.options import instance_number, of_type, shown
from blocklp.results import saved
from blocklp.results.owners import Compilable, Compiled
from blocklp.results.solution_summary import LAGRANGEAN, MEAN, relaxation, summary
from blocklp.results.state import State, packed, unpacked
from blocklp.results.values import Multipliers, Values, evaluated
from blocklp.status import Status
from blocklp.tables import as_html, as_text, listed

HOOK_FAILED = " None of the repair hook's points satisfied all blocks within feasibility_tol."

SAVED = ("bound", "safe_bound", "primal", "gap", "floor", "seconds", "raw_x", "cost", "offset")
"""Floating-point numbers in the file of a solution, instances first."""

MARKS = ("passes", "hook_failed")
"""Other numbers there."""


@dataclass(frozen=True)
class Solution:
    """Bounds, primal points and certificate of every instance.

    All tensors have the instance first.  When maximising, ``bound`` and ``safe_bound`` are upper bounds.

    Attributes
    ----------
    bound : Tensor
        ``(batch,)`` float64: best bound, evaluated in float64 and corrected for the residual of the
        multipliers.
    safe_bound : Tensor
        ``(batch,)`` float64: the bound of the returned multipliers with all rounding errors charged; infinite
        (no statement) if a block type states no ``value_error``.
    primal : Tensor
        ``(batch,)`` float64: best value of a primal point that satisfies all blocks within
        ``feasibility_tol``; infinite if none was found.
    gap : Tensor
        ``(batch,)``: ``|primal - bound| / max(|primal|, |bound|, floor)``.
    floor : Tensor
        ``(batch,)`` float64: what the gap is relative to at least, in the units of the objective; a
        thousandth of what its terms add up to without their signs, so that no scale of costs is better than
        another (:func:`blocklp.decomposition.valid_bounds.floor`).
    status : tuple of Status
        Why each instance ended.
    x : Values
        Primal point, a mapping: ``x[y]`` is ``(batch, *shape)``, by variable, view or name; if ``primal`` is
        infinite, the mean of the last copies.  For models of different sizes ask ``instance(i).x``.
    state : State
        Multipliers and proximal weights to start from; ``duals`` shows the multipliers by blocks.
    cost, offset : Tensor
        ``(batch, variables)`` and ``(batch,)`` float64: the objective that was solved.
    rows : tuple of Rows
        The handles of the rows that the model had.
    hook_failed : Tensor
        ``(batch,)`` bool: a repair hook was asked and none of its points satisfied all blocks.
    passes, seconds : Tensor
        ``(batch,)``: oracle passes and time until each instance left.
    history : tuple of Event
        The events, if they were asked for.
    """

    bound: Tensor
    safe_bound: Tensor
    primal: Tensor
    gap: Tensor
    floor: Tensor
    status: tuple[Status, ...]
    x: Values
    state: State
    passes: Tensor
    seconds: Tensor
    history: tuple[Event, ...]
    solver: Compiled
    raw_x: Tensor
    cost: Tensor
    offset: Tensor
    rows: tuple[Rows, ...]
    hook_failed: Tensor
    numbers: range

    @property
    def duals(self) -> Multipliers:
        """The multipliers, a mapping by handle or name of blocks; those of ``"box"`` belong to variables."""
        return Multipliers(self.state)

    @property
    def message(self) -> str:
        """The sentence of the status, for a single instance, and what else there is to say.

        That its repair hook was of no use, and that its bound is Lagrangean (:attr:`relaxation`).
        """
        if len(self.status) > 1:
            raise ModelError("message speaks of one instance; use solution.instance(i).message")
        told = HOOK_FAILED * bool(self.hook_failed[0]), MEAN * (self.relaxation == LAGRANGEAN)
        return "".join([self.status[0].message, *told])

    @property
    def relaxation(self) -> str:
        """Whose value ``bound`` is at most, and ``primal`` at least: ``"linear"`` or ``"Lagrangean"``.

        ``"Lagrangean"`` where blocks are hulls of integer points
        (:class:`blocklp.blocks.HasIntegerConstraints`): the optimum of the Lagrangean dual, which is that of
        Dantzig and Wolfe's reformulation, no worse than that of the LP of the rows (Geoffrion 1974).
        ``status``, ``gap`` and ``primal`` are those of this relaxation; no solution of a model by
        :meth:`Model.solve` claims to be integral.
        """
        return relaxation([self.solver.owner(number)[0] for number in self.numbers])

    @property
    def objective(self) -> Tensor:
        """Value of the objective at ``x``, ``(batch,)`` float64; ``primal`` where this is finite."""
        value = (self.cost * self.raw_x).sum(1) + self.offset
        return torch.where(torch.isfinite(self.primal), self.primal, value)

    def value(self, of: View | Expression | RowExpression | str) -> Tensor:
        """Return the value at ``x`` of variables, expressions or rows; also as ``solution[of]``.

        Parameters
        ----------
        of : View, Expression, RowExpression or str
            A variable, a view or the name of one, a linear expression, or rows such as ``A @ x``.  Parameters
            have their present values.

        Returns
        -------
        Tensor
            ``(batch, *shape)`` float64.

        Raises
        ------
        UnknownNameError
            If it holds variables that the solution does not have.
        ModelError
            If it is of another model or another kind, or if the solution is that of several models.
        """
        return evaluated(of, self.x, self.raw_x, self._instances)

    __getitem__ = value

    def price(self, rows: Rows | str) -> Tensor:
        """Return the prices of rows: how much the optimal value of the model changes with a side of a row.

        The sign is the same whether the model minimises or maximises: raising ``b`` in ``A @ x <= b`` by a
        small ``t`` changes the optimal value by ``t * price``.  So prices of upper sides are not negative
        when maximising and not positive when minimising, and those of lower sides the other way round; both
        up to what the gap leaves open.

        Parameters
        ----------
        rows : Rows or str
            The handle that :meth:`Model.add` returned, or its name.

        Returns
        -------
        Tensor
            ``(batch, rows)`` float64.

        Raises
        ------
        UnknownNameError
            If the model had no such rows when it was solved.
        """
        handle, start = self._rows(rows)
        return self.state.duals[ROWS][:, start : start + handle.count, 0].clone()

    def slack(self, rows: Rows | str) -> Tensor:
        """Return how far ``x`` is from the nearest side of every row, negative where it is violated.

        Returns
        -------
        Tensor
            ``(batch, rows)`` float64; errors are those of :meth:`price`.
        """
        stated = self._rows(rows)[0].constraint
        activity = activities(stated.matrix, self.raw_x)
        sides = stated.lower, stated.upper
        lower, upper = (of_instances(side, self._instances).to(activity) for side in sides)
        return torch.minimum(activity - lower, upper - activity)

    def reduced_cost(self, variable: View | str) -> Tensor:
        r"""Return the reduced costs of variables by the prices of rows, :math:`c - A^\top y`.

        They are in the sense of the model.  In a model of rows alone they say how much the optimal value
        changes with the bound at which a variable lies, with the sign of :meth:`price`.  Blocks minimise over
        these costs: what the multipliers of blocks take of them is not subtracted.

        Returns
        -------
        Tensor
            ``(batch, *shape)`` float64.

        Raises
        ------
        UnknownNameError
            If the solution has no such variable.
        """
        return Values(self._reduced, self.x.models)[variable]

    @cached_property
    def _reduced(self) -> Tensor:
        """Reduced costs of all variables, ``(batch, variables)``."""
        if not self.rows:
            return self.cost
        paid = self.cost.cpu().numpy().copy()
        for handle in self.rows:
            matrix = handle.constraint.matrix
            paid[:, : matrix.shape[1]] -= (matrix.T @ self.price(handle).cpu().numpy().T).T
        return torch.from_numpy(paid).to(self.cost.device)

    def _rows(self, rows: Rows | str) -> tuple[Rows, int]:
        """The handle, and where its prices begin."""
        start, matrix = 0, rows.constraint.matrix if isinstance(rows, Rows) else None
        name = rows.name if isinstance(rows, Rows) else rows
        for handle in self.rows:  # of a part sides are others than those of its handles
            if handle.name == name and (matrix is None or handle.constraint.matrix is matrix):
                return handle, start
            start += handle.count
        names = listed(repr(r.name) for r in self.rows) or "none"
        raise UnknownNameError(f"the solution has no rows {shown(rows)}; it has {names}")

    @property
    def _instances(self) -> list[int]:
        """Which instances of the model these are."""
        return [self.solver.owner(number)[1] for number in self.numbers]

    def instance(self, i: int) -> Solution:
        """Return the solution of one instance; of its own model, where several models were compiled together.

        Parameters
        ----------
        i : int
            Its number; negative ones count from the end, as in lists.

        Raises
        ------
        InstanceError
            If there is none.
        """
        i = instance_number(i, len(self.status))
        names = "bound safe_bound primal gap floor passes seconds offset hook_failed".split()
        number = self.numbers[i]
        models, size = self.solver.part(number)
        raw = self.raw_x[i : i + 1, :size]
        return replace(
            self,
            **{name: getattr(self, name)[i : i + 1] for name in names},
            status=(self.status[i],),
            raw_x=raw,
            cost=self.cost[i : i + 1, :size],
            x=Values(raw, models),
            state=self.solver.own_state(self.state.select([i]), number),
            history=(),
            numbers=self.numbers[i : i + 1],
        )

    def to_numpy(self) -> dict[str, Any]:
        """Return copies of the answers as arrays of NumPy, instances first.

        Returns
        -------
        dict
            ``bound``, ``safe_bound``, ``primal``, ``objective``, ``gap``, ``passes`` and ``seconds``, each
            ``(batch,)``; ``status``, a list of words; by names ``x``, ``reduced_cost``, ``price`` and
            ``slack``, dictionaries of variables and of rows, and ``duals``, one of blocks.

        Raises
        ------
        ModelError
            If it is the solution of models of different sizes; ask ``instance(i)``.
        """
        names = ("bound", "safe_bound", "primal", "objective", "gap", "passes", "seconds")
        rows = [r.name for r in self.rows]
        parts = {
            "x": {name: self.x[name] for name in self.x},
            "reduced_cost": {name: self.reduced_cost(name) for name in self.x},
            "price": {name: self.price(name) for name in rows},
            "slack": {name: self.slack(name) for name in rows},
            "duals": {name: own for name, own in self.duals.items() if name != ROWS},
        }
        found: dict[str, Any] = {name: _array(getattr(self, name)) for name in names}
        found["status"] = list(map(str, self.status))
        return found | {key: {name: _array(own) for name, own in part.items()} for key, part in parts.items()}

    def save(self, path: saved.File) -> None:
        """Write the solution, but for its history, to a file.

        :meth:`load` reads it, and :meth:`State.load` its state alone.

        Parameters
        ----------
        path : str or path
            Where to; a file of this name is replaced.
        """
        header, tensors = packed(self.state)
        stated = self.solver.owner(self.numbers.start)[0].variables
        shapes = {name: list(own.shape) for name, own in stated.items()}
        numbers = [self.numbers.start, self.numbers.stop]
        header |= {"numbers": numbers, "variables": shapes, "maximizing": self.solver.sense.maximizing}
        tensors |= {name: getattr(self, name).detach() for name in (*SAVED, *MARKS)}
        tensors["status"] = torch.tensor(self.status)
        saved.write(path, "solution", header, tensors)

    @staticmethod
    def load(path: saved.File, of: Compiled | Compilable) -> Solution:
        """Read a solution of a model, or of the models of a solver; its history is empty.

        Parameters
        ----------
        path : str or path
            What :meth:`save` wrote.
        of : Model or Solver
            Whose solution it is: the same variables and rows by name.

        Raises
        ------
        FormatError
            If it is no such file, or damaged.
        ModelError
            If it is the solution of another model.
        OSError
            If it cannot be opened.
        """
        need = "a model, or a compiled solver"
        of_type(of, Compiled | Compilable, "what the solution is of", need, ModelError)
        solver = of.compile() if isinstance(of, Compilable) else of
        header, tensors = saved.read(path, ("solution",))
        state = unpacked(path, header, tensors)
        try:
            parts = {name: tensors[name].to(solver.device) for name in (*SAVED, *MARKS)}
            status = tuple(map(Status, tensors["status"].tolist()))
            numbers = range(*map(int, header["numbers"]))
            shapes = {name: tuple(shape) for name, shape in header["variables"].items()}
            maximizing = header["maximizing"]
            whole = all(len(part) == len(status) == len(numbers) == state.batch for part in parts.values())
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"{path} is damaged: {error!r}; write it again by save()") from error
        if not whole or not numbers:
            what = "its parts speak of different numbers of instances"
            raise FormatError(f"{path} is damaged: {what}; write it again by save()")
        models = list(dict.fromkeys(solver.owner(i)[0] for i in numbers))
        mine = {name: v.shape for name, v in models[0].variables.items()}
        if (
            maximizing != solver.sense.maximizing
            or mine != shapes
            or parts["raw_x"].shape[1] < models[0].size
        ):
            what = f"holds a solution in the variables {shapes}"
            raise ModelError(f"{path} {what}; the model has {mine}, or another sense")
        known = {r.name: r for r in models[0].rows}
        same = (n for n, count in state.rows.items() if n in known and known[n].count == count)
        rows = tuple(known[name] for name in same)
        if len(rows) != len(state.rows):
            raise ModelError(f"{path} holds a solution of rows {state.rows}; the model has {models[0].rows}")
        x = Values(parts["raw_x"], models)
        return Solution(
            **parts,
            status=status,
            x=x,
            state=state,
            history=(),
            solver=solver,
            rows=rows,
            numbers=numbers,
        )

    def __repr__(self) -> str:
        return as_text(*summary(self, self.relaxation))

    def _repr_html_(self) -> str:
        return as_html(*summary(self, self.relaxation))


def _array(values: Tensor) -> NDArray[np.generic]:
    """A copy of a tensor as an array of NumPy."""
    return np.array(values.detach().cpu().numpy())


def solution(
    results: Results, state: State, solver: Compiled, rows: tuple[Rows, ...], cost: Tensor, offset: Tensor
) -> Solution:
    """Make a solution in the sense of the model from results of the engine, which minimises.

    Parameters
    ----------
    results : Results
        Of the engine.
    state : State
        Multipliers and weights, in the sense of the model.
    solver : Solver
        The solver of the models.
    rows : tuple of Rows
        Rows beside the blocks.
    cost, offset : Tensor
        ``(batch, variables)`` and ``(batch,)`` float64: costs and constants of the minimisation.

    Returns
    -------
    Solution
        Bounds, values and costs in the sense of the model, in its units.
    """
    turn = solver.sense.turn
    return Solution(
        bound=turn(results.bound),
        safe_bound=turn(results.safe_bound),
        primal=turn(results.primal),
        gap=results.gap(),
        floor=results.floor,
        status=tuple(map(Status, results.status.tolist())),
        x=Values(results.x, solver.models),
        state=state,
        passes=results.passes,
        seconds=results.seconds,
        history=tuple(solver.sense.turned(e, "bound", "primal") for e in results.history),
        solver=solver,
        raw_x=results.x,
        cost=turn(cost),
        offset=turn(offset),
        rows=rows,
        hook_failed=solver.hooked() & ~results.repaired & (results.passes > 1),
        numbers=range(len(results.bound)),
    )

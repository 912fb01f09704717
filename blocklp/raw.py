r"""The thesis's three functions, verbatim: ``min_oracle``, ``to_dual`` and ``to_primal`` (4.1.7.1).

A problem needs no declared variables and no blocks if its author brings these functions and stores
primal-like and dual-like variables as he pleases: in a tensor, or a tuple, list or dict of tensors, nested or
not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor

from blocklp.blocks.contract import BlockType, Rows, pick
from blocklp.blocks.oracle_answers import check_answer
from blocklp.decomposition.incidence import Coupling
from blocklp.decomposition.problem import Decomposition, Group
from blocklp.decomposition.row_sums import dot
from blocklp.engine.limits import LimitOptions, Limits, with_defaults
from blocklp.engine.loop import run
from blocklp.engine.records import Event, Hooks
from blocklp.errors import ModelError, NonFiniteError, OracleError, ShapeError
from blocklp.kernels.plan import Plan
from blocklp.listening import listening
from blocklp.methods import Method, as_method
from blocklp.options import required_hook
from blocklp.results.solution_summary import summary
from blocklp.status import Status
from blocklp.structure import Structure, bounded, leaves, pack, same_form, unpack
from blocklp.tables import as_text

TOLERANCE = 1e-9
"""Relative error up to which ``to_dual`` and ``to_primal`` must fit together."""


@dataclass(frozen=True)
class RawSolution:
    """Bounds and points of every instance, in the sense of minimisation.

    Attributes
    ----------
    bound, safe_bound, primal, gap : Tensor
        ``(batch,)`` float64, as in :class:`blocklp.Solution`.  ``safe_bound`` is ``-inf``, no statement: the
        rounding error of the caller's oracle is not known.
    status : tuple of Status
        Why each instance ended.
    x : structure of c
        Primal point; if ``primal`` is infinite, the mean of the last copies.
    duals : structure that ``to_dual`` returns
        The multipliers of ``bound``; ``to_primal(duals)`` is ``c``.
    passes, seconds : Tensor
        ``(batch,)``: oracle passes and time until each instance left.
    """

    bound: Tensor
    safe_bound: Tensor
    primal: Tensor
    gap: Tensor
    status: tuple[Status, ...]
    x: Structure
    duals: Structure
    passes: Tensor
    seconds: Tensor

    def __repr__(self) -> str:
        return as_text(*summary(self))


def solve_raw(
    c: Structure,
    min_oracle: Callable[[Structure], Structure],
    to_dual: Callable[[Structure], Structure],
    to_primal: Callable[[Structure], Structure],
    *,
    lower: Structure,
    upper: Structure,
    method: str | Method = "auto",
    callback: Callable[[Event], Any] | None = None,
    verbose: bool = False,
    **rules: Unpack[LimitOptions],
) -> RawSolution:
    r"""Minimise :math:`\langle c, x \rangle` over the points all of whose copies lie in their blocks.

    The functions get float64 tensors that hold every instance of the batch, whether it is still at work or
    not.  All blocks of an instance share one step size, since only the caller knows the blocks: a
    :class:`blocklp.Model` converges faster.

    Parameters
    ----------
    c : structure
        Costs: a tensor ``(batch, ...)``, or a tuple, list or dict of such tensors.
    min_oracle : callable
        Multipliers ``c_b`` to a minimiser of every block ``x_b``, or to ``(x_b, value)`` with the sum of the
        values, ``(batch,)``.
    to_dual : callable
        :math:`x_b = n \odot x`: a structure like ``c`` to copies, each entry divided by the number of its
        copies.
    to_primal : callable
        :math:`x = \sum_b x_b`: the sum of the copies of every entry.
    lower, upper : structure or number
        Finite bounds of ``x``: like ``c``, or numbers or tensors in the place of whole parts of it, which
        broadcast.
    method, callback, verbose
        As in :meth:`blocklp.Solver.solve`.
    **rules
        ``tol``, ``cutoff``, ``passes``, ``time_limit``, ``check_every``, ``feasibility_tol``,
        ``patience`` and ``project``, as there.

    Returns
    -------
    RawSolution
        Bounds and points of all instances; the best so far at a limit or an interrupt.

    Raises
    ------
    OracleError
        If ``to_dual`` and ``to_primal`` are not such a pair, or ``min_oracle`` does not return a point like
        its argument, or its value is not that of the point.
    ShapeError, NonFiniteError, ModelError
        If the tensors of ``c`` differ in batch or have none, bounds do not fit, or a number is not finite, or
        bounds cross, or something requires gradients.
    OptionError
        If an option is of another type, out of range or unknown, or a function is none.
    """
    options = with_defaults(rules)
    for function, name in ((min_oracle, "min_oracle"), (to_dual, "to_dual"), (to_primal, "to_primal")):
        required_hook(function, name)
    functions = _Functions.build(c, min_oracle, to_dual, to_primal)
    problem = _decomposition(functions, c, lower, upper)
    limits = Limits.of(problem.offset, options)
    ascent = as_method(method, problem)
    with listening(callback, verbose, problem.batch) as callback:
        results = run(Plan(problem), ascent, torch.float64, limits, hooks=Hooks(callback=callback))
    found = RawSolution(
        bound=results.bound,
        safe_bound=results.safe_bound,
        primal=results.primal,
        gap=results.gap(),
        status=tuple(map(Status, results.status.tolist())),
        x=unpack(results.x, functions.primal),
        duals=unpack(results.duals, functions.dual),
        passes=results.passes,
        seconds=results.seconds,
    )
    if verbose:
        print(found, file=sys.stderr)
    return found


@dataclass(frozen=True)
class _Functions:
    """The caller's functions on rows of numbers, of all instances or of some."""

    primal: Structure  # like c
    dual: Structure  # like what to_dual returns
    oracle: Callable[[Structure], Structure]
    to_dual: Callable[[Structure], Structure]
    to_primal: Callable[[Structure], Structure]
    batch: int

    @classmethod
    def build(
        cls,
        c: Structure,
        oracle: Callable[[Structure], Structure],
        to_dual: Callable[[Structure], Structure],
        to_primal: Callable[[Structure], Structure],
    ) -> _Functions:
        """Learn the shapes of copies from ``to_dual``."""
        parts = list(leaves(c, "c", ShapeError))
        batches = {p.shape[0] if p.dim() else 0 for p in parts}
        if len(batches) != 1 or 0 in batches:
            shapes = [tuple(p.shape) for p in parts]
            raise ShapeError(f"every tensor of c needs the same leading batch, got shapes {shapes}")
        (batch,) = batches
        made = unpack(pack(c), c)
        dual = to_dual(made)
        for part in leaves(dual, "to_dual(c)", OracleError):
            if not part.dim() or part.shape[0] != batch:
                shape = tuple(part.shape)
                raise OracleError(f"to_dual returned a tensor {shape}; each needs the batch {batch} first")
        return cls(made, dual, oracle, to_dual, to_primal, batch)

    def whole(self, some: Tensor, rows: Tensor) -> Tensor:
        """Rows of all instances, zero for finished ones: data in the caller's closures keep their places."""
        if len(rows) == self.batch:
            return some
        return some.new_zeros(self.batch, some.shape[1]).index_copy(0, rows, some)

    def spread(self, values: Tensor, rows: Tensor) -> Tensor:
        """``to_dual``: ``(k, variables)`` of the instances ``rows`` ``(k,)`` to ``(k, copies)``."""
        answer = self.to_dual(unpack(self.whole(values, rows), self.primal))
        return matched(answer, self.dual, "to_dual")[rows]

    def collect(self, copies: Tensor, rows: Tensor) -> Tensor:
        """``to_primal``: ``(k, copies)`` to ``(k, variables)``."""
        answer = self.to_primal(unpack(self.whole(copies, rows), self.dual))
        return matched(answer, self.primal, "to_primal")[rows]

    def minimise(self, cost: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """``min_oracle``: ``(k, copies)`` to points ``(k, copies)`` and values ``(k,)``."""
        answer = self.oracle(unpack(self.whole(cost, rows), self.dual))
        value = None
        # A pair is (point, value) unless the copies themselves are stored as a pair of tensors.
        if isinstance(answer, tuple) and len(answer) == 2 and not same_form(answer, self.dual):
            answer, value = answer
        point = matched(answer, self.dual, "min_oracle")[rows]
        if value is None:
            return point, dot(cost, point)
        if not isinstance(value, Tensor) or value.shape != (self.batch,):
            need = f"a tensor ({self.batch},): one sum over all blocks an instance"
            raise OracleError(f"min_oracle must return the value as {need}")
        return point, value[rows].to(cost)


class _Everything(BlockType):
    """All blocks of an instance as one, known by the caller's oracle, for the instances ``rows``."""

    block_data = ("rows",)

    def __init__(self, functions: _Functions, rows: Tensor) -> None:
        self.functions, self.rows = functions, rows[:, None]

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Ask the caller's oracle: ``(batch, 1, copies)`` to points and values ``(batch, 1)``."""
        point, value = self.functions.minimise(cost[:, 0], self.rows[:, 0])
        return point[:, None], value[:, None]

    @property
    def name(self) -> str:
        """The name in messages."""
        return "solve_raw"


@dataclass(frozen=True)
class _Maps(Coupling):
    """The caller's maps in the place of index maps."""

    functions: _Functions
    counts: Tensor  # (k, variables)
    rows: Tensor  # (k,)

    @property
    def indexed(self) -> bool:
        """Not known."""
        return False

    def spread(self, values: Tensor) -> Tensor:
        """Every copy gets the value of its variable: ``to_dual`` without its division."""
        return self.functions.spread(values * self.counts, self.rows)

    def spread_part(self, values: Tensor, start: int, stop: int) -> Tensor:
        """Some copies of :meth:`spread`."""
        return self.spread(values)[:, start:stop]

    def collect(self, copies: Tensor) -> Tensor:
        """``to_primal``."""
        return self.functions.collect(copies, self.rows)

    def select(self, rows: Rows) -> _Maps:
        """Return the maps of some instances."""
        return replace(self, counts=pick(self.counts, rows), rows=pick(self.rows, rows))


def _decomposition(functions: _Functions, c: Structure, lower: Structure, upper: Structure) -> Decomposition:
    """One group of one block an instance, after the functions have been tried."""
    cost = pack(c)
    if not bool(torch.isfinite(cost).all()):
        raise NonFiniteError("c holds NaN or infinite entries; every cost must be finite")
    sides = (lower, "lower"), (upper, "upper")
    low, high = (pack(bounded(functions.primal, side, name), name) for side, name in sides)
    if not bool((torch.isfinite(low) & torch.isfinite(high)).all()):
        raise NonFiniteError("lower and upper must be finite: bounds that hold in floating point need them")
    if bool((low > high).any()):
        raise ModelError("an entry of lower is above that of upper")
    rows = torch.arange(functions.batch, device=cost.device)
    shares = functions.spread(torch.ones_like(cost), rows)
    # Each of N copies holds 1/N, the sum of squares is 1/N; _check_maps refuses entries without a copy.
    counts = 1 / functions.collect(shares**2, rows).clamp(min=torch.finfo(cost.dtype).tiny)
    copies = shares.shape[1]
    index = torch.zeros(1, copies, dtype=torch.long, device=cost.device)
    maps = _Maps(cost.shape[1], index, None, None, {}, functions, counts, rows)
    _check_maps(functions, maps, cost, copies)
    kind = _Everything(functions, rows)
    alone = (maps.spread(counts) < 1.5).all(0)
    group = Group("min_oracle", kind, 1, copies, 0, (~alone).to(cost))
    trial = maps.spread(cost / counts)[:, None]
    check_answer(kind, trial, kind.min_oracle(trial))
    return Decomposition(cost, low, high, torch.zeros_like(cost[:, 0]), (group,), maps, counts)


def _check_maps(functions: _Functions, maps: _Maps, cost: Tensor, copies: int) -> None:
    """Try the maps on random numbers.

    Raises
    ------
    OracleError
        If they do not invert each other, or are not adjoint up to the numbers of copies.
    """
    seeded = torch.Generator().manual_seed(0)
    x = torch.rand(cost.shape, generator=seeded, dtype=cost.dtype).to(cost.device) + 0.5
    y = torch.rand(len(cost), copies, generator=seeded, dtype=cost.dtype).to(cost.device) - 0.5
    back = functions.collect(functions.spread(x, maps.rows), maps.rows)
    if not bool(((back - x).abs() <= TOLERANCE * x).all()):
        raise OracleError(
            "to_primal(to_dual(x)) is not x: to_dual must give each copy x divided by the number of copies "
            "of the entry (every entry needs one), and to_primal must add the copies up"
        )
    left, right = dot(maps.spread(x), y), dot(x, maps.collect(y))
    if not bool(((left - right).abs() <= TOLERANCE * dot(maps.spread(x), y.abs())).all()):
        raise OracleError(
            "to_primal is not the adjoint of to_dual: to_primal must add up, with weight 1, just those "
            "copies to which to_dual gives the entry, and to_dual must divide every entry into equal shares"
        )


def matched(answer: Structure, like: Structure, function: str) -> Tensor:
    """Lay out the answer of a function of the caller.

    Parameters
    ----------
    answer : structure
        The answer.
    like : structure
        Its expected form.
    function : str
        Name of the function, for messages.

    Returns
    -------
    Tensor
        ``(batch, numbers)`` float64.

    Raises
    ------
    OracleError
        If the answer has another form.
    """
    if not same_form(answer, like):
        shapes = [tuple(p.shape) for p in leaves(like, function, OracleError)]
        kind = type(like).__name__
        raise OracleError(f"{function} must return a {kind} of tensors of shapes {shapes}, in this order")
    return pack(answer, f"what {function} returned")

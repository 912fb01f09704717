"""Is my model's oracle right?  One call that tests it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from blocklp.decomposition.problem import Decomposition, Group
from blocklp.decomposition.row_sums import dot
from blocklp.errors import ModelError, OracleError
from blocklp.language.handles import Blocks
from blocklp.model import Model
from blocklp.options import of_type, whole
from blocklp.testing import integer_probes, lp_probes, probes


@dataclass(frozen=True)
class Report:
    """The tests that :func:`check` made; printing it gives a table.

    Attributes
    ----------
    tested : tuple of str
        A line for each handle.
    untested : tuple of str
        What could not be tested, and which method of the type would allow it.
    """

    tested: tuple[str, ...]
    untested: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([*self.tested, *(f"not tested: {line}" for line in self.untested)])


def check(model: Model, trials: int = 6, sample: int = 20, seed: int = 0) -> Report:
    r"""Test the oracles and scope maps of a model on random costs.

    For every handle: shapes, values, feasibility, proximal and completed points, min-marginals, soft minima;
    determinism; concavity; a block alone against the batch; float32 against float64; the optimum of an LP
    over the type's constraints; the adjointness :math:`\langle A x, y \rangle = \langle x, A^\top y \rangle`
    of its scope maps, and that they fit the scope. For the model: ``to_primal(to_dual(x)) == x``.

    Parameters
    ----------
    model : Model
        With an objective.
    trials : int
        Random costs for each handle.
    sample : int
        Blocks of each cost that are asked alone and solved as LPs, spread evenly.
    seed : int
        Of the random numbers.

    Returns
    -------
    Report
        What was tested and what could not be.

    Raises
    ------
    OracleError
        On the first failure, naming the blocks and how to repair it.
    OptionError
        If ``trials`` or ``sample`` is no positive integer, or ``seed`` a negative one.
    ModelError
        If the model does not compile.

    Examples
    --------
    >>> import blocklp as bl
    >>> from blocklp.oracles import Edge
    >>> m = bl.Model()
    >>> x = m.variable("x", 3, lower=0, upper=1)
    >>> pair = m.add(Edge(), scope=[x[[0]], x[[1]], x[[2]]])
    >>> m.minimize(x.sum())
    >>> print(check(m))
    Edge: 1 block of Edge(vertices=4, dim=3), 6 costs, 6 LPs
    """
    of_type(model, Model, "model", "a model", ModelError)
    whole(trials, "trials")
    whole(sample, "sample")
    whole(seed, "seed", 0)
    draw = torch.Generator().manual_seed(seed)
    problem = model.compile().decomposition()
    tested: list[str] = []
    untested: list[str] = []
    for blocks in model.blocks:
        count = len(blocks.scope)
        try:
            solved = _oracle(blocks, model.batch, trials, sample, draw)
            _maps(problem, next(g for g in problem.groups if g.name == blocks.name), draw)
        except OracleError as error:
            raise OracleError(f"blocks {blocks.name!r}: {error}") from error
        many = f"{count} block{'s' * (count > 1)}"
        tested.append(f"{blocks.name}: {many} of {blocks.type!r}, {trials} costs, {solved} LPs")
        if not solved:
            untested.append(f"{blocks.name}: optimality, since {blocks.type.name} states no constraints()")
    x = torch.randn(problem.cost.shape, generator=draw, dtype=torch.float64)
    if bool((problem.to_primal(problem.to_dual(x)) - x).abs().amax() > 1e-9):
        must = "the maps given to add() must count every variable of the scope once"
        raise OracleError(f"to_primal(to_dual(x)) is not x; {must}")
    return Report(tuple(tested), tuple(untested))


def _oracle(blocks: Blocks, batch: int, trials: int, sample: int, draw: torch.Generator) -> int:
    """Run the probes of one handle; return the number of LPs solved."""
    kind, (count, dim) = blocks.type, blocks.scope.shape
    picks = [(k // count, k % count) for k in range(0, batch * count, -(-batch * count // sample))]
    solved, earlier = 0, torch.zeros(batch, count, dim, dtype=torch.float64)
    for trial in range(trials):
        cost = torch.randn(batch, count, dim, generator=draw, dtype=torch.float64)
        # Every other cost has small integers, which make ties.
        cost = (2 * cost).round() if trial % 2 else cost
        probes.answer(kind, cost)
        probes.value_alone(kind, cost)
        probes.proximal(kind, cost, earlier, torch.full((batch, 1, 1), 0.5, dtype=torch.float64))
        probes.completion(kind, cost, earlier)
        probes.marginals(kind, cost)
        probes.listed(kind, cost)
        probes.soft_minimum(kind, cost, earlier)
        probes.concavity(kind, cost, earlier)
        probes.singles(kind, cost, picks)
        probes.layout(kind, cost)
        probes.precision(kind, cost)
        solved += lp_probes.optimality(kind, cost, picks)
        solved += integer_probes.integer_optimality(kind, cost, picks)
        earlier = cost
    return solved


def _maps(problem: Decomposition, group: Group, draw: torch.Generator) -> None:
    """Test the scope maps of one group against each other and against the scope."""
    x = torch.randn(problem.cost.shape, generator=draw, dtype=torch.float64)
    y = torch.zeros(problem.batch, problem.copies, dtype=torch.float64)
    own = y[:, group.start : group.stop]
    own.copy_(torch.randn(own.shape, generator=draw, dtype=torch.float64))
    spread = problem.spread(x)
    scope = problem.coupling.index[:, group.start : group.stop].expand(problem.batch, -1)
    wrong: Tensor = (spread[:, group.start : group.stop] - x.gather(1, scope)).abs() > 1e-9
    if bool(wrong.any()):
        position, block = divmod(int(wrong.nonzero()[0, 1]), group.blocks)
        raise OracleError(
            f"to_dual gives position {position} of block {block} another value than its "
            f"variable in the scope; order the copies (batch, dim * blocks) with the block index fastest"
        )
    size = 1 + dot(x.abs(), problem.collect(y.abs()))
    if bool((dot(spread, y) - dot(x, problem.collect(y))).abs().amax() > 1e-9 * size.amax()):
        differ = "<to_dual(x), y> and <x, to_primal(y)> differ; sum the copies"
        raise OracleError(f"to_primal is not the adjoint of to_dual: {differ}")

"""Roof duality of a function of which every process states its own pairs (:meth:`blocklp.Model.shard`)."""

from __future__ import annotations

import torch

import blocklp as bl
from blocklp.errors import ModelError
from blocklp.language.offsets import Offsets
from blocklp.language.shard import Shard
from blocklp.problems.qpbo.arrays import FloatArray, IntArray
from blocklp.problems.qpbo.batch import EDGE
from blocklp.problems.qpbo.instance import Qubo
from blocklp.problems.qpbo.order import passing_order


def roof_duality_shard(linear: FloatArray, edges: IntArray, quadratic: FloatArray, shard: Shard, offset: float = 0.0) -> bl.Model:
    """Return a process's part of the relaxation: all variables ``y`` (n,), and ``z`` and ``Edge`` of its pairs.

    Parameters
    ----------
    linear : numpy.ndarray, shape (n,), float64
        Coefficient of each variable, in all processes.
    edges : numpy.ndarray, shape (m, 2), int64
        The pairs of this process, each in one process only; either none or some in all processes.
    quadratic : numpy.ndarray, shape (m,), float64
        Coefficient of each pair.
    shard : Shard
        Number of this process, and of processes.
    offset : float
        Constant term, in all processes.

    Returns
    -------
    Model
        To be solved with ``mesh=`` (docs/distributed.md).

    Raises
    ------
    ScopeError, ShapeError, NonFiniteError
        If arrays do not fit or are not finite.
    """
    model = bl.Model.shard(shard.rank, shard.world)
    y = model.variable("y", len(linear), lower=0, upper=1, grid=0.5)
    if not len(edges):
        model.minimize(y @ linear + offset)
        return model
    z = model.variable("z", len(edges), lower=0, upper=1, private=True)
    model.add(EDGE, scope=[y[torch.from_numpy(edges)], z])
    model.minimize(y @ linear + z @ quadratic + offset)
    return model


def shard_of(qubo: Qubo, rank: int, world: int) -> bl.Model:
    """Return a process's part of the relaxation of a function, whose pairs are shared equally.

    Pairs are in the order in which passes go over them, and products ``z`` in that of the pairs.

    Parameters
    ----------
    qubo : Qubo
        The function, of which nothing is kept but the pairs of the part.
    rank, world : int
        Number of this process, and of processes.

    Returns
    -------
    Model
        See :func:`roof_duality_shard`.

    Raises
    ------
    ModelError
        If there are fewer pairs than processes.
    """
    shard = Shard(rank, world)
    if 0 < len(qubo.edges) < world:
        raise ModelError(f"there are {len(qubo.edges)} pairs for {world} processes; take fewer")
    order = passing_order(torch.tensor(qubo.edges[:, 1]), qubo.n, Offsets.alone(len(qubo.edges)))[1]
    own = order[shard.own(len(order))].numpy()
    return roof_duality_shard(qubo.linear, qubo.edges[own], qubo.quadratic[own], shard, qubo.offset)

"""Many QUBOs as concatenated arrays, and their roof-duality LPs as one batch.

Stating them takes a fixed number of tensor operations, on the device where the arrays lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

import blocklp as bl
from blocklp.errors import ShapeError
from blocklp.language.offsets import Offsets
from blocklp.oracles.boolean_quadric import Edge
from blocklp.problems.qpbo.instance import Qubo
from blocklp.problems.qpbo.order import passing_order

EDGE = Edge()


@dataclass(frozen=True, eq=False)
class QuboBatch:
    """Minimise ``offset[k] + sum_i linear[i] y_i + sum_e quadratic[e] y_i(e) y_j(e)`` for every instance k, all of different sizes.

    Attributes
    ----------
    linear : Tensor
        ``(variables of all,)``: the coefficients of the variables, instance after instance.
    edges : Tensor
        ``(pairs of all, 2)`` int64: coupled pairs, by the numbers of variables in their own instance.
    quadratic : Tensor
        ``(pairs of all,)``: coefficient of each pair.
    variables, pairs : Tensor
        ``(count + 1,)`` int64: where the variables and pairs of each instance begin, from 0 to their number.
    offset : Tensor or float
        ``(count,)``: constant terms.
    """

    linear: Tensor
    edges: Tensor
    quadratic: Tensor
    variables: Tensor
    pairs: Tensor
    offset: Tensor | float = 0.0

    @classmethod
    def of(cls, qubos: Sequence[Qubo]) -> QuboBatch:
        """Concatenate instances, on the CPU."""

        def first(counts: list[int]) -> Tensor:
            return torch.tensor([0, *counts]).cumsum(0)

        return cls(
            torch.from_numpy(np.concatenate([q.linear for q in qubos])),
            torch.from_numpy(np.concatenate([q.edges for q in qubos])),
            torch.from_numpy(np.concatenate([q.quadratic for q in qubos])),
            first([q.n for q in qubos]),
            first([len(q.edges) for q in qubos]),
            torch.tensor([q.offset for q in qubos], dtype=torch.float64),
        )

    def to(self, device: torch.device | str) -> QuboBatch:
        """The instances with all arrays on a device."""
        tensors = {f.name: own for f in fields(self) if isinstance(own := getattr(self, f.name), Tensor)}
        return replace(self, **{name: own.to(device) for name, own in tensors.items()})

    def __len__(self) -> int:
        return len(self.variables) - 1


def roof_duality_batch(qubos: QuboBatch) -> bl.ModelBatch:
    """Return the relaxations of :func:`roof_duality_model` as a batch with variables ``y``, ``z`` and blocks ``Edge``.

    Raises
    ------
    ModelError, ShapeError, NonFiniteError, ScopeError
        The arrays do not fit together, an entry is not finite, or a pair names a variable that its instance does not have.
    """
    if qubos.edges.dim() != 2 or qubos.edges.shape[1] != 2:
        raise ShapeError(f"edges has shape {tuple(qubos.edges.shape)}; give (pairs, 2)")
    model = bl.ModelBatch()
    y = model.variable("y", qubos.variables, lower=0, upper=1, grid=0.5)
    pairs = Offsets.of(qubos.pairs, "pairs")
    if not pairs.total:
        model.minimize({y: qubos.linear}, qubos.offset)
        return model
    z = model.variable("z", pairs, lower=0, upper=1)
    order, local = passing_order(qubos.edges[:, 1], y.offsets.most, pairs)
    model.add(EDGE, [y[qubos.edges[order]], z[local]], offsets=pairs)
    model.minimize({y: qubos.linear, z: qubos.quadratic}, qubos.offset)
    return model

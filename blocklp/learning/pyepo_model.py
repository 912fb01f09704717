"""Models for PyEPO, whose functions then solve a batch in one call; :func:`blocklp.learning.pyepo_model`."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pyepo import EPO
from pyepo.model.mpax import mpaxmodel
from pyepo.model.opt import optModel
from torch import Tensor

from blocklp.errors import ModelError
from blocklp.language.expression import Parameter, View
from blocklp.learning.layer import Layer
from blocklp.model import Model

Array = NDArray[np.generic]


class BatchedModel(mpaxmodel.optMpaxModel):  # type: ignore[misc]
    """An ``optModel`` whose minimisers are those of a model, all costs of a batch in one call.

    PyEPO 2.2 solves one by one whatever is no ``optMpaxModel``; this class is one in its protocol of batches
    (``setObj``, ``c``, ``batch_optimize``), and needs neither MPAX nor JAX.

    Parameters
    ----------
    model : Model
        Of one instance.
    cost : Parameter
        What is predicted.
    variables : View or None
        What PyEPO sees as the solution; by default what the parameter multiplies.
    settings : dict
        ``tol`` and ``passes`` of :class:`blocklp.Layer`.
    """

    def __init__(
        self, model: Model, cost: Parameter, variables: View | None, settings: dict[str, Any]
    ) -> None:
        self.layer = Layer(model, cost=cost, variables=variables, mode="identity", **settings)
        self.modelSense = EPO.MAXIMIZE if model.maximizing else EPO.MINIMIZE
        if self.layer.map.out_shape != self.layer.map.shape or len(self.layer.map.shape) != 1:
            need = "state one parameter (n,) and the variables (n,) that it multiplies"
            raise ModelError(f"PyEPO takes one cost a variable; {need}")
        optModel.__init__(self)  # that of MPAX compiles for JAX

    def get_config(self) -> dict[str, Any]:
        """Nothing: there are no workers to rebuild it in."""
        return {}

    def _getModel(self) -> tuple[Any, Any]:
        return self.layer, list(range(self.num_cost))

    @property
    def num_cost(self) -> int:
        """Number of costs that are predicted."""
        return self.layer.map.entries

    def setObj(self, c: Any) -> None:
        """Set costs ``(n,)`` or ``(batch, n)``; PyEPO reads those of the minimisation in ``c``."""
        costs = torch.as_tensor(c).detach()
        self.c = -costs if self.modelSense == EPO.MAXIMIZE else costs

    def batch_optimize(self, c: Tensor) -> tuple[Array, Array, Array]:
        """Minimise costs ``(batch, n)``: points, values and statuses, which are zero, as arrays."""
        # PyEPO's check of statuses needs JAX, and only warns; a layer warns by itself.
        mpaxmodel._warned_not_optimal = True
        costs = c.double()
        with torch.no_grad():
            points = self.layer(-costs if self.modelSense == EPO.MAXIMIZE else costs)
        return points.cpu().numpy(), (costs * points).sum(1).cpu().numpy(), np.zeros(len(c), dtype=np.int64)

    def solve(self) -> tuple[Array, float]:
        """Minimise the costs that are set: a point and its value."""
        points, values, _ = self.batch_optimize(self.c[None])
        return points[0], float(-values[0] if self.modelSense == EPO.MAXIMIZE else values[0])

    def copy(self) -> Self:
        """Itself: nothing in it changes but the costs, which every solve sets."""
        return self

    def addConstr(self, coefs: Any, rhs: float) -> Self:
        """Refuse cuts.

        Raises
        ------
        ModelError
            Always: rows belong in the model.
        """
        raise ModelError("rows of a model are stated before PyEPO gets it: model.add(A @ x <= b)")

r"""Bounds of every neuron, layer by layer.

Layer by layer (thesis, 4.1.4), the unstable neurons of a layer get the LP over everything before it, both signs as one
batch; the tightened bounds enter the LPs of the next layer.  Iterates are float32; what is kept is evaluated in float64 with
all rounding charged, so the bounds hold for the real-valued function of the network's float32 weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.errors import ModelError, NonFiniteError, OptionError, ShapeError
from blocklp.general_solvers.solvers import lp_solver
from blocklp.model import Model
from blocklp.options import numbers, whole
from blocklp.problems.verification.given import check_network, holds, known_relaxation
from blocklp.problems.verification.network import Network
from blocklp.problems.verification.planet import Planet
from blocklp.problems.verification.properties import detached
from blocklp.problems.verification.relaxation import Relaxation
from blocklp.problems.verification.tightener import ENGINE, LayerBounds, Tightener, intervals
from blocklp.tables import Table, Tabled, plural


@dataclass(frozen=True, repr=False)
class NetworkBounds(Tabled):
    """Bounds of all layers, over one box or several.

    Attributes
    ----------
    method : str
        How they were computed.
    layers : tuple of LayerBounds
        One for each activation in order, and the output.
    relaxation : Relaxation
        The Planet relaxation with these bounds, for further LPs.
    signs : mapping
        The signs they were computed under.
    seconds : float
        Time spent.
    """

    method: str
    layers: tuple[LayerBounds, ...]
    relaxation: Relaxation
    signs: Mapping[int, Tensor]
    seconds: float

    def _tables(self) -> tuple[str, list[Table]]:
        boxes = plural(len(self.relaxation.lower), "box", "boxes")
        title = (
            f"Bounds of {self.relaxation.network.name} over {boxes}: {self.method}, {self.unstable} unstable, {self.seconds:.3g} s"
        )
        rows = [
            (own.name, str(own.lower.numel()), str(own.unstable), f"{own.lower.min():.6g}", f"{own.upper.max():.6g}")
            for own in self.layers
        ]
        return title, [Table(("layer", "bounds", "unstable", "least", "greatest"), rows, len(rows))]

    @property
    def output(self) -> LayerBounds:
        """Bounds of the outputs."""
        return self.layers[-1]

    @property
    def unstable(self) -> int:
        """Neurons of unknown sign, those of smooth activations among them."""
        return sum(layer.unstable for layer in self.layers[:-1])

    def model(self, cost: ArrayLike | Tensor) -> Model:
        """State the LP ``min <cost, outputs>`` over the relaxation, a block a layer: for other solvers, or with blocks of your own.

        Parameters
        ----------
        cost : Tensor or array_like
            ``(outputs,)``, or ``(k, outputs)`` for as many instances: finite.

        Returns
        -------
        Model
            Variables ``x`` (the input), ``z<position>`` (results of layers) and ``a<position>`` (activations that several layers
            use).  :func:`blocklp.reference` solves it where no activation is smooth.

        Raises
        ------
        ModelError
            If the bounds are those of several boxes, or some are not finite.
        ShapeError, NonFiniteError
            If the costs do not fit or are not finite.
        """
        relaxation = self.relaxation.to(torch.float64, "cpu")
        network, node = relaxation.network, len(relaxation.network.ops) - 1
        if len(relaxation.lower) > 1:
            raise ModelError(f"the bounds are those of {len(relaxation.lower)} boxes; state the model of bounds over one box")
        costs = numbers(cost, "cost")
        costs = costs[None] if costs.dim() == 1 else costs
        if costs.dim() != 2 or costs.shape[1] != network.outputs:
            raise ShapeError(f"cost has the shape {tuple(costs.shape)}; give {network.outputs} numbers an instance, one an output")
        if not bool(torch.isfinite(costs).all()):
            raise NonFiniteError("cost holds numbers that are not finite; give finite ones")
        result = intervals(network, relaxation.lower, relaxation.upper, relaxation.bounds, node)[node]
        if not all(bool(torch.isfinite(end).all()) for end in result):
            raise ModelError("bounds of the outputs are not finite; take a smaller box of inputs")
        before = [at for at in network.ancestors(node) if at in relaxation.bounds]
        slopes = relaxation.start(before, len(costs))
        return Planet.build(relaxation, node, costs.view(-1, *network.ops[node].shape), result, slopes).model


STEPS = {"interval": 0, "crown": 1, "alpha-crown": 100, "slopes": 20, "exact": 1} | dict.fromkeys(ENGINE, 100)
"""Methods, and how many evaluations (or passes) of each LP they make unless told otherwise."""


def network_bounds(
    network: Network,
    lower: ArrayLike | Tensor,
    upper: ArrayLike | Tensor,
    *,
    method: str = "slopes",
    steps: int | None = None,
    gap: bool = False,
    known: NetworkBounds | Relaxation | None = None,
    signs: Mapping[int, Tensor] | None = None,
    time_limit: float | Deadline = math.inf,
    solver: str = "highs",
) -> NetworkBounds:
    """Bound every neuron of a network over a box of inputs, or over each of several boxes.

    The LPs of one layer over all boxes are one batch (thesis, 4.1.7.2).

    Parameters
    ----------
    network : Network
        The network.
    lower, upper : Tensor or array_like
        Box of inputs, ``input_shape``, finite; or several boxes, ``(boxes, *input_shape)``, but for the methods of the engine
        and "exact".  Gradients are left out.
    method : str
        "slopes" (default): the LP of every unstable neuron by ascent over slopes, layer by layer.  "interval";
        "crown": one backward pass; "alpha-crown": hidden layers by CROWN, outputs by ascent.  A method of the engine
        ("admm", "prox", "proxbc", "proxfw", "polyak", "supergradient", "adam"): block by block from CROWN's multipliers.
        "exact": an LP code, not certified, for checking.
    steps : int, optional
        Evaluations or passes of every LP.
    gap : bool
        Find primal points of the LPs, so that every bound comes with its distance to a value that is certainly not
        below the LP's optimum ("slopes", "crown", "alpha-crown").
    known : NetworkBounds or Relaxation, optional
        Bounds over a box that contains this one (or under fewer signs): only its unstable neurons are worked on.  Of several boxes,
        those over one that contains all of them, or over one for each.
    signs : mapping, optional
        Position of a ReLU to ``(1 or boxes, *shape)``: 1 for neurons that are on, -1 for those that are off, 0 for others.
    time_limit : float or Deadline
        Seconds; layers that are not reached keep interval bounds.
    solver : str
        The LP code of "exact", one of :func:`blocklp.reference`.

    Returns
    -------
    NetworkBounds
        Valid for the real-valued network (but for "exact"); infinite where its numbers leave the range of float64.  Bounds of
        several boxes have these in front.

    Raises
    ------
    OptionError
        If the network is none, or a method, solver or number is wrong.
    MissingDependencyError, BlocklpError
        If the LP code of "exact" is not installed, or its licence does not cover the LPs.
    ShapeError, ModelError
        If the box does not fit, is empty or not finite, if the signs contradict each other, or if ``known`` is of another network
        or a box that does not contain this one.

    Examples
    --------
    >>> import torch
    >>> from blocklp.problems.verification import from_torch, network_bounds
    >>> net = from_torch(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1)), (2,))
    >>> bounds = network_bounds(net, -torch.ones(2), torch.ones(2))
    >>> bool((bounds.output.lower <= bounds.output.upper).all())
    True
    """
    check_network(network)
    if method not in STEPS:
        raise OptionError(f"method {method!r} is unknown; use one of {', '.join(map(repr, STEPS))}")
    lp_solver(solver)  # refuses unknown names
    if network.unit and method in (*ENGINE, "exact"):
        raise OptionError(f"method {method!r} bounds networks in real arithmetic alone; use 'slopes', 'crown' or 'interval'")
    if method == "exact" and len(network.activations) > len(network.relus):
        raise OptionError("method 'exact' bounds piecewise-linear networks alone; use 'slopes' for smooth activations")
    deadline = Deadline.of(time_limit)
    passes = STEPS[method] if steps is None else whole(steps, "steps")
    relaxation = known_relaxation(known, network)
    lower, upper = (numbers(detached(own), side) for own, side in ((lower, "lower"), (upper, "upper")))
    several = lower.dim() == len(network.input_shape) + 1
    for side, tensor in (("lower", lower), ("upper", upper)):
        if tuple(tensor.shape[several:]) != network.input_shape or tensor.shape != lower.shape or not tensor.numel():
            raise ShapeError(
                f"{side} has shape {tuple(tensor.shape)}; {network.name} takes inputs {network.input_shape}: give a box of that "
                "shape, or at least one box with a dimension of boxes in front"
            )
        if not bool(torch.isfinite(tensor).all()):
            raise ModelError(f"{side} holds NaN or infinite numbers; give a finite box")
    if bool((lower > upper).any()):
        where = tuple(int(i) for i in (lower > upper).nonzero()[0])
        raise ModelError(f"the box is empty: lower is above upper at input {where}")
    if several and method in (*ENGINE, "exact"):
        raise OptionError(f"method {method!r} takes one box at a time; call it for each, or use 'slopes' or 'crown'")
    began = time.perf_counter()
    low, high = ((t if several else t[None]).to(network.device) for t in (lower, upper))
    if relaxation is not None and not holds(relaxation, low, high, None):
        raise ModelError("known bounds are not those of a box that holds this one; compute them for one that does")
    tightener = Tightener(
        network.to(torch.float64, network.device),
        low,
        high,
        passes,
        gap,
        deadline,
        signs=signs or {},
        method=method,
        solver=solver,
        known={} if relaxation is None else relaxation.bounds,
    )
    layers: list[LayerBounds] = []
    tightener.run(lambda layer: layers.append(layer if several else layer.box(0)))
    if tightener.empty:
        raise ModelError("the signs contradict each other: no input has them all")
    seconds = time.perf_counter() - began
    return NetworkBounds(method, tuple(layers), tightener.relaxation(), tightener.signs, seconds)

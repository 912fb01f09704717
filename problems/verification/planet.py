r"""The Planet relaxation as a model of :mod:`blocklp`: the blocks of the thesis (4.1.4.12-15) for its methods.

Variables are the input and the pre-activations; each layer is a block :class:`~blocklp.oracles.relu.ReluAffine`, so that a
pre-activation is shared by the block that makes it and the one that uses it.  Smooth activations are variables, too, each in a block
:class:`~blocklp.oracles.smooth.CurveHull`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from scipy.sparse import csr_array, eye_array
from torch import Tensor

import blocklp as bl
from blocklp.oracles.relu import Kind, ReluAffine, ReluHull
from blocklp.oracles.smooth import hull
from blocklp.problems.verification.network import Network
from blocklp.problems.verification.operation_matrices import sparse_matrix
from blocklp.problems.verification.operations import Add, Affine, Input, Relu, SmoothActivation, activated, send
from blocklp.problems.verification.relaxation import Pair, Relaxation
from blocklp.results.state import State


@dataclass(frozen=True)
class Segment:
    """The affine map from activations (or the input) to one result, through convolutions, additions and the like."""

    network: Network
    node: int
    sources: tuple[int, ...]
    path: tuple[int, ...]

    @classmethod
    def of(cls, network: Network, node: int) -> Segment:
        """Go backwards from a result to the activations that it is an affine function of; the result of one is itself."""
        wanted, sources, path = {node}, [], []
        for at in range(node, -1, -1):
            if at not in wanted:
                continue
            if isinstance(network.ops[at], (Relu, SmoothActivation, Input)):
                sources.append(at)
            else:
                path.append(at)
                wanted.update(network.ops[at].inputs)
        return cls(network, node, tuple(reversed(sources)), tuple(reversed(path)))

    @property
    def terms(self) -> int:
        """Most roundings of one number: those of all operations on the way."""
        return sum(op.terms if isinstance(op, Affine) else 2 for op in (self.network.ops[at] for at in self.path))

    def _walk(self, results: dict[int, Any], apply: Callable[[Affine, Any], Any]) -> Any:
        """The result, from those of the sources, where ``apply`` does what an operation does."""
        for at in self.path:
            op = self.network.ops[at]
            first = results[op.inputs[0]]
            if isinstance(op, Add):
                results[at] = first + results[op.inputs[1]]
            else:
                assert isinstance(op, Affine)
                results[at] = apply(op, first)
        return results[self.node]

    def _shaped(self, x: Sequence[Tensor]) -> dict[int, Any]:
        return {s: t.reshape(-1, *self.network.ops[s].shape) for s, t in zip(self.sources, x, strict=True)}

    def __call__(self, x: Sequence[Tensor]) -> Tensor:
        """The result."""
        found: Tensor = self._walk(self._shaped(x), lambda op, value: op(value))
        return found.flatten(1)

    def magnitude(self, x: Sequence[Tensor]) -> Tensor:
        """The sum of magnitudes."""
        found: Tensor = self._walk(self._shaped(x), lambda op, value: op.absolute()(value))
        return found.flatten(1)

    def shift(self) -> Tensor:
        """The constant."""
        like = self.network
        zeros = [torch.zeros(1, *like.ops[s].shape, dtype=like.dtype, device=like.device) for s in self.sources]
        return self(zeros)[0]

    def adjoint(self, y: Tensor) -> list[Tensor]:
        """Back to the sources."""
        ops = self.network.ops
        pending = {self.node: y.reshape(-1, *ops[self.node].shape)}
        for at in reversed(self.path):
            op, value = ops[at], pending.pop(at)
            if isinstance(op, Add):
                send(pending, op.inputs[1], value)
            else:
                assert isinstance(op, Affine)
                value = op.adjoint(value)
            send(pending, op.inputs[0], value)
        return [pending[s].flatten(1) for s in self.sources]

    def matrix(self) -> csr_array:
        """The linear maps of the sources, beside each other."""
        sizes = [math.prod(self.network.ops[s].shape) for s in self.sources]
        whole = eye_array(sum(sizes), format="csr")
        ends = np.cumsum([0, *sizes]).tolist()
        parts = {s: csr_array(whole[begin:end]) for s, begin, end in zip(self.sources, ends[:-1], ends[1:], strict=True)}
        found: csr_array = self._walk(parts, lambda op, matrix: sparse_matrix(op) @ matrix)
        return found

    def to(self, dtype: torch.dtype, device: torch.device) -> Self:
        """Other precision."""
        return replace(self, network=self.network.to(dtype, device))

    def tensors(self) -> dict[str, Tensor]:
        """Weights and biases of the operations on the way, as ``"3.weight"``."""
        named = ((f"{at}.{part}", getattr(self.network.ops[at], part, None)) for at in self.path for part in ("weight", "bias"))
        return {name: tensor for name, tensor in named if tensor is not None}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        """Other weights."""
        ops = list(self.network.ops)
        for name, tensor in tensors.items():
            at, _, part = name.partition(".")
            changed: dict[str, Any] = {part: tensor}
            ops[int(at)] = replace(ops[int(at)], **changed)
        return replace(self, network=Network(tuple(ops), self.network.name))


@dataclass(frozen=True)
class Planet:
    """The LP ``min <cost, result of node>`` over a relaxation, for the engine.

    Attributes
    ----------
    model : Model
        Variables ``x`` (input), ``z<position>`` (results), ``a<position>`` (activations with several users); one instance
        a row of the cost.
    start : State
        The multipliers of a backward pass: the first bound is its value.
    """

    model: bl.Model
    start: State

    @classmethod
    def build(cls, relaxation: Relaxation, node: int, cost: Tensor, result: Pair, slopes: Mapping[int, Tensor]) -> Planet:
        """State the LP.

        Parameters
        ----------
        relaxation : Relaxation
            Float64, boxes of the input and of all pre-activations before ``node``.
        node : int
            Position of the result.
        cost : Tensor
            ``(batch, *shape)``.
        result : pair of Tensor
            Valid bounds of the result, ``(batch or 1, *shape)``.
        slopes : mapping
            Those of the multipliers to start from, ``(batch, *shape)`` by ReLU.
        """
        network, batch = relaxation.network, len(cost)
        ops, relus = network.ops, [at for at in network.ancestors(node) if isinstance(network.ops[at], (Relu, SmoothActivation))]
        made = {r: ops[r].inputs[0] for r in relus}  # the result that an activation is applied to
        segments = {t: Segment.of(network, t) for t in (*made.values(), node) if t}  # nothing makes the input
        shared = [r for r in relus if isinstance(ops[r], SmoothActivation) or sum(r in s.sources for s in segments.values()) > 1]
        boxes = {0: (relaxation.lower, relaxation.upper), node: result} | {made[r]: relaxation.bounds[r] for r in relus}
        flat = {at: (low.flatten(1).expand(batch, -1), high.flatten(1).expand(batch, -1)) for at, (low, high) in boxes.items()}
        model = bl.Model(batch=batch)
        results = {
            at: model.variable("x" if at == 0 else f"z{at}", low.shape[1], lower=low, upper=high) for at, (low, high) in flat.items()
        }
        activations, ends = {}, {}
        for r in shared:
            ends[r] = activated(ops[r], *flat[made[r]])
            activations[r] = model.variable(f"a{r}", len(ends[r][0][0]), lower=ends[r][0], upper=ends[r][1])
        trace = relaxation.backward(node, cost, slopes)
        # What each activation asks of its argument.  That of an input is left out: no block makes it, and so none pays for it.
        asked = {r: (trace.activation[r] * trace.slope[r]).flatten(1) * (made[r] > 0) for r in relus}
        rho = {node: cost.flatten(1)}
        for r in relus:
            rho[made[r]] = rho.get(made[r], 0) + asked[r]
        duals = {}
        for r in shared:
            op, pair = ops[r], flat[made[r]]
            block = hull(op.curve.name)(*pair) if isinstance(op, SmoothActivation) else ReluHull(*pair)
            model.add(block, scope=[results[made[r]], activations[r]], name=f"activation {r}")
            duals[f"activation {r}"] = torch.stack([-asked[r], trace.activation[r].flatten(1)], 2)
        for target, segment in segments.items():
            kinds: list[Kind] = []
            scope, lows, highs, shares = [], [], [], []
            for source, share in zip(segment.sources, segment.adjoint(rho[target]), strict=True):
                low, high = ends.get(source, flat[made.get(source, 0)])
                value = source == 0 or source in activations
                kinds.append("value" if value else "relu")
                scope.append(results[0] if source == 0 else activations[source] if value else results[made[source]])
                lows.append(low)
                highs.append(high)
                shares.append(torch.zeros_like(share) if source == 0 else -share if value else -asked[source])
            sizes = [low.shape[1] for low in lows]
            layer = ReluAffine(segment, kinds, sizes, torch.cat(lows, 1)[:, None], torch.cat(highs, 1)[:, None])
            name = f"layer {target}"
            model.add(layer, scope=[v.reshape(1, -1) for v in (*scope, results[target])], name=name)
            duals[name] = torch.cat([*shares, rho[target]], 1)[:, None]
        model.minimize((cost.flatten(1) * results[node]).sum())
        return cls(model, State(duals, torch.full((batch,), torch.nan, dtype=torch.float64)))

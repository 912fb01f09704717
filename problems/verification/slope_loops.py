"""Ascents over slopes by compiled loops, where a relaxation suits them.

They make the steps of :func:`blocklp.search.ascend`, several times as fast.  What they find is only used as multipliers, whose bounds
are evaluated by :class:`Relaxation` in double precision.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from blocklp.deadline import Deadline
from blocklp.kernels import compiled
from blocklp.problems.discrete.exact import rehearsed_loops
from blocklp.problems.verification.network import Network
from blocklp.problems.verification.operation_matrices import array_of, sparse_matrix, worth_forming
from blocklp.problems.verification.operations import Add, Affine, Input, Relu
from blocklp.problems.verification.relaxation import Relaxation
from blocklp.search.parameter_ascent import StepSchedule

KERNELS = "blocklp.problems.verification.ascent_kernels"

MOST_ENTRIES = 4_000_000
"""Entries of a matrix that is worked with: more do not stay in a cache."""

PER_ENTRY, PER_PRODUCT, PER_NEURON = 5e-11, 2.2e-11, 1e-8
"""Seconds of a pass of one instance: an entry of the matrix by loops; a multiplication and a neuron by tensor operations."""

SLICE = 0.2
"""Seconds between two looks at the deadline, about."""

Array = NDArray[Any]


@dataclass(frozen=True)
class SlopeLoops:
    """A network of ReLUs over one box as :func:`blocklp.problems.verification.ascent_kernels.climb` takes it.

    Neurons that are off in the whole box are left out.  Parameters are those of *free* neurons, in the order of the network.

    Attributes
    ----------
    matrix, across, neurons, box : tuple of ndarray
        As the loops take them.
    places : mapping
        Position of a ReLU to the numbers that the loops give its neurons, -1 for those that are left out.
    """

    matrix: tuple[Array, ...]
    across: tuple[Array, ...]
    neurons: tuple[Array, ...]
    box: tuple[Array, ...]
    places: Mapping[int, Array]

    @classmethod
    def of(cls, relaxation: Relaxation, node: int, free: Mapping[int, Tensor], scales: Mapping[int, float]) -> SlopeLoops | None:
        """Return the loops for ``min <cost, result of node>``; None where tensor operations suit the network better.

        Parameters
        ----------
        relaxation : Relaxation
            A batch of 1, with bounds of all activations before the node.
        node : int
            Position of the operation whose result is minimised.
        free : mapping
            Position of a ReLU to the numbers ``(k,)`` of its neurons with parameters; others are on or off in the whole box.
        scales : mapping
            Position of a ReLU to the scale of its multipliers of splits.
        """
        network = relaxation.network
        before = network.ancestors(node)
        ops = [network.ops[at] for at in before]
        relus = [at for at in before if isinstance(network.ops[at], Relu)]
        plain = relaxation.balls is None and all(isinstance(op, (Input, Relu, Add, Affine)) for op in ops)
        affine = [op for op in ops if isinstance(op, Affine)]
        if not plain or network.device.type != "cpu" or node in relus or not worth_forming(affine, relaxation.deadline):
            return None
        kept, number = {}, []
        for r in relus:
            on = relaxation.bounds[r][1].flatten() > 0
            parameter = torch.full(on.shape, -1)
            parameter[free[r]] = torch.arange(len(free[r])) + sum(len(free[q]) for q in relus if q < r)
            on[free[r]] = True
            kept[r] = on.numpy()
            number.append(parameter[on].numpy())
        whole, constant, noise = _rows(relaxation, before, kept)
        if whole.nnz > MOST_ENTRIES or whole.nnz * PER_ENTRY > seconds_of_pass(network, node):
            return None
        first, places = 0, {}
        for r in relus:
            places[r] = np.where(kept[r], first + np.cumsum(kept[r]) - 1, -1)
            first += int(kept[r].sum())
        matrix = (*_padded(whole), constant.astype(np.float32), noise.astype(np.float32))
        box = tuple(np.ascontiguousarray(array_of(end).ravel().astype(np.float32)) for end in (relaxation.lower, relaxation.upper))
        scale = np.concatenate([np.full(kept[r].sum(), scales[r], np.float32) for r in relus])
        empty = np.zeros(len(scale), np.float32)
        neurons = np.concatenate(number), empty, empty, scale
        starts, rows, entries = _padded(whole.T.tocsr())
        across = starts, rows + np.uint32(network.inputs), entries
        return cls(matrix, across, neurons, box, places).over(relaxation)

    def over(self, relaxation: Relaxation) -> SlopeLoops:
        """Return the loops for other bounds of neurons, within those that this was made for.

        Parameters
        ----------
        relaxation : Relaxation
            A batch of 1.
        """
        pairs = [[array_of(line).ravel()[self.places[r] >= 0] for line in relaxation.lines[r]] for r in self.places]
        slope, shift = (np.concatenate([pair[k] for pair in pairs]).astype(np.float32) for k in (0, 1))
        return replace(self, neurons=(self.neurons[0], slope, shift, self.neurons[3]))

    def ascend(
        self,
        cost: Tensor,
        signs: Tensor,
        slopes: Tensor,
        betas: Tensor,
        steps: int,
        enough: float,
        deadline: Deadline,
        unit: Tensor | None = None,
        target: tuple[int, Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Ascend from given slopes and multipliers.

        Parameters
        ----------
        cost : Tensor
            ``(k, outputs)``: of the result that is minimised.
        signs : Tensor
            ``(k, parameters)`` int8: signs of neurons that are split, 0 of others.
        slopes, betas : Tensor
            ``(k, parameters)``: slopes of these, and multipliers of those in their scale.
        steps : int
            Evaluations of an instance.
        enough : float
            Instances whose value is above this are done.
        deadline : Deadline
            Instances for which there is no time keep what they are given.
        unit : Tensor, optional
            ``(k, outputs)``: ``cost`` is a parameter too, of at least zero in these units, which may be zero.
        target : tuple, optional
            Position of a ReLU, numbers ``(k,)`` of its neurons, and ``(k,)`` what the argument of that neuron costs in each instance.

        Returns
        -------
        value, slopes, betas, cost : Tensor
            ``(k,)``, ``(k, parameters)`` twice and ``(k, outputs)``, float32: the best.
        """
        count, plan = len(signs), StepSchedule.of(steps)
        aim, much = np.full(count, -1), np.zeros(count, np.float32)
        if target is not None:
            relu, numbers, weights = target
            aim, much = self.places[relu][numbers.numpy()], weights.float().numpy()
        split = signs != 0
        start = torch.where(split, betas, slopes).float().contiguous()
        given = cost.float().contiguous()
        instances = (
            given,
            (torch.ones_like(given) if unit is None else unit.float().contiguous()),
            aim,
            much,
            signs.contiguous(),
            start,
        )
        schedule = np.array(plan.sizes, np.float32), np.float32(1 - plan.memory), np.float32(plan.fading), unit is not None
        kernels = compiled.loops(KERNELS)
        assert kernels is not None
        found = torch.full((count,), -torch.inf), start.clone(), given.clone()
        most = max(1, int(SLICE / self.seconds(steps)))
        for at in range(0, count, most):
            part = slice(at, at + most)
            if not deadline.affords(self.seconds(steps) * len(start[part])):
                break
            own, result = tuple(t[part] for t in instances), tuple(t[part] for t in found)
            kernels.climb(len(start[part]), self.matrix, self.across, self.neurons, self.box, own, schedule, enough, result)
        value, best, given = found
        # Whatever the loops say: slopes are from 0 to 1, and multipliers of splits have their signs.
        slopes = torch.where(split, (signs > 0).float(), best.nan_to_num(0.0).clamp(0, 1))
        betas = (best.nan_to_num(0.0, 0.0, 0.0) * signs).clamp(min=0) * signs
        return value, slopes, betas, given.clamp(min=0) if unit is not None else given

    def seconds(self, steps: int) -> float:
        """About how long an instance takes."""
        return (2 * steps - 1) * (1 + len(self.matrix[2])) * PER_ENTRY


def seconds_of_pass(network: Network, node: int) -> float:
    """About how long a pass of one instance takes by tensor operations.

    Parameters
    ----------
    network, node : Network, int
        What is passed through, up to where.
    """
    ops = [network.ops[at] for at in network.ancestors(node)]
    return sum(op.products * PER_PRODUCT + math.prod(op.shape) * PER_NEURON for op in ops)


@dataclass
class Effort:
    """What has been spent on ascents by tensor operations: loops serve once that is as long as it takes to make them ready.

    It is estimated, not measured, so that a search repeats itself.

    Attributes
    ----------
    seconds : float
        About what was spent.
    ready : bool or None
        Whether loops serve; None if that is open.
    """

    seconds: float = 0.0
    ready: bool | None = None

    def spend(self, seconds: float, deadline: Deadline) -> bool:
        """Whether loops serve, after so many seconds more without them; by the deadline they must have been of use."""
        self.seconds += seconds
        if self.ready is None and self.seconds >= compiled.LOADING:
            kernels = None if os.environ.get(compiled.VARIABLE) == "torch" else compiled.wanted(KERNELS)
            if kernels is None:
                self.ready = False
            # Searches mark their loops as those of double precision, whatever they compute in.
            elif compiled.cached(kernels, torch.float64) or (
                self.seconds >= kernels.SECONDS and deadline.affords(2 * kernels.SECONDS)
            ):
                self.ready = rehearsed_loops(KERNELS, deadline) is not None
        return bool(self.ready)

    def settle(self, deadline: Deadline) -> None:
        """Decide now, for a search that is handed on to other processes."""
        self.ready = self.spend(math.inf, deadline)


def _rows(relaxation: Relaxation, before: list[int], kept: Mapping[int, Array]) -> tuple[sp.csr_array, Array, Array]:
    """Arguments of the neurons that are left, and the last result, as functions of inputs and of these neurons.

    Returns their matrix, their constants and what rounding in the arithmetic of the network may take for each unit of their cost.
    """
    network, noise = relaxation.network, relaxation.noise
    width, first = network.inputs + sum(int(own.sum()) for own in kept.values()), network.inputs
    forms: dict[int, tuple[sp.csr_array, Array, Array]] = {}
    rows = []
    for at in before:
        op = network.ops[at]
        if isinstance(op, Input):
            forms[at] = _picked(np.ones(network.inputs, dtype=bool), 0, width)
        elif isinstance(op, Relu):
            rows.append([part[kept[at]] for part in forms[op.inputs[0]]])
            forms[at] = _picked(kept[at], first, width)
            first += int(kept[at].sum())
        elif isinstance(op, Add):
            parts = zip(*(forms[i] for i in op.inputs), strict=True)
            matrix, constant, error = (sum(part[1:], start=part[0]) for part in parts)
            forms[at] = matrix, constant, error + _own(noise, at)
        else:
            assert isinstance(op, Affine)
            weight = sparse_matrix(op)
            matrix, constant, error = forms[op.inputs[0]]
            shift = array_of(op.shift().expand(1, *op.shape)).ravel()
            forms[at] = sp.csr_array(weight @ matrix), weight @ constant + shift, abs(weight) @ error + _own(noise, at)
    rows.append(list(forms[before[-1]]))
    matrix = sp.csr_array(sp.vstack([row[0] for row in rows], format="csr"))
    return matrix, *(np.concatenate([row[k] for row in rows]) for k in (1, 2))


def _picked(kept: Array, first: int, width: int) -> tuple[sp.csr_array, Array, Array]:
    """Those elements that are left, in columns from a first one on; others are zero."""
    starts, numbers = np.concatenate([[0], np.cumsum(kept)]), first + np.arange(kept.sum())
    none = np.zeros(len(kept))
    return sp.csr_array((np.ones(len(numbers)), numbers, starts), (len(kept), width)), none, none


def _own(noise: Mapping[int, Tensor], at: int) -> Any:
    return array_of(noise[at]) if at in noise else 0.0


def _padded(matrix: sp.csr_array) -> tuple[Array, Array, Array]:
    """Starts of rows, columns and entries; rows are filled up with zeros to a multiple of what loops add in one round."""
    from blocklp.kernels.lane_sums import STEP  # of numba, which may be missing

    counts = np.diff(matrix.indptr)
    wide = -(-counts // STEP) * STEP
    starts = np.concatenate([[0], np.cumsum(wide)])
    places = np.arange(matrix.nnz) + np.repeat(starts[:-1] - matrix.indptr[:-1], counts)
    columns = np.repeat(matrix.indices[np.minimum(matrix.indptr[:-1], max(matrix.nnz - 1, 0))], wide) if matrix.nnz else np.zeros(0)
    entries = np.zeros(starts[-1], np.float32)
    columns, entries[places] = columns.astype(np.uint32), matrix.data.astype(np.float32)
    columns[places] = matrix.indices
    return starts.astype(np.int64), columns, entries

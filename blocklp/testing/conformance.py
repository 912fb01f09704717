"""Conformance tests that any block type can be put through.

>>> class TestMyBlock(BlockTypeConformance):
...     def block_type(self):
...         return MyBlock(3)

in a file that pytest collects runs everything that can be derived from the type: its optional methods are
tested where it has them.  Pytest is not needed to import this module.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor

from blocklp.blocks.capabilities import vertices_of
from blocklp.blocks.contract import BlockType
from blocklp.blocks.refusals import refuse, size
from blocklp.errors import OracleError
from blocklp.testing import device_probes, integer_probes, lp_probes, probes


class BlockTypeConformance:
    """Base of the test class of a block type; subclasses say how to build it and, if they can, what it means.

    Attributes
    ----------
    blocks, batch : int
        Numbers of blocks and instances; they must fit the block data.
    dim : int or None
        Number of variables, for types that do not state it.
    trials : int
        Random costs of every test.  Slow comparisons (LPs, exact arithmetic) use about a quarter of them.
    device : str or torch.device or None
        A device on which the type is tested beside the CPU, by its name, such as cuda:0; None for none.
    """

    blocks: int = 3
    batch: int = 2
    dim: int | None = None
    trials: int = 20
    device: str | torch.device | None = None

    def block_type(self) -> BlockType:
        """Build the type, with its block data."""
        raise NotImplementedError(f"{type(self).__name__} must build the type under test in block_type()")

    def vertices(self) -> np.ndarray | None:
        """All vertices ``(batch or 1, blocks or 1, vertices, dim)``, None if they are not known."""
        table = vertices_of(self.block_type())
        return None if table is None else table.numpy()[None, None]

    def costs(self, trials: int, seed: int = 0) -> list[Tensor]:
        """Random costs ``(batch, blocks, dim)``: normal ones, sparse ones, and small integers, for ties."""
        dim = self.dim if self.dim is not None else self.block_type().dim
        assert dim is not None, "set dim, since the type does not state it"
        draw = torch.Generator().manual_seed(seed)
        made = []
        for trial in range(trials):
            cost = torch.randn(self.batch, self.blocks, dim, generator=draw, dtype=torch.float64)
            if trial % 3 == 1:
                cost = (1.5 * cost).round()
            elif trial % 3 == 2:
                cost = cost * torch.randint(0, 2, cost.shape, generator=draw)
            made.append(cost)
        return made

    def hard_costs(self, trials: int, dtype: torch.dtype) -> list[Tensor]:
        """Costs that provoke rounding: magnitudes far apart, near cancellation, near ties."""
        draw, made = torch.Generator().manual_seed(1), []
        reach = 40 if dtype == torch.float64 else 15
        for trial, cost in enumerate(self.costs(trials, seed=2)):
            hard = cost * 2.0 ** torch.randint(-reach, reach + 1, cost.shape, generator=draw)
            if trial % 2:
                partner = torch.randint(0, cost.shape[-1], cost.shape, generator=draw)
                sign = 1.0 - 2.0 * torch.randint(0, 2, cost.shape, generator=draw)
                noise = torch.finfo(dtype).eps * torch.randn(cost.shape, generator=draw)
                hard = hard.gather(-1, partner) * sign * (1 + noise)
            made.append(hard.to(dtype))
        return made

    @property
    def everyone(self) -> list[tuple[int, int]]:
        """All pairs (instance, block)."""
        return list(itertools.product(range(self.batch), range(self.blocks)))

    @property
    def few(self) -> int:
        """Number of costs for slow comparisons."""
        return max(3, self.trials // 4)

    def extents(self, kind: BlockType) -> tuple[Tensor, Tensor]:
        """Least and largest value of every coordinate: two tensors ``(batch, blocks, dim)``."""
        dim = self.costs(1)[0].shape[-1]
        unit = torch.eye(dim, dtype=torch.float64).expand(self.batch, self.blocks, -1, -1)
        least = torch.stack([kind.min_oracle(unit[..., d, :])[1] for d in range(dim)], -1)
        return least, -torch.stack([kind.min_oracle(-unit[..., d, :])[1] for d in range(dim)], -1)

    def test_answers(self) -> None:
        """Shapes, dtypes, values, feasibility, purity."""
        kind = self.block_type()
        for cost in self.costs(self.trials):
            probes.answer(kind, cost)

    def test_value_alone(self) -> None:
        """``min_value`` agrees with ``min_oracle``."""
        kind = self.block_type()
        for cost in self.costs(self.trials):
            probes.value_alone(kind, cost)

    def test_prox(self) -> None:
        """Proximal points are optimal, for steps of all sizes and centres inside and outside."""
        kind, costs = self.block_type(), self.costs(self.trials + 1, seed=1)
        for trial, (cost, centre) in enumerate(itertools.pairwise(costs)):
            step = torch.full((self.batch, 1, 1), (0.01, 0.3, 1.0, 20.0)[trial % 4], dtype=torch.float64)
            probes.proximal(kind, cost, centre, step)

    def test_complete(self) -> None:
        """Completed points are feasible and cheap."""
        kind = self.block_type()
        for first, second in itertools.pairwise(self.costs(self.trials + 1, seed=2)):
            probes.completion(kind, first, second)

    def test_min_marginals(self) -> None:
        """Min-marginals agree with the oracle and may be subtracted."""
        kind = self.block_type()
        for cost in self.costs(self.trials):
            probes.marginals(kind, cost)

    def test_vertex_table(self) -> None:
        """Values are those of the best vertex in the table."""
        kind = self.block_type()
        for cost in self.costs(self.trials):
            probes.listed(kind, cost)

    def test_soft_min(self) -> None:
        """Soft minima agree with the oracle and have their points as gradients."""
        kind = self.block_type()
        for first, second in itertools.pairwise(self.costs(self.trials + 1, seed=3)):
            probes.soft_minimum(kind, first, second)

    def test_zero_cost(self) -> None:
        """All points tie, and the value is zero."""
        probes.answer(self.block_type(), torch.zeros_like(self.costs(1)[0]))

    def test_homogeneity(self) -> None:
        """Scaled costs scale the value."""
        kind = self.block_type()
        for cost in self.costs(self.trials):
            probes.homogeneity(kind, cost)

    def test_concavity(self) -> None:
        """The value is concave and points are supergradients."""
        kind, costs = self.block_type(), self.costs(self.trials + 1)
        for first, second in itertools.pairwise(costs):
            probes.concavity(kind, first, second)

    def test_batch_equals_singles(self) -> None:
        """Blocks do not influence each other."""
        kind = self.block_type()
        for cost in self.costs(self.trials):
            probes.singles(kind, cost, self.everyone)

    def test_order_of_blocks(self) -> None:
        """Permuted blocks give permuted answers."""
        kind = self.block_type()
        for seed, cost in enumerate(self.costs(self.trials)):
            draw = torch.Generator().manual_seed(seed)
            probes.order(kind, cost, torch.randperm(self.blocks, generator=draw))

    def test_selected_instances(self) -> None:
        """Instances picked from a batch keep their answers."""
        kind, cost = self.block_type(), self.costs(1)[0]
        rows = torch.arange(self.batch - 1, -1, -1)
        if not torch.equal(kind.select(rows).min_oracle(cost[rows])[0], kind.min_oracle(cost)[0][rows]):
            remedy = "list what belongs to them in block_data"
            raise OracleError(f"{kind.name}: select() loses the data of its instances; {remedy}")

    def test_strided_costs(self) -> None:
        """Storage order does not matter."""
        kind = self.block_type()
        for cost in self.costs(self.trials):
            probes.layout(kind, cost)

    def test_precision(self) -> None:
        """Values in float32 are near those in float64."""
        kind = self.block_type()
        for cost in self.costs(self.trials):
            probes.precision(kind, cost)

    def test_device(self) -> None:
        """Answers on the device are those of the CPU."""
        if self.device is None:
            return
        kind, costs = self.block_type(), self.costs(self.few + 1, seed=4)
        for cost, other in itertools.pairwise(costs):
            device_probes.elsewhere(kind, cost, other, torch.device(self.device))

    def test_optimality(self) -> None:
        """Values are those of LPs over the constraints, or of integer programs."""
        kind = self.block_type()
        for cost in self.costs(self.few):
            lp_probes.optimality(kind, cost, self.everyone)
            integer_probes.integer_optimality(kind, cost, self.everyone)

    def test_vertices(self) -> None:
        """Values are those of the best listed vertex."""
        vertices, kind = self.vertices(), self.block_type()
        if vertices is None:
            return
        for cost in self.costs(4 * self.trials):
            point, value = kind.min_oracle(cost)
            best = (torch.as_tensor(vertices, dtype=torch.float64) @ cost[..., None])[..., 0].amin(-1)
            bad = (best - value).abs() > 1e-8 * (1e-3 + size(cost, point))
            remedy = "correct min_oracle() or vertices()"
            refuse(kind, bad, f"has another value than its best vertex; {remedy}")

    def test_value_error(self) -> None:
        """Stated rounding errors cover the true ones."""
        kind = self.block_type()
        for dtype in (torch.float64, torch.float32):
            for cost in self.hard_costs(self.few, dtype):
                lp_probes.rounding_error(kind, cost, self.everyone)

    def test_restrict(self) -> None:
        """Fixings and tighter bounds give the optimum over the intersection."""
        kind, draw = self.block_type(), torch.Generator().manual_seed(3)
        low, high = self.extents(kind)
        for trial, cost in enumerate(self.costs(2 * self.few)):
            # 0 and 1 leave a bound alone, 2 and 3 fix to an end, 4 and 5 cut between.
            choice = torch.randint(0, 4 if trial % 2 else 6, cost.shape, generator=draw)
            part = low + (high - low) * torch.rand(cost.shape, generator=draw, dtype=torch.float64)
            lower = torch.where(choice == 3, high, torch.where(choice == 4, part, low))
            upper = torch.where(choice == 2, low, torch.where(choice == 5, part, high))
            lp_probes.restriction(kind, cost, lower, upper, self.everyone)

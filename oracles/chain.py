"""Blocks of a Markov random field along a chain, minimised by dynamic programming."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from blocklp.blocks.contract import BlockType, Constraints
from blocklp.blocks.finite import struck_out
from blocklp.errors import ModelError
from blocklp.oracles.simplex import against_others, fixings_only, masked_choices, merge_masks, positive
from blocklp.rounding import rounding

LARGEST_SYSTEM = 4_000_000
"""Entries of a dense system of constraints beyond which none is stated."""


class Chain(BlockType):
    r"""Labels of a few variables in a row, and the pairs of neighbours.

    The scope is one part a variable, its one-hot vector, then one part a pair of neighbours, the one-hot
    vector of their labels (those of the second fastest).  Vertices are the joint labels; the polytope is the
    local one, since a chain is a tree.  Minimum: dynamic programming (A. J. Viterbi 1967), the first labels
    from the end on ties.

    Parameters
    ----------
    sizes : sequence of int
        Numbers of labels of the variables, two at least.

    Raises
    ------
    ModelError
        If there are fewer than two variables or a size is not positive.
    """

    block_data = ("excluded",)
    #: ``(batch or 1, blocks, dim)`` bool, or None: mask of the labels and pairs that violate bounds.
    excluded: Tensor | None = None

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(positive(size, "Chain size") for size in sizes)
        if len(self.sizes) < 2:
            raise ModelError(f"Chain has the sizes {self.sizes}; give two variables at least")
        pairs = [a * b for a, b in zip(self.sizes, self.sizes[1:], strict=False)]
        self.lengths = [*self.sizes, *pairs]
        self.dim: int = sum(self.lengths)

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best labels in each block."""
        nodes, pairs = self._parts(self._masked(cost, struck_out(cost.dtype)))
        message, choices = nodes[0], []
        for node, pair in zip(nodes[1:], pairs, strict=True):
            best, choice = (message[..., :, None] + pair).min(-2)
            message = best + node
            choices.append(choice)
        value, last = message.min(-1)
        labels = [last]
        for choice in reversed(choices):
            labels.append(choice.gather(-1, labels[-1][..., None])[..., 0])
        return self._point(labels[::-1]).to(cost.dtype), value

    def min_value(self, cost: Tensor) -> Tensor:
        """Least cost of each block, by the forward recursion of :meth:`min_oracle`."""
        nodes, pairs = self._parts(self._masked(cost, struck_out(cost.dtype)))
        return self._forward(nodes, pairs)[-1].amin(-1)

    def min_marginals(self, cost: Tensor) -> Tensor:
        """Least cost with each label of a variable or pair, less the least cost without it."""
        nodes, pairs = self._parts(self._masked(cost, torch.inf))
        before = self._forward(nodes, pairs)
        # The backward recursion is the forward one of the reversed chain.
        after = self._forward(nodes[::-1], [pair.transpose(-1, -2) for pair in pairs[::-1]])[::-1]
        marginals = []
        for a, b, node in zip(before, after, nodes, strict=True):
            marginals.append(a + (b - node).where(node < torch.inf, torch.inf))
        for a, pair, b in zip(before, pairs, after[1:], strict=False):
            marginals.append((a[..., :, None] + pair + b[..., None, :]).flatten(-2))
        return torch.cat([against_others(m) for m in marginals], -1)

    def overlap(self, shared: Tensor) -> int:
        """At most two coordinates of each part, since two one-hot vectors differ in two."""
        return max(1, sum(min(2, int(part.sum())) for part in torch.split(shared, self.lengths)))

    def value_error(self, cost: Tensor) -> Tensor:
        """Rounding error of two additions a pair, on the costliest chain."""
        nodes, pairs = self._parts(-cost.abs())
        return rounding(2 * len(pairs), cost.dtype) * -self._forward(nodes, pairs)[-1].amin(-1)

    def constraints(self) -> Constraints | None:
        """The local polytope: normalisation, marginalisation to both ends of each pair, and signs.

        ``None`` where the dense matrix would have more than :data:`LARGEST_SYSTEM` entries.
        """
        signs = sum(self.lengths[len(self.sizes) :])
        count = 1 + signs + sum(a + b for a, b in zip(self.sizes, self.sizes[1:], strict=False))
        if count * self.dim > LARGEST_SYSTEM:
            return None
        matrix, row = torch.zeros(count, self.dim, dtype=torch.float64), 1
        matrix[0, : self.sizes[0]] = 1
        starts = torch.tensor([0, *self.lengths]).cumsum(0).tolist()
        for k in range(len(self.sizes) - 1):
            (n, m), pair = self.sizes[k : k + 2], starts[len(self.sizes) + k]
            places = torch.arange(pair, pair + n * m).reshape(n, m)
            for end, lines in ((starts[k], places), (starts[k + 1], places.T)):
                for label, line in enumerate(lines):
                    matrix[row, end + label] = -1
                    matrix[row, line] = 1
                    row += 1
        matrix[row:, self.dim - signs :] = torch.eye(signs)
        lower = torch.zeros(count, dtype=torch.float64)
        upper = lower.clone()
        lower[0] = upper[0] = 1
        upper[row:] = torch.inf
        return Constraints.rows(matrix, lower, upper)

    def restrict(self, lower: Tensor, upper: Tensor) -> Chain | None:
        """Mask labels and pairs by 0/1 fixings; None for bounds that are no fixings."""
        if not fixings_only(lower, upper):
            return None
        sides = zip(torch.split(lower, self.lengths, -1), torch.split(upper, self.lengths, -1), strict=True)
        mask = torch.cat([masked_choices(lo, up)[0] for lo, up in sides], -1)
        return self if not bool(mask.any()) else self.with_data(excluded=merge_masks(self.excluded, mask))

    def _masked(self, cost: Tensor, value: float) -> Tensor:
        return cost if self.excluded is None else cost.masked_fill(self.excluded, value)

    def _parts(self, cost: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Costs of labels and tables of pairs."""
        parts = torch.split(cost, self.lengths, -1)
        count = len(self.sizes)
        pairs = enumerate(parts[count:])
        return list(parts[:count]), [p.reshape(*p.shape[:-1], *self.sizes[k : k + 2]) for k, p in pairs]

    def _forward(self, nodes: list[Tensor], pairs: list[Tensor]) -> list[Tensor]:
        """Least costs of the chain up to each label of each variable, included."""
        messages = [nodes[0]]
        for node, pair in zip(nodes[1:], pairs, strict=True):
            messages.append((messages[-1][..., :, None] + pair).amin(-2) + node)
        return messages

    def _point(self, labels: list[Tensor]) -> Tensor:
        """One-hot vectors of labels and their pairs."""
        sizes = self.sizes
        parts = [one_hot(label, size) for label, size in zip(labels, sizes, strict=True)]
        for k in range(len(sizes) - 1):
            parts.append(one_hot(labels[k] * sizes[k + 1] + labels[k + 1], sizes[k] * sizes[k + 1]))
        return torch.cat(parts, -1)

    def __repr__(self) -> str:
        return f"{self.name}({self.sizes})"

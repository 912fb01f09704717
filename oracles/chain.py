"""Blocks of a Markov random field along a chain or an automaton's path, minimised by dynamic programming."""

from __future__ import annotations

import math
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
    r"""Labels of a few variables in a row, and the pairs of neighbours, with what is read between them.

    The scope is one part a variable, its one-hot vector; then one part for each variable that is read between
    two neighbours; then one part a link, the one-hot vector of the labels of both neighbours (those of the
    second fastest), or of the first, of what is read, and of the second.  Where neighbours are states, and
    symbols are read between them, that is an automaton.  Vertices are the joint labels; the polytope is the
    local one, since a chain is a tree.  Minimum: dynamic programming (A. J. Viterbi 1967), the first labels
    from the end on ties.

    Parameters
    ----------
    sizes : sequence of int
        Numbers of labels of the variables in the row, two at least.
    read : sequence of int, optional
        For each pair of neighbours the number of labels of the variable that is read between them, 0 where
        there is none.  By default there is none anywhere.

    Raises
    ------
    ModelError
        If there are fewer than two variables, a size is not positive, or ``read`` has not one number for each
        pair of neighbours.

    Examples
    --------
    Words of two letters in which no 1 follows a 1: the state is the letter before.

    >>> import torch
    >>> from blocklp.oracles import Chain
    >>> kind = Chain([2, 2, 2], read=[2, 2])
    >>> table = torch.full((2, 2, 2), 100.0)
    >>> table[0, 0, 0] = table[0, 1, 1] = table[1, 0, 0] = 0
    >>> start, letters = torch.tensor([0.0, 100.0]), torch.tensor([-1.0, -3.0, -1.0, -3.0])
    >>> cost = torch.cat([start, torch.zeros(4), letters, table.flatten(), table.flatten()])
    >>> point, value = kind.min_oracle(cost[None, None])
    >>> value.item(), point[0, 0, 6:10].tolist()
    (-4.0, [1.0, 0.0, 0.0, 1.0])
    """

    block_data = ("excluded",)
    #: ``(batch or 1, blocks, dim)`` bool, or None: mask of the labels and pairs that violate bounds.
    excluded: Tensor | None = None

    def __init__(self, sizes: Sequence[int], read: Sequence[int] = ()) -> None:
        self.sizes = tuple(positive(size, "Chain size") for size in sizes)
        if len(self.sizes) < 2:
            raise ModelError(f"Chain has the sizes {self.sizes}; give two variables at least")
        self.read = tuple(positive(size, "Chain size") if size else 0 for size in read) or (0,) * (
            len(self.sizes) - 1
        )
        if len(self.read) != len(self.sizes) - 1:
            raise ModelError(
                f"Chain has {len(self.sizes)} variables in a row and reads {self.read}; give one a pair"
            )
        #: Shapes of the tables of links, with one label where nothing is read.
        self.shapes = [
            (a, max(r, 1), b) for a, r, b in zip(self.sizes, self.read, self.sizes[1:], strict=False)
        ]
        self.lengths = [*self.sizes, *filter(None, self.read), *map(math.prod, self.shapes)]
        self.dim: int = sum(self.lengths)

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best labels in each block."""
        nodes, links = self._parts(self._masked(cost, struck_out(cost.dtype)))
        message, choices, symbols = nodes[0], [], []
        for node, link in zip(nodes[1:], links, strict=True):
            pair, symbol = link.min(-2)
            best, choice = (message[..., :, None] + pair).min(-2)
            message = best + node
            choices.append(choice)
            symbols.append(symbol)
        value, last = message.min(-1)
        labels, taken = [last], []
        for choice, symbol in zip(reversed(choices), reversed(symbols), strict=True):
            after = labels[-1][..., None]
            before = choice.gather(-1, after)
            taken.append(
                symbol.gather(-2, before[..., None].expand(*before.shape, symbol.shape[-1])).gather(
                    -1, after[..., None]
                )[..., 0, 0]
            )
            labels.append(before[..., 0])
        return self._point(labels[::-1], taken[::-1]).to(cost.dtype), value

    def min_value(self, cost: Tensor) -> Tensor:
        """Least cost of each block, by the forward recursion of :meth:`min_oracle`."""
        nodes, links = self._parts(self._masked(cost, struck_out(cost.dtype)))
        return self._forward(nodes, [link.amin(-2) for link in links])[-1].amin(-1)

    def min_marginals(self, cost: Tensor) -> Tensor:
        """Least cost with each label of a variable or link, less the least cost without it."""
        nodes, links = self._parts(self._masked(cost, torch.inf))
        pairs = [link.amin(-2) for link in links]
        before = self._forward(nodes, pairs)
        # The backward recursion is the forward one of the reversed chain.
        after = self._forward(nodes[::-1], [pair.transpose(-1, -2) for pair in pairs[::-1]])[::-1]
        in_row, joint = [], []
        for a, b, node in zip(before, after, nodes, strict=True):
            in_row.append(a + (b - node).where(node < torch.inf, torch.inf))
        for a, link, b in zip(before, links, after[1:], strict=False):
            joint.append(a[..., :, None, None] + link + b[..., None, None, :])
        between = [table.amin((-3, -1)) for table, size in zip(joint, self.read, strict=True) if size]
        return torch.cat(
            [against_others(m) for m in (*in_row, *between, *(table.flatten(-3) for table in joint))], -1
        )

    def overlap(self, shared: Tensor) -> int:
        """At most two coordinates of each part, since two one-hot vectors differ in two."""
        return max(1, sum(min(2, int(part.sum())) for part in torch.split(shared, self.lengths)))

    def value_error(self, cost: Tensor) -> Tensor:
        """Rounding error of two additions a link, three where something is read, on the costliest chain."""
        nodes, links = self._parts(-cost.abs())
        additions = 2 * len(links) + sum(size > 0 for size in self.read)
        return rounding(additions, cost.dtype) * -self._forward(nodes, [link.amin(-2) for link in links])[
            -1
        ].amin(-1)

    def constraints(self) -> Constraints | None:
        """The local polytope: normalisation, marginalisation to the variables of each link, and signs.

        ``None`` where the dense matrix would have more than :data:`LARGEST_SYSTEM` entries.
        """
        signs = sum(map(math.prod, self.shapes))
        count = 1 + signs + sum(a + r + b for (a, _, b), r in zip(self.shapes, self.read, strict=True))
        if count * self.dim > LARGEST_SYSTEM:
            return None
        matrix, row = torch.zeros(count, self.dim, dtype=torch.float64), 1
        matrix[0, : self.sizes[0]] = 1
        starts = iter(torch.tensor([0, *self.lengths]).cumsum(0).tolist())
        ends = [next(starts) for _ in self.sizes]
        between = [next(starts) if size else None for size in self.read]
        for k, (shape, first) in enumerate(zip(self.shapes, starts, strict=False)):
            places = torch.arange(first, first + math.prod(shape)).reshape(shape)
            for axis, own in enumerate((ends[k], between[k], ends[k + 1])):
                if own is None:
                    continue
                for label, line in enumerate(places.movedim(axis, 0).flatten(1)):
                    matrix[row, own + label] = -1
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
        """Costs of labels in the row, and ``(.., before, read, after)`` of links with what is read."""
        parts = iter(torch.split(cost, self.lengths, -1))
        nodes = [next(parts) for _ in self.sizes]
        between = [next(parts)[..., None, :, None] if size else None for size in self.read]
        tables = [
            part.reshape(*part.shape[:-1], *shape) for part, shape in zip(parts, self.shapes, strict=True)
        ]
        return nodes, [
            table if own is None else table + own for table, own in zip(tables, between, strict=True)
        ]

    def _forward(self, nodes: list[Tensor], pairs: list[Tensor]) -> list[Tensor]:
        """Least costs of the chain up to each label of each variable, included."""
        messages = [nodes[0]]
        for node, pair in zip(nodes[1:], pairs, strict=True):
            messages.append((messages[-1][..., :, None] + pair).amin(-2) + node)
        return messages

    def _point(self, labels: list[Tensor], taken: list[Tensor]) -> Tensor:
        """One-hot vectors of labels in the row, of what is read, and of links."""
        parts = [one_hot(label, size) for label, size in zip(labels, self.sizes, strict=True)]
        parts += [one_hot(label, size) for label, size in zip(taken, self.read, strict=True) if size]
        for a, symbol, b, shape in zip(labels, taken, labels[1:], self.shapes, strict=False):
            parts.append(one_hot((a * shape[1] + symbol) * shape[2] + b, math.prod(shape)))
        return torch.cat(parts, -1)

    def __repr__(self) -> str:
        return f"{self.name}({self.sizes}, {self.read})" if any(self.read) else f"{self.name}({self.sizes})"

r"""Block types made of many small parts: every part takes steps of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from blocklp.blocks.contract import BlockType

PROBES, POWER_STEPS = 32, 20


class FactoredBlock(BlockType):
    r"""A block :math:`x = A v + b` of independent parts :math:`v_j`, each in the hull of a few vertices.

    A layer of a network is such a block: its neurons are the parts. One step for a whole layer moves
    thousands of neurons by one fraction; the default method moves every part by a step of its own, against a
    diagonal bound of :math:`A^\top A`. (With tens of parts it is no faster than one step a block.)

    ``A`` and ``b`` are shared by all blocks and instances; the vertices are not. Subclasses implement
    :meth:`vertices`, :meth:`apply`, :meth:`adjoint` and :meth:`shift`; the min-oracle follows.
    """

    def vertices(self) -> Tensor:
        """Vertices of the parts: ``(batch or 1, blocks or 1, vertices, size, parts)``; some may repeat."""
        raise NotImplementedError(f"{self.name} must implement vertices()")

    def apply(self, parts: Tensor) -> Tensor:
        """Map ``(batch, blocks, size, parts)`` to ``A v + b``, ``(batch, blocks, dim)``."""
        raise NotImplementedError(f"{self.name} must implement apply(parts)")

    def adjoint(self, cost: Tensor) -> Tensor:
        r"""Map a cost ``(batch, blocks, dim)`` to :math:`A^\top c`, ``(batch, blocks, size, parts)``."""
        raise NotImplementedError(f"{self.name} must implement adjoint(cost)")

    def shift(self) -> Tensor:
        """Return b, ``(dim,)``."""
        raise NotImplementedError(f"{self.name} must implement shift()")

    def min_oracle(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Take the best vertex of every part, the first one on ties."""
        vertices, pulled = self.vertices().to(cost), self.adjoint(cost)
        best, which = (vertices * pulled[:, :, None]).sum(3).min(2)
        where = which[:, :, None, None].expand(-1, -1, 1, pulled.shape[2], -1)
        parts = vertices.expand(*pulled.shape[:2], -1, -1, -1).gather(2, where)[:, :, 0]
        return self.apply(parts), best.sum(2) + cost @ self.shift().to(cost)

    def curvature(self, shared: Tensor) -> Tensor:
        r"""A diagonal ``D`` with :math:`|C A v|^2 \le \langle v, D v \rangle`.

        C keeps the coordinates that are ``shared`` with other blocks, ``(dim,)``.
        Norms of the columns are estimated by random signs (Hutchinson) and scaled by the largest eigenvalue
        that power iteration finds, so D holds up to that estimate; too small a D would cost speed, never
        validity.

        Returns
        -------
        Tensor
            ``(size, parts)``.
        """
        offset, draw = self.shift().to(shared), torch.Generator().manual_seed(0)

        def normal(v: Tensor) -> Tensor:
            return self.adjoint((self.apply(v[None, None]) - offset) * shared**2)[0, 0]

        def largest(diagonal: Tensor, mask: Tensor) -> Tensor:
            root = torch.where((diagonal > 0) & (mask > 0), diagonal, torch.inf).rsqrt()
            v = torch.rand(diagonal.shape, generator=draw).to(diagonal) + 0.5
            for _ in range(POWER_STEPS):
                length = torch.linalg.vector_norm(v).clamp(min=torch.finfo(v.dtype).tiny)
                v = root * normal(root * (v / length))
            norm: Tensor = torch.linalg.vector_norm(v)
            return norm

        signs = torch.randint(0, 2, (PROBES, 1, len(shared)), generator=draw).to(shared) * 2 - 1
        columns = self.adjoint(signs * shared).square().mean((0, 1))
        # Coordinates of the parts one by one, then all: their images are often orthogonal, and of different
        # lengths.
        for k in range(len(columns)):
            mask = torch.zeros_like(columns)
            mask[k] = 1
            columns[k] *= largest(columns, mask)
        return columns * largest(columns, torch.ones_like(columns))

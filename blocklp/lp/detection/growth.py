"""Blocks grown row by row and column by column, as long as the white area grows."""

from __future__ import annotations

import numpy as np

from blocklp.lp.detection.pattern import Mask, Pattern


def grown(pattern: Pattern, master: Mask, linking: Mask) -> tuple[Mask, Mask]:
    r"""Put rows of the master and linking columns back into blocks where that leaves more white area.

    Rows, f of them, that all touch the same blocks of :math:`r_k` rows and :math:`c_k` columns make one block
    of these, which takes :math:`(f + \sum r_k) \sum c_k - \sum r_k c_k` of the matrix, and leave the border,
    which gives f rows of it back.  Those that touch the fewest blocks come first.  Columns likewise.

    Parameters
    ----------
    pattern : Pattern
        Of the matrix.
    master, linking : ndarray
        ``(rows,)`` and ``(columns,)`` bool: what lies outside of the blocks to begin with, which are the
        connected components of the rest.

    Returns
    -------
    master, linking : ndarray
        As given: what is left outside.
    """
    m, n = pattern.shape
    # Rows without a column of blocks are in the border, columns that no row of a block has are not.
    master = master | (np.bincount(pattern.rows[~linking[pattern.columns]], minlength=m) == 0)
    linking = linking & (np.bincount(pattern.columns[~master[pattern.rows]], minlength=n) > 0)
    label = pattern.components(master, linking)
    parts = int(label.max(initial=-1)) + 1
    high = np.bincount(label[:m][~master], minlength=parts).tolist()
    wide = np.bincount(label[m:][~linking], minlength=parts).tolist()
    forest = _Forest(list(range(parts)), high, wide)
    own, outside = label.tolist(), np.concatenate([master, linking]).tolist()
    others = [[m + j for j in row] for row in pattern.by_row] + pattern.by_column
    sizes = np.concatenate([pattern.lengths, pattern.heights])
    order = [k for k in np.argsort(sizes, kind="stable").tolist() if outside[k]]
    left = {row: [k for k in order if (k < m) == row] for row in (True, False)}
    border = {True: int(master.sum()), False: int(linking.sum())}
    # Rows and columns in turn: which blocks a row touches hangs on the columns that lie in blocks.
    row, idle = True, 0
    while idle < 2:
        alike = dict[frozenset[int], list[int]]()
        for k in left[row]:
            touched = frozenset(forest.root(own[other]) for other in others[k] if not outside[other])
            alike.setdefault(touched, []).append(k)
        gain, before = (n if row else m) - border[not row], border[row]
        for touched, some in sorted(alike.items(), key=lambda group: (len(group[0]), -len(group[1]))):
            if touched and forest.join([own[k] for k in some], touched, row, gain):
                border[row] -= len(some)
                for k in some:
                    outside[k] = False
        left[row] = [k for k in left[row] if outside[k]]
        idle = idle + 1 if border[row] == before else 0
        row = not row
    found = np.array(outside, dtype=bool)
    return found[:m], found[m:]


class _Forest:
    """Sets of rows and columns, which can be joined: one tree each (Tarjan 1975).

    Parameters
    ----------
    parent, high, wide : list of int
        Of each node: its parent, and of roots the numbers of rows and columns.
    """

    def __init__(self, parent: list[int], high: list[int], wide: list[int]) -> None:
        self.parent, self.high, self.wide = parent, high, wide

    def root(self, node: int) -> int:
        """The root of a node's tree; the way to it gets shorter."""
        parent = self.parent
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    def join(self, own: list[int], touched: frozenset[int], row: bool, gain: int) -> bool:
        """Join trees by rows or columns, if that takes less area than the border loses.

        Parameters
        ----------
        own : list of int
            Nodes of the rows or columns, a tree each.
        touched : frozenset of int
            Nodes of the trees to join.
        row : bool
            Whether they are rows.
        gain : int
            Area that the border loses by each.
        """
        roots = {self.root(node) for node in touched}
        high, wide, before = len(own) * row, len(own) * (not row), 0
        for root in roots:
            r, c = self.high[root], self.wide[root]
            high, wide, before = high + r, wide + c, before + r * c
        if high * wide - before >= gain * len(own):
            return False
        for node in (*roots, *own):
            self.parent[node] = own[0]
        self.high[own[0]], self.wide[own[0]] = high, wide
        return True

"""One LP over the processes of a group: every process holds a part of the blocks (docs/distributed.md).

:meth:`blocklp.Solver.solve` with ``mesh=`` is the way in; :class:`Mesh` has its settings.
"""

from blocklp.distributed.hashing import solution_hash
from blocklp.distributed.processes import Mesh

__all__ = ["Mesh", "solution_hash"]

"""What compiled loops over whole instances read at every call, as arrays.

To convert a tensor takes as long as a pass over some hundred blocks: these are converted once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from blocklp.decomposition.problem import Decomposition


class Arrays(NamedTuple):
    """What loops read at every call, of a problem and of its tables.

    Attributes
    ----------
    problem : Decomposition
        The problem, in some precision.
    layout : tuple
        Places of copies, first copy of the group, its blocks, and those that are no padding.
    variables : tuple of array
        Costs, and numbers of copies.
    costs : tuple of array
        Costs, and the constant.
    box : tuple of array
        Bounds, and the grid or zeros.
    masks : tuple of array
        ``met``, ``private`` and ``narrow`` of :class:`blocklp.kernels.instances.InstanceLoops`.
    others : tuple of array
        ``largest`` and ``rest`` of these.
    size : array
        ``size`` of these.
    data : tuple of array
        Block data.
    """

    problem: Decomposition
    layout: tuple[Any, int, int, Any]
    variables: tuple[Any, Any]
    costs: tuple[Any, Any]
    box: tuple[Any, Any, Any]
    masks: tuple[Any, Any, Any]
    others: tuple[Any, Any]
    size: Any
    data: tuple[Any, ...]

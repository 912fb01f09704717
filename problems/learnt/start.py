"""Warm starts by a network that was trained on other instances of a family."""

from __future__ import annotations

from dataclasses import replace

import torch

from blocklp.errors import BlocklpError, FormatError
from blocklp.methods import Admm, Method, as_method
from blocklp.options import of_type, whole
from blocklp.problems.learnt.passes import CopyGraph, LearntPasses
from blocklp.results import saved
from blocklp.results.state import Saddle, State
from blocklp.results.warm_start import take
from blocklp.solver import Solver

WARMTH = 0.1
"""Temperature of the point, in units of the size of the first multipliers."""
KIND = "learnt start"
"""The word by which files of learnt starts are known."""


class LearntStart:
    """Multipliers and proximal weights to start a solve from.

    A start makes :attr:`rounds` learnt rounds over all blocks (:class:`LearntPasses`) and returns the best multipliers that it has
    met, so that its bound is never below the first of a solve without one.  Whatever the weights of the network are, bounds are
    valid: the solver evaluates and certifies the multipliers as any others.  Their last digits may depend on what is beside an
    instance in its batch, and so may passes of a solve.

    Parameters
    ----------
    network : LearntPasses
        The network.
    rounds : int
        Rounds that it was trained for.
    weight : float
        Proximal weight times the size of the first multipliers; NaN leaves it to the method.
    family : str
        Name of the instances that it was trained on.

    Examples
    --------
    >>> import blocklp as bl
    >>> from blocklp.problems.learnt import FAMILIES, LearntStart, train_start
    >>> start = train_start(FAMILIES["ising"].training, steps=2, rounds=3, instances=2)
    >>> start.save("ising.safetensors"), LearntStart.load("ising.safetensors").passes  # doctest: +SKIP
    (None, 4)
    >>> solver = FAMILIES["ising"].training(99).compile()
    >>> solution = solver.solve(warm_start=start(solver))
    """

    def __init__(self, network: LearntPasses, rounds: int, weight: float = torch.nan, family: str = "") -> None:
        of_type(network, LearntPasses, "network", "a LearntPasses")
        self.network, self.rounds, self.weight, self.family = network, whole(rounds, "rounds"), float(weight), family

    def __repr__(self) -> str:
        weights = sum(p.numel() for p in self.network.parameters())
        return f"LearntStart({self.family or 'a family of your own'}, {self.rounds} rounds, {weights} weights)"

    @property
    def passes(self) -> int:
        """Oracle passes that a start takes: one a round, and one for the point, or to evaluate the last multipliers."""
        return self.rounds + 1

    @torch.no_grad()
    def __call__(self, solver: Solver, method: str | Method = "auto") -> State:
        """Return a start for the present costs of a solver.

        Parameters
        ----------
        solver : Solver
            Of any model whose blocks have min-marginals.
        method : str or Method
            The method that the start is for, as in :meth:`blocklp.Solver.solve`: one for ADMM has a point too, the mean over
            blocks of their points that are nearly as good as the best (:meth:`HasSoftMin.soft_min`).

        Returns
        -------
        State
            For ``warm_start=``.

        Raises
        ------
        OptionError
            If no type of blocks that share variables has min-marginals.
        """
        of_type(solver, Solver, "solver", "a compiled solver, as model.compile() returns")
        problem = solver.decomposition()
        graph = CopyGraph(problem)
        best, value = graph.first, problem.value(graph.first)
        for duals in self.network.to(best.device).steps(graph, self.rounds):
            found = problem.value(duals)
            better = found > value  # not where it is NaN
            best, value = torch.where(better[:, None], duals, best), torch.where(better, found, value)
        names = {r.name: r.count for r in solver.models[0].rows}
        state = take(problem, best, self.weight / graph.size, names, None)
        if isinstance(as_method(method, problem), Admm):
            state = replace(state, saddle=Saddle(graph.point(best, WARMTH * graph.size), {}, torch.full_like(state.eta, torch.nan)))
        return state.turned(solver.sense)

    def save(self, path: saved.File) -> None:
        """Write a file that :meth:`load` reads; it holds numbers and names only.

        Parameters
        ----------
        path : str or path
            Where to; a file of this name is replaced.
        """
        shape = {"memory": self.network.memory, "hidden": self.network.hidden}
        header = {"family": self.family, "rounds": self.rounds, "shape": shape}
        parts = {name.replace(".", "_"): own for name, own in self.network.state_dict().items()}
        saved.write(path, KIND, header, parts | {"weight": torch.tensor(self.weight)})

    @staticmethod
    def load(path: saved.File) -> LearntStart:
        """Read a file that :meth:`save` wrote.

        Raises
        ------
        FormatError, OSError
            As :func:`blocklp.results.saved.read` does.
        """
        header, tensors = saved.read(path, (KIND,))
        try:
            weight, shape = float(tensors.pop("weight")), header["shape"]
            network = LearntPasses(whole(shape["memory"], "memory"), whole(shape["hidden"], "hidden"))
            network.load_state_dict({name.replace("_", ".", 1): own for name, own in tensors.items()})
            return LearntStart(network, header["rounds"], weight, str(header["family"]))
        except (KeyError, TypeError, ValueError, RuntimeError, BlocklpError) as error:
            raise FormatError(f"{path} is damaged: {error!r}; write it again by save()") from error

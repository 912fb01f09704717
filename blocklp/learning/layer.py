"""Minimisers of models as layers of networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from blocklp.errors import ModelError, NonFiniteError, OptionError, ShapeError
from blocklp.language.coefficients import all_finite
from blocklp.language.expression import Parameter, View
from blocklp.learning.cost_map import CostMap
from blocklp.learning.modes import Mode, ProximalTerm, mode_of
from blocklp.learning.structure import Exactness, Structure
from blocklp.learning.untraced import untraced
from blocklp.model import Model
from blocklp.options import named, of_type, real, shown, whole
from blocklp.solver import Solver


class Layer(nn.Module):
    r"""The minimiser of a model as a function of predicted costs, with gradients.

    .. math:: x(c) \in \arg\min_{x \in X} \langle c, x \rangle

    (the maximiser, where the model maximises). All costs of a batch are solved in one call.

    Parameters
    ----------
    model : Model or Solver
        A model of one instance, or a compiled solver of one, whose objective holds ``cost``.
    cost : Parameter
        The parameter whose values are predicted.  It needs no value of its own; other parameters keep
        theirs.
    variables : View, optional
        What the layer returns: a variable or entries of one; by default what the parameter multiplies.
    mode : str
        How gradients pass: ``"prox"`` (default), ``"lpgd"``, ``"perturbed"`` or ``"identity"``.
    tol : float
        Relative gap of minimisers, where neither one call of an oracle nor the simplex method is exact and
        the engine runs.
    passes : int
        Most passes of the engine, or of the alternating directions that find nearest points for ``prox``.
    **settings
        Of the mode, see :mod:`blocklp.learning.modes`: ``rho`` of ``prox``; ``tau``, ``rho`` and ``envelope``
        of ``lpgd``; ``samples``, ``sigma``, ``antithetic`` and ``generator`` of ``perturbed``;
        ``projection`` of ``identity``.

    Attributes
    ----------
    exactness : Exactness
        How exact the last solve was; one that misses its tolerance warns.

    Raises
    ------
    OptionError
        If an option is out of range, the objective does not hold the parameter, or the variables are those of
        another model.
    ModelError
        If the model has more than one instance, or no objective.

    Examples
    --------
    >>> import torch
    >>> import blocklp as bl
    >>> from blocklp.oracles import Simplex
    >>> m = bl.Model()
    >>> x = m.variable("x", 3, lower=0, upper=1)
    >>> price = m.parameter("price", 3)
    >>> choice = m.add(Simplex(3), scope=[x[[0]], x[[1]], x[[2]]])
    >>> m.minimize((price * x).sum())
    >>> layer = bl.Layer(m, cost=price, variables=x, mode="prox", rho=1.0)
    >>> c = torch.tensor([[0.25, 0.5, 2.0]], requires_grad=True)
    >>> y = layer(c)
    >>> y.tolist()
    [[0.625, 0.375, 0.0]]
    >>> y[0, 0].backward()
    >>> c.grad.tolist()
    [[-0.5, 0.5, 0.0]]
    """

    def __init__(
        self,
        model: Model | Solver,
        *,
        cost: Parameter,
        variables: View | None = None,
        mode: str = "prox",
        tol: float = 1e-6,
        passes: int = 5000,
        **settings: Any,
    ) -> None:
        super().__init__()
        need = "a model of one instance, or a compiled solver of one"
        of_type(model, Model | Solver, "model", need, ModelError)
        solver = model if isinstance(model, Solver) else model.compile()
        if len(solver.models) != 1 or solver.batch != 1:
            what = f"the model has {solver.batch} instances"
            raise ModelError(f"{what}; a layer solves one for any number of costs: build it with batch=1")
        self.mode: Mode = mode_of(mode, settings)
        self.map = CostMap.of(solver, cost, variables)
        real(tol, "tol")
        self.structure = Structure(solver, self.map, tol, whole(passes, "passes"), 1e-10)

    @property
    def exactness(self) -> Exactness:
        """How exact the last solve was."""
        return self.structure.exactness

    @untraced
    @torch.no_grad()
    def exact(self, costs: Tensor, index: Tensor | None = None) -> Tensor:
        """Minimisers without what the mode adds, and without gradients: labels and decisions.

        Parameters
        ----------
        costs, index
            As in :meth:`forward`, and so are what is returned and errors.
        """
        values = self.values(costs, "costs")
        check_finite(values, self.map)
        self.structure.refreshed()
        x = self.structure.minimise(self.structure.costs(values), self.rows(index, len(values)), "exact")
        return self.map.taken(x).to(costs.device, costs.dtype).view(len(values), *self.map.out_shape)

    def extra_repr(self) -> str:
        """The mode, and how points are found."""
        of = f"{list(self.map.shape)} costs {self.map.parameter.name!r}, {self.map.sense}"
        ways = f"minimisers by {self.structure.argmin!r}, {self.structure.proximal!r}"
        return f"{of}, {self.mode}, {ways}"

    def __deepcopy__(self, memo: dict[int, Any]) -> Layer:
        """A layer of the same model and mode, which keeps nothing of the data set yet."""
        return _restored(self.structure.solver, *self._recipe())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the model, which is compiled again."""
        solver = self.structure.solver
        return _recompiled, (solver.models[0], str(solver.device), *self._recipe())

    def _recipe(self) -> tuple[Any, ...]:
        """What makes a layer of a solver, but for the settings of the mode, which it has."""
        view = View(self.structure.solver.models[0], "variables", self.map.out.view(self.map.out_shape).cpu())
        return self.map.parameter, view, self.mode, self.structure.tol, self.structure.passes

    def forget(self) -> None:
        """Drop what was kept of rows of the data set: the next solves start cold."""
        self.structure.memories.clear()

    @untraced
    def forward(self, costs: Tensor, index: Tensor | None = None, *, centre: Tensor | None = None) -> Tensor:
        """Minimise all costs of a batch.

        Parameters
        ----------
        costs : Tensor
            ``(batch, *shape of the parameter)``, or one instance without the batch; any floating-point dtype,
            any device.
        index : Tensor, optional
            ``(batch,)`` integers: rows of the data set.  Their last solve is the start of this one.
        centre : Tensor, optional
            ``(batch, *shape of the variables)`` or ``(*shape of the variables)``: the centre of the proximal
            term of mode ``prox``, zero by default; it gets gradients, too.

        Returns
        -------
        Tensor
            ``(batch, *shape of the variables)``, in the dtype and on the device of the costs.

        Raises
        ------
        ShapeError, NonFiniteError
            If costs or the centre have another shape, or the costs hold NaN or infinities.
        OptionError
            If rows are no integers from 0 on, or a mode without a proximal term is given a centre.
        """
        of_type(costs, Tensor, "costs", f"a tensor (batch, *{self.map.shape})", ShapeError)
        alone = costs.dim() == len(self.map.shape)
        values = self.values(costs[None] if alone else costs, "costs")
        self.structure.refreshed()
        rows = self.rows(index, len(values))
        middle = self._centre(centre, values)
        x: Tensor = _Minimiser.apply(values, middle, Call(self.structure, self.mode, rows))  # type: ignore[no-untyped-call]
        x = x.to(costs.device, costs.dtype).view(len(values), *self.map.out_shape)
        return x[0] if alone else x

    def values(self, given: Tensor, what: str) -> Tensor:
        """Values of the parameter as ``(batch, entries)`` float64 where the model is, with gradients.

        Raises
        ------
        ShapeError
            If they have another shape, or are no real numbers.
        """
        of_type(given, Tensor, what, f"a tensor (batch, *{self.map.shape})", ShapeError)
        if not given.is_floating_point():
            raise ShapeError(f"{what} are {given.dtype}; give floating-point numbers")
        return self.map.rows(given, what).to(self.structure.solver.device, torch.float64)

    def labels(self, given: Tensor, what: str) -> Tensor:
        """Points ``(batch, *shape of the variables)`` as ``(batch, outputs)`` float64 where the model is.

        Raises
        ------
        ShapeError
            If they have another shape.
        """
        of_type(given, Tensor, what, f"a tensor (batch, *{self.map.out_shape})", ShapeError)
        return self.map.points(given, what).to(self.structure.solver.device, torch.float64)

    def rows(self, index: Tensor | None, batch: int) -> Tensor | None:
        """Rows of the data set as int64 on the CPU.

        Raises
        ------
        OptionError
            If they are no integers from 0 on, one for each instance.
        """
        if index is None:
            return None
        rows = torch.as_tensor(index)
        whole_ = not (rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool)
        if not whole_ or rows.shape != (batch,) or bool((rows < 0).any()):
            need = f"give ({batch},) integers from 0 on, the rows of the data set"
            raise OptionError(f"index is {shown(index)}; {need}")
        return rows.long().cpu()

    def _centre(self, centre: Tensor | None, values: Tensor) -> Tensor:
        """The centre as ``(batch, outputs)``, or an empty tensor for zero."""
        if centre is None:
            return values.new_zeros(len(values), 0)
        if not isinstance(self.mode, ProximalTerm):
            raise OptionError("centre is for mode 'prox'; leave it out")
        of_type(centre, Tensor, "centre", "a tensor", ShapeError)
        given = (
            centre if centre.dim() > len(self.map.out_shape) else centre.expand(len(values), *centre.shape)
        )
        if len(given) != len(values):
            raise ShapeError(f"centre has {len(given)} instances, costs {len(values)}; they must agree")
        return self.labels(given, "centre")


def _restored(solver: Solver, cost: Parameter, variables: View, mode: Mode, tol: float, passes: int) -> Layer:
    """A layer with a mode that there is."""
    layer = Layer(solver, cost=cost, variables=variables, tol=tol, passes=passes)
    layer.mode = mode
    return layer


def _recompiled(model: Model, device: str, *recipe: Any) -> Layer:
    """A layer of a model that is compiled for a device."""
    return _restored(model.compile(device=device), *recipe)


class Call:
    """One forward call, for its backward one.

    Parameters
    ----------
    structure : Structure
        The model.
    mode : Mode
        How gradients pass.
    rows : Tensor or None
        Rows of the data set.

    Attributes
    ----------
    record : object
        What the mode left for the backward call.
    folded : Call or None
        The call of the whole batch that ``torch.func.vmap`` made of this one.
    """

    def __init__(self, structure: Structure, mode: Mode, rows: Tensor | None) -> None:
        self.structure, self.mode, self.rows = structure, mode, rows
        self.record: Any = None
        self.folded: Call | None = None

    def forward(self, values: Tensor, centre: Tensor) -> Tensor:
        """The variables asked for: ``(batch, entries), (batch, outputs or 0) -> (batch, outputs)``."""
        check_finite(values, self.structure.map)
        map = self.structure.map
        middle = map.placed(centre) if centre.shape[1] else values.new_zeros(1, map.size)
        x, self.record = self.mode.forward(self.structure, values, middle, self.rows)
        return map.taken(x)

    def backward(self, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gradients in the values and in the centre, from that in the variables asked for."""
        map = self.structure.map
        values, centre = self.mode.backward(self.structure, self.record, map.placed(gradient))
        return values, None if centre is None else map.taken(centre)


def check_finite(values: Tensor, map: CostMap) -> None:
    """Refuse costs that are NaN or infinite.

    Raises
    ------
    NonFiniteError
        If there is one, which is named.
    """
    if all_finite(values):
        return
    i, j = (~torch.isfinite(values)).nonzero()[0].tolist()
    where = torch.unravel_index(torch.tensor(j), map.shape) if map.shape else ()
    name = named(map.parameter.name, where)
    raise NonFiniteError(f"cost {name} of instance {i} is {float(values[i, j])}; every cost must be finite")


class _Minimiser(torch.autograd.Function):
    """The variables asked for, as a function of values of the parameter and of the centre."""

    @staticmethod
    def forward(values: Tensor, centre: Tensor, call: Call) -> Tensor:
        return call.forward(values, centre)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Call], output: Tensor) -> None:
        ctx.call, ctx.centred = inputs[2], inputs[1].shape[1] > 0
        ctx.save_for_backward(inputs[0], inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        values, centre = _Gradient.apply(gradient, *ctx.saved_tensors, ctx.call)  # type: ignore[no-untyped-call]
        return values, centre if ctx.centred else None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, values: Tensor, centre: Tensor, call: Call) -> tuple[Tensor, int]:
        size = info.batch_size
        values, centre = (_leading(t, d, size) for t, d in zip((values, centre), in_dims[:2], strict=True))
        call.folded = Call(call.structure, call.mode, None)
        x = _Minimiser.apply(values.flatten(0, 1), centre.flatten(0, 1), call.folded)  # type: ignore[no-untyped-call]
        return x.unflatten(0, (size, -1)), 0


class _Gradient(torch.autograd.Function):
    """The linear map of the backward call, which torch.func maps over gradients, over calls, or both.

    It depends on the inputs of the forward call, so that these are mapped wherever that call was.
    """

    @staticmethod
    def forward(gradient: Tensor, values: Tensor, centre: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        along_values, along_centre = call.backward(gradient)
        return along_values, torch.zeros_like(centre) if along_centre is None else along_centre

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, ...]:
        raise ModelError("layers have no second derivatives; differentiate once")

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, gradient: Tensor, values: Tensor, centre: Tensor, call: Call
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        size = info.batch_size
        if in_dims[1] is None and in_dims[2] is None:  # one call, many gradients
            several = gradient.movedim(in_dims[0], 0)
            each = [_Gradient.apply(own, values, centre, call) for own in several]  # type: ignore[no-untyped-call]
            along = tuple(torch.stack(parts) for parts in zip(*each, strict=True))
        else:
            given = zip((gradient, values, centre), in_dims[:3], strict=True)
            parts = (_leading(own, dim, size).flatten(0, 1) for own, dim in given)
            along = _Gradient.apply(*parts, call.folded)  # type: ignore[no-untyped-call]
            along = tuple(own.unflatten(0, (size, -1)) for own in along)
        return (along[0], along[1]), (0, 0)


def _leading(values: Tensor, dim: int | None, size: int) -> Tensor:
    """Values with the mapped dimension first."""
    return values.expand(size, *values.shape) if dim is None else values.movedim(dim, 0)

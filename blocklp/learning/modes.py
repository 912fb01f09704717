r"""How gradients pass through a minimiser: one class for each mode of a layer.

A mode has a forward and a backward map in float64. Costs are those of the parameter, ``(batch, entries)``;
points are ``(batch, variables)``. What a forward call leaves for the backward one is its record.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from blocklp.errors import OptionError
from blocklp.options import flag, of_type, real, shown, whole

ENVELOPES = "lower", "upper", "average"
PROJECTIONS = "none", "norm", "standard"


class SolvableModel(Protocol):
    """The model as modes see it (:class:`blocklp.learning.structure.Structure`)."""

    def costs(self, values: Tensor) -> Tensor:
        """Costs of the minimisation at values of the parameter."""

    def adjoint(self, gradient: Tensor) -> Tensor:
        """From gradients in these costs to gradients in the values."""

    def minimise(self, cost: Tensor, rows: Tensor | None, use: str) -> Tensor:
        """Minimisers of costs.

        Parameters
        ----------
        cost : Tensor
            ``(batch, variables)`` float64.
        rows : Tensor or None
            ``(batch,)`` int64: places in the data set, by which warm starts are kept; None for no warm start.
        use : str
            Name of the warm start, since the answers to different questions differ.

        Returns
        -------
        Tensor
            ``(batch, variables)`` float64.
        """

    def nearest(self, target: Tensor, rows: Tensor | None, use: str) -> Any:
        """Nearest points to targets, with their faces.

        Parameters
        ----------
        target : Tensor
            ``(batch, variables)`` float64.
        rows, use
            As in :meth:`minimise`.

        Returns
        -------
        ProximalAnswer
            Points and faces (:class:`blocklp.learning.proximal_points.ProximalAnswer`).
        """


class Mode(Protocol):
    """One mode, with its settings."""

    def forward(
        self, model: SolvableModel, values: Tensor, centre: Tensor, rows: Tensor | None
    ) -> tuple[Tensor, Any]:
        """Points, and the record for :meth:`backward`.

        Parameters
        ----------
        model : SolvableModel
            The model.
        values, centre : Tensor
            Values of the parameter ``(batch, entries)``, and the centre of a proximal term
            ``(batch, variables)``, both float64.
        rows : Tensor or None
            ``(batch,)`` int64: places in the data set, by which warm starts are kept; None for no warm start.

        Returns
        -------
        x : Tensor
            ``(batch, variables)`` float64.
        record : object
            For :meth:`backward`.
        """

    def backward(self, model: SolvableModel, record: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gradients in the values and in the centre, from that in the points.

        Parameters
        ----------
        model : SolvableModel
            The model.
        record : object
            Of :meth:`forward`.
        gradient : Tensor
            ``(batch, variables)`` float64: in the points.

        Returns
        -------
        Tensor
            ``(batch, entries)``: in the values.
        Tensor or None
            ``(batch, variables)``: in the centre; None where it has none.
        """


@dataclass(frozen=True)
class ProximalTerm:
    r"""The minimiser with a proximal term, whose gradient is exact.

    .. math:: x(c) = \arg\min_{x \in X} \langle c, x \rangle + \tfrac{\rho}{2} |x - x_0|^2, \qquad
              dx = P_T \, (dx_0 - dc / \rho)

    with the projector onto the directions T within the face of x (:mod:`blocklp.learning.faces`).

    Attributes
    ----------
    rho : float
        Weight of the term, positive.
    """

    rho: float = 1.0
    name: ClassVar[str] = "prox"

    def __post_init__(self) -> None:
        """Refuse what is no weight."""
        real(self.rho, "rho")

    def forward(
        self, model: SolvableModel, values: Tensor, centre: Tensor, rows: Tensor | None
    ) -> tuple[Tensor, Any]:
        """The nearest point to the centre less the costs over the weight.

        Parameters
        ----------
        model, values, centre, rows
            As in :meth:`Mode.forward`.
        """
        found = model.nearest(centre - model.costs(values) / self.rho, rows, self.name)
        return found.x, found.faces

    def backward(self, model: SolvableModel, record: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        """The gradient along the face.

        Parameters
        ----------
        model, record, gradient
            As in :meth:`Mode.backward`.
        """
        along = record.along(gradient)
        return model.adjoint(-along / self.rho), along


@dataclass(frozen=True)
class Lpgd:
    r"""Lagrangian proximal gradient descent (Paulus, Martius and Musil, ICML 2024), by one more solve.

    With the gradient g of the loss at the minimiser :math:`x^*`, the lower envelope has the gradient

    .. math:: \frac{1}{\tau} (x_\tau - x^*), \qquad
              x_\tau = \arg\min_{x \in X} \langle c + \tau g, x \rangle + \tfrac{\rho}{2} |x - x^*|^2 ,

    the upper one takes :math:`-\tau` for :math:`\tau`, and the average one the mean of both.  With
    :math:`\rho = 0` it is the blackbox method of Vlastelica et al. (ICLR 2020), to the last digit.  With
    :math:`\rho > 0` it becomes :math:`-g / \rho` where X has room for :math:`x^* - (c + \tau g) / \rho` and
    :math:`\tau \to \infty`: the identity method of Sahoo et al. (ICLR 2023) for :math:`\rho = 1`.

    Attributes
    ----------
    tau : float
        Length of the perturbation, positive.
    rho : float
        Weight of the proximal term, not negative.
    envelope : str
        ``"lower"``, ``"upper"`` or ``"average"``.
    """

    tau: float = 1.0
    rho: float = 0.0
    envelope: str = "lower"
    name: ClassVar[str] = "lpgd"

    def __post_init__(self) -> None:
        """Refuse settings that are none."""
        real(self.tau, "tau")
        real(self.rho, "rho", positive=False)
        if self.envelope not in ENVELOPES:
            raise OptionError(
                f"envelope is {shown(self.envelope)}; give one of {', '.join(map(repr, ENVELOPES))}"
            )

    def forward(
        self, model: SolvableModel, values: Tensor, centre: Tensor, rows: Tensor | None
    ) -> tuple[Tensor, Any]:
        """The minimiser.

        Parameters
        ----------
        model, values, centre, rows
            As in :meth:`Mode.forward`.
        """
        cost = model.costs(values)
        x = model.minimise(cost, rows, self.name)
        return x, (cost, x, rows)

    def backward(self, model: SolvableModel, record: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        """Differences to minimisers of perturbed costs, which start from those of the last epoch.

        Parameters
        ----------
        model, record, gradient
            As in :meth:`Mode.backward`.
        """
        cost, x, rows = record
        total = torch.zeros_like(cost)
        sides = {"lower": (1.0,), "upper": (-1.0,), "average": (1.0, -1.0)}[self.envelope]
        for side in sides:
            moved, use = cost + side * self.tau * gradient, f"{self.name} {side:g}"
            if self.rho > 0:
                other = model.nearest(x - moved / self.rho, rows, use).x
            else:
                other = model.minimise(moved, rows, use)
            total += side * (other - x)
        return model.adjoint(total / (self.tau * len(sides))), None


@dataclass(frozen=True)
class Perturbed:
    r"""The mean minimiser under Gaussian noise (Berthet et al., NeurIPS 2020), by n samples in one call.

    .. math:: x_\sigma(c) = E \, x^*(c + \sigma Z), \qquad
              \frac{\partial x_\sigma}{\partial c} = \frac{1}{\sigma} E \, x^*(c + \sigma Z) Z^\top

    Both are estimated without bias.  Antithetic samples come in pairs Z and -Z, which takes the constant part
    of the minimisers out of the estimate of the Jacobian.

    Attributes
    ----------
    samples : int
        n, even where they are antithetic.
    sigma : float
        Standard deviation of the noise, positive.
    antithetic : bool
        Whether samples come in pairs.
    generator : torch.Generator or None
        Of the noise, on the CPU; torch's own where None.
    """

    samples: int = 8
    sigma: float = 1.0
    antithetic: bool = True
    generator: torch.Generator | None = None
    name: ClassVar[str] = "perturbed"

    def __post_init__(self) -> None:
        """Refuse settings that are none."""
        whole(self.samples, "samples")
        real(self.sigma, "sigma")
        flag(self.antithetic, "antithetic")
        of_type(self.generator, torch.Generator | None, "generator", "a torch.Generator, or None")
        if self.antithetic and self.samples % 2:
            need = "antithetic samples come in pairs: give an even number, or antithetic=False"
            raise OptionError(f"samples is {self.samples}; {need}")

    def noise(self, values: Tensor) -> Tensor:
        """Standard Gaussian samples ``(samples, batch, entries)``."""
        half = self.samples // 2 if self.antithetic else self.samples
        shape = half, *values.shape
        drawn = torch.randn(shape, generator=self.generator, dtype=torch.float64).to(values.device)
        return torch.cat([drawn, -drawn]) if self.antithetic else drawn

    def forward(
        self, model: SolvableModel, values: Tensor, centre: Tensor, rows: Tensor | None
    ) -> tuple[Tensor, Any]:
        """The mean of the samples' minimisers, all of them found in one call.

        Parameters
        ----------
        model, values, centre, rows
            As in :meth:`Mode.forward`.
        """
        noise = self.noise(values)
        moved = model.costs((values + self.sigma * noise).flatten(0, 1))
        each = None
        if rows is not None:
            each = (rows * self.samples + torch.arange(self.samples)[:, None]).flatten()
        x = model.minimise(moved, each, self.name).view(self.samples, len(values), moved.shape[1])
        return x.mean(0), (noise, x)

    def backward(self, model: SolvableModel, record: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        """The estimate of the Jacobian, transposed, times the gradient.

        Parameters
        ----------
        model, record, gradient
            As in :meth:`Mode.backward`.
        """
        noise, x = record
        weight = (x * gradient).sum(-1, keepdim=True)
        return (weight * noise).mean(0) / self.sigma, None


@dataclass(frozen=True)
class Identity:
    r"""The minimiser, with minus the identity in the place of its Jacobian (Sahoo et al., ICLR 2023).

    Higher costs make variables of a minimisation smaller; where the model maximises, the sign is plus.

    Attributes
    ----------
    projection : str
        What the gradient leaves out, since it changes no minimiser: ``"none"`` for nothing; ``"norm"`` for
        the length of the costs, :math:`c / |c|`; ``"standard"`` for their mean too, where all points have
        the same sum of the variables, as with paths of one length, assignments and choices.
    """

    projection: str = "none"
    name: ClassVar[str] = "identity"

    def __post_init__(self) -> None:
        """Refuse what is no projection."""
        if self.projection not in PROJECTIONS:
            known = ", ".join(map(repr, PROJECTIONS))
            raise OptionError(f"projection is {shown(self.projection)}; give one of {known}")

    def forward(
        self, model: SolvableModel, values: Tensor, centre: Tensor, rows: Tensor | None
    ) -> tuple[Tensor, Any]:
        """The minimiser.

        Parameters
        ----------
        model, values, centre, rows
            As in :meth:`Mode.forward`.
        """
        return model.minimise(model.costs(values), rows, self.name), values

    def backward(self, model: SolvableModel, record: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        """Pass the gradient on with the other sign, through the projection of the costs.

        Parameters
        ----------
        model, record, gradient
            As in :meth:`Mode.backward`.
        """
        along, values = model.adjoint(-gradient), record
        if self.projection == "none":
            return along, None
        if self.projection == "standard":
            values, along = (own - own.mean(1, keepdim=True) for own in (values, along))
        size = values.norm(dim=1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny)
        unit = values / size
        return (along - unit * (unit * along).sum(1, keepdim=True)) / size, None


MODES: dict[str, type[ProximalTerm] | type[Lpgd] | type[Perturbed] | type[Identity]] = {
    kind.name: kind for kind in (ProximalTerm, Lpgd, Perturbed, Identity)
}
"""Modes by name."""

LOSSES = {
    "spo+": "a loss and no layer: see blocklp.losses.spo_plus(layer, predicted, true)",
    "fenchel-young": "a loss and no layer: see blocklp.losses.fenchel_young(layer, predicted, solution)",
    "blackbox": "mode='lpgd' with rho=0",
}
"""What stands for names that are no modes."""


def mode_of(name: Any, settings: dict[str, Any]) -> Mode:
    """A mode by its name, with its settings.

    Raises
    ------
    OptionError
        If there is no such mode or setting, or a setting is out of range.
    """
    if isinstance(name, str) and name in LOSSES:
        raise OptionError(f"mode {name!r} is {LOSSES[name]}")
    if not isinstance(name, str) or name not in MODES:
        raise OptionError(f"mode is {shown(name)}; choose one of {', '.join(map(repr, MODES))}")
    kind = MODES[name]
    known = [f.name for f in dataclasses.fields(kind)]
    if unknown := settings.keys() - set(known):
        has = f"has {', '.join(known)}" if known else "has no settings"
        raise OptionError(f"unknown settings {', '.join(map(repr, sorted(unknown)))}; mode {name!r} {has}")
    return kind(**settings)

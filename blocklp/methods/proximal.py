"""Methods with a proximal weight: how the weight is given, where it starts, and the centre."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from blocklp.decomposition.problem import Decomposition
from blocklp.methods.base import Method, MethodState
from blocklp.methods.proximal_weight import (
    WARM_REACH,
    Eta,
    Fixed,
    ProximalWeight,
    SeriousStepRule,
    as_weight,
    within,
)


@dataclass(frozen=True)
class ProximalState(MethodState):
    """State of a method that solves one proximal problem after the other."""

    centre: Tensor  # (batch, copies): the proximal centre
    centre_value: Tensor  # (batch,): the dual value there
    origin: Tensor  # (batch,): the weight that the rule would start with
    centres: Tensor  # (batch,): proximal problems left so far


@dataclass(frozen=True)
class Proximal(Method):
    """A method with a proximal weight for each instance.

    Parameters
    ----------
    eta : float, Tensor, array or ProximalWeight, optional
        The proximal weight: one for all instances, ``(batch,)`` or a rule; ``None`` chooses it automatically.

    Raises
    ------
    OptionError
        If it is none of these, or a weight is not positive and finite.
    """

    eta: Eta = None

    proximal = True
    automatic: ClassVar[ProximalWeight] = SeriousStepRule()

    def __post_init__(self) -> None:
        rule = as_weight(self.eta)
        if isinstance(rule, Fixed):  # a copy, which can be compared and hashed
            object.__setattr__(self, "eta", rule.eta)

    @property
    def rule(self) -> ProximalWeight:
        """How the weight changes."""
        return as_weight(self.eta) or self.automatic

    def weights(self, batch: int) -> Tensor | None:
        """The weights given, which no warm start changes."""
        return self.rule.weights(batch) if isinstance(self.rule, Fixed) else None

    def first_weight(
        self,
        problem: Decomposition,
        duals: Tensor,
        points: Tensor,
        eta: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Choose the first weight.

        A warm start's weight may come from a solve that ended in rounding, where rules drift: it is taken up
        to a limit.

        Parameters
        ----------
        problem : Decomposition
            The problem in the working precision.
        duals, points : Tensor
            ``(batch, copies)``: the first multipliers, and the oracles' answers to them.
        eta : Tensor or None
            ``(batch,)``: weight that the settings fix, or that of a warm start; None without either.

        Returns
        -------
        eta, origin : Tensor
            ``(batch,)``: the first weight, and the one that the rule alone would start with.
        """
        if eta is not None and isinstance(self.rule, Fixed):
            return eta, eta
        origin = self.rule.start(problem, duals, points)
        return (origin if eta is None else within(eta, origin, WARM_REACH)), origin

    def next_weight(self, state: Any, rise: Tensor, model: Tensor, gap: Tensor) -> Tensor:
        r"""Weight of the next proximal problem, where the present one is left: ``(batch,)``.

        Parameters
        ----------
        state : ProximalState
            State in the present problem.
        rise : Tensor
            ``(batch,)``: actual increase of the dual value over that at the centre.
        model : Tensor
            ``(batch,)``: :math:`|P x|^2 / \eta`, the increase in terms of the step.
        gap : Tensor
            ``(batch,)``: Frank-Wolfe gap at which the problem is left.

        Returns
        -------
        Tensor
            ``(batch,)``: for instances that leave the present problem.
        """
        return self.rule.update(state.eta, state.origin, state.centres + 1, rise, model, gap)

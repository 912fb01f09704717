r"""A dense CRF as a layer of a network: unrolled steps of a method, with every parameter learnable.

From :math:`y_0 = \mathrm{softmax}(-\phi)`, with the energy's gradient :math:`\nabla E` and a weight :math:`\lambda`
(Le-Huu & Alahari 2021, sections 3 and 5):

- "mean-field": :math:`y_{k+1} = \mathrm{softmax}(-\nabla E(y_k))`.
- "efw", "l2fw", "fw": :math:`y_{k+1} = y_k + \alpha_k (p_k - y_k)` with
  :math:`p_k = \arg\min_p \langle \nabla E(y_k), p \rangle + r(p)`, Frank-Wolfe with :math:`r = -\lambda H` (equation 12; mean field
  is the case :math:`\lambda = \alpha = 1`), with :math:`r = \lambda |\cdot|^2 / 2` (equation 11), and with none (equation 7: through
  its labellings no gradient passes, so that the kernels do not learn).
- "pgd": the same with :math:`p_k = \Pi(y_k - \nabla E(y_k) / \lambda)`.
- "prox-grad": fast proximal gradients with :math:`\Pi(z_k - \nabla E(z_k) / \lambda_k)`.
- "admm": projections of two copies that the penalty :math:`\lambda_k` holds together.
- any :class:`~blocklp.problems.densecrf.Regulariser`: Frank-Wolfe with that r.

The steps are those of the solvers.  The energy is a :class:`DenseCRF` whose numbers are functions of the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils.checkpoint import checkpoint

from blocklp.errors import OptionError, ShapeError
from blocklp.oracles.filters.gaussian import Gaussian
from blocklp.oracles.filters.permutohedral import Lattice
from blocklp.problems.densecrf.cliques import Cliques
from blocklp.problems.densecrf.compatibility import check_compatibility
from blocklp.problems.densecrf.energy import DenseCRF
from blocklp.problems.densecrf.images import image_features
from blocklp.problems.densecrf.kernel import Kernel
from blocklp.problems.densecrf.regularized_fw import Regulariser
from blocklp.problems.densecrf.unrolled import STEPPED, STEPS, WEIGHED, State, StepNumbers, frank_wolfe_step

METHODS = tuple(STEPS)


class DenseCRFLayer(torch.nn.Module):
    r"""Marginals of a dense CRF over images and a network's logits.

    All parameters are learned except the widths, whose gradients cost as much again; ``layer.log_stretch.requires_grad_()`` adds
    them, and ``requires_grad_(False)`` fixes any other.  What must be positive is the exponential of its parameter.

    Parameters
    ----------
    labels : int
        Number of labels, at least 2.
    smooth : pair of float or None
        ``(sxy, weight)`` of the smoothness kernel, as in pydensecrf; None for none.
    bilateral : triple of float or None
        ``(sxy, srgb, weight)`` of the bilateral kernel, srgb in units of the images' channels; None for none.
    compatibility : Tensor, optional
        ``(labels, labels)``, symmetric: what a pair of labels costs at first; the Potts model by default.
    method : str or Regulariser
        One of :data:`METHODS`, or the regulariser of Frank-Wolfe: any object with ``minimise(gradient)``, a module with parameters of
        its own if they are to be learned.
    steps : int
        Unrolled steps, at least 1.
    step : float or sequence of float, optional
        The step sizes :math:`\alpha_k` of Frank-Wolfe and "pgd" at first, one for all or ``steps`` of them, above 0 and at most 1;
        0.5 by default.  Each is learned by itself, unless one of them is 1.
    regularisation : float, optional
        The weight :math:`\lambda` at first, positive; 1 by default.  "prox-grad" and "admm", which have no step sizes, learn one a
        step.
    skip : bool
        Whether the result is the mean of the last y and :math:`y_0`, which steadies training (Le-Huu & Alahari 2021, section 5.3).
    exact : bool
        Whether the kernels are the Gaussians themselves, for up to some thousand points a batch.
    recompute : bool
        Whether steps are computed again in the backward pass (``torch.utils.checkpoint``): less memory, a third more time.
    device, dtype : optional
        Of the parameters.

    Attributes
    ----------
    log_unary : Parameter
        ``()``: logits are multiplied by its exponential.
    log_weights : Parameter
        ``(kernels,)``.
    first_widths : Tensor
        ``(1 to 3,)``, a buffer: sxy of the smoothness kernel, then sxy and srgb of the bilateral one.
    log_stretch : Parameter
        ``(1 to 3,)``: the first widths are multiplied by its exponential.
    compatibility : Parameter
        ``(labels, labels)``: only its symmetric part counts.
    logit_step : Parameter or None
        ``(steps,)``; None where the method has no step sizes.
    log_regularisation : Parameter or None
        ``()``, or ``(steps,)`` where the method has no step sizes; None where it has no weight.

    Raises
    ------
    OptionError, ShapeError, NonFiniteError, ModelError
        If an option is unknown or out of range, or the compatibility is not a symmetric, finite matrix of the labels.
    """

    first_widths: Tensor

    def __init__(
        self,
        labels: int,
        *,
        smooth: tuple[float, float] | None = (3.0, 3.0),
        bilateral: tuple[float, float, float] | None = (80.0, 13.0, 10.0),
        compatibility: Tensor | None = None,
        method: str | Regulariser = "mean-field",
        steps: int = 5,
        step: float | Sequence[float] | None = None,
        regularisation: float | None = None,
        skip: bool = False,
        exact: bool = False,
        recompute: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if isinstance(method, str) and method not in METHODS:
            raise OptionError(f"there is no layer for {method!r}; choose one of {', '.join(METHODS)}, or give a regulariser")
        if labels < 2 or steps < 1:
            raise OptionError(f"labels is {labels} and steps {steps}; give at least 2 labels and 1 step")
        given = [kernel for kernel in (smooth, bilateral) if kernel is not None]
        if not given or not all(0 < value < math.inf for kernel in given for value in kernel):
            raise OptionError(
                f"smooth is {smooth} and bilateral {bilateral}; give at least one, with widths and a weight that are positive and "
                "finite (weights are learned as logarithms: leave a kernel out by None)"
            )
        self.labels, self.steps, self.skip, self.exact, self.recompute = labels, steps, skip, exact, recompute
        self.method = method if isinstance(method, str) else type(method).__name__
        self.regulariser = None if isinstance(method, str) else method
        self.has_smooth, self.has_bilateral = smooth is not None, bilateral is not None

        def parameter(value: float | list[float]) -> Parameter:
            return Parameter(torch.tensor(value, device=device, dtype=dtype or torch.get_default_dtype()))

        self.log_unary = parameter(0.0)
        self.log_weights = parameter([math.log(kernel[-1]) for kernel in given])
        # Not the widths' logarithms: rounding of exp(log(width)) moves pixels across the lattice's faces, on which many lie.
        widths = [float(width) for kernel in given for width in kernel[:-1]]
        self.register_buffer("first_widths", parameter(widths).detach())
        self.log_stretch = parameter([0.0] * len(widths)).requires_grad_(False)
        if compatibility is None:
            compatibility = 1 - torch.eye(labels)
        elif compatibility.shape != (labels, labels):
            raise ShapeError(f"a compatibility has shape {tuple(compatibility.shape)}; give ({labels}, {labels}), that of the labels")
        self.compatibility = parameter(check_compatibility(compatibility.detach()).tolist())
        stepped, weighed = self.regulariser is not None or self.method in STEPPED, self.method in WEIGHED
        if (step is not None and not stepped) or (regularisation is not None and not weighed):
            has = {(0, 0): "neither step nor regularisation", (0, 1): "no step", (1, 0): "no regularisation"}[stepped, weighed]
            raise OptionError(f"{self.method} has {has}; take the method 'efw', which has both")
        self.logit_step = self.log_regularisation = None
        if stepped:
            sizes = [0.5 if step is None else float(step)] * steps if step is None or isinstance(step, (int, float)) else list(step)
            if len(sizes) != steps or not all(0 < size <= 1 for size in sizes):
                raise OptionError(f"step is {step}; give one above 0 and at most 1, or {steps} of them")
            self.logit_step = parameter([math.log(size / (1 - size)) if size < 1 else math.inf for size in sizes])
            self.logit_step.requires_grad_(max(sizes) < 1)
        if weighed:
            regularisation = 1.0 if regularisation is None else regularisation
            if not 0 < regularisation < math.inf:
                raise OptionError(f"regularisation is {regularisation}; give a positive weight")
            weight = math.log(regularisation)
            self.log_regularisation = parameter(weight if stepped else [weight] * steps)

    @property
    def widths(self) -> Tensor:
        """The widths now, ``(1 to 3,)`` float64."""
        widths: Tensor = self.first_widths.double() * self.log_stretch.double().exp()
        return widths

    def extra_repr(self) -> str:
        """The options, and the parameters' values now."""
        text = f"labels={self.labels}, method={self.method!r}, steps={self.steps}"
        weights, widths = self.log_weights.exp().tolist(), self.widths.tolist()
        if self.has_smooth:
            text += f", smooth=({widths[0]:.3g}, {weights[0]:.3g})"
        if self.has_bilateral:
            text += f", bilateral=({widths[-2]:.3g}, {widths[-1]:.3g}, {weights[-1]:.3g})"
        if self.logit_step is not None:
            text += f", step={_shown(self.logit_step.sigmoid())}"
        if self.log_regularisation is not None:
            text += f", regularisation={_shown(self.log_regularisation.exp())}"
        return text + f", skip={self.skip}, exact={self.exact}, recompute={self.recompute}"

    def forward(self, images: Tensor, logits: Tensor, cliques: Cliques | None = None) -> Tensor:
        """Marginals after all steps.

        Parameters
        ----------
        images : Tensor
            ``(batch, channels, height, width)`` floating point: colours from 0 to 255 for the usual widths, or any features.
        logits : Tensor
            ``(batch, labels, height, width)`` float32 or float64: scores as for ``cross_entropy``, or minus costs.
        cliques : Cliques, optional
            Over the points of all images, image by image and row by row; their costs may require gradients.

        Returns
        -------
        Tensor
            ``(batch, labels, height, width)`` in the precision of the logits: not negative, with sums of 1 over the labels.

        Raises
        ------
        ShapeError, NonFiniteError, ModelError
            If images, logits or cliques are not of this form.
        """
        # Half precision would lose the lattice; autocast would bring it into the products with the compatibility.
        with torch.autocast(images.device.type, enabled=False):
            crf = self.energy(images, logits, cliques)
            for kernel in crf.kernels:
                _ = kernel.weighted  # once, before steps that may be recomputed
            first = (-crf.unary).softmax(1)
            state: State = (first,)
            for turn in range(self.steps):
                if self.recompute:
                    state = checkpoint(self._advance, crf, state, turn, use_reentrant=False, preserve_rng_state=False)
                else:
                    state = self._advance(crf, state, turn)
            y: Tensor = (state[0] + first) / 2 if self.skip else state[0]
        batch, _, height, width = logits.shape
        # Contiguous: the gradient of torch's nll_loss refuses other layouts.
        return y.view(batch, height, width, self.labels).permute(0, 3, 1, 2).contiguous()

    def energy(self, images: Tensor, logits: Tensor, cliques: Cliques | None = None) -> DenseCRF:
        """The energy with the parameters as they are, for all images of the batch.

        Differentiable; under ``torch.no_grad()`` any method of :func:`solve_densecrf` takes it.

        Parameters
        ----------
        images, logits, cliques
            As in :meth:`forward`.

        Returns
        -------
        DenseCRF
            Its points are image by image and row by row; unaries are in the precision of the logits.

        Raises
        ------
        ShapeError, NonFiniteError, ModelError
            As in :meth:`forward`.
        """
        self._check(images, logits)
        batch, channels, height, width = images.shape
        image = torch.arange(batch, device=images.device).repeat_interleave(height * width) if batch > 1 else None
        unary = -self.log_unary.exp().to(logits) * logits.permute(0, 2, 3, 1).flatten(0, 2)
        positions = image_features(height, width, 1.0).to(images.device).repeat(batch, 1)
        widths = self.widths
        features = []
        if self.has_smooth:
            features.append(positions / widths[0])
        if self.has_bilateral:
            colours = images.permute(0, 2, 3, 1).flatten(0, 2).double()
            features.append(torch.cat([positions / widths[-2], colours / widths[-1]], 1))
        compatibility = (self.compatibility + self.compatibility.T) / 2
        kernels = []
        for weight, points in zip(self.log_weights.exp(), features, strict=True):
            filter: Lattice | Gaussian
            if self.exact:
                filter = Gaussian(points, image)
            else:
                filter = Lattice.build(points, image)
                filter = replace(filter, weights=filter.weights.to(logits))  # one copy for all steps
            # The weight goes with the compatibility: gradients reach it there.
            kernels.append(Kernel(filter, compatibility=weight * compatibility))
        return DenseCRF(unary, tuple(kernels), image, cliques)

    def _advance(self, crf: DenseCRF, state: State, turn: int) -> State:
        """One step of the method."""

        def at(values: Tensor | None) -> Tensor | None:
            return None if values is None else (values[turn] if values.dim() else values).to(crf.unary)

        numbers = StepNumbers(
            turn,
            at(None if self.logit_step is None else self.logit_step.sigmoid()),
            at(None if self.log_regularisation is None else self.log_regularisation.exp()),
        )
        if self.regulariser is not None:
            return frank_wolfe_step(crf, state, numbers, self.regulariser)
        return STEPS[self.method](crf, state, numbers)

    def _check(self, images: Tensor, logits: Tensor) -> None:
        mend = "give images (batch, channels, height, width) and logits (batch, labels, height, width)"
        shapes = f"images have shape {tuple(images.shape)} and logits {tuple(logits.shape)}"
        if images.dim() != 4 or logits.dim() != 4 or 0 in images.shape:
            raise ShapeError(f"{shapes}; {mend}; tensor[None] makes a batch of one")
        if images.shape[0] != logits.shape[0] or images.shape[2:] != logits.shape[2:]:
            raise ShapeError(f"{shapes}; {mend}; tensor.permute(0, 3, 1, 2) puts channels that come last into their place")
        if logits.shape[1] != self.labels:
            raise ShapeError(f"{shapes}: {logits.shape[1]} labels for a layer of {self.labels}; give one channel a label")
        if not images.is_floating_point():
            raise ShapeError(f"images are {images.dtype}; give floating-point colours, images.float()")
        if logits.dtype not in (torch.float32, torch.float64):
            raise ShapeError(f"logits are {logits.dtype}; give float32 or float64, logits.float()")


def _shown(values: Tensor) -> str:
    """One number if all are equal, else all of them."""
    numbers = [f"{value:.3g}" for value in values.flatten().tolist()]
    return numbers[0] if len(set(numbers)) == 1 else f"[{', '.join(numbers)}]"

"""Dense conditional random fields with Gaussian pairwise potentials."""

from blocklp.problems.densecrf.energy import DenseCRF, Kernel, image_features
from blocklp.problems.densecrf.mean_field import mean_field
from blocklp.problems.densecrf.prox_lp import prox_lp
from blocklp.problems.densecrf.result import Result

__all__ = ["DenseCRF", "Kernel", "Result", "image_features", "mean_field", "prox_lp"]

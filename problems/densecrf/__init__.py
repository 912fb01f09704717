"""Dense conditional random fields with Gaussian pairwise potentials."""

from blocklp.problems.densecrf.cliques import Cliques
from blocklp.problems.densecrf.energy import DenseCRF, Kernel
from blocklp.problems.densecrf.images import image_crf, image_features
from blocklp.problems.densecrf.layers import DenseCRFLayer
from blocklp.problems.densecrf.result import History, Result
from blocklp.problems.densecrf.rounding import kleinberg_tardos
from blocklp.problems.densecrf.solve import METHODS, solve_densecrf
from blocklp.problems.densecrf.superpixels import superpixel_cliques

__all__ = [
    "METHODS",
    "Cliques",
    "DenseCRF",
    "DenseCRFLayer",
    "History",
    "Kernel",
    "Result",
    "image_crf",
    "image_features",
    "kleinberg_tardos",
    "solve_densecrf",
    "superpixel_cliques",
]

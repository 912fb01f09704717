"""Dense conditional random fields with Gaussian pairwise potentials."""

from blocklp.problems.densecrf.cliques import Cliques
from blocklp.problems.densecrf.energy import DenseCRF, Kernel
from blocklp.problems.densecrf.images import image_crf, image_features
from blocklp.problems.densecrf.result import History, Result
from blocklp.problems.densecrf.solve import METHODS, solve_densecrf

__all__ = ["METHODS", "Cliques", "DenseCRF", "History", "Kernel", "Result", "image_crf", "image_features", "solve_densecrf"]

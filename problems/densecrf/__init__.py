"""Dense conditional random fields with Gaussian pairwise potentials."""

from typing import TYPE_CHECKING

from blocklp.lazy import publish

if TYPE_CHECKING:
    from blocklp.problems.densecrf.cliques import Cliques as Cliques
    from blocklp.problems.densecrf.energy import DenseCRF as DenseCRF
    from blocklp.problems.densecrf.explicit import explicit_model as explicit_model
    from blocklp.problems.densecrf.images import grid_features as grid_features
    from blocklp.problems.densecrf.images import image_crf as image_crf
    from blocklp.problems.densecrf.images import image_features as image_features
    from blocklp.problems.densecrf.kernel import Kernel as Kernel
    from blocklp.problems.densecrf.layers import DenseCRFLayer as DenseCRFLayer
    from blocklp.problems.densecrf.mean_shift import mean_shift_regions as mean_shift_regions
    from blocklp.problems.densecrf.regularized_fw import Regulariser as Regulariser
    from blocklp.problems.densecrf.result import History as History
    from blocklp.problems.densecrf.result import Result as Result
    from blocklp.problems.densecrf.rounding import ROUNDINGS as ROUNDINGS
    from blocklp.problems.densecrf.rounding import kleinberg_tardos as kleinberg_tardos
    from blocklp.problems.densecrf.solve import METHODS as METHODS
    from blocklp.problems.densecrf.solve import solve_densecrf as solve_densecrf
    from blocklp.problems.densecrf.superpixels import region_cliques as region_cliques
    from blocklp.problems.densecrf.superpixels import superpixel_cliques as superpixel_cliques
else:
    publish(
        __name__,
        {
            "blocklp.problems.densecrf.cliques": ["Cliques"],
            "blocklp.problems.densecrf.energy": ["DenseCRF"],
            "blocklp.problems.densecrf.explicit": ["explicit_model"],
            "blocklp.problems.densecrf.kernel": ["Kernel"],
            "blocklp.problems.densecrf.images": ["grid_features", "image_crf", "image_features"],
            "blocklp.problems.densecrf.layers": ["DenseCRFLayer"],
            "blocklp.problems.densecrf.mean_shift": ["mean_shift_regions"],
            "blocklp.problems.densecrf.regularized_fw": ["Regulariser"],
            "blocklp.problems.densecrf.result": ["History", "Result"],
            "blocklp.problems.densecrf.rounding": ["ROUNDINGS", "kleinberg_tardos"],
            "blocklp.problems.densecrf.solve": ["METHODS", "solve_densecrf"],
            "blocklp.problems.densecrf.superpixels": ["region_cliques", "superpixel_cliques"],
        },
    )

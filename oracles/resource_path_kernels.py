"""Compiled walks within resources: :mod:`blocklp.oracles.resource_path_search`, cached."""

from __future__ import annotations

from blocklp.kernels.compiled import kernel
from blocklp.oracles import resource_path_search

label = kernel()(resource_path_search.label)

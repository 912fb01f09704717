"""Sphinx configuration."""

import blocklp

project = "blocklp"
author = "The blocklp authors"
copyright = "2026, the blocklp authors"
version = release = blocklp.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath", "amsmath"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_use_rtype = False
exclude_patterns = ["_build", "benchmarks/*.json"]
html_theme = "furo"
html_title = "blocklp"
# The side bar lists pages; a thousand names of the reference in it would cost every page a tenth of a megabyte.
toc_object_entries = False
# Shapes such as (batch, n) in the types of parameters are no references to attributes named n.
suppress_warnings = ["ref.python"]

"""Sphinx configuration."""

import logging
import os

import blocklp

os.environ.setdefault("MPLBACKEND", "agg")

project = "blocklp"
author = "The blocklp authors"
copyright = "2026, the blocklp authors"
version = release = blocklp.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_use_rtype = False
exclude_patterns = ["_build", "benchmarks/*.json", "conda", "tutorials"]
# The side bar lists pages; a thousand names of the reference in it would double the time of a build.
toc_object_entries = False
# Shapes such as (batch, n) in the types of parameters are no references to attributes named n.
suppress_warnings = ["ref.python", "config.cache"]

# Tutorials are scripts that are run when the site is built; they become pages, thumbnails and notebooks.
logging.getLogger("blocklp").setLevel(logging.WARNING)

sphinx_gallery_conf = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "gallery",
    "first_notebook_cell": "%matplotlib inline",
    "abort_on_example_error": True,
    "capture_repr": ("_repr_html_", "__repr__"),
    "ignore_repr_types": r"matplotlib|list|tuple",
    "image_srcset": [],
    "matplotlib_animations": False,
    "min_reported_time": 60,
    "recommender": {"enable": False},
    "remove_config_comments": True,
    "within_subsection_order": "FileNameSortKey",
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
}

html_theme = "furo"
html_title = "blocklp"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_domain_indices = False
html_theme_options = {"sidebar_hide_name": False}

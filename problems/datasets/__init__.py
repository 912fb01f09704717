"""Public data sets of all problem modules: what they hold, where they come from, and how they get here."""

from blocklp.problems.datasets.catalogue import DataSet, Remote, data_folder, data_sets, located
from blocklp.problems.datasets.download import fetch

__all__ = ["DataSet", "Remote", "data_folder", "data_sets", "fetch", "located"]

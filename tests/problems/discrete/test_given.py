"""What is no instance is refused by every solver, with how one is made."""

import networkx as nx
import numpy as np
import pytest

from blocklp.errors import ModelError
from blocklp.problems.mis import WeightedGraph, solve_mis, solve_mis_exactly
from blocklp.problems.mrf import Mrf, solve_mrf, solve_mrf_exactly
from blocklp.problems.qpbo import Qubo, solve_qpbo, solve_qpbo_exactly

SOLVERS = {
    solve_qpbo: r"Qubo\.from_matrix\(matrix\)",
    solve_qpbo_exactly: r"Qubo\.from_matrix\(matrix\)",
    solve_mis: r"WeightedGraph\.from_networkx\(graph\)",
    solve_mis_exactly: r"WeightedGraph\.from_networkx\(graph\)",
    solve_mrf: r"Mrf\.from_arrays",
    solve_mrf_exactly: r"Mrf\.from_arrays",
}


@pytest.mark.parametrize("solve", SOLVERS, ids=lambda solve: solve.__name__)
@pytest.mark.parametrize("given", [np.eye(3), None, "a.txt", nx.path_graph(3)], ids=["array", "none", "path", "graph"])
def test_what_is_no_instance_is_refused_as_a_whole(solve, given):
    with pytest.raises(ModelError, match=f"^the instance is .*; give an? .*{SOLVERS[solve]}"):
        solve(given)


@pytest.mark.parametrize("solve", [solve_qpbo, solve_mis, solve_mrf])
def test_one_of_several_is_named_by_its_number(solve):
    fine = {solve_qpbo: Qubo([1.0], [], []), solve_mis: WeightedGraph([1.0], []), solve_mrf: Mrf([2], [])}[solve]
    with pytest.raises(ModelError, match=f"^instance 1 is 5; give .*{SOLVERS[solve]}"):
        solve([fine, 5])

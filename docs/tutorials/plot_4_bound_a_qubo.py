"""
Bound a QUBO
============

Quadratic functions of 0/1 variables: a labelling shows a value, a bound says that
nothing is much better. You learn the roof dual, how to tighten it, and how to prove
an optimum.
"""

# %%
# The roof dual
# -------------
#
# The relaxation has one small block for each product of two variables. Where it is
# tight enough, parts of an optimal labelling are proved at once (*persistency*).

import matplotlib.pyplot as plt
import numpy as np

import blocklp as bl
from blocklp.problems.qpbo import Qubo, solve_qpbo, solve_qpbo_exactly

rng = np.random.default_rng(0)
qubo = Qubo.from_matrix(
    np.triu(rng.integers(-9, 10, (40, 40)) * (rng.random((40, 40)) < 0.2))
)
roof = solve_qpbo(qubo)
bound = roof.relaxation.bound.item()
print(f"no labelling below {bound:.2f}; best labelling found: {roof.energy:.0f}")
roof.relaxation

# %%
# Tighten
# -------
#
# Triangles and cycles that the solution violates join as further blocks, round by
# round, and the multipliers that are
# known stay. Here at most twelve a round, to have something to look at.

tightened = solve_qpbo(qubo, tighten=bl.search.Budget(blocks=12), time_limit=30)
bounds = [round.bound.item() for round in tightened.rounds]

figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
axes.step(
    range(len(bounds)),
    bounds,
    where="post",
    color="tab:blue",
    marker="o",
    label="bound",
)
axes.axhline(tightened.energy, color="tab:orange", label="best labelling")
axes.set(xlabel="round of tightening", ylabel="value", xticks=range(len(bounds)))
axes.set_title("The bound rises to the best labelling")
axes.legend(loc="lower right")
assert roof.relaxation.bound.item() <= tightened.relaxation.bound.item() + 1e-3

# %%
# Prove
# -----
#
# Branch and bound goes on where the relaxation is not tight, in integer arithmetic.

exact = solve_qpbo_exactly(qubo, time_limit=30)
assert (
    tightened.relaxation.bound.item() <= exact.energy + 1e-6
    and exact.energy <= tightened.energy
)
print(f"proven: {exact.proven}, minimum {exact.energy:.0f}, {exact.nodes} nodes")

# %%
# Next: :doc:`/qpbo` says what joins and when, :doc:`/exact` what is proved,
# :doc:`/nodes` how to bound thousands of nodes of a search of your own.

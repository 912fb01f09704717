"""
State an LP
===========

Items go to bins: each item to one bin, each bin within its capacity. You learn to
state a linear program by its blocks, to solve it, and to read what the answer proves.
"""

# %%
# The blocks
# ----------
#
# The LP relaxation of this *generalised assignment problem* has two types of blocks.
# Each item is a **choice** among the bins (``Simplex``). Each bin is a **knapsack**
# with a capacity (``Knapsack``). A block type is a polytope that is easy to minimise
# over on its own. The blocks share variables, and that is what makes the problem
# hard.

import matplotlib.pyplot as plt
import torch

import blocklp as bl
from blocklp.oracles import Knapsack, Simplex

items, bins = 40, 5
random = torch.Generator().manual_seed(0)
cost = torch.randint(10, 50, (items, bins), generator=random).double()
size = torch.randint(5, 25, (bins, items), generator=random).double()

m = bl.Model()
x = m.variable("x", (items, bins), lower=0, upper=1)
m.add(Simplex(bins), scope=x)  # rows of x: each item in one bin
m.add(Knapsack(size, size.sum(1) / bins), scope=x.T)  # columns: room in each bin
m.minimize((cost * x).sum())
m

# %%
# Solve, and read the answer
# --------------------------
#
# ``bound`` is a number that the optimum cannot go below, whatever made the solver
# stop. ``primal`` is the value of a feasible point, and ``gap`` is the distance
# between the two.

solution = m.solve(tol=1e-4)
solution

# %%
# Who proves it? The multipliers do. ``verify_certificate`` evaluates the bound that
# they prove without the solver, in exact arithmetic where it can.

bl.verify_certificate(m, solution.state)

# %%
# An exact solver, here HiGHS, finds the optimum between the two.

reference = bl.reference(m)
assert (
    solution.bound.item()
    <= reference.objective.item() + 1e-6
    <= solution.primal.item() + 2e-6
)
reference

# %%
# Watch it work
# -------------
#
# A solve can be stopped at any time, and its bound holds. The history has the bound
# and the best point at each check. Here a method of few steps is chosen by name, to
# have something to look at.

history = m.solve(
    method="admm", tol=1e-6, passes=150, check_every=5, history=True
).history
passes = [event.passes for event in history]
assert len(history) > 10
figure, axes = plt.subplots(figsize=(5.5, 4), layout="constrained")
axes.plot(
    passes, [event.bound.item() for event in history], label="bound", color="tab:blue"
)
axes.plot(
    passes,
    [event.primal.item() for event in history],
    label="feasible point",
    color="tab:orange",
)
axes.axhline(
    reference.objective.item(), color="gray", linestyle=":", label="optimum (HiGHS)"
)
axes.set(xlabel="passes: calls of every oracle", ylabel="cost", xlim=(0, 150))
axes.set_title("Bound and feasible point meet at the optimum")
axes.set_ylim(reference.objective.item() * 0.97, reference.objective.item() * 1.04)
axes.legend()

# %%
# Prices and another capacity
# ---------------------------
#
# A model is a statement. Replace the capacities, and a warm start goes on from the
# multipliers that are known.

m.replace("Knapsack", Knapsack(size, 1.1 * size.sum(1) / bins))
roomier = m.compile().solve(tol=1e-4, warm_start=solution.state)
assert roomier.bound.item() <= solution.primal.item()
saved = solution.bound.item() - roomier.primal.item()
print(f"ten per cent more room saves at least {saved:.2f}")

# %%
# Next: :doc:`/block-types` lists the blocks at hand, :doc:`plot_5_own_block_type`
# makes one, and :doc:`/start` has batches and rows of matrices.

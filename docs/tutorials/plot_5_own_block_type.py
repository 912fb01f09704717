"""
A block type of your own
========================

All that blocklp asks of a polytope is its cheapest point for given costs. You learn
to write such a *min-oracle*, to have it tested, and to use it beside others.
"""

# %%
# A polytope without a short list of rows
# ---------------------------------------
#
# A unit runs for one interval of consecutive hours, or not at all. The hull of these
# 0/1 vectors has many facets. The cheapest interval is simple: a smallest difference
# of two prefix sums. All blocks of all instances come in one call.

import matplotlib.pyplot as plt
import torch

import blocklp as bl


class OneInterval(bl.BlockType):
    """0/1 vectors whose ones are consecutive."""

    def min_oracle(self, cost):  # (batch, blocks, hours)
        total = torch.nn.functional.pad(cost.cumsum(-1), (1, 0))
        highest, start = total.cummax(-1)  # best start before each stop
        stop = (total - highest).argmin(-1, keepdim=True)
        hour = torch.arange(cost.shape[-1], device=cost.device)
        point = ((hour >= start.gather(-1, stop)) & (hour < stop)).to(cost)
        return point, (cost * point).sum(-1)


# %%
# Units that share a limit
# ------------------------
#
# Twelve units earn what an hour pays, less a cost of their own. At most four may run
# at the same time: one row for each hour.

hours, units = 24, 12
random = torch.Generator().manual_seed(1)
pay = 2 + 3 * torch.sin(torch.linspace(0, 2 * torch.pi, hours).double()) ** 2
profit = pay * (0.7 + 0.6 * torch.rand(units, 1, generator=random)) - 4.5
profit = profit + 2 * torch.rand(units, hours, generator=random).double()

m = bl.Model()
run = m.variable("run", (units, hours), lower=0, upper=1)
m.add(OneInterval(), scope=run)
limit = m.add(run.sum(0) <= 4.0, name="limit")
m.maximize((profit * run).sum())

# %%
# Ask whether the oracle is right before you trust a bound.

print(bl.check(m))

# %%
# Solve
# -----
#
# The type states nothing but its oracle, so that the points it returned are combined
# (column generation). The price of the limit says what a fifth unit would be worth in
# each hour.

solution = m.solve(tol=1e-5)
assert solution.gap.item() < 1e-4
solution

# %%

figure, (top, bottom) = plt.subplots(
    2, 1, figsize=(7, 5), layout="constrained", sharex=True, height_ratios=(2, 1)
)
top.imshow(solution[run][0], aspect="auto", cmap="Blues", vmin=0, vmax=1)
top.set(ylabel="unit", title="who runs when")
bottom.step(range(hours), solution.price(limit)[0], where="mid", color="tab:orange")
bottom.set(xlabel="hour", ylabel="price of the limit")

# %%
# Next: :doc:`/own-block-type` has what a type may state besides, for speed and for
# proofs, and :doc:`/block-types` lists those at hand.

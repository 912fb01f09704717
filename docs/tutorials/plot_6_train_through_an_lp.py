"""
Train through an LP
===================

A network predicts values, an LP decides. What counts is the decision, not the
prediction. You learn to train for decisions, and to see what it brings.
"""

# %%
# A knapsack whose values are predicted
# -------------------------------------
#
# Ten items, five features, and values that depend on the features in a way that a
# linear network cannot represent.

import matplotlib.pyplot as plt
import torch

import blocklp as bl
from blocklp.oracles import Knapsack

random = torch.Generator().manual_seed(0)
mixing = torch.rand(5, 10, generator=random).double()
feature = torch.rand(300, 5, generator=random).double()
value = (feature @ mixing) ** 4 * (
    0.7 + 0.6 * torch.rand(300, 10, generator=random).double()
)

p = bl.Model()
y, price = p.variable("y", 10, lower=0, upper=1), p.parameter("price", 10)
p.add(Knapsack(torch.arange(1.0, 11.0), 20.0), scope=y)
p.maximize(price @ y)
layer = bl.Layer(p, cost=price)

# %%
# Two ways to train
# -----------------
#
# Least squares asks for right values. ``spo_plus`` asks for right decisions: it
# compares the decision that the prediction leads to with the best one. A batch of LPs
# is solved in one call.


def train(loss):
    torch.manual_seed(0)
    network = torch.nn.Linear(5, 10, dtype=torch.float64)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    regrets = []
    for _ in range(40):
        optimizer.zero_grad()
        loss(network(feature[:200])).backward()
        optimizer.step()
        with torch.no_grad():
            regrets.append(
                bl.losses.regret(layer, network(feature[200:]), value[200:])
                .sum()
                .item()
            )
    return regrets


best = bl.losses.regret(layer, value[200:], value[200:])
assert best.abs().max() < 1e-6  # who knows the values regrets nothing
curves = {
    "least squares": train(lambda predicted: ((predicted - value[:200]) ** 2).mean()),
    "SPO+ (decisions)": train(
        lambda predicted: bl.losses.spo_plus(layer, predicted, value[:200]).mean()
    ),
}

# %%
# Regret is the value that is lost, on instances that were not trained on.

figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
for name, curve in curves.items():
    axes.plot(curve, label=name)
axes.set(xlabel="step of training", ylabel="regret on 100 new instances", yscale="log")
axes.set_title("Regret of two ways to train")
axes.legend()
assert curves["SPO+ (decisions)"][-1] < curves["SPO+ (decisions)"][0]

# %%
# Next: :doc:`/learning` has layers, losses and solvers for PyEPO and cvxpylayers,
# :doc:`/gradients` derivatives of optimal values.

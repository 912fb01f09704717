from __future__ import annotations

import torch
from torch import Tensor

import blocklp as bl
from blocklp.oracles.choice import AtMostOne
from blocklp.problems.mis.cliques import edge_clique_cover
from blocklp.problems.mis.instance import WeightedGraph


def clique_model(graph: WeightedGraph, max_size: int | None = None) -> bl.Model:
    graph.require_independent_set()
    model = bl.Model()
    y = model.variable("y", graph.n, lower=0, upper=1)
    cover = [torch.tensor(c) for c in edge_clique_cover(graph, max_size).values()]
    for cliques in cover:
        size = cliques.shape[1]
        model.add(AtMostOne(size), y[cliques], name=f"cliques of {size}")
    weights = torch.tensor(graph.weights)
    model.maximize(weights @ y)

    def scaled(values: Tensor) -> Tensor:
        worst = torch.ones_like(values)
        for cliques in cover:
            flat = cliques.to(values.device).reshape(-1).expand(len(values), -1)
            sums = values.gather(1, flat).view(len(values), *cliques.shape).sum(-1)
            worst.scatter_reduce_(1, flat, sums.repeat_interleave(cliques.shape[1], 1), "amax")
        return values / worst

    def repair(x: dict[str, Tensor]) -> dict[str, Tensor]:
        fractional = x["y"].clamp(0, 1)
        candidates = torch.stack([scaled(fractional), scaled((2 * fractional).round() / 2), scaled(fractional.round())])
        best = (candidates @ weights.to(candidates)).argmax(0)
        return {"y": candidates[best, torch.arange(len(best))]}

    model.repair_with(repair)
    return model

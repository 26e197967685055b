"""Critical paths: the same in whatever order a graph is given, as brute force finds them, and as autograd carries the gradient."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch

import stethoscope
from stethoscope.instruments.animator_grid import natural_key
from stethoscope.instruments.flow import GradientFlowVisualizer
from stethoscope.instruments.flow_paths import best_route, edge_loss, whole
from stethoscope.instruments.flow_types import GradientHistory, GradientVisualizationConfig


def _random_graph(seed: int) -> tuple[list[str], list[tuple[str, str]], dict[str, float]]:
    """A few layers with few different norms, so that many ways lose exactly the same."""
    rng = random.Random(seed)
    names = [f"layers.{i}" for i in range(rng.randint(3, 12))]
    edges = [(a, b) for a, b in itertools.combinations(names, 2) if rng.random() < 0.45]
    edges = edges or [(names[0], names[-1])]
    return names, edges, {name: rng.choice([1e-3, 1e-2, 0.1, 0.1, 1.0]) for name in names}


def _paths(names: list[str], edges: list[tuple[str, str]], norms: dict[str, float]) -> Any:
    histories = {name: GradientHistory(range(4), [norms[name]] * 4) for name in names}
    config = GradientVisualizationConfig(flow_threshold=0.0)
    return GradientFlowVisualizer(config).generate_visualization(histories, 3, edges)


@pytest.mark.parametrize("seed", range(60))
def test_the_path_is_the_one_brute_force_finds_ties_and_all(seed: int) -> None:
    names, edges, norms = _random_graph(seed)
    shown = _paths(names, edges, norms)
    costs = {(e.from_layer, e.to_layer): edge_loss(e) for e in shown.flow_network.edges}
    graph = nx.DiGraph(list(costs))
    ends = {n for n in graph if graph.out_degree(n) == 0}

    def key(path: list[str]) -> Any:
        loss = sum(whole(costs[pair]) for pair in itertools.pairwise(path))
        return loss, len(path), [natural_key(name) for name in path[1:]]

    for start in [n for n in graph if graph.in_degree(n) == 0]:
        every = [p for end in ends for p in nx.all_simple_paths(graph, start, end)]
        best = min(every, key=key)
        assert best_route(start, ends, costs) == best
        given = next(path for path in shown.critical_paths if path.layers[0] == start)
        assert given.layers == best


@pytest.mark.parametrize("seed", range(30))
def test_the_order_in_which_a_graph_is_given_does_not_matter(seed: int) -> None:
    names, edges, norms = _random_graph(seed)
    first = _paths(names, edges, norms)
    rng = random.Random(seed + 1000)
    for _ in range(3):
        rng.shuffle(edges)
        again = _paths(names, edges, norms)
        assert [path.layers for path in again.critical_paths] == [path.layers for path in first.critical_paths]
        assert [path.weakest_edge for path in again.critical_paths] == [
            path.weakest_edge for path in first.critical_paths
        ]


class _Branches(torch.nn.Module):
    """One layer, several ways on, each with its own size, and one layer that takes them together."""

    def __init__(self, scales: list[float]) -> None:
        super().__init__()
        self.enter, self.leave = torch.nn.Linear(6, 6), torch.nn.Linear(6, 1)
        self.ways = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in scales)
        self.scales = scales
        self.only: int | None = None
        """The way that carries a gradient, where one alone is asked for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        entered = self.enter(x)
        parts = []
        for number, (way, scale) in enumerate(zip(self.ways, self.scales, strict=True)):
            given = entered if self.only in (None, number) else entered.detach()
            parts.append(scale * way(given))
        return self.leave(torch.stack(parts).sum(0))  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", range(4))
def test_the_path_is_the_way_by_which_autograd_brings_most_gradient(tmp_path: Path, seed: int) -> None:
    scales = [1.0, 0.05, 0.002]
    random.Random(seed).shuffle(scales)
    torch.manual_seed(seed)
    model = _Branches(scales)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    session = stethoscope.watch(model, optimizer, dir=str(tmp_path), quiet=True, companion="off")
    x = torch.randn(32, 6)
    for _ in range(4):
        optimizer.zero_grad()
        (model(x) - 1.0).square().mean().backward()
        optimizer.step()
    shown = session.flow_visualization()
    session.stop()
    carried = []
    for only in range(len(scales)):
        model.only = only
        model.zero_grad()
        (model(x) - 1.0).square().mean().backward()
        carried.append(float(model.enter.weight.grad.norm()))
    best = max(range(len(scales)), key=lambda number: carried[number])
    assert shown.critical_paths[0].layers == ["enter", f"ways.{best}", "leave"]

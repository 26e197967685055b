"""The flow visualizer: settings, graphs of every form, critical paths against brute force, regions."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest

from stethoscope.instruments import GradientFlowVisualizer, GradientHistory, GradientVisualizationConfig
from stethoscope.instruments.flow_paths import best_route, edge_loss, route_loss
from stethoscope.instruments.flow_types import (
    ColorScheme,
    FlowDirection,
    GradientFlowVisualization,
    NodeType,
    RecoveryPotential,
    RegionSeverity,
)
from stethoscope.record import ConfigError


def steady(norm: float, steps: int = 10, parameters: int | None = None) -> GradientHistory:
    return GradientHistory(range(steps), [norm] * steps, num_parameters=parameters)


def show(histories: dict[str, Any], graph: Any = None, **settings: Any) -> GradientFlowVisualization:
    return GradientFlowVisualizer(GradientVisualizationConfig(**settings)).generate_visualization(
        histories, 10, graph=graph
    )


def test_empty_single_and_zero_histories() -> None:
    assert show({}).flow_network.network_metrics.bottleneck_density == 0.0
    shown = show({"none": GradientHistory(), "one": GradientHistory([3], [2.0]), "zero": steady(0.0)})
    none = shown.layer_flows["none"]
    assert (none.flow_consistency, none.bottleneck_score, none.information_flow_rate) == (1.0, 0.0, 0.0)
    assert none.gradient_directions == []
    assert [flow.layer_name for flow in shown.temporal_flows] == ["one", "zero"]
    assert [node.node_type for node in shown.flow_network.nodes] == [
        NodeType.SINK,
        NodeType.NORMAL,
        NodeType.BOTTLENECK,
    ]
    assert [region.affected_layers for region in shown.vanishing_regions] == [["zero"]]
    assert shown.dead_zones[0].recovery_potential is RecoveryPotential.LOW


def test_history_is_checked() -> None:
    with pytest.raises(ConfigError, match="2 steps but 1 norms"):
        GradientHistory([0, 1], [1.0])
    with pytest.raises(ConfigError, match="color_scheme"):
        GradientVisualizationConfig(color_scheme="rainbow")
    with pytest.raises(ConfigError, match="temporal_window"):
        GradientVisualizationConfig(temporal_window=0)


def test_non_finite_norm_is_critical_and_located() -> None:
    history = GradientHistory([5, 6, 7], [1.0, math.inf, math.nan])
    shown = show({"a": steady(1.0), "b": history})
    where = shown.non_finite[0]
    assert (where.layer_name, where.step, where.num_steps) == ("b", 6, 2)
    region = shown.exploding_regions[0]
    assert region.severity_level is RegionSeverity.CRITICAL
    assert "step 6" in region.mitigation_suggestions[0]
    assert shown.temporal_flows[1].stability_score == 0.0
    assert shown.flow_network.nodes[1].gradient_strength == 1.0
    assert "b: the gradient is not finite since step 6" in str(shown.to_terminal(80))


def test_every_setting_has_an_effect() -> None:
    histories = {
        "a": GradientHistory(range(8), [1, 5, 2, 7, 1, 1, 1, 1.0]),
        "b": steady(0.0),
        "c": steady(300.0),
    }
    plain = show(histories)
    assert plain.temporal_flows
    assert plain.critical_paths
    assert plain.vanishing_regions
    assert plain.exploding_regions
    assert plain.dead_zones
    assert show(histories, show_temporal_flows=False).temporal_flows == []
    assert show(histories, show_critical_paths=False).critical_paths == []
    hidden = show(histories, show_problem_regions=False)
    assert hidden.vanishing_regions == hidden.exploding_regions == hidden.dead_zones == []
    window = show(histories, temporal_window=4)
    assert window.temporal_flows[0].stability_score == 1.0
    assert plain.temporal_flows[0].stability_score < 1.0
    chain = {"a": steady(1.0), "b": steady(0.05), "c": steady(1.0), "d": steady(1.0)}
    assert [edge.carries_flow for edge in show(chain).flow_network.edges] == [True, True, True]
    assert [e.carries_flow for e in show(chain, flow_threshold=0.1).flow_network.edges] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize("dark", [False, True])
def test_color_schemes_differ(tmp_path: Path, dark: bool) -> None:
    histories = {"a": steady(1e-6), "b": steady(1.0), "c": steady(500.0)}
    pictures, texts = set(), set()
    for scheme in ColorScheme:
        shown = show(histories, color_scheme=scheme)
        pictures.add(shown.save(tmp_path / f"{scheme}.svg", dark=dark).read_text())
        texts.add(str(shown.to_terminal(80).markup))
    assert len(pictures) == len(texts) == 4


def test_direction_by_last_three() -> None:
    ends = {
        "up": ([1, 2, 3.0], FlowDirection.FORWARD),
        "down": ([3, 2, 1.0], FlowDirection.BACKWARD),
        "turn": ([3, 1, 2.0], FlowDirection.OSCILLATING),
        "same": ([1, 2, 1.0], FlowDirection.STAGNANT),
        "short": ([3, 1.0], FlowDirection.FORWARD),
    }
    shown = show({name: norms for name, (norms, _) in ends.items()})
    assert [flow.flow_direction for flow in shown.temporal_flows] == [want for _, want in ends.values()]


def test_sketches_give_directions() -> None:
    history = GradientHistory([0, 1, 2], [1.0, 1.0, 1.0], sketches=[[3.0, 4.0], [6.0, 8.0], [-4.0, 3.0]])
    directions = show({"a": history}).layer_flows["a"].gradient_directions
    assert directions[0].direction_vector == [0.6, 0.8]
    assert directions[0].cosine is None
    assert directions[1].cosine == pytest.approx(1.0)
    assert directions[2].cosine == pytest.approx(0.0)
    assert show({"a": steady(1.0)}).layer_flows["a"].gradient_directions[0].direction_vector == []


EDGES = [("in", "a"), ("a", "relu"), ("relu", "b"), ("b", "add"), ("relu", "add"), ("add", "out")]


def graph_forms() -> list[Any]:
    digraph = nx.DiGraph(EDGES)
    counts = {"in": 5, "a": 10, "b": 20, "out": 40}
    for name, count in counts.items():
        digraph.nodes[name]["num_parameters"] = count
    nodes = [SimpleNamespace(name=n, num_parameters=counts.get(n, 0)) for n in digraph.nodes]
    lineage = SimpleNamespace(nodes=nodes, edges=[SimpleNamespace(source=a, target=b) for a, b in EDGES])
    successors = {n: list(digraph.successors(n)) for n in digraph}
    body = {"nodes": [{"name": n, "parameters": counts.get(n, 0)} for n in digraph], "edges": EDGES}
    return [EDGES, successors, digraph, lineage, body]


@pytest.mark.parametrize("form", range(5))
def test_every_form_of_graph(form: int) -> None:
    """Unmeasured nodes are passed through; parameters find their module; degrees are the graph's."""
    graph = graph_forms()[form]
    shown = show({"out": steady(4.0), "b": steady(3.0), "a.weight": steady(3.0), "a.bias": steady(4.0)}, graph)
    network = shown.flow_network
    assert [node.layer_name for node in network.nodes] == ["a", "b", "out"]
    assert {(e.from_layer, e.to_layer) for e in network.edges} == {("a", "b"), ("a", "out"), ("b", "out")}
    first = network.nodes[0]
    assert first.gradient_strength == pytest.approx(5.0)  # weight and bias in quadrature
    assert (first.num_inputs, first.num_outputs, first.connectivity) == (0, 2, 2)
    assert network.nodes[2].gate_of == 2  # everything comes through the last layer
    assert network.nodes[1].gate_of == 0  # the skip goes around it
    if form >= 2:
        assert [node.num_parameters for node in network.nodes] == [10, 20, 40]


def test_unknown_graphs_are_refused() -> None:
    with pytest.raises(ConfigError, match="no nodes"):
        show({"a": steady(1.0)}, [])
    with pytest.raises(ConfigError, match="not an edge"):
        show({"a": steady(1.0)}, [3])


def test_cycle_is_no_problem() -> None:
    shown = show(
        {"a": steady(1.0), "cell": steady(0.5), "gate": steady(0.2)},
        [("a", "cell"), ("cell", "gate"), ("gate", "cell")],
    )
    assert len(shown.flow_network.edges) == 3
    assert shown.critical_paths[0].layers[0] == "a"


@pytest.mark.parametrize("seed", range(40))
def test_critical_paths_against_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 9))
    names = [f"n{i}" for i in range(count)]
    graph = nx.DiGraph()
    graph.add_nodes_from(names)
    for i in range(count):
        for j in range(i + 1, count):
            if rng.random() < 0.45:
                graph.add_edge(names[i], names[j])
    histories = {name: steady(float(rng.lognormal(0, 3))) for name in names}
    shown = show(histories, graph, flow_threshold=0.0)
    costs = {(e.from_layer, e.to_layer): edge_loss(e) for e in shown.flow_network.edges}
    starts = [n for n in names if graph.in_degree(n) == 0 and graph.out_degree(n) > 0]
    ends = {n for n in names if graph.out_degree(n) == 0 and graph.in_degree(n) > 0}
    found = {path.layers[0]: path for path in shown.critical_paths}
    assert set(found) == set(starts)
    for start in starts:
        every = [p for end in ends for p in nx.all_simple_paths(graph, start, end)]
        best = min(route_loss(path, costs) for path in every)
        route = best_route(start, ends, costs)
        assert route in every
        assert route_loss(route, costs) == pytest.approx(best, abs=1e-12)
        path = found[start]
        assert path.transmission == pytest.approx(math.exp(-best))
        _check_criticality(path, every, costs, best)


def _check_criticality(path: Any, every: list[list[str]], costs: dict[Any, float], best: float) -> None:
    a, b = path.weakest_edge
    others = [p for p in every if (a, b) not in list(itertools.pairwise(p))]
    if not others:
        assert path.criticality_score == 1.0
    else:
        kept = math.exp(-min(route_loss(p, costs) for p in others))
        assert path.criticality_score == pytest.approx(1.0 - kept / math.exp(-best), abs=1e-12)


def test_where_it_is_lost_and_what_a_skip_changes() -> None:
    names = ["l0", "l1", "l2", "l3"]
    histories = dict(zip(names, [steady(1e-4), steady(1e-4), steady(1e-2), steady(1.0)], strict=True))
    path = show(histories, list(itertools.pairwise(names))).critical_paths[0]
    assert path.path_id == "main_path"
    assert path.layers == names
    assert path.transmission == pytest.approx(1e-4)
    assert path.optimization_potential == pytest.approx(1 - 1e-4)
    assert path.weakest_gain == pytest.approx(1e-2)
    assert (path.skip.from_layer, path.skip.to_layer) == ("l1", "l3")
    assert path.skip.factor == pytest.approx(1e4)
    assert path.skip.transmission == pytest.approx(1.0)


def test_flow_threshold_keeps_paths_off_empty_connections() -> None:
    histories = {"in": steady(1.0), "thin": steady(1e-4), "wide": steady(0.9), "out": steady(1.0)}
    graph = [("in", "thin"), ("thin", "out"), ("in", "wide"), ("wide", "out")]
    assert show(histories, graph).critical_paths[0].layers == ["in", "wide", "out"]


def test_regions_span_neighbours_with_counts_and_durations() -> None:
    weak = GradientHistory(range(10, 20), [1.0, *[1e-9] * 9][::-1], num_parameters=100)
    histories = {
        "a": steady(2e-6, parameters=10),
        "b": steady(4e-7, parameters=20),
        "c": steady(1.0, parameters=40),
        "d": steady(6e-6, parameters=80),
        "e": weak,
    }
    chain = list(zip("abcd", "bcde", strict=True))
    first, second = show(histories, chain).vanishing_regions
    assert (first.affected_layers, second.affected_layers) == (["a", "b"], ["d"])
    assert (first.extent.start_layer, first.extent.end_layer) == ("a", "b")
    assert (first.extent.affected_parameters, first.extent.duration_steps, first.since_step) == (30, 10, 0)
    assert first.severity_level is RegionSeverity.SEVERE
    assert second.severity_level is RegionSeverity.MILD
    assert show({"x": steady(1.0)}).vanishing_regions == []
    alone = show(histories).vanishing_regions
    assert [region.affected_layers for region in alone] == [["a"], ["b"], ["d"]]
    assert {region.severity_level for region in alone} == {RegionSeverity.MODERATE}


@pytest.mark.parametrize(
    ("largest", "level"),
    [(150.0, "Mild"), (300.0, "Moderate"), (700.0, "Severe"), (2000.0, "Critical")],
)
def test_exploding_levels_with_a_graph(largest: float, level: str) -> None:
    shown = show({"a": steady(largest), "b": steady(1.0)}, [("a", "b")])
    assert shown.exploding_regions[0].severity_level == level


@pytest.mark.parametrize(
    ("num_dead", "potential", "intervene"),
    [(6, "High", False), (8, "Medium", False), (9, "Medium", True), (10, "None", True)],
)
def test_dead_zones_with_a_graph(num_dead: int, potential: str, intervene: bool) -> None:
    norms = [0.0] * num_dead + [1.0] * (10 - num_dead)
    shown = show({"a": norms, "b": norms, "c": steady(1.0)}, [("a", "b"), ("b", "c")])
    (zone,) = shown.dead_zones
    assert zone.affected_layers == ["a", "b"]
    assert (zone.recovery_potential, zone.intervention_required) == (potential, intervene)
    assert zone.dead_duration == num_dead


def test_saves_and_create_visualization(tmp_path: Path) -> None:
    import json

    shown = GradientFlowVisualizer().create_visualization({"$a_1$": steady(1.0), "b": steady(2.0)})
    assert shown.current_step == 9
    body = json.loads(shown.save(tmp_path / "f.json").read_text())
    assert body["flow_network"]["nodes"][0]["layer_name"] == "$a_1$"
    assert "$a_1$" in shown.save(tmp_path / "f.svg").read_text()
    assert "Nothing to report" in shown.save(tmp_path / "f.txt").read_text()
    with pytest.raises(ConfigError, match=r"\.png"):
        shown.save(tmp_path / "f.doc")


def test_modules_show_their_parameters_norms_together_and_printing_is_short() -> None:
    from stethoscope.instruments.flow_picture import norms_of

    histories = {"a.weight": [3.0, 6.0, 3.0], "a.bias": [4.0, 8.0, 4.0], "b.weight": [1.0, 1.0, 1.0]}
    shown = show(histories, [("a", "b")])
    assert norms_of(shown, "a") == pytest.approx([5.0, 10.0, 5.0])
    assert norms_of(shown, "b.weight") == [1.0, 1.0, 1.0]
    assert norms_of(shown, "nowhere") == []
    line = next(line for line in str(shown).splitlines() if " a " in line)
    assert len(set(line) & set("▁▂▃▄▅▆▇█")) >= 2
    assert repr(shown) == "GradientFlowVisualization(step 10: 3 layers, 1 critical path; print() shows it)"

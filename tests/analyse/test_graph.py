"""The graph as it is read back: questions, other shapes, and the instruments that take it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stethoscope.analyse.graph import Edge, Graph, Node, UnknownModuleError, Unregistered, graph_of
from stethoscope.record import RunFormatError
from stethoscope.record.dataflow import DataFlow


def edge(text: str, **more: Any) -> Edge:
    source, target = text.split(" > ")
    return Edge(source=source, target=target, **more)


@pytest.fixture
def graph() -> Graph:
    """Two pre-norm blocks with one layer each, a head, and a module that was not called."""
    names = [
        "(input)",
        "embed",
        "blocks.0.norm",
        "blocks.0.fc",
        "blocks.0:add",
        "blocks.1.norm",
        "blocks.1.fc",
        "blocks.1:add",
        "head",
        "probe",
        "(output)",
    ]
    roles = {"(input)": "input", "(output)": "output", "blocks.0:add": "join", "blocks.1:add": "join"}
    nodes = {
        name: Node(
            path=name,
            type="add" if ":" in name else "Linear",
            role=roles.get(name, "module"),  # type: ignore[arg-type]
            num_parameters=0 if name in roles else 10,
            num_trainable=0 if name in roles else 10,
            calls=0 if name in roles else 1,
            order=place,
        )
        for place, name in enumerate(names)
    }
    nodes["idle"] = Node(path="idle", type="Linear", num_parameters=3)
    return Graph(
        nodes=nodes,
        edges=(
            edge("(input) > embed", gradient="none"),
            edge("embed > blocks.0.norm"),
            edge("blocks.0.norm > blocks.0.fc", operations=("gelu",), inside="blocks.0"),
            edge("embed > blocks.0:add", kind="residual"),
            edge("blocks.0.fc > blocks.0:add"),
            edge("blocks.0:add > blocks.1.norm"),
            edge("blocks.1.norm > blocks.1.fc"),
            edge("blocks.0:add > blocks.1:add", kind="residual"),
            edge("blocks.1.fc > blocks.1:add"),
            edge("blocks.1:add > head"),
            edge("blocks.1:add > probe", gradient="detached"),
            edge("head > (output)"),
        ),
        containers={
            "(root)": Node(path="(root)", type="Net", num_parameters=63),
            "blocks.0": Node(path="blocks.0", type="Block", num_parameters=20),
            "blocks.1": Node(path="blocks.1", type="Block", num_parameters=20),
            "blocks": Node(path="blocks", type="ModuleList", num_parameters=40),
        },
        unused=("idle",),
        unregistered=(Unregistered(path="layers[0]", type="Linear", num_parameters=20, num_trainable=20),),
        absorbed={"embed.inner": "embed"},
        tied=(("embed.weight", "head.weight"),),
    )


def pairs(graph: Graph) -> dict[tuple[str, str], str]:
    return {(e.source, e.target): e.kind for e in graph.edges}


def test_json_there_and_back(graph: Graph) -> None:
    again = Graph.from_json(json.loads(json.dumps(graph.to_json())))
    assert again == graph
    body = graph.to_json() | {"a_field_of_tomorrow": 1}
    assert Graph.from_json(body) == graph
    with pytest.raises(RunFormatError, match="newer"):
        Graph.from_json(body | {"version": 99})


def test_order_is_that_of_execution_and_leaves_out_what_never_ran(graph: Graph) -> None:
    assert graph.order[:3] == ("(input)", "embed", "blocks.0.norm")
    assert "idle" not in graph.order


def test_neighbours_of_a_module_and_of_a_container(graph: Graph) -> None:
    assert graph.neighbours("blocks.0.fc") == ("blocks.0.norm", "blocks.0:add")
    assert graph.neighbours("blocks.0") == ("embed", "blocks.1.norm", "blocks.1:add")
    assert {e.source for e in graph.inputs("blocks.1")} == {"blocks.0:add"}
    assert {e.target for e in graph.outputs("blocks.1")} == {"head", "probe"}


def test_ancestors_and_descendants(graph: Graph) -> None:
    assert graph.ancestors("blocks.0.fc") == ("(input)", "embed", "blocks.0.norm")
    assert graph.descendants("head") == ("(output)",)
    assert graph.ancestors("blocks.1") == ("(input)", "embed", "blocks.0.norm", "blocks.0.fc", "blocks.0:add")
    assert graph.ancestors("idle") == ()


def test_ways(graph: Graph) -> None:
    assert graph.path("embed", "head") == ("embed", "blocks.0:add", "blocks.1:add", "head")
    assert graph.path("head", "embed") is None
    assert graph.reaches("blocks.0", "probe")
    assert not graph.reaches("probe", "head")


def test_a_loop_is_a_way_to_oneself() -> None:
    nodes = {name: Node(path=name, order=place) for place, name in enumerate("abc")}
    ring = Graph(nodes=nodes, edges=(edge("a > b"), edge("b > a"), edge("b > c")))
    assert ring.path("a", "a") == ("a", "b", "a")
    assert ring.path("c", "c") is None
    assert ring.ancestors("a") == ("b",)


def test_names_find_their_node(graph: Graph) -> None:
    assert graph.node_of("blocks.0.fc.weight") == "blocks.0.fc"
    assert graph.node_of("embed.inner.weight") == "embed"
    assert graph.node_of("nowhere.weight") is None
    with pytest.raises(UnknownModuleError, match=r"nowhere.*Known"):
        graph.ancestors("nowhere")


def test_direct_has_an_edge_from_every_part_of_a_sum(graph: Graph) -> None:
    direct = graph.direct()
    assert not any(node.role == "join" for node in direct.nodes.values())
    got = pairs(direct)
    assert got["embed", "blocks.1.norm"] == "residual"
    assert got["blocks.0.fc", "blocks.1.norm"] == "data"
    assert got["embed", "head"] == got["blocks.0.fc", "head"] == "residual"
    assert got["blocks.1.fc", "head"] == "data"
    cut = {e.source for e in direct.edges if e.detached}
    assert cut == {"embed", "blocks.0.fc", "blocks.1.fc"}
    for name in ("head", "probe", "blocks.1.norm"):
        wanted = [path for path in graph.ancestors(name) if graph.nodes[path].role != "join"]
        assert list(direct.ancestors(name)) == wanted


def test_collapse_to_blocks(graph: Graph) -> None:
    blocks = graph.collapse(2)
    assert pairs(blocks) == {
        ("(input)", "embed"): "data",
        ("embed", "blocks.0"): "data",
        ("blocks.0", "blocks.1"): "data",
        ("blocks.1", "head"): "data",
        ("blocks.1", "probe"): "data",
        ("head", "(output)"): "data",
    }
    assert blocks.nodes["blocks.0"].type == "Block"
    assert blocks.nodes["blocks.0"].num_parameters == 20
    assert blocks.order == ("(input)", "embed", "blocks.0", "blocks.1", "head", "probe", "(output)")
    assert ("embed", "blocks") in pairs(graph.collapse(1))
    assert "idle" in blocks.nodes


def test_networkx_form(graph: Graph) -> None:
    networkx = pytest.importorskip("networkx")
    digraph = graph.to_networkx()
    assert networkx.is_directed_acyclic_graph(digraph)
    assert digraph.edges["embed", "blocks.0:add"]["kind"] == "residual"
    assert digraph.nodes["head"]["num_parameters"] == 10
    assert set(graph.ancestors("head")) == networkx.ancestors(digraph, "head")


def test_the_flow_visualizer_takes_it(graph: Graph) -> None:
    pytest.importorskip("networkx")
    from stethoscope.instruments.flow import GradientFlowVisualizer

    norms = {
        "embed.weight": [1.0, 1.0],
        "blocks.0.fc.weight": [0.5, 0.5],
        "blocks.0.fc.bias": [0.1, 0.1],
        "blocks.1.fc.weight": [0.4, 0.4],
        "head.weight": [2.0, 2.0],
    }
    seen = GradientFlowVisualizer().create_visualization(norms, graph=graph)
    nodes = {node.layer_name: node for node in seen.flow_network.nodes}
    assert list(nodes) == ["embed", "blocks.0.fc", "blocks.1.fc", "head"]
    assert nodes["head"].num_parameters == 10
    found = {(e.from_layer, e.to_layer) for e in seen.flow_network.edges}
    assert found == {
        ("embed", "blocks.0.fc"),
        ("embed", "blocks.1.fc"),
        ("embed", "head"),
        ("blocks.0.fc", "blocks.1.fc"),
        ("blocks.0.fc", "head"),
        ("blocks.1.fc", "head"),
    }
    assert seen.flow_network.from_model_graph


def test_graph_of_a_watched_run(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import stethoscope

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = stethoscope.watch(model, optimizer, run=tmp_path / "run", companion="off", quiet=True)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
    session.stop()
    graph = graph_of(session.run)
    assert graph is not None
    assert [(e.source, e.target) for e in graph.edges] == [
        ("(input)", "0"),
        ("0", "1"),
        ("1", "2"),
        ("2", "(output)"),
    ]
    assert graph.nodes["0"].type == "Linear"
    assert graph.nodes["0"].num_parameters == 40
    assert len(session.run.events("graph")) == 1
    off = stethoscope.watch(model, optimizer, run=tmp_path / "off", companion="off", quiet=True, graph=False)
    model(torch.randn(5, 4)).square().mean().backward()
    optimizer.step()
    off.stop()
    assert graph_of(off.run) is None


def test_a_run_whose_graph_is_unknown_has_none() -> None:
    class Run:
        def __init__(self, *flows: DataFlow) -> None:
            self._flows = flows

        def events_of(self, kind: type[DataFlow]) -> list[tuple[None, DataFlow]]:
            assert kind is DataFlow
            return [(None, flow) for flow in self._flows]

    known = DataFlow(version=1, status="copy", nodes=(Node(path="a"),))
    unknown = DataFlow(version=1, status="unknown", reason="none")
    assert graph_of(Run()) is None  # type: ignore[arg-type]
    assert graph_of(Run(unknown, DataFlow(version=99, status="traced"))) is None  # type: ignore[arg-type]
    found = graph_of(Run(known, unknown))  # type: ignore[arg-type]
    assert found is not None
    assert list(found.nodes) == ["a"]


def test_what_leads_to_nodes_that_are_not_named_is_left_out() -> None:
    edges = (Edge(source="a", target="b"), Edge(source="a", target="gone"))
    flow = DataFlow(
        version=1,
        status="traced",
        nodes=(Node(path="a"), Node(path="b")),
        edges=edges,
        absorbed={"a.inner": "a", "x": "gone"},
    )
    graph = Graph.of(flow)
    assert graph.edges == edges[:1]
    assert graph.descendants("a") == ("b",)
    assert graph.node_of("x.weight") is None


def test_reading_a_graph_needs_no_torch() -> None:
    code = "import sys, stethoscope.analyse.graph; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

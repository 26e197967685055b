"""Five kinds of network, each trained a few steps: the edges of the flow against a truth made by hand."""

from __future__ import annotations

import itertools
from pathlib import Path

import flow_gallery
import pytest

import stethoscope

Edges = set[tuple[str, str]]


def chain(*names: str) -> Edges:
    return set(itertools.pairwise(names))


def stream(writers: list[str], readers: list[str], first: list[int]) -> Edges:
    """A residual stream: what the n-th writer adds is read by every reader from the `first[n]`-th on."""
    return {(w, r) for w, begin in zip(writers, first, strict=True) for r in readers[begin:]}


def resnet() -> Edges:
    inside = [chain(*(f"blocks.{i}.{n}" for n in ("conv1", "norm1", "conv2", "norm2"))) for i in range(3)]
    writers = ["stem", *(f"blocks.{i}.norm2" for i in range(3))]
    readers = [*(f"blocks.{i}.conv1" for i in range(3)), "head"]
    return set().union(*inside) | stream(writers, readers, [0, 1, 2, 3])


def transformer() -> Edges:
    edges = {("norm", "head")}
    for i in range(2):
        edges |= {(f"blocks.{i}.norm1", f"blocks.{i}.attention")}
        edges |= chain(f"blocks.{i}.norm2", f"blocks.{i}.up", f"blocks.{i}.down")
    writers = ["embed", *(f"blocks.{i}.{n}" for i in range(2) for n in ("attention", "down"))]
    readers = [*(f"blocks.{i}.{n}" for i in range(2) for n in ("norm1", "norm2")), "norm"]
    return edges | stream(writers, readers, [0, 1, 2, 3, 4])


def mixture() -> Edges:
    edges = {("stem", "router"), ("router", "head"), ("stem", "head")}
    for i in range(4):
        edges |= chain("stem", f"experts.{i}.0", f"experts.{i}.2", "head")
    return edges


TRUTH = {
    "resnet": resnet(),
    "transformer-tied": transformer(),
    "lstm": chain("embed", "lstm", "head"),
    "unet": chain("down1", "down2", "middle", "up2", "up1", "head") | {("down2", "up2"), ("down1", "up1")},
    "mixture": mixture(),
}
EARLIEST = {
    "resnet": "stem",
    "transformer-tied": "embed",
    "lstm": "embed",
    "unet": "down1",
    "mixture": "stem",
}


@pytest.mark.parametrize("name", flow_gallery.NETWORKS)
def test_the_flow_has_the_networks_own_edges_and_can_be_drawn(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_gallery, "NUM_STEPS", 4)
    session = flow_gallery.train(name, tmp_path)
    flow = session.flow_visualization()
    assert {(edge.from_layer, edge.to_layer) for edge in flow.flow_network.edges} == TRUTH[name]
    assert [path.layers[0] for path in flow.critical_paths] == [EARLIEST[name]]
    assert {path.layers[-1] for path in flow.critical_paths} == {"head"}
    for node in flow.flow_network.nodes:
        degree = sum(node.layer_name in edge for edge in TRUTH[name])
        assert node.connectivity == degree
    assert flow.save(tmp_path / "flow.svg").stat().st_size > 1000
    animator = session.animation()
    assert [frame.step for frame in animator.frames] == [0, 1, 2, 3]
    session.stop()


def test_a_tied_weight_shows_at_both_ends_and_is_one_gradient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_gallery, "NUM_STEPS", 3)
    session = flow_gallery.train("transformer-tied", tmp_path)
    flow = session.flow_visualization()
    assert flow.layer_flows["embed.weight"].gradient_magnitudes == flow.layer_flows["head.weight"].gradient_magnitudes
    session.stop()
    with stethoscope.open_run(session.folder) as run:
        assert "head.weight" not in run.series(kind="gradient")

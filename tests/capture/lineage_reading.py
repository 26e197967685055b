"""Following a model's first forward, and its edges as text."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from torch import nn

from stethoscope.analyse.graph import Graph
from stethoscope.capture.lineage import Lineage


def follow(model: nn.Module, *args: Any, **kwargs: Any) -> Graph:
    got: list[dict[str, Any]] = []
    lineage = Lineage(model, got.append)
    lineage.attach()
    model(*args, **kwargs)
    assert lineage.done
    assert len(got) == 1
    assert got[0]["status"] == "traced", got[0]
    return Graph.from_json(got[0])


def edges(graph: Graph, *, direct: bool = True) -> set[str]:
    """As "a > b", with "~" for a residual edge and "|" for a cut one."""
    shape = graph.direct() if direct else graph
    signs = {("data", False): ">", ("residual", False): "~", ("data", True): "|", ("residual", True): "~|"}
    return {f"{e.source} {signs[e.kind, e.detached]} {e.target}" for e in shape.edges}


def chain(text: str) -> set[str]:
    names = text.split()
    return {f"{a} > {b}" for a, b in pairwise(names)}

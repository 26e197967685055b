"""Whether a norm takes the size of the inputs away, before anything else could suffer from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stethoscope.analyse.span import Span
from stethoscope.record import Kind
from stethoscope.record.events import DataFlow

HOMOGENEOUS: Final = (
    "Linear",
    "Conv",
    "ReLU",
    "LeakyReLU",
    "PReLU",
    "MaxPool",
    "AvgPool",
    "AdaptiveAvgPool",
    "AdaptiveMaxPool",
    "Dropout",
    "Flatten",
    "Unflatten",
    "Identity",
    "ZeroPad",
)
"""Layers whose output is as many times larger as their input is; a norm behind them gives the same for any size."""


def is_scaled_on_every_way(flow: DataFlow) -> bool | None:
    """Whether each way from the inputs meets a norm behind nothing but layers that hand their size on; None where ways are unknown."""
    types = {node.path: node.type for node in flow.nodes}
    waiting = [node.path for node in flow.nodes if node.role == "input"]
    if not waiting or flow.untraced or flow.truncated:
        return None
    seen: set[str] = set(waiting)
    while waiting:
        source = waiting.pop()
        for edge in flow.edges:
            kind = types.get(edge.target, "")
            if edge.source != source or edge.target in seen or "Norm" in kind:
                continue
            if not kind.startswith(HOMOGENEOUS):
                return False
            seen.add(edge.target)
            waiting.append(edge.target)
    return True


def is_scaled_in_order(span: Span) -> bool:
    """Whether only layers that hand the size of their input on stand between it and the first norm."""
    outputs = span.in_depth(span.site_indices(Kind.ACTIVATION))
    paths = dict.fromkeys(span.sites[n].site.module for n in outputs)
    # Looked up, not searched for with each path: models have ten thousand modules.
    holders = {holder for path in span.modules for holder in _holders_of(path)}
    for path in paths:
        if not path or path in holders:
            continue
        kind = str(span.modules.get(path, {}).get("type", ""))
        if "Norm" in kind:
            return True
        if not kind.startswith(HOMOGENEOUS):
            return False
    return False


def _holders_of(path: str) -> Iterator[str]:
    """The modules that this one is inside of, but for the root."""
    end = path.rfind(".")
    while end > 0:
        yield path[:end]
        end = path.rfind(".", 0, end)

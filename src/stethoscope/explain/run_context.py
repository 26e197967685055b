"""What a run itself says about causes: when it began, where its learning rate jumped, what a normalization keeps out.

Used to tell a finding with a root of its own from a consequence of something that merely came earlier.
"""

from __future__ import annotations

import dataclasses

from stethoscope.analyse.graph import INPUT, Graph, graph_of
from stethoscope.record import IntArray, StethoscopeError, metrics
from stethoscope.store import Run

JUMP = 3.0
"""A rate that is this many times the step before's was set, not scheduled: a warm-up from 0 apart, no schedule does that."""


@dataclasses.dataclass(frozen=True, slots=True)
class RunContext:
    """What is known beside the findings; by default nothing."""

    first_step: int | None = None
    rate_jumps: tuple[int, ...] = ()
    """Steps at which a learning rate became several times what it was."""
    graph: Graph | None = None

    def is_shielded(self, site: str) -> bool:
        """Whether every way from the input to this module leads through a normalization, which forgets the input's size."""
        if self.graph is None:
            return False
        node = self.graph.node_of(site)
        if node is None or INPUT not in self.graph.nodes:
            return False
        seen, ahead = {node}, [node]
        while ahead:
            for edge in self.graph.inputs(ahead.pop()):
                if edge.source == INPUT:
                    return False
                if edge.source not in seen and "Norm" not in self.graph.nodes[edge.source].type:
                    seen.add(edge.source)
                    ahead.append(edge.source)
        return True


def context_of(run: Run) -> RunContext:
    """Read from the run; what cannot be read is left out."""
    try:
        graph = graph_of(run)
    except StethoscopeError:
        graph = None
    rates = [run.metric(name) for name in run.metrics() if metrics.is_learning_rate(name)]
    jumps: set[int] = set()
    for series in rates:
        before, after = series.values[:-1], series.values[1:]
        where: IntArray = series.steps[1:][(before > 0) & (after >= JUMP * before)]
        jumps.update(int(step) for step in where)
    first = min((int(series.steps[0]) for series in rates if len(series)), default=None)
    return RunContext(first, tuple(sorted(jumps)), graph)

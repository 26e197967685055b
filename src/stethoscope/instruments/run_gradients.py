"""A run's gradients in the form that the animator and the flow visualizer take: by parameter, step by step.

A gradient with a NaN or an infinity in it has a norm that is not finite here, as the instruments expect; the
counts say which of the two it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stethoscope.analyse.graph import Graph
from stethoscope.instruments.flow_types import GradientHistory
from stethoscope.record import FloatArray, IntArray, Kind, SiteInfo

if TYPE_CHECKING:
    from stethoscope.store import Run


@dataclass(frozen=True, slots=True, eq=False)
class RunGradients:
    """Steps by sites; `present` says where something was measured."""

    steps: IntArray
    sites: tuple[SiteInfo, ...]
    mean_abs: FloatArray
    abs_max: FloatArray
    norm: FloatArray
    """Over the finite values."""
    num_nan: FloatArray
    num_inf: FloatArray
    present: Any

    @classmethod
    def read(cls, run: Run, first: int | None = None, last: int | None = None) -> RunGradients:
        """Every gradient of the steps first..last."""

        def matrix(stat: str) -> Any:
            return run.matrix(Kind.GRADIENT, stat, first=first, last=last)

        norm = matrix("norm")
        return cls(
            norm.steps,
            norm.sites,
            matrix("mean_abs").values,
            matrix("abs_max").values,
            norm.values,
            matrix("num_nan").values,
            matrix("num_posinf").values + matrix("num_neginf").values,
            ~norm.missing,
        )

    def histories(self, run: Run) -> dict[str, GradientHistory]:
        """A history for every parameter that ever had a gradient, in the order they were registered."""
        broken = np.where(self.num_nan > 0, np.nan, np.where(self.num_inf > 0, np.inf, 0.0))
        norms = np.where(self.present, np.nan_to_num(self.norm) + broken, 0.0)
        found = {}
        for index, info in enumerate(self.sites):
            there = self.present[:, index]
            if not there.any():
                continue
            steps = self.steps[there]
            found[info.site.path] = GradientHistory(
                steps.tolist(), norms[there, index].tolist(), _read_sketches(run, info, steps), info.num_elements
            )
        return found

    def frames(self) -> Iterator[tuple[int, list[int]]]:
        """Each step with the indices of the parameters that were measured in it."""
        for row, step in enumerate(self.steps.tolist()):
            yield step, np.flatnonzero(self.present[row]).tolist()


def _read_sketches(run: Run, info: SiteInfo, steps: IntArray) -> Any:
    """One sketch a step, where every step has one; sketches are taken more rarely than norms, most often."""
    known, vectors = run.vectors("sketch", info.site)
    indices = np.searchsorted(known, steps)
    if not len(known) or (indices >= len(known)).any() or (known[indices] != steps).any():
        return None
    return vectors[indices]


def with_tied(histories: dict[str, GradientHistory], graph: Graph) -> dict[str, GradientHistory]:
    """A tied weight has one gradient and several names: each module that uses it shows it."""
    out = dict(histories)
    for group in graph.tied:
        known = next((histories[name] for name in group if name in histories), None)
        if known is not None:
            for name in group:
                out.setdefault(name, GradientHistory(known.step_numbers, known.gradient_norms, known.sketches, 0))
    return out


def gradient_edges(graph: Graph) -> dict[str, Any]:
    """The graph along which a gradient comes back: without what is cut, and without indices and masks."""
    return {
        "nodes": dict(graph.nodes),
        "edges": [edge for edge in graph.edges if edge.gradient == "flows"],
    }

"""GradientDebugger: gradients by layer and step, and what is wrong with them.

Takes gradients by hand (`record_gradient_flow`) or all layers of a step at once (`record_step`); NumPy,
torch, JAX and lists alike. A gradient that is not finite is Critical and located. The bounds are those of the
seeds; trends and oscillation are called only where a test says they are more than chance.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any, Final

import numpy as np

from stethoscope.instruments.array_input import ArrayError
from stethoscope.instruments.comparison import cosine
from stethoscope.instruments.gradient_health import (
    GradientConflict,
    GradientFlowAnalysis,
    LayerGradientAnalysis,
    analyse_layer,
    summarise,
)
from stethoscope.instruments.gradient_layers import EMPTY_LOOK, GradientLook, LayerGradients, direction_of
from stethoscope.instruments.source import Source
from stethoscope.instruments.units import DeadUnits, UnitCounter
from stethoscope.record import FloatArray, StethoscopeError

MAX_HISTORY: Final = 100
MAX_LAYERS: Final = 100_000


class GradientDebugger:
    """Follows gradients over training and says how healthy they are, with reasons."""

    def __init__(
        self,
        max_history: int = MAX_HISTORY,
        *,
        enabled: bool = True,
        source: Callable[[GradientDebugger], None] | None = None,
    ) -> None:
        """`source` is asked before every question, and hands in what a session measured since; where not
        `enabled` nothing is measured or kept."""
        if max_history < 1:
            raise StethoscopeError("max_history must be at least 1", where=max_history)
        self.max_history = max_history
        self.enabled = enabled
        self.by_hand: set[str] = set()
        """Layers that a user records; a session leaves them alone."""
        self._source = Source(source)
        self._layers: dict[str, LayerGradients] = {}
        self._units: dict[str, UnitCounter] = {}
        self._lock = threading.Lock()
        self._conflicts: dict[tuple[str, str], deque[tuple[int, float]]] = {}

    def record_gradient_flow(
        self, layer: str, values: Any, *, step: int | None = None, weights: Any = None, update: Any = None
    ) -> GradientLook:
        """Records one layer's gradient; without a step number it is the layer's next one.

        With `weights` the update/weight ratio is known: from `update`, else from how they changed since the
        last look.
        """
        if not self.enabled:
            return EMPTY_LOOK
        with self._lock:
            self.by_hand.add(layer)
            history, step = self._history_of(layer, step)
            return history.add(step, values, weights=weights, update=update)

    def record_row(
        self,
        layer: str,
        row: FloatArray,
        *,
        step: int | None = None,
        sketch: Any = None,
        update_ratio: float | None = None,
    ) -> GradientLook:
        """Records a gradient that a kernel has measured already: its row of statistics, and its sketch if any."""
        if not self.enabled:
            return EMPTY_LOOK
        direction = None if sketch is None else np.asarray(sketch, dtype=np.float64).reshape(-1)
        with self._lock:
            history, step = self._history_of(layer, step)
            return history.add_row(step, row, direction=direction, update_ratio=update_ratio)

    def _history_of(self, layer: str, step: int | None) -> tuple[LayerGradients, int]:
        history = self._layers.get(layer)
        if history is None:
            if len(self._layers) >= MAX_LAYERS:
                text = f"more than {MAX_LAYERS:,} layers"
                raise StethoscopeError(text, where=layer, do="Call clear() first")
            history = self._layers[layer] = LayerGradients(layer, self.max_history)
        if step is None:
            step = history.looks[-1].step + 1 if history.looks else 0
        return history, step

    def record_step(
        self,
        step: int,
        gradients: Mapping[str, Any],
        *,
        weights: Mapping[str, Any] | None = None,
        updates: Mapping[str, Any] | None = None,
    ) -> dict[str, GradientLook]:
        """Records the gradients of all layers at one step; layers whose gradient is None are left out."""
        weights, updates = weights or {}, updates or {}
        return {
            layer: self.record_gradient_flow(
                layer, values, step=step, weights=weights.get(layer), update=updates.get(layer)
            )
            for layer, values in gradients.items()
            if values is not None
        }

    def record_units(self, layer: str, matrix: Any, *, unit_axis: int = -1) -> None:
        """Records a batch of a layer's activations or activation gradients, for the count of dead units."""
        if self.enabled:
            self._units.setdefault(layer, UnitCounter(layer)).add(matrix, unit_axis=unit_axis)

    def record_task_gradients(self, step: int, gradients: Mapping[str, Any]) -> dict[tuple[str, str], float | None]:
        """Records the gradients that several losses or tasks ask of the same weights; returns their cosines.

        Each task gives one array, or a mapping of arrays by parameter (shared parameters are compared).
        """
        cosines = task_cosines(gradients)
        for pair, value in cosines.items():
            if value is not None and self.enabled:
                history = self._conflicts.setdefault(pair, deque(maxlen=self.max_history))
                history.append((step, value))
        return cosines

    def layers(self) -> list[str]:
        """The layers that were recorded, in the order they came."""
        self._take_in()
        return list(self._layers)

    def history(self, layer: str) -> list[GradientLook]:
        """The looks at one layer that are still kept, oldest first."""
        self._take_in()
        known = self._layers.get(layer)
        return list(known.looks) if known else []

    def dead_units(self, layer: str, *, tolerance: float = 0.0) -> DeadUnits | None:
        """Which units of a layer never fired; None where no units were recorded."""
        self._take_in()
        counter = self._units.get(layer)
        return None if counter is None else counter.dead(tolerance)

    def conflicts(self) -> list[GradientConflict]:
        """Pairs of tasks whose gradients pull against each other, the most opposed first."""
        return [pair for pair in self.task_pairs() if pair.is_conflict]

    def task_pairs(self) -> list[GradientConflict]:
        """Every pair of tasks and how their gradients agree, the most opposed first."""
        found = [
            GradientConflict(
                first=pair[0],
                second=pair[1],
                mean_cosine=float(np.mean([value for _, value in history])),
                negative_share=float(np.mean([value < 0 for _, value in history])),
                last_cosine=history[-1][1],
                num_steps=len(history),
            )
            for pair, history in self._conflicts.items()
        ]
        return sorted(found, key=lambda conflict: conflict.mean_cosine)

    def analyze_layer(self, layer: str) -> LayerGradientAnalysis | None:
        """What is known of one layer."""
        self._take_in()
        known = self._layers.get(layer)
        return None if known is None or not known.looks else analyse_layer(known, self.dead_units(layer))

    def analyze_gradient_flow(self) -> GradientFlowAnalysis:
        """What is known of all of them: health, its reasons, and what to do."""
        self._take_in()
        layers = {name: analyse_layer(known, self.dead_units(name)) for name, known in self._layers.items()}
        only_units = [c.dead() for name, c in self._units.items() if name not in self._layers]
        return summarise(layers, only_units, self.conflicts())

    def clear(self) -> None:
        """Forgets everything that was recorded."""
        self._take_in()
        self.by_hand.clear()
        self._layers.clear()
        self._units.clear()
        self._conflicts.clear()

    def _take_in(self) -> None:
        """Take in what came since the last question."""
        self._source.into(self)


def task_cosines(gradients: Mapping[str, Any]) -> dict[tuple[str, str], float | None]:
    """The cosine between the gradients of each pair of tasks; None where one of them is zero or shares
    nothing."""
    out: dict[tuple[str, str], float | None] = {}
    for (first, a), (second, b) in combinations(gradients.items(), 2):
        parts_a = a if isinstance(a, Mapping) else {"": a}
        parts_b = b if isinstance(b, Mapping) else {"": b}
        shared = [k for k in parts_a if k in parts_b and parts_a[k] is not None and parts_b[k] is not None]
        if not shared:
            out[first, second] = None
            continue
        x = [direction_of(parts_a[key]) for key in shared]
        y = [direction_of(parts_b[key]) for key in shared]
        if any(len(p) != len(q) for p, q in zip(x, y, strict=True)):
            raise ArrayError(
                f"the gradients of {first} and {second} have different sizes",
                where=f"{first}, {second}",
                do="Give the gradients of the same weights for every task",
            )
        out[first, second] = cosine(np.concatenate(x), np.concatenate(y))
    return out

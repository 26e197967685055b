"""From a run to the Profiler: every step's time by parts, memory, and layers at the steps that were timed.

Times come from the step's named numbers; nothing is measured here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stethoscope.instruments.reading.recorded import RecordedRun
from stethoscope.record import metrics

if TYPE_CHECKING:
    from stethoscope.instruments.profiler import Profiler
    from stethoscope.store import Run

MAX_STEPS: Final = 4096
"""Steps that are taken in at once; of a longer silence the latest are known."""
WARM_UP_STEPS: Final = 2
"""Steps of this process that the profiler is not told of: they compile and allocate, and say nothing about the rest."""

PARTS: Final = (
    (metrics.DATA_MS, "waiting for data", "data_loading"),
    (metrics.FORWARD_MS, "forward", "phase"),
    (metrics.BACKWARD_MS, "backward", "phase"),
    (metrics.OPTIMIZER_MS, "optimizer", "phase"),
    (metrics.OVERHEAD_MS, "stethoscope", "operation"),
)
"""The step's parts in the order in which they come: its named number, what it is called, its category."""
WHOLE: Final = "step"
_TIMED: Final = frozenset({metrics.STEP_MS}.union(name for name, _, _ in PARTS))


@dataclass(frozen=True, slots=True)
class LayerTime:
    """One execution of one module, its own code only: what its children take is theirs."""

    name: str
    type: str
    forward_s: float
    backward_s: float | None
    output_bytes: int
    parameter_count: int


class TimeReading:
    """What a Profiler has taken in of a run."""

    def __init__(
        self,
        recorded: RecordedRun,
        *,
        last_step_ended: Callable[[], float],
        memory_total_bytes: Callable[[], int | None],
        layer_times: deque[list[LayerTime]] | None = None,
    ) -> None:
        """`last_step_ended` tells when, by `time.perf_counter`; `layer_times` has the steps whose layers were timed."""
        self._recorded = recorded
        self._last_step_ended, self._memory_total_bytes = last_step_ended, memory_total_bytes
        self._layer_times = layer_times
        self._next_step = recorded.first_step + WARM_UP_STEPS
        self._next_use = recorded.first_step
        self._told_until_s = -math.inf

    def take_in(self, profiler: Profiler) -> None:
        """Hand over the times of the steps, and of the layers, that came since the last time."""
        while self._layer_times:
            layers_into(profiler, self._layer_times.popleft())
        run = self._recorded.read()
        if run is not None:
            self._take_steps(run, profiler)
            self._take_memory(run, profiler)

    def _take_steps(self, run: Run, profiler: Profiler) -> None:
        by_step: dict[int, dict[str, float]] = {}
        for name in _TIMED.intersection(run.metrics()):
            series = run.metric(name, rank=self._recorded.rank, first=self._next_step)
            for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
                by_step.setdefault(step, {})[name] = value
        whole = sorted(step for step, values in by_step.items() if metrics.STEP_MS in values)[-MAX_STEPS:]
        # A step begins where the one before it ends, and when the last one ended is known.
        took_s = sum(by_step[step][metrics.STEP_MS] for step in whole) / 1e3
        ended_s = max(self._last_step_ended() - took_s, self._told_until_s)
        for step in whole:
            ended_s += by_step[step][metrics.STEP_MS] / 1e3
            step_into(profiler, by_step[step], ended_s)
        if whole:
            self._next_step, self._told_until_s = whole[-1] + 1, ended_s

    def _take_memory(self, run: Run, profiler: Profiler) -> None:
        used = run.metric(metrics.MEMORY_IN_USE, rank=self._recorded.rank, first=self._next_use)
        if len(used):
            profiler.record_memory(round(float(used.values.max()) * 1e6), self._memory_total_bytes())
            self._next_use = int(used.steps[-1]) + 1


def step_into(profiler: Profiler, values: Mapping[str, float], ended_s: float) -> None:
    """One step as an event with its parts inside it."""
    took_s = values[metrics.STEP_MS] / 1e3
    at, inside_s = ended_s - took_s, 0.0
    for name, title, category in PARTS:
        part_ms = values.get(name)
        if part_ms is None or not part_ms >= 0:
            continue
        part_s = min(part_ms / 1e3, max(took_s - inside_s, 0.0))
        profiler.record_part(title, category, at + inside_s, part_s, WHOLE)
        inside_s += part_s
    profiler.record_part(WHOLE, "phase", at, took_s, "", inside_s=inside_s)


def layers_into(profiler: Profiler, times: list[LayerTime]) -> None:
    """The layers of one step that was timed."""
    for time in times:
        profiler.record_layer_execution(
            time.name, time.type, time.forward_s, time.backward_s, time.output_bytes, time.parameter_count
        )

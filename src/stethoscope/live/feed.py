"""Between capture and the run: everything goes on to the writer, and the latest is kept for the instruments.

Nothing is measured here and no tensor is touched. The training thread pays for a few array selections a step;
what instruments make of the rows is worked out by whoever asks them, when they ask.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from stethoscope.kernels.columns import INDEX
from stethoscope.live.metrics import USED, performance
from stethoscope.record import FloatArray, Kind, SiteInfo
from stethoscope.record.wire import EventBody

if TYPE_CHECKING:
    from stethoscope.capture.sites import Sink
    from stethoscope.instruments.diagnostics import ModelDiagnostics
    from stethoscope.instruments.gradient_debugger import GradientDebugger
    from stethoscope.instruments.inspector import TensorInspector
    from stethoscope.instruments.profiler import Profiler
    from stethoscope.live.profile import LayerTime

MAX_OPEN_STEPS: Final = 256
"""Steps whose metrics may still be joined by ones that are logged late."""
MAX_ARRIVED: Final = 1024
MAX_TIMES: Final = 4096
"""Steps whose times wait for somebody to ask; of a longer silence the latest are known."""
WARM_UP_STEPS: Final = 2
"""Steps of this process that the profiler is not told of: they compile and allocate, and say nothing about the rest."""
_TIMED: Final = ("step_ms", "data_ms", "forward_ms", "backward_ms", "optimizer_ms", "overhead_ms")
_NAN: Final = float("nan")
MAX_UNIT_ROWS: Final = 8192
"""Looks at units that wait for somebody to ask for the dead ones."""
_NORM, _COUNT = INDEX["norm"], INDEX["count"]
_BROKEN = [INDEX[name] for name in ("num_nan", "num_posinf", "num_neginf")]
_ROLES: Final = {Kind.GRADIENT: 1, Kind.UPDATE: 2, Kind.WEIGHT: 3}


@dataclasses.dataclass(frozen=True, slots=True)
class StepFacts:
    """What is known of a Step once its numbers are there."""

    step: int
    gradient_norm: float | None
    metrics: dict[str, float]

    @property
    def loss(self) -> float | None:
        """The loss, where a backward was heard."""
        return self.metrics.get("loss")


@dataclasses.dataclass(slots=True)
class _GradientRows:
    """The gradients of one Step as the kernels measured them."""

    step: int
    index: npt.NDArray[np.uint32]
    rows: FloatArray
    changes: tuple[npt.NDArray[np.uint32], FloatArray]
    """Norm and count of every update and weight, from which the ratios come when they are asked for."""
    sketches: dict[int, Any] = dataclasses.field(default_factory=dict)


class Feed:
    """A sink in front of the run's writer."""

    def __init__(
        self,
        run: Sink,
        *,
        max_history: int,
        keep_gradients: bool,
        keep_metrics: bool,
        max_looks: int = 0,
        keep_times: bool = False,
    ) -> None:
        self._run = run
        self._max_looks, self._keep_times = max_looks, keep_times
        self._infos: list[SiteInfo] = []
        self._looks: deque[tuple[int, npt.NDArray[np.uint32], FloatArray]] = deque()
        self._num_looks = self._num_sized = self._num_steps = 0
        self._times: deque[tuple[float, ...]] = deque(maxlen=MAX_TIMES)
        self._memory: deque[tuple[int, int]] = deque(maxlen=MAX_TIMES)
        self._most_used_bytes = 0
        self.memory_total_bytes: int | None = None
        self.layer_times: deque[list[LayerTime]] | None = None
        """Steps whose layers were timed, where somebody times them."""
        self._keep_gradients, self._keep_metrics = keep_gradients and max_history > 0, keep_metrics
        self._lock = threading.Lock()
        self._names: list[str] = []
        self._known_roles = bytearray()
        self._roles = np.zeros(0, np.uint8)
        self._gradients: deque[_GradientRows] = deque(maxlen=max(max_history, 1))
        self._units: deque[tuple[int, FloatArray]] = deque(maxlen=MAX_UNIT_ROWS)
        self._gradient_norm: tuple[int, float] | None = None
        self._metrics: OrderedDict[int, dict[str, float]] = OrderedDict()
        self._changed: set[int] = set()
        self.arrived: deque[StepFacts] = deque(maxlen=MAX_ARRIVED)
        """Steps whose numbers are there, for the hooks to take."""
        self.batch_size: int | None = None

    # ---- the sink ----

    def sites(self, infos: Sequence[SiteInfo]) -> None:
        """New sites: which rows are gradients, and how large a batch is."""
        self._run.sites(list(infos))
        self._known_roles.extend(_ROLES.get(info.site.kind, 0) for info in infos)
        self._names.extend(info.site.path for info in infos)
        self._infos.extend(infos)
        for info in infos:
            if info.site.kind is Kind.INPUT and info.shape and self.batch_size is None:
                self.batch_size = info.shape[0]

    def rows(
        self,
        step: int,
        index: npt.NDArray[np.uint32],
        table: FloatArray,
        calls: npt.NDArray[np.uint32] | None = None,
    ) -> None:
        """Rows of one step."""
        self._run.rows(step, index, table, calls)
        if self._max_looks:
            self._keep_looks(step, index, table)
        if len(self._roles) != len(self._known_roles):
            self._roles = np.frombuffer(bytes(self._known_roles), np.uint8)
        roles = self._roles[index]
        chosen = np.flatnonzero(roles == 1)
        if not len(chosen):
            return
        rows = table[chosen]
        norms = rows[:, _NORM]
        total = float("nan") if rows[:, _BROKEN].any() else float(np.sqrt(norms @ norms))
        self._gradient_norm = step, total
        if self._keep_gradients:
            others = np.flatnonzero(roles >= 2)
            changes = index[others], table[others][:, [_NORM, _COUNT]]
            with self._lock:
                self._gradients.append(_GradientRows(step, index[chosen], rows, changes))

    def _keep_looks(self, step: int, index: npt.NDArray[np.uint32], table: FloatArray) -> None:
        """The rows of the last steps, as many as an inspector remembers; the newest step's in any case."""
        with self._lock:
            self._looks.append((step, index, table))
            self._num_looks += len(index)
            while len(self._looks) > 1 and self._num_looks - len(self._looks[0][1]) >= self._max_looks:
                self._num_looks -= len(self._looks.popleft()[1])

    def memory(self, step: int, used_bytes: int) -> None:
        """So much memory was in use at the end of a step."""
        with self._lock:
            self._memory.append((step, used_bytes))
            self._most_used_bytes = max(self._most_used_bytes, used_bytes)
            if self._keep_metrics and step in self._metrics:
                self._metrics[step].setdefault("memory_mb", used_bytes / 1e6)
                self._changed.add(step)

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Named numbers of one step; a Step's own come last and say that it is complete."""
        self._run.scalars(step, values)
        with self._lock:
            if self._keep_metrics:
                # A few numbers, not the ten to twenty of a step: while nobody asks, thousands of steps wait.
                used = {name: value for name, value in values.items() if name in USED}
                self._metrics.setdefault(step, {}).update(used)
                self._changed.add(step)
                while len(self._metrics) > MAX_OPEN_STEPS and next(iter(self._metrics)) not in self._changed:
                    self._metrics.popitem(last=False)
                if len(self._metrics) > 40 * MAX_OPEN_STEPS:  # nobody has asked for a long time
                    self._changed.discard(self._metrics.popitem(last=False)[0])
        if "step_ms" in values:
            self._num_steps += 1
            if self._keep_times and self._num_steps > WARM_UP_STEPS:
                self._times.append((time.perf_counter(), *(values.get(name, _NAN) for name in _TIMED)))
            norm = values.get("grad_norm")
            if norm is None and self._gradient_norm is not None and self._gradient_norm[0] == step:
                norm = self._gradient_norm[1]
            self.arrived.append(StepFacts(step, norm, values))

    def vectors(self, step: int, name: str, index: npt.NDArray[np.uint32], values: npt.NDArray[Any]) -> None:
        """Sketches are the directions of gradients, activities say which units fire; the rest goes through."""
        self._run.vectors(step, name, index, values)
        if name == "unit_activity" and self._keep_gradients:
            with self._lock:
                self._units.extend(zip(index.tolist(), values, strict=True))
        if name != "sketch" or not self._keep_gradients:
            return
        with self._lock:
            if self._gradients and self._gradients[-1].step == step:
                chosen = np.flatnonzero(self._roles[index] == 1)
                self._gradients[-1].sketches = {int(index[i]): values[i] for i in chosen}

    def tell(self, step: int, said: EventBody) -> None:
        """An event; passes through."""
        self._run.tell(step, said)

    # ---- the instruments ----

    def gradients_into(self, debugger: GradientDebugger) -> None:
        """Hand over the gradients that came since the last time."""
        with self._lock:
            waiting, names, units = list(self._gradients), list(self._names), list(self._units)
            self._gradients.clear()
            self._units.clear()
        for place, activity in units:
            debugger.record_units(names[place], activity[None, :])
        for one in waiting:
            ratios = self._update_ratios(*one.changes)
            for place, row in zip(one.index.tolist(), one.rows, strict=True):
                name = names[place]
                if name not in debugger.by_hand:
                    ratio, sketch = ratios.get(name), one.sketches.get(place)
                    debugger.record_row(name, row, step=one.step, sketch=sketch, update_ratio=ratio)

    def metrics_into(self, diagnostics: ModelDiagnostics) -> None:
        """Hand over the metrics of every step that changed since the last time."""
        with self._lock:
            waiting = [(step, dict(self._metrics[step])) for step in sorted(self._changed)]
            self._changed.clear()
        for step, values in waiting:
            known = performance(step, values, self.batch_size)
            if known is not None:
                diagnostics.record_step(known)

    def looks_into(self, inspector: TensorInspector) -> None:
        """Hand over the rows that came since the last time, and the sizes of all tensors that are known."""
        from stethoscope.live.looks import hand_over, note_sizes

        with self._lock:
            waiting, infos = list(self._looks), list(self._infos)
            used, fresh = list(self._memory), infos[self._num_sized :]
            self._looks.clear()
            self._memory.clear()
            self._num_looks, self._num_sized = 0, len(infos)
        note_sizes(inspector, fresh)
        for step, used_bytes in used:
            inspector.memory.note_use(step, used_bytes)
        for step, index, table in waiting:
            for place, row in zip(index.tolist(), table, strict=True):
                hand_over(inspector, infos[place], row, step)

    def times_into(self, profiler: Profiler) -> None:
        """Hand over the times of the steps, and of the layers, that came since the last time."""
        from stethoscope.live.profile import layers_into, step_into

        with self._lock:
            waiting = list(self._times)
            self._times.clear()
        for ended_s, *values in waiting:
            step_into(profiler, dict(zip(_TIMED, values, strict=True)), ended_s)
        while self.layer_times:
            layers_into(profiler, self.layer_times.popleft())
        if self._most_used_bytes:
            profiler.record_memory(self._most_used_bytes, self.memory_total_bytes)

    def _update_ratios(self, index: npt.NDArray[np.uint32], sizes: FloatArray) -> dict[str, float]:
        """Norm of what the step changed over the norm of the weight; an update is measured on a sample, so by rms."""
        found: dict[str, float] = {}
        weights: dict[str, tuple[float, float]] = {}
        for place, (norm, count) in zip(index.tolist(), sizes.tolist(), strict=True):
            if self._roles[place] == _ROLES[Kind.WEIGHT]:
                weights[self._names[place]] = norm, count
        for place, (norm, count) in zip(index.tolist(), sizes.tolist(), strict=True):
            whole_norm, whole_count = weights.get(self._names[place], (0.0, 0.0))
            if self._roles[place] == _ROLES[Kind.UPDATE] and whole_norm > 0 and count > 0:
                found[self._names[place]] = norm * (whole_count / count) ** 0.5 / whole_norm
        return found

"""TensorInspector: looks at arrays one at a time and remembers what it saw.

Promises: takes NumPy, torch and JAX arrays and lists; never changes or keeps the array itself (only its
statistics and a weak reference); remembers at most `max_tracked_tensors`, oldest out first; an array that
cannot be read is refused with its name.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stethoscope.instruments.alerts import TensorAlert, TensorAlertKind, value_alerts
from stethoscope.instruments.comparison import TensorComparison, compare
from stethoscope.instruments.distribution import TensorDistribution
from stethoscope.instruments.leaks import Leak, LeakDetector
from stethoscope.instruments.memory import MemoryBook
from stethoscope.instruments.source import Source
from stethoscope.instruments.tensor_looks import (
    DRIFT_LIMIT,
    Course,
    LookComparison,
    TensorInfo,
    TensorStats,
    compare_looks,
    drift_of,
    mean_of,
    tensor_stats,
    unremarkable,
)
from stethoscope.record import Severity, StethoscopeError

if TYPE_CHECKING:
    from stethoscope.instruments.comparison_groups import GroupComparison
    from stethoscope.instruments.comparison_runs import RunComparison

__all__ = ["LookComparison", "TensorInfo", "TensorInspector", "TensorStats", "compare_looks", "tensor_stats"]


class TensorInspector:
    """Inspects arrays, keeps the latest looks, and says what is wrong, what drifts and what memory they
    hold."""

    def __init__(
        self,
        max_tracked_tensors: int = 1000,
        *,
        clock: Callable[[], float] = time.time,
        enabled: bool = True,
        source: Callable[[TensorInspector], None] | None = None,
    ) -> None:
        """Where not `enabled`, nothing is inspected: every id is 0, which names no inspection. `source` is asked before
        every question and hands in what a session measured since; what a user showed is never pushed out by it."""
        if max_tracked_tensors < 1:
            raise StethoscopeError("max_tracked_tensors must be at least 1", where=max_tracked_tensors)
        self.enabled = enabled
        self.max_tracked_tensors = max_tracked_tensors
        self._source = Source(source)
        self._memory = MemoryBook(max_tracked_tensors)
        self.leak_detector = LeakDetector()
        """Watches steps for tensors that outlive them: `with inspector.leak_detector.step(): ...`."""
        self._num_inspected = 0
        self.num_forgotten = 0
        """Looks that were dropped because there were more than `max_tracked_tensors`."""
        self.by_hand: set[tuple[str | None, str]] = set()
        """Layer and name of what a user showed: theirs alone, a session's looks at it are not kept."""
        self._recorded: OrderedDict[int, TensorInfo] = OrderedDict()
        self._shown: OrderedDict[int, weakref.ref[Any]] = OrderedDict()
        """The tensors that were shown, as long as other code holds them: `compare` reads them again."""
        self._clock = clock
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._infos: OrderedDict[int, TensorInfo] = OrderedDict()
        self._courses: OrderedDict[tuple[str | None, str, str | None], Course] = OrderedDict()

    def inspect_tensor(
        self,
        tensor: Any,
        name: str,
        layer: str | None = None,
        operation: str | None = None,
        *,
        step: int | None = None,
    ) -> int:
        """Looks at a tensor and returns the id under which `get_tensor_info` knows it."""
        if not self.enabled:
            return 0
        stats, spread, array = tensor_stats(tensor, name)
        alerts = [] if unremarkable(stats) else value_alerts(array, name)
        with self._lock:
            self._claim_name(layer, name)
            info = self._keep_info(stats, spread, alerts, (name, layer, operation, step), self._infos)
            self._memory.add(tensor, name, layer, stats.memory_usage_bytes, step)
            with contextlib.suppress(TypeError):  # lists and numbers cannot be held weakly
                self._shown[info.id] = weakref.ref(tensor)
            while len(self._shown) > self.max_tracked_tensors:
                self._shown.popitem(last=False)
        return info.id

    def _claim_name(self, layer: str | None, name: str) -> None:
        if (layer, name) not in self.by_hand:
            self.by_hand.add((layer, name))
            for key in [key for key, info in self._recorded.items() if (info.layer, info.name) == (layer, name)]:
                del self._recorded[key]

    def record_look(
        self,
        stats: TensorStats,
        name: str,
        layer: str | None = None,
        operation: str | None = None,
        *,
        step: int | None = None,
        alerts: Sequence[TensorAlert] = (),
    ) -> int:
        """Keeps statistics that were measured elsewhere, as a session does; returns the inspection's id."""
        if not self.enabled or (layer, name) in self.by_hand:
            return 0
        with self._lock:
            return self._keep_info(stats, None, list(alerts), (name, layer, operation, step), self._recorded).id

    def _take_in(self) -> None:
        """What a session measured since the last question."""
        self._source.into(self)

    @property
    def memory(self) -> MemoryBook:
        """The memory of the tensors that were seen: by tensor, by layer, over time."""
        self._take_in()
        return self._memory

    @property
    def num_inspected(self) -> int:
        """Looks so far, those that are forgotten included."""
        self._take_in()
        return self._num_inspected

    def _keep_info(
        self,
        stats: TensorStats,
        spread: TensorDistribution | None,
        alerts: list[TensorAlert],
        what: tuple[str, str | None, str | None, int | None],
        table: OrderedDict[int, TensorInfo],
    ) -> TensorInfo:
        name, layer, operation, step = what
        tensor_id = next(self._ids)
        course = self._course_of(layer, name, operation)
        course.add(stats)
        # What a session measures of a training is meant to move: `drift` tells how far, and there is no alert.
        drifted = self._drift_alert(course, name) if table is self._infos else None
        if drifted is not None:
            alerts.append(drifted)
        info = TensorInfo(
            id=tensor_id,
            name=name,
            layer=layer,
            operation=operation,
            step=step,
            timestamp=self._clock(),
            stats=stats,
            distribution=spread,
            alerts=tuple(replace(alert, tensor_id=tensor_id) for alert in alerts),
        )
        table[tensor_id] = info
        self._num_inspected += 1
        while len(self._infos) + len(self._recorded) > self.max_tracked_tensors:
            (self._recorded or self._infos).popitem(last=False)
            self.num_forgotten += 1
        return info

    def get_tensor_info(self, tensor_id: int) -> TensorInfo | None:
        """What was seen under this id, or None where it is unknown or forgotten."""
        self._take_in()
        return self._infos.get(tensor_id) or self._recorded.get(tensor_id)

    def _all_infos(self) -> list[TensorInfo]:
        self._take_in()
        with self._lock:
            both = [*self._infos.values(), *self._recorded.values()]
        return sorted(both, key=lambda info: info.id)

    def infos(
        self, name: str | None = None, *, layer: str | None = None, operation: str | None = None
    ) -> list[TensorInfo]:
        """The looks still remembered, oldest first, by name, layer and operation where given.

        In a session a tensor's name is its path, its layer the module, its operation what kind of tensor it is
        ("weight", "gradient", "activation", ...).
        """
        return [
            info
            for info in self._all_infos()
            if (name is None or info.name == name)
            and (layer is None or info.layer == layer)
            and (operation is None or info.operation == operation)
        ]

    def alerts(self, severity: Severity | str = Severity.INFO) -> list[TensorAlert]:
        """Every alert of the remembered inspections that matters at least this much."""
        least = Severity(severity).rank
        return [a for info in self._all_infos() for a in info.alerts if a.severity.rank >= least]

    def drift(self, name: str, *, layer: str | None = None, operation: str | None = None) -> float | None:
        """How far the mean has moved between the first five and the last five looks; None before ten.

        In units of the mean's own size or of the spread around it, whichever is larger: a mean near zero does
        not drift because it changes sign.
        """
        self._take_in()
        course = self._courses.get((layer, name, operation))
        if course is None and operation is None:
            same = [found for key, found in self._courses.items() if key[:2] == (layer, name)]
            course = same[0] if len(same) == 1 else None
        return None if course is None else drift_of(course)

    def compare(self, first: Any, second: Any) -> TensorComparison | GroupComparison | RunComparison | LookComparison:
        """Compares two arrays, or the tensors that two ids of `inspect_tensor` name; see `comparison.compare`.

        By id: element by element where both tensors still live and are as they were, else by what was remembered.
        """
        if not (_is_id(first) and _is_id(second)):
            return compare(first, second)
        looks = self.compare_looks(first, second)
        tensors = [self._unchanged_tensor(info) for info in (looks.first, looks.second)]
        return looks if any(tensor is None for tensor in tensors) else compare(*tensors)

    def _unchanged_tensor(self, info: TensorInfo) -> Any:
        """The tensor of an inspection, where other code still holds it and it has not been changed since."""
        reference = self._shown.get(info.id)
        tensor = None if reference is None else reference()
        if tensor is None:
            return None
        now, *_ = tensor_stats(tensor, info.name)
        return tensor if now == info.stats else None

    def compare_looks(self, first_id: int, second_id: int) -> LookComparison:
        """Compares two looks, at other steps or other layers, by what was remembered of them."""
        first, second = self.get_tensor_info(first_id), self.get_tensor_info(second_id)
        if first is None or second is None:
            missing = first_id if first is None else second_id
            raise StethoscopeError("no such look is remembered", where=missing, do="Raise max_tracked_tensors")
        return compare_looks(first, second)

    def detect_leaks(self) -> list[Leak]:
        """Lines whose tensors pile up over the steps that `leak_detector` watched."""
        return self.leak_detector.leaks()

    def clear(self) -> None:
        """Forgets everything that was seen."""
        self.leak_detector = LeakDetector()
        self._take_in()
        for kept in (self._infos, self._recorded, self._shown, self._courses, self._memory, self.by_hand):
            kept.clear()
        self._num_inspected = self.num_forgotten = 0

    def __len__(self) -> int:
        return len(self._all_infos())

    def _course_of(self, layer: str | None, name: str, operation: str | None) -> Course:
        key = layer, name, operation
        course = self._courses.setdefault(key, Course())
        self._courses.move_to_end(key)
        while len(self._courses) > self.max_tracked_tensors:
            self._courses.popitem(last=False)
        return course

    @staticmethod
    def _drift_alert(course: Course, name: str) -> TensorAlert | None:
        moved = drift_of(course)
        if moved is None or moved <= DRIFT_LIMIT:
            course.has_told = False
            return None
        if course.has_told:
            return None
        course.has_told = True
        first, last = mean_of(course.first), mean_of(course.last)
        message = f"the mean of {name} drifted from {first:.3g} to {last:.3g} over {course.num_looks:,} looks"
        return TensorAlert(TensorAlertKind.DRIFT, Severity.INFO, message, course.num_looks, value=moved)


def _is_id(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)

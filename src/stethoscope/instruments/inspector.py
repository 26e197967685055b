"""TensorInspector: looks at arrays one at a time and remembers what it saw.

Promises: takes NumPy, torch and JAX arrays and lists; never changes or keeps the array itself (only its
statistics and a weak reference); remembers at most `max_tracked_tensors`, oldest out first; an array that
cannot be read is refused with its name.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from stethoscope.instruments.alerts import EXTREME, TensorAlert, TensorAlertKind, value_alerts
from stethoscope.instruments.comparison import TensorComparison, compare, histogram_ks
from stethoscope.instruments.distribution import TensorDistribution, distribution
from stethoscope.instruments.intake import as_numpy, shape_of
from stethoscope.instruments.leaks import Leak, LeakDetector
from stethoscope.instruments.memory import MemoryBook, num_bytes
from stethoscope.instruments.rows import measure_rows
from stethoscope.kernels.columns import INDEX
from stethoscope.record import Severity, StethoscopeError

DRIFT_GROUP: Final = 5
"""Drift compares the first five looks at a tensor with its last five."""
DRIFT_MIN: Final = 10
DRIFT_LIMIT: Final = 0.5


@dataclass(frozen=True, slots=True)
class TensorStats:
    """The statistics of one array; None where no finite value speaks for them."""

    shape: tuple[int, ...]
    dtype: str
    device: str
    total_elements: int
    memory_usage_bytes: int
    mean: float | None
    std: float | None
    """Population standard deviation: divides by n."""
    min: float | None
    max: float | None
    median: float | None
    abs_max: float | None
    mean_abs: float | None
    l1_norm: float | None
    l2_norm: float | None
    skewness: float | None
    kurtosis: float | None
    """Excess kurtosis: 0 for a normal distribution."""
    nan_count: int
    inf_count: int
    zero_count: int

    @property
    def sparsity(self) -> float | None:
        """The share of elements that are exactly zero."""
        return self.zero_count / self.total_elements if self.total_elements else None

    @property
    def infinity_norm(self) -> float | None:
        """The largest magnitude."""
        return self.abs_max


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One look at one tensor."""

    id: int
    name: str
    layer: str | None
    operation: str | None
    step: int | None
    timestamp: float
    stats: TensorStats
    distribution: TensorDistribution | None
    alerts: tuple[TensorAlert, ...]

    @property
    def healthy(self) -> bool:
        """Whether there is nothing to warn of."""
        return not any(alert.severity.rank >= Severity.WARNING.rank for alert in self.alerts)


@dataclass(frozen=True, slots=True)
class LookComparison:
    """How one look differs from another; None where one of them has no finite values or the first is zero."""

    first: TensorInfo
    second: TensorInfo
    mean_change: float | None
    std_ratio: float | None
    norm_ratio: float | None
    sparsity_change: float | None
    ks_distance: float | None
    """Between the two histograms, so it is known to about the share of one bin."""


@dataclass(slots=True)
class _Course:
    """The first and last few looks at one tensor."""

    first: list[TensorStats] = field(default_factory=list)
    last: deque[TensorStats] = field(default_factory=lambda: deque(maxlen=DRIFT_GROUP))
    num_looks: int = 0

    def add(self, stats: TensorStats) -> None:
        self.num_looks += 1
        if len(self.first) < DRIFT_GROUP:
            self.first.append(stats)
        self.last.append(stats)


def tensor_stats(
    value: Any, name: str = "array"
) -> tuple[TensorStats, TensorDistribution | None, np.ndarray[Any, Any]]:
    """Statistics and distribution of an array of any kind, and the array as NumPy."""
    array = as_numpy(value, name)
    row = measure_rows([array], [name])[0]
    spread = distribution(array)

    def known(column: str) -> float | None:
        number = float(row[INDEX[column]])
        return None if np.isnan(number) else number

    count = int(row[INDEX["count"]])
    finite = count - int(row[INDEX["num_nan"]] + row[INDEX["num_posinf"]] + row[INDEX["num_neginf"]])
    mean_abs = known("mean_abs")
    stats = TensorStats(
        shape=shape_of(value),
        dtype=str(getattr(value, "dtype", array.dtype)).removeprefix("torch."),
        device=str(getattr(value, "device", "cpu")),
        total_elements=count,
        memory_usage_bytes=num_bytes(value, array),
        mean=known("mean"),
        std=known("std"),
        min=known("min"),
        max=known("max"),
        median=spread.median if spread else None,
        abs_max=known("abs_max"),
        mean_abs=mean_abs,
        l1_norm=None if mean_abs is None else mean_abs * finite,
        l2_norm=known("norm"),
        skewness=known("skewness"),
        kurtosis=known("kurtosis"),
        nan_count=int(row[INDEX["num_nan"]]),
        inf_count=int(row[INDEX["num_posinf"]] + row[INDEX["num_neginf"]]),
        zero_count=int(row[INDEX["num_zero"]]),
    )
    return stats, spread, array


class TensorInspector:
    """Inspects arrays, keeps the latest looks, and says what is wrong, what drifts and what memory they
    hold."""

    def __init__(
        self,
        max_tracked_tensors: int = 1000,
        *,
        clock: Callable[[], float] = time.time,
        enabled: bool = True,
    ) -> None:
        """Where not `enabled`, nothing is looked at: every id is 0, which names no look."""
        if max_tracked_tensors < 1:
            raise StethoscopeError("max_tracked_tensors must be at least 1", where=max_tracked_tensors)
        self.enabled = enabled
        self.max_tracked_tensors = max_tracked_tensors
        self.memory = MemoryBook(max_tracked_tensors)
        self.leak_detector = LeakDetector()
        """Watches steps for tensors that outlive them: `with inspector.leak_detector.step(): ...`."""
        self.num_inspected = 0
        self.num_forgotten = 0
        """Looks that were dropped because there were more than `max_tracked_tensors`."""
        self._clock = clock
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._infos: OrderedDict[int, TensorInfo] = OrderedDict()
        self._courses: OrderedDict[tuple[str | None, str], _Course] = OrderedDict()

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
        alerts = [] if _unremarkable(stats) else value_alerts(array, name)
        with self._lock:
            info = self._remember(stats, spread, alerts, (name, layer, operation, step))
            self.memory.add(tensor, name, layer, stats.memory_usage_bytes, step)
        return info.id

    def _remember(
        self,
        stats: TensorStats,
        spread: TensorDistribution | None,
        alerts: list[TensorAlert],
        what: tuple[str, str | None, str | None, int | None],
    ) -> TensorInfo:
        name, layer, operation, step = what
        tensor_id = next(self._ids)
        course = self._course(layer, name)
        course.add(stats)
        drifted = self._drift_alert(course, name)
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
        self._infos[tensor_id] = info
        self.num_inspected += 1
        while len(self._infos) > self.max_tracked_tensors:
            self._infos.popitem(last=False)
            self.num_forgotten += 1
        return info

    def get_tensor_info(self, tensor_id: int) -> TensorInfo | None:
        """What was seen under this id, or None where it is unknown or forgotten."""
        return self._infos.get(tensor_id)

    def infos(self, name: str | None = None, *, layer: str | None = None) -> list[TensorInfo]:
        """The looks still remembered, oldest first, by name and layer where given."""
        return [
            info
            for info in list(self._infos.values())
            if (name is None or info.name == name) and (layer is None or info.layer == layer)
        ]

    def alerts(self, severity: Severity | str = Severity.INFO) -> list[TensorAlert]:
        """Every alert of the remembered looks that matters at least this much."""
        least = Severity(severity).rank
        return [a for info in list(self._infos.values()) for a in info.alerts if a.severity.rank >= least]

    def drift(self, name: str, *, layer: str | None = None) -> float | None:
        """How far the mean has moved between the first five and the last five looks; None before ten.

        In units of the mean's own size or of the spread around it, whichever is larger: a mean near zero does
        not drift because it changes sign.
        """
        course = self._courses.get((layer, name))
        return None if course is None else _drift_of(course)

    def compare(self, first: Any, second: Any) -> TensorComparison:
        """Compares two arrays element by element and as distributions; see `comparison.compare`."""
        return compare(first, second)

    def compare_looks(self, first_id: int, second_id: int) -> LookComparison:
        """Compares two looks, at other steps or other layers, by what was remembered of them."""
        first, second = self.get_tensor_info(first_id), self.get_tensor_info(second_id)
        if first is None or second is None:
            missing = first_id if first is None else second_id
            raise StethoscopeError(
                "no such look is remembered", where=missing, do="Raise max_tracked_tensors"
            )
        return compare_looks(first, second)

    def detect_leaks(self) -> list[Leak]:
        """Lines whose tensors pile up over the steps that `leak_detector` watched."""
        return self.leak_detector.leaks()

    def clear(self) -> None:
        """Forgets everything that was seen."""
        self.leak_detector = LeakDetector()
        self._infos.clear()
        self._courses.clear()
        self.memory.clear()
        self.num_inspected = self.num_forgotten = 0

    def __len__(self) -> int:
        return len(self._infos)

    def _course(self, layer: str | None, name: str) -> _Course:
        course = self._courses.setdefault((layer, name), _Course())
        self._courses.move_to_end((layer, name))
        while len(self._courses) > self.max_tracked_tensors:
            self._courses.popitem(last=False)
        return course

    @staticmethod
    def _drift_alert(course: _Course, name: str) -> TensorAlert | None:
        moved = _drift_of(course)
        if moved is None or moved <= DRIFT_LIMIT:
            return None
        first, last = _mean_of(course.first), _mean_of(course.last)
        message = f"the mean of {name} drifted from {first:.3g} to {last:.3g} over {course.num_looks:,} looks"
        return TensorAlert(TensorAlertKind.DRIFT, Severity.INFO, message, course.num_looks, value=moved)


def compare_looks(first: TensorInfo, second: TensorInfo) -> LookComparison:
    """Compares two looks by their statistics and histograms."""
    a, b, p, q = first.stats, second.stats, first.distribution, second.distribution

    def ratio(old: float | None, new: float | None) -> float | None:
        return None if new is None or not old else new / old

    def change(old: float | None, new: float | None) -> float | None:
        return None if new is None or old is None else new - old

    return LookComparison(
        first=first,
        second=second,
        mean_change=change(a.mean, b.mean),
        std_ratio=ratio(a.std, b.std),
        norm_ratio=ratio(a.l2_norm, b.l2_norm),
        sparsity_change=change(a.sparsity, b.sparsity),
        ks_distance=histogram_ks(p.histogram, p.bin_edges, q.histogram, q.bin_edges) if p and q else None,
    )


def _unremarkable(stats: TensorStats) -> bool:
    """Whether the counts alone say that there is nothing to look for."""
    return not (stats.nan_count or stats.inf_count or (stats.abs_max or 0.0) > EXTREME)


def _mean_of(group: list[TensorStats] | deque[TensorStats], column: str = "mean") -> float:
    values = [value for stats in group if (value := getattr(stats, column)) is not None]
    return float(np.mean(values)) if values else float("nan")


def _drift_of(course: _Course) -> float | None:
    if course.num_looks < DRIFT_MIN:
        return None
    before, after = _mean_of(course.first), _mean_of(course.last)
    scale = max(abs(before), _mean_of(course.first, "std"))
    if not np.isfinite(before + after + scale):
        return None
    if scale == 0:
        return 0.0 if after == before else float("inf")
    return abs(after - before) / scale

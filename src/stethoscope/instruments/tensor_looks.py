"""One look at a tensor: its statistics, where it was seen, and how two looks, or many of one tensor, differ."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from stethoscope.instruments.alerts import EXTREME, TensorAlert
from stethoscope.instruments.array_input import as_numpy, shape_of
from stethoscope.instruments.comparison import histogram_ks
from stethoscope.instruments.distribution import TensorDistribution, distribution
from stethoscope.instruments.memory import num_bytes
from stethoscope.instruments.rows import measure_rows
from stethoscope.kernels.columns import INDEX
from stethoscope.record import Severity

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

    def __str__(self) -> str:
        known = {
            "mean by": self.mean_change,
            "spread times": self.std_ratio,
            "norm times": self.norm_ratio,
            "zeros by": self.sparsity_change,
            "KS distance": self.ks_distance,
        }
        said = ", ".join(f"{word} {value:.4g}" for word, value in known.items() if value is not None)
        return f"from {self.first.name} to {self.second.name}, by what was remembered: {said or 'nothing to compare'}"


@dataclass(slots=True)
class Course:
    """The first and last few looks at one tensor."""

    first: list[TensorStats] = field(default_factory=list)
    last: deque[TensorStats] = field(default_factory=lambda: deque(maxlen=DRIFT_GROUP))
    num_looks: int = 0
    has_told: bool = False
    """Whether its drift was told; it is told again only after the mean came back."""

    def add(self, stats: TensorStats) -> None:
        """Takes in one more look."""
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


def unremarkable(stats: TensorStats) -> bool:
    """Whether the counts alone say that there is nothing to look for."""
    return not (stats.nan_count or stats.inf_count or (stats.abs_max or 0.0) > EXTREME)


def mean_of(group: list[TensorStats] | deque[TensorStats], column: str = "mean") -> float:
    """The mean of one statistic over the inspections that know it."""
    values = [value for stats in group if (value := getattr(stats, column)) is not None]
    return float(np.mean(values)) if values else float("nan")


def drift_of(course: Course) -> float | None:
    """How far the mean has moved, as `TensorInspector.drift` tells it."""
    if course.num_looks < DRIFT_MIN:
        return None
    before, after = mean_of(course.first), mean_of(course.last)
    scale = max(abs(before), mean_of(course.first, "std"))
    if not np.isfinite(before + after + scale):
        return None
    if scale == 0:
        return 0.0 if after == before else float("inf")
    return abs(after - before) / scale

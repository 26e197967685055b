"""From a run to the TensorInspector: its rows as looks, without the tensors, and the memory they take.

A look made of a row knows everything the row does; of single elements (the median, the outliers, where the first NaN
sits) a row knows nothing, and None stands there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from stethoscope.instruments.alerts import row_alerts
from stethoscope.instruments.inspector import TensorStats
from stethoscope.instruments.reading.recorded import RecordedRun, StepTable, backwards
from stethoscope.kernels.columns import INDEX
from stethoscope.record import ROOT_NAME, FloatArray, Kind, SiteInfo, metrics

if TYPE_CHECKING:
    from stethoscope.instruments.inspector import TensorInspector
    from stethoscope.store import Run

HELD: Final = frozenset({Kind.WEIGHT, Kind.GRADIENT, Kind.OPTIMIZER_STATE, Kind.BUFFER})
"""What lives from step to step; the rest goes with its step."""


class TensorReading:
    """What a TensorInspector has taken in of a run."""

    def __init__(self, recorded: RecordedRun) -> None:
        self._recorded = recorded
        self._next_step = self._next_use = recorded.first_step
        self._num_sized = 0

    def take_in(self, inspector: TensorInspector) -> None:
        """Hand over the rows of the last steps, as many as it remembers, and the size of every tensor that is known."""
        run = self._recorded.read()
        if run is None:
            return
        sites = run.sites
        note_sizes(inspector, sites[self._num_sized :])
        self._num_sized = len(sites)
        self._take_memory(run, inspector)
        tables = self._latest_steps(run, inspector.max_tracked_tensors)
        for table in tables:
            for info, row in zip(table.sites, table.rows, strict=True):
                hand_over(inspector, info, row, table.step)
        if tables:
            self._next_step = tables[-1].step + 1

    def _latest_steps(self, run: Run, most_rows: int) -> list[StepTable]:
        """The newest steps in order, as many as have that many rows; the newest in any case."""
        found: list[StepTable] = []
        num_rows = 0
        for table in backwards(run, self._recorded.rank, self._next_step, steps_at_a_time=8):
            found.append(table)
            num_rows += len(table.sites)
            if num_rows >= most_rows:
                break
        return found[::-1]

    def _take_memory(self, run: Run, inspector: TensorInspector) -> None:
        used = run.metric(metrics.MEMORY_IN_USE, rank=self._recorded.rank, first=self._next_use)
        for step, megabytes in zip(used.steps.tolist(), used.values.tolist(), strict=True):
            inspector.memory.note_use(step, round(megabytes * 1e6))
            self._next_use = step + 1


def element_bytes(dtype: str) -> int:
    """Bytes of one element, by the name of its dtype."""
    if dtype == "bool":
        return 1
    digits = re.search(r"[0-9]+", dtype.removeprefix("torch."))
    return max(int(digits[0]) // 8, 1) if digits else 4


def site_bytes(info: SiteInfo) -> int:
    """The memory of the tensor at a site; an update is no tensor of its own."""
    return 0 if info.site.kind is Kind.UPDATE else info.num_elements * element_bytes(info.dtype)


def stats_of(info: SiteInfo, row: FloatArray) -> TensorStats:
    """A row as the statistics an inspector keeps."""

    def known(column: str) -> float | None:
        number = float(row[INDEX[column]])
        return None if np.isnan(number) else number

    count, num_nan = int(row[INDEX["count"]]), int(row[INDEX["num_nan"]])
    num_inf = int(row[INDEX["num_posinf"]] + row[INDEX["num_neginf"]])
    mean_abs = known("mean_abs")
    return TensorStats(
        shape=info.shape,
        dtype=info.dtype.removeprefix("torch."),
        device="",
        total_elements=count,
        memory_usage_bytes=site_bytes(info),
        mean=known("mean"),
        std=known("std"),
        min=known("min"),
        max=known("max"),
        median=None,
        abs_max=known("abs_max"),
        mean_abs=mean_abs,
        l1_norm=None if mean_abs is None else mean_abs * (count - num_nan - num_inf),
        l2_norm=known("norm"),
        skewness=known("skewness"),
        kurtosis=known("kurtosis"),
        nan_count=num_nan,
        inf_count=num_inf,
        zero_count=int(row[INDEX["num_zero"]]),
    )


def hand_over(inspector: TensorInspector, info: SiteInfo, row: FloatArray, step: int) -> None:
    """One row becomes one look: named by its path, its layer the module, its operation the kind of tensor."""
    stats = stats_of(info, row)
    layer, kind = info.site.module or ROOT_NAME, str(info.site.kind)
    alerts = row_alerts(
        stats.nan_count, stats.inf_count, stats.abs_max, stats.total_elements, f"{info.site.path} [{kind}]"
    )
    inspector.record_look(stats, info.site.path, layer, kind, step=step, alerts=alerts)


def note_sizes(inspector: TensorInspector, infos: Sequence[SiteInfo]) -> None:
    """The memory of every tensor that is known, by layer."""
    for info in infos:
        size = site_bytes(info)
        if size:
            layer = info.site.module or ROOT_NAME
            inspector.memory.note(info.site.path, layer, str(info.site.kind), size, held=info.site.kind in HELD)

"""From a run to ModelDiagnostics: the metrics of each step as the record that it keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from stethoscope.instruments.reading.recorded import RecordedRun
from stethoscope.record import Kind, metrics

if TYPE_CHECKING:
    from stethoscope.instruments.diagnostics import ModelDiagnostics, ModelPerformanceMetrics
    from stethoscope.store import Run

OPEN_STEPS: Final = 256
"""Steps whose metrics may still be joined by ones that are logged late."""

NAMES: Final = {
    "accuracy": ("accuracy", "acc", "train/accuracy", "train_accuracy"),
    "validation_loss": ("eval/loss", "val_loss", "validation_loss", "val/loss"),
    "validation_accuracy": ("eval/accuracy", "eval/acc", "val_accuracy", "val_acc", "val/accuracy"),
    "memory_usage_mb": ("memory_mb", "memory_usage_mb", metrics.MEMORY_IN_USE),
    "gpu_utilization": ("gpu_utilization",),
}
"""What these are called, by users and by a session; the first that was logged wins."""
USED: Final = frozenset(
    {metrics.LOSS, metrics.LEARNING_RATE, metrics.STEP_MS, metrics.NUM_BACKWARDS}.union(*NAMES.values())
)
"""The metrics that a record is made of."""


class MetricReading:
    """What ModelDiagnostics has taken in of a run."""

    def __init__(self, recorded: RecordedRun) -> None:
        self._recorded = recorded
        self._first_open = recorded.first_step

    def take_in(self, diagnostics: ModelDiagnostics) -> None:
        """Hand over the metrics of every step that may have changed since the last time."""
        run = self._recorded.read()
        if run is None:
            return
        by_step: dict[int, dict[str, float]] = {}
        for name in USED.intersection(run.metrics()):
            series = run.metric(name, rank=self._recorded.rank, first=self._first_open)
            for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
                by_step.setdefault(step, {})[name] = value
        size = _batch_size(run)
        for step in sorted(by_step)[-diagnostics.max_records :]:
            known = performance(step, by_step[step], size)
            if known is not None:
                diagnostics.record_step(known)
        if by_step:
            self._first_open = max(self._first_open, max(by_step) - OPEN_STEPS + 1)


def _batch_size(run: Run) -> int | None:
    """How many samples go in at once, by the first input that has a shape."""
    return next((info.shape[0] for info in run.sites if info.site.kind is Kind.INPUT and info.shape), None)


def performance(step: int, values: Mapping[str, float], batch_size: int | None) -> ModelPerformanceMetrics | None:
    """The record of a Step; None where no loss is known, which everything else hangs on."""
    from stethoscope.instruments.diagnostics import ModelPerformanceMetrics

    loss = values.get(metrics.LOSS)
    if loss is None:
        return None
    given = {field: next((values[name] for name in names if name in values), None) for field, names in NAMES.items()}
    size = None if batch_size is None else int(batch_size * max(values.get(metrics.NUM_BACKWARDS, 1.0), 1.0))
    took_ms = values.get(metrics.STEP_MS)
    throughput = size / took_ms * 1e3 if size and took_ms else None
    return ModelPerformanceMetrics(
        training_step=step,
        loss=loss,
        learning_rate=values.get(metrics.LEARNING_RATE),
        batch_size=size,
        throughput_samples_per_sec=throughput,
        **given,
    )

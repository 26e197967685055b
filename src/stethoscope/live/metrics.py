"""From the metrics of a Step, as a session recorded them, to the record that ModelDiagnostics keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stethoscope.instruments.diagnostics import ModelPerformanceMetrics

NAMES: Final = {
    "accuracy": ("accuracy", "acc", "train/accuracy", "train_accuracy"),
    "validation_loss": ("eval/loss", "val_loss", "validation_loss", "val/loss"),
    "validation_accuracy": ("eval/accuracy", "eval/acc", "val_accuracy", "val_acc", "val/accuracy"),
    "memory_usage_mb": ("memory_mb", "memory_usage_mb"),
    "gpu_utilization": ("gpu_utilization",),
}
"""What users call these, the first that was logged wins."""
USED: Final = frozenset({"loss", "lr", "step_ms", "num_backwards"}.union(*NAMES.values()))
"""The metrics that a record is made of: of the others nothing need be kept."""


def performance(step: int, values: Mapping[str, float], batch_size: int | None) -> ModelPerformanceMetrics | None:
    """The record of a Step; None where no loss is known, which everything else hangs on."""
    from stethoscope.instruments.diagnostics import ModelPerformanceMetrics

    loss = values.get("loss")
    if loss is None:
        return None
    given = {field: next((values[name] for name in names if name in values), None) for field, names in NAMES.items()}
    size = None if batch_size is None else int(batch_size * max(values.get("num_backwards", 1.0), 1.0))
    took_ms = values.get("step_ms")
    throughput = size / took_ms * 1e3 if size and took_ms else None
    return ModelPerformanceMetrics(
        training_step=step,
        loss=loss,
        learning_rate=values.get("lr"),
        batch_size=size,
        throughput_samples_per_sec=throughput,
        **given,
    )

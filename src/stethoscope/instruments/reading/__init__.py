"""How the instruments of a session read its run: when they are asked, what was recorded since they were asked last.

Nothing here runs before an instrument is asked. A session's instruments read what its own process recorded, of its own rank.
"""

from __future__ import annotations

import dataclasses

from stethoscope.instruments.reading.gradients import GradientReading
from stethoscope.instruments.reading.metrics import MetricReading
from stethoscope.instruments.reading.recorded import RecordedRun
from stethoscope.instruments.reading.tensors import TensorReading
from stethoscope.instruments.reading.times import LayerTime, TimeReading

__all__ = ["GradientReading", "LayerTime", "MetricReading", "Readings", "RecordedRun", "TensorReading", "TimeReading"]


@dataclasses.dataclass(frozen=True, slots=True)
class Readings:
    """What each instrument of a session has taken in of its run."""

    gradients: GradientReading
    metrics: MetricReading
    tensors: TensorReading
    times: TimeReading

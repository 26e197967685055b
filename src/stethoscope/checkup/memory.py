"""The last checkup of each model that is alive, so that a run watched after it can show it; imports no torch."""

from __future__ import annotations

import time
import weakref
from typing import Any

from stethoscope.explain.diagnosis import Diagnosis, experiment_json
from stethoscope.record.events import Checkup, ExperimentSummary

_last: weakref.WeakKeyDictionary[Any, Checkup] = weakref.WeakKeyDictionary()


def remember(model: Any, diagnosis: Diagnosis, seconds: float) -> None:
    """Keep what was found, as it will be written."""
    _last[model] = Checkup(
        findings=tuple(finding.to_json() for finding in diagnosis.findings),
        num_experiments=diagnosis.looked_at.num_detectors,
        experiments=tuple(ExperimentSummary.from_body(experiment_json(one)) for one in diagnosis.looked_at.experiments),
        not_examined=tuple(diagnosis.looked_at.unmet_needs),
        seconds=round(seconds, 3),
        time=time.time(),
    )


def recall(model: Any) -> Checkup | None:
    """What the last checkup of this model found, None where there was none."""
    return _last.get(model)

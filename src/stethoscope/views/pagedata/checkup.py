"""The checkup screen: what the experiments before training found, where the run was watched after them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypedDict

from stethoscope.explain.diagnosis import Diagnosis
from stethoscope.record import Finding
from stethoscope.record.events import Checkup as CheckupEvent
from stethoscope.store import Run
from stethoscope.store.findings import checked_finding
from stethoscope.store.json_payload import EncodingError
from stethoscope.views.pagedata.packing import text
from stethoscope.views.pagedata.screens import Screen
from stethoscope.views.pagedata.verdict import FindingRow, finding_row

MAX_ROWS: Final = 100


class ExperimentData(TypedDict):
    """One experiment: what it asks, what came of it."""

    name: str
    question: str
    outcome: str
    lookedAt: str
    codes: list[str]


class Checkup(TypedDict):
    """The latest checkup before the run."""

    findings: list[FindingRow]
    numExperiments: int
    experiments: list[ExperimentData]
    notExamined: list[str]
    seconds: float
    time: float


def checkup_data(run: Run) -> Checkup | None:
    """The latest checkup that was recorded with the run, None where there is none."""
    events = run.events_of(CheckupEvent)
    if not events:
        return None
    _, said = events[-1]
    found = list(_readable(said.findings))
    found.sort(key=lambda finding: -finding.severity.rank)
    experiments: list[ExperimentData] = [
        {
            "name": text(one.name, 80),
            "question": text(one.question, 200),
            "outcome": text(one.outcome, 40),
            "lookedAt": text(one.looked_at, 300),
            "codes": [text(code, 80) for code in one.codes][:20],
        }
        for one in said.experiments
    ]
    return {
        "findings": [finding_row(finding, Diagnosis()) for finding in found[:MAX_ROWS]],
        "numExperiments": said.num_experiments,
        "experiments": experiments[:MAX_ROWS],
        "notExamined": [text(note, 300) for note in said.not_examined][:MAX_ROWS],
        "seconds": _finite(said.seconds),
        "time": _finite(said.time),
    }


def _readable(bodies: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """Those that are findings: a run may come from anybody."""
    for body in bodies:
        with contextlib.suppress(EncodingError):
            yield checked_finding(dict(body))


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


SCREEN: Final = Screen(name="checkup", title="Checkup", order=70)

"""The checkup screen: what the experiments before training found, where the run was watched after them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypedDict

from stethoscope.explain.diagnosis import Diagnosis
from stethoscope.record import Finding
from stethoscope.store import Run
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
    events = run.events("checkup")
    if not events:
        return None
    body = events[-1].body
    found = [Finding.from_json(one) for one in body.get("findings", ())]
    found.sort(key=lambda finding: -finding.severity.rank)
    experiments: list[ExperimentData] = [
        {
            "name": text(str(one.get("name", "")), 80),
            "question": text(str(one.get("question", "")), 200),
            "outcome": text(str(one.get("outcome", "")), 40),
            "lookedAt": text(str(one.get("looked_at", "")), 300),
            "codes": [text(str(code), 80) for code in one.get("codes", ())][:20],
        }
        for one in body.get("experiments", ())
        if isinstance(one, Mapping)
    ]
    return {
        "findings": [finding_row(finding, Diagnosis()) for finding in found[:MAX_ROWS]],
        "numExperiments": int(body.get("num_experiments", 0)),
        "experiments": experiments[:MAX_ROWS],
        "notExamined": [text(str(note), 300) for note in body.get("not_examined", ())][:MAX_ROWS],
        "seconds": float(body.get("seconds", 0.0)),
        "time": float(body.get("time", 0.0)),
    }


SCREEN: Final = Screen(name="checkup", title="Checkup", order=70)

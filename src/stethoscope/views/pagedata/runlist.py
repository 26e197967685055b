"""The list of runs: one row each, made cheaply and kept until the run changes."""

from __future__ import annotations

from typing import Final, NotRequired, TypedDict

import numpy as np

from stethoscope.explain import conclude
from stethoscope.record import metrics
from stethoscope.store import Run, folder_bytes
from stethoscope.store.findings import Search
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.pagedata import facts
from stethoscope.views.pagedata.followed import clause
from stethoscope.views.pagedata.heat import Thumbnail, thumbnail
from stethoscope.views.pagedata.packing import Number, Packed, spark, text

_TREND_BINS: Final = 176


class ListVerdict(TypedDict):
    """A run's verdict in a row; its first cause, where it has one."""

    state: str
    """One of the four states, "" where nobody has looked."""
    label: str
    severity: str
    message: str
    code: str
    firstStep: int | None
    looked: bool
    short: NotRequired[str]
    lastStep: NotRequired[int]
    more: NotRequired[int]
    followed: NotRequired[int]
    nanAt: NotRequired[int | None]


class RunRow(facts.Identity):
    """A run as the list shows it."""

    key: str
    verdict: ListVerdict
    lastLoss: Number
    throughput: float | None
    numParameters: NotRequired[int]
    precision: NotRequired[str]
    numRanks: NotRequired[int]
    loss: Packed | None
    heat: Thumbnail | None
    numBytes: NotRequired[int]
    trouble: str
    do: str


class RunsData(TypedDict):
    """The list of runs, and the name of the folder they lie in."""

    base: str
    runs: list[RunRow]


def run_row(viewed: OpenRun, key: str) -> RunRow:
    """What the list shows of one run."""
    run = viewed.run
    model = facts.model_facts(run)
    return {
        **facts.identity(run),
        "key": key,
        "verdict": list_verdict(viewed),
        "lastLoss": facts.last_loss(run),
        "throughput": facts.throughput(run),
        "numParameters": model["numParameters"],
        "precision": model["precision"],
        "numRanks": model["numRanks"],
        "loss": spark(run.metric(metrics.LOSS), _TREND_BINS),
        "heat": thumbnail(viewed),
        "numBytes": folder_bytes(run.path),
        "trouble": "",
        "do": "",
    }


def list_verdict(viewed: OpenRun) -> ListVerdict:
    """The first cause in a row; "unlooked" where nobody has looked for findings yet."""
    run = viewed.run
    diagnosis = conclude(run, run.findings())
    if not viewed.was_examined and not diagnosis.causes:
        words = "Being examined" if run.search is Search.UNDER_WAY else "Not examined yet"
        return {
            "state": "",
            "label": "",
            "severity": "",
            "message": words,
            "code": "",
            "firstStep": None,
            "looked": False,
        }
    causes, followed, verdict = diagnosis.causes, diagnosis.followed, diagnosis.verdict
    if not causes:
        lost = run.state == "damaged" and not verdict.state.is_trouble
        severity = verdict.severity if verdict.state.is_trouble or lost else ""
        return {
            "state": str(verdict.state),
            "label": verdict.state.label,
            "severity": str(severity),
            "message": facts.state_words(run) if lost else text(verdict.message.rstrip("."), 300),
            "short": _first_clause(text(verdict.message, 300)),
            "code": "",
            "firstStep": None,
            "looked": True,
            "nanAt": nan_at(run),
        }
    first = causes[0]
    return {
        "state": str(verdict.state),
        "label": verdict.state.label,
        "severity": str(first.severity),
        "message": text(first.message, 300),
        "short": clause(first),
        "code": text(first.code, 80),
        "firstStep": first.first_step,
        "lastStep": first.last_step,
        "looked": True,
        "more": len(causes) - 1,
        "followed": len(followed.get(first.code, ())),
        "nanAt": nan_at(run),
    }


def _first_clause(message: str) -> str:
    """A verdict's sentence up to its first reason, for a narrow row."""
    cuts = [at for at in (message.find(sign) for sign in (": ", "; ", ", ", ". ")) if at > 0]
    return message[: min(cuts, default=len(message))].rstrip(".")


def nan_at(run: Run) -> int | None:
    """The step from which the loss is no number any more."""
    series = run.metric(metrics.LOSS)
    if not len(series) or np.isfinite(series.values[-1]):
        return None
    good = np.flatnonzero(np.isfinite(series.values))
    return int(series.steps[good[-1] + 1 if len(good) else 0])

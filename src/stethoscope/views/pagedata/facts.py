"""What identifies a run and how it stands, and what an instrument says of itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

import numpy as np

from stethoscope.explain.diagnosis import Diagnosis
from stethoscope.record import metrics
from stethoscope.store import Run
from stethoscope.views.common import run_status
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.pagedata.packing import Number, number, plain, text


class Identity(TypedDict):
    """Which run, and how it stands."""

    id: str
    name: str
    state: str
    stateText: str
    lastStep: int | None
    numSteps: int
    endedBy: str
    startedAt: float | None
    endedAt: float | None


class ModelFacts(TypedDict):
    """What was trained."""

    type: str
    numParameters: int
    precision: str
    numRanks: int
    optimizers: list[Any]
    versions: dict[str, str]


class StatusPart(TypedDict):
    """A number to set in bold, and the words around it."""

    before: NotRequired[str]
    strong: str
    rest: str


def identity(run: Run) -> Identity:
    """Name, id, state, and the state in words."""
    step = run.last_step
    return {
        "id": text(run.id, 64),
        "name": text(run.name, 120),
        "state": run.state,
        "stateText": state_words(run),
        "lastStep": step,
        "numSteps": len(run.steps),
        "endedBy": text(run_status.ended_by(run), 120),
        "startedAt": run_status.started_at(run),
        "endedAt": run_status.ended_at(run),
    }


def state_words(run: Run) -> str:
    """As the bar at the top says it: "Crashed at step 1,946"."""
    said = run_status.state_text(run, brief=True)
    return said[:1].upper() + said[1:]


def status_parts(viewed: OpenRun, diagnosis: Diagnosis) -> list[StatusPart]:
    """Coverage, losses, cost: each a number to set in bold and the words around it."""
    parts: list[StatusPart] = []
    for part in run_status.status_parts(viewed.run, diagnosis.looked_at):
        parts.append({"strong": part.strong, "rest": text(part.rest, 200)})
        if part.before:
            parts[-1]["before"] = part.before
    return parts


def closing_words(run: Run) -> str:
    """When it was last written and how it ended: "Last write 14:32:07, ended by FloatingPointError"."""
    when = run_status.ended_at(run)
    said = f"Last write {time.strftime('%H:%M:%S', time.localtime(when))}" if when else ""
    if run.state == "crashed":
        by = run_status.ended_by(run)
        said += f", ended by {text(by, 80)}" if by else ", process killed, or exited without closing"
    if run.state == "finished":
        said += ", finished"
    return said


def model_facts(run: Run) -> ModelFacts:
    """Type, parameters, precision, devices, as far as they were recorded."""
    model: Any = run.info.get("model")
    model = model if isinstance(model, Mapping) else {}
    modules = [m for m in model.get("modules", []) if isinstance(m, Mapping)]
    params = sum(int(m.get("num_parameters") or 0) for m in modules)
    if not params:
        params = sum(info.num_elements for info in run.sites if info.site.kind == "weight")
    dtypes = sorted({info.dtype for info in run.sites if info.site.kind == "weight" and info.dtype})
    return {
        "type": text(str(model.get("type", "")), 80),
        "numParameters": params,
        "precision": ", ".join(_dtype_name(dtype) for dtype in dtypes[:3]),
        "numRanks": len(run.ranks),
        "optimizers": plain(run.info.get("optimizers", [])),
        "versions": plain(run.info.get("versions", {})),
    }


def _dtype_name(dtype: str) -> str:
    return {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}.get(dtype, text(dtype, 16))


def throughput(run: Run) -> float | None:
    """Steps a second over the latest steps, None where no time was recorded."""
    values = run.metric(metrics.STEP_MS).values[-64:]
    values = values[np.isfinite(values) & (values > 0)]
    return 1000.0 / float(np.median(values)) if len(values) else None


def last_loss(run: Run) -> Number:
    """The latest loss."""
    series = run.metric(metrics.LOSS)
    return number(float(series.values[-1])) if len(series) else None

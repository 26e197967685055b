"""What identifies a run and how it stands, and what an instrument says of itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

import numpy as np

from stethoscope.explain.diagnosis import Diagnosis
from stethoscope.record import metrics, plural
from stethoscope.store import Run
from stethoscope.store.locate import last_written
from stethoscope.views.common import numbers, words
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
        "endedBy": text(words.ended_by(run), 120),
        "startedAt": words.started_at(run),
        "endedAt": ended_at(run),
    }


def state_words(run: Run) -> str:
    """As the bar at the top says it: "Crashed at step 1,946"."""
    step = run.last_step
    at = "" if step is None else numbers.count(step)
    match run.state:
        case "live":
            return f"Live, step {at}" if at else "Live, no step yet"
        case "finished":
            return f"Finished, {plural(len(run.steps), 'step')}"
        case "crashed":
            return f"Crashed at step {at}" if at else "Crashed before the first step"
        case "stale":
            quiet = ended_at(run)
            since = time.strftime("%H:%M", time.localtime(quiet)) if quiet else "a while"
            return f"Stale since {since}"
    lost = words.num_frames_lost(run)
    return f"Damaged, {plural(lost, 'frame')} left out" if lost else "Damaged, some bytes left out"


def ended_at(run: Run) -> float | None:
    """When the run last said anything, in seconds since 1970: by its own clock where it is over, else by its files'."""
    if run.state not in ("live", "stale"):
        begun = words.started_at(run)
        spoken = [event.time for event in run.events()]
        if begun is not None and metrics.STEP_MS in run.metrics():
            spoken.append(begun + float(np.nansum(run.metric(metrics.STEP_MS).values)) / 1000)
        if spoken:
            return max(spoken)
    return last_written(run.path)[0] or None


def status_parts(viewed: OpenRun, diagnosis: Diagnosis) -> list[StatusPart]:
    """Coverage, losses, cost: each a number to set in bold and the words around it."""
    run = viewed.run
    reporting, expected = words.coverage(run, diagnosis.looked_at)
    parts: list[StatusPart] = [
        {"strong": f"{numbers.count(reporting)} of {numbers.count(expected)}", "rest": "sites reporting"}
    ]
    rest = "step read" if len(run.steps) == 1 else "steps read"
    rows, frames = words.num_rows_lost(run), words.num_frames_lost(run)
    if rows:
        rest += f", {words.losses_text(run)} lost"
    if frames:
        rest += f", {plural(frames, 'frame')} left out"
    parts.append({"strong": numbers.count(len(run.steps)), "rest": rest})
    broken = [one.partition(":")[0] for one in diagnosis.looked_at.broken_detectors]
    if broken:
        parts.append({"strong": plural(len(broken), "detector"), "rest": f"failed: {text(', '.join(broken), 200)}"})
    cost = cost_share(run)
    if cost is not None:
        parts.append({"before": "Recording costs", "strong": numbers.percent(cost), "rest": "of a step"})
    if run.thinned:
        gone = sum(part.rows_dropped for part in run.thinned)
        parts.append({"strong": numbers.count(gone), "rest": "rows thinned out"})
    return parts


def cost_share(run: Run) -> float | None:
    """The share of a step that recording takes."""
    return words.step_cost(run)


def closing_words(run: Run) -> str:
    """When it was last written and how it ended: "Written 14:32:07, closed by FloatingPointError"."""
    when = ended_at(run)
    said = f"Written {time.strftime('%H:%M:%S', time.localtime(when))}" if when else ""
    if run.state == "crashed":
        by = words.ended_by(run)
        said += f", closed by {text(by, 80)}" if by else ", the process is gone"
    if run.state == "finished":
        said += ", closed"
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
        "precision": ", ".join(_short(dtype) for dtype in dtypes[:3]),
        "numRanks": len(run.ranks),
        "optimizers": plain(run.info.get("optimizers", [])),
        "versions": plain(run.info.get("versions", {})),
    }


def _short(dtype: str) -> str:
    return {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}.get(dtype, text(dtype, 16))


def throughput(run: Run) -> float | None:
    """Steps a second over the latest steps, None where no time was recorded."""
    if metrics.STEP_MS not in run.metrics():
        return None
    values = run.metric(metrics.STEP_MS).values[-64:]
    values = values[np.isfinite(values) & (values > 0)]
    return 1000.0 / float(np.median(values)) if len(values) else None


def last_loss(run: Run) -> Number:
    """The latest loss."""
    if metrics.LOSS not in run.metrics():
        return None
    series = run.metric(metrics.LOSS)
    return number(float(series.values[-1])) if len(series) else None

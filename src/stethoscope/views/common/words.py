"""How a run stands: its state in words, and the line that says how much was measured and at what cost."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from stethoscope.explain.diagnosis import LookedAt
from stethoscope.record import StethoscopeError, metrics, plural
from stethoscope.store.losses import lost_steps_text
from stethoscope.views.common import numbers

if TYPE_CHECKING:
    from stethoscope.store import Run


def clock(seconds: float) -> str:
    """A moment on the local clock, with its date."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def started_at(run: Run) -> float | None:
    """When the run first began, in seconds since 1970."""
    times = [float(start.started_at) for start in run.starts if start.started_at]
    if times:
        return min(times)
    created = run.info.get("created_at")
    return float(created) if isinstance(created, int | float) else None


def ended_by(run: Run) -> str:
    """What ended a run that did not finish: the exception's or signal's name, "" where nobody knows."""
    ended: Mapping[str, Any] = run.ended or {}
    body = ended.get("body") if isinstance(ended.get("body"), Mapping) else ended
    for key in ("exception", "error", "type", "signal", "message"):
        word = str((body or {}).get(key) or "")
        if word:
            return word.splitlines()[0]
    return ""


def step_cost(run: Run) -> float | None:
    """What recording on the training thread adds to a step without it, by the medians the run itself measured.

    Threads of ours that share the processor with training are not in it: on steps of a millisecond they weigh more.
    """
    if not {metrics.OVERHEAD_MS, metrics.STEP_MS} <= set(run.metrics()):
        return None
    ours, step = run.metric(metrics.OVERHEAD_MS).values, run.metric(metrics.STEP_MS).values
    if not len(ours) or not len(step):
        return None
    added, plain = float(np.median(ours)), float(np.median(step) - np.median(ours))
    return added / plain if plain > 0 else None


def num_rows_lost(run: Run) -> int:
    """Rows that were handed in and never written."""
    return int(run.losses.get("dropped_rows", 0))


def losses_text(run: Run) -> str:
    """What was handed in and never written: "501 steps (199 to 699), 12,024 rows"."""
    rows = plural(num_rows_lost(run), "row")
    return ", ".join(filter(None, (lost_steps_text(run.losses), rows)))


def num_frames_lost(run: Run) -> int:
    """Frames on disk that cannot be trusted and are left out."""
    return sum(int(problem.frames_lost or 0) for problem in run.problems)


def state_text(run: Run) -> str:
    """The state in words: "crashed at step 1,946, FloatingPointError"."""
    step = run.last_step
    if run.state == "live":
        return f"live, step {numbers.count(step)}" if step is not None else "live, no step yet"
    if step is None:
        return f"{run.state}, without a step"
    if run.state == "finished":
        num_steps = len(run.steps)
        last = "" if step == num_steps else f", the last {numbers.count(step)}"
        return f"finished, {plural(num_steps, 'step')}{last}"
    if run.state == "crashed":
        cause = ended_by(run)
        return f"crashed at step {numbers.count(step)}" + (f", {cause}" if cause else "")
    if run.state == "stale":
        return f"stale, no data for a minute, last step {numbers.count(step)}"
    lost = num_frames_lost(run)
    what = f"{plural(lost, 'frame')} cannot be read" if lost else "some bytes cannot be read"
    return f"damaged, {what} and {'is' if lost == 1 else 'are'} left out"


def coverage(run: Run, looked_at: LookedAt | None = None) -> tuple[int, int]:
    """Sites that reported at least once, and sites that were expected to."""
    if looked_at is not None and looked_at.num_sites_expected:
        return looked_at.num_sites, looked_at.num_sites_expected
    silent = {"meta", "unsupported", "capped"}
    expected = [info for info in run.sites if info.measured != "frozen"]
    return sum(info.measured not in silent for info in expected), len(expected)


def status_parts(run: Run, looked_at: LookedAt | None = None) -> list[str]:
    """What an instrument says of itself: coverage, losses, cost."""
    reporting, expected = coverage(run, looked_at)
    parts = [f"{numbers.count(reporting)} of {plural(expected, 'site')} reporting"]
    read = f"{plural(len(run.steps), 'step')} read"
    rows, frames = num_rows_lost(run), num_frames_lost(run)
    if rows:
        read += f", {losses_text(run)} lost"
    if frames:
        read += f", {plural(frames, 'frame')} unreadable"
    parts.append(read)
    if looked_at is not None and looked_at.broken_detectors:
        names = ", ".join(one.partition(":")[0] for one in looked_at.broken_detectors)
        parts.append(f"{plural(len(looked_at.broken_detectors), 'detector')} failed: {names}")
    cost = _quietly(step_cost, run)
    if cost is not None:
        parts.append(f"recording costs {numbers.percent(cost)} of a step")
    begun = started_at(run)
    if begun is not None:
        parts.append(f"begun {clock(begun)}")
    return parts


def _quietly(measure: Any, run: Run) -> float | None:
    try:
        value: float | None = measure(run)
    except (StethoscopeError, KeyError):
        return None
    return value

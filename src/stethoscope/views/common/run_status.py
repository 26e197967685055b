"""How a run stands: its state in words, and the line that says how much was measured and at what cost."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stethoscope.explain.diagnosis import LookedAt
from stethoscope.record import StethoscopeError, metrics, plural
from stethoscope.store.findings import Search
from stethoscope.store.locate import last_written
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


class StepCost(NamedTuple):
    """What recording adds on the training thread to a step without it, by the medians the run itself measured.

    Threads of ours that share the processor with training are not in it: on steps of a millisecond they weigh more.
    """

    added_ms: float
    plain_ms: float

    @property
    def share(self) -> float:
        """Of a step without recording."""
        return self.added_ms / self.plain_ms

    def __str__(self) -> str:
        said = f"{numbers.percent(self.share)} of these {_milliseconds(self.plain_ms)} steps"
        if self.share > 0.01:
            said += f"; 1% from {_milliseconds(100 * self.added_ms)} on"
        return f"{_milliseconds(self.added_ms)} a step ({said})"


def _milliseconds(value: float) -> str:
    return f"{float(f'{value:.2g}'):,.10g} ms"


def step_cost(run: Run) -> StepCost | None:
    """What recording costs; None where it was not measured, or cannot be read."""
    try:
        ours, step = run.metric(metrics.OVERHEAD_MS).values, run.metric(metrics.STEP_MS).values
    except (StethoscopeError, KeyError):
        return None
    if not len(ours) or not len(step):
        return None
    added, plain = float(np.median(ours)), float(np.median(step) - np.median(ours))
    return StepCost(added, plain) if plain > 0 else None


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


def ended_at(run: Run) -> float | None:
    """When the run last wrote, in seconds since 1970: by its own clock where it is over, else by its files'."""
    if run.state not in ("live", "stale"):
        started = started_at(run)
        times = [event.time for event in run.events()]
        if started is not None:
            times.append(started + float(np.nansum(run.metric(metrics.STEP_MS).values)) / 1000)
        if times:
            return max(times)
    return last_written(run.path)[0] or None


def state_text(run: Run, *, brief: bool = False) -> str:
    """The state in words: "crashed at step 1,946, FloatingPointError"; in brief without the error."""
    step = run.last_step
    if run.state == "damaged":
        lost = num_frames_lost(run)
        return f"damaged, {plural(lost, 'frame') if lost else 'some bytes'} cannot be read"
    if step is None:
        return {"live": "live, no step yet", "crashed": "crashed before the first step"}.get(
            run.state, f"{run.state}, without a step"
        )
    at = f"step {numbers.count(step)}"
    if run.state == "live":
        return f"live, {at}"
    if run.state == "stale":
        quiet = ended_at(run)
        since = f"stale since {time.strftime('%H:%M', time.localtime(quiet))}" if quiet else "stale"
        return since if brief else f"{since}, last {at}"
    cause = ended_by(run) if run.state == "crashed" and not brief else ""
    return f"{run.state} at {at}" + (f", {cause}" if cause else "")


def coverage(run: Run, looked_at: LookedAt | None = None) -> tuple[int, int]:
    """Sites that reported at least once, and sites that were expected to."""
    if looked_at is not None and looked_at.num_sites_expected:
        return looked_at.num_sites, looked_at.num_sites_expected
    silent = {"meta", "unsupported", "capped"}
    expected = [info for info in run.sites if info.measured != "frozen"]
    return sum(info.measured not in silent for info in expected), len(expected)


class StatusPart(NamedTuple):
    """A number, and the words around it."""

    strong: str
    rest: str
    before: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.before, self.strong, self.rest)))


def status_parts(run: Run, looked_at: LookedAt | None = None) -> list[StatusPart]:
    """How much was measured and at what cost: coverage, losses, failures, cost."""
    recorded, expected = coverage(run, looked_at)
    parts = [StatusPart(f"{numbers.count(recorded)} of {numbers.count(expected)}", "tensors recorded")]
    read = f"{'step' if len(run.steps) == 1 else 'steps'} read"
    frames = num_frames_lost(run)
    if num_rows_lost(run):
        read += f", {losses_text(run)} lost"
    if frames:
        read += f", {plural(frames, 'frame')} unreadable"
    parts.append(StatusPart(numbers.count(len(run.steps)), read))
    if looked_at is not None and looked_at.broken_detectors:
        names = ", ".join(one.partition(":")[0] for one in looked_at.broken_detectors)
        parts.append(StatusPart(plural(len(looked_at.broken_detectors), "detector"), f"failed: {names}"))
    cost = step_cost(run)
    if cost is not None:
        first, rest = str(cost).split(" a step ")
        parts.append(StatusPart(first, f"a step {rest}", "Recording:"))
    if run.search is Search.UNDER_WAY and run.state != "live":
        parts.append(StatusPart("still under way", "", "Search beside the training:"))
    if run.thinned:
        gone = sum(part.rows_dropped for part in run.thinned)
        parts.append(StatusPart(numbers.count(gone), "rows thinned out"))
    return parts

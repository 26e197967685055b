"""How a run ended, and what keeps what is said of it from being the whole truth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stethoscope.explain.diagnosis import LookedAt
from stethoscope.store import Run
from stethoscope.store.findings import Search
from stethoscope.store.losses import FIRST_LOST, LAST_LOST, LOST_STEPS, lost_steps_text

LONGEST = 200
_UNFINISHED = {Search.UNDER_WAY: "is still under way", Search.CUT_OFF: "did not come to its end"}


def reservations(looked: LookedAt, run: Run) -> list[str]:
    """What keeps a verdict from being the whole truth, a sentence each: steps that are not there or passed by,
    detectors that failed."""
    told = (
        ["Part of the run cannot be read; this rests on the rest."] if run.state == "damaged" and len(run.steps) else []
    )
    if looked.num_steps_lost:
        lost = {LOST_STEPS: looked.num_steps_lost, FIRST_LOST: looked.first_lost_step, LAST_LOST: looked.last_lost_step}
        told.append(f"{lost_steps_text(lost)} never reached the disk.")
    if run.thinned and run.state != "live" and run.search in _UNFINISHED:
        told.append(f"Old steps were thinned out, and the search that saw them whole {_UNFINISHED[run.search]}.")
    if looked.broken_detectors:
        named = ", ".join(broken.partition(":")[0] for broken in looked.broken_detectors[:3])
        more = f" and {len(looked.broken_detectors) - 3} more" if len(looked.broken_detectors) > 3 else ""
        told.append(f"Not checked, because our own detector failed: {named}{more} (stethoscope doctor says how).")
    return [*told, *looked.unmeasured, *looked.mixtures]


def blindness(looked: LookedAt, run: Run) -> str:
    """Why nothing can be said: nothing was recorded, or what was cannot be read; "" where there is something to judge."""
    was_looked_at = looked.num_sites_expected > 0
    if looked.num_steps or (not was_looked_at and len(run.steps)):
        return ""
    if run.state == "damaged":
        return "No step can be read: nothing can be said."
    if run.metrics():
        return ""
    return "No step has been recorded yet." if run.state == "live" else "No step was recorded: nothing can be said."


def is_by_hand(run: Run) -> bool:
    """Whether the run was ended on purpose: Ctrl-C, or a signal that asks a process to end."""
    body = _ending_body(run)
    name = str(body.get("exception") or body.get("error") or body.get("type") or "")
    return name in ("KeyboardInterrupt", "StopTraining") or str(body.get("signal") or "") in (
        "SIGINT",
        "SIGTERM",
        "SIGHUP",
    )


def _ending_body(run: Run) -> Mapping[str, Any]:
    ended: Mapping[str, Any] = run.ended or {}
    inner = ended.get("body")
    return inner if isinstance(inner, Mapping) else ended


def ending(run: Run) -> str:
    """How a run that did not finish ended, as a sentence: when, and with what."""
    body = _ending_body(run)
    at = f"at step {run.last_step:,}" if run.last_step is not None else "before the first step"
    signal = str(body.get("signal") or "")
    if signal:
        return f"The run was ended by {signal} {at}."
    name = str(body.get("exception") or body.get("error") or body.get("type") or "")
    if not name:
        return f"The run's process was gone {at} without a word: killed, or out of memory."
    message = str(body.get("message") or "").strip().splitlines()
    told = f"{name}: {message[0]}" if message and message[0] else name
    told = told if len(told) <= LONGEST else told[: LONGEST - 1] + "…"
    if name == "KeyboardInterrupt":
        return f"The run was interrupted by hand {at} ({name})."
    return f"The run crashed {at} with {told.rstrip('.')}."

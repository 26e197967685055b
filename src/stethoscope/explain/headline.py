"""The one sentence over a diagnosis that has no cause: nothing at all, only notes, or a run that crashed all the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from stethoscope.explain.diagnosis import Diagnosis
from stethoscope.record import Severity
from stethoscope.store import Run
from stethoscope.store.losses import FIRST_LOST, LAST_LOST, LOST_STEPS, lost_steps_text

CLEAR = "Nothing to report."
NO_CAUSE = "No cause found."
LONGEST = 200


@dataclasses.dataclass(frozen=True, slots=True)
class Headline:
    """What to say first."""

    kind: str
    """"cause", "crashed", "notes" or "clear"."""
    text: str
    """A sentence or two, complete."""


def headline(diagnosis: Diagnosis, run: Run | None = None) -> Headline:
    """What is true of the run as a whole, in the words that every face uses."""
    if diagnosis.causes:
        return Headline("cause", diagnosis.causes[0].message)
    if run is not None and run.state == "crashed":
        return Headline("crashed", " ".join([ending(run), NO_CAUSE, *reservations(diagnosis)]))
    if run is not None and (blind := blindness(diagnosis, run)):
        return Headline("notes", blind)
    if any(finding.severity is Severity.INFO for finding in diagnosis.findings):
        return Headline("notes", " ".join([NO_CAUSE, *reservations(diagnosis)]))
    told = reservations(diagnosis)
    return Headline("notes", " ".join([NO_CAUSE, *told])) if told else Headline("clear", CLEAR)


def reservations(diagnosis: Diagnosis) -> list[str]:
    """What keeps a diagnosis from being the whole truth, a sentence each: steps that are not there or passed by,
    detectors that failed."""
    looked, told = diagnosis.looked_at, []
    if looked.num_steps_lost:
        lost = {LOST_STEPS: looked.num_steps_lost, FIRST_LOST: looked.first_lost_step, LAST_LOST: looked.last_lost_step}
        told.append(f"{lost_steps_text(lost)} never reached the disk.")
    if looked.broken_detectors:
        named = ", ".join(broken.partition(":")[0] for broken in looked.broken_detectors[:3])
        more = f" and {len(looked.broken_detectors) - 3} more" if len(looked.broken_detectors) > 3 else ""
        told.append(f"Not checked, because our own detector failed: {named}{more} (stethoscope doctor says how).")
    return [*told, *looked.unmeasured, *looked.mixtures]


def blindness(diagnosis: Diagnosis, run: Run) -> str:
    """Why silence says little here: nothing was recorded, or what was cannot be read; "" where it says what it should."""
    has_steps = diagnosis.looked_at.num_steps > 0
    if run.state == "damaged":
        return f"{NO_CAUSE[:-1]} in what can be read." if has_steps else "No step can be read: nothing can be said."
    if has_steps or run.metrics():
        return ""
    return "No step has been recorded yet." if run.state == "live" else "No step was recorded: nothing can be said."


def ending(run: Run) -> str:
    """How a run that did not finish ended, as a sentence: when, and with what."""
    ended: Mapping[str, Any] = run.ended or {}
    inner = ended.get("body")
    body: Mapping[str, Any] = inner if isinstance(inner, Mapping) else ended
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

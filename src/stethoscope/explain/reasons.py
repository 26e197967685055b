"""Why a code was reported or not: what was recorded, what was missing, what silenced it, the numbers beside their limits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stethoscope.analyse.span import spans
from stethoscope.detect import Detection, Reading
from stethoscope.detect.registry import known
from stethoscope.explain.needs import NeedStatus, status_of
from stethoscope.explain.pages import page
from stethoscope.explain.ranking import is_named
from stethoscope.explain.verdict import weigh
from stethoscope.record import Finding, Severity
from stethoscope.store import Run, open_run

WORDS = {">=": "at least", ">": "more than", "<=": "at most", "<": "less than", "=": "exactly"}


@dataclasses.dataclass(frozen=True, slots=True)
class Why:
    """The answer for one code in one run."""

    code: str
    outcome: str
    """"cause", "followed" (from another), "noted" (Info), "expected", "ignored", "quiet", "blind" (something it needs was
    not recorded), "broken" (the detector failed) or "checkup" (only a checkup looks for it)."""
    sentence: str
    needs: tuple[NeedStatus, ...] = ()
    readings: tuple[Reading, ...] = ()
    findings: tuple[Finding, ...] = ()
    """What the detector said, before anything was silenced."""

    @property
    def has_fired(self) -> bool:
        """Whether the detector said it, silenced or not."""
        return bool(self.findings)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "code": self.code,
            "outcome": self.outcome,
            "sentence": self.sentence,
            "needs": [need.to_json() for need in self.needs],
            "readings": [
                {
                    "label": r.label,
                    "value": _known_number(r.value),
                    "asks": r.sign,
                    "limit": _known_number(r.limit),
                    "holds": r.holds,
                    "site": r.site,
                    "way": r.way,
                }
                for r in self.readings
            ],
            "findings": [finding.to_json() for finding in self.findings],
        }


def _known_number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def why(run: Run | str | Path, code: str) -> Why:
    """Looks at the run again and says what became of one code."""
    told_on_page = page(code)
    owner = known().owner(code)
    if owner is None:
        return Why(
            code,
            "checkup",
            "No rule looks for it in a run: it is an experiment of stethoscope checkup, before training.",
        )
    opened = run if isinstance(run, Run) else open_run(run)
    detection = Detection()
    detection.observe(spans(opened))
    every = detection.findings()
    found = tuple(finding for finding in every if finding.code == code)
    needs = tuple(status_of(need, opened) for need in known().codes[code].needs)
    readings = tuple(detection.readings().get(code, ()))
    if owner.__name__ in detection.errors:
        outcome, sentence = "broken", f"The detector {owner.__name__} failed: {detection.errors[owner.__name__]}"
    elif found:
        outcome, sentence = _told_as(opened, every, found)
    else:
        outcome, sentence = _why_silent(needs, readings, finished=told_on_page.found_by == ("finished run",))
    return Why(code, outcome, sentence, needs, readings, found)


def _told_as(run: Run, every: Sequence[Finding], found: Sequence[Finding]) -> tuple[str, str]:
    config = run.info.get("config", {})
    code, step = found[0].code, found[0].first_step
    since = f"It was found, since step {step:,}"
    heard, causes, followed = weigh(run, every)
    if not any(f.code == code for f in heard):
        silencer = next(rule for rule in config.get("ignore", ()) if is_named(found[0], rule))
        return "ignored", f"{since}, and is not told because of ignore={silencer!r}."
    for number, cause in enumerate(causes, start=1):
        if cause.code == code:
            return "cause", f"{since}: cause {number} of {len(causes)}."
    for under, group in followed.items():
        if any(f.code == code for f in group):
            return "followed", f"{since}, and is told under {under}, from which it can follow."
    rule = next((rule for rule in config.get("expect", ()) if is_named(found[0], rule)), None)
    if rule is not None and found[0].severity is not Severity.INFO:
        return "expected", f"{since}, and is only noted because of expect={rule!r}."
    return "noted", f"{since}, as a note: it is no cause."


def _why_silent(needs: Sequence[NeedStatus], readings: Sequence[Reading], *, finished: bool) -> tuple[str, str]:
    missing = [need for need in needs if need.blinds]
    if missing:
        what = missing[0].need
        more = f" What would bring it: {what.hint}." if what.hint else ""
        return "blind", f"It was not found, and could not be: the run has no {_without_article(what.what)}.{more}"
    held_back = blocking(readings)
    if held_back is None:
        return "quiet", "It was not found. Its detector does not tell the numbers."
    late = " The run has not ended." if finished and "totals" in held_back.label else ""
    return "quiet", f"It was not found: {told(held_back)}.{late}"


def _without_article(words: str) -> str:
    return words.removeprefix("the ").removeprefix("a ")


def blocking(readings: Sequence[Reading]) -> Reading | None:
    """The number that keeps the rule from speaking: one that every way needs, else the first of the way that is closest."""
    asked = [reading for reading in readings if reading.sign]
    for reading in asked:
        if not reading.way and not reading.holds:
            return reading
    ways = dict.fromkeys(reading.way for reading in asked if reading.way)
    failing = {way: [r for r in asked if r.way == way and not r.holds] for way in ways}
    if not ways or any(not group for group in failing.values()):
        return None
    # What was measured says more than what was not.
    return min(failing.values(), key=lambda group: (math.isnan(group[0].value), len(group)))[0]


def told(reading: Reading) -> str:
    """A reading as a sentence without its full stop."""
    where = f" ({reading.site})" if reading.site else ""
    limit = f"{reading.limit:.3g}" if not math.isnan(reading.limit) else "a number that is not known here"
    value = "was not measured" if math.isnan(reading.value) else f"{reading.value:.4g}"
    joint = " " if math.isnan(reading.value) else ": "
    return f"{reading.label}{where}{joint}{value}, and the rule asks for {WORDS[reading.sign]} {limit}"

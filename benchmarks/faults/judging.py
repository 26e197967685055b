"""Run one program, read its diagnosis, and say whether that is right."""

from __future__ import annotations

import dataclasses
import gc
import os
import time
import traceback
import warnings
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import numpy as np
from benchmarks.faults.catalogue import Checkup, Fault, Outcome, Program

import stethoscope
from stethoscope.analyse.span import spans
from stethoscope.detect import Detection
from stethoscope.explain import Diagnosis
from stethoscope.record import Finding, Severity, StethoscopeWarning
from stethoscope.store import Run, open_run

STEP_TOLERANCE: Final = 10
"""A fault that begins at once must be dated within this many steps."""
SLOW_TOLERANCE: Final = 40
"""One that creeps in, within this many."""
REPLAY_STEPS: Final = 5
"""How finely a run is fed again to see when the finding was first there."""
SITES_READ: Final = 3
"""A reader looks at the first few names."""


@dataclasses.dataclass(slots=True)
class Said:
    """One cause as it was told."""

    code: str
    severity: str
    first_step: int
    sites: list[str]
    message: str

    @classmethod
    def of(cls, finding: Finding) -> Said:
        """The parts of a finding that are judged."""
        return cls(
            finding.code, str(finding.severity), finding.first_step, list(finding.sites[:SITES_READ]), finding.message
        )


@dataclasses.dataclass(slots=True)
class Verdict:
    """What one program at one seed gave."""

    key: str
    of: str
    seed: int
    causes: list[Said] = dataclasses.field(default_factory=list)
    infos: list[str] = dataclasses.field(default_factory=list)
    state: str = ""
    """Which of the four states the run as a whole is in."""
    position: int | None = None
    """1 where the right code is the first cause; for advice 1 where it is said at all."""
    right_place: bool | None = None
    right_step: bool | None = None
    delay: int | None = None
    """Steps from the fault's beginning until the finding was there."""
    checkup: str = ""
    """"found", "missed", "no checkup", "error", or nothing where the fault is not a checkup's."""
    checkup_said: list[Said] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    diagnose_seconds: float = 0.0
    num_steps: int = 0
    loss: tuple[float, float] | None = None
    """The median of the first and of the last tenth."""
    error: str = ""
    """The program, the session or the diagnosis failed, and how."""
    troubles: list[str] = dataclasses.field(default_factory=list)
    """Warnings of ours, guarded errors, detectors that broke."""

    @property
    def found(self) -> bool:
        """First or second cause, as the catalogue asks."""
        return self.position in (1, 2)


def examine(program: Program, seed: int, folder: Path) -> Verdict:
    """Run a program in `folder` and judge what is said about it."""
    verdict = Verdict(program.key, program.of, seed)
    before = Path.cwd()
    os.environ |= {"STETHOSCOPE_DIR": str(folder), "STETHOSCOPE_COMPANION": "inline", "STETHOSCOPE_QUIET": "true"}
    began = time.perf_counter()
    try:
        os.chdir(folder)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            outcome = program.run(seed)
        verdict.troubles += [str(w.message) for w in caught if issubclass(w.category, StethoscopeWarning)]
        verdict.seconds = time.perf_counter() - began
        _judge(program, outcome, verdict)
    except Exception:
        verdict.error = traceback.format_exc(limit=-3)
    finally:
        os.chdir(before)
        # What a program leaves in cycles (models, averages, graphs) must not be seen by the next one.
        gc.collect()
    verdict.seconds = verdict.seconds or time.perf_counter() - began
    return verdict


def _judge(program: Program, outcome: Outcome, verdict: Verdict) -> None:
    fault = program.fault
    if outcome.run is not None:
        began = time.perf_counter()
        run = open_run(outcome.run)
        diagnosis = stethoscope.diagnose(run)
        verdict.diagnose_seconds = time.perf_counter() - began
        verdict.causes = [Said.of(cause) for cause in diagnosis.causes]
        verdict.state = str(diagnosis.verdict.state)
        verdict.infos = [f.code for f in diagnosis.findings if f.severity is Severity.INFO]
        _describe(run, diagnosis, verdict)
        if fault is not None:
            _score(program, fault, list(diagnosis.causes), verdict)
            expected = outcome.step if outcome.step is not None else program.step
            _time(run, program, fault, expected, verdict)
    if fault is not None and "C" in fault.when and outcome.checkup is not None:
        _check_up(fault, program, outcome.checkup, verdict, only="W" not in fault.when)
    elif fault is None and outcome.checkup is not None:
        verdict.causes += _said_by_checkup(outcome.checkup)


def _score(program: Program, fault: Fault, causes: list[Finding], verdict: Verdict) -> None:
    if fault.tier == "A":
        said = {*verdict.infos, *(cause.code for cause in causes)}
        verdict.position = 1 if said & set(fault.codes) else None
        return
    for number, cause in enumerate(causes, start=1):
        if cause.code in fault.codes:
            verdict.position = number
            verdict.right_place = named(cause.sites, program.site)
            return


def named(sites: tuple[str, ...], pattern: str | None) -> bool | None:
    """Whether one of the first sites is a place that the pattern names; a parameter counts for its module."""
    if pattern is None:
        return None
    globs = pattern.split("|")
    return any(
        fnmatchcase(site, glob) or fnmatchcase(site, f"{glob}.*") or fnmatchcase(site, f"{glob}[[]*")
        for site in sites[:SITES_READ]
        for glob in globs
    )


def _time(run: Run, program: Program, fault: Fault, expected: int | None, verdict: Verdict) -> None:
    right = [cause for cause in verdict.causes if cause.code in fault.codes]
    if expected is None or not right or not verdict.found:
        return
    tolerance = STEP_TOLERANCE if program.sudden else SLOW_TOLERANCE
    verdict.right_step = abs(right[0].first_step - expected) <= tolerance
    detection = Detection()
    for span in spans(run, size=REPLAY_STEPS):
        detection.observe([span])
        if any(f.code in fault.codes for f in detection.findings()):
            verdict.delay = (int(span.steps[-1]) if len(span.steps) else 0) - expected
            return


def _describe(run: Run, diagnosis: Diagnosis, verdict: Verdict) -> None:
    verdict.num_steps = len(run.steps)
    loss = run.metric("loss").values if "loss" in run.metrics() else np.empty(0)
    if len(loss) >= 10:
        part = max(len(loss) // 10, 1)
        verdict.loss = (float(np.median(loss[:part])), float(np.median(loss[-part:])))
    verdict.troubles += [f"a detector broke: {what}" for what in diagnosis.looked_at.broken_detectors]
    for event in run.events("totals"):
        if event.body.get("num_errors"):
            verdict.troubles.append(f"{event.body['num_errors']} guarded errors in capture")
    verdict.troubles += [f"run damaged: {problem.what}" for problem in run.problems]


def _said_by_checkup(checkup: Checkup) -> list[Said]:
    """What the checkup of a healthy program blames."""
    diagnosis = stethoscope.checkup(checkup.model, checkup.batch, checkup.loss_fn, checkup.optimizer, **checkup.kwargs)
    return [Said.of(cause) for cause in diagnosis.causes]


def _check_up(fault: Fault, program: Program, checkup: Checkup, verdict: Verdict, *, only: bool) -> None:
    try:
        look: Any = stethoscope.checkup
    except AttributeError:
        verdict.checkup = "no checkup"
        return
    try:
        diagnosis = look(checkup.model, checkup.batch, checkup.loss_fn, checkup.optimizer, **checkup.kwargs)
    except Exception as error:
        verdict.checkup = "error"
        verdict.troubles.append(f"checkup raised {error!r}")
        return
    verdict.checkup_said = [Said.of(cause) for cause in diagnosis.causes]
    places = [n for n, cause in enumerate(diagnosis.causes, start=1) if cause.code in fault.codes]
    verdict.checkup = "found" if places and places[0] <= 2 else "missed"
    if only:
        verdict.position = places[0] if places else None
        if places:
            verdict.right_place = named(diagnosis.causes[places[0] - 1].sites, program.site)

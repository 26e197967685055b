"""One program in both forms: trained under watch, trained for the peers, and when each of them warned."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from typing import Any, Final

from benchmarks.early_warning import peers
from benchmarks.early_warning.breaking import break_step
from benchmarks.early_warning.training import Program, walk

import stethoscope
from stethoscope.analyse.span import spans
from stethoscope.detect import Detection
from stethoscope.detect.effects import BLOW_UP
from stethoscope.detect.registry import Registry, builtin
from stethoscope.record import Severity
from stethoscope.store import Run, open_run

LOOK_EVERY: Final = 5
"""How finely a run is fed again; what is found in these steps was said after the last of them."""
SUSPICIONS: Final = ("divergence_ahead", "lr_too_high", "overflow_ahead")
"""Codes whose notes are warnings too."""


@dataclasses.dataclass
class Measured:
    """A program at a seed, in one form."""

    program: str
    seed: int
    is_bad: bool
    break_at: int | None
    suspected: list[Any] | None
    """The first note of the family: code, the step it was said, message."""
    told: list[Any] | None
    """The first warning of the family, or worse."""
    spells: list[list[int]]
    """From when to when something of the family stood: a suspicion may be withdrawn, and come back."""
    alarms: dict[str, list[int]]
    """Of the peers."""
    same_losses: bool
    """Whether it trained as without us."""
    others: list[str]
    """Findings of other families, warnings or worse."""


def family() -> frozenset[str]:
    """Codes that by their declaration can lead to numbers that blow up, and these themselves."""
    known = builtin().codes
    ends = {*BLOW_UP, "update_too_large", "exploding_gradients"}
    return frozenset(ends | {name for name, code in known.items() if set(code.leads_to) & ends})


def measure(program: Program, seed: int, folder: Path) -> list[Measured]:
    """The bad one and its twin."""
    twins = {is_bad: _both_ways(program, seed, folder / f"{is_bad}", is_bad=is_bad) for is_bad in (False, True)}
    found = []
    for is_bad, (losses, alarms, same, run) in twins.items():
        at = break_step(losses, twins[False][0]) if is_bad else None
        found.append(
            Measured(program.name, seed, is_bad, at, *_what_was_said(run, at or program.steps), alarms, same, [])
        )
        found[-1].others = _others(run)
    return found


def _both_ways(
    program: Program, seed: int, folder: Path, *, is_bad: bool
) -> tuple[list[float], dict[str, list[int]], bool, Run]:
    losses, alarms = peers.watch_plainly(program.start(seed, is_bad=is_bad), program.steps, folder / "peer")
    os.environ |= {"STETHOSCOPE_COMPANION": "off", "STETHOSCOPE_QUIET": "true"}
    training = program.start(seed, is_bad=is_bad)
    session = stethoscope.watch(training.model, [training.optimizer, *training.others], dir=str(folder / "run"))
    watched = walk(training, program.steps)
    path = session.stop().path
    same = all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(losses, watched, strict=True))
    return losses, alarms, same, open_run(path)


def _what_was_said(run: Run, last: int) -> tuple[list[Any] | None, list[Any] | None, list[list[int]]]:
    """The first suspicion, the first warning and all spells, as an analysis beside the training would have said them."""
    wanted = family()
    detection = Detection(_registry(wanted | set(SUSPICIONS)))
    suspected: list[Any] | None = None
    told: list[Any] | None = None
    spells: list[list[int]] = []
    stands = False
    for span in spans(run, size=LOOK_EVERY):
        detection.observe([span])
        said = int(span.steps[-1]) + 1 if len(span.steps) else 0  # a step is settled when the next one is there
        found = detection.findings()
        notes = [f for f in found if f.severity is Severity.INFO and f.code in SUSPICIONS]
        warnings = [f for f in found if f.severity is not Severity.INFO and f.code in wanted]
        if notes and suspected is None:
            suspected = [notes[0].code, said, notes[0].message]
        if warnings and told is None:
            told = [warnings[0].code, said, warnings[0].message]
        if bool(notes or warnings) != stands:
            stands = not stands
            spells = [*spells, [said, last]] if stands else [*spells[:-1], [spells[-1][0], said]]
        if said > last:
            break
    return suspected, told, spells


def _registry(codes: frozenset[str]) -> Registry:
    """The detectors that can say one of these: the others need not be asked hundreds of times."""
    return Registry(tuple(d for d in builtin().detectors if codes & {code.name for code in d.codes}))


def _others(run: Run) -> list[str]:
    wanted, detection = family(), Detection()
    detection.observe(spans(run))
    return sorted({f.code for f in detection.findings() if f.severity is not Severity.INFO} - wanted)

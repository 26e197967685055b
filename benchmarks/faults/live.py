"""The same findings live and stored: a companion listens while a program trains, at random moments, and in the end says what
a diagnosis of the stored run says.

Also without training again: a stored run is fed in pieces cut at random, as a companion would have seen it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.faults.catalogue import Program

from stethoscope.analyse.span import spans
from stethoscope.companion import Companion
from stethoscope.detect import Detection
from stethoscope.record import Finding, Severity
from stethoscope.store import Run, RunWriter, find_runs, open_run

LOOKS: Final = 0.1
"""How likely a look is after any one of the writes."""
MAX_CUTS: Final = 40


@contextlib.contextmanager
def listening(seed: int, how_often: float = LOOKS) -> Iterator[dict[Path, Companion]]:
    """While it lasts, every run that is written here has a companion that looks at random moments."""
    dice = random.Random(seed)
    ears: dict[Path, Companion] = {}
    plain = RunWriter.scalars

    def scalars(writer: RunWriter, step: int, values: Any) -> None:
        plain(writer, step, values)
        if dice.random() < how_often and writer.state == "writing" and writer.flush():
            if writer.path not in ears:
                ears[writer.path] = Companion(writer.path, disk_bytes=1 << 40)
            ears[writer.path].look()

    RunWriter.scalars = scalars  # type: ignore[method-assign]
    try:
        yield ears
    finally:
        RunWriter.scalars = plain  # type: ignore[method-assign]


def whole(run: Run) -> list[Finding]:
    """What is found in the stored run, read at once."""
    detection = Detection()
    detection.observe(spans(run))
    return detection.findings()


def in_pieces(run: Run, seed: int) -> list[Finding]:
    """What is found in the stored run, fed in pieces cut at random."""
    dice, detection, seen = random.Random(seed), Detection(), None
    if len(run.steps) > 1:
        between = range(int(run.steps[0]), int(run.steps[-1]))
        for step in sorted(dice.sample(between, min(len(between), dice.randint(1, MAX_CUTS)))):
            detection.observe(spans(run, after=seen, upto=step))
            detection.findings()
            seen = step
    detection.observe(spans(run, after=seen))
    return detection.findings()


def passing(run: Run) -> list[str]:
    """What a companion that looks after every step would have told and then taken back, in words.

    Whoever follows a run reads it in that moment: a healthy run must be silent at every one, not only in the end.
    """
    detection, seen, told = Detection(), None, {}
    for step in run.steps.tolist():
        detection.observe(spans(run, after=seen, upto=step))
        seen = step
        for finding in detection.findings():
            if finding.severity is not Severity.INFO:
                told.setdefault(finding.code, (step, finding))
    last = {finding.code for finding in whole(run)}
    return [f"told after step {step}: {f.code}: {f.message}" for step, f in told.values() if f.code not in last]


def differences(first: list[Finding], second: list[Finding]) -> list[str]:
    """What the one says and the other does not, in words; NaN equals NaN here."""
    told, others = (
        [json.dumps(f.to_json(), sort_keys=True, default=float) for f in found] for found in (first, second)
    )
    return [
        *(f"only the first: {one}" for one in told if one not in others),
        *(f"only the second: {one}" for one in others if one not in told),
    ]


def compare(folder: Path, ear: Companion | None, seed: int) -> list[str]:
    """How a stored run's findings differ from those of its companion, and of the run in pieces."""
    run = open_run(folder)
    stored = whole(run)
    found = [f"in pieces, {line}" for line in differences(stored, in_pieces(run, seed))]
    if ear is not None:
        ear.finish()
        found += [f"live, {line}" for line in differences(stored, ear.look(final=True))]
    return found


def check(program: Program, seed: int, folder: Path, *, moments: bool = False) -> tuple[int, list[str]]:
    """Run a program with a companion that listens: how many runs it recorded, and every difference found.

    Ranks of a program with several processes write where no ear is; their runs are compared in pieces only. With
    `moments`: without a companion, and what would have been told in passing.
    """
    os.environ |= {"STETHOSCOPE_DIR": str(folder), "STETHOSCOPE_COMPANION": "off", "STETHOSCOPE_QUIET": "true"}
    before = Path.cwd()
    try:
        os.chdir(folder)
        with listening(seed, 0.0 if moments else LOOKS) as ears, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program.run(seed)
    finally:
        os.chdir(before)
        gc.collect()
    runs = find_runs(folder)
    if moments:
        return len(runs), [line for run in runs for line in passing(open_run(run))]
    heard = {path.resolve(): ear for path, ear in ears.items()}
    return len(runs), [line for run in runs for line in compare(run, heard.get(run.resolve()), seed)]

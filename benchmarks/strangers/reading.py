"""One start of a program as a row: what was recorded of it, and what is said of that."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.strangers.operators import OPERATORS


@dataclasses.dataclass
class Ran:
    """What one start of a program gave."""

    key: str
    repository: str
    seed: int
    operator: str = ""
    """Empty: as a user runs it. "none": the original, started as the mutants are."""
    state: str = ""
    message: str = ""
    causes: list[list[Any]] = dataclasses.field(default_factory=list)
    symptoms: list[str] = dataclasses.field(default_factory=list)
    suspected: list[str] = dataclasses.field(default_factory=list)
    live: list[str] = dataclasses.field(default_factory=list)
    metric: float | None = None
    loss: list[float] = dataclasses.field(default_factory=list)
    num_steps: int = 0
    seconds: float = 0.0
    exit: int = 0
    error: str = ""
    folder: str = ""
    is_cut: bool = False
    """Ended by the clock, before its steps were done."""
    text: str = ""
    """`diagnose` as it is printed, and `--why` of what should have been said, or should not."""


def read(ran: Ran, folder: Path) -> None:
    """Judge the run in a folder as `diagnose` does."""
    import stethoscope
    from stethoscope.store import find_runs, open_run

    runs = sorted(find_runs(folder))
    if not runs:
        ran.error = "no run was recorded"
        return
    # Of several trainings in one script, the longest.
    opened = max((open_run(path) for path in runs), key=lambda one: len(one.steps))
    ran.folder, ran.num_steps = str(opened.path), len(opened.steps)
    diagnosis = stethoscope.diagnose(opened)
    ran.state, ran.message = str(diagnosis.verdict.state), diagnosis.verdict.message
    ran.causes = [[c.code, str(c.severity), c.first_step, list(c.sites[:3]), c.message] for c in diagnosis.causes]
    ran.symptoms = [symptom.name for symptom in diagnosis.verdict.symptoms]
    ran.suspected = [one.text for one in diagnosis.verdict.suspected]
    values = opened.metric("loss").values if "loss" in opened.metrics() else np.empty(0)
    if len(values):
        tenth = max(len(values) // 10, 1)
        ran.loss = [float(np.median(values[:tenth])), float(np.median(values[-tenth:]))]
    ran.text = _printed(ran)


def _printed(ran: Ran) -> str:
    from stethoscope.cli import main

    told = [cause[0] for cause in ran.causes]
    expected = OPERATORS[ran.operator].codes[:1] if ran.operator in OPERATORS else ()
    asked = told[:2] if not expected else [code for code in expected if code not in told]
    texts = []
    for words in (["--no-heatmap"], *(["--why", code] for code in asked)):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            main(["diagnose", *words, "--color", "never", "--width", "100", ran.folder])
        texts.append(out.getvalue().strip())
    return "\n\n".join(texts)


def load(path: Path) -> list[Ran]:
    """Rows of an earlier start of the benchmark."""
    return [Ran(**row) for row in json.loads(path.read_text())] if path.exists() else []


def save(rows: Sequence[Ran], path: Path) -> None:
    """As JSON, a line a row; a cut between two rows leaves the earlier file whole."""
    partial = path.with_suffix(".partial")
    partial.write_text("[\n" + ",\n".join(json.dumps(vars(row)) for row in rows) + "\n]\n")
    partial.replace(path)

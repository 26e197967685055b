"""Runs written by hand: curves and facts as a training would have left them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stethoscope.analyse.span import spans
from stethoscope.detect import Detection
from stethoscope.record import Finding
from stethoscope.store import Run, RunWriter, open_run

Curves = Mapping[str, Mapping[int, float]]


def write_run(
    folder: Path,
    curves: Curves,
    events: Iterable[tuple[int, str, dict[str, Any]]] = (),
    *,
    modules: Sequence[dict[str, Any]] = (),
    finished: bool = True,
) -> Run:
    """A run with these metrics and events, in the order of their steps."""
    writer = RunWriter.create(folder, {"name": "written", "model": {"modules": list(modules)}})
    by_step: dict[int, dict[str, float]] = {}
    for name, values in curves.items():
        for step, value in values.items():
            by_step.setdefault(step, {})[name] = value
    facts = sorted(events, key=lambda fact: fact[0])
    last = max([*by_step, *(step for step, _, _ in facts)])
    for step in range(last + 1):
        if step in by_step:
            writer.scalars(step, by_step[step])
        for at, kind, body in facts:
            if at == step:
                writer.event(step, kind, body)
    if finished:
        writer.event(last + 1, "totals", {"num_steps": last + 1})
    writer.close("finished" if finished else "signal")
    return open_run(folder)


def find(run: Run, size: int = 128) -> list[Finding]:
    """Everything that the detectors find, none of them broken."""
    detection = Detection()
    detection.observe(spans(run, size=size))
    assert not detection.errors, detection.errors
    return detection.findings()


def codes(findings: Iterable[Finding]) -> set[str]:
    """The codes of what would become causes."""
    return {f.code for f in findings if f.severity != "Info"}

"""`diagnose`: a run in, a Diagnosis out."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stethoscope.analyse.span import spans
from stethoscope.detect import DETECTORS, Detection
from stethoscope.explain.circumstances import circumstances
from stethoscope.explain.diagnosis import Diagnosis, LookedAt
from stethoscope.explain.ranking import silence, split
from stethoscope.record import Finding
from stethoscope.store import Run, open_run

NOT_MEASURED = ("frozen", "meta", "unsupported", "capped")


def diagnose(run: Run | str | Path, *, findings: list[Finding] | None = None) -> Diagnosis:
    """The causes in a run, ranked. `findings` are taken instead of looking again, where somebody has looked.

    Of a run whose old steps were thinned out, what was found while they were whole is the better answer.
    """
    opened = run if isinstance(run, Run) else open_run(run)
    if findings is None and opened.thinned and opened.was_examined:
        findings = opened.findings()
    broken: tuple[str, ...] = ()
    if findings is None:
        detection = Detection()
        detection.observe(spans(opened))
        findings = detection.findings()
        broken = tuple(f"{name}: {error}" for name, error in detection.errors.items())
    config = opened.info.get("config", {})
    heard = silence(findings, config.get("ignore", ()), config.get("expect", ()))
    causes, followed = split(heard, circumstances(opened))
    return Diagnosis(causes=causes, findings=tuple(heard), followed=followed, looked_at=looked_at(opened, broken))


def looked_at(run: Run, broken: tuple[str, ...] = ()) -> LookedAt:
    """What the run holds, against what it should."""
    expected = [info for info in run.sites if info.measured not in NOT_MEASURED]
    counts = run.matrix(None, "count")
    steps = counts.steps
    reporting = sum(
        info.measured not in NOT_MEASURED and not silent
        for info, silent in zip(counts.sites, np.all(counts.missing, axis=0).tolist(), strict=True)
    )
    return LookedAt(
        num_sites=reporting,
        num_sites_expected=len(expected),
        num_steps=len(steps),
        first_step=int(steps[0]) if len(steps) else None,
        last_step=int(steps[-1]) if len(steps) else None,
        num_rows_lost=run.losses.get("dropped_rows", 0),
        num_detectors=len(DETECTORS) - len(broken),
        broken_detectors=broken,
        unmet_needs=tuple(_unmet(run)),
    )


def _unmet(run: Run) -> list[str]:
    metrics = run.metrics()
    kinds = {str(info.site.kind) for info in run.sites}
    needs = []
    if not any(name.startswith("eval/") for name in metrics):
        needs.append(
            "with session.evaluating(): session.log(loss=...) would show overfitting and train/eval mode mistakes"
        )
    if "target" not in kinds:
        needs.append(
            "session.log_batch(inputs, targets) would show bad batches, label trouble and repeated samples"
        )
    if "loss" not in metrics:
        needs.append("no loss was seen: call loss.backward() on the loss, or session.log(loss=loss)")
    return needs

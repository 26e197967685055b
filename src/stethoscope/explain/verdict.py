"""`diagnose`: a run in, a Diagnosis out; `conclude`: findings in, a Diagnosis out. Every face takes its verdict from here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stethoscope.analyse.span import spans
from stethoscope.detect import Detection
from stethoscope.detect.registry import known
from stethoscope.explain import pages
from stethoscope.explain.diagnosis import Diagnosis, LookedAt
from stethoscope.explain.judgement import judge
from stethoscope.explain.ranking import apply_ignores, rank_causes
from stethoscope.explain.run_context import context_of
from stethoscope.record import Finding, printable
from stethoscope.record.events import Continuation, NotMeasured
from stethoscope.record.metrics import EVALUATION, LOSS
from stethoscope.store import Run, open_run
from stethoscope.store.findings import SEALING
from stethoscope.store.losses import FIRST_LOST, LAST_LOST, LOST_STEPS

NOT_MEASURED = ("frozen", "meta", "unsupported", "capped")


def diagnose(
    run: Run | str | Path, *, findings: list[Finding] | None = None, is_late: Callable[[], bool] | None = None
) -> Diagnosis:
    """The causes in a run, ranked. `findings` are those of an earlier search, which is not repeated then.

    `is_late` is asked between spans of steps; where it says so there is no diagnosis, but a TimeoutError.

    Of a run whose old steps were thinned out, what was found while they were whole is the better answer.
    """
    opened = run if isinstance(run, Run) else open_run(run)
    if findings is None and opened.thinned and opened.was_examined:
        findings = opened.findings()
    broken = broken_detectors(opened.failures())
    if findings is None:
        detection = Detection()
        for span in spans(opened):
            if is_late is not None and is_late():
                raise TimeoutError
            detection.observe([span])
        findings = detection.findings()
        findings += _from_elsewhere(opened, {finding.code for finding in findings})
        # Of those that are not known here, such as a script's own, what was said of them while the run was recorded.
        here = {kind.__name__ for kind in known().detectors}
        elsewhere = {name: error for name, error in opened.failures().items() if name not in here}
        broken = broken_detectors(elsewhere | detection.errors)
    return conclude(opened, findings, looked_at=looked_at(opened, broken))


def conclude(run: Run, findings: Iterable[Finding], *, looked_at: LookedAt | None = None) -> Diagnosis:
    """The one place where findings of a run become causes and what follows from them."""
    heard, causes, followed = weigh(run, findings)
    looked = looked_at or LookedAt()
    return Diagnosis(causes, tuple(heard), followed, looked, judge(run, causes, looked))


def weigh(
    run: Run,
    findings: Iterable[Finding],
    *,
    ignore: Iterable[str] | None = None,
    expect: Iterable[str] | None = None,
) -> tuple[list[Finding], tuple[Finding, ...], dict[str, tuple[Finding, ...]]]:
    """What is left of the findings after what the user silenced, the causes among them, and what follows from each.

    `ignore` and `expect` are the run's own settings, unless a session has others by now.
    """
    settings = run.info.get("config", {})
    ignored = settings.get("ignore", ()) if ignore is None else ignore
    expected = settings.get("expect", ()) if expect is None else expect
    heard = apply_ignores(findings, ignored, expected)
    # A single finding needs no context to be ranked, and reading one takes time.
    causes, followed = rank_causes(heard, context_of(run) if len(heard) > 1 else None)
    return heard, causes, followed


def broken_detectors(failures: Mapping[str, str]) -> tuple[str, ...]:
    """The detectors among what failed, each with its error."""
    return tuple(f"{name}: {error}" for name, error in failures.items() if name != SEALING)


def _from_elsewhere(run: Run, found: Collection[str]) -> list[Finding]:
    """What was found while the run was recorded and cannot be here: by a script's own detectors, or in steps that were thinned since."""
    gone = set() if run.thinned else pages.codes()
    return [finding for finding in run.findings() if finding.code not in gone and finding.code not in found]


def looked_at(run: Run, broken: tuple[str, ...] = (), *, has_rows: npt.NDArray[np.bool_] | None = None) -> LookedAt:
    """What the run holds, against what it should. `has_rows` says of each site whether it reported, where that is known."""
    steps = run.steps
    if has_rows is None:
        counts = run.matrix(None, "count")
        steps, has_rows = counts.steps, ~np.all(counts.missing, axis=0)
    expected = np.array([info.measured not in NOT_MEASURED for info in run.sites], dtype=bool)
    return LookedAt(
        num_sites=int((has_rows & expected).sum()),
        num_sites_expected=int(expected.sum()),
        num_steps=len(steps),
        first_step=int(steps[0]) if len(steps) else None,
        last_step=int(steps[-1]) if len(steps) else None,
        num_rows_lost=run.losses.get("dropped_rows", 0),
        num_steps_lost=run.losses.get(LOST_STEPS, 0),
        first_lost_step=run.losses.get(FIRST_LOST),
        last_lost_step=run.losses.get(LAST_LOST),
        mixtures=tuple(_mixtures(run)),
        unmeasured=tuple(_unmeasured(run)),
        num_detectors=len(known().detectors) - len(broken),
        broken_detectors=broken,
        unmet_needs=tuple(_unmet(run)),
    )


def _mixtures(run: Run) -> list[str]:
    """What processes said at their start about others that have written, or wrote, to the run."""
    told = []
    for event, said in run.events_of(Continuation):
        if said.how == "beside":
            other = printable(said.other, limit=200)
            told.append(f"From step {event.step:,} on {other} wrote to this run too: the steps of both are mixed.")
        elif said.how == "fresh":
            told.append(f"Step {event.step:,} starts another training, with other weights, in the same run.")
    return told[:8]


def _unmeasured(run: Run) -> list[str]:
    """Steps that went by while the kernels for a device were being compiled."""
    told = []
    for _, said in run.events_of(NotMeasured):
        what = []
        if said.rows_until > said.first:
            what.append(f"steps {said.first:,}–{said.rows_until - 1:,}")
        if said.outputs_until > said.rows_until:
            what.append(f"module outputs and histograms of steps {said.first:,}–{said.outputs_until - 1:,}")
        told.append(f"Not measured while the kernels were compiled: {', '.join(what)}.")
    return told[:8]


def _unmet(run: Run) -> list[str]:
    metrics = run.metrics()
    kinds = {str(info.site.kind) for info in run.sites}
    needs = []
    if not any(name.startswith(EVALUATION) for name in metrics):
        needs.append(
            "with session.evaluating(): session.log(loss=...) would show overfitting and train/eval mode mistakes"
        )
    if "target" not in kinds:
        needs.append("session.log_batch(inputs, targets) would show bad batches, label trouble and repeated samples")
    if LOSS not in metrics:
        needs.append("no loss was seen: call loss.backward() on the loss, or session.log(loss=loss)")
    return needs

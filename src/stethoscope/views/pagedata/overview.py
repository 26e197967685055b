"""The run screen: identity, verdict, axis, tracks, whole run at a glance."""

from __future__ import annotations

from typing import Final, NotRequired, TypedDict

import numpy as np

from stethoscope.analyse.bins import Bins, Mark, bins_over
from stethoscope.explain.context_evidence import CLIP, metric_series
from stethoscope.kernels.statistics import STATISTICS
from stethoscope.record import Kind, Series, Severity, metrics
from stethoscope.store import Run
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.common.run_status import ended_at
from stethoscope.views.pagedata import facts
from stethoscope.views.pagedata.checkup import Checkup, checkup_data
from stethoscope.views.pagedata.heat import HeatData, heat_data, opened_rows
from stethoscope.views.pagedata.packing import Number, Packed, binned, number, reduced, small, spark, text
from stethoscope.views.pagedata.query import QueryParams
from stethoscope.views.pagedata.ranks import over_ranks, spread_bins
from stethoscope.views.pagedata.screens import Screen
from stethoscope.views.pagedata.verdict import Course, EvidenceData, Verdict, opening_window, verdict_data

MAX_WIDTH: Final = 4096
MINIMAP_BINS: Final = 1024
STATS: Final = ("norm", "abs_max", "mean_abs", "mean", "std", "max", "min", "kurtosis", "zero_fraction", "num_tiny")


class Counts(TypedDict):
    """How many there are, beside the titles of the screens."""

    sites: int
    modules: int
    ranks: int
    log: int


class RunData(TypedDict):
    """Everything of the run screen that does not depend on what part of it is in view."""

    version: int
    isExamining: bool
    run: facts.Identity
    model: facts.ModelFacts
    verdict: Verdict
    span: tuple[int, int]
    window: tuple[int, int]
    kinds: list[str]
    kind: str
    stats: list[str]
    counts: Counts
    status: list[facts.StatusPart]
    closing: str
    readAt: float
    delay: float | None
    usualBefore: int | None
    metrics: list[str]
    checkup: Checkup | None


class Limit(TypedDict):
    """A line that values should not pass."""

    value: float
    label: str


class Track(TypedDict):
    """One line over the layers."""

    key: str
    label: str
    note: str
    color: str
    tall: bool
    log: bool
    limits: list[Limit]
    unit: str
    series: Packed
    last: Number
    site: NotRequired[str]
    stat: NotRequired[str]


class TracksData(TypedDict):
    """The lines over the steps in view."""

    version: int
    tracks: list[Track]


class TroubleStrip(TypedDict):
    """How much is wrong in each part of the run: 0 none, 1 unusual, 2 far off, 3 broken."""

    start: int
    size: int
    level: str


class Minimap(TypedDict):
    """The whole run at a glance."""

    span: tuple[int, int]
    loss: Packed
    trouble: TroubleStrip
    seconds: float | None
    numSteps: int
    anyLoss: bool


def run_data(viewed: OpenRun) -> RunData:
    """Everything of the run screen that does not depend on what part of it is in view."""
    is_examining = viewed.examine_later()
    run, diagnosis = viewed.run, viewed.diagnosis
    assert set(STATS) <= set(STATISTICS)
    return {
        "version": viewed.version,
        "isExamining": is_examining,
        "run": facts.identity(run),
        "model": facts.model_facts(run),
        "verdict": verdict_data(viewed, course(viewed)),
        "span": viewed.span,
        "window": opening_window(run, diagnosis),
        "kinds": [str(kind) for kind in viewed.kinds()],
        "kind": str(heat_kind(viewed)),
        "stats": list(STATS),
        "counts": {
            "sites": len(run.sites),
            "modules": num_modules(run),
            "ranks": len(run.ranks),
            "log": num_log_entries(viewed),
        },
        "status": facts.status_parts(viewed, diagnosis),
        "closing": facts.closing_words(run),
        "readAt": viewed.read_at,
        "delay": delay(viewed),
        "usualBefore": viewed.usual_before(),
        "metrics": [text(name, 200) for name in run.metrics()[:512]],
        "checkup": checkup_data(run),
    }


def course(viewed: OpenRun) -> Course | None:
    """How a run without a cause went: a few quantities at its first step and at its last, each with its line."""
    if viewed.diagnosis.causes:
        return None
    run = viewed.run
    first, last = viewed.span
    gradient, note = gradient_norm(viewed)
    words = "gradient before clipping" if note == "before clipping" else "gradient of all layers"
    told = [
        ("loss", metric_series(run, metrics.LOSS)),
        (words, gradient),
        ("clip coefficient", metric_series(run, CLIP)),
        ("learning rate", metric_series(run, metrics.LEARNING_RATE)),
        ("time of a step, ms", metric_series(run, metrics.STEP_MS)),
    ]
    rows: list[EvidenceData] = [
        {
            "label": label,
            "before": number(float(series.values[0])),
            "after": number(float(series.values[-1])),
            "unit": "",
            "site": "",
            "kind": "",
            "stat": "",
            "trend": spark(series, 96, first, last),
        }
        for label, series in told
        if series is not None and len(series) > 1
    ]
    return {"rows": rows[:5], "columns": [f"at {first:,}", f"at {last:,}"]} if rows else None


def num_modules(run: Run) -> int:
    """Modules that report anything."""
    return len({info.site.module for info in run.sites if info.site.module})


def num_log_entries(viewed: OpenRun) -> int:
    """Findings and events that the log shows."""
    from stethoscope.views.pagedata.log import num_entries

    return num_entries(viewed)


def delay(viewed: OpenRun) -> float | None:
    """Seconds between the latest writing of a live run and our reading it."""
    if viewed.run.state != "live":
        return None
    written = ended_at(viewed.run)
    return max(0.0, viewed.read_at - written) if written else None


def heat_kind(viewed: OpenRun) -> Kind:
    """The kind to open with: one that the evidence of the first cause speaks of, else gradients."""
    kinds = viewed.kinds()
    for cause in viewed.diagnosis.causes[:1]:
        for evidence in cause.evidence:
            if evidence.kind in [str(kind) for kind in kinds]:
                return Kind(evidence.kind)
        # A module without parameters has no gradient of its own: its output is where the cause can be seen.
        for kind in kinds:
            if any(node.path == site for node in viewed.tree(kind) for site in cause.sites[:1]):
                return kind
    return kinds[0] if kinds else Kind.GRADIENT


def tracks_data(viewed: OpenRun, first: int, last: int, width: int, extra: tuple[str, ...] = ()) -> list[Track]:
    """The lines over the layers: loss, gradient norm, learning rate, throughput, and what else was asked for."""
    run = viewed.run
    width = max(16, min(width, MAX_WIDTH))
    known = run.metrics()
    out = []
    if metrics.LOSS in known:
        spread = over_ranks(run, metrics.LOSS) if len(run.ranks) > 1 else None
        loss = run.metric(metrics.LOSS) if spread is None else spread.mean
        note = "" if spread is None else f"mean, band over {len(run.ranks):,} ranks"
        one = _track_data(metrics.LOSS, "Loss", note, "s1", loss, (first, last, width), tall=True)
        if spread is not None:
            one["series"] = spread_bins(spread, (first, last, width))
        out.append(one)
    gradient, note = gradient_norm(viewed)
    if len(gradient):
        one = _track_data(metrics.GRADIENT_NORM, "Gradient norm", note, "s2", gradient, (first, last, width), tall=True)
        limit = clip_limit(run)
        if limit is not None:
            one["limits"] = [{"value": limit, "label": f"clip at {limit:g}" + (".0" if limit == int(limit) else "")}]
        out.append(one)
    rate = next((name for name in known if metrics.is_learning_rate(name)), None)
    if rate:
        out.append(_track_data(rate, "Learning rate", "", "s4", run.metric(rate), (first, last, width)))
    speed = step_rate(run)
    if len(speed):
        one = _track_data("step_rate", "Throughput", "", "s3", speed, (first, last, width))
        one["unit"] = "steps/s"
        out.append(one)
    for index, name in enumerate([name for name in extra if name in known][:4]):
        color = ("s5", "s6")[index % 2]
        out.append(_track_data(name, text(name, 80), "", color, run.metric(name), (first, last, width), tall=True))
    return out


def _track_data(
    key: str, label: str, note: str, color: str, series: Series, view: tuple[int, int, int], *, tall: bool = False
) -> Track:
    inside = series.between(*view[:2]).values
    finite = inside[np.isfinite(inside)]
    log = bool(len(finite) and tall and finite.min() > 0 and finite.max() / finite.min() > 100)
    note = ", ".join(part for part in (note, "log" if log else "") if part)
    return {
        "key": text(key, 200),
        "label": label,
        "note": note,
        "color": color,
        "tall": tall,
        "log": log,
        "limits": [],
        "unit": "",
        "series": binned(series, *view),
        "last": number(float(series.values[-1])) if len(series) else None,
    }


def gradient_norm(viewed: OpenRun) -> tuple[Series, str]:
    """The norm over all gradients: as clipping saw it, else put together from what was recorded."""
    run = viewed.run
    clipped = run.metric(metrics.GRADIENT_NORM)
    if len(clipped):
        return clipped, "before clipping"
    if Kind.GRADIENT not in viewed.kinds():
        return Series(), ""
    return viewed.histories.together(Kind.GRADIENT, "norm").series(0), "all layers together"


def clip_limit(run: Run) -> float | None:
    """The norm that gradients are clipped to, where it was recorded and does not change."""
    values = run.metric(metrics.CLIP_NORM).values
    return float(values[-1]) if len(values) and np.isfinite(values[-1]) and values[-1] > 0 else None


def step_rate(run: Run) -> Series:
    """Steps a second."""
    series = run.metric(metrics.STEP_MS)
    keep = np.isfinite(series.values) & (series.values > 0)
    return Series(series.steps[keep], 1000.0 / series.values[keep])


def minimap_data(viewed: OpenRun) -> Minimap:
    """The whole run: loss, and how much is wrong in each of its parts (0 none, 1 unusual, 2 far off, 3 broken)."""
    run = viewed.run
    first, last = viewed.span
    steps, series = run.steps, run.metric(metrics.LOSS)
    bins = bins_over(np.array([first, last], np.int64), 2)
    size = 1
    while (last // size) - (first // size) + 1 > MINIMAP_BINS:
        size *= 2
    begin = first // size * size
    bins = type(bins)(np.arange(begin, last + 1, size, dtype=np.int64), size)
    mean, low, high, marks = reduced(series.steps, series.values, bins)
    trouble = trouble_strip(viewed, bins)
    begun, ended = facts.identity(run)["startedAt"], ended_at(run)
    return {
        "span": (first, last),
        "loss": binned(series, first, last, MINIMAP_BINS, bins),
        "trouble": {"start": begin, "size": size, "level": small(trouble)},
        "seconds": max(0.0, ended - begun) if begun and ended else None,
        "numSteps": len(steps),
        "anyLoss": bool(np.isfinite(mean).any() or (marks != Mark.MISSING).any() or low.size + high.size < 0),
    }


def trouble_strip(viewed: OpenRun, bins: Bins) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The worst of any top-level row in each bin."""
    level = np.zeros(len(bins), dtype=np.uint8)
    kind = heat_kind(viewed)
    tree = viewed.tree(kind)
    top = [tree[at] for at in opened_rows(viewed, tree) if not tree[at].frozen][:512]
    if top:
        cells = viewed.grid(kind, "norm", top, (*viewed.span, MINIMAP_BINS), raw=False)
        index = bins.index(cells.bins.starts)
        far = np.nanmax(np.abs(np.where(np.isfinite(cells.levels), cells.levels, 0.0)), axis=0, initial=0.0)
        score = np.where(far > 4, 2, np.where(far > 2.5, 1, 0)).astype(np.uint8)
        score[(cells.marks >= Mark.INF).any(axis=0)] = 3
        inside = (index >= 0) & (index < len(bins))
        np.maximum.at(level, index[inside], score[inside])
    for finding in viewed.diagnosis.causes:
        if finding.severity is Severity.CRITICAL and len(bins):
            at = bins.index(np.array([finding.first_step, finding.last_step]))
            span_ = level[max(0, int(at[0])) : int(at[1]) + 1]
            np.maximum(span_, 1, out=span_)
    return level


def _answer_run(viewed: OpenRun, _: QueryParams) -> RunData:
    return run_data(viewed)


def _answer_minimap(viewed: OpenRun, _: QueryParams) -> Minimap:
    return minimap_data(viewed)


def _answer_series(viewed: OpenRun, query: QueryParams) -> TracksData:
    extra = tuple(name for name in query.words("extra").split("\n") if name)
    return {"version": viewed.version, "tracks": tracks_data(viewed, *query.view(viewed.span), extra)}


def _answer_heatmap(viewed: OpenRun, query: QueryParams) -> HeatData:
    return heat_data(
        viewed,
        query.kind(heat_kind(viewed)),
        query.stat(),
        query.view(viewed.span),
        query.rows(),
        with_tree=query.flag("tree", default=True),
        exact=query.flag("exact"),
    )


SCREEN: Final = Screen(
    name="overview",
    title="Overview",
    order=10,
    icon="bars",
    questions={"": _answer_run, "minimap": _answer_minimap, "series": _answer_series, "heatmap": _answer_heatmap},
)

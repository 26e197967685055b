"""What else was measured while a cause went on: the layer around it, the gradients, clipping, the loss.

The numbers that a detector names are what it decides by, often one or two. These stand beside them, each read from the
run: before, the median of the steps before the cause; after, the last value of its time that is a number.
"""

from __future__ import annotations

import glob
from collections.abc import Sequence
from typing import Final

import numpy as np

from stethoscope.record import Evidence, Finding, FloatArray, Kind, Series, StethoscopeError, metrics
from stethoscope.store import Run

LEAD_STEPS: Final = 48
"""Steps before a cause that say what was usual."""
_LAST_STEPS: Final = 16
_MIN_BEFORE: Final = 4
_BEHIND_STEPS: Final = 64
_MOVED: Final = 2.0
"""A quantity of the layer is worth showing once it has doubled or halved."""
_MAX_NEIGHBORS: Final = 64
CLIP: Final = "clip_coefficient"
_LAYER_QUANTITIES: Final = (
    (Kind.ACTIVATION, "abs_max", "largest output of"),
    (Kind.GRADIENT, "norm", "gradient L2 of"),
)


def context_evidence(run: Run, cause: Finding, room: int) -> list[Evidence]:
    """At most `room` numbers beside the cause's own evidence, none of them said by it already."""
    if room <= 0:
        return []
    end = last_good(run, cause)
    out: list[Evidence] = []
    named = {(e.kind, e.stat) for e in cause.evidence}
    for kind, stat, label in _LAYER_QUANTITIES:
        if (str(kind), stat) in named:
            continue
        found = _moved_most(run, cause, kind, stat, end)
        if found is not None:
            site, before, after = found
            out.append(Evidence(f"{label} {site}", after, before, site=site, kind=str(kind), stat=stat))
    said = " ".join(f"{e.label} {e.stat}".lower() for e in cause.evidence)
    known = run.metrics()
    if metrics.GRADIENT_NORM in known and "gradient norm" not in said and metrics.GRADIENT_NORM not in said:
        words = "gradient before clipping" if metrics.CLIP_NORM in known else "gradient L2 of the model"
        out += _of_metric(run, cause, end, metrics.GRADIENT_NORM, words)
    if "clip" not in said and len(out) < room - 1:
        out += _of_metric(run, cause, end, CLIP, "clip coefficient")
    loss = _of_metric(run, cause, _end_of(run, cause), metrics.LOSS, "loss") if "loss" not in said else []
    return [*out[: room - len(loss)], *loss]


def metric_series(run: Run, name: str) -> Series | None:
    """A recorded metric, or what follows from two of them: the factor that clipping left of the gradient."""
    known = run.metrics()
    if name in known:
        return run.metric(name)
    if name != CLIP or not {metrics.GRADIENT_NORM, metrics.CLIP_NORM} <= set(known):
        return None
    norms, limits = run.metric(metrics.GRADIENT_NORM), run.metric(metrics.CLIP_NORM)
    steps, at, of = np.intersect1d(norms.steps, limits.steps, assume_unique=True, return_indices=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        left = np.minimum(1.0, limits.values[of] / norms.values[at])
    usable = limits.values[of] > 0
    return Series(steps[usable], left[usable]) if usable.any() else None


def loss_words(run: Run, cause: Finding) -> str:
    """What the loss makes of it, as a sentence; "" where the cause itself speaks of the loss, or nothing can be said."""
    if "loss" in cause.message.lower() or any("loss" in e.label.lower() for e in cause.evidence):
        return ""
    series = metric_series(run, metrics.LOSS)
    if series is None:
        return ""
    broken = _first_broken(series, cause)
    if broken is not None:
        word = "NaN" if np.isnan(series.values[broken]) else "Inf"
        return f"The loss is {word} {'since' if broken < len(series) - 1 else 'at'} step {int(series.steps[broken]):,}."
    before = _before(series, cause.first_step)
    after = _last_value(series, _end_of(run, cause))
    if len(before) < _MIN_BEFORE or after is None:
        return ""
    usual = float(np.median(before))
    if after > float(before.max()):
        return f"The loss rose from a usual {_number_text(usual)} to {_number_text(after)}."
    yet, when = (" yet", "now") if run.state == "live" else ("", "at its end")
    return f"The loss does not show it{yet}: {_number_text(after)} {when}, {_number_text(usual)} before."


def goes_on(run: Run, cause: Finding) -> bool:
    """Whether the cause lasts to where the run has come: detectors look in blocks, a live run is a little ahead of them."""
    end = run.last_step
    return end is not None and cause.last_step >= end - (_BEHIND_STEPS if run.state == "live" else 0)


def _end_of(run: Run, cause: Finding) -> int:
    """The last step of the cause's time: of one that goes on, where the run has come."""
    return run.last_step if run.last_step is not None and goes_on(run, cause) else cause.last_step


def _number_text(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}" if abs(value) >= 1e-3 else f"{value:.3g}"


def last_good(run: Run, cause: Finding) -> int:
    """The last step of the cause at which the loss was still a number."""
    series = metric_series(run, metrics.LOSS)
    broken = None if series is None else _first_broken(series, cause)
    if series is None or not broken:
        return _end_of(run, cause)
    return int(series.steps[broken - 1])


def _first_broken(series: Series, cause: Finding) -> int | None:
    """The index from which on the loss is no number any more, where that is within the cause's time."""
    bad = ~np.isfinite(series.values)
    if not len(bad) or not bad[-1] or series.steps[-1] < cause.first_step:
        return None
    good = np.flatnonzero(~bad)
    index = int(good[-1]) + 1 if len(good) else 0
    return index if series.steps[index] >= cause.first_step else None


def _of_metric(run: Run, cause: Finding, end: int, name: str, label: str) -> list[Evidence]:
    series = metric_series(run, name)
    if series is None or not len(series):
        return []
    broken = _first_broken(series, cause) if name == metrics.LOSS else None
    after = _last_value(series, end) if broken is None else float(series.values[broken])
    if after is None:
        return []
    before = _before(series, cause.first_step)
    usual = float(np.median(before)) if len(before) >= _MIN_BEFORE else None
    return [Evidence(label, after, usual, stat=name)]


def _before(series: Series, first: int) -> FloatArray:
    inside = series.values[slice(*np.searchsorted(series.steps, [first - LEAD_STEPS, first]).tolist())]
    return inside[np.isfinite(inside)]


def _last_value(series: Series, end: int) -> float | None:
    inside = series.values[: int(np.searchsorted(series.steps, end + 1))]
    good = inside[np.isfinite(inside)]
    return float(good[-1]) if len(good) else None


def _moved_most(run: Run, cause: Finding, kind: Kind, stat: str, end: int) -> tuple[str, float, float] | None:
    """Of the cause's module and those beside it, the site that moved farthest from its usual value."""
    best: tuple[float, str, float, float] | None = None
    for pattern in _neighborhood(run, cause, kind):
        try:
            was = run.matrix(
                kind, stat, pattern=pattern, first=cause.first_step - LEAD_STEPS, last=cause.first_step - 1
            )
            now = run.matrix(kind, stat, pattern=pattern, first=max(cause.first_step, end - _LAST_STEPS), last=end)
        except (KeyError, ValueError, StethoscopeError):
            continue
        indices = {info.site: at for at, info in enumerate(now.sites)}
        for at, info in enumerate(was.sites):
            name = info.site.path
            if info.site not in indices or info.site.name == "bias":
                continue
            before, after = was.values[:, at], now.values[:, indices[info.site]]
            before, after = before[np.isfinite(before)], after[np.isfinite(after)]
            if (
                len(before) < _MIN_BEFORE
                or not len(after)
                or after[-1] <= 0
                or (usual := float(np.median(before))) <= 0
            ):
                continue
            moved = abs(float(np.log2(after[-1] / usual)))
            if moved >= np.log2(_MOVED) and (best is None or moved > best[0]):
                best = moved, name, usual, float(after[-1])
    return None if best is None else best[1:]


def _neighborhood(run: Run, cause: Finding, kind: Kind) -> Sequence[str]:
    """Patterns of what lies around the cause's first site: its module's parts, where these are not half the model."""
    home = home_of(run, cause)
    around = home.rpartition(".")[0]
    if (
        around
        and sum(i.site.kind == kind and i.site.module.startswith(around + ".") for i in run.sites) <= _MAX_NEIGHBORS
    ):
        return (f"{glob.escape(around)}.*",)
    return (glob.escape(home), f"{glob.escape(home)}.*") if home else ()


def home_of(run: Run, cause: Finding) -> str:
    """The module of the first place in the model that a cause names, "" where it names none."""
    site = next(iter(cause.layers), "")
    return next((info.site.module for info in run.sites if site and site in info.site.names), "")

"""One site's history: from its rows, or of a long run from the stored buckets, whose spikes stay."""

from __future__ import annotations

from typing import Final

import numpy as np

from stethoscope.analyse.overview import fitting_level
from stethoscope.record import Kind, Series, Site
from stethoscope.store import BucketMatrix, Run

LONG_STEPS: Final = 16_384
"""Steps from which on a site's rows lie in too many files to read them all."""
_MAX_BUCKETS: Final = 1024
_FAR: Final = 3.0


def run_span(run: Run) -> tuple[int, int]:
    """First and last step with rows or a loss."""
    known = [run.steps] + ([run.metric("loss").steps] if "loss" in run.metrics() else [])
    known = [steps for steps in known if len(steps)]
    return (min(int(steps[0]) for steps in known), max(int(steps[-1]) for steps in known)) if known else (0, 0)


def escaped(path: str) -> str:
    """A path as a pattern that names only itself."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in path)


def series_of(
    run: Run, path: str, kind: Kind | str, stat: str, window: tuple[int, int] | None = None
) -> dict[Site, Series]:
    """The series of the sites that a path names; of a long run those of the window, else of its buckets."""
    span = run_span(run) if window is None else window
    pattern = escaped(path)
    if run_span(run)[1] - run_span(run)[0] < LONG_STEPS:
        return dict(run.series(pattern, kind, stat).items())
    if span[1] - span[0] >= LONG_STEPS:
        found = run.buckets(kind, stat, *span, fitting_level(span, _MAX_BUCKETS), pattern=pattern)
        if found is not None:
            return {info.site: _with_spikes(found, at) for at, info in enumerate(found.sites)}
    matrix = run.matrix(kind, stat, pattern=pattern, first=span[0], last=span[1])
    return {
        info.site: Series(matrix.steps[~matrix.missing[:, at]], matrix.values[~matrix.missing[:, at], at])
        for at, info in enumerate(matrix.sites)
        if not matrix.missing[:, at].all()
    }


def _with_spikes(source: BucketMatrix, at: int) -> Series:
    """The means, and after each the lowest or highest value where that is far from it; NaN and Inf by name."""
    seen = source.rows[at] > 0
    starts, mean = source.starts[seen], source.mean[at, seen].astype(np.float64)
    mean[source.broken[at, seen] == 1], mean[source.broken[at, seen] == 2] = np.inf, np.nan
    steps, values = [starts], [mean]
    for part in (source.high, source.low):
        edge = part[at, seen].astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            far = np.isfinite(mean) & (np.abs(np.log(np.abs(edge) / np.abs(mean))) > np.log(_FAR))
        steps.append(starts[far] + len(steps))
        values.append(edge[far])
    order = np.argsort(np.concatenate(steps), kind="stable")
    return Series(np.concatenate(steps)[order], np.concatenate(values)[order])

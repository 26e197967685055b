"""The series of single sites: from their rows, or of a long run from the stored buckets, whose spikes stay."""

from __future__ import annotations

import glob
from typing import Final

import numpy as np

from stethoscope.analyse.history.buckets import MAX_BUCKETS, fitting_level
from stethoscope.analyse.recorded import Recorded, recorded_span
from stethoscope.record import Kind, Series, Site
from stethoscope.store import BucketMatrix

LONG_STEPS: Final = 16_384
"""Steps from which on a site's rows lie in too many files to read them all."""
_FAR: Final = 3.0


def site_series(
    run: Recorded, path: str, kind: Kind, stat: str, window: tuple[int, int] | None = None
) -> dict[Site, Series]:
    """The series of the sites that a path names: all of each, or of a long run that of the window."""
    span = recorded_span(run)
    first, last = window or span
    pattern = glob.escape(path)
    if span[1] - span[0] < LONG_STEPS:
        first, last = span
    elif last - first >= LONG_STEPS:
        found = run.buckets(kind, stat, first, last, fitting_level(first, last, MAX_BUCKETS), pattern=pattern)
        if found is not None:
            return {info.site: _with_spikes(found, index) for index, info in enumerate(found.sites)}
    matrix = run.matrix(kind, stat, pattern=pattern, first=first, last=last)
    return {
        info.site: Series(matrix.steps[there], matrix.values[there, index])
        for index, info in enumerate(matrix.sites)
        if (there := ~matrix.missing[:, index]).any()
    }


def _with_spikes(source: BucketMatrix, site: int) -> Series:
    """The means, and after each the lowest or highest value where that is far from it; NaN and Inf by name."""
    seen = source.rows[site] > 0
    starts, mean = source.starts[seen], source.mean[site, seen].astype(np.float64)
    mean[source.broken[site, seen] == 1], mean[source.broken[site, seen] == 2] = np.inf, np.nan
    steps, values = [starts], [mean]
    for part in (source.high, source.low):
        edge = part[site, seen].astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            far = np.isfinite(mean) & (np.abs(np.log(np.abs(edge) / np.abs(mean))) > np.log(_FAR))
        steps.append(starts[far] + len(steps))
        values.append(edge[far])
    order = np.argsort(np.concatenate(steps), kind="stable")
    return Series(np.concatenate(steps)[order], np.concatenate(values)[order])

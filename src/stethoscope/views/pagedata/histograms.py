"""The distribution of a tensor over time, by sign and power of two, as the layer screen draws it."""

from __future__ import annotations

from typing import Final, TypedDict

import numpy as np

from stethoscope.analyse.bins import bins_over
from stethoscope.analyse.history import site_series
from stethoscope.kernels.histogram import MIN_EXPONENT, NUM_EXPONENTS, ZERO_BIN
from stethoscope.record import FloatArray, IntArray, Kind, Series, Site, SiteInfo
from stethoscope.store import Run
from stethoscope.views.pagedata.packing import Packed, binned, floats, text

RETURNED: Final = (Kind.ACTIVATION, Kind.OUTPUT)
"""Kinds of what a layer hands on."""
MAX_PICTURES: Final = 384
"""Histograms sent at most; where there are more, every second, fourth, … one is."""
_TABLE_STATS: Final = ("abs_max", "mean_abs", "kurtosis", "zero_fraction", "num_nonfinite", "num_tiny")
_RARE, _MIN_POWERS, _MAX_POWERS = 0.002, 6, 24


class Pictures(TypedDict):
    """The distribution of a tensor over time, by sign and power of two."""

    site: str
    kind: str
    steps: list[int]
    bottom: int
    top: int
    negative: str
    positive: str
    zero: str
    count: float
    percentiles: dict[str, str]
    table: dict[str, Packed]


def one_series(run: Run, site: Site, stat: str, window: tuple[int, int] | None = None) -> Series:
    """One statistic of one site; with a window, of a long run only that is sure to be there."""
    return site_series(run, site.path, site.kind, stat, window).get(site, Series())


def histograms(run: Run, inside: list[SiteInfo], tensor: SiteInfo | None) -> tuple[Site, IntArray, FloatArray] | None:
    """The first of the layer's sites that has histograms: the gradient, the weight, an output; steps and [S, bins]."""
    wanted: list[Site] = []
    if tensor is not None:
        wanted = [Site(tensor.site.module, kind, tensor.site.name) for kind in (Kind.GRADIENT, Kind.WEIGHT)]
    wanted += [info.site for info in inside if info.site.kind in RETURNED]
    for site in wanted[:32]:
        steps, table = run.vectors("histogram", site)
        if len(steps):
            return site, steps, np.asarray(table, dtype=np.float64)
    return None


def picture_data(
    run: Run, inside: list[SiteInfo], tensor: SiteInfo | None, view: tuple[int, int, int]
) -> Pictures | None:
    """The distribution over time of the tensor's gradient, else of its weight, else of an output."""
    found = histograms(run, inside, tensor)
    if found is None:
        return None
    site, steps, table = found
    keep = (steps >= view[0] - 64) & (steps <= view[1])
    steps, table = steps[keep], table[keep]
    every = 1
    while len(steps) // every > MAX_PICTURES:
        every *= 2
    return _histogram_picture(run, site, steps[::every], table[::every], view) if len(steps) else None


def _histogram_picture(
    run: Run, site: Site, steps: IntArray, table: FloatArray, view: tuple[int, int, int]
) -> Pictures:
    sizes = table[:, ZERO_BIN + 1 :].sum(axis=0) + table[:, ZERO_BIN - 1 :: -1].sum(axis=0)
    used = np.flatnonzero(sizes)
    top = int(used[-1]) + 1 + MIN_EXPONENT if len(used) else 0
    # What is far smaller than nearly everything else would take most of the picture to show nothing.
    rare = np.flatnonzero(np.cumsum(sizes) > _RARE * sizes.sum()) if len(used) else np.zeros(1, np.int64)
    bottom = min(max(int(rare[0]) + MIN_EXPONENT, top - _MAX_POWERS), top - _MIN_POWERS)
    negative = table[:, NUM_EXPONENTS - 1 - (top - 1 - MIN_EXPONENT) : NUM_EXPONENTS - (bottom - MIN_EXPONENT)]
    positive = table[:, ZERO_BIN + 1 + bottom - MIN_EXPONENT : ZERO_BIN + 1 + top - MIN_EXPONENT]
    near = table.sum(axis=1) - negative.sum(axis=1) - positive.sum(axis=1)
    rows = {name: one_series(run, site, name, view[:2]) for name in _TABLE_STATS}
    all_steps = rows["abs_max"].steps
    bins = bins_over(all_steps[(all_steps >= view[0]) & (all_steps <= view[1])], view[2])
    return {
        "site": text(site.path, 10_000),
        "kind": str(site.kind),
        "steps": steps.tolist(),
        "bottom": bottom,
        "top": top,
        "negative": floats(negative),
        "positive": floats(positive),
        "zero": floats(near),
        "count": float(table.sum(axis=1).max()),
        "percentiles": percentiles(table),
        "table": {name: binned(series, *view, bins) for name, series in rows.items()},
    }


def percentiles(table: FloatArray) -> dict[str, str]:
    """Percentiles of |x| of each histogram, within the factor of two of a bin."""
    sizes = np.concatenate(
        [table[:, ZERO_BIN : ZERO_BIN + 1], table[:, ZERO_BIN + 1 :] + table[:, ZERO_BIN - 1 :: -1]], 1
    )
    total = sizes.sum(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.cumsum(sizes, axis=1) / total
    out = {}
    for percent in (1, 5, 25, 50, 75, 95, 99):
        at = np.minimum((share < percent / 100).sum(axis=1), sizes.shape[1] - 1)
        below = np.where(at > 0, np.take_along_axis(share, np.maximum(at - 1, 0)[:, None], 1)[:, 0], 0.0)
        inside = np.take_along_axis(share, at[:, None], 1)[:, 0] - below
        with np.errstate(invalid="ignore", divide="ignore"):
            part = np.where(inside > 0, (percent / 100 - below) / inside, 0.5)
        value = np.where(at == 0, 0.0, np.ldexp(1.0 + np.clip(part, 0, 1), at - 1 + MIN_EXPONENT))
        out[str(percent)] = floats(np.where(total[:, 0] > 0, value, np.nan))
    return out

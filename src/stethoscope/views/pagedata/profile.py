"""The profile screen: where a step's time goes."""

from __future__ import annotations

from typing import Final, TypedDict

import numpy as np

from stethoscope.record import FloatArray, IntArray, Series, metrics
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.pagedata.packing import Number, Packed, binned, number
from stethoscope.views.pagedata.query import QueryParams
from stethoscope.views.pagedata.screens import Screen

_PARTS: Final = (
    ("data", metrics.DATA_MS, "s6"),
    ("forward", metrics.FORWARD_MS, "s1"),
    ("backward", metrics.BACKWARD_MS, "s2"),
    ("optimizer", metrics.OPTIMIZER_MS, "s3"),
    ("Stethoscope", metrics.OVERHEAD_MS, "ink"),
)


class ProfilePart(TypedDict):
    """A part of the mean step, and its time at every step."""

    label: str
    color: str
    ms: Number
    series: Packed


class SlowStep(TypedDict):
    """One of the slowest steps by its parts."""

    step: int
    ms: Number
    parts: list[Number]


class ProfileData(TypedDict):
    """Where a step's time goes."""

    version: int
    parts: list[ProfilePart]
    meanMs: Number
    medianMs: Number
    numSteps: int
    series: Packed | None
    slowest: list[SlowStep]


def profile_data(viewed: OpenRun, view: tuple[int, int, int]) -> ProfileData:
    """The mean step as parts, the time of every step, and the slowest ones."""
    run = viewed.run
    known = run.metrics()
    if metrics.STEP_MS not in known:
        return {
            "version": viewed.version,
            "parts": [],
            "meanMs": None,
            "medianMs": None,
            "numSteps": 0,
            "series": None,
            "slowest": [],
        }
    steps = run.metric(metrics.STEP_MS)
    inside = steps.between(*view[:2])
    mean = float(np.nanmean(inside.values)) if len(inside) else float("nan")
    found = [(label, color, run.metric(name).between(*view[:2])) for label, name, color in _PARTS if name in known]
    other = inside.values.copy()
    for _, _, part in found:
        other -= np.nan_to_num(_values_at(part, inside.steps))
    label, color = ("other", "mark") if len(found) > 0 else ("training", "s1")
    found.append((label, color, Series(inside.steps, np.maximum(0.0, other))))
    parts: list[ProfilePart] = [
        {
            "label": label,
            "color": color,
            "ms": number(float(np.nanmean(part.values)) if len(part) else 0.0),
            "series": binned(part, *view),
        }
        for label, color, part in found
    ]
    order = np.argsort(-np.nan_to_num(inside.values))[:10]
    slowest: list[SlowStep] = [
        {
            "step": int(inside.steps[at]),
            "ms": number(float(inside.values[at])),
            "parts": [number(float(_values_at(part, inside.steps[at : at + 1])[0])) for _, _, part in found],
        }
        for at in order.tolist()
    ]
    return {
        "version": viewed.version,
        "parts": parts,
        "meanMs": number(mean),
        "numSteps": len(inside),
        "medianMs": number(float(np.nanmedian(inside.values))) if len(inside) else None,
        "series": binned(steps, *view),
        "slowest": slowest,
    }


def _values_at(series: Series, steps: IntArray) -> FloatArray:
    """The values at these steps, NaN where there is none."""
    out = np.full(len(steps), np.nan)
    if len(series):
        index = np.minimum(np.searchsorted(series.steps, steps), len(series) - 1)
        there = series.steps[index] == steps
        out[there] = series.values[index[there]]
    return out


def _answer_profile(viewed: OpenRun, query: QueryParams) -> ProfileData:
    return profile_data(viewed, query.view(viewed.span))


SCREEN: Final = Screen(name="profile", title="Profile", order=40, questions={"profile": _answer_profile})

"""The ranks screen: how far, how fast and with what loss each process went."""

from __future__ import annotations

import dataclasses
from typing import Final, TypedDict

import numpy as np

from stethoscope.analyse.bins import Bins
from stethoscope.record import Series, metrics
from stethoscope.store import Run
from stethoscope.views.common.open_run import OpenRun
from stethoscope.views.pagedata.log import Start, starts_data
from stethoscope.views.pagedata.packing import Number, Packed, binned, floats, number, reduced, spark
from stethoscope.views.pagedata.query import QueryParams
from stethoscope.views.pagedata.screens import Screen

MAX_RANKS: Final = 256


class RankRow(TypedDict):
    """One rank: how fast, its loss, each over its steps."""

    rank: int
    lastLoss: Number
    stepMs: float | None
    worstMs: float | None
    loss: Packed | None
    step: Packed | None


class RanksData(TypedDict):
    """Every rank, and every process that wrote."""

    version: int
    ranks: list[RankRow]
    starts: list[Start]
    numRanks: int


def ranks_data(viewed: OpenRun) -> RanksData:
    """Each rank: how far, how fast, its loss, what it lost."""
    run = viewed.run
    rows: list[RankRow] = []
    for rank in run.ranks[:MAX_RANKS]:
        loss, step = run.metric(metrics.LOSS, rank=rank), run.metric(metrics.STEP_MS, rank=rank)
        values = step.finite
        rows.append(
            {
                "rank": rank,
                "lastLoss": number(float(loss.values[-1])) if len(loss) else None,
                "stepMs": float(np.median(values)) if len(values) else None,
                "worstMs": float(np.percentile(values, 99)) if len(values) else None,
                "loss": spark(loss, 176),
                "step": spark(step, 176),
            }
        )
    return {"version": viewed.version, "ranks": rows, "starts": starts_data(run), "numRanks": len(run.ranks)}


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
    """One metric of several ranks: its mean at every step, and the lowest and highest of them."""

    mean: Series
    low: Series
    high: Series


def over_ranks(run: Run, name: str) -> Spread | None:
    """A metric over the ranks that have it, None where fewer than two do. A rank's NaN makes the mean NaN."""
    found = [series for rank in run.ranks[:MAX_RANKS] if len(series := run.metric(name, rank=rank))]
    if len(found) < 2:
        return None
    steps = np.unique(np.concatenate([series.steps for series in found]))
    table, there = np.zeros((len(found), len(steps))), np.zeros((len(found), len(steps)), dtype=bool)
    for row, series in enumerate(found):
        index = np.searchsorted(steps, series.steps)
        table[row, index], there[row, index] = series.values, True
    with np.errstate(invalid="ignore"):
        mean = np.where(there, table, 0.0).sum(axis=0) / there.sum(axis=0)
        low, high = np.where(there, table, np.inf).min(axis=0), np.where(there, table, -np.inf).max(axis=0)
    return Spread(Series(steps, mean), Series(steps, low), Series(steps, high))


def spread_bins(spread: Spread, view: tuple[int, int, int]) -> Packed:
    """The mean in bins, its band from the lowest to the highest rank in each."""
    out = binned(spread.mean, *view)
    if out["count"]:
        bins = Bins(np.arange(out["count"], dtype=np.int64) * out["size"] + out["start"], out["size"])
        out["low"] = floats(reduced(spread.low.steps, spread.low.values, bins)[1])
        out["high"] = floats(reduced(spread.high.steps, spread.high.values, bins)[2])
    return out


def _answer_ranks(viewed: OpenRun, _: QueryParams) -> RanksData:
    return ranks_data(viewed)


SCREEN: Final = Screen(name="ranks", title="Ranks", order=50, count="ranks", questions={"ranks": _answer_ranks})

"""The history of any rows of a run: one reader, whether the run is live or stored, and whether rows or buckets tell it.

`HistoryReader` answers with a `History`; `grid` shows one in bins. `recorded.Recorded` is what the reader asks of a run.
"""

from stethoscope.analyse.history.cells import Grid, grid
from stethoscope.analyse.history.reader import HistoryReader
from stethoscope.analyse.history.rows import Groups
from stethoscope.analyse.history.series import site_series
from stethoscope.analyse.history.values import History, log_ratios, usual_of
from stethoscope.analyse.recorded import Recorded
from stethoscope.record import Kind

__all__ = [
    "Grid",
    "Groups",
    "History",
    "HistoryReader",
    "Recorded",
    "grid",
    "history",
    "log_ratios",
    "site_series",
    "usual_of",
]


def history(
    run: Recorded,
    kind: Kind | str = Kind.GRADIENT,
    stat: str = "norm",
    *,
    pattern: str = "*",
    depth: int | None = None,
    usual_before: int | None = None,
    max_rows: int = 24,
) -> History:
    """Every step of the run's sites of one kind, grouped at `depth` path parts (None: as deep as fits).

    `usual_before` takes the median over the steps before it alone, where there are at least eight: what was
    usual until a fault began.
    """
    depth = None if depth is None else max(1, depth)
    return HistoryReader(run).groups(Groups(Kind(kind), stat, depth, pattern, max_rows), before=usual_before)

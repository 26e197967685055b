"""From a run to the GradientDebugger: each gradient's row, its direction and update ratio, and the units that fired."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stethoscope.instruments.reading.recorded import RecordedRun, StepTable, backwards
from stethoscope.kernels.columns import INDEX
from stethoscope.record import FloatArray, Kind

if TYPE_CHECKING:
    from stethoscope.instruments.gradient_debugger import GradientDebugger
    from stethoscope.store import Run

MAX_UNIT_ROWS: Final = 8192
"""Looks at the units of a layer that are taken in at once; of more the latest."""
_KINDS: Final = frozenset({Kind.GRADIENT, Kind.UPDATE, Kind.WEIGHT})
_NORM, _COUNT = INDEX["norm"], INDEX["count"]


class GradientReading:
    """What a GradientDebugger has taken in of a run."""

    def __init__(self, recorded: RecordedRun) -> None:
        self._recorded = recorded
        self._next_step = self._next_units = recorded.first_step

    def take_in(self, debugger: GradientDebugger) -> None:
        """Hand over the gradients that came since the last time; layers that the user records are left to them."""
        run = self._recorded.read()
        if run is None:
            return
        self._take_units(run, debugger)
        newest = backwards(run, self._recorded.rank, self._next_step, _KINDS, steps_at_a_time=debugger.max_history)
        with_gradients = (table for table in newest if len(table.of_kind(Kind.GRADIENT)))
        tables = list(itertools.islice(with_gradients, debugger.max_history))[::-1]
        if not tables:
            return
        directions = self._read_sketches(run, tables)
        for table in tables:
            _record_gradients(debugger, table, directions)
        self._next_step = tables[-1].step + 1

    def _take_units(self, run: Run, debugger: GradientDebugger) -> None:
        found = run.latest_vectors("unit_activity", MAX_UNIT_ROWS, first=self._next_units, rank=self._recorded.rank)
        for _, site, activity in found:
            debugger.record_units(site.path, activity[None, :])
        if found:
            self._next_units = max(step for step, _, _ in found) + 1

    def _read_sketches(self, run: Run, tables: list[StepTable]) -> dict[tuple[int, str], Any]:
        """The sketches of the gradients of these steps, by step and path."""
        most = len(tables) * len(run.sites)
        found = run.latest_vectors("sketch", most, first=tables[0].step, rank=self._recorded.rank)
        return {(step, site.path): sketch for step, site, sketch in found if site.kind is Kind.GRADIENT}


def _record_gradients(debugger: GradientDebugger, table: StepTable, directions: dict[tuple[int, str], Any]) -> None:
    paths, ratios = table.paths, update_ratios(table)
    for row in table.of_kind(Kind.GRADIENT).tolist():
        path = paths[row]
        if path not in debugger.by_hand:
            direction = directions.get((table.step, path))
            debugger.record_row(path, table.rows[row], step=table.step, sketch=direction, update_ratio=ratios.get(path))


def update_ratios(table: StepTable) -> dict[str, float]:
    """Norm of what the step changed over the norm of the weight; an update is measured on a sample, so by rms."""
    paths, sizes = table.paths, table.rows[:, [_NORM, _COUNT]]
    weights: dict[str, FloatArray] = {paths[row]: sizes[row] for row in table.of_kind(Kind.WEIGHT).tolist()}
    unknown = np.zeros(2)
    found = {}
    for row in table.of_kind(Kind.UPDATE).tolist():
        norm, count = sizes[row].tolist()
        whole_norm, whole_count = weights.get(paths[row], unknown).tolist()
        if whole_norm > 0 and count > 0:
            found[paths[row]] = norm * (whole_count / count) ** 0.5 / whole_norm
    return found

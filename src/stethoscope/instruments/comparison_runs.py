"""Two runs against each other, by what both recorded: rows of statistics at the same sites and steps, and sketches.

Elements are not recorded, so nothing is said of them. A row tells whether two tensors can be the same: equal tensors have
equal rows. Where both runs took a sketch of a tensor at the same step, the distance of the tensors comes from it, within
about 1/sqrt(width): both use the same random signs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from stethoscope.instruments.array_input import ArrayError
from stethoscope.instruments.comparison import cosine
from stethoscope.record import FloatArray, IntArray, Kind, Site, plural

STATS: Final = ("norm", "mean", "min", "max", "num_nonfinite", "num_zero")
"""Tensors that differ anywhere differ in one of these, but for rare coincidences."""
ORDER: Final = (
    Kind.INPUT,
    Kind.TARGET,
    Kind.ACTIVATION,
    Kind.OUTPUT,
    Kind.BUFFER,
    Kind.LOSS,
    Kind.ACTIVATION_GRADIENT,
    Kind.GRADIENT,
    Kind.OPTIMIZER_STATE,
    Kind.UPDATE,
    Kind.WEIGHT,
)
STEPS_AT_ONCE: Final = 512
ROUNDING: Final = 2.0**-22
"""Rows are stored with 24 bits."""
MAX_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class SiteComparison:
    """One tensor in both runs."""

    site: Site
    num_steps: int
    """Steps at which both measured it."""
    first_different_step: int | None
    """None where every row is the same."""
    max_norm_change: float | None
    """Largest |norm a - norm b| / norm b over the steps."""
    sketch_step: int | None = None
    """The last step at which both took a sketch."""
    relative_distance: float | None = None
    """There: the norm of the difference of the tensors over the norm of the second one, estimated."""
    cosine: float | None = None


@dataclass(frozen=True, slots=True)
class RunComparison:
    """How two runs differ in what both recorded."""

    sites: tuple[SiteComparison, ...]
    """What both have, the earliest difference first."""
    only_first: tuple[Site, ...]
    only_second: tuple[Site, ...]
    num_steps: int
    """Steps that both recorded."""
    note: str
    """What is compared, and what cannot be."""

    @property
    def equal(self) -> bool | None:
        """Whether every shared row is the same; None where nothing is shared."""
        if not any(one.num_steps for one in self.sites):
            return None
        return all(one.first_different_step is None for one in self.sites)

    @property
    def first_different_step(self) -> int | None:
        """Since when they differ; None where they do not."""
        return min((s for one in self.sites if (s := one.first_different_step) is not None), default=None)

    def __str__(self) -> str:
        apart = [one for one in self.sites if one.first_different_step is not None]
        if self.equal is None:
            return self.note
        if self.equal:
            return f"equal in everything both recorded; {self.note}"
        lines = [
            f"apart since step {self.first_different_step:,}, at {len(apart):,} of {len(self.sites):,} sites; {self.note}"
        ]
        for one in apart[:MAX_SHOWN]:
            far = (
                ""
                if one.relative_distance is None
                else f", at step {one.sketch_step:,} {one.relative_distance:.3g} of its norm apart"
            )
            lines.append(f"  {one.site}: since step {one.first_different_step:,}{far}")
        return "\n".join([*lines, *([f"  and {len(apart) - MAX_SHOWN:,} more"] if len(apart) > MAX_SHOWN else [])])


def compare_runs(first: Any, second: Any) -> RunComparison:
    """Runs, or the paths of their folders."""
    a, b = _opened_run(first), _opened_run(second)
    sites_a, sites_b = ({info.site: None for info in run.sites} for run in (a, b))
    shared = [site for site in sites_a if site in sites_b]
    steps: IntArray = np.intersect1d(a.steps, b.steps)
    found = {site: _Course() for site in shared}
    for first_step, last_step in _step_ranges(steps):
        _compare_rows(a, b, first_step, last_step, found)
    told = [_site_comparison(a, b, site, course) for site, course in found.items()]
    told.sort(key=_by_distance)
    return RunComparison(
        sites=tuple(told),
        only_first=tuple(site for site in sites_a if site not in sites_b),
        only_second=tuple(site for site in sites_b if site not in sites_a),
        num_steps=len(steps),
        note=_scope_note(len(shared), len(steps)),
    )


def _by_distance(one: SiteComparison) -> tuple[float, int]:
    """Earlier differences first; in one step as a step goes, so that the cause stands before what followed."""
    step = float("inf") if one.first_different_step is None else one.first_different_step
    return step, ORDER.index(one.site.kind)


def _scope_note(num_sites: int, num_steps: int) -> str:
    if not num_sites or not num_steps:
        return "nothing to compare: the runs share no " + ("step" if num_sites else "site")
    return (
        f"compared by the recorded statistics of {plural(num_sites, 'site')} "
        f"at {plural(num_steps, 'shared step')}; single elements are not recorded"
    )


def _opened_run(value: Any) -> Any:
    if isinstance(value, str | Path):
        from stethoscope.store import open_run

        return open_run(value)
    if callable(getattr(value, "series", None)) and hasattr(value, "sites"):
        return value
    raise ArrayError(
        "a run can only be compared with a run", where=type(value).__name__, do="Give two runs, or their folders"
    )


class _Course:
    """One site over the steps, as they are read."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.first_different: int | None = None
        self.max_norm_change: float | None = None

    def add(self, steps: IntArray, a: FloatArray, b: FloatArray) -> None:
        """`a` and `b` are [steps, stats]; a step that one of them lacks is all NaN there."""
        present = np.isfinite(a[:, -1]) & np.isfinite(b[:, -1])  # a count is always finite where there is a row
        if not present.any():
            return
        steps, a, b = steps[present], a[present], b[present]
        self.num_steps += len(steps)
        with np.errstate(invalid="ignore", divide="ignore"):
            scale = np.maximum(np.abs(a), np.abs(b))
            same = (np.abs(a - b) <= ROUNDING * scale) | (np.isnan(a) & np.isnan(b))
            change = np.abs(a[:, 0] - b[:, 0]) / b[:, 0]
        differs = np.flatnonzero(~same.all(1))
        if len(differs) and self.first_different is None:
            self.first_different = int(steps[differs[0]])
        known = change[np.isfinite(change)]
        if len(known):
            self.max_norm_change = max(self.max_norm_change or 0.0, float(known.max()))


def _step_ranges(steps: IntArray) -> Iterator[tuple[int, int]]:
    for start in range(0, len(steps), STEPS_AT_ONCE):
        part = steps[start : start + STEPS_AT_ONCE]
        yield int(part[0]), int(part[-1])


def _compare_rows(a: Any, b: Any, first: int, last: int, found: dict[Site, _Course]) -> None:
    read = [[run.matrix(None, stat, first=first, last=last) for stat in STATS] for run in (a, b)]
    steps: IntArray = np.intersect1d(read[0][0].steps, read[1][0].steps)
    rows = [np.searchsorted(matrices[0].steps, steps) for matrices in read]
    indices = [{info.site: i for i, info in enumerate(matrices[0].sites)} for matrices in read]
    for site, course in found.items():
        if site in indices[0] and site in indices[1]:
            sides = [
                np.column_stack([matrix.values[row, index[site]] for matrix in matrices])
                for matrices, row, index in zip(read, rows, indices, strict=True)
            ]
            course.add(steps, *sides)


def _site_comparison(a: Any, b: Any, site: Site, course: _Course) -> SiteComparison:
    plain = SiteComparison(site, course.num_steps, course.first_different, course.max_norm_change)
    if course.first_different is None:
        return plain
    (steps_a, sketches_a), (steps_b, sketches_b) = (run.vectors("sketch", site) for run in (a, b))
    shared = np.intersect1d(steps_a, steps_b)
    if not len(shared) or sketches_a.shape[1] != sketches_b.shape[1]:
        return plain
    step = int(shared[-1])
    x, y = (
        np.asarray(sketches[int(np.searchsorted(known, step))], dtype=np.float64)
        for known, sketches in ((steps_a, sketches_a), (steps_b, sketches_b))
    )
    size = float(np.linalg.norm(y))
    distance = float(np.linalg.norm(x - y)) / size if size > 0 else None
    return SiteComparison(
        site, course.num_steps, course.first_different, course.max_norm_change, step, distance, cosine(x, y)
    )

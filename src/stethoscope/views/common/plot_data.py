"""Plots as plain data: one form in the middle, from which terminal, picture, page, JSON and CSV are made.

Promises: values that are not finite are counted or kept as NaN, never dropped in silence; each plot can say
itself in one sentence and as a table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stethoscope.record import ConfigError, FloatArray, IntArray, printable


def number(value: float) -> str:
    """Three significant digits, thousands with commas, 5.62 × 10⁻⁴ under 0.001, NaN as NaN."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "−Inf"
    if value == 0:
        return "0"
    size = abs(value)
    if size < 1e-3 or size >= 1e7:
        power = math.floor(math.log10(size))
        mantissa = f"{size / 10.0**power:.3g}" if power > -300 else f"{size * 1e300 / 10.0 ** (power + 300):.3g}"
        if mantissa == "10":
            mantissa, power = "1", power + 1
        text = f"{mantissa} × 10{str(power).translate(_SUPERSCRIPT)}"
    elif float(value).is_integer() or size >= 1000:
        text = f"{size:,.0f}"
    else:
        text = f"{size:.3g}"
    return f"−{text}" if value < 0 else text


_SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")

Table = tuple[tuple[str, ...], list[tuple[Any, ...]]]
"""Column names and rows."""


@dataclass(frozen=True, eq=False, slots=True)
class Histogram:
    """How values are distributed."""

    name: str
    edges: FloatArray
    counts: FloatArray
    num_nan: int = 0
    num_inf: int = 0

    @classmethod
    def of(cls, name: str, values: FloatArray, bins: int) -> Histogram:
        """Equal-width bins over the finite values."""
        if bins < 1:
            raise ConfigError("a histogram needs at least one bin", where=bins, do="Use 50")
        finite = values[np.isfinite(values)]
        low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
        if high - low <= max(abs(low), abs(high)) * 1e-12:
            pad = max(abs(low), 1.0) * 0.5
            low, high = low - pad, high + pad
        scale = 1.0 if math.isfinite(high - low) else 0.25  # the range itself may overflow
        counts, edges = np.histogram(finite * scale, bins=bins, range=(low * scale, high * scale))
        num_nan = int(np.isnan(values).sum())
        return cls(name, edges / scale, counts.astype(np.float64), num_nan, len(values) - len(finite) - num_nan)

    @property
    def sentence(self) -> str:
        """What the picture shows, in words."""
        total = int(self.counts.sum())
        if not total:
            return f"{printable(self.name)}: no finite values{self._left_out_text()}"
        peak = int(np.argmax(self.counts))
        span = f"{number(float(self.edges[0]))} to {number(float(self.edges[-1]))}"
        most = f"{number(float(self.edges[peak]))} to {number(float(self.edges[peak + 1]))}"
        return f"{printable(self.name)}: {total:,} values from {span}, most from {most}{self._left_out_text()}"

    def _left_out_text(self) -> str:
        parts = [f"{n:,} {word}" for n, word in ((self.num_nan, "NaN"), (self.num_inf, "Inf")) if n]
        return f"; {' and '.join(parts)} left out" if parts else ""

    def table(self) -> Table:
        """A row a bin."""
        rows = zip(self.edges[:-1].tolist(), self.edges[1:].tolist(), self.counts.tolist(), strict=True)
        return ("from", "to", "count"), list(rows)


@dataclass(frozen=True, eq=False, slots=True)
class Lines:
    """One or more quantities over steps."""

    name: str
    series: Mapping[str, tuple[FloatArray, FloatArray]]
    """Label to x and y, of equal length."""
    x_label: str = "step"
    log: bool = False

    @classmethod
    def of(cls, name: str, series: Mapping[str, tuple[Any, Any]], **settings: Any) -> Lines:
        """Checks that each x has its y. Positive values over two decades are drawn on a log scale."""
        clean = {}
        for label, (x, y) in series.items():
            x_values = np.asarray(x, dtype=np.float64).reshape(-1)
            y_values = np.asarray(y, dtype=np.float64).reshape(-1)
            if len(x_values) != len(y_values):
                raise ConfigError(
                    f"{len(x_values)} x values but {len(y_values)} y values",
                    where=label,
                    do="Give one y an x",
                )
            clean[label] = (x_values, y_values)
        every = np.concatenate([y for _, y in clean.values()] or [np.zeros(0)])
        every = every[np.isfinite(every)]
        wide = len(every) > 1 and every.min() > 0 and every.max() / every.min() > 100
        return cls(name, clean, log=bool(settings.pop("log", wide)), **settings)

    @property
    def sentence(self) -> str:
        """What the picture shows, in words."""
        parts = []
        for label, (x, y) in self.series.items():
            if not len(y):
                parts.append(f"{printable(label)}: no values")
                continue
            bad = np.flatnonzero(~np.isfinite(y))
            note = f", not finite from {self.x_label} {number(float(x[bad[0]]))}" if len(bad) else ""
            first, last = (f"{number(float(y[i]))} at {number(float(x[i]))}" for i in (0, -1))
            parts.append(f"{printable(label)}: {first}, {last}{note}")
        return "; ".join(parts) or f"{printable(self.name)}: no values"

    def table(self) -> Table:
        """A row a point."""
        rows = [
            (label, a, b) for label, (x, y) in self.series.items() for a, b in zip(x.tolist(), y.tolist(), strict=True)
        ]
        return ("series", self.x_label, "value"), rows


@dataclass(frozen=True, eq=False, slots=True)
class Heatmap:
    """Rows by columns of values: layers by steps."""

    name: str
    labels: tuple[str, ...]
    columns: FloatArray
    values: FloatArray
    """[rows, columns]; NaN stays NaN, infinities stay."""
    history: bool = False
    """Against each row's own median, instead of raw values."""

    @classmethod
    def of(cls, name: str, values: Any, labels: Sequence[str] | None, columns: Any, history: bool) -> Heatmap:
        """Checks that labels and columns fit the values."""
        grid = np.asarray(values, dtype=np.float64)
        if grid.ndim != 2:
            raise ConfigError("a heatmap needs rows by columns", where=f"shape {grid.shape}", do="Reshape it")
        rows = tuple(labels) if labels is not None else tuple(str(i) for i in range(grid.shape[0]))
        indices = np.arange(grid.shape[1]) if columns is None else np.asarray(columns)
        if len(rows) != grid.shape[0] or len(indices) != grid.shape[1]:
            raise ConfigError(
                f"{len(rows)} labels and {len(indices)} columns for shape {grid.shape}",
                where=name,
                do="Give one label a row and one number a column",
            )
        return cls(name, rows, indices.astype(np.float64), grid, history)

    @property
    def sentence(self) -> str:
        """What the picture shows, in words."""
        finite = self.values[np.isfinite(self.values)]
        size = f"{self.values.shape[0]:,} rows by {self.values.shape[1]:,} columns"
        bad = int(self.values.size - finite.size)
        note = f"; {bad:,} cells are not finite" if bad else ""
        if not finite.size:
            return f"{printable(self.name)}: {size}, no finite value{note}"
        return f"{printable(self.name)}: {size}, {number(finite.min())} to {number(finite.max())}{note}"

    def table(self) -> Table:
        """A row a row."""
        names = ("row", *(number(float(c)) for c in self.columns))
        rows = [(label, *row.tolist()) for label, row in zip(self.labels, self.values, strict=True)]
        return names, rows


class HeatGrid(Protocol):
    """Layers by steps, as the animator bins them."""

    @property
    def labels(self) -> tuple[str, ...]:
        """A name a row."""

    @property
    def first_steps(self) -> IntArray:
        """The first step of each column."""

    @property
    def norms(self) -> FloatArray:
        """[rows, columns]."""

    @property
    def state(self) -> npt.NDArray[np.uint8]:
        """0 measured, 1 missing, 2 Inf, 3 NaN."""


Plot = Histogram | Lines | Heatmap

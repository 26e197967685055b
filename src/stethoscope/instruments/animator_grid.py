"""Layers x steps as one grid, binned to what a screen can show, and its drawing as text.

Promises: a cell that stands for several shows the worst of them, NaN before Inf before the largest value;
a cell that nothing was measured for is missing, not zero.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stethoscope.record import FloatArray, IntArray, plural, printable
from stethoscope.views.common.styled_text import cut_middle

GLYPHS = " ░▒▓█"
NAN_GLYPH, INF_GLYPH = "╳", "∞"
MEASURED, MISSING, INF, NAN = 0, 1, 2, 3

Column = tuple[int, tuple[str, ...], FloatArray, FloatArray, Mapping[int, str]]
"""step, sorted layer names, norms, intensities, and which of them hold "NaN" or "Inf"."""


@dataclass(frozen=True, eq=False, slots=True)
class Grid:
    """Layers in rows, steps in columns."""

    labels: tuple[str, ...]
    """A layer's name, or where n layers share a row "module (n)", of no one module "first … last (n)"."""
    first_steps: IntArray
    """The first step of each column."""
    last_step: int
    norms: FloatArray
    """[rows, columns]; NaN where nothing finite was measured. A binned cell shows its largest."""
    intensities: FloatArray
    state: npt.NDArray[np.uint8]
    """MEASURED, MISSING, INF or NAN."""
    num_layers: int
    num_steps: int

    @property
    def binned(self) -> bool:
        """Whether a cell stands for more than one layer or step."""
        return self.num_layers > len(self.labels) or self.num_steps > len(self.first_steps)


def build_grid(
    columns: Sequence[Column],
    max_rows: int | None,
    max_columns: int | None,
    *,
    natural: bool = False,
    as_given: bool = False,
) -> Grid:
    """The grid of these frames, at most `max_rows` by `max_columns` cells.

    Layers by name, `natural` with numbers as numbers; `as_given` in the order in which the frames have them.
    """
    kinds = dict.fromkeys(column[1] for column in columns)
    known = dict.fromkeys(name for layer_names in kinds for name in layer_names)
    names = list(known) if as_given else sorted(known, key=natural_key) if natural else sorted(known)
    steps = np.array([step for step, *_ in columns], dtype=np.int64)
    row_of = {name: index for index, name in enumerate(names)}
    row_starts, col_starts = _row_starts(names, max_rows), _bin_starts(len(columns), max_columns)
    row_bin = _bin_of(row_starts, len(names))
    shape = (len(row_starts), len(col_starts))
    norms, intensities = np.full(shape, np.nan), np.full(shape, np.nan)
    state = np.full(shape, MISSING, dtype=np.uint8)
    seen: dict[tuple[str, ...], IntArray] = {}
    for col, block in enumerate(np.split(np.arange(len(columns)), col_starts[1:])):
        for index in block:
            _, layer_names, norm, intensity, broken = columns[index]
            rows = seen.get(layer_names)
            if rows is None:
                rows = row_bin[np.array([row_of[n] for n in layer_names], dtype=np.int64)]
                seen[layer_names] = rows
            np.fmax.at(norms[:, col], rows, norm)
            np.fmax.at(intensities[:, col], rows, intensity)
            state[rows, col] = np.where(state[rows, col] == MISSING, MEASURED, state[rows, col])
            for layer, what in broken.items():
                code = NAN if what == "NaN" else INF
                state[rows[layer], col] = max(code, int(state[rows[layer], col]))
    return Grid(
        labels=_bin_labels(names, row_starts),
        first_steps=steps[col_starts] if len(steps) else steps,
        last_step=int(steps[-1]) if len(steps) else 0,
        norms=norms,
        intensities=intensities,
        state=state,
        num_layers=len(names),
        num_steps=len(columns),
    )


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """For sorting: runs of digits compare as numbers."""
    parts = re.split(r"([0-9]+)", name)
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts]


def _bin_starts(count: int, limit: int | None) -> IntArray:
    """Where each bin begins; bins hold a power of two of cells so that two grids line up."""
    size = 1
    while limit is not None and -(-count // size) > max(limit, 1):
        size *= 2
    return np.arange(0, count, size, dtype=np.int64)


def _row_starts(names: Sequence[str], limit: int | None) -> IntArray:
    """Where each row begins: tensors of one module share a row, of as small a module as lets all rows fit."""
    if limit is None or len(names) <= limit:
        return np.arange(len(names), dtype=np.int64)
    parts = [name.split(".") for name in names]
    for depth in range(max(map(len, parts)) - 1, 0, -1):
        heads = [tuple(part[:depth]) for part in parts]
        starts = [index for index, head in enumerate(heads) if index == 0 or head != heads[index - 1]]
        if len(starts) <= limit:
            # A model that is all one module would be one row, which says nothing.
            return np.array(starts, dtype=np.int64) if len(starts) >= min(4, limit) else _bin_starts(len(names), limit)
    return _bin_starts(len(names), limit)


def _bin_of(starts: IntArray, count: int) -> IntArray:
    bins: IntArray = np.searchsorted(starts, np.arange(count), side="right").astype(np.int64) - 1
    return bins


def _bin_labels(names: Sequence[str], starts: IntArray) -> tuple[str, ...]:
    ends = [*starts[1:].tolist(), len(names)]
    homes = [_shared_module(names[start:end]) for start, end in zip(starts.tolist(), ends, strict=False)]
    labels = []
    for start, end, home in zip(starts.tolist(), ends, homes, strict=False):
        first, last, count = names[start], names[end - 1], end - start
        shared = home if homes.count(home) == 1 else ""  # a name that two rows would have names neither
        words = first if count == 1 else f"{shared} ({count})" if shared else f"{first} … {last} ({count})"
        labels.append(printable(words))
    return tuple(labels)


def _shared_module(names: Sequence[str]) -> str:
    """The module that all of them are in, "" where there is none."""
    common: list[str] = []
    for parts in zip(*(name.split(".")[:-1] for name in names), strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)


def draw_rows(grid: Grid, label_width: int | None = None) -> str:
    """Title, step axis, rule, then a line per row: name right-aligned, two spaces, a glyph per column."""
    labels = [cut_middle(label, label_width) if label_width else label for label in grid.labels]
    width = max((len(label) for label in labels), default=5)
    num_columns = len(grid.first_steps)
    per = f", {-(-grid.num_steps // num_columns)} steps a column" if grid.num_steps > num_columns else ""
    first = int(grid.first_steps[0]) if num_columns else 0
    lines = [
        f"Gradient flow: {plural(grid.num_layers, 'layer')} by {plural(grid.num_steps, 'step')}{per}",
        f"{'layer':>{width}}  step {first:,} to {grid.last_step:,}",
        "─" * (width + 2 + num_columns),
    ]
    for row, label in enumerate(labels):
        lines.append(f"{label:>{width}}  {''.join(row_glyphs(grid, row))}")
    return "\n".join(lines) + "\n"


def row_glyphs(grid: Grid, row: int) -> list[str]:
    """One glyph a column; missing is a space."""
    levels = np.floor(np.nan_to_num(grid.intensities[row], nan=0.0) * (len(GLYPHS) - 1) + 0.5).astype(int)
    glyphs = [GLYPHS[level] for level in np.clip(levels, 0, len(GLYPHS) - 1)]
    for col in np.flatnonzero(grid.state[row] >= INF):
        glyphs[col] = NAN_GLYPH if grid.state[row, col] == NAN else INF_GLYPH
    return glyphs

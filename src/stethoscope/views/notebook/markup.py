"""Pieces of markup: escaped text, muted text, small lines and cells as SVG that takes the color of the text around it."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from stethoscope.analyse.bins import Bins, Mark, MarkArray, bins_over, trend
from stethoscope.record import FloatArray, Series, Severity, printable

CRITICAL: Final = "#d63a4c"
WARNING: Final = "#b97700"
INFO: Final = "#3f7bd6"
LARGER: Final = "#d97a1e"
SMALLER: Final = "#3d86d0"
"""Marks that stand out by three to one on white paper and on black."""

SEVERITY_COLOR: Final = {Severity.CRITICAL: CRITICAL, Severity.WARNING: WARNING, Severity.INFO: INFO}
SANS: Final = 'system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif'
MONO: Final = 'ui-monospace,"SF Mono","Cascadia Mono","DejaVu Sans Mono",monospace'
OPACITY: Final = (0.0, 0.3, 0.5, 0.72, 0.95)
"""How strong a cell is, from usual to far from usual."""
_ROW_HEIGHT = 14


def escaped(text: str, limit: int = 400) -> str:
    """A name or sentence from outside: control and bidi characters spelled out, markup made text."""
    return html.escape(printable(str(text), limit), quote=True)


def sheet(*parts: str) -> str:
    """Parts one under the other, in our type, on the notebook's paper."""
    style = html.escape(
        f"font:13px/20px {SANS};max-width:760px;font-variant-numeric:tabular-nums;margin:4px 0", quote=True
    )
    return f'<div style="{style}">' + "".join(part for part in parts if part) + "</div>"


def muted(text: str) -> str:
    """Markup, quieter."""
    return f'<span style="opacity:.7">{text}</span>'


def mono(text: str, limit: int = 400) -> str:
    """What a user could type or grep."""
    style = html.escape(f"font:12px/18px {MONO}", quote=True)
    return f'<code style="{style};background:none">{escaped(text, limit)}</code>'


def mark(sign: str, color: str) -> str:
    """A sign in its color."""
    return f'<span style="color:{color};font-weight:600" aria-hidden="true">{escaped(sign)}</span>'


def line_svg(series: Series, label: str, width: int = 72, height: int = 20, first_bad: int | None = None) -> str:
    """A series as a small line with a dot at its end; where it is no number, a mark from top to bottom."""
    if len(series) < 2:
        return ""
    bins = bins_over(series.steps, max(8, width // 3))
    values, marks = trend(series.steps, series.values, bins)
    x, y = _places(values, marks, width, height)
    parts = [f'<path d="{_path_data(x, y)}" fill="none" stroke="currentColor" stroke-width="1.25" opacity=".8"/>']
    broken = np.flatnonzero((marks == Mark.NAN) | (marks == Mark.INF))
    if len(broken):
        step = (width - 4) / max(1, len(values) - 1)
        strokes = "".join(f"M{x[at] - step / 2:.1f} {height}l{step:.1f} {-height}" for at in broken)
        parts.append(f'<path d="{strokes}" stroke="{CRITICAL}" stroke-width="1.25"/>')
    if first_bad is not None:
        at = bins.column(first_bad)
        if at is not None:
            parts.append(
                f'<path d="M{x[at]:.1f} 0v{height}" stroke="currentColor" stroke-width="1" stroke-dasharray="2 2" opacity=".6"/>'
            )
    end = np.flatnonzero(np.isfinite(y))
    if len(end) and not len(broken):
        parts.append(f'<circle cx="{x[end[-1]]:.1f}" cy="{y[end[-1]]:.1f}" r="2" fill="currentColor"/>')
    return svg(width, height, label, parts)


def svg(width: int, height: int, label: str, parts: Iterable[str]) -> str:
    """A picture that says in a sentence what it shows."""
    return (
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escaped(label, 600)}" style="vertical-align:middle;overflow:visible;max-width:100%">'
        + "".join(parts)
        + "</svg>"
    )


def _places(values: FloatArray, marks: MarkArray, width: int, height: int) -> tuple[FloatArray, FloatArray]:
    x = 2 + np.arange(len(values)) * (width - 4) / max(1, len(values) - 1)
    shown = np.where(marks == Mark.PLAIN, values, np.nan)
    finite = shown[np.isfinite(shown)]
    if not len(finite):
        return x, np.full(len(values), np.nan)
    low, high = float(finite.min()), float(finite.max())
    if low > 0 and high / low > 100:
        shown, low, high = np.log(shown), float(np.log(low)), float(np.log(high))
    spread = high - low if high > low else 1.0
    y: FloatArray = height - 2 - (shown - low) / spread * (height - 4)
    return x, y if high > low else np.where(np.isfinite(shown), height / 2, np.nan)


def _path_data(x: FloatArray, y: FloatArray) -> str:
    """The line, broken where there is no number."""
    out, is_drawing = [], False
    for at in range(len(x)):
        if not np.isfinite(y[at]):
            is_drawing = False
            continue
        out.append(f"{'L' if is_drawing else 'M'}{x[at]:.1f} {y[at]:.1f}")
        is_drawing = True
    return "".join(out) or "M0 0"


def cells_svg(
    levels: FloatArray,
    marks: MarkArray,
    bins: Bins,
    label: str,
    *,
    cell: float,
    event: int | None = None,
) -> str:
    """Rows of cells: stronger is farther from usual, orange larger, blue smaller; NaN, Inf and zeros have their own marks."""
    width, height = round(cell * len(bins)), _ROW_HEIGHT * len(levels)
    paths: dict[tuple[str, float], list[str]] = {}
    strokes: list[str] = []
    for at in range(len(levels)):
        for first, last, level, kind in _equal_runs(levels[at], marks[at]):
            left, span = cell * first, cell * (last - first + 1)
            _add_cells(paths, strokes, (left, at * _ROW_HEIGHT, span, _ROW_HEIGHT - 1), level, kind)
    parts = [
        f'<path d="{"".join(found)}" fill="{color}" fill-opacity="{opacity:g}"/>'
        for (color, opacity), found in paths.items()
    ]
    if strokes:
        parts.append(f'<path d="{"".join(strokes)}" fill="none" stroke="{CRITICAL}" stroke-width="1.25"/>')
    at_event = bins.column(event) if event is not None else None
    if at_event is not None:
        parts.append(
            f'<path d="M{cell * at_event:.1f} 0v{height}" stroke="currentColor" stroke-width="1" stroke-dasharray="1 3"/>'
        )
    return svg(width, height, label, parts)


def _equal_runs(levels: Sequence[float] | FloatArray, marks: MarkArray) -> list[tuple[int, int, int, int]]:
    """Neighbors that look alike: first, last, level, mark."""
    out: list[tuple[int, int, int, int]] = []
    for at, (level, kind) in enumerate(zip(levels, marks, strict=True)):
        look = (int(level) if kind == Mark.PLAIN else 0, int(kind))
        if out and out[-1][2:] == look and out[-1][1] == at - 1:
            out[-1] = (out[-1][0], at, *look)
        else:
            out.append((at, at, *look))
    return out


def _add_cells(
    paths: dict[tuple[str, float], list[str]],
    strokes: list[str],
    box: tuple[float, float, float, float],
    level: int,
    kind: int,
) -> None:
    left, top, width, height = box
    if kind == Mark.MISSING:
        return
    if kind in (Mark.NAN, Mark.INF):
        paths.setdefault((CRITICAL, 0.18), []).append(_rect_path(*box))
        # Slanted for NaN, upright for Inf: shape says it without the color.
        slant = height if kind == Mark.NAN else 0.0
        at = left
        while at < left + width:
            reach = min(slant, left + width - at)
            rise = height if not slant else height * reach / slant
            strokes.append(f"M{at:.1f} {top + height:g}l{reach:.1f} {-rise:.1f}")
            at += 6.0
        return
    if kind == Mark.DEAD:
        paths.setdefault(("currentColor", 0.5), []).append(_rect_path(left, top + height / 2 - 1, width, 2))
        return
    if kind in (Mark.FROZEN, Mark.SKIPPED):
        paths.setdefault(("currentColor", 0.15), []).append(_rect_path(left, top + height / 2 - 3, width, 6))
        return
    paths.setdefault(("currentColor", 0.07), []).append(_rect_path(*box))
    if level:
        color = LARGER if level > 0 else SMALLER
        paths.setdefault((color, OPACITY[min(4, abs(level))]), []).append(_rect_path(*box))


def _rect_path(left: float, top: float, width: float, height: float) -> str:
    return f"M{left:.1f} {top:g}h{width:.1f}v{height:g}h{-width:.1f}z"

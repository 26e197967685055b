"""The look's numbers: ramps as given, contrast as promised, nobody else's matplotlib changed."""

from __future__ import annotations

import io

import matplotlib
import matplotlib.figure
import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb

from stethoscope.views.common import style
from stethoscope.views.common.style import (
    DARK,
    LIGHT,
    ColorScheme,
    Tokens,
    colormap,
    figure_style,
    flow_palette,
    log_ratio,
)


def luminance(color: str) -> float:
    parts = np.array(to_rgb(color))
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("look", [LIGHT, DARK], ids=["light", "dark"])
def test_contrast(look: Tokens) -> None:
    for surface in (look.sheet, look.well, look.sunken, look.raised):
        for text in (look.ink, look.ink2, look.ink3, look.crit, look.warn):
            assert contrast(text, surface) >= 4.5
    for mark in (look.mark, look.info, look.accent, look.warn_mark, *look.series):
        assert contrast(mark, look.sheet) >= 3.0


@pytest.mark.parametrize("dark", [False, True])
def test_ramps_pass_through_their_stops_and_run_one_way(dark: bool) -> None:
    look = DARK if dark else LIGHT
    for name, stops in (("history", look.history), ("value", look.value)):
        ramp = colormap(name, dark)
        assert to_hex(ramp(0.0)) == stops[0]
        assert to_hex(ramp(1.0)) == stops[-1]
        assert f"stethoscope_{name}{'_dark' if dark else ''}" in matplotlib.colormaps
    steps = np.diff([luminance(stop) for stop in look.value])
    assert (steps > 0).all() if dark else (steps < 0).all()
    middle = len(look.history) // 2
    for arm in (look.history[: middle + 1], look.history[middle:][::-1]):
        slope = np.diff([luminance(stop) for stop in arm])
        assert (slope < 0).all() if dark else (slope > 0).all()


def test_style_does_not_leak() -> None:
    before = dict(matplotlib.rcParams)
    with figure_style(dark=True) as library:
        assert library.rcParams["figure.facecolor"] == DARK.sheet
        assert library.rcParams["svg.fonttype"] == "none"
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("first", ["cmss10", "STIXGeneral", "DejaVu Sans"])
def test_letters_that_a_font_lacks_come_from_another(
    first: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Which fonts a machine has is not ours to say; a warning of matplotlib's is an error in these tests."""
    monkeypatch.setattr(style, "SANS", [first, "DejaVu Sans"])
    monkeypatch.setattr(style, "MONO", ["cmtt10", "DejaVu Sans Mono"])
    with figure_style() as library:
        figure = library.figure.Figure()
        axes = figure.add_subplot(title="5.62 × 10⁻⁴ → q·kᵀ", xlabel="Σ ≥ 1/64")
        axes.text(0, 0, "blocks.3.ä → 10⁻⁴", fontfamily=style.monospace())
        figure.savefig(io.BytesIO(), format="svg")
        figure.savefig(io.BytesIO(), format="png")
    # cmss10 has one weight, which no font that people set texts in has.
    assert [record for record in caplog.records if "cmss10" not in record.getMessage()] == []


def test_schemes_are_all_different() -> None:
    assert len({flow_palette(scheme) for scheme in ColorScheme}) == len(ColorScheme)


def test_log_ratio_against_own_median() -> None:
    ratios = log_ratio(np.array([[1.0, 1.0, 4.0, np.inf], [0.0, 0.0, 0.0, np.nan]]))
    np.testing.assert_array_equal(ratios[0, :3], [0.0, 0.0, 2.0])
    assert np.isnan(ratios[0, 3])
    assert np.isnan(ratios[1]).all()

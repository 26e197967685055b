"""The look in numbers: color tokens, ramps, schemes, and the matplotlib style made of them.

Tokens are plain data. matplotlib is imported by the functions that need it and never changed globally:
`figure_style` is a context manager.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np

from stethoscope.record import FloatArray, MissingExtraError

USUAL: Final = float(np.log2(1.5))
"""Within this many powers of two of its own median a value is usual."""
HISTORY_RANGE: Final = 6.0
"""The history ramp ends at this many powers of two either way."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The colors of one variant."""

    sheet: str
    well: str
    sunken: str
    raised: str
    line: str
    line2: str
    mark: str
    ink: str
    ink2: str
    ink3: str
    accent: str
    crit: str
    crit_tint: str
    warn: str
    warn_mark: str
    warn_tint: str
    info: str
    series: tuple[str, ...]
    history: tuple[str, ...]
    """Against own history, eleven stops: blue is smaller, orange is larger."""
    value: tuple[str, ...]
    """Low to high, eight stops."""


LIGHT: Final = Tokens(
    sheet="#ffffff",
    well="#f5f6f6",
    sunken="#eceeee",
    raised="#ffffff",
    line="#e1e5e5",
    line2="#c5cbcc",
    mark="#828b8e",
    ink="#15191b",
    ink2="#454d50",
    ink3="#646d70",
    accent="#00707e",
    crit="#bf1f33",
    crit_tint="#fbecee",
    warn="#855600",
    warn_mark="#b97700",
    warn_tint="#fbf2e0",
    info="#2a62bd",
    series=("#3068c8", "#aa4f00", "#0a9c92", "#5f2a8e", "#8f0e45", "#9d8900"),
    history=(
        "#012a63",
        "#014d9d",
        "#2e7ac7",
        "#6aa7e0",
        "#acd0ec",
        "#e9eef0",
        "#f1c99c",
        "#ec9956",
        "#d8641b",
        "#aa3606",
        "#6d1d10",
    ),
    value=("#eaf2f2", "#b6e1e1", "#7fcac9", "#45acb7", "#1988aa", "#225f97", "#293871", "#1a1a3f"),
)

DARK: Final = Tokens(
    sheet="#101315",
    well="#161a1c",
    sunken="#0b0d0e",
    raised="#1d2225",
    line="#242a2d",
    line2="#3b4448",
    mark="#6f7a7e",
    ink="#e9eded",
    ink2="#b1babc",
    ink3="#8a9497",
    accent="#45c4d0",
    crit="#ff7a85",
    crit_tint="#2c1619",
    warn="#efb03f",
    warn_mark="#efb03f",
    warn_tint="#2a2110",
    info="#86b4fb",
    series=("#8ab6fb", "#d27410", "#60efbf", "#a970d2", "#ea889d", "#d6c83a"),
    history=(
        "#ace0fe",
        "#6bb9f4",
        "#3c8dda",
        "#2864a8",
        "#204069",
        "#1f2729",
        "#65381d",
        "#a3521c",
        "#df7421",
        "#fea247",
        "#ffd79b",
    ),
    value=("#161d20", "#1d2d4c", "#20487a", "#136b94", "#0f919c", "#3eb99d", "#98d88a", "#f2f199"),
)

DASHES: Final = ("solid", "solid", "solid", "solid", (0, (5, 3)), (0, (2, 2)))
"""Line styles of the six series: the fifth and sixth are told apart by shape too."""


def tokens(dark: bool = False) -> Tokens:
    """The colors of a variant."""
    return DARK if dark else LIGHT


class ColorScheme(StrEnum):
    """How a flow picture is colored."""

    DEFAULT = "default"
    HIGH_CONTRAST = "high_contrast"
    COLOR_BLIND = "color_blind"
    MONOCHROME = "monochrome"


@dataclass(frozen=True, slots=True)
class FlowPalette:
    """What a flow picture is drawn with: a ramp from little to much gradient, and the states."""

    ramp: tuple[str, ...]
    outline: str
    critical_path: str
    exploding: str
    vanishing: str
    terminal: tuple[str, str, str]
    """rich styles of larger, smaller, and trouble."""
    line_scale: float = 1.0


def flow_palette(scheme: ColorScheme | str, dark: bool = False) -> FlowPalette:
    """The palette of a scheme; every scheme keeps the shapes and differs in color and weight."""
    look = tokens(dark)
    match ColorScheme(scheme):
        case ColorScheme.HIGH_CONTRAST:
            return FlowPalette(
                ramp=(look.value[1], look.value[4], look.ink),
                outline=look.ink,
                critical_path=look.ink,
                exploding="#ff5050" if dark else "#d00000",
                vanishing=look.ink,
                terminal=("bold yellow", "bold blue", "bold red reverse"),
                line_scale=1.6,
            )
        case ColorScheme.COLOR_BLIND:  # yellow to blue: told apart by protan, deutan and tritan sight
            ramp = ("#fde9a9", "#e69f00", "#0072b2", "#00263f")
            return FlowPalette(
                ramp=ramp[::-1] if dark else ramp,
                outline=look.ink2,
                critical_path=look.ink,
                exploding="#d55e00",
                vanishing="#0072b2",
                terminal=("yellow", "cyan", "magenta"),
            )
        case ColorScheme.MONOCHROME:
            return FlowPalette(
                ramp=(look.line, look.mark, look.ink),
                outline=look.ink2,
                critical_path=look.ink,
                exploding=look.ink,
                vanishing=look.ink3,
                terminal=("bold", "dim", "reverse"),
            )
        case _:
            return FlowPalette(
                ramp=look.value,
                outline=look.ink3,
                critical_path=look.ink,
                exploding=look.crit,
                vanishing=look.ink3,
                terminal=("yellow", "blue", "red"),
            )


def log_ratio(values: FloatArray) -> FloatArray:
    """log2 of each value over its row's median of positive finite values; NaN where there is none."""
    positive = np.where(np.isfinite(values) & (values > 0), values, np.nan)
    usual = np.full((len(values), 1), np.nan)
    known = ~np.isnan(positive).all(axis=1)
    if known.any():
        usual[known, 0] = np.nanmedian(positive[known], axis=1)
    ratio: FloatArray = np.log2(positive / usual)
    return ratio


def matplotlib() -> Any:
    """matplotlib with our colormaps registered, or the error that says how to install it."""
    try:
        import matplotlib as library
        from matplotlib.colors import LinearSegmentedColormap
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plots", "Drawing to a file") from error
    for suffix, look in (("", LIGHT), ("_dark", DARK)):
        for name, stops in (("history", look.history), ("value", look.value)):
            full = f"stethoscope_{name}{suffix}"
            if full not in library.colormaps:
                ramp = LinearSegmentedColormap.from_list(full, list(stops), N=512)
                library.colormaps.register(ramp.with_extremes(bad=look.sheet), name=full)
    return library


def colormap(name: str, dark: bool = False) -> Any:
    """`stethoscope_history` or `stethoscope_value`, by its short name and variant."""
    return matplotlib().colormaps[f"stethoscope_{name}{'_dark' if dark else ''}"]


SANS: Final = ["Inter", "Segoe UI", "Roboto", "Noto Sans", "Liberation Sans", "DejaVu Sans", "sans-serif"]
MONO: Final = ["SF Mono", "Cascadia Mono", "JetBrains Mono", "Roboto Mono", "DejaVu Sans Mono", "monospace"]

HEADING_WEIGHT: Final = 700
"""Every family has it; most have no 600, and matplotlib would say so every time."""


def style_settings(dark: bool = False) -> dict[str, Any]:
    """The rcParams of a variant: for `matplotlib.rc_context` or `matplotlib.style.use`."""
    from cycler import cycler

    look = tokens(dark)
    return {
        "figure.facecolor": look.sheet,
        "axes.facecolor": look.sheet,
        "savefig.facecolor": look.sheet,
        "text.color": look.ink2,
        "axes.labelcolor": look.ink2,
        "axes.titlecolor": look.ink,
        "xtick.color": look.line2,
        "ytick.color": look.line2,
        "xtick.labelcolor": look.ink2,
        "ytick.labelcolor": look.ink2,
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.titleweight": HEADING_WEIGHT,
        "axes.titlelocation": "left",
        "font.family": _installed_fonts(SANS),
        "font.sans-serif": _installed_fonts(SANS),
        "font.monospace": monospace(),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.edgecolor": look.line2,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "grid.color": look.line,
        "grid.linewidth": 0.8,
        "axes.axisbelow": True,
        "axes.prop_cycle": cycler(color=list(look.series)) + cycler(linestyle=list(DASHES)),
        "lines.linewidth": 1.6,
        "ytick.major.size": 0,
        "xtick.major.size": 3,
        "hatch.linewidth": 1.0,
        "legend.frameon": False,
        "figure.dpi": 100,
        "savefig.dpi": 200,
        "svg.fonttype": "none",
        "svg.hashsalt": "stethoscope",
        "axes.unicode_minus": True,
    }


def monospace() -> list[str]:
    """The families for code and names, in the order in which a letter is looked for."""
    return _installed_fonts(MONO)


def _installed_fonts(families: list[str]) -> list[str]:
    """Those of the families that this machine has, so that matplotlib does not warn about the rest.

    DejaVu, which comes with matplotlib, ends both lists: it has the letters that others lack, a raised minus for one. Only
    where a text is given the list itself, not its generic name, does matplotlib look further than the first.
    """
    from matplotlib import font_manager

    known = {font.name for font in font_manager.fontManager.ttflist}
    return [name for name in families if name in known] or ["DejaVu Sans"]


@contextmanager
def figure_style(dark: bool = False) -> Iterator[Any]:
    """Inside: matplotlib draws in our style. Outside: as before."""
    library = matplotlib()
    with library.rc_context(style_settings(dark)):
        yield library

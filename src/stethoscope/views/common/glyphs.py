"""The signs of the terminal, in Unicode and in ASCII: shape says it, color repeats it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from stethoscope.record import Severity
from stethoscope.views.common.styled_text import (
    BROKEN,
    CRITICAL,
    INFO,
    LIVE,
    PLAIN,
    WARNING,
    Line,
    cut_middle,
    fit_line,
    name_text,
    to_text,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of signs; every field is what is printed."""

    severity: Mapping[Severity, str]
    clear: str
    unknown: str
    state: Mapping[str, str]
    heat: str
    """Five signs from usual to far from usual."""
    spark: str
    nan: str
    inf: str
    missing: str
    dead: str
    frozen: str
    skipped: str
    arrow: str
    dot: str
    numbers: tuple[str, ...]
    """Signs of the numbered events, the first for the cause itself."""
    marks_direction: bool
    """Whether a heat row ends in ^ or v, because its signs alone cannot say larger or smaller."""


UNICODE: Final = Glyphs(
    severity={Severity.CRITICAL: "◆", Severity.WARNING: "▲", Severity.INFO: "●"},
    clear="✓",
    unknown="?",
    state={"live": "●", "finished": "□", "crashed": "✕", "stale": "◌", "damaged": "▨"},
    heat="·░▒▓█",
    spark="▁▂▃▄▅▆▇█",
    nan="╳",
    inf="∞",
    missing=" ",
    dead="_",
    frozen="|",
    skipped="-",
    arrow="→",
    dot="·",
    numbers=tuple("①②③④⑤⑥⑦⑧⑨"),
    marks_direction=False,
)

COLORLESS: Final = dataclasses.replace(UNICODE, marks_direction=True)

ASCII: Final = Glyphs(
    severity={Severity.CRITICAL: "X", Severity.WARNING: "!", Severity.INFO: "i"},
    clear="ok",
    unknown="?",
    state={"live": "*", "finished": "-", "crashed": "X", "stale": "~", "damaged": "%"},
    heat=".:+*#",
    spark="_.-=+*%#",
    nan="X",
    inf="I",
    missing=" ",
    dead="_",
    frozen="|",
    skipped="-",
    arrow="->",
    dot="-",
    numbers=tuple("123456789"),
    marks_direction=True,
)

SEVERITY_STYLE: Final = {
    Severity.CRITICAL: CRITICAL,
    Severity.WARNING: WARNING,
    Severity.INFO: INFO,
}
STATE_STYLE: Final = {
    "live": LIVE,
    "finished": PLAIN,
    "crashed": BROKEN,
    "stale": WARNING,
    "damaged": WARNING,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Screen:
    """What we draw on: how wide, which signs, and whether color may be used."""

    width: int = 80
    ascii: bool = False
    color: bool = False

    @property
    def glyphs(self) -> Glyphs:
        """The signs this screen can show; without color a heat row must say otherwise which way it went."""
        return ASCII if self.ascii else UNICODE if self.color else COLORLESS

    def text(self, text: str) -> str:
        """Words of our own or from a finding, safe and in this screen's alphabet."""
        return name_text(text, ascii=self.ascii)

    def name(self, text: str, width: int) -> str:
        """A name from outside, safe, cut in the middle to `width` cells."""
        return cut_middle(self.text(text), width, ascii=self.ascii)

    def write(self, lines: list[Line]) -> str:
        """The lines, none over the width, as the string to print."""
        return to_text([fit_line(line, self.width) for line in lines], color=self.color)

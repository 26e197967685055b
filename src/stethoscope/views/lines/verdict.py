"""The verdict: one sentence a person would say, the numbers that show it, what to try, what followed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from stethoscope.explain.context_evidence import context_evidence
from stethoscope.explain.diagnosis import Diagnosis, LookedAt
from stethoscope.explain.state import State, Suspect, Verdict
from stethoscope.record import Evidence, Finding, StethoscopeError, plural
from stethoscope.views.common import numbers
from stethoscope.views.common.evidence import evidence_series, evidence_trend, suspect_figure, window_from
from stethoscope.views.common.glyphs import SEVERITY_STYLE, Glyphs, Screen
from stethoscope.views.common.styled_text import (
    CRITICAL,
    NOTE,
    PLAIN,
    STRONG,
    Line,
    Span,
    cell_width,
    flow_parts,
    line_width,
    pad,
    wrap,
)
from stethoscope.views.lines.sparkline import sparkline

if TYPE_CHECKING:
    from stethoscope.store import Run

Trends = Callable[[Evidence, int, Screen], Line]
"""The small trend beside a number, in the room there is."""

READING_WIDTH = 96
"""Sentences are not set wider than this, however wide the screen is."""
_TREND = 32

_FIGURES = 3
"""Numbers that a verdict rests on, at least: where the detector names fewer, what else moved stands beside them."""
_MAX_FOLLOWED = 8


def verdict_lines(diagnosis: Diagnosis, run: Run | None, screen: Screen, *, full: bool = False) -> list[Line]:
    """The first cause in full, the others as rows (`full`: each in full); or the state without one, and what shows it."""
    notes = diagnosis.notes
    if not diagnosis.causes:
        lines = state_lines(diagnosis, run, screen)
        return lines + ([[], [("Worth knowing", NOTE)], *rows_lines(notes, diagnosis, screen)] if notes else [])
    first, *others = diagnosis.causes
    lines = cause_lines(first, diagnosis, run, screen, diagnosis.verdict.state.label)
    if full:
        for cause in others:
            lines += [[], *cause_lines(cause, diagnosis, run, screen)]
        others = []
    lines += unexplained_lines(diagnosis.verdict, screen)
    if others or notes:
        lines += [[], *rows_lines([*others, *notes], diagnosis, screen)]
    return lines


def state_lines(diagnosis: Diagnosis, run: Run | None, screen: Screen) -> list[Line]:
    """A verdict without a cause in full: its state, what shows it, what was ruled out, the line of code that leads on."""
    verdict, extent = diagnosis.verdict, extent_text(diagnosis.looked_at)
    lines = [*state_head(verdict, screen)]
    rest = verdict.caveats
    lines += [[(piece, NOTE)] for piece in wrap(screen.text(rest), _reading_width(screen))] if rest else []
    if figures := figure_lines(verdict.evidence, _plain_trends(run), screen):
        lines += [[], *figures]
    for head, found in verdict.weighed:
        lines += [[], *suspect_lines(head, found, screen)]
    if verdict.line:
        lines += [[], *code_lines(verdict.purpose, verdict.line, screen)]
    if diagnosis.looked_at.num_detectors:
        extent = f"{plural(diagnosis.looked_at.num_detectors, 'detector')} found no cause in {extent}"
    return [*lines, [], [(piece, NOTE) for piece in (extent,)]]


def state_head(verdict: Verdict, screen: Screen) -> list[Line]:
    """The state over its sentence."""
    sign = state_sign(verdict, screen.glyphs)
    head: Line = [(f"{sign} {verdict.state.label}", state_style(verdict))]
    return [head, *([(piece, STRONG)] for piece in wrap(screen.text(verdict.message), _reading_width(screen)))]


def state_sign(verdict: Verdict, glyphs: Glyphs) -> str:
    """The tick is for what learns alone."""
    if verdict.state is State.LEARNS:
        return glyphs.clear
    return glyphs.severity[verdict.severity] if verdict.state.is_trouble else glyphs.unknown


def state_style(verdict: Verdict) -> str:
    """Its color, which repeats what the sign says."""
    return SEVERITY_STYLE[verdict.severity] if verdict.state.is_trouble else PLAIN


def suspect_lines(head: str, found: Sequence[Suspect], screen: Screen) -> list[Line]:
    """What could be behind it, each with the number that speaks for it or against it."""
    lines: list[Line] = [[("  ", ""), (head, NOTE)]]
    for one in found:
        pieces = wrap(screen.text(f"{one.text} {suspect_figure(one, ascii=screen.ascii)}"), _reading_width(screen) - 4)
        lines += [[("  " if at == 0 else "    ", ""), (piece, PLAIN)] for at, piece in enumerate(pieces)]
    return lines


def unexplained_lines(verdict: Verdict, screen: Screen) -> list[Line]:
    """Symptoms that no cause explains, as sentences."""
    lines: list[Line] = []
    for symptom in verdict.unexplained:
        sign = pad(screen.glyphs.severity[symptom.severity], 2)
        pieces = wrap(screen.text(f"Not explained by this: {symptom.message}"), _reading_width(screen) - 2)
        lines += [[], [(sign, SEVERITY_STYLE[symptom.severity]), (pieces[0], PLAIN)]]
        lines += [[("  ", ""), (piece, PLAIN)] for piece in pieces[1:]]
    return lines


def _reading_width(screen: Screen) -> int:
    return min(screen.width, READING_WIDTH)


def _plain_trends(run: Run | None) -> Trends:
    """The whole course of what a number of the verdict is the end of."""

    def trend(evidence: Evidence, room: int, screen: Screen) -> Line:
        series = evidence_series(evidence, run) if run is not None and room >= 8 else None
        return [] if series is None or len(series) < 2 else sparkline(series, room, screen.glyphs)

    return trend


def extent_text(looked_at: LookedAt) -> str:
    """How much was examined."""
    expected = looked_at.num_sites_expected or looked_at.num_sites
    text = f"{numbers.count(looked_at.num_sites)} of {plural(expected, 'tensor')}, "
    text += f"{plural(looked_at.num_steps, 'step')}."
    if looked_at.num_rows_lost:
        text += f" {plural(looked_at.num_rows_lost, 'row')} lost."
    return text


def cause_lines(cause: Finding, diagnosis: Diagnosis, run: Run | None, screen: Screen, state: str = "") -> list[Line]:
    """One cause in full; the first one under the verdict's state."""
    width = min(screen.width, READING_WIDTH)
    message = screen.text(cause.message)
    lines = overline(cause, screen, state)
    lines += [[(text, STRONG)] for text in wrap(message, width)]
    where = where_text(cause, message, screen)
    if where:
        lines += [[(text, NOTE)] for text in wrap(where, width)]
    evidence = evidence_lines(cause, run, screen)
    if evidence:
        lines += [[], *evidence]
    if cause.remedy:
        lines += [[], *remedy_lines(cause.remedy, screen)]
    followed = followed_lines(cause, diagnosis.followed.get(cause.code, ()), screen)
    if followed:
        lines += [[], *followed]
    return lines


def overline(cause: Finding, screen: Screen, state: str = "") -> list[Line]:
    """Severity, code, how sure we are and the verdict's state, over the sentence."""
    sign = screen.glyphs.severity[cause.severity]
    parts: list[Line] = [
        [(f"{sign} {cause.severity.lower()}", SEVERITY_STYLE[cause.severity])],
        [(screen.name(cause.code, screen.width), NOTE)],
    ]
    if cause.confidence < 0.995:
        parts.append([(f"{numbers.percent(cause.confidence)} sure", PLAIN)])
    if state:
        parts.append([(state, NOTE)])
    return flow_parts(parts, screen.width)


def since(finding: Finding) -> str:
    """ "since step N" where it lasts, "at step N" where it is one."""
    word = "at" if finding.first_step == finding.last_step else "since"
    return f"{word} step {numbers.count(finding.first_step)}"


def where_text(cause: Finding, message: str, screen: Screen) -> str:
    """The step and the sites that the sentence itself does not name."""
    parts = []
    if numbers.count(cause.first_step) not in message and str(cause.first_step) not in message:
        parts.append(since(cause))
    sites = cause.layers
    named = [screen.text(part) for site in sites for part in (site, site.rpartition(".")[0]) if part]
    if named and not any(name in message for name in named):
        parts.append(_sites_text(sites, screen))
    if cause.rank is not None:
        parts.append(f"on rank {cause.rank}")
    return ", ".join(parts)


def _sites_text(sites: Sequence[str], screen: Screen) -> str:
    names = [screen.name(site, 40) for site in sites[:2]]
    rest = len(sites) - len(names)
    text = " and ".join(names) if rest == 0 else ", ".join(names)
    return f"in {text}" + (f" and {numbers.count(rest)} more" if rest else "")


def evidence_lines(cause: Finding, run: Run | None, screen: Screen) -> list[Line]:
    """The numbers that show a cause, and what else moved meanwhile."""
    shown = [e for e in cause.evidence if e.value is not None or e.before is not None]
    if run is not None:
        shown += beside(cause, run, _FIGURES - len(shown))

    def trend(evidence: Evidence, room: int, screen: Screen) -> Line:
        return _evidence_trend(evidence, cause, run, room, screen)

    return figure_lines(shown, trend, screen)


def figure_lines(figures: Sequence[Evidence], trend: Trends, screen: Screen) -> list[Line]:
    """Numbers as rows: what, before, after, and a small trend where a series is known."""
    shown = [e for e in figures if e.value is not None or e.before is not None]
    if not shown:
        return []
    labels = [screen.text(e.label) for e in shown]
    before = [numbers.quantity(e.before, e.value, unit=e.unit, ascii=screen.ascii) for e in shown]
    after = [_with_unit(e, screen) for e in shown]
    before_width = max(cell_width(text) for text in before)
    after_width = max(cell_width(text) for text in after)
    arrow = screen.glyphs.arrow
    # The words come first; a trend takes what they and the numbers leave, and half of itself at least.
    taken = 6 + (before_width + 2 + len(arrow) if before_width else 0) + after_width + _TREND // 2
    longest = max(cell_width(label) for label in labels)
    label_width = min(longest, max(14, min(screen.width, READING_WIDTH + _TREND) - taken))
    lines = []
    for e, label, was, now in zip(shown, labels, before, after, strict=True):
        line: Line = [("  ", ""), (pad(screen.name(label, label_width), label_width + 2), PLAIN)]
        if before_width:
            mark = arrow if was else " " * len(arrow)
            line.append((f"{pad(was, before_width, right=True)} {mark} ", PLAIN))
        broken = e.value is not None and not np.isfinite(e.value)
        line.append((pad(now, after_width), CRITICAL if broken else STRONG))
        room = min(_TREND, screen.width - line_width(line) - 2)
        line += [("  ", ""), *trend(e, room, screen)]
        lines.append(line)
    return lines


def beside(cause: Finding, run: Run, room: int) -> list[Evidence]:
    """What else moved meanwhile; nothing where that cannot be read."""
    try:
        return context_evidence(run, cause, room)
    except (StethoscopeError, KeyError, ValueError):
        return []


def _with_unit(evidence: Evidence, screen: Screen) -> str:
    text = numbers.quantity(evidence.value, evidence.before, unit=evidence.unit, ascii=screen.ascii)
    unit = screen.text(evidence.unit)
    return text + (unit if unit == "%" else f" {unit}" if unit and text else "")


def _evidence_trend(evidence: Evidence, cause: Finding, run: Run | None, room: int, screen: Screen) -> Line:
    series = evidence_trend(evidence, cause, run) if run is not None and room >= 8 else None
    if series is None or len(series) < 2:
        return []
    return sparkline(series.between(*finding_window(cause, series.steps)), room, screen.glyphs)


def finding_window(cause: Finding, steps: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[int, int]:
    """The steps to show for a finding: what came before it, and all that came after."""
    if not len(steps):
        return cause.first_step, cause.last_step
    return window_from(cause.first_step, int(steps[0]), int(steps[-1]))


def remedy_lines(remedy: str, screen: Screen) -> list[Line]:
    """The line of code to try."""
    return code_lines("try", remedy, screen)


def code_lines(purpose: str, code: str, screen: Screen) -> list[Line]:
    """A line of code and what it is for; what is too long breaks before its comment, and never inside a word."""
    head, room = f"{purpose}  ", screen.width - len(purpose) - 4
    pieces: list[str] = []
    for text in map(screen.text, code.strip().splitlines()):
        parts = [text] if cell_width(text) <= room else re.split(r"\s{2,}(?=# )", text)
        pieces += [piece for part in parts for piece in (wrap(part, room) if cell_width(part) > room else [part])]
    heads: Iterator[Span] = itertools.chain([(head, NOTE)], itertools.repeat((" " * len(head), "")))
    return [[("  ", ""), beginning, (piece, PLAIN)] for beginning, piece in zip(heads, pieces, strict=False)]


def followed_lines(cause: Finding, followed: Iterable[Finding], screen: Screen) -> list[Line]:
    """What followed, numbered as the flags over the picture are."""
    consequences = list(followed)
    if not consequences:
        return []
    where = f" in {screen.name(cause.sites[0], 40)}" if cause.sites else ""
    entries = [(cause.first_step, f"it begins{where}")]
    entries += [(f.first_step, screen.text(f.message)) for f in consequences[:_MAX_FOLLOWED]]
    width = max(len(numbers.count(step)) for step, _ in entries)
    lines: list[Line] = [[("  ", ""), ("what followed", NOTE)]]
    for sign, (step, text) in zip(screen.glyphs.numbers, entries, strict=False):
        label = f"{sign})" if screen.ascii else sign
        head = f"{label} {pad(numbers.count(step), width, right=True)}  "
        pieces = wrap(text, min(screen.width, READING_WIDTH) - 2 - len(head))
        lines.append([("  ", ""), (head, STRONG), (pieces[0], PLAIN)])
        lines += [[(" " * (2 + len(head)), ""), (piece, PLAIN)] for piece in pieces[1:]]
    if len(consequences) > _MAX_FOLLOWED:
        lines.append([("  ", ""), (f"and {numbers.count(len(consequences) - _MAX_FOLLOWED)} more", NOTE)])
    return lines


def rows_lines(
    findings: Sequence[Finding], diagnosis: Diagnosis, screen: Screen, *, numbered: bool = False
) -> list[Line]:
    """Findings as rows: sign and sentence, then code and since when, and how many follow from it.

    `numbered` puts the numbers of the flags over the picture before the steps.
    """
    lines: list[Line] = []
    for index, finding in enumerate(findings):
        sign = pad(screen.glyphs.severity[finding.severity], 2)
        pieces = wrap(screen.text(finding.message), min(screen.width, READING_WIDTH) - 2)
        lines.append([(sign, SEVERITY_STYLE[finding.severity]), (pieces[0], PLAIN)])
        lines += [[("  ", ""), (piece, PLAIN)] for piece in pieces[1:]]
        sign = screen.glyphs.numbers[index] + " " if numbered and index < len(screen.glyphs.numbers) else ""
        note = f"{sign}{screen.text(finding.code)}  {since(finding)}"
        num_followed = len(diagnosis.followed.get(finding.code, ()))
        if num_followed:
            note += f"  {plural(num_followed, 'consequence')}"
        lines.append([("  ", ""), (note, NOTE)])
    return lines

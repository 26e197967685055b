"""`stethoscope explain [CODE]`: what a code means, or all codes by theme. Exit 0, 2 for an unknown code."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from stethoscope.cli.options import add_output, emit, emit_json, screen_of

if TYPE_CHECKING:
    from stethoscope.explain.pages import Page
    from stethoscope.views.common.glyphs import Screen
    from stethoscope.views.common.styled_text import Line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A code, or none for the list."""
    parser.add_argument("code", nargs="?", metavar="CODE", help="such as dead_units; default: the list of all")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the page, or the list."""
    from stethoscope.explain.pages import by_theme, page

    if args.code is not None:
        found = page(args.code.strip().lower())
        if args.json:
            emit_json(found.to_json())
        else:
            screen = screen_of(args)
            emit(screen, explain_lines(found, screen))
        return 0
    themes = by_theme()
    if args.json:
        emit_json({"themes": {theme: [_brief_json(one) for one in pages] for theme, pages in themes.items()}})
    else:
        screen = screen_of(args)
        emit(screen, list_lines(themes, screen))
    return 0


def _brief_json(page: Page) -> dict[str, object]:
    return {
        "code": page.code,
        "summary": page.summary,
        "severity": str(page.severity),
        "found_by": list(page.found_by),
        "tier": page.tier,
    }


def explain_lines(page: Page, screen: Screen) -> list[Line]:
    """The overline, the summary in bold, then the page's sections."""
    from stethoscope.views.common.glyphs import SEVERITY_STYLE
    from stethoscope.views.common.styled_text import NOTE, STRONG, flow_parts, wrap
    from stethoscope.views.lines.verdict import READING_WIDTH
    from stethoscope.views.terminal.page import page_lines

    sign = f"{screen.glyphs.severity[page.severity]} {page.severity.lower()}"
    facts = f"{page.theme}; found by {' and '.join(page.found_by)}; {page.tier}"
    lines: list[Line] = flow_parts(
        [[(sign, SEVERITY_STYLE[page.severity])], [(page.code, NOTE)], [(facts, NOTE)]], screen.width
    )
    summary = screen.text(page.summary.replace("`", ""))
    lines += [[(text, STRONG)] for text in wrap(summary, min(screen.width, READING_WIDTH))]
    return [*lines, [], *page_lines(page.text[page.text.index("## ") :], screen)]


def list_lines(themes: dict[str, list[Page]], screen: Screen) -> list[Line]:
    """All codes under their themes, each with its sentence."""
    from stethoscope.views.common.styled_text import NOTE, STRONG
    from stethoscope.views.terminal.page import summary_lines

    width = max(len(page.code) for pages in themes.values() for page in pages)
    lines: list[Line] = []
    for theme, pages in themes.items():
        lines += [[(theme, STRONG)]]
        for page in pages:
            lines += summary_lines(page.code, page.summary, width, screen)
        lines.append([])
    return [*lines, [("stethoscope explain CODE tells the whole of one", NOTE)]]

"""Runs, diagnoses and sessions as a notebook shows them: static HTML, nothing that runs, every name escaped.

The paper is the notebook's own: text takes its color, marks have one that reads on light and dark alike. Objects of the
rooms below find `html` and `bundle` by name (`record.Drawn`), so that no room imports upwards.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from stethoscope.explain.diagnosis import Diagnosis
from stethoscope.store import Run
from stethoscope.views.notebook.markup import escaped, sheet

logger = logging.getLogger(__name__)

__all__ = ["bundle", "html", "session_html"]


def html(value: Any) -> str:
    """The object as HTML. Showing never fails: what cannot be drawn is shown as its one line of text."""
    from stethoscope.views.notebook.cells import diagnosis_html, run_html

    try:
        if isinstance(value, Run):
            return run_html(value)
        if isinstance(value, Diagnosis):
            return diagnosis_html(value, None)
    except Exception as error:  # a cell that raises hides everything under it
        logger.warning("this could not be drawn for the notebook: %r", error)
    return sheet(f"<code>{escaped(repr(value), 2000)}</code>")


def plain(value: Any) -> str:
    """The object as text: the verdict as the terminal shows it, else its one line."""
    from stethoscope.views.common.glyphs import Screen
    from stethoscope.views.lines.verdict import verdict_lines

    if isinstance(value, Diagnosis):
        screen = Screen()
        return screen.write(verdict_lines(value, None, screen)).rstrip("\n")
    return repr(value)


def bundle(value: Any) -> dict[str, str]:
    """Both forms; the notebook chooses."""
    return {"text/plain": plain(value), "text/html": value._repr_html_()}


def session_html(heading: str, note: str, folder: Path | None) -> str:
    """A session: what it watches, and the run as far as it is on disk; nothing is waited for."""
    from stethoscope.store import open_run
    from stethoscope.views.notebook.cells import heading_html, run_html

    body = ""
    if folder is not None:
        try:
            with open_run(folder) as run:
                body = run_html(run)
        except Exception as error:  # training goes on whatever a cell shows
            logger.warning("the run could not be drawn for the notebook: %r", error)
    return heading_html(heading, note) + body

"""The list of runs: newest first, each as one line, read again only when its files change."""

from __future__ import annotations

from pathlib import Path

from stethoscope.store import Run, find_runs, open_run
from stethoscope.store.locate import last_written
from stethoscope.views.common import numbers
from stethoscope.views.common.glyphs import Screen
from stethoscope.views.common.row_reader import RowReader, SlowRunError, row_trouble
from stethoscope.views.common.styled_text import NOTE, STRONG, Line
from stethoscope.views.lines.runs import RunRow, run_row, runs_lines
from stethoscope.views.tui.chart import CURSOR
from stethoscope.views.tui.view import Page, View

MAX_LISTED = 500


class RunList:
    """The runs under a folder; what was read of each is kept until something is written, live ones are kept open."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self._kept: dict[Path, tuple[tuple[float, str], RunRow]] = {}
        self._open: dict[Path, Run] = {}
        self._reader = RowReader()

    def rows(self) -> list[tuple[Path, RunRow]]:
        """Every run, newest first; one that cannot be read says why."""
        folders = find_runs(self.base)[-MAX_LISTED:][::-1]
        there = set(folders)
        self._kept = {path: kept for path, kept in self._kept.items() if path in there}
        self._open = {path: run for path, run in self._open.items() if path in there}
        return [(path, self._make_row(path)) for path in folders]

    def _read_row(self, path: Path) -> RunRow:
        """The row; a live run is read on from where it was, any other is read once and closed."""
        run = self._open.pop(path, None)
        if run is None:
            run = open_run(path)
        else:
            run.refresh()
        row = run_row(run)
        if row.state in ("live", "stale"):
            self._open[path] = run
        else:
            run.close()
        return row

    def _make_row(self, path: Path) -> RunRow:
        written = last_written(path)
        kept = self._kept.get(path)
        # A live run may turn stale by itself; any other stays as it is.
        if kept is not None and kept[0] == written and kept[1].state not in ("live", "stale"):
            return kept[1]
        try:
            row: RunRow = self._reader.read(path, lambda: self._read_row(path))
        except Exception as error:  # whatever a run folder holds, the other rows are shown
            row = RunRow("", path.name, "damaged", trouble=row_trouble(error))
            if isinstance(error, SlowRunError):
                return row
        self._kept[path] = (written, row)
        return row


def runs_page(runs: RunList, view: View, screen: Screen, height: int, marked: frozenset[str]) -> Page:
    """The runs that match, the selected one in view."""
    found = [(path, row) for path, row in runs.rows() if _is_match(row, path, view.pattern)]
    head: list[Line] = [
        [
            ("Runs", STRONG),
            ("  ", ""),
            (screen.name(str(runs.base), screen.width - 24), NOTE),
            (f"  {numbers.count(len(found))}", NOTE),
        ],
        [],
    ]
    if not found:
        return Page([*head, *_empty_lines(view, screen)])
    keys = tuple(str(path) for path, _ in found)
    at = keys.index(view.row) if view.row in keys else 0
    room = max(3, height - len(head) - 1)
    first = max(0, min(at - room // 2, len(found) - room))
    shown = found[first : first + room]
    narrow = Screen(screen.width - 2, screen.ascii, screen.color)
    title, *lines = runs_lines([row for _, row in shown], narrow)
    out = [*head, [("  ", ""), *title]]
    for index, ((path, _), line) in enumerate(zip(shown, lines, strict=True)):
        sign = ("x " if screen.ascii else "✓ ") if str(path) in marked else "  "
        chosen = first + index == at
        out.append(
            [(sign, STRONG), *([(text, f"{style} {CURSOR}".strip()) for text, style in line] if chosen else line)]
        )
    return Page(out, rows=keys, row=keys[at], cells_at=(len(head) + 1, 0, first))


def _is_match(row: RunRow, path: Path, pattern: str) -> bool:
    whole = f"{row.name} {row.id} {path.name} {row.state}".lower()
    return all(word in whole for word in pattern.lower().split())


def _empty_lines(view: View, screen: Screen) -> list[Line]:
    """What to do where there is no run."""
    if view.pattern:
        return [[("  ", ""), (screen.text(f"No run matches {view.pattern}. Esc clears the filter."), NOTE)]]
    words = (
        "No runs here yet. One appears as soon as it begins.",
        "",
        "stethoscope demo            makes one in half a minute",
        "stethoscope run train.py    watches an unchanged script",
    )
    return [[("  ", ""), (text, NOTE)] for text in words]

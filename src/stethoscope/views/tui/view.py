"""What of a run is shown: kind, window, cursor, selected row, open branches; and how keys change it.

Plain data: the drawing reads a copy, the keys change the original, and both meet in a Page.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from stethoscope.analyse.bins import bins_over
from stethoscope.analyse.tree import Node
from stethoscope.record import IntArray, Kind
from stethoscope.views.common.styled_text import Line
from stethoscope.views.tui.chart import Frame

MIN_WINDOW = 8
"""Steps that a window shows at least."""


@dataclasses.dataclass(slots=True)
class View:
    """What is shown."""

    kind: Kind | None = None
    """None: the one that the first cause speaks of."""
    raw: bool = False
    window: tuple[int, int] | Literal["cause", "all"] = "cause"
    cursor: int | Literal["cause", "last"] = "cause"
    """The step under the cursor; "last" follows the run, "cause" stands where the first cause began."""
    row: str = ""
    """The path of the selected row; "" for the one where the cause sits, else the first."""
    opened: frozenset[str] | None = None
    """The branches that are open; None as the page opens them."""
    pattern: str = ""
    color: bool = True
    scroll: int = 0

    def copy(self) -> View:
        """The same, for a drawing that runs beside."""
        return dataclasses.replace(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """A drawn screen, and what the keys need to know of it."""

    lines: list[Line]
    columns: IntArray = dataclasses.field(default_factory=lambda: np.empty(0, np.int64))
    """The first step of each cell."""
    size: int = 1
    """Steps a cell."""
    last_step: int = 0
    window: tuple[int, int] = (0, 0)
    span: tuple[int, int] = (0, 0)
    rows: tuple[str, ...] = ()
    """The paths that can be selected, in their order."""
    row: str = ""
    known: tuple[str, ...] = ()
    """Every path there is, also in branches that are closed."""
    opened: frozenset[str] = frozenset()
    branches: frozenset[str] = frozenset()
    parents: dict[str, str] = dataclasses.field(default_factory=dict)
    events: tuple[int, ...] = ()
    kinds: tuple[Kind, ...] = ()
    column: int = -1
    """The cell under the cursor."""
    cells_at: tuple[int, int, int] = (0, 0, 0)
    """Where the cells lie: top, left, and the number of the first row shown."""
    frame: Frame | None = None

    @property
    def is_drawn(self) -> bool:
        """Whether there are cells."""
        return len(self.columns) > 0

    def column_of(self, view: View) -> int:
        """The cell under the cursor: keys may be ahead of the drawing."""
        if isinstance(view.cursor, str):
            return self.column
        return column_of(self.columns, view.cursor)

    def step_of(self, view: View) -> int:
        """The step under the cursor."""
        if isinstance(view.cursor, str):
            return int(self.columns[self.column]) if self.is_drawn else self.last_step
        return view.cursor

    def row_of(self, view: View) -> str:
        """The selected row."""
        return view.row if view.row in self.rows else self.row


def column_of(columns: IntArray, step: int) -> int:
    """The cell of a step, the nearest where it lies outside."""
    return int(np.clip(np.searchsorted(columns, step, side="right") - 1, 0, len(columns) - 1)) if len(columns) else -1


def move_step(view: View, page: Page, by: int) -> None:
    """The cursor some cells on; at the edge of a window the window moves."""
    if not page.is_drawn:
        return
    wanted = page.column_of(view) + by
    step = int(page.columns[0]) + wanted * page.size
    first, last = page.window
    if isinstance(view.window, tuple) and not first <= step <= last:
        shift = max(page.span[0] - first, step - first) if step < first else min(page.span[1] - last, step - last)
        view.window = (first + shift, last + shift)
    view.cursor = int(np.clip(step, page.span[0], page.span[1]))


def move_row(view: View, page: Page, by: int) -> None:
    """The selection some rows on."""
    if page.rows:
        at = page.rows.index(page.row_of(view)) if page.row_of(view) in page.rows else 0
        view.row = page.rows[int(np.clip(at + by, 0, len(page.rows) - 1))]


def move_event(view: View, page: Page, by: int) -> bool:
    """The cursor to the next or the previous numbered event; False where there is none."""
    here = page.step_of(view)
    ahead = [step for step in page.events if (step > here if by > 0 else step < here)]
    if not ahead:
        return False
    view.cursor = step = min(ahead) if by > 0 else max(ahead)
    if not page.window[0] <= step <= page.window[1]:
        view.window = "all"
    return True


def zoom(view: View, page: Page, factor: float) -> None:
    """The window made wider or narrower around the cursor; as wide as the run it is the whole run again."""
    first, last = page.window
    middle = page.step_of(view)
    width = max(MIN_WINDOW, round((last - first + 1) * factor))
    begin, end = page.span
    if width >= end - begin + 1:
        view.window = "all"
        return
    share = (middle - first) / max(1, last - first)
    low = int(np.clip(round(middle - share * width), begin, end - width + 1))
    view.window = (low, low + width - 1)


def toggle(view: View, page: Page) -> None:
    """The branch under the cursor opened or closed; on a leaf, the branch that holds it closed."""
    opened = set(page.opened if view.opened is None else view.opened)
    row = page.row_of(view)
    path = row if row in page.branches else page.parents.get(row, "")
    if not path:
        return
    opened ^= {path}
    view.opened, view.row = frozenset(opened), path


def filled(window: tuple[int, int], span: tuple[int, int], steps: IntArray, room: int) -> tuple[int, int]:
    """The window with the steps that fit beside it at the same size of cells: earlier ones first, then later ones."""
    first, last = window
    inside = steps[(steps >= first) & (steps <= last)]
    size = bins_over(inside, max(room, 1)).size if len(inside) else 1
    begin = max(span[0], min(first, (last // size - room + 1) * size))
    end = min(span[1], max(last, (begin // size + room) * size - 1))
    return begin, end


def visible(tree: Sequence[Node], opened: frozenset[str], pattern: str) -> list[int]:
    """The indices of the rows that show: those whose holders are open, or those that match."""
    if pattern:
        words = pattern.lower().split()
        return [at for at, node in enumerate(tree) if all(word in node.path.lower() for word in words)]
    shown = []
    is_open: list[bool] = []
    for at, node in enumerate(tree):
        inside = node.parent < 0 or is_open[node.parent]
        is_open.append(inside and node.path in opened)
        if inside:
            shown.append(at)
    return shown

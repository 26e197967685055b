"""Draws the picture in ARCHITECTURE.md: which room imports which, from the import graph itself.

    python docs/make_architecture.py        # writes it between its two marks; a test compares

An arrow that follows from others is left out: cli -> views -> store says that cli may know the store.
"""

from __future__ import annotations

import re
from pathlib import Path

import grimp

PAGE = Path(__file__).parents[1] / "ARCHITECTURE.md"
BEGIN, END = "<!-- rooms: made by docs/make_architecture.py -->", "<!-- end of rooms -->"
EVERYBODYS = {"record", "config"}
"""Everyone may import these; arrows to them would only hide the others."""
PACKAGE = "stethoscope"


def imports_of_rooms() -> dict[str, set[str]]:
    """By room, the rooms that its modules import."""
    graph = grimp.build_graph(PACKAGE)
    found: dict[str, set[str]] = {}
    for module in graph.modules:
        room = room_of(module)
        if room is None:
            continue
        imported = {room_of(name) for name in graph.find_modules_directly_imported_by(module)}
        found.setdefault(room, set()).update(name for name in imported if name is not None and name != room)
    return found


def room_of(module: str) -> str | None:
    """The room that a module stands in; None for the package's own two doors and what everybody imports."""
    parts = module.split(".")
    return None if len(parts) < 2 or parts[1].startswith("__") or parts[1] in EVERYBODYS else parts[1]


def without_detours(imports: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The arrows that do not follow from the others."""

    def reached(room: str, skipping: tuple[str, str]) -> set[str]:
        seen: set[str] = set()
        todo = [room]
        while todo:
            here = todo.pop()
            ahead = {there for there in imports[here] if (here, there) != skipping} - seen
            seen |= ahead
            todo += ahead
        return seen

    return sorted((a, b) for a in imports for b in imports[a] if b not in reached(a, (a, b)))


def picture() -> str:
    """The picture as Mermaid, which GitHub and most editors draw."""
    imports = imports_of_rooms()
    arrows = "\n".join(f"    {a} --> {b}" for a, b in without_detours(imports))
    return f"{BEGIN}\n```mermaid\nflowchart TD\n{arrows}\n```\n{END}"


def page_with(drawn: str) -> str:
    """The page with this picture in place of its own."""
    text = PAGE.read_text(encoding="utf-8")
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: drawn, text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page_with(picture()), encoding="utf-8")

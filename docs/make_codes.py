"""Writes docs/codes/README.md, the index of the pages of all codes. `--check` says whether it is current."""

from __future__ import annotations

import sys
from pathlib import Path

from stethoscope.explain.pages import by_theme

INDEX = Path(__file__).parent / "codes" / "README.md"
PAGES = "../../src/stethoscope/explain/codes"


def index() -> str:
    """All codes under their themes, each linked to its page."""
    lines = [
        "# What can be found",
        "",
        "One page a code: the bug, how it looks, why it happens, the fix, how we know and what is not seen.",
        "`stethoscope explain CODE` prints the same page. Found by: `watch` while training, `finished run` at its end,",
        "`checkup` before it, `several ranks` across them. Footing: *exact* is a broken invariant, *statistical* a rule",
        "relative to the run itself, *advice* a note.",
    ]
    for theme, pages in by_theme().items():
        lines += [
            "",
            f"## {theme}",
            "",
            "| code | what is wrong | severity | found by | footing |",
            "| --- | --- | --- | --- | --- |",
        ]
        lines += [
            f"| [{p.code}]({PAGES}/{p.code}.md) | {p.summary} | {p.severity} | {', '.join(p.found_by)} | {p.tier} |"
            for p in pages
        ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write it, or compare."""
    if "--check" in sys.argv[1:]:
        return int(INDEX.read_text(encoding="utf-8") != index())
    INDEX.parent.mkdir(exist_ok=True)
    INDEX.write_text(index(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

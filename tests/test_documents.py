"""The pages that people read: what they link to is there, and what they say to type is understood."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from stethoscope.cli import COMMANDS, build_parser

ROOT = Path(__file__).parents[1]
OWN = {".venv", "node_modules", "build", "dist"}
PAGES = sorted(p for p in ROOT.rglob("*.md") if not OWN & set(p.relative_to(ROOT).parts))
README = (ROOT / "README.md").read_text(encoding="utf-8")


def links(page: Path) -> list[str]:
    """What a page links to, outside its blocks of code."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    return re.findall(r"\]\(([^)\s]+)\)", text)


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", [p for p in PAGES if links(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_what_is_linked_is_there(page: Path) -> None:
    for link in links(page):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in headings(target), link


def command_lines() -> list[str]:
    """Every command of the README's blocks; `a | b [RUN]` is two, and what stands behind two spaces is said of it."""
    blocks = "\n".join(README.split("```")[1::2])
    found = re.findall(r"^stethoscope (.+?)(?:   *\S.*)?$", blocks, re.M)
    return [part.strip() for line in found if not line.startswith(": ") for part in line.split(" | ")]


def test_the_readme_names_every_command() -> None:
    assert {line.split()[0] for line in command_lines()} | {"demo"} == set(COMMANDS)


@pytest.mark.parametrize("line", [line for line in command_lines() if not line.startswith("run ")])
def test_a_command_of_the_readme_is_understood(line: str) -> None:
    words = shlex.split(re.sub(r"\[(\w+)\]", r"\1", line))
    assert build_parser(words).parse_args(words).command == words[0]


def test_the_targets_that_pages_name_are_in_the_makefile() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    pages = README + "".join(
        (ROOT / name).read_text(encoding="utf-8") for name in ("CONTRIBUTING.md", "ARCHITECTURE.md")
    )
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", re.sub(r"make\nbench", "make bench", pages), re.M))
    assert named
    assert named <= targets
